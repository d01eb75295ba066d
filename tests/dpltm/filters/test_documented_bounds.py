"""The table of bounds in docs/privacy-model.md section 4.2 against the registry of filters, row by row."""

import re
from collections.abc import Callable
from math import sqrt, tanh
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.filters import FILTERS, make_filter

(DOCUMENT,) = (Path(__file__).parents[3] / "docs").glob("privacy-model*")
TEXT = DOCUMENT.read_text(encoding="utf-8")
TABLE = dict(
    re.findall(
        r"^\| (`[^|]+`) \| .* \| ([^|]+) \| [^|]+ \|$",
        TEXT.partition("### 4.2")[2].partition("### 4.3")[0],
        re.MULTILINE,
    )
)
"""Bound by filter, as the document has them."""

BOUNDS: dict[str, Callable[[SimpleNamespace], float]] = {
    "C": lambda it: it.C,
    "sqrt(sum C_l^2) = C": lambda it: it.C,
    "c sqrt(n)": lambda it: it.c * sqrt(it.n),
    "c sqrt(n) tanh(R/(k sqrt(n))), at most c R/k": lambda it: it.c * sqrt(it.n) * tanh(it.R / (it.k * sqrt(it.n))),
    "min(C, c sqrt(n))": lambda it: min(it.C, it.c * sqrt(it.n)),
    "max(C, 8)": lambda it: max(it.C, 8.0),
}
"""The formulas of the table, read by hand."""


def named(row: str) -> tuple[str, dict[str, bool]]:
    name, *flags = re.findall(r"`([^`]+)`", row)
    return name, {flag.removeprefix("--").replace("-", "_"): True for flag in flags}


def test_every_filter_has_a_row_and_every_row_a_filter():
    assert {named(row)[0] for row in TABLE} == set(FILTERS)
    assert set(TABLE.values()) == set(BOUNDS)
    flags = {(entry.name, p.name) for entry in FILTERS.values() for p in entry.parameters if p.default is False}
    assert flags == {(name, flag) for name, given_ in map(named, TABLE) for flag in given_}


@pytest.mark.parametrize("row", TABLE)
@given(
    norm=st.floats(-3, 3).map(lambda x: 10**x),
    scale=st.floats(-3, 3).map(lambda x: 10**x),
    width=st.floats(-3, 3).map(lambda x: 10**x),
    live=st.integers(1, 10**8),
)
def test_a_filter_certifies_what_its_row_says(row, norm, scale, width, live):
    """Rounded outwards by 1e-6 at most, in element-wise filters (section 4.4); the norm is C, or R where it is before."""
    name, flags = named(row)
    drawn = {"clip_norm": norm, "tanh_scale": scale, "tanh_range": width}
    taken = {p.name for p in FILTERS[name].parameters}
    found = make_filter(name, **{key: value for key, value in drawn.items() if key in taken}, **flags).certified_bound(
        live
    )
    expected = BOUNDS[TABLE[row]](SimpleNamespace(C=norm, R=norm, c=scale, k=width, n=live))
    assert expected * (1 - 1e-12) <= found <= expected * (1 + 1.1e-6)
    if "at most c R/k" in TABLE[row]:
        assert expected <= scale * norm / width * (1 + 1e-12)
