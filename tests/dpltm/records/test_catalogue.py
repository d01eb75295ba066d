"""The descriptions are complete and cannot be changed."""

import pytest

from dpltm.records import Description, catalogue


@pytest.mark.parametrize(
    ("name", "bounds", "classes", "records", "openml", "openml_test"),
    [
        ("digits", (0, 16), 10, 1438, (), 0),
        ("mnist", (0, 255), 10, 60000, (554,), 10000),
        ("kmnist", (0, 255), 10, 60000, (41982, 41996), 10000),
        ("kmnist-7k", (0, 255), 10, 7011, (), 0),
        ("fashion-mnist", (0, 255), 10, 60000, (40996,), 10000),
        ("cifar10", (0, 255), 10, 50000, (40927,), 10000),
        ("cifar10-12k", (0, 255), 10, 10000, (), 0),
        ("cifar10-45k", (0, 255), 10, 45000, (), 0),
        ("har", (-1, 1), 6, 7352, (1478,), 2947),
        ("har-signals", (-2, 2), 6, 2400, (), 0),
        ("har-raw", (-2, 2), 6, 7352, (), 0),
        ("isolet", (-1, 1), 26, 6238, (300,), 1559),
        ("a9a", (0, 1), 2, 32561, (), 0),
        ("imdb", (0, 9999), 2, 25000, (), 0),
    ],
)
def test_published_facts(name, bounds, classes, records, openml, openml_test):
    known = catalogue()[name]
    assert (known.bounds, known.classes, known.records) == (bounds, classes, records)
    assert (known.openml, known.openml_test) == (openml, openml_test)


def test_descriptions_cannot_be_changed():
    for known in catalogue().values():
        assert bool(known.openml) == bool(known.openml_name) == bool(known.openml_test)
    with pytest.raises(TypeError):
        catalogue()["mine"] = Description("mine", "", "vector", (2,), (0, 1), 2, 9)
