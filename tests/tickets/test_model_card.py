"""Cards: what dpltm wrote is compared line by line, and nobody finds an edit that passes."""

import base64
import contextlib
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.utils import htmlsafe_json_dumps
from matplotlib import rc_context
from matplotlib.figure import Figure

from dpltm.errors import ArtifactError
from dpltm.privacy.account import Account
from dpltm.privacy.entry import Entry, Part
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.reports.statement import Subject, differences, statement
from dpltm.tickets.charts import Chart, Series, accuracy_over_steps, read_metrics, write_charts
from dpltm.tickets.files import digest_of
from dpltm.tickets.model_card import BEGIN, END, FENCE, card_text, edits, read_statement, signed
from refusals import told

HOSTILE = "<script>alert(1)</script> | [x](http://e.org) `y` --- # z"
SGD = NoisySgd(0.1, 20, 2.0, 0.5, 0.4)
SETTINGS = {"sampling_rate": 0.1, "steps": 20, "noise_multiplier": 2.0, "noise_std": 1.0, "sensitivity": 0.5, "live": 100,
            "filter": "clip(C=0.5)", "nominal_sensitivity": 0.4, "noise_bits": "secure", "density": 0.25,
            "clip_norm": 0.5}  # fmt: skip


def body_of(name: str = "run", dataset: str = "d") -> dict[str, Any]:
    paid = {"id": "1" * 64, "home": "f" * 64, "sequence": 1, "day": "2026-01-01"}
    entry = Entry("release", Part(dataset, "2" * 64), (SGD,), "a training", **paid)  # type: ignore[arg-type]
    settings = {**SETTINGS, "dataset": dataset, "records": dataset}
    subject = Subject(name, settings, {"accuracy": 0.9}, ("a note",), {"dpltm": "1"})
    return signed(statement(subject, Account((entry,))))


@pytest.fixture(scope="module")
def card() -> str:
    return card_text(body_of())


def problems(text: str) -> list[str]:
    body = read_statement("c.md", text)
    return [*differences(body), *edits(body, text)]


def test_a_card_is_as_it_was_written(card: str) -> None:
    body = read_statement("c.md", card)
    assert body == body_of()
    assert problems(card) == []


def test_every_digit_that_is_changed_is_found(card: str) -> None:
    places = [match.start() for match in re.finditer(r"\d", card)]
    assert len(places) > 300
    for place in places[::7]:
        edited = card[:place] + ("1" if card[place] != "1" else "2") + card[place + 1 :]
        with contextlib.suppress(ArtifactError):  # a number that cannot be read, such as a schema that is not known
            assert problems(edited) != [], edited[max(0, place - 60) : place + 20]


def test_figures_that_are_changed_with_a_new_digest_are_found() -> None:
    for path, to in (
        (("certified", "epsilon"), 0.01),
        (("settings", "noise_multiplier"), 9.0),
        (("entries", 0, "mechanisms", 0, "steps"), 2),
    ):
        body: Any = body_of()
        place = body
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to
        edited = card_text({**body, "digest": digest_of(body)})
        assert edits(read_statement("c.md", edited), edited) == []
        assert problems(edited) != []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("**Certified: (", "**Certified: (0.", "line 20: '**Certified: (0."),
        ("## For whoever decides", "", "line 22: '', where the statement gives '## For whoever decides'"),
        (f"\n{END}", f"\nepsilon 0.1\n{END}", "'epsilon 0.1', where the statement gives '(no line)'"),
        (BEGIN, "", "the marks around what dpltm wrote are not there once each, in their order"),
        (END, f"{END}\n{BEGIN}\n{END}", "the marks around what dpltm wrote are not there once each, in their order"),
        ('  unit: "record"', '  unit: "user"', "metadata: 'unit: \"user\"' is not, or not only, what the statement gives"),
        ('  unit: "record"\n', "", "metadata: 'unit: \"record\"' is not, or not only, what the statement gives"),
        ("library_name", "dpltm_privacy: {delta: 0.1}\nlibrary_name", "metadata: 'dpltm_privacy: {delta"),
        ('  unit: "record"', '  unit: "record"\n  unit: "record"', "metadata: 'unit: \"record\"' is not, or not only, what"),
        ("library_name", '"dpltm\\u005fprivacy": {delta: 0.1}\nlibrary_name', "metadata: '\"dpltm\\\\u005fprivacy"),
        ("library_name", '? "dpltm\\\n  \\x5fprivacy"\n: {delta: 0.1}\nlibrary_name', "metadata: '? \"dpltm"),
        ("---\nlibrary", "library", "metadata: is gone; a card begins with a line ---"),
    ],
)  # fmt: skip
def test_what_differs_is_named(card: str, old: str, new: str, said: str) -> None:
    assert old in card
    found = problems(card.replace(old, new, 1))
    assert any(said in line for line in found), found


def test_people_may_write_around_it(card: str) -> None:
    mine = card.replace("library_name: dpltm", "license: apache-2.0\nlibrary_name: dpltm\nlanguage:\n  - en", 1)
    mine = mine.replace(BEGIN, f"My words, epsilon 3.\n\n{BEGIN}", 1) + "\n## Intended use\n\nNone.\n"
    assert problems(mine) == []


def test_hostile_names_are_shown_as_they_are() -> None:
    text = card_text(body_of(HOSTILE, HOSTILE))
    written = text[: text.index(FENCE)]
    assert "<script" not in text[text.index(BEGIN) : text.index(FENCE)]
    assert r"&lt;script&gt;alert(1)&lt;/script&gt; \| \[x\](http://e.org) \`y\` --- \# z" in written
    assert problems(text) == []
    row = next(line for line in written.splitlines() if line.startswith("| 1 |"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 4


def test_nothing_in_a_statement_ends_the_element_of_a_page() -> None:
    body = body_of("</script><!-- & -->")
    text = str(htmlsafe_json_dumps(body))
    assert not set("<>&") & set(text)
    assert json.loads(text) == body
    page = f'<html><script type="application/json" id="dpltm-statement">\n{text}\n</script>'
    assert read_statement("r.html", page) == body


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# a card", "c.md: holds no statement of dpltm; name a card or a page that dpltm report wrote"),
        (f"{FENCE}\n{{}}\n```\n{FENCE}\n{{}}\n```",
         "c.md: holds 2 statements of dpltm; name a card or a page that dpltm report wrote"),
        (f"{FENCE}\n{{\n```", "c.md: not valid JSON"),
        (f'{FENCE}\n{{"format": "dpltm-statement", "schema": 2}}\n```', "c.md: the statement: field digest is missing"),
        (f'{FENCE}\n{{"format": "dpltm-statement", "schema": 2, "digest": ""}}\n```',
         "c.md: the statement: unknown or missing field 'accountant'"),
    ],
)  # fmt: skip
def test_what_is_no_card_is_refused(text: str, said: str) -> None:
    assert told(read_statement, "c.md", text) == said


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON document, objects and lists as well."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, one in inner for found in leaves(one, (*path, key)))]


PATHS = [path for path in leaves(body_of()) if path not in ((), ("digest",))]
HOSTILE_VALUES = [None, True, -1, 10**30, -0.5, "inf", "<b>|`", "x" * 2000, "\n```\n", [], {}, {"a": 1}]


@given(st.sampled_from(PATHS), st.sampled_from(HOSTILE_VALUES))
def test_no_value_of_a_statement_ends_in_a_traceback(path: tuple[Any, ...], value: Any) -> None:
    """Whatever stands in a card is refused in one line, or read."""
    body: Any = json.loads(json.dumps(body_of()))
    place = body
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    body["digest"] = digest_of(body)
    text = f"{FENCE}\n{json.dumps(body)}\n```"
    with contextlib.suppress(ArtifactError):
        read = read_statement("c.md", text)
        assert edits(read, text) != []  # the words around it are gone
        differences(read)
        card_text(read)


# --- charts: points where they belong, whatever is certified, names as texts ---

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
    of_line, of_points = axes.collections
    np.testing.assert_allclose(of_line.get_segments(), [[[1, 0.4], [1, 0.6]], [[2, 0.7], [2, 0.8]]])
    assert of_points.get_segments()[0].tolist() == [[0.5, 2], [0.5, 8]]
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
    one, two = {1: 0.25, 2: 0.5}, {1: 0.5, 2: 0.75, 3: 0.9}
    ((line,),) = (chart.series for chart in accuracy_over_steps({"x": [two, None, one]}))
    assert line.points == [(1, 37.5), (2, 62.5)]
    assert (line.name, line.spread) == ("x (2 of 3 seeds)", [(25, 50), (50, 75)])
    assert accuracy_over_steps({"x": [None]}) == []


GOOD = '{"step": 1, "epsilon": 9.0, "accuracy": 0.9}\n'


@pytest.mark.parametrize(
    "damage",
    [
        *(None, "", GOOD + '{"step": 2, "eps', "[]\n", "[" * 100_000, GOOD + "\xff\n"),
        *(GOOD.replace("0.9", value) for value in ("NaN", "1" * 5000)),
        *(GOOD.replace("0.9", '"x"'), GOOD.replace(": 1,", ": 1.5,"), GOOD.replace('"step"', '"other"')),
    ],
)
def test_metrics_that_are_damaged_are_none(tmp_path: Path, damage: str | None) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(GOOD)
    assert read_metrics(path) == {1: 0.9}
    path.unlink()
    if damage is not None:
        path.write_text(damage, encoding="latin-1")
    assert read_metrics(path) is None
