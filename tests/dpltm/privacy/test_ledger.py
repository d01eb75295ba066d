"""The ledger: what is on record stays, what is not on disk does not count, and both figures come from the events."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.errors import InputError
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.events import DatasetRef, NonPrivateEvent, ProvenanceEvent, SelectionEvent, TrainingEvent
from dpltm.privacy.ledger import SEARCH_NOTE, Certified, Ledger, Nominal, PrivacyReport, report

DATA = DatasetRef("mnist", "f1", "k1", 0, 60000)
DELTA = 1e-5
TRAINING = TrainingEvent(DATA, "t", "add-remove", "record", 256 / 60000, 3515, 1.1, 1.0, None, "clip 1", 10)
SELECTION = SelectionEvent(
    DATA, "t", "add-remove", "record", "exponential", "product", 0.5, "exact", 0.005, 0.5, 15, "s"
)
PRIVATE = ProvenanceEvent(DATA, "t", "add-remove", "record", "private", "s")
DATA_FREE = replace(PRIVATE, provenance="data-free")
REVEALED = NonPrivateEvent(DATA, "t", "add-remove", "record", "every ticket's score")


# Entering.


def test_events_are_persisted_before_they_count():
    seen = []

    def persist(event):
        seen.append((event, ledger.events))

    ledger = Ledger([DATA_FREE], persist)
    ledger.append(SELECTION)
    ledger.append(TRAINING)
    assert seen == [(SELECTION, (DATA_FREE,)), (TRAINING, (DATA_FREE, SELECTION))]
    assert ledger.events == (DATA_FREE, SELECTION, TRAINING)


def test_an_event_that_cannot_be_persisted_is_not_entered():
    def persist(event):
        if event == SELECTION:
            raise OSError("disk full")

    ledger = Ledger(persist=persist)
    ledger.append(DATA_FREE)
    with pytest.raises(OSError, match="disk full"):
        ledger.append(SELECTION)
    assert ledger.events == (DATA_FREE,)
    ledger.append(TRAINING)
    assert ledger.events == (DATA_FREE, TRAINING)


@given(st.lists(st.sampled_from([TRAINING, SELECTION, PRIVATE, REVEALED])))
def test_append_only(events):
    """Every earlier view is a prefix of every later one, and repeated events count every time."""
    ledger = Ledger()
    views = [ledger.events]
    for event in events:
        ledger.append(event)
        views.append(ledger.events)
    assert views == [tuple(events[:n]) for n in range(len(events) + 1)]


def test_what_was_on_record_is_copied_and_not_persisted_again():
    start, written = [TRAINING], []
    ledger = Ledger(start, written.append)
    start.clear()
    ledger.append(SELECTION)
    assert ledger.events == (TRAINING, SELECTION)
    assert written == [SELECTION]


def test_nothing_can_be_removed():
    """The view is a tuple: there is no road to the list behind it but ``append``."""
    assert isinstance(Ledger([TRAINING]).events, tuple)
    assert isinstance(Ledger([TRAINING]).touching(DATA), tuple)
    with pytest.raises(AttributeError):
        Ledger([TRAINING]).events = ()


def test_datasets_are_kept_apart():
    """Other data, and a disjoint split of the same data, cost these records nothing; a foreign key might be them."""
    first, second = replace(DATA, stop=30000), replace(DATA, start=30000)
    other, foreign = replace(DATA, fingerprint="f2"), replace(DATA, fingerprint="x", key_id="k2")
    places = [first, second, other, foreign, DATA]
    events = [replace(TRAINING, dataset=ref) for ref in places]
    ledger = Ledger(events)
    assert ledger.touching(first) == (events[0], events[3], events[4])
    assert ledger.touching(second) == (events[1], events[3], events[4])
    assert ledger.touching(other) == (events[2], events[3])
    assert ledger.touching(foreign) == tuple(events)
    assert ledger.touching(DATA) == (events[0], events[1], events[3], events[4])


# Both figures.


def test_golden_report():
    """PRIVACY.md section 5: the three phases cost 1.596 certified; DPLTM's Theorem 3 adds up to 1.634."""
    found = report([DATA_FREE, SELECTION, TRAINING], DELTA, "add-remove")
    assert found.certified.epsilon == pytest.approx(1.596, abs=5e-4)
    assert found.nominal.epsilon == pytest.approx(1.634, abs=5e-4)
    assert found.nominal == Nominal(found.nominal.epsilon, DELTA, "DPLTM Theorem 3")
    assert replace(found.certified, epsilon=0) == Certified(0, DELTA, "pld", "add-remove", "record", "poisson")
    assert found.notes == (SEARCH_NOTE,)


def test_theorem_3_adds_every_draw():
    events = [SELECTION, replace(SELECTION, eps1=0.2, certified_epsilon=0.2), TRAINING]
    assert report(events, DELTA, "add-remove").nominal.epsilon == pytest.approx(
        0.7 + epsilon([TRAINING], DELTA), rel=1e-12
    )


def test_private_tickets_are_infinite_with_the_nominal_beside():
    """PRIVACY.md section 2: the paper as printed shows certified inf and nominal eps1 + eps2."""
    found = report([PRIVATE, SELECTION, TRAINING], DELTA, "add-remove")
    assert found.certified.epsilon == math.inf
    assert found.nominal.epsilon == pytest.approx(1.634, abs=5e-4)
    assert found.nominal.source == "DPLTM Theorem 3"
    assert found.notes == (
        "the tickets were made from mnist[0:60000] with no mechanism (provenance private): their masks may reveal the"
        " records, their predictors even more, so nothing is certified",
        SEARCH_NOTE,
    )


def test_private_tickets_alone():
    found = report([PRIVATE], DELTA, "add-remove")
    assert (found.certified.epsilon, found.nominal.epsilon) == (math.inf, 0)
    assert SEARCH_NOTE not in found.notes


def test_golden_tanh_claim():
    """PRIVACY.md section 4: a bound of 1 is claimed where sqrt(26010) is true.

    One step truly costs about 11,156, while 60 epochs (14062 steps) are claimed to cost 2.38. The certified figure of
    all 60 epochs takes a while to compute; a private ticket beside them settles it.
    """
    bound = math.sqrt(26010)
    whole = replace(
        TRAINING,
        steps=14062,
        noise_multiplier=1.1 / bound,
        sensitivity=bound,
        nominal_sensitivity=1.0,
        filter="tanh",
        live=26010,
    )
    step = report([replace(whole, sampling_rate=0.00427, steps=1)], DELTA, "add-remove")
    assert step.certified.epsilon == pytest.approx(11156, abs=3)
    assert step.nominal.source == "tanh paper's sensitivity"
    found = report([PRIVATE, whole], DELTA, "add-remove")
    assert found.nominal.epsilon == pytest.approx(2.382, rel=1e-3)
    assert found.nominal.source == "DPLTM Theorem 3; tanh paper's sensitivity"


def test_both_claims_together():
    tanh = replace(TRAINING, noise_multiplier=0.55, sensitivity=2.0, nominal_sensitivity=1.0)
    found = report([SELECTION, tanh], DELTA, "add-remove")
    assert found.nominal.source == "DPLTM Theorem 3; tanh paper's sensitivity"
    assert found.nominal.epsilon == pytest.approx(1.634, abs=5e-4)  # deviation 1.1 over the claimed 1
    assert found.certified.epsilon > 5  # deviation 1.1 over the true 2


def test_no_claim_no_nominal_figure():
    """Clipping claims what is true; nothing nominal is shown beside it."""
    assert report([DATA_FREE, TRAINING], DELTA, "add-remove").nominal is None
    assert report([], DELTA, "add-remove").nominal is None


def test_nothing_on_record_costs_nothing():
    found = report([], DELTA, "replace-one", notes=["first release"])
    assert found == PrivacyReport(
        Certified(0.0, DELTA, "pld", "replace-one", "record", "poisson"), None, ("first release",)
    )


def test_events_are_read_once():
    found = report(iter([SELECTION, TRAINING]), DELTA, "add-remove")
    assert found == report([SELECTION, TRAINING], DELTA, "add-remove")


# Notes.


def test_revealed_scores():
    found = report([REVEALED], DELTA, "add-remove")
    assert found.certified.epsilon == math.inf
    assert found.notes == ("released without protection from mnist[0:60000]: every ticket's score",)


def test_training_without_noise():
    found = report([replace(TRAINING, noise_multiplier=0.0)], DELTA, "add-remove")
    assert found.certified.epsilon == math.inf
    assert found.notes == ("training at noise multiplier 0: nothing is certified", SEARCH_NOTE)


def test_a_draw_below_the_true_sensitivity():
    event = replace(SELECTION, eps1=0.1, sensitivity_rule="paper", sensitivity=0.25, certified_epsilon=0.4)
    found = report([event], DELTA, "add-remove")
    assert found.certified.epsilon == pytest.approx(0.4, abs=1e-3)
    assert found.nominal.epsilon == pytest.approx(0.1)
    assert found.notes == (
        "the paper sensitivity 0.25 is below the true one: the selection at eps1 0.1 is certified as 0.4",
        SEARCH_NOTE,
    )


def test_notes_of_the_caller_come_after_the_events_and_repeats_are_dropped():
    found = report([REVEALED, REVEALED, SELECTION], DELTA, "add-remove", notes=["mine", SEARCH_NOTE, "mine"])
    assert found.notes == (
        "released without protection from mnist[0:60000]: every ticket's score",
        "mine",
        SEARCH_NOTE,
    )


# JSON.


def test_json_of_an_infinite_figure():
    body = report([PRIVATE, SELECTION, replace(TRAINING, noise_multiplier=0.0)], DELTA, "add-remove").to_json()
    assert json.loads(json.dumps(body, allow_nan=False)) == body
    assert body["certified"] == {
        "epsilon": "inf",
        "delta": DELTA,
        "accountant": "pld",
        "adjacency": "add-remove",
        "unit": "record",
        "sampling": "poisson",
    }
    assert body["nominal"] == {"epsilon": "inf", "delta": DELTA, "source": "DPLTM Theorem 3"}
    assert len(body["notes"]) == 3


def test_json_without_a_nominal_figure():
    body = report([replace(TRAINING, steps=10)], DELTA, "add-remove").to_json()
    assert body["nominal"] is None
    assert body["certified"]["epsilon"] == epsilon([replace(TRAINING, steps=10)], DELTA)


# Bad inputs.


@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_bad_delta(delta):
    with pytest.raises(InputError) as caught:
        report([], delta, "add-remove")
    assert str(caught.value) == f"delta: {delta} is not between 0 and 1"


@pytest.mark.parametrize(("events_for", "asked"), [("add-remove", "replace-one"), ("replace-one", "add-remove")])
def test_the_printed_relation_is_the_one_of_the_events(events_for, asked):
    """The epsilon belongs to the events' relation: printing the other one beside it is a false guarantee."""
    events = [replace(TRAINING, steps=10, adjacency=events_for)]
    assert report(events, DELTA, asked).certified.adjacency == events_for
