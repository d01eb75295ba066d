"""What version 0.2 had and this one has not is refused by its name, with what to do instead; nothing is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dpltm
from commands import PRIVATE, TINY
from dpltm.errors import DataError, InputError
from dpltm.gone import GONE
from dpltm.networks import ModelSpec
from dpltm.options import arguments
from dpltm.options.generate import GenerateOptions
from dpltm.options.privacy import CurveRequest, EpsilonRequest
from dpltm.options.train import LoopOptions, TrainOptions
from dpltm.options.tune import TuneOptions
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.describe import figure
from dpltm.privacy.entry import Entry, Lineage, Part
from dpltm.privacy.mechanisms import DiscreteGaussianRelease, NoisySgd, PrivateSearch, Zcdp
from dpltm.pruning.generation import GenerationConfig, without_data
from dpltm.records import load
from dpltm.tickets import open_ledger
from dpltm.tickets.ticket_set import load_ticket_set
from set_entries import MOMENTS
from sets import store_set

BEFORE = {
    "--components": "train --dense",
    "--to": "tickets export pub@1",
    "--clip-quantile": "train --dense",
    "--sampling": "train --dense",
    "--features": "train --dense",
    "--public": "generate --features scatter",
    "--start-prefix": "train --dense",
    "--start-skip": "generate",
    "--length": "evaluate r",
    "--criterion": f"generate {PRIVATE} {TINY} --epsilon 1 --out new",
    "--mechanism": "privacy epsilon",
    "--model": "train --dense",
    "--users": "train --dense",
    "--items": "evaluate r",
    "--unit": "train --dense",
    "--metric": "train --dense",
}
"""What is typed before an option that several commands had, or that lost a value."""
OPTIONS = {
    "generate": GenerateOptions,
    "tune": TuneOptions,
    "train": TrainOptions,
    "privacy epsilon": EpsilonRequest,
    "privacy curve": CurveRequest,
}
IN_PYTHON = {
    "loop --ends": (LoopOptions, "the figure is that of the whole plan"),
}
DATA = {
    "--dataset .dat": "train --dense --dataset ratings.dat --epsilon 1 --out new",
    **{f"dataset {name}": f"datasets info {name}" for name in ("movielens", "movielens-like", "movielens-small")},
}
RECIPE_KEY = "[recipe] measure"
ELSEWHERE = {"report SET", "report SWEEP", "x of a Dataset"}  # tests/cli/test_report.py, dpltm/test_api.py
NAMES = {
    "dpltm.synthesize": "by a library",
    "dpltm.search": "search on public records (dpltm.tune)",
}


TYPED = sorted(set(GONE) - {*NAMES, *IN_PYTHON, *DATA, *ELSEWHERE, RECIPE_KEY})


@pytest.mark.parametrize("row", TYPED)
def test_at_the_terminal(refused, row) -> None:
    option, _, value = row.partition(" ")
    said = refused(f"{BEFORE[option]} {option} {value or 1}" if row.startswith("--") else f"{row} 1")
    assert said.startswith(row[row.index("--") :] if "--" in row else f"dpltm {row}")
    assert " is gone since 0.3: " in said
    assert said.endswith(GONE[row].rpartition("`")[2])


@pytest.mark.parametrize("row", DATA)
def test_data(refused, row) -> None:
    said = refused(DATA[row])
    assert said.startswith("--dataset ")
    assert " is gone since 0.3: train a network of your own on an .npz with a person a record" in said


def test_keys_of_a_recipe(refused) -> None:
    Path("recipe.toml").write_text('[recipe]\ntitle = "x"\nmeasure = "rmse"\n[[arm]]\nname = "a"\n')
    assert f"{RECIPE_KEY} is gone since 0.3: arms are compared by accuracy" in refused(
        "run --config recipe.toml --dry-run"
    )


@pytest.mark.parametrize("row", [row for row in TYPED if row.split(" --")[0] in OPTIONS])
def test_from_python_and_in_configuration_files(refused, row) -> None:
    command, option = row.split(" --")
    name = option.replace("-", "_")
    with pytest.raises(InputError, match=f"^`{name}` is gone since 0.3: "):
        arguments(OPTIONS[command], {name: 1})
    Path("c.toml").write_text(f"[{command.split()[-1]}]\n{option} = 1\n")
    assert f"{option} is gone since 0.3: " in refused(f"{command} --config c.toml")


@pytest.mark.parametrize("row", IN_PYTHON)
def test_what_python_alone_had(row) -> None:
    cls, words = IN_PYTHON[row]
    name = row.split(" --")[1]
    with pytest.raises(InputError, match=f"^`{name}` is gone since 0.3: {words}"):
        arguments(cls, {name: [3]})


@pytest.mark.parametrize("name", NAMES)
def test_names_of_the_package(name) -> None:
    with pytest.raises(AttributeError, match=f"^{name} is gone since 0.3: ") as refusal:
        getattr(dpltm, name.removeprefix("dpltm."))
    assert NAMES[name] in str(refusal.value)


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


def test_sets_of_them_are_read_with_the_release_behind_them(tmp_path: Path) -> None:
    criterion = "dp-synthetic"
    body = without_data(ModelSpec("mlp:6", 7, 3), GenerationConfig(rounds=2, criterion="random"))
    store_set(
        tmp_path / "s", body, name="n", criterion=criterion, provenance="dp", config={}, made_from=Lineage((MOMENTS,))
    )
    tickets = load_ticket_set(tmp_path / "s")
    assert (tickets.criterion, tickets.provenance, tickets.lineage.entries) == (criterion, "dp", (MOMENTS,))
