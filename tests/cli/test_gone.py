"""What version 0.2 had and this one has not is refused by its name, with what to do instead; nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpltm
from commands import PRIVATE, PUBLIC, TINY
from dpltm.errors import DataError, InputError
from dpltm.gone import GONE
from dpltm.networks import ModelSpec
from dpltm.options import arguments
from dpltm.options.privacy import CurveRequest, EpsilonRequest
from dpltm.options.train import LoopOptions, TrainOptions
from dpltm.options.tune import TuneOptions
from dpltm.privacy import gdp
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.describe import figure
from dpltm.privacy.entry import Entry, Lineage, Part
from dpltm.privacy.mechanisms import DiscreteGaussianRelease, GaussianRelease, NoisySgd, PrivateSearch, Zcdp
from dpltm.pruning.generation import GenerationConfig, without_data
from dpltm.records import load
from dpltm.tickets import open_ledger
from dpltm.tickets.ticket_set import load_ticket_set
from set_entries import MOMENTS
from sets import store_set

TYPED = {  # what is typed, and the words that its row of the table is refused by
    "tickets push": ("tickets push pub shared", "hf upload"),
    "tickets pull": ("tickets pull shared", "hf download"),
    "export --to": ("export r --to plain --out new", "ONNX Runtime"),
    "features": ("features make drawings", "scripts/make_drawings.py"),
    "--criterion dp-energy": (
        f"generate {PRIVATE} {TINY} --criterion dp-energy --epsilon 1 --out new",
        "--criterion dp-train",
    ),
    "--criterion dp-synthetic": (
        f"generate {PRIVATE} {TINY} --criterion dp-synthetic --epsilon 1 --out new",
        "--criterion dp-train",
    ),
    "--criterion energy": (
        f"generate {PRIVATE} {TINY} --criterion energy --provenance public --out new",
        "--criterion magnitude",
    ),
    "generate --pool": (f"generate {PRIVATE} {TINY} --pool 4 --provenance public --out new", "leave it out"),
    "--components": ("train --dense --components 5", "bring their directions"),
    "--features network": ("train --dense --features network:a.run --epsilon 1 --out new", "freeze"),
    "--public": ("generate --features scatter --public mnist --out new", "within each record"),
    "datasets overlap": ("datasets overlap a.csv b.csv --label y", "a program of your own"),
    "--model ncf": ("train --dense --model ncf --epsilon 1 --out new", "gdp_movielens.py"),
    "--users": ("train --dense --users 3 --epsilon 1", "an .npz with a person a record"),
    "--items": ("evaluate r --dataset d.npz --items 3", "an .npz with a person a record"),
    "--unit": ("train --dense --unit user --epsilon 1 --out new", "person of each record"),
    "--metric rmse": ("train --dense --metric rmse --epsilon 1 --out new", "take accuracy"),
    "synthesize": ("synthesize --dataset digits --epsilon 1 --out new.npz", "by a library"),
    "--mechanism discrete-gaussian": ("privacy epsilon --mechanism discrete-gaussian", "dp-accounting"),
    "--mechanism zcdp": ("privacy curve --mechanism zcdp", "dp-accounting (ZCDpEvent)"),
    "privacy curve --rho": ("privacy curve --rho 1", "dp-accounting (ZCDpEvent)"),
    "privacy epsilon --rho": ("privacy epsilon --rho 1", "dp-accounting (ZCDpEvent)"),
    "compare --baselines": ("compare r --baselines", "dpltm train --dense"),
    "compare --kinds": ("compare r --kinds dense", "dpltm train --dense"),
    "compare --out": ("compare r --out b", "dpltm train --dense"),
    "compare --ledger": ("compare r --ledger l.jsonl", "dpltm train --dense"),
    "compare --population": ("compare r --population p", "dpltm train --dense"),
    "compare --jobs": ("compare r --jobs 1", "dpltm train --dense"),
    "compare --dry-run": ("compare r --dry-run", "spends nothing"),
    "tune --private": ("tune --private --dataset digits --epsilon 1", "search on public records"),
    "tune --tries": ("tune --tries 3 --dataset digits --epsilon 1", "search on public records"),
    "tune --dry-run": ("tune --dry-run --dataset digits --epsilon 1", "spends nothing"),
    "tune --unit": ("tune --unit user --dataset digits --epsilon 1", "name it in dpltm train"),
    "tune --per-unit": ("tune --per-unit 3 --dataset digits --epsilon 1", "name it in dpltm train"),
    "tune --fresh": ("tune --fresh --dataset digits --epsilon 1", "begins anew"),
    "latent epsilon --certified": ("latent epsilon --certified 4", "what it certifies"),
    "latent train --prune": ("latent train s --prune 0.2", "dpltm generate"),
    "latent train --rounds": ("latent train s --rounds 2", "dpltm generate"),
    "latent train --fresh": ("latent train s --messages m --out r --fresh", "begins anew"),
    "--start-prefix": ("train --dense --start-prefix a --epsilon 1", "in Python"),
    "--start-skip": ("generate --start-skip a", "all parameters"),
    "--length": ("evaluate r --dataset t.npz --length 9", "the last 256 words"),
    "train --prunable": ("train --dense --prunable a --epsilon 1", "prunes nothing"),
    "tune --prunable": ("tune --prunable a --epsilon 1", "prunes nothing"),
    "train --plot": ("train --dense --plot a.png --epsilon 1", "dpltm report"),
    "tickets show --plot": ("tickets show pub --plot a.png", "density and accuracy"),
    "audit --plot": ("audit demo --plot a.png", "beside its bound"),
    "train --stop-at": ("train --stop-at 0.9 --dense --dataset digits --epsilon 1", "--budget-stop"),
    "train --augment": ("train --augment flip --dense --dataset digits --epsilon 1", "behind features"),
    "tune --class-shares": ("tune --class-shares 0.5,0.5 --dataset digits --epsilon 1", "name it in dpltm train"),
}
OPTIONS = {
    "tune": TuneOptions,
    "train": TrainOptions,
    "privacy epsilon": EpsilonRequest,
    "privacy curve": CurveRequest,
}
IN_PYTHON = {
    "loop --ends": (LoopOptions, "the figure is that of the whole plan"),
}
RECIPES = {"[recipe] measure": "are compared by accuracy"}
DATA = {
    "--dataset .dat": "train --dense --dataset ratings.dat --epsilon 1 --out new",
    "dataset movielens": "datasets info movielens",
    "dataset movielens-like": "datasets info movielens-like",
    "dataset movielens-small": "train --dense --dataset movielens-small --epsilon 1",
}
NAMES = {
    "dpltm.synthesize": "by a library",
    "dpltm.search": "search on public records (dpltm.tune)",
}


def test_every_row_is_in_one_of_these_tables() -> None:
    assert set(GONE) == set(TYPED) | set(NAMES) | set(IN_PYTHON) | set(DATA) | set(RECIPES)


@pytest.mark.parametrize("row", TYPED)
def test_at_the_terminal(refused, row) -> None:
    command, words = TYPED[row]
    name = row[row.index("--") :] if "--" in row else f"dpltm {row}"
    said = refused(command)
    assert said.startswith(name)
    assert " is gone since 0.3: " in said
    assert words in said


@pytest.mark.parametrize("row", DATA)
def test_data(refused, row) -> None:
    said = refused(DATA[row])
    assert said.startswith("--dataset ")
    assert " is gone since 0.3: train a network of your own on an .npz with a person a record" in said


@pytest.mark.parametrize("row", RECIPES)
def test_keys_of_a_recipe(refused, row) -> None:
    Path("recipe.toml").write_text('[recipe]\ntitle = "x"\nmeasure = "rmse"\n[[arm]]\nname = "a"\n')
    said = refused("run --config recipe.toml --dry-run")
    assert f"{row} is gone since 0.3: " in said
    assert RECIPES[row] in said


@pytest.mark.parametrize("row", [row for row in TYPED if row.split(" --")[0] in OPTIONS])
def test_from_python_and_in_configuration_files(refused, row) -> None:
    command, option = row.split(" --")
    name = option.replace("-", "_")
    with pytest.raises(InputError, match=f"^`{name}` is gone since 0.3: "):
        arguments(OPTIONS[command], {name: 1})
    Path("c.toml").write_text(f"[{command.split()[-1]}]\n{option} = 1\n")
    assert f"{option} is gone since 0.3: " in refused(f"{command} --config c.toml")


def test_in_configuration_files_of_a_group(refused) -> None:
    Path("c.toml").write_text("[train]\nrounds = 2\n")
    said = refused("latent train s --messages m --out r --config c.toml")
    assert said.startswith(
        "--config c.toml: rounds is gone since 0.3: leave it out; tickets are made by dpltm generate"
    )
    assert "unknown key 'rounds'" in refused("train --config c.toml"), "which never had it"


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


@pytest.mark.parametrize("options", [{"criterion": "dp-synthetic", "epsilon": 1.0}])
def test_values_of_options_in_python(options: dict[str, Any]) -> None:
    x = np.zeros((40, 4), np.uint8)
    with pytest.raises(InputError, match=f"`criterion` {options['criterion']} is gone since 0.3: "):
        dpltm.generate(x, np.arange(40) % 2, ledger=dpltm.Ledger(), **options)


def test_values_of_options_in_a_file(refused: Callable[..., str], cwd: Path) -> None:
    (cwd / "a.toml").write_text('[generate]\ncriterion = "dp-synthetic"\nepsilon = 1.0\n')
    assert "--criterion dp-synthetic is gone since 0.3: " in refused(f"generate {PRIVATE} --config a.toml --out new")


def test_options_in_python_and_in_a_file(refused: Callable[..., str], cwd: Path) -> None:
    with pytest.raises(InputError, match=r"^`pool` is gone since 0\.3: "):
        dpltm.generate(np.zeros((40, 4), np.uint8), np.arange(40) % 2, provenance="public", pool=4)
    (cwd / "a.toml").write_text("[generate]\npool = 4\n")
    assert "pool is gone since 0.3: " in refused(f"generate {PUBLIC} --provenance public --config a.toml --out new")


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


def test_entries_of_them_are_priced(cli: Callable[..., Any]) -> None:
    """A Gaussian mechanism is mu-GDP with mu = 1/sigma, whose epsilon is exact (Dong, Roth, Su 2022, Cor. 2.13)."""
    ledger = open_ledger("l.jsonl")
    words = "counts, sums and second moments of norm-bounded records, for synthetic ones"
    ledger.declare(Entry("release", mechanisms=(GaussianRelease(4.0, 9 / 8),), words=words))
    body = cli("privacy ledger l.jsonl --delta 1e-4 --json").json
    assert gdp.delta(body["privacy"]["certified"]["epsilon"], 1 / 4) == pytest.approx(1e-4, rel=1e-2)
    assert words in " ".join(cli("privacy ledger l.jsonl --delta 1e-4").out.split())


@pytest.mark.parametrize("criterion", ["dp-energy", "dp-synthetic"])
def test_sets_of_them_are_read_with_the_release_behind_them(tmp_path: Path, criterion: str) -> None:
    body = without_data(ModelSpec("mlp:6", 7, 3), GenerationConfig(rounds=2, criterion="random"))
    store_set(
        tmp_path / "s", body, name="n", criterion=criterion, provenance="dp", config={}, made_from=Lineage((MOMENTS,))
    )
    tickets = load_ticket_set(tmp_path / "s")
    assert (tickets.criterion, tickets.provenance, tickets.lineage.entries) == (criterion, "dp", (MOMENTS,))
