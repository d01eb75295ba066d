"""Sets and winners from memory to a folder and back: what goes along, and what is spent on them next."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import dpltm
import dpltm.tickets
from dpltm.errors import ArtifactError, InputError
from dpltm.privacy.events import SelectionEvent
from dpltm.pruning.ticket_set import TicketSet, Winner
from dpltm.records import from_arrays, load
from dpltm.records.registry import RecordRegistry
from dpltm.tickets.ledger_file import open_ledger

TINY = {"model": "mlp:8", "rounds": 2, "iterations": 5, "batch_size": 32}


def arrays(seed: int) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(seed).integers(0, 256, (200, 6), dtype=np.uint8), np.arange(200) % 3


def draw(tickets: TicketSet) -> Winner:
    return dpltm.select(tickets, *arrays(0), eps1=0.5, score="additive")


@pytest.fixture
def tickets() -> TicketSet:
    return dpltm.generate(*arrays(1), provenance="public", **TINY)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "set"


def test_a_set_and_what_is_spent_on_it_next(tickets, path):
    """In the ledger of its folder."""
    saved, read = dpltm.tickets.save(tickets, path), dpltm.tickets.load(path)
    assert isinstance(read, TicketSet)
    assert read.id == saved.id == tickets.id
    assert [event.ticket_set for event in read.ledger.events] == [tickets.id]
    assert read.path == saved.path == path
    spent = draw(read).events
    assert open_ledger(path / "ledger.jsonl").events[-1:] == spent
    assert dpltm.tickets.load("bundled:digits-mlp").ledger is None  # others' files are not written


@pytest.mark.parametrize(
    ("source", "private", "note"),
    [
        (
            from_arrays(*arrays(1)),
            from_arrays(*(values[:100] for values in arrays(1))),
            "nobody here has met those records",
        ),
        (
            load("digits", subset="0:600"),
            load("digits", subset="500:"),
            "whether the tickets come from records of digits",
        ),
    ],
)
def test_records_declared_public_in_memory_stay_public(path, tmp_path, monkeypatch, source, private, note):
    """For their user, in whatever process; of what is read elsewhere, a note says that nobody can tell."""
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "key"))
    dpltm.tickets.save(dpltm.generate(source, provenance="public", **TINY), path)
    spend = partial(dpltm.train, round=1, steps=2, noise_multiplier=9.0)
    with pytest.raises(InputError, match=r"declared public, and .* shares records with it"):
        spend(dpltm.tickets.load(path), private)
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "another"))
    assert note in " ".join(spend(dpltm.tickets.load(path), private).privacy.notes)


def test_a_saved_run_knows_its_records(tickets, path, monkeypatch):
    """In the process that made it; those of the draw behind it as well."""
    run = dpltm.train(draw(tickets), *arrays(2), noise_multiplier=9.0, steps=2)
    dpltm.tickets.save(run, path)
    read = dpltm.tickets.load(path)
    for seed, told in (
        (2, "among those that .* was trained on"),
        (0, "are records of records, which the ledger protects"),
    ):
        with pytest.raises(InputError, match=told):
            dpltm.evaluate(read, *arrays(seed))
    for each in (read, run):
        (note,) = dpltm.evaluate(each, *arrays(3)).notes
        assert note.startswith("nobody gave the bounds of the records that ")
    monkeypatch.setattr("dpltm.records.registry.SESSION", RecordRegistry())  # as in another process
    notes = dpltm.evaluate(read, *arrays(2)).notes
    assert any(note.startswith("whether these records were trained on cannot be checked") for note in notes)


def test_a_winner_with_its_set_and_all_draws(tickets, path):
    first = draw(tickets)
    saved, read = dpltm.tickets.save(first, path), dpltm.tickets.load(path)
    assert isinstance(read, Winner)
    assert read.round == saved.round == first.round
    assert read.tickets.id == tickets.id
    assert [type(event) is SelectionEvent for event in read.tickets.ledger.events] == [False, True]
    second = draw(read)
    dpltm.tickets.save(second, path)  # where its set lies
    read = dpltm.tickets.load(path)
    times = [event.time for event in (*first.events, *second.events)]
    assert [event.time for event in read.behind(read.round)] == times


def test_a_winner_does_not_replace_one_that_it_does_not_know(tickets, path):
    saved = dpltm.tickets.save(tickets, path)
    one, other = draw(saved), draw(saved)
    dpltm.tickets.save(one, path)
    with pytest.raises(ArtifactError, match="another draw is on record there"):
        dpltm.tickets.save(other, path)
    assert dpltm.tickets.load(path).events[0].time == one.events[0].time


def test_what_cannot_be_saved_or_loaded(tickets, path):
    dpltm.tickets.save(tickets, path)
    with pytest.raises(ArtifactError, match="exists"):
        dpltm.tickets.save(tickets, path)
    with pytest.raises(InputError, match="`value`: a winner without its set"):
        dpltm.tickets.save(Winner(1, ()), path)
