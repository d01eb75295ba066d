"""``dpltm generate`` on files: folders and ledgers that it leaves, interrupted runs, and places that it refuses.

What is refused of the options, and what is entered before what, is tested in ``tests/dpltm/verbs/test_generate.py``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from dpltm.privacy.entry import Entry
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.pruning import DATA_FREE, DP_CRITERIA
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.store import bundled_names, find_set
from dpltm.tickets.ticket_set import load_ticket_set

PUBLIC = ("--dataset", "digits", "--subset", "0.0:0.5")
PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
BARE = ("--model", "mlp:8", "--rounds", "2", "--prune", "0.3")  # nothing is trained
TINY = (*BARE, "--iterations", "5", "--batch-size", "32")
FEW = ("--steps", "3", "--json")
LEDGER = "digits.ledger.jsonl"
"""Of the digits, where no other is named."""

NAME = "not a printable text of at most 200 characters"


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


def certified(body: dict) -> float:
    return body["privacy"]["certified"]["epsilon"]


# --- what is written ---


@pytest.mark.parametrize("criterion", DATA_FREE)
def test_a_data_free_set_holds_nothing_of_the_records(cli, criterion):
    before = held()
    options = (*BARE, "--criterion", criterion, "--json")
    body = cli("generate", *PRIVATE, *options, "--out", "new").json
    assert {path.name for path in Path("new").iterdir()} == {
        *("README.md", "lineage.json", "masks.safetensors", "theta0.safetensors", "tickets.json")
    }
    document = json.loads(Path("new/tickets.json").read_text())
    assert (document["id"], document["criterion"], document["provenance"]) == (body["id"], criterion, "data-free")
    assert (document["lineage"], document["predictors_id"], held()) == ({}, None, before)
    said = ("--dataset", "digits", "--subset", "0:40", "--provenance", "data-free", "--out", "other")
    assert cli("generate", *said, *options).json["id"] == body["id"], "whatever the records"


@pytest.mark.parametrize("criterion", DP_CRITERIA)
def test_what_a_dp_set_spent_counts_wherever_it_goes(cli, criterion):
    own = ("--ledger", "own.jsonl")
    options = ("generate", *PRIVATE, *TINY, "--criterion", criterion, "--epsilon", "1", *own, "--out", "new", "--json")
    planned = cli(*options, "--dry-run").json
    assert not Path("own.jsonl").exists()
    body = cli(*options).json
    assert certified(planned) == certified(body)
    assert 0.99 < certified(body) <= 1
    (spent,) = held("own.jsonl")
    assert load_ticket_set(Path("new")).lineage.entries == (spent,)
    if criterion == "dp-train":
        assert planned["steps"] == spent.of(NoisySgd)[0].steps == 5
        assert certified(body) == pytest.approx(epsilon_of(spent), rel=1e-3)
    draw = ("select", "new", *PRIVATE, "--eps1", "0.5", "--score", "additive", "--json")
    elsewhere = cli(*draw, "--ledger", "l.jsonl").json
    assert 1 < certified(elsewhere) <= 1.5
    assert len(held("l.jsonl")) == 1


def test_a_set_without_predictors_is_the_same_set(cwd, cli, refused):
    own = ("--ledger", "l.jsonl")
    options = ("generate", *PUBLIC, *TINY, "--provenance", "private", "--json", "--seed", "3", *own)
    whole, bare = (
        cli(*options, *more, "--out", out).json for more, out in (((), "whole"), (["--no-predictors"], "bare"))
    )
    assert (whole["id"], whole["tickets"]) == (bare["id"], bare["tickets"])
    assert {path.name for path in (cwd / "whole").iterdir()} - {path.name for path in (cwd / "bare").iterdir()} == {
        "predictors.safetensors"
    }
    assert (cwd / "bare.private.json").exists()
    assert "no predictors to score" in refused("select", "bare", *PRIVATE, "--eps1", "0.1")


def test_a_network_may_take_more_letters_than_a_name(cli):
    options = (*PRIVATE, "--model", "mlp:" + ",".join(["10"] * 70), "--rounds", "1", "--criterion", "random")
    assert cli("generate", *options, "--out", "new", "--quiet").code == 0
    assert len(load_ticket_set(Path("new")).body.spec.text) > 200


# --- refused: not a byte may change ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rounds", "10000"), "--rounds: 10000 is more than the 9999 that a ticket set may have"),
        (("--out", "pub"), "--out: pub exists already; choose another name or remove it first"),
        (("--out", "pub/tickets.json"), "--out: pub/tickets.json exists already; choose another name or remove it first"),
        (("--provenance", "private", "--out", "taken"), "--out: taken.private.json exists already; choose another name or"
         " remove it first"),
        *((("--name", name), f"--name: {NAME}") for name in ("\x1b[31mred", "a\nb", "\u202eevil", "a" * 201)),
        *((("--dataset", f"{stem}.npz", *more), f"--dataset: its name: {NAME}")
          for stem in ("a\x1b[31mb", "a" * 201) for more in ((), ("--name", "fine"))),
    ],
)  # fmt: skip
def test_a_dry_run_refuses_word_for_word_what_the_run_would(cwd, refused, options, message):
    (cwd / "taken.private.json").write_text("accuracies of another set")
    if "--dataset" in options:
        np.savez(cwd / options[1], x_train=np.arange(400, dtype=np.uint8).reshape(40, 10), y_train=np.arange(40) % 2)
    own = ("--ledger", "l.jsonl")
    command = ("generate", "--dataset", "digits", *TINY, "--provenance", "public", *own, "--out", "new", *options)
    assert refused(*command) == refused(*command, "--dry-run") == message


def test_a_place_where_nothing_can_be_written_is_refused(refused):
    said = refused("generate", *PUBLIC, *TINY, "--provenance", "public", "--out", "pub/tickets.json/new")
    assert said.startswith("--out: cannot write to pub/tickets.json: ")


def test_a_budget_that_the_ledger_has_spent_is_refused(cli, refused):
    options = ("generate", *PRIVATE, *TINY, "--criterion", "dp-train", "--ledger", "l.jsonl", "--epsilon")
    assert cli(*options, "1", "--out", "first", "--quiet").code == 0
    for more in ((), ("--dry-run",)):
        assert refused(*options, "0.5", "--out", "new", *more, code=1).startswith("budget: ")
    assert len(held("l.jsonl")) == 1


def test_a_place_that_cannot_hold_the_account_is_refused(cwd, refused):
    """The account of a file lies beside it."""
    (cwd / "data").mkdir()
    np.savez("data/d.npz", x_train=np.arange(400, dtype=np.uint8).reshape(40, 10), y_train=np.arange(40) % 2)
    (cwd / "data/dpltm.ledger.jsonl").mkdir()
    said = refused("generate", "--dataset", "data/d.npz", *TINY, "--provenance", "public", "--out", "new")
    assert said.startswith("data/dpltm.ledger.jsonl: ")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('criterion = "random"', "[generate] provenance: data-free tickets have no predictors to select by; "),
        (
            'provenance = "public"\nno-predictors = true\niterations = 1\nbatch-size = 8',
            "[generate] no-predictors: the selection needs them; leave it out",
        ),
    ],
)
def test_a_run_needs_predictors(cwd, refused, lines, message):
    public = f'[run]\n[generate]\ndataset = "digits"\nsubset = "0.0:0.5"\n{lines}\nmodel = "mlp:8"\nrounds = 1\n'
    private = '[select]\n[train]\ndataset = "digits"\nsubset = "0.5:1.0"\nsteps = 2\n'
    (cwd / "c.toml").write_text(public + private)
    assert refused("run", "--config", "c.toml", "--out", "o").startswith(message)


def test_a_winner_of_a_set_that_comes_along_is_drawn_from_a_copy(cli, refused):
    name = next(name for name in bundled_names() if find_set(name).body.tickets[1].accuracy is not None)
    last = len(find_set(name).body.tickets) - 1
    assert refused("select", name, *PRIVATE, "--eps1", "0.1") == (
        f"{name}: its tickets have no predictors to score; train one by its round, as in {name}@{last}"
    )
    assert refused("select", name, "--rule", "smallest-within") == (
        f"{name}: comes with dpltm, and a selection is remembered with the set; copy it with dpltm tickets export {name}"
        " --out DIR"
    )
    assert cli("tickets", "export", name, "--out", "copy").code == 0
    assert cli("select", "copy", "--rule", "smallest-within", "--json").json["winner"]["round"] in range(last + 1)


# --- tickets under DP: what an interrupted run leaves, and threads ---


DP_TRAIN = ("generate", *PRIVATE, *TINY, "--criterion", "dp-train", "--ledger", "l.jsonl", "--out", "new")


@pytest.fixture
def interrupted(cli, monkeypatch):
    """Ends a run of ``dp-train`` for epsilon 1 once its entry is on disk, and loses its checkpoint."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpltm.training.descent.Descent.run", stop)
        assert cli(*DP_TRAIN, "--epsilon", "1").code == 130
    assert not Path("new").exists()
    assert len(held("l.jsonl")) == 1
    shutil.rmtree(".new.checkpoint")  # nothing goes on from there


@pytest.mark.usefixtures("interrupted")
def test_what_an_interrupted_run_spent_counts_in_the_budget(cli, refused):
    (first,) = held("l.jsonl")
    refused(*DP_TRAIN, "--epsilon", "1", code=1)  # the crumb that the first calibration left is noise alone
    assert 1.9 < certified(cli(*DP_TRAIN, "--epsilon", "2", "--json").json) <= 2
    assert held("l.jsonl")[0] == first
    made_of = load_ticket_set(Path("new")).lineage.entries
    assert made_of == held("l.jsonl")[1:], "the first one is not what these tickets were made of"
    assert 1.9 < epsilon_of(*held("l.jsonl")) <= 2.001


def test_an_interrupted_run_goes_on_and_is_paid_once(cli, monkeypatch):
    """With the bits of one that was not interrupted: the same release, entered once."""
    from dpltm.training.descent import Descent

    run, asked = Descent.run, []

    def stop(self, between=None, **more):
        def told():
            between()
            if self.step == 3:
                asked.append(self.step)
                raise KeyboardInterrupt

        return run(self, between=told, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Descent, "run", stop)
        patch.setattr("dpltm.tickets.checkpoint_files.EVERY", 0.0)
        patch.setattr("dpltm.tickets.checkpoint_files.SHARE", 1e9)
        assert cli(*DP_TRAIN, "--epsilon", "1").code == 130
    (paid,) = held("l.jsonl")
    assert asked == [3]
    assert cli(*DP_TRAIN, "--epsilon", "1", "--quiet").code == 0
    assert held("l.jsonl") == load_ticket_set(Path("new")).lineage.entries == (paid,)


def test_dp_train_honours_threads(cli, monkeypatch):
    import torch

    from dpltm.training.descent import Descent

    seen, run, before = [], Descent.run, torch.get_num_threads()

    def counting(*arguments, **more):
        seen.append(torch.get_num_threads())
        return run(*arguments, **more)

    monkeypatch.setattr(Descent, "run", counting)
    for number in (1, 2):
        out = ("--threads", str(number), "--epsilon", str(number), "--out", f"t{number}")
        assert cli(*DP_TRAIN[:-2], *out, "--quiet").code == 0
    assert seen == [1, 2]
    assert torch.get_num_threads() == before
