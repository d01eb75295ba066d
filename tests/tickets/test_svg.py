"""Charts as SVG: well-formed, escaped, with every point where it belongs."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.tickets.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, Series

NAMES = "{http://www.w3.org/2000/svg}"


def drawn(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(chart.svg())


def test_points_are_where_they_belong() -> None:
    root = drawn(Chart("t", "x", "y", [Series("a", [(0, 0), (1, 10)]), Series("b", [(0.5, 5)], "dots", [(2, 8)])]))
    path = next(one for one in root.iter(f"{NAMES}path") if one.get("class") == "s0 line")
    assert path.get("d") == f"M{LEFT:.1f} {HEIGHT - BOTTOM:.1f}L{WIDTH - RIGHT:.1f} {TOP:.1f}"
    dot = next(root.iter(f"{NAMES}circle"))
    middle = ((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2)
    assert (float(dot.get("cx", "")), float(dot.get("cy", ""))) == pytest.approx(middle, abs=0.06)
    assert any(one.get("class") == "s1 bar" for one in root.iter(f"{NAMES}path"))
    assert root.get("role") == "img"
    assert root.get("aria-label") == "t"


def test_ticks_are_round_and_shares_are_in_percent() -> None:
    root = drawn(Chart("t", "x", "y", [Series("a", [(1, 0), (100, 1)])], percent=True, log=True))
    texts = [one.text for one in root.iter(f"{NAMES}text")]
    assert texts == ["1", "2", "5", "10", "20", "50", "100", "0 %", "20 %", "40 %", "60 %", "80 %", "100 %", "x", "y"]


def test_ticks_do_not_reach_the_name_of_their_axis() -> None:
    """The ticks end 6 before the axis; the name of 12.5 units is centred at 13, so a letter of 7 needs room from 20 on."""
    root = drawn(Chart("t", "x", "accuracy", [Series("a", [(0, 0.85), (1, 0.95)])], percent=True))
    ticks = [one for one in root.iter(f"{NAMES}text") if one.get("text-anchor") == "end"]
    assert "86 %" in [one.text for one in ticks]
    root = drawn(Chart("t", "x", "accuracy", [Series("a", [(0, 0.85), (1, 0.97)])], percent=True))
    ticks = [one for one in root.iter(f"{NAMES}text") if one.get("text-anchor") == "end"]
    assert "87.5 %" in [one.text for one in ticks]
    assert min(float(one.get("x", "")) - 7 * len(one.text or "") for one in ticks) >= 20
    axis = next(one for one in root.iter(f"{NAMES}path") if one.get("class") == "axis")
    assert axis.get("d", "").startswith(f"M{float(ticks[0].get('x', '')) + 6:g} ")


def test_names_are_escaped() -> None:
    hostile = '</svg><script>alert("1")</script>'
    root = drawn(Chart(hostile, hostile, hostile, [Series(hostile, [(0, 1)])]))
    assert root.get("aria-label") == hostile
    assert not list(root.iter(f"{NAMES}script"))
    assert [one.text for one in root.iter(f"{NAMES}text")][-2:] == [hostile, hostile]


@given(
    st.lists(st.tuples(st.floats(), st.floats()), min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from(["line", "dots", "marked"]),
)
def test_whatever_the_values(points: list[tuple[float, float]], log: bool, style: str) -> None:
    """What is not finite is left out; nothing lies far outside, and no number is missing."""
    points = [(x, y) for x, y in points if not math.isfinite(x) or (abs(x) < 1e100 and (x == 0 or abs(x) > 1e-100))]
    points = [(x, y) for x, y in points if not math.isfinite(y) or (abs(y) < 1e100 and (y == 0 or abs(y) > 1e-100))]
    text = Chart("t", "x", "y", [Series("a", points, style)], log=log).svg()
    ElementTree.fromstring(text)
    assert not re.search(r'[" MLHV](nan|inf)', text)
