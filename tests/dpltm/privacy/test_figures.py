"""Figures for people err on the safe side."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.privacy.describe import figure
from programs import ROOT


@given(st.floats(1e-12, 1e12), st.integers(2, 7))
def test_a_figure_is_never_too_small_and_a_bound_never_too_large(value: float, digits: int) -> None:
    up, down = float(figure(value, digits)), float(figure(value, digits, down=True))
    assert down <= value <= up
    assert math.isclose(down, up, rel_tol=10.0 ** (1 - digits) * 1.001)


@pytest.mark.parametrize(
    ("value", "down", "text"),
    [
        (0.99941234, False, "0.9995"),
        (3.91479, True, "3.914"),
        (0.0, True, "0"),
        (math.inf, False, "inf"),
        ("inf", True, "inf"),
    ],
)
def test_figures(value: float | str, down: bool, text: str) -> None:
    assert figure(value, down=down) == text


OTHERWISE = re.compile(r"\{[^{}]*\b(certified_epsilon|total|alone|total_epsilon\(.*\)):[^{}]*[efg]\}")
"""A certified figure in a text, rounded to the nearest: half the time below it."""


def test_certified_figures_are_printed_in_no_other_way() -> None:
    assert OTHERWISE.search('f"epsilon {total:.4g}"')
    assert OTHERWISE.search('f"certified as {event.mechanism.certified_epsilon:g}"')
    assert OTHERWISE.search("f\"{total_epsilon(events, delta, unit='record'):.4g}\"")
    files = [path for folder in ("dpltm", "tickets", "cli") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    found = {str(path.relative_to(ROOT)): OTHERWISE.search(path.read_text(encoding="utf-8")) for path in files}
    assert {path: match.group() for path, match in found.items() if match} == {}
