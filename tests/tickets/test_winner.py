"""The winner beside a set: what is drawn is read back, and no changed field passes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dpltm.privacy.entry import Lineage, to_json
from dpltm.tickets.ticket_set import last_winner, load_ticket_set, load_winner, save_winner
from dpltm.training.artifacts import Winner
from refusals import told
from set_entries import DRAWN, SAID

OTHER = "does not belong to this ticket set; run dpltm select s again"
FACTS = {"eps1": 0.1, "mechanism": "exponential"}


@pytest.fixture
def drawn(tmp_path, save, monkeypatch):
    """A set named s in the working folder, round 2 of which won."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "s")
    tickets = load_ticket_set(Path("s"))
    save_winner(Path("s"), Winner(2, Lineage((SAID, DRAWN)), tickets, FACTS))
    return tickets


@pytest.fixture
def edit(drawn, raw):
    """Changes keys of winner.json, and makes its digest right if it is ``signed``."""
    return lambda **changes: raw.edit(drawn.path / "winner.json", **changes)


def refused(tickets):
    message = told(load_winner, tickets)
    assert message.startswith("s/winner.json: ")
    assert told(last_winner, tickets) == message
    return message.removeprefix("s/winner.json: ")


def test_round_trip(drawn, raw):
    found = load_winner(drawn)
    assert (found.round, found.lineage, found.facts) == (2, Lineage((SAID, DRAWN)), FACTS)
    assert found.tickets is drawn
    body = json.loads((drawn.path / "winner.json").read_text())
    assert set(body) == {"format", "schema", "ticket_set", "round", "facts", "lineage", "day", "digest"}
    assert (body["format"], body["schema"], body["ticket_set"]) == ("dpltm-winner", 1, drawn.id)
    assert body["digest"] == raw.digest(body)


def test_nothing_drawn_yet(drawn):
    (drawn.path / "winner.json").unlink()
    assert told(load_winner, drawn) == "s: no winner was drawn yet; run dpltm select s, or name a round as s@ROUND"
    assert last_winner(drawn) is None


def test_later_draws_from_the_set_go_with_the_winner(drawn):
    """They were seen when it was taken."""
    later = Lineage((replace(DRAWN, id="f" * 64),))
    drawn.mark(later)
    assert load_winner(drawn).lineage == Lineage((SAID, DRAWN)) | later


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ticket_set": "0" * 64}, OTHER),
        *(({"round": value}, OTHER) for value in (True, "2", None)),
        *(({"round": value}, f"s@{value}: no such round; it has rounds 0 to 3") for value in (4, -1)),
        ({"facts": None}, OTHER),
        ({"lineage": [5]}, "lineage: unknown or missing field 'all of it'"),
        ({"lineage": {"entries": [to_json(SAID)] * 2, "heads": []}}, "lineage: lineage: the same id twice"),
    ],
)
def test_with_the_digest_made_right(drawn, edit, change, message):
    edit(**change)
    assert refused(drawn) == message
