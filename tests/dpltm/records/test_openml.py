"""OpenML tables: the conversion on tables built by hand, and what is said when there is no network."""

import hashlib
import json
from urllib.error import URLError

import numpy as np
import pytest
from sklearn.utils import Bunch

from dpltm.cli.main import run
from dpltm.records import Description, Public, load
from dpltm.records.load import convert
from refusals import refused

PLAIN = Description("plain", "", "vector", (2,), (-1.0, 1.0), 3, 4, openml_test=2, first_label=1)
COLOUR = Description("colour", "", "image", (2, 2, 3), (0.0, 255.0), 2, 1, openml_test=1)


def table(**changes):
    data = np.linspace(-1, 1, 12).reshape(6, 2)
    target = np.array(["1", "2", "3", "1", "2", "3"], dtype=object)
    return Bunch(**{"data": data, "target": target} | changes)


def test_trailing_rows_are_the_test_split():
    bunch = table()
    train, test = convert(bunch, PLAIN)
    assert np.array_equal(train.x, bunch.data[:4].astype(np.float32))
    assert np.array_equal(test.x, bunch.data[4:].astype(np.float32))
    assert train.x.dtype == np.float32
    assert train.y.tolist() == [0, 1, 2, 0]
    assert test.y.tolist() == [1, 2]
    assert (test.x_name, test.y_name) == ("x_test", "y_test")


def test_bytes_become_bytes_and_colours_go_last():
    planes = np.arange(24, dtype=np.float64).reshape(2, 12)
    train, test = convert(Bunch(data=planes, target=np.array(["0", "1"])), COLOUR)
    assert train.x.dtype == np.uint8
    assert train.x[0].tolist() == [[[0, 4, 8], [1, 5, 9]], [[2, 6, 10], [3, 7, 11]]]
    assert test.x[0, 0, 0].tolist() == [12, 16, 20]
    for odd in (0.5, -1.0, 256.0, np.nan):
        train, _ = convert(Bunch(data=np.full((2, 12), odd), target=np.array(["0", "1"])), COLOUR)
        assert train.x.dtype == np.float32
        assert np.array_equal(train.x, np.full((1, 2, 2, 3), odd), equal_nan=True)


def test_a_table_of_another_name_is_refused(tmp_path, monkeypatch):
    """An id alone says little; names are compared without case."""
    for name, said in (("mnist_784", "expected Kuzushiji-MNIST;"), ("kuzushiji-mnist", "has shape (6, 2), expected")):
        monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda name=name, **_: table(details={"name": name}))
        assert said in refused(load, "kmnist", home=tmp_path)


CHANGED = "the table has changed, put plain.npz into the data home instead"
NO_NUMBER = "holds something that is not a number (could not convert string to float: 'cat')"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"data": np.zeros((6, 3))}, "has shape (6, 3), expected (6, 2)"),
        ({"target": ["1", "2", "3", "1", "2", "cat"]}, NO_NUMBER),
        ({"data": np.full((6, 2), "cat", dtype=object)}, NO_NUMBER),
    ],
)
def test_tables_that_have_changed(changes, fault):
    assert refused(convert, table(**changes), PLAIN) == f"OpenML plain: {fault}; {CHANGED}"


def test_without_network_it_says_where_to_put_the_file(tmp_path, monkeypatch):
    def unreachable(**_):
        raise URLError("no network")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", unreachable)
    assert refused(load, "fashion-mnist", home=tmp_path) == (
        "fashion-mnist: not in the data home, and OpenML dataset 40996 could not be fetched (<urlopen error no network>);"
        f" put fashion-mnist.npz (x_train, y_train, x_test, y_test) into {tmp_path}"
    )


def test_fetch_keeps_a_file_that_later_commands_read(tmp_path, monkeypatch, capsys):
    """Without OpenML, which tests cannot reach, from then on."""
    draw, calls = np.random.default_rng(0), list[int]()
    data = (draw.integers(-1000, 1001, (7797, 617)) / 1000).astype(np.float32)
    whole = Bunch(data=data, target=np.arange(7797) % 26 + 1, details={"name": "isolet"})

    def once(data_id, **_):
        calls.append(data_id)
        return whole

    monkeypatch.setattr("sklearn.datasets.fetch_openml", once)
    monkeypatch.setenv("DPLTM_DATA", str(tmp_path / "home"))
    told = []
    for _ in range(2):
        assert run(["datasets", "fetch", "isolet", "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert calls == [300]
    assert [one["fetched"] for one in told] == [True, False]
    assert (
        told[0]["sha256"]
        == told[1]["sha256"]
        == hashlib.sha256((tmp_path / "home" / "isolet.npz").read_bytes()).hexdigest()
    )
    x, y = load("isolet").train.open(Public("a test"))
    assert np.array_equal(x, data[:6238])
    assert np.array_equal(y, np.arange(6238) % 26)
    assert run(["datasets", "fetch", "isolt"]) == 2
    assert "did you mean isolet?" in capsys.readouterr().err
