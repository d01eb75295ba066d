"""The figure of an audit: a whole file with every figure of its rows."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure

from dpltm.audit.black_box import Trials, examine_membership
from dpltm.errors import ArtifactError
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.tickets.audit_plot import write_audit_plot, write_roc_plot

ROWS = [
    {"audited": "clip", "nominal": None, "certified": 7.981, "lower_bound": 3.2599},
    {"audited": "as printed", "nominal": 0.5, "certified": 51895.4, "lower_bound": 0.0},
    {"audited": "masks", "nominal": 0.2, "certified": "inf", "lower_bound": 2.75},
    {"audited": "faint", "nominal": 0.01, "certified": 1.0, "lower_bound": 1.5},
]


def drawn(path: Path, rows) -> str:
    with rc_context({"svg.fonttype": "none"}):
        write_audit_plot(path, rows)
    return path.read_text(encoding="utf-8")


def test_every_figure_is_written_beside_its_mark(tmp_path):
    text = drawn(tmp_path / "a.svg", ROWS)
    figures = ("7.99", "3.25", "51,896", "0.5", "inf", "2.75", "0.2", "0.01", "1", "1.5")  # claims up, bounds down
    for figure in ("clip", "as printed", "masks", "faint", *figures):
        assert f">{figure}<" in text
    for name in ("certified", "nominal: claimed, not proven", "audit: epsilon is at least"):
        assert text.count(f">{name}<") == 1, "once in the legend"


def test_what_is_beyond_the_axis_is_an_arrow_and_what_is_left_open_ends_at_the_certificate(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: (kept.append(figure), Path(path).touch()))
    write_audit_plot(tmp_path / "a.png", ROWS)
    (axes,) = kept[0].axes
    arrows = [(note.xy[0], note.arrowprops["color"]) for note in axes.texts if note.arrowprops]
    right, left = (axes.get_xlim()[1], "tab:blue"), (axes.get_xlim()[0], "tab:orange")
    assert arrows == [left, right, right], "0.01, then inf and 51,896, from below"
    bars = {line.get_ydata()[0]: line.get_xdata() for line in axes.lines if line.get_label() == "left open"}
    assert {place: list(map(float, ends)) for place, ends in bars.items()} == {
        1: [2.75, 1e3], 2: [0.05, 1e3], 3: [3.2599, 7.981],
    }, "none where the certificate is refuted"  # fmt: skip
    marked = [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "|" and len(line.get_xdata())]
    assert marked == [1.0, 7.981]


@pytest.mark.parametrize("name", ["a.png", "a.pdf"])
def test_other_pictures(tmp_path, name):
    write_audit_plot(tmp_path / name, ROWS[:1])
    assert (tmp_path / name).stat().st_size > 1000
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_interrupt_leaves_no_half_of_a_picture(tmp_path, monkeypatch):
    def half(figure, path, **_):
        del figure
        Path(path).write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(KeyboardInterrupt):
        write_audit_plot(tmp_path / "a.png", ROWS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("nominal", "claims"), [(None, 1), (1.0, 1), (0.5, 2)])
def test_an_attack_is_drawn_beside_what_is_certified(tmp_path, nominal, claims):
    draw = np.random.default_rng(0)
    trials = Trials(draw.standard_normal(100) + 2, draw.standard_normal(100))
    mechanism = NoisySgd(1.0, 1, 0.5, 1.0, nominal)
    with rc_context({"svg.fonttype": "none"}):
        write_roc_plot(tmp_path / "r.svg", examine_membership(trials, 10.0, 1e-5), mechanism, "an attack")
    text = (tmp_path / "r.svg").read_text(encoding="utf-8")
    assert text.count(">certified: no attack is above<") == 1
    assert text.count(">nominal: claimed, not proven<") == claims - 1
    with pytest.raises(ArtifactError, match="not a picture"):
        write_roc_plot(tmp_path / "r.txt", examine_membership(trials, 10.0, 1e-5), mechanism, "an attack")
