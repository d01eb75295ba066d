"""What a ledger does not hold yet: a release is missing as often as it was made and not entered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpltm.privacy.events import DatasetRef, GuaranteeEvent, ProvenanceEvent, SelectionEvent, TrainingEvent
from dpltm.privacy.lineage import draws_to_enter, to_enter
from dpltm.privacy.mechanisms import Guarantee, NoisySgd, Selection
from entries import having

DATA = DatasetRef("digits", "f", "k", 0, 100, "places")
COUNT = GuaranteeEvent(DATA, Guarantee(0.5), "a count", time="t")
TRAINING = TrainingEvent(DATA, NoisySgd(0.1, 50, 1.0), "clip(C=1)", 10, time="t")
TOLD = ProvenanceEvent(DATA, "dp", "s", time="t")
FIRST = SelectionEvent(DATA, Selection(0.5, 0.5, adaptive=False), "product", "exact", 0.1, 3, "s", time="t")
LATER = having(FIRST, adaptive=True)


@pytest.mark.parametrize("held", range(12))
def test_as_many_of_equal_releases_are_missing_as_the_ledger_lacks(held):
    """Ten looks of one old run are ten equal events."""
    events = (*[COUNT] * 10, TRAINING)
    assert to_enter(events, (COUNT,) * held) == (*[COUNT] * max(0, 10 - held), TRAINING)
    assert to_enter(events, (*[COUNT] * held, TRAINING)) == (COUNT,) * max(0, 10 - held)


def test_where_tickets_come_from_is_said_once_whenever_it_was():
    assert to_enter((COUNT, TOLD), (replace(TOLD, time="earlier"),)) == (COUNT,)
    assert to_enter((COUNT, TOLD), (replace(TOLD, ticket_set="other"),)) == (COUNT, TOLD)


def test_equal_draws_are_as_many_draws():
    assert draws_to_enter((LATER, LATER), (LATER,)) == (LATER,)
    assert draws_to_enter((LATER, LATER), ()) == (LATER, LATER)


@pytest.mark.parametrize("held", [FIRST, LATER])
def test_a_draw_is_known_whether_it_was_entered_as_the_first_or_not(held):
    assert draws_to_enter((FIRST,), (TRAINING, held)) == ()
    assert draws_to_enter((FIRST, FIRST), (TRAINING, held)) == (LATER,)


def test_a_draw_comes_first_only_where_nothing_was_released_before():
    assert draws_to_enter((FIRST,), (TOLD,)) == (FIRST,)
    assert draws_to_enter((FIRST,), (TRAINING,)) == (LATER,)
    assert draws_to_enter((FIRST, replace(FIRST, time="u")), ()) == (FIRST, replace(LATER, time="u"))
