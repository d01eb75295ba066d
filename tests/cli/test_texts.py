"""Texts, sequences and the networks for them, from one command to the next; and what makes no sense for them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from commands import certified, made_by
from dpltm.records import Layout, load_records

WORDS = "--words 30 --classes 2"
TEXTS, OTHER = f"--dataset texts.npz {WORDS}", f"--dataset other.npz {WORDS}"
ROUNDS = "--rounds 2 --prune 0.3"
LITTLE = "--iterations 5 --batch-size 30 --provenance public"
NOISE = "--noise-multiplier 1 --delta 1e-3 --batch-size 50 --steps 2"
TAKEN_AS_PUBLIC = "which word is at which position is taken as public: no record of other may have decided it"


def ragged(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Texts of 3 to 19 words out of 40: no two are equal."""
    generator = np.random.default_rng(seed)
    offsets = np.cumsum([0, *generator.integers(3, 20, count)])
    return generator.integers(0, 40, offsets[-1]).astype(np.uint32), offsets, generator.integers(0, 2, count)


@pytest.fixture(scope="module", autouse=True)
def _short_texts() -> Iterator[None]:
    """Of each text the last 12 words, not 256."""
    with mock.patch.object(Layout.__init__, "__defaults__", (10_000, 12)):
        yield


@pytest.fixture(scope="module")
def text_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts.npz, which has a test split, other.npz, in.npz, records alone, and public sets of texts.npz."""
    folder = tmp_path_factory.mktemp("texts")
    names, parts = ("values", "offsets", "y"), {"train": ragged(150, 0), "test": ragged(60, 1)}
    held = {
        f"{name}_{part}": value for part, values in parts.items() for name, value in zip(names, values, strict=True)
    }
    np.savez(folder / "texts.npz", **held)
    np.savez(folder / "other.npz", **{f"{name}_train": x for name, x in zip(names, ragged(150, 2), strict=True)})
    np.savez(folder / "in.npz", **dict(zip(names[:2], ragged(5, 3)[:2], strict=True)))
    made = f"generate {TEXTS} {ROUNDS} {LITTLE} --model"
    return made_by(folder, f"{made} embed:30:4,3 --out embed", f"{made} gru:30:3,4 --out gru")


@pytest.fixture
def texts(cwd: Path, text_sets: Path) -> Path:
    shutil.copytree(text_sets, cwd, dirs_exist_ok=True)
    return cwd


@pytest.mark.parametrize("name", ["embed", "gru"])
@pytest.mark.usefixtures("texts")
def test_select_train_use(cli, name):
    drawn = cli(f"select {name} {OTHER} --eps1 0.5 --delta 1e-3 --json").json
    assert TAKEN_AS_PUBLIC in drawn["privacy"]["notes"]
    trained = cli(f"train {name} {OTHER} {NOISE} --test texts.npz --out run --json").json
    assert TAKEN_AS_PUBLIC in trained["privacy"]["notes"]
    assert certified(trained) > 0.5
    found = cli(f"evaluate run {TEXTS} --json").json
    assert (found["records"], found["accuracy"]) == (60, trained["accuracy"])
    np.savez("x.npz", x=load_records("in.npz", layout=Layout(30, 12)))  # taken as in training
    for given in ("in", "x"):
        assert cli(f"predict run --input {given}.npz -o {given}.csv --json").json["saturated"] == 0
    assert Path("in.csv").read_bytes() == Path("x.csv").read_bytes()


# --- networks for other records ---
