"""Charts: points are where they belong, whatever is certified can be drawn, and names are texts."""

import base64
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import rc_context
from matplotlib.figure import Figure

from dpltm.tickets.charts import Chart, Series, accuracy_over_steps, epsilon_over_steps, read_metrics, write_charts

LINE = Series("a", [(1, 0.5), (2, 0.75)], "o-", [(0.4, 0.6), (0.7, 0.8)])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that are saved from here on, and not written."""
    kept: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: (kept.append(figure), Path(path).touch()))
    return kept


def axes_of(tmp_path: Path, drawn: list[Figure], *charts: Chart) -> Any:
    write_charts(tmp_path / "c.png", charts, "All of them")
    return drawn[-1].axes


def drawn_in(chart: Chart) -> str:
    """The SVG that a page holds, its letters as texts."""
    with rc_context({"svg.fonttype": "none"}):
        head, data = chart.image().split(",", 1)
    assert head == "data:image/svg+xml;base64"
    return base64.b64decode(data).decode("utf-8")


def texts(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return [one.text or "" for one in root.iter() if one.tag.endswith("text")]


def test_points_are_where_they_belong(tmp_path: Path, drawn: list[Figure]) -> None:
    points = Series("b", [(0.5, 5), (math.inf, 1), (1, math.nan)], "o", [(2, 8), (0, 0), (0, 0)])
    axes, other = axes_of(
        tmp_path, drawn, Chart("t", "x", "y", [LINE, points]), Chart("u", "x", "y", [LINE], {"xscale": "log"})
    )
    assert axes.lines[0].get_xydata().tolist() == [[1, 0.5], [2, 0.75]]
    band, bars = axes.collections
    assert band.get_datalim(axes.transData).get_points().tolist() == [[1, 0.4], [2, 0.8]]
    assert bars.get_segments()[0].tolist() == [[0.5, 2], [0.5, 8]]
    assert axes.lines[1].get_xydata().tolist() == [[0.5, 5]]  # what is not finite is left out
    assert (axes.get_title(), other.get_title(), other.get_xscale()) == ("t", "u", "log")


def test_names_in_a_chart_are_texts() -> None:
    hostile = '</svg><script>alert("1")</script> $\\foo$'
    chart = Chart(hostile, hostile, "accuracy", [LINE, Series(hostile, [(1, 1), (100, 1)])], {"xscale": "log"})
    svg = drawn_in(chart)
    assert not [one for one in ElementTree.fromstring(svg).iter() if one.tag.endswith("script")]
    assert texts(svg).count(hostile) == 2  # the axis and the legend: the title stands above
    assert {"1", "10", "100", "0.5", "1.0"} <= set(texts(svg))
    assert svg == drawn_in(chart)


@given(
    st.lists(st.tuples(st.floats(-1e50, 1e50) | st.just(math.nan) | st.just(math.inf), st.floats(-1e50, 1e50)),
             min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from(["-", "o", "o-"]),
)  # fmt: skip
def test_whatever_the_values(points: list[tuple[float, float]], log: bool, style: str) -> None:
    ElementTree.fromstring(
        drawn_in(Chart("t", "x", "y", [Series("a", points, style)], {"xscale": "log"} if log else {}))
    )


def test_a_legend_of_nine_long_names_leaves_room_for_the_curves(tmp_path: Path, drawn: list[Figure]) -> None:
    chart = Chart("t", "x", "y", [replace(LINE, name=f"{arm} sparse tickets, generated" * 4) for arm in range(9)])
    for axes in axes_of(tmp_path, drawn, chart, chart):
        drawn[-1].draw_without_rendering()
        legend = axes.get_legend().get_window_extent()
        assert 0 < legend.x0 < legend.x1 < axes.get_window_extent().x1
        assert axes.get_window_extent().width > drawn[-1].bbox.width / 3
        assert 0 < legend.y0 < legend.y1 < axes.get_window_extent().y0


@pytest.mark.one_of(2)
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_file_of_the_same_charts_is_the_same(tmp_path: Path, suffix: str) -> None:
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        write_charts(path, [Chart("t", "x", "y", [LINE]), *[Chart("u", "x", "y", [LINE] * 5)] * 2], "All")
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in paths}


def test_a_line_is_the_mean_with_the_least_and_the_most() -> None:
    """Of the steps that all runs have, of which one that cannot be read is left out."""
    one, two = {1: (0.25, 0.5), 2: (0.5, math.inf)}, {1: (0.5, 0.75), 2: (0.75, 0.75), 3: (0.9, 1.0)}
    ((line,),) = (chart.series for chart in accuracy_over_steps({"x": [two, None, one]}))
    assert line.points == [(1, 37.5), (2, 62.5)]
    assert (line.name, line.spread) == ("x (2 of 3 seeds)", [(25, 50), (50, 75)])
    assert accuracy_over_steps({"x": [None]}) == []


def test_what_each_step_had_cost() -> None:
    (chart,) = epsilon_over_steps({2: (0.5, math.inf), 1: (0.25, 0.5)})
    assert (chart.series[0].points, chart.axes) == ([(1, 0.5), (2, math.inf)], {"ylim": (0.0, 0.525)})
    assert epsilon_over_steps({1: (0.25, math.inf)}) == epsilon_over_steps({1: (0.25, 0.0)}) == []


GOOD = '{"step": 1, "epsilon": 9.0, "accuracy": 0.9}\n'


@pytest.mark.parametrize(
    "damage",
    [
        *(None, "", GOOD + '{"step": 2, "eps', "[]\n", "[" * 100_000, GOOD + "\xff\n"),
        *(GOOD.replace("9.0", value) for value in ("null", "NaN", "1" * 5000)),
        *(GOOD.replace("0.9", '"x"'), GOOD.replace(": 1,", ": 1.5,"), GOOD.replace('"step"', '"other"')),
    ],
)
def test_metrics_that_are_damaged_are_none(tmp_path: Path, damage: str | None) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(GOOD)
    assert read_metrics(path) == {1: (0.9, 9.0)}
    path.unlink()
    if damage is not None:
        path.write_text(damage, encoding="latin-1")
    assert read_metrics(path) is None
