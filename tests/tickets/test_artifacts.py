"""Sets and winners from memory to a folder and back: what goes along, and what is spent on them next."""

from __future__ import annotations

import numpy as np
import pytest

import dpltm.tickets
from dpltm.errors import ArtifactError, InputError
from dpltm.features.inputs import Services
from dpltm.options.generate import GenerateOptions
from dpltm.options.select import SelectOptions
from dpltm.privacy.entry import Lineage
from dpltm.privacy.ledger import Ledger
from dpltm.pruning.ticket_set import TicketSet, Winner
from dpltm.records import Dataset, from_arrays
from dpltm.verbs import generate as generating
from dpltm.verbs import select as selecting
from set_entries import DRAWN

QUIET = Services()


def records(seed: int) -> Dataset:
    draw = np.random.default_rng(seed)
    return from_arrays(draw.integers(0, 256, (200, 6), dtype=np.uint8), np.arange(200) % 3, classes=3)


def draw(tickets: TicketSet) -> Winner:
    asked = SelectOptions(eps1=0.5, score="additive")
    return selecting.select(selecting.plan(tickets, records(0), asked, Ledger(), QUIET), QUIET)


@pytest.fixture
def tickets() -> TicketSet:
    options = GenerateOptions(model="mlp:8", rounds=2, iterations=5, batch_size=32, provenance="public")
    return generating.generate(generating.plan(records(1), options, Ledger(), QUIET), QUIET)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "set"


def test_a_set_and_a_draw_from_it(tickets, path):
    """Which is marked in its folder before anything else is written there."""
    saved, read = dpltm.tickets.save(tickets, path), dpltm.tickets.load(path)
    assert isinstance(read, TicketSet)
    assert (read.id, read.lineage) == (saved.id, tickets.lineage)
    assert read.path == saved.path == path
    winner = draw(read)
    again = dpltm.tickets.load(path)
    assert isinstance(again, TicketSet), "who won is not on record there, and that a draw was made is"
    assert again.lineage == winner.lineage
    assert winner.lineage != tickets.lineage


def test_a_draw_from_a_set_that_comes_with_dpltm_is_marked_in_memory():
    """Others' files are not written."""
    bundled = dpltm.tickets.load("bundled:digits-mlp")
    before = bundled.lineage
    bundled.mark(Lineage((DRAWN,)))
    assert bundled.lineage.entries == (*before.entries, DRAWN)
    assert dpltm.tickets.load("bundled:digits-mlp").lineage == before


def test_a_winner_with_its_set_and_all_draws(tickets, path):
    first = draw(tickets)
    saved, read = dpltm.tickets.save(first, path), dpltm.tickets.load(path)
    assert isinstance(read, Winner)
    assert (read.round, read.lineage, read.facts) == (first.round, first.lineage, first.facts)
    assert saved.round == read.round
    assert read.tickets.id == tickets.id
    assert read.tickets.lineage == first.lineage
    second = draw(read.tickets)
    dpltm.tickets.save(second, path)  # where its set lies
    read = dpltm.tickets.load(path)
    assert set(read.lineage.paid) == {*first.lineage.paid, *second.lineage.paid}
    assert len(read.lineage.paid) == 2


def test_what_cannot_be_saved_or_loaded(tickets, path):
    dpltm.tickets.save(tickets, path)
    with pytest.raises(ArtifactError, match="exists"):
        dpltm.tickets.save(tickets, path)
    with pytest.raises(InputError, match="`value`: a winner without its set"):
        dpltm.tickets.save(Winner(1, Lineage()), path)
    with pytest.raises(InputError, match="`value`"):
        dpltm.tickets.save(5, path)
