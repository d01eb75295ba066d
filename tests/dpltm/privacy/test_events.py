"""Events of dp-accounting: there and back, at the price that its accountants ask."""

from __future__ import annotations

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpltm.errors import InputError
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.events import from_event, to_event
from dpltm.privacy.mechanisms import (
    AllocatedSgd,
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    NoisySgd,
    Selection,
    TruncatedSgd,
    Unprotected,
    Zcdp,
)
from refusals import refused

DELTA = 1e-5
SOME = (NoisySgd(0.01, 200, 1.0), NoisySgd(1.0, 3, 5.0), GaussianRelease(4.0, 2.0), LaplaceRelease(20.0, 2.0))


def test_their_accountants_ask_as_much():
    theirs = PLDAccountant(value_discretization_interval=1e-3).compose(to_event(SOME)).get_epsilon(DELTA)
    assert epsilon(SOME, DELTA) == pytest.approx(theirs, rel=2e-3)
    theirs = RdpAccountant().compose(to_event([Zcdp(0.1), *SOME])).get_epsilon(DELTA)
    assert epsilon([Zcdp(0.1), *SOME], DELTA, "rdp") == pytest.approx(theirs, rel=0.02)


def test_there_and_back():
    cut = TruncatedSgd(0.01, 200, 1.0, truncated_batch_size=40, most_records=1000)
    kept = (NoisySgd(0.01, 200, 1.0), NoisySgd(1.0, 3, 5.0), cut, LaplaceRelease(20.0), Zcdp(0.1), Unprotected())
    assert from_event(to_event(kept)) == kept
    nested = dp.SelfComposedDpEvent(dp.ComposedDpEvent([dp.GaussianDpEvent(2.0), dp.ZCDpEvent(0.25)]), 4)
    assert from_event(dp.ComposedDpEvent([dp.NoOpDpEvent(), nested])) == (NoisySgd(1.0, 4, 2.0), Zcdp(1.0))


@pytest.mark.parametrize(
    "mechanism",
    [
        AllocatedSgd(0.25, 8, 1.0, participations=2),
        Selection(0.5, 0.5),
        Guarantee(1.0),
        GaussianRelease(1.0, adjacency="replace-one"),
    ],
)
def test_what_they_have_no_event_for_is_refused(mechanism):
    said = f"event: dp-accounting has none for a {type(mechanism).__name__} under {mechanism.adjacency}"
    assert refused(to_event, [mechanism]) == said


@pytest.mark.parametrize(
    "event",
    [
        dp.UnsupportedDpEvent(),
        dp.ZCDpEvent(0.1, 0.1),
        dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(1.0)),
        dp.PoissonSampledDpEvent(0.1, dp.LaplaceDpEvent(1.0)),
        dp.SelfComposedDpEvent(dp.LaplaceDpEvent(1.0), 10**9),
        dp.SelfComposedDpEvent(dp.LaplaceDpEvent(1.0), -3),
        dp.SelfComposedDpEvent(dp.LaplaceDpEvent(1.0), 2.5),
    ],
)
def test_events_without_a_mechanism_are_refused(event):
    with pytest.raises(InputError, match="has no mechanism here; state its"):
        from_event(event)
