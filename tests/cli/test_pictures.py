"""``--plot`` of ``train`` and ``tickets show``: what is drawn, and what is refused before anything is spent."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
TRAIN = ("train", "pub@1", *PRIVATE, "--steps", "6", "--batch-size", "100", "--epsilon", "1", "--out", "r")
SHOW = ("tickets", "show", "pub")
BEGINS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", BEGINS)
@pytest.mark.parametrize("command", [TRAIN, SHOW], ids=["train", "show"])
def test_pictures_are_of_the_kind_that_their_name_says(
    cli: Callable[..., Any], command: tuple[str, ...], suffix: str
) -> None:
    body = cli(*command, "--plot", f"new/curve{suffix}", "--json").json
    assert body["plot"] == f"new/curve{suffix}"
    assert Path(body["plot"]).read_bytes().startswith(BEGINS[suffix])


def test_a_picture_of_a_training_has_both_curves(cli: Callable[..., Any]) -> None:
    assert cli(*TRAIN, "--plot", "curve.svg", "--quiet").code == 0
    drawn = ElementTree.parse("curve.svg")  # its comments are the texts; shapes are paths
    texts = Path("curve.svg").read_text()
    assert drawn.getroot().tag.endswith("svg")
    assert "<!-- Accuracy over steps -->" in texts
    assert "<!-- Certified epsilon over steps -->" in texts
    assert cli(*TRAIN[:-1], "r2", "--ledger", "2.jsonl", "--plot", "curve.png", "--quiet").code == 0
    assert np.ptp(imread("curve.png")[..., :3]) > 0.5  # something is on it
    assert "plot" not in cli(*TRAIN[:-1], "r3", "--ledger", "3.jsonl", "--json").json


def test_marks_of_densities_are_percentages(cli: Callable[..., Any]) -> None:
    assert cli(*SHOW, "--plot", "curve.svg", "--quiet").code == 0
    texts = Path("curve.svg").read_text()
    assert "<!-- 100 % -->" in texts
    assert "<!-- 60 % -->" in texts
    assert "mathdefault" not in texts  # no power of ten beside them


def test_epsilon_alone_is_drawn_where_there_is_no_test_split(cli: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    np.savez("bare.npz", x_train=rng.integers(0, 17, (200, 4), dtype=np.uint8), y_train=np.arange(200) % 2)
    bare = ("train", "--dense", "--model", "mlp:4", "--dataset", "bare.npz", "--bounds", "0,16", "--steps", "3")
    assert cli(*bare, "--noise-multiplier", "2", "--out", "r", "--plot", "curve.svg", "--quiet").code == 0
    texts = Path("curve.svg").read_text()
    assert "<!-- Certified epsilon over steps -->" in texts
    assert "Accuracy" not in texts
    body = cli(*bare, "--noise-multiplier", "0", "--out", "n", "--plot", "none.svg", "--json").json
    assert body["plot"] is None  # neither is known: no accuracy, no finite epsilon
    assert not Path("none.svg").exists()


@pytest.mark.parametrize(
    ("plot", "said"),
    [
        ("curve.bmp", "curve.bmp: not a picture; let its name end in .png, .svg, .pdf"),
        ("", "--plot: is empty; give a value, or leave it out"),
        ("there.png", "--plot: there.png exists already; choose another name or remove it first"),
        ("there.png/curve.png", "there.png/curve.png: cannot be written: Not a directory; choose another place"),
    ],
)
@pytest.mark.parametrize("command", [TRAIN, SHOW], ids=["train", "show"])
def test_bad_pictures_are_refused_before_anything_is_spent(
    cli: Callable[..., Any], command: tuple[str, ...], plot: str, said: str
) -> None:
    Path("there.png").write_text("mine")
    ledger = Path("digits.ledger.jsonl").read_text()
    done = cli(*command, "--plot", plot)
    assert (done.code, done.err) == (2, f"error: {said}\n")
    assert Path("there.png").read_text() == "mine"
    assert Path("digits.ledger.jsonl").read_text() == ledger
    assert not Path("r").exists()


@pytest.mark.parametrize(("option", "plot"), [("out", "r.png"), ("out", "r.png/curve.png"), ("ledger", "r.png")])
def test_a_picture_goes_nowhere_else(cli: Callable[..., Any], option: str, plot: str) -> None:
    named = (*TRAIN[:-2], "--out", "r.png") if option == "out" else (*TRAIN, "--ledger", "r.png")
    done = cli(*named, "--plot", f"./{plot}")
    assert (done.code, done.err) == (2, f"error: --plot: {plot} is where --{option} goes; name another file\n")
    assert not Path("r.png").exists()


def test_a_dry_run_draws_nothing(cli: Callable[..., Any]) -> None:
    assert cli(*TRAIN, "--plot", "curve.png", "--dry-run", "--quiet").code == 0
    assert not Path("curve.png").exists()


def test_a_set_without_accuracies_is_not_drawn(cli: Callable[..., Any]) -> None:
    made = ("generate", "--dataset", "digits", "--model", "mlp:8", "--criterion", "random", "--rounds", "2")
    assert cli(*made, "--provenance", "data-free", "--out", "free", "--quiet").code == 0
    done = cli("tickets", "show", "free", "--plot", "curve.png")
    assert (done.code, done.err) == (
        *(2, "error: --plot: free says no accuracies, so there is nothing to draw; leave it out\n"),
    )
    assert not Path("curve.png").exists()
