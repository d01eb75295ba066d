"""Figures for people err on the safe side."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.privacy.figures import figure, percent


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


@pytest.mark.parametrize(("value", "text"), [(0.91922, "91.92 %"), (1.0, "100.00 %"), (0.0, "0.00 %")])
def test_shares(value: float, text: str) -> None:
    assert percent(value) == text
