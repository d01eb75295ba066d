"""Sets and winners from memory to a folder and back: what goes along, and what is spent on them next."""

from __future__ import annotations

import json

import numpy as np
import pytest

import dpltm
import dpltm.tickets
from dpltm.errors import ArtifactError, InputError
from dpltm.privacy.events import SelectionEvent
from dpltm.ticket_set import TicketSet, Winner
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.ticket_set import private_path

TINY = {"model": "mlp:8", "rounds": 2, "iterations": 5, "batch_size": 32}
DRAW = {"eps1": 0.5, "score": "additive"}


def arrays(seed: int, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (count, 6), dtype=np.uint8), np.arange(count) % 3


@pytest.fixture
def tickets() -> TicketSet:
    return dpltm.generate(*arrays(1), provenance="public", **TINY)


def test_a_set(tickets, tmp_path):
    saved = dpltm.tickets.save(tickets, tmp_path / "set")
    read = dpltm.tickets.load(tmp_path / "set")
    assert isinstance(read, TicketSet)
    assert read.id == saved.id == tickets.id
    assert [event.ticket_set for event in read.ledger.events] == [tickets.id]
    assert read.path == saved.path == tmp_path / "set"


def test_what_is_spent_next_is_entered_in_the_folder(tickets, tmp_path):
    dpltm.tickets.save(tickets, tmp_path / "set")
    winner = dpltm.select(dpltm.tickets.load(tmp_path / "set"), *arrays(0), **DRAW)
    assert open_ledger(tmp_path / "set/ledger.jsonl").events[-1] == winner.events[0]


def test_accuracies_on_private_records_lie_beside_the_folder(tmp_path):
    made = dpltm.generate(*arrays(0), provenance="private", **TINY)
    dpltm.tickets.save(made, tmp_path / "set")
    assert all(row["accuracy"] is None for row in json.loads((tmp_path / "set/tickets.json").read_text())["tickets"])
    stored = json.loads(private_path(tmp_path / "set").read_text())["accuracy"]
    assert list(stored.values()) == [ticket.accuracy for ticket in made.body.tickets]
    read = dpltm.tickets.load(tmp_path / "set")
    assert [ticket.accuracy for ticket in read.body.tickets] == [None] * 3


def test_a_winner_with_its_set(tickets, tmp_path):
    winner = dpltm.select(tickets, *arrays(0), **DRAW)
    saved = dpltm.tickets.save(winner, tmp_path / "set")
    read = dpltm.tickets.load(tmp_path / "set")
    assert isinstance(read, Winner)
    assert read.round == saved.round == winner.round
    assert [event.time for event in read.behind(read.round)] == [event.time for event in winner.events]
    assert read.tickets.id == tickets.id
    assert [type(event) is SelectionEvent for event in read.tickets.ledger.events] == [False, True]


def test_draws_before_the_last_are_kept(tickets, tmp_path):
    first = dpltm.select(tickets, *arrays(0), **DRAW)
    dpltm.tickets.save(first, tmp_path / "set")
    second = dpltm.select(dpltm.tickets.load(tmp_path / "set"), *arrays(0), **DRAW)
    dpltm.tickets.save(second, tmp_path / "set")  # where its set lies
    read = dpltm.tickets.load(tmp_path / "set")
    times = [event.time for event in (*first.events, *second.events)]
    assert [event.time for event in read.behind(read.round)] == times


def test_a_winner_does_not_replace_one_that_it_does_not_know(tickets, tmp_path):
    saved = dpltm.tickets.save(tickets, tmp_path / "set")
    one, other = (dpltm.select(saved, *arrays(0), **DRAW) for _ in range(2))
    dpltm.tickets.save(one, tmp_path / "set")
    with pytest.raises(ArtifactError, match="another draw is on record there"):
        dpltm.tickets.save(other, tmp_path / "set")
    assert dpltm.tickets.load(tmp_path / "set").events[0].time == one.events[0].time


def test_a_winner_by_the_rule_for_public_accuracies(tickets, tmp_path):
    winner = dpltm.select(tickets, rule="smallest-within", tolerance=1, max_density=1)
    dpltm.tickets.save(winner, tmp_path / "set")
    read = dpltm.tickets.load(tmp_path / "set")
    assert (read.round, read.events) == (2, ())


def test_a_bundled_set_has_no_ledger_of_its_own():
    read = dpltm.tickets.load("bundled:digits-mlp")
    assert (read.label, read.ledger) == ("bundled:digits-mlp", None)


def test_a_folder_that_is_there_is_not_written_over(tickets, tmp_path):
    dpltm.tickets.save(tickets, tmp_path / "set")
    with pytest.raises(ArtifactError, match="exists"):
        dpltm.tickets.save(tickets, tmp_path / "set")
    with pytest.raises(ArtifactError, match="no ticket set there"):
        dpltm.tickets.load(tmp_path / "none")


def test_a_winner_without_its_set(tmp_path):
    with pytest.raises(InputError, match="`value`: a winner without its set"):
        dpltm.tickets.save(Winner(1, ()), tmp_path / "set")
    with pytest.raises(AttributeError, match="has no attribute 'store_all'"):
        dpltm.tickets.store_all  # noqa: B018
