"""``dpltm generate`` on files: folders and ledgers that it leaves, interrupted runs, and places that it refuses.

What is refused of the options, and what is entered before what, is tested in ``tests/dpltm/stages/test_generate.py``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from dpltm.privacy.describe import describe
from dpltm.privacy.event_json import from_json
from dpltm.pruning import DATA_FREE, DP_CRITERIA
from dpltm.tickets.store import bundled_names, find_set
from dpltm.tickets.ticket_set import load_ticket_set

PUBLIC = ("--dataset", "digits", "--subset", "0.0:0.5")
PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
BARE = ("--model", "mlp:8", "--rounds", "2", "--prune", "0.3")  # nothing is trained
TINY = (*BARE, "--iterations", "5", "--batch-size", "32")
FEW = ("--steps", "3", "--json")
NAME = "not a printable text of at most 200 characters"


def epsilon_of(*events: dict) -> float:
    """dp-accounting's own figure for some trainings at delta 1e-5."""
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for event in events:
        step = dp_event.GaussianDpEvent(event["noise_multiplier"])
        step = dp_event.PoissonSampledDpEvent(event["sampling_rate"], step)
        accountant.compose(dp_event.SelfComposedDpEvent(step, event["steps"]))
    return accountant.get_epsilon(1e-5)


def certified(body: dict) -> float:
    return body["privacy"]["certified"]["epsilon"]


# --- what is written ---


@pytest.mark.parametrize("criterion", DATA_FREE)
def test_a_data_free_set_holds_nothing_of_the_records(cli, criterion):
    options = (*BARE, "--criterion", criterion, "--json")
    body = cli("generate", *PRIVATE, *options, "--out", "new").json
    assert {path.name for path in Path("new").iterdir()} == {
        *("README.md", "masks.safetensors", "theta0.safetensors", "tickets.json")
    }
    document = json.loads(Path("new/tickets.json").read_text())
    assert (document["id"], document["criterion"], document["provenance"]) == (body["id"], criterion, "data-free")
    assert (document["source"], document["events"], document["predictors_id"]) == (None, [], None)
    said = ("--dataset", "digits", "--subset", "0:40", "--provenance", "data-free", "--out", "other")
    assert cli("generate", *said, *options).json["id"] == body["id"], "whatever the records"


def test_a_data_free_set_leaves_the_whole_budget_to_training(cli, events):
    assert cli("generate", *PRIVATE, *BARE, "--criterion", "random", "--out", "free", "--quiet").code == 0
    body = cli("train", "free@2", *PRIVATE, *FEW, "--epsilon", "1", "--out", "r").json
    (event,) = events("r/ledger.jsonl")
    assert (event["kind"], event["live"]) == ("training", 308)
    assert 0.998 < certified(body) <= 1
    assert certified(body) == pytest.approx(epsilon_of(event), rel=1e-3)


@pytest.mark.parametrize("criterion", DP_CRITERIA)
def test_what_a_dp_set_spent_counts_on_its_records_in_every_ledger(cli, events, criterion):
    options = ("generate", *PRIVATE, *TINY, "--criterion", criterion, "--epsilon", "1", "--out", "new", "--json")
    planned, body = cli(*options, "--dry-run").json, cli(*options).json
    assert certified(planned) == certified(body)
    assert 0.99 < certified(body) <= 1
    spent, said = events("new/ledger.jsonl")
    assert json.loads(Path("new/tickets.json").read_text())["events"] == [spent]
    assert (said["kind"], said["provenance"], said["ticket_set"]) == ("provenance", "dp", body["id"])
    if criterion == "dp-train":
        assert planned["steps"] == spent["steps"] == 5
        assert certified(body) == pytest.approx(epsilon_of(spent), rel=1e-3)
    train = ("train", "new@2", *FEW, "--noise-multiplier", "3")
    same = cli(*train, *PRIVATE, "--ledger", "l.jsonl", "--out", "same").json
    other = cli(*train, *PUBLIC, "--out", "other").json
    alone = epsilon_of(events("other/ledger.jsonl")[-1])
    assert certified(other) == pytest.approx(alone, rel=1e-3)
    assert events("l.jsonl")[:1] == [spent]
    assert max(alone, certified(body)) < certified(same) <= 1 + alone


def test_a_set_without_predictors_is_the_same_set(cwd, cli, refused):
    options = ("generate", *PUBLIC, *TINY, "--provenance", "private", "--json", "--seed", "3")
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
    command = ("generate", "--dataset", "digits", *TINY, "--provenance", "public", "--out", "new", *options)
    assert refused(*command) == refused(*command, "--dry-run") == message


def test_a_place_where_nothing_can_be_written_is_refused(refused):
    said = refused("generate", *PUBLIC, *TINY, "--provenance", "public", "--out", "pub/tickets.json/new")
    assert said == "pub/tickets.json/new: cannot be written: Not a directory; choose another place"


def test_a_budget_that_the_ledger_has_spent_is_refused(cli, refused):
    spent = ("--model", "mlp:8", "--steps", "2", "--epsilon", "1", "--ledger", "l.jsonl", "--out", "r")
    cli("train", "--dense", *PRIVATE, *spent)
    options = ("generate", *PRIVATE, *TINY, "--criterion", "dp-train", "--epsilon", "0.5", "--ledger", "l.jsonl")
    for more in ((), ("--dry-run",)):
        assert refused(*options, "--out", "new", *more, code=1).startswith("budget: on these records epsilon ")


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


DP_TRAIN = ("generate", *PRIVATE, *TINY, "--criterion", "dp-train", "--out", "new")


@pytest.fixture
def interrupted(cli, monkeypatch):
    """Ends a run of ``dp-train`` for epsilon 1 once its event is on disk, and loses its checkpoint."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpltm.training.descent.Descent.run", stop)
        assert cli(*DP_TRAIN, "--epsilon", "1").code == 130
    assert not Path("new").exists()
    assert Path("new.ledger.jsonl").exists()
    shutil.rmtree(".new.checkpoint")  # nothing goes on from there


@pytest.mark.usefixtures("interrupted")
def test_what_an_interrupted_run_spent_counts_in_the_budget(cli, events, refused, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr("dpltm.cli.console.Console.say", lambda _, text: said.append(text))
    (first,) = events("new.ledger.jsonl")
    message = refused(*DP_TRAIN, "--epsilon", "1", code=1)  # the crumb that the first calibration left is noise alone
    assert f" goes to {describe(from_json(first))} ({first['time'][:10]}), which leaves less than 2 % of 1," in message
    assert 1.9 < certified(cli(*DP_TRAIN, "--epsilon", "2", "--dry-run", "--json").json) <= 2
    said.clear()
    assert cli(*DP_TRAIN, "--epsilon", "2").code == 0
    assert said[0] == "going on with new.ledger.jsonl, which holds what an interrupted run spent"
    assert not Path("new.ledger.jsonl").exists()
    found = events("new/ledger.jsonl")
    assert [event["kind"] for event in found] == ["training", "training", "provenance"]
    assert found[0] == first
    made_of = json.loads(Path("new/tickets.json").read_text())["events"]
    assert made_of == [found[1]], "the first one is not what these tickets were made of"
    assert 1.9 < epsilon_of(*found[:2]) <= 2.001


@pytest.mark.usefixtures("interrupted")
def test_another_place_knows_nothing_of_an_interrupted_run_and_damage_to_its_ledger_is_refused(cli, refused):
    assert certified(cli(*DP_TRAIN[:-1], "other", "--epsilon", "1", "--json").json) <= 1
    path = Path("new.ledger.jsonl")
    path.write_bytes(path.read_bytes()[:-5])
    assert refused(*DP_TRAIN, "--epsilon", "2").startswith("new.ledger.jsonl: line 2: ")


def test_dp_train_honours_threads(cli, monkeypatch):
    import torch

    from dpltm.training.descent import Descent

    seen, run, before = [], Descent.run, torch.get_num_threads()

    def counting(*arguments, **more):
        seen.append(torch.get_num_threads())
        return run(*arguments, **more)

    monkeypatch.setattr(Descent, "run", counting)
    for number in (1, 2):
        out = ("--threads", str(number), "--epsilon", "1", "--out", f"t{number}")
        assert cli(*DP_TRAIN[:-2], *out, "--quiet").code == 0
    assert seen == [1, 2]
    assert torch.get_num_threads() == before
