"""Texts from tickets to predictions, and what is said of them."""

from pathlib import Path

import numpy as np

from commands import certified
from dpltm.records import Layout, load_records

TEXTS, OTHER = (f"--dataset {name}.npz --words 30 --classes 2" for name in ("texts", "other"))
TAKEN_AS_PUBLIC = "which word is at which position is taken as public: no record of other may have decided it"


def ragged(count: int, seed: int, part: str = "") -> dict[str, np.ndarray]:
    """Texts of 3 to 19 words out of 40: no two are equal."""
    generator = np.random.default_rng(seed)
    offsets = np.cumsum([0, *generator.integers(3, 20, count)])
    values = generator.integers(0, 40, offsets[-1]).astype(np.uint32)
    arrays = {"values": values, "offsets": offsets, "y": generator.integers(0, 2, count)}
    return {f"{name}{part}": array for name, array in arrays.items()}


def test_select_train_use(cli):
    np.savez("texts.npz", **ragged(150, 0, "_train"), **ragged(60, 1, "_test"))
    np.savez("other.npz", **ragged(150, 2, "_train"))
    little = "--rounds 2 --prune 0.3 --iterations 5 --batch-size 30 --provenance public"
    assert cli(f"generate {TEXTS} {little} --model embed:30:4,3 --out embed").code == 0
    drawn = cli(f"select embed {OTHER} --eps1 0.5 --delta 1e-3 --json").json
    assert TAKEN_AS_PUBLIC in drawn["privacy"]["notes"]
    noise = "--noise-multiplier 1 --delta 1e-3 --batch-size 50 --steps 2"
    trained = cli(f"train embed {OTHER} {noise} --test texts.npz --out run --json").json
    assert TAKEN_AS_PUBLIC in trained["privacy"]["notes"]
    assert certified(trained) > 0.5
    found = cli(f"evaluate run {TEXTS} --json").json
    assert (found["records"], found["accuracy"]) == (60, trained["accuracy"])
    np.savez("in.npz", **{name: values for name, values in ragged(5, 3).items() if name != "y"})
    np.savez("x.npz", x=load_records("in.npz", layout=Layout(30)))  # taken as in training
    for given in ("in", "x"):
        assert cli(f"predict run --input {given}.npz -o {given}.csv --json").json["saturated"] == 0
    assert Path("in.csv").read_bytes() == Path("x.csv").read_bytes()
