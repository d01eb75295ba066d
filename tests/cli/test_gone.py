"""What version 0.2 had and this one has not is refused by its name, with what to do instead; nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

import dpltm
from dpltm.errors import InputError
from dpltm.options import arguments
from dpltm.options.gone import GONE
from dpltm.options.privacy import CurveRequest, EpsilonRequest
from dpltm.options.train import LoopOptions, TrainOptions
from dpltm.options.tune import TuneOptions
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.describe import figure
from dpltm.privacy.entry import Entry, Part
from dpltm.privacy.mechanisms import DiscreteGaussianRelease, NoisySgd, PrivateSearch, Zcdp
from dpltm.tickets import open_ledger

TYPED = {  # what is typed, and the words that its row of the table is refused by
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
NAMES = {
    "dpltm.search": "search on public records (dpltm.tune)",
}


def test_every_row_is_in_one_of_these_tables() -> None:
    assert set(GONE) == set(TYPED) | set(NAMES) | set(IN_PYTHON)


@pytest.mark.parametrize("row", TYPED)
def test_at_the_terminal(refused, row) -> None:
    command, words = TYPED[row]
    name = row[row.index("--") :] if "--" in row else f"dpltm {row}"
    said = refused(command)
    assert said.startswith(f"{name} is gone since 0.3: ")
    assert words in said


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
