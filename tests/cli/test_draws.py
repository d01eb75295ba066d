"""Draws of winners count with everything that is made of their set: compacted, transferred, exported and imported."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dpltm.networks.masks import Mask
from dpltm.privacy.entry import Entry
from dpltm.privacy.mechanisms import Selection, Unprotected
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.ticket_set import load_ticket_set, save_ticket_set

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
TRAIN = ("--steps", "2", "--noise-multiplier", "100", "--json")  # next to nothing beside a draw
EPS1, BOTH = 0.5, 0.95  # two bounded-range draws compose to less than their sum


@pytest.fixture
def victim(cwd):
    """``set``, a public one of three rounds, each but the dense one with hidden units to be compacted away."""
    del cwd
    whole = load_ticket_set(Path("pub"))
    dense, _, last = whole.body.tickets
    mask = dict(last.mask.items())
    mask["fc2.weight"][:, [1, 4, 6]] = False
    changed = Mask(mask)
    predictor = {key: value * changed[key] for key, value in last.predictor.items()}
    last = replace(last, mask=changed, predictor=predictor)
    body = replace(whole.body, tickets=(dense, replace(last, round=1), last))
    return save_ticket_set(Path("set"), replace(whole, body=body, name="set"))


@pytest.fixture
def draw(cli, victim, monkeypatch):
    """Draws a given winner from private records, into a ledger of its own."""
    del victim
    count = iter(range(100))

    def call(winner: int, *more: str) -> None:
        monkeypatch.setattr("dpltm.verbs.select.draw", lambda *arguments: winner - 1)  # noqa: ARG005
        ledger = f"draw-{next(count)}.jsonl"
        body = cli("select", "set", *PRIVATE, "--eps1", str(EPS1), "--ledger", ledger, *more, "--json").json
        assert body["winner"]["round"] == winner

    return call


@pytest.fixture
def pays(cli):
    """Trains with a ledger of its own, which holds the training alone; returns what is certified."""
    count = iter(range(100))

    def call(*ticket: str) -> float:
        number = next(count)
        ledger = f"pays-{number}.jsonl"
        body = cli("train", *ticket, *PRIVATE, *TRAIN, "--ledger", ledger, "--out", f"run-{number}").json
        assert len(open_ledger(ledger).entries) == 1
        return body["privacy"]["certified"]["epsilon"]

    return call


def draws(folder: str) -> list[Entry]:
    """Those that a set carries."""
    return [entry for entry in load_ticket_set(Path(folder)).lineage.entries if entry.of(Selection)]


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
def test_whatever_is_made_of_a_set_carries_its_draws(cli, draw, pays, way):
    draw(2)
    name = WAYS[way](cli)
    assert draws(name) == draws("set")
    assert len(draws(name)) == 1
    assert not Path(name, "winner.json").exists()
    assert cli("tickets", "verify", name, "--json").json["ok"]
    assert pays(f"{name}@0") >= EPS1 - 0.01


@pytest.mark.parametrize("ticket", [("set",), ("set@0",), ("set@1",), ("set", "--dense")])
def test_every_round_pays_for_the_draws_from_its_set(draw, pays, ticket):
    """Whoever takes another round than the one that won may do so because of that."""
    before = pays("set@1")
    assert before < 0.1
    draw(2)
    assert pays(*ticket) >= EPS1 - 0.01
    draw(1)
    assert pays(*ticket) > BOTH


def test_an_unprotected_look_goes_along(cli, draw, pays):
    draw(2, "--reveal")
    assert pays(f"{compacted(cli)}@0") == "inf"
    assert [bool(entry.of(Unprotected)) for entry in load_ticket_set(Path("set")).lineage.paid] == [False, True]


def test_a_draw_counts_once(cli, draw):
    """Trained twice, and in the ledger that holds the draw itself."""
    draw(2)
    compacted(cli)
    for number, ticket in enumerate(("made@0", "made@1", "set@2")):
        body = cli("train", ticket, *PRIVATE, *TRAIN, "--ledger", "draw-0.jsonl", "--out", f"r{number}").json
    assert len(open_ledger("draw-0.jsonl").entries) == 4
    assert EPS1 - 0.01 <= body["privacy"]["certified"]["epsilon"] < BOTH


def test_a_draw_from_what_is_made_of_a_winner_counts_with_the_first(cli, draw):
    draw(2)
    whole(cli)  # of the same shape: predictors stay
    options = ("select", "made", *PRIVATE, "--eps1", "0.2", "--ledger", "l.jsonl", "--json")
    planned = cli(*options, "--dry-run").json["privacy"]["certified"]["epsilon"]
    assert (Path("l.jsonl").exists(), len(draws("made"))) == (False, 1)
    body = cli(*options).json
    assert planned == body["privacy"]["certified"]["epsilon"] > EPS1 + 0.15
    assert [entry.of(Selection)[0].eps1 for entry in draws("made")] == [EPS1, 0.2]
    assert len(open_ledger("l.jsonl").entries) == len(draws("set")) == 1


@pytest.mark.usefixtures("victim")
def test_a_kill_before_the_winner_is_on_record_leaves_the_set_marked(cli, pays, monkeypatch):
    """Whoever saw the answer, or guessed it, pays."""

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpltm.tickets.workbench.select.save_winner", killed)
        done = cli("select", "set", *PRIVATE, "--eps1", str(EPS1), "--ledger", "l.jsonl")
    assert (done.code, done.out) == (130, "")
    assert not Path("set/winner.json").exists()
    assert len(draws("set")) == 1
    assert pays("set@1") >= EPS1 - 0.01


@pytest.mark.parametrize("command", ["compact", "transfer"])
def test_a_kill_right_after_the_set_appears_loses_no_draw(cli, draw, monkeypatch, command):
    """Nothing is written after the set itself that it would need."""
    draw(2)
    found, rename = [], os.rename

    def killed(one, other, *rest, **more):
        rename(one, other, *rest, **more)
        if Path(other).name == "made":
            found.append({path.name: path.read_bytes() for path in Path("made").iterdir()})
            raise KeyboardInterrupt

    records = PRIVATE if command == "transfer" else ()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        assert cli("tickets", command, "set@2", *records, "--out", "made").code == 130
    (files,) = found
    shutil.rmtree("made", ignore_errors=True)  # as it was at the moment of the kill
    Path("made").mkdir()
    for name, data in files.items():
        Path("made", name).write_bytes(data)
    assert draws("made") == draws("set")


# --- records of a draw that are damaged ---


def edited(path: Path) -> None:
    path.write_text(path.read_text().replace('"round": 2', '"round": 1'))


def dangling(path: Path) -> None:
    """A record that is there, and cannot be read, is not none."""
    path.unlink()
    path.symlink_to("/nowhere/at/all")


@pytest.mark.parametrize("damage", [edited, dangling])
@pytest.mark.parametrize("name", ["winner.json", "lineage.json"])
def test_a_damaged_record_of_a_draw_is_refused_and_nothing_written(cli, draw, refused, damage, name):
    draw(2)
    if (name, damage) == ("lineage.json", edited):
        Path("set/lineage.json").write_text(Path("set/lineage.json").read_text().replace('"eps1": 0.5', '"eps1": 0.1'))
    else:
        damage(Path("set", name))
    assert refused("select", "set", *PRIVATE, "--eps1", "0.1").startswith(f"set/{name}: ")
    assert refused("train", "set", *PRIVATE, *TRAIN, "--out", "r").startswith(f"set/{name}: ")
    done = cli("tickets", "verify", "set", "--json")
    assert (done.code, json.loads(done.out)["ok"]) == (1, False)
