"""Limits of the house: what `scripts/house.py` measures."""

import ast

import pytest

from programs import ROOT, program

house = program("scripts/house.py")


@pytest.fixture(scope="module")
def figures() -> dict[str, object]:
    house.options = house.request = lambda _: {}  # which would start the command line
    return house.measure(ROOT)


@pytest.mark.parametrize(
    ("what", "most"),
    [
        ("functions above 80 lines", 0),
        ("functions with more than 8 parameters", 4),
        ("circles", 0),
        ("circles of packages", 0),
        ("floors of packages", 10),
        ("longest chain of imports", 18),
        ("imports inside functions", 30),
        ("raises naming flags in dpltm", 0),
        ("public functions of three or more parameters without Args", 0),
        ("words of README", 900),
    ],
)
def test_limits(figures: dict[str, object], what: str, most: int) -> None:
    assert isinstance(figures[what], int)
    assert figures[what] <= most


def test_every_public_name_is_in_the_source() -> None:
    found = {
        name
        for module, path in house.modules(ROOT)
        for name, _ in house.public(module, ast.parse(path.read_text(encoding="utf-8")))
    }
    assert [one for one in house.PUBLIC if not any(f"{name}.".startswith(f"{one}.") for name in found)] == []
