"""What version 0.2 had and this one has not is refused by its name, with what to do instead; nothing is written."""

from pathlib import Path

import numpy as np
import pytest

import dpltm
from commands import PRIVATE, TINY
from dpltm.errors import DataError, InputError
from dpltm.gone import GONE
from dpltm.options import arguments
from dpltm.options.train import TrainOptions
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.describe import figure
from dpltm.privacy.entry import Entry, Part
from dpltm.privacy.mechanisms import DiscreteGaussianRelease, NoisySgd, PrivateSearch, Zcdp
from dpltm.records import load
from dpltm.tickets import open_ledger
from dpltm.verbs.private_loop import LoopSettings

TYPED = {
    "tickets push": "tickets push 1",
    "train --stop-at": "train --dense --stop-at 1",
    "--users": "evaluate r --users 1",
    "--features network": "train --dense --features network",
    "--criterion energy": f"generate {PRIVATE} {TINY} --epsilon 1 --out new --criterion energy",
    "--mechanism zcdp": "privacy epsilon --mechanism zcdp",
    "--sampling truncated": "train --dense --sampling truncated",
    "--model ncf": "train --dense --model ncf",
    "tickets export --to": "tickets export pub@1 --to onnx --out new",
    "--dataset .dat": "train --dense --dataset ratings.dat --epsilon 1 --out new",
    "dataset movielens": "datasets info movielens",
    "bundled:NAME": "train bundled:kmnist-mlp@8 --dataset digits --epsilon 1",
    "recipe.measure": "run --config recipe.toml --dry-run",
}
"""One row of the table for each way to name what is gone, and a command that does."""


@pytest.mark.parametrize("row", TYPED)
def test_at_the_terminal(refused, row) -> None:
    Path("recipe.toml").write_text('[recipe]\ntitle = "x"\nmeasure = "rmse"\n[[arm]]\nname = "a"\n')
    said = refused(TYPED[row])
    assert " is gone since 0.3: " in said
    assert said.endswith(GONE[row].rpartition("`")[2])
    assert "`" not in said, "options are named as they are typed"


def test_from_python_and_in_configuration_files(refused) -> None:
    with pytest.raises(InputError, match=r"^`stop_at` is gone since 0\.3: "):
        arguments(TrainOptions, {"stop_at": 1})
    for name in ("prepare", "ends"):
        with pytest.raises(InputError, match=rf"^`{name}` is gone since 0\.3: "):
            arguments(LoopSettings, {name: 1})
    Path("c.toml").write_text("[train]\nstop-at = 1\n")
    assert "stop-at is gone since 0.3: " in refused("train --config c.toml")
    with pytest.raises(AttributeError, match=r"^dpltm\.synthesize is gone since 0\.3: .* by a library"):
        dpltm.synthesize  # noqa: B018


# --- what such commands entered is still read, priced and described -----------------------------------------------------

SGD = NoisySgd(0.1, 20, 2.0)
ENTERED = {
    "zCDP": (Zcdp(0.05), "known to be 0.05-zCDP"),
    "a discrete Gaussian": (
        DiscreteGaussianRelease(6.0, 2),
        "discrete Gaussian noise of deviation 6 for sensitivity 2",
    ),
    "a private search": (PrivateSearch((SGD,), 20.0, 0.1), "the best of a secret number of trainings"),
}


@pytest.mark.parametrize("name", ENTERED)
def test_an_entry_in_an_old_ledger(cli, name) -> None:
    mechanism, words = ENTERED[name]
    entry = Entry("release", Part("people", "ab" * 32), (mechanism,), "made by version 0.2")
    open_ledger("old.jsonl").declare(entry)
    body = cli("privacy ledger old.jsonl --delta 1e-5 --json").json
    (row,) = body["entries"]
    assert words in row["words"]
    assert body["privacy"]["certified"]["epsilon"] == row["epsilon"] == pytest.approx(epsilon([mechanism], 1e-5))
    assert f"certified epsilon = {figure(row['epsilon'])} " in cli("privacy ledger old.jsonl --delta 1e-5").out


@pytest.mark.parametrize("array", ["lineage", "synthetic_origin"])
def test_files_of_synthetic_records_are_not_read_as_others(tmp_path: Path, array: str) -> None:
    """Read as records that somebody calls public, they would hide the release that they come from."""
    path, arrays = tmp_path / "made.npz", {"x_train": np.zeros((40, 4), np.float32), "y_train": np.arange(40) % 2}
    np.savez(path, **arrays)
    assert load(str(path), bounds=(0, 1)).records == 40
    np.savez(path, **arrays, **{array: np.frombuffer(b"{}", np.uint8)})
    with pytest.raises(DataError, match=r"made\.npz: synthetic records that dpltm made before 0\.3"):
        load(str(path), bounds=(0, 1))
