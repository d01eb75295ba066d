"""``--plot`` of ``train`` and ``tickets show``: what is drawn."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from commands import PRIVATE

TRAIN = f"train pub@1 {PRIVATE} --steps 6 --batch-size 100 --epsilon 1 --out r"
BEGINS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize(("suffix", "command"), [(".png", TRAIN), (".svg", "tickets show pub"), (".pdf", TRAIN)])
def test_pictures_are_of_the_kind_that_their_name_says(cli, command, suffix):
    body = cli(f"{command} --plot new/curve{suffix} --json").json
    assert body["plot"] == f"new/curve{suffix}"
    assert Path(body["plot"]).read_bytes().startswith(BEGINS[suffix])
    if suffix == ".png":
        assert np.ptp(imread(body["plot"])[..., :3]) > 0.5  # something is on it
    assert "plot" not in cli("tickets show pub --json").json


@pytest.mark.parametrize(
    ("command", "there"),
    [
        (TRAIN, ("Accuracy over steps", "Certified epsilon over steps")),
        ("tickets show pub", ("density, %", "accuracy, %")),
    ],
)
def test_what_a_picture_says(cli, command, there):
    assert cli(f"{command} --plot curve.svg").code == 0
    texts = Path("curve.svg").read_text()  # its comments are the texts; shapes are paths
    assert ElementTree.fromstring(texts).tag.endswith("svg")
    assert all(f"<!-- {text} -->" in texts for text in there)
    assert "mathdefault" not in texts  # no power of ten beside percentages


def test_epsilon_alone_is_drawn_where_there_is_no_test_split(cli):
    rng = np.random.default_rng(0)
    np.savez("bare.npz", x_train=rng.integers(0, 17, (200, 4), dtype=np.uint8), y_train=np.arange(200) % 2)
    bare = "train --dense --model mlp:4 --dataset bare.npz --bounds 0,16 --steps 3"
    assert cli(f"{bare} --noise-multiplier 2 --out r --plot curve.svg").code == 0
    texts = Path("curve.svg").read_text()
    assert "<!-- Certified epsilon over steps -->" in texts
    assert "Accuracy" not in texts
    neither = cli(f"{bare} --noise-multiplier 0 --out n --ledger n.jsonl --plot none.svg --json").json
    assert neither["plot"] is None  # no accuracy, no finite epsilon
    assert not Path("none.svg").exists()


def test_a_set_without_accuracies_is_not_drawn(cli, refused):
    assert cli("generate --dataset digits --model mlp:8 --criterion random --rounds 2 --out free").code == 0
    assert refused("tickets show free --plot curve.png").startswith("--plot: free says no accuracies")
