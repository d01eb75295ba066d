"""Draws of winners, on the bill of everything that is made of a winner: compacted, transferred, exported and imported."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dpltm.networks.masks import Mask
from dpltm.records import load
from dpltm.tickets.ticket_set import load_ticket_set
from refs import reference
from sets import store_set

PUBLIC = ("--dataset", "digits", "--subset", "0.0:0.5")
PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
TRAIN = ("--steps", "2", "--noise-multiplier", "100", "--json")  # next to nothing beside a draw
EPS1, BOTH = 0.5, 0.95  # two bounded-range draws compose to less than their sum


@pytest.fixture
def victim(cwd):
    """``set``, a public one of three rounds, each but the dense one with hidden units to be compacted away."""
    del cwd
    body = load_ticket_set(Path("pub")).body
    dense, _, last = body.tickets
    mask = dict(last.mask.items())
    mask["fc2.weight"][:, [1, 4, 6]] = False
    changed = Mask(mask)
    predictor = {key: value * changed[key] for key, value in last.predictor.items()}
    last = replace(last, mask=changed, predictor=predictor)
    return store_set(
        Path("set"), replace(body, tickets=(dense, replace(last, round=1), last)), name="set", criterion="magnitude",
        provenance="public", source=reference(load("digits", subset="0.0:0.5")), config={},
    )  # fmt: skip


@pytest.fixture
def draw(cli, victim, monkeypatch):
    """Draws a given winner from private records, into a ledger of its own."""
    del victim
    count = iter(range(100))

    def call(winner: int, *more: str) -> None:
        monkeypatch.setattr("dpltm.stages.select.draw", lambda *arguments: winner - 1)  # noqa: ARG005
        ledger = f"draw-{next(count)}.jsonl"
        body = cli("select", "set", *PRIVATE, "--eps1", str(EPS1), "--ledger", ledger, *more, "--json").json
        assert body["winner"]["round"] == winner

    return call


@pytest.fixture
def pays(cli, events):
    """Trains with a ledger of its own; returns the kinds that are entered before the training, and what is certified."""
    count = iter(range(100))

    def call(*ticket: str) -> tuple[list[str], float]:
        number = next(count)
        ledger = f"pays-{number}.jsonl"
        body = cli("train", *ticket, *PRIVATE, *TRAIN, "--ledger", ledger, "--out", f"run-{number}").json
        *before, training = [event["kind"] for event in events(ledger)]
        assert training == "training"
        return before, body["privacy"]["certified"]["epsilon"]

    return call


def draws(folder: str) -> list[dict]:
    return json.loads(Path(folder, "tickets.json").read_text())["draws"]


def compacted(cli) -> str:
    assert cli("tickets", "compact", "set@2", "--out", "made").code == 0
    return "made"


def one_round(cli) -> str:
    assert cli("tickets", "transfer", "set@2", *PRIVATE, "--out", "made").code == 0
    return "made"


def whole(cli) -> str:
    assert cli("tickets", "transfer", "set", *PRIVATE, "--out", "made").code == 0
    return "made"


def imported(cli) -> str:
    more = ("--to", "torch-prune", "--out", "t.safetensors")
    assert cli("tickets", "export", "set@2", *more).code == 0
    assert cli("tickets", "import", "t.safetensors", *PRIVATE, "--model", "mlp:8", "--out", "made").code == 0
    return "made"


def again(cli) -> str:
    """What is made of what was made: compacted, transferred by another rule, exported."""
    compacted(cli)
    assert cli("tickets", "transfer", "made@0", *PRIVATE, "--mode", "random", "--out", "again").code == 0
    assert cli("tickets", "export", "again", "--out", "copy").code == 0
    return "copy"


WAYS = {way.__name__: way for way in (compacted, one_round, whole, imported, again)}


@pytest.mark.parametrize("way", WAYS)
def test_every_round_of_what_is_made_of_a_winner_pays(cli, draw, pays, way):
    """The dense round 0 of a compact set has the very units that the winner left: it depends on the draw as well."""
    draw(2)
    name = WAYS[way](cli)
    assert [event["kind"] for event in draws(name)] == ["selection"]
    assert not Path(name, "selection.json").exists()
    assert cli("tickets", "verify", name, "--json").json["ok"]
    rounds = range(len(load_ticket_set(Path(name)).body.tickets))
    for ticket in (*((f"{name}@{number}",) for number in rounds), (name, "--dense")):
        kinds, certified = pays(*ticket)
        assert kinds == ["selection"]
        assert certified >= EPS1 - 0.01


@pytest.mark.parametrize("way", WAYS)
def test_what_was_not_drawn_pays_for_no_draw(cli, victim, pays, way):  # noqa: ARG001
    name = WAYS[way](cli)
    assert draws(name) == []
    kinds, certified = pays(f"{name}@0")
    assert kinds == []
    assert certified < 0.1


def test_an_unprotected_release_goes_along(cli, draw, pays):
    draw(2, "--reveal")
    assert pays(f"{compacted(cli)}@0") == (["selection", "non-private"], "inf")


def test_a_draw_is_entered_once(cli, draw, events):
    """Trained twice, and in a ledger that holds the draw itself."""
    draw(2)
    compacted(cli)
    for number, ticket in enumerate(("made@0", "made@1", "set@2")):
        assert cli("train", ticket, *PRIVATE, *TRAIN, "--ledger", "draw-0.jsonl", "--out", f"r{number}").code == 0
    assert [event["kind"] for event in events("draw-0.jsonl")] == ["selection"] + ["training"] * 3


def test_a_draw_from_what_is_made_of_a_winner_pays_for_the_first_draw(cli, draw, events):
    draw(2)
    whole(cli)  # of the same shape: predictors stay
    options = ("select", "made", *PRIVATE, "--eps1", "0.2", "--ledger", "l.jsonl", "--json")
    planned = cli(*options, "--dry-run").json["privacy"]["certified"]["epsilon"]
    body = cli(*options).json
    first, second = events("l.jsonl")
    assert [first["eps1"], second["eps1"]] == [EPS1, 0.2]
    assert planned == body["privacy"]["certified"]["epsilon"] > EPS1 + 0.15
    cli(*options)
    assert [event["eps1"] for event in events("l.jsonl")] == [EPS1, 0.2, 0.2]


def test_a_draw_on_other_records_is_named_and_costs_nothing_here(cli, draw, events):
    draw(2, "--subset", "0.5:0.75")
    compacted(cli)
    there = ("--dataset", "digits", "--subset", "0.75:1.0", *TRAIN, "--ledger", "l.jsonl", "--out", "r")
    body = cli("train", "made@0", *there).json
    assert body["privacy"]["certified"]["epsilon"] < 0.1
    assert "the winner was drawn on other records, digits[0.5:0.75], and depends on them" in body["privacy"]["notes"]
    drawn, trained = events("l.jsonl")  # the draw on its own records, wherever the winner goes
    parts = [[event["dataset"][end] / 1e9 for end in ("start", "stop")] for event in (drawn, trained)]
    assert ([drawn["kind"], trained["kind"]], parts) == (["selection", "training"], [[0.5, 0.75], [0.75, 1.0]])


def test_two_draws_with_different_winners_both_count_for_either(cli, draw, pays):
    """Whoever takes the first winner after the second draw has seen both."""
    draw(1)
    assert pays("set@1")[0] == ["selection"]
    draw(2)
    for ticket in ("set@1", "set@2"):
        kinds, certified = pays(ticket)
        assert kinds == ["selection"] * 2
        assert certified > BOTH
    assert pays("set@0")[0] == []
    for number in (1, 2):
        cli("tickets", "compact", f"set@{number}", "--out", f"small{number}")
        assert len(draws(f"small{number}")) == 2
    assert pays("small1@0")[1] > BOTH
    draw(2)
    cli("tickets", "transfer", "set@1", *PRIVATE, "--out", "third")
    assert len(draws("third")) == 3


@pytest.mark.parametrize("command", ["compact", "transfer"])
def test_a_kill_right_after_the_set_appears_loses_no_draw(cli, draw, pays, monkeypatch, command):
    """Nothing is written after the set itself that it would need."""
    draw(2)
    found, rename = [], os.rename

    def killed(one, other, *rest, **more):
        rename(one, other, *rest, **more)
        if Path(other).name == "made":
            found.append({path.name: path.read_bytes() for path in Path("made").iterdir()})
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", killed)
    records = PRIVATE if command == "transfer" else ()
    assert cli("tickets", command, "set@2", *records, "--out", "made").code == 130
    monkeypatch.setattr(os, "rename", rename)
    (files,) = found
    shutil.rmtree("made", ignore_errors=True)  # as it was at the moment of the kill
    Path("made").mkdir()
    for name, data in files.items():
        Path("made", name).write_bytes(data)
    assert pays("made@0")[0] == ["selection"]


# --- records of a draw that are damaged or forged ---


def edited(path: Path) -> None:
    path.write_text(path.read_text().replace('"round": 2', '"round": 1'))


def dangling(path: Path) -> None:
    """A record that is there, and cannot be read, is not none."""
    path.unlink()
    path.symlink_to("/nowhere/at/all")


@pytest.mark.parametrize("damage", [edited, dangling])
def test_a_damaged_record_of_a_draw_is_refused_and_nothing_written(cli, draw, refused, damage):
    draw(2)
    damage(Path("set/selection.json"))
    for command in (
        ("compact", "set@1", "--out", "made"),
        ("transfer", "set", *PRIVATE, "--out", "made"),
        ("export", "set@2", "--to", "torch-prune", "--out", "t.safetensors"),
        ("export", "set@2", "--to", "state-dict", "--out", "t.safetensors"),
    ):
        assert refused("tickets", *command).startswith("set")
    done = cli("tickets", "verify", "set", "--json")
    assert (done.code, json.loads(done.out)["ok"]) == (1, False)


def budget(event: dict) -> dict:
    """A budget of a billion on the records of an event."""
    kept = {key: event[key] for key in ("dataset", "time", "adjacency", "unit")}
    return kept | {"kind": "budget", "epsilon": 1e9, "delta": 0.5}


def with_digest(body: dict) -> str:
    """A document, forged so that its digest is right."""
    rest = {key: value for key, value in body.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return json.dumps({**rest, "digest": hashlib.sha256(text.encode()).hexdigest()})


FORGED = "BudgetEvent is not what the draw of a winner enters"


def test_a_forged_budget_does_not_reach_a_ledger(cli, draw, refused):
    """Somebody else's selection.json that would lift the budget of whoever trains its winner."""
    draw(2)
    path = Path("set/selection.json")
    body = json.loads(path.read_text())
    cli("privacy", "budget", "l.jsonl", *PRIVATE, "--epsilon", "1")
    path.write_text(with_digest(body | {"events": [budget(body["events"][0]), *body["events"]]}))
    message = f"{path}: {FORGED}"
    for ticket in ("set", "set@1"):
        assert refused("train", ticket, *PRIVATE, *TRAIN, "--ledger", "l.jsonl", "--out", "r") == message
    assert refused("tickets", "compact", "set@2", "--out", "made") == message
    assert json.loads(cli("tickets", "verify", "set", "--json").out)["problems"] == [message]


def test_a_budget_among_the_draws_of_a_set_is_refused(cli, draw, refused):
    draw(2)
    path = Path(compacted(cli), "tickets.json")
    document = json.loads(path.read_text())
    path.write_text(with_digest(document | {"draws": [*document["draws"], budget(document["draws"][0])]}))
    message = refused("train", "made@0", *PRIVATE, *TRAIN, "--out", "r")
    assert message.startswith(f"{path}: ")
    assert message.endswith(FORGED)
