"""``dpltm generate`` on files: folders and ledgers that it leaves, and what is refused for what is on record.

What is refused of the options, and what is entered before what, is tested in ``tests/dpltm/verbs/test_generate.py``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from commands import LEDGER, PRIVATE, TINY, certified
from dpltm.criteria import DATA_FREE
from dpltm.privacy.entry import Entry
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.ticket_set import load_ticket_set
from dpltm.training.descent import Descent
from interruptions import ending, interrupt

DP_TRAIN = f"generate {PRIVATE} {TINY} --criterion dp-train --ledger l.jsonl"


def epsilon_of(*entries: Entry) -> float:
    """dp-accounting's own figure for some trainings at delta 1e-5."""
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for entry in entries:
        (mechanism,) = entry.of(NoisySgd)
        step = dp_event.GaussianDpEvent(mechanism.noise_multiplier)
        step = dp_event.PoissonSampledDpEvent(mechanism.sampling_rate, step)
        accountant.compose(dp_event.SelfComposedDpEvent(step, mechanism.steps))
    return accountant.get_epsilon(1e-5)


def held(path: str = LEDGER) -> tuple[Entry, ...]:
    """What a ledger holds."""
    return open_ledger(path).entries


@pytest.mark.one_of(2)
@pytest.mark.parametrize("criterion", DATA_FREE)
def test_a_data_free_set_holds_nothing_of_the_records(cli, criterion):
    before = held()
    options = f"--model mlp:{'10,' * 70}10 --rounds 1 --prune 0.3 --criterion {criterion} --json"  # longer than a name
    body = cli(f"generate {PRIVATE} {options} --out new").json
    assert {path.name for path in Path("new").iterdir()} == {
        *("README.md", "lineage.json", "masks.safetensors", "theta0.safetensors", "tickets.json")
    }
    document = json.loads(Path("new/tickets.json").read_text())
    assert (document["id"], document["criterion"], document["provenance"]) == (body["id"], criterion, "data-free")
    assert (document["lineage"], document["predictors_id"], held()) == ({}, None, before)
    other = cli(f"generate --dataset digits --subset 0:40 --provenance data-free --out other {options}").json
    assert other["id"] == body["id"], "whatever the records"


def test_a_place_that_cannot_hold_the_account_is_refused(cwd, refused):
    """The account of a file lies beside it."""
    (cwd / "data").mkdir()
    np.savez("data/d.npz", x_train=np.arange(400, dtype=np.uint8).reshape(40, 10), y_train=np.arange(40) % 2)
    (cwd / "data/dpltm.ledger.jsonl").mkdir()
    said = refused(f"generate --dataset data/d.npz {TINY} --provenance public --out new")
    assert said.startswith("data/dpltm.ledger.jsonl: ")


@pytest.mark.parametrize(
    ("lines", "culprit"),
    [
        ('criterion = "random"', "[generate] provenance: "),
        ('provenance = "public"\nno-predictors = true\niterations = 1\nbatch-size = 8', "[generate] no-predictors: "),
    ],
)
def test_a_run_needs_predictors(cwd, refused, lines, culprit):
    public = f'[run]\n[generate]\ndataset = "digits"\nsubset = "0.0:0.5"\n{lines}\nmodel = "mlp:8"\nrounds = 1\n'
    private = '[select]\n[train]\ndataset = "digits"\nsubset = "0.5:1.0"\nsteps = 2\n'
    (cwd / "c.toml").write_text(public + private)
    assert refused("run --config c.toml --out o").startswith(culprit)


def test_what_an_interrupted_run_spent_counts_in_the_budget(cli, refused):
    """Its entry is on disk, and its checkpoint is lost."""
    with ending(Descent, "run", 1, interrupt):
        assert cli(f"{DP_TRAIN} --epsilon 1 --out new").code == 130
    assert not Path("new").exists()
    (first,) = held("l.jsonl")
    shutil.rmtree(".new.checkpoint")  # nothing goes on from there
    for more in ("", "--dry-run"):  # the crumb that the first calibration left is noise alone
        assert refused(f"{DP_TRAIN} --epsilon 1 --out new {more}", code=1).startswith("budget: ")
    assert 1.9 < certified(cli(f"{DP_TRAIN} --epsilon 2 --out new --json").json) <= 2
    assert held("l.jsonl")[0] == first
    made_of = load_ticket_set(Path("new")).lineage.entries
    assert made_of == held("l.jsonl")[1:], "the first one is not what these tickets were made of"
    assert 1.9 < epsilon_of(*held("l.jsonl")) <= 2.001


def test_dp_train_honours_threads(cli, monkeypatch):
    seen, run, before = [], Descent.run, torch.get_num_threads()

    def counting(*arguments, **more):
        seen.append(torch.get_num_threads())
        return run(*arguments, **more)

    monkeypatch.setattr(Descent, "run", counting)
    for number in (1, 2):
        assert cli(f"{DP_TRAIN} --threads {number} --epsilon {number} --out t{number}").code == 0
    assert seen == [1, 2]
    assert torch.get_num_threads() == before
