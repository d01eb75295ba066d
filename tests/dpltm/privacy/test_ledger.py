"""The ledger: what is on record stays, what is not on disk does not count, and both figures come from the events."""

import copy
import json
import math
import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dpltm.errors import ArtifactError, BudgetError, InputError
from dpltm.privacy.events import (
    UNKNOWN,
    BudgetEvent,
    DatasetRef,
    GaussianEvent,
    GuaranteeEvent,
    LaplaceEvent,
    NonPrivateEvent,
    ProvenanceEvent,
    RandomizedResponseEvent,
    SelectionEvent,
    TrainingEvent,
)
from dpltm.privacy.ledger import Ledger, budgets_in, check_budgets, merge, missing
from dpltm.privacy.mechanisms import (
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    NoisySgd,
    RandomizedResponse,
    Selection,
    Unprotected,
)
from dpltm.privacy.parts import total_epsilon
from dpltm.privacy.report import (
    SEARCH_NOTE,
    Certified,
    Nominal,
    PrivacyReport,
    compare_central_limit,
    if_overlapping,
    overlap_note,
    report,
)
from entries import having

DATA = DatasetRef("mnist", "f1", "k1", 0, 60000, "places")
DELTA = 1e-5
TRAINING = TrainingEvent(DATA, NoisySgd(256 / 60000, 3515, 1.1), "clip 1", 10, time="t")
SELECTION = SelectionEvent(DATA, Selection(0.5, 0.5), "product", "exact", 0.005, 15, "s", time="t")
PRIVATE = ProvenanceEvent(DATA, "private", "s", time="t")
DATA_FREE = replace(PRIVATE, provenance="data-free")
REVEALED = NonPrivateEvent(DATA, Unprotected(), "every ticket's score", time="t")
FIRST = having(SELECTION, adaptive=False)
LAPLACE = LaplaceEvent(DATA, LaplaceRelease(2.0), "a mean", time="t")
GAUSSIAN = GaussianEvent(DATA, GaussianRelease(4.0), "a sum", time="t")
RANDOMIZED = RandomizedResponseEvent(DATA, RandomizedResponse(0.5, 10), "labels", time="t")
GUARANTEE = GuaranteeEvent(DATA, Guarantee(0.5, 1e-7), "a count", time="t")
BUDGET = BudgetEvent(DATA, 1.2, DELTA, time="2026-01-02T03:04:05Z")
PLACED = (
    "parts of mnist are cut by its places, which its published file fixes: the neighbour is that file with one place"
    " empty"
)
TWO_DRAWS = "earlier releases from these records are on record, so Expected adaptive=True"


def renamed(ref, **changes):
    """Another reference, of which nothing is known but what it says: ``replace`` alone would keep what was known."""
    return replace(ref, content=None, **changes)


def gdp_epsilon(mu, delta):
    """Epsilon of mu-GDP by the formula of docs/privacy-model.md section 5.3."""

    def excess(eps):
        return ndtr(-eps / mu + mu / 2) - math.exp(eps + log_ndtr(-eps / mu - mu / 2)) - delta

    return brentq(excess, 0.0, mu * mu + 20 * mu)


def pure(eps):
    """An epsilon-DP release and nothing else about it: it adds up exactly where it is all there is."""
    return having(GUARANTEE, epsilon=eps, delta=0.0)


# Entering.


def test_events_are_persisted_before_they_count():
    seen = []

    def persist(events):
        seen.append((*events, ledger.events))

    ledger = Ledger([DATA_FREE], persist)
    ledger.append(SELECTION)
    ledger.append(TRAINING)
    assert seen == [(SELECTION, (DATA_FREE,)), (TRAINING, (DATA_FREE, SELECTION))]
    assert ledger.events == (DATA_FREE, SELECTION, TRAINING)


def test_an_event_that_cannot_be_persisted_is_not_entered():
    def persist(events):
        if SELECTION in events:
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


def test_a_ledger_is_one_whoever_copies_it(monkeypatch):
    ledger = Ledger()
    for copied in (copy.copy(ledger), copy.deepcopy([ledger])[0]):
        copied.append(BUDGET)
        with pytest.raises(BudgetError, match=r"above the budget of 1\.2 set on"):
            ledger.append(having(TRAINING, steps=14062))
    with pytest.raises(InputError, match=r"^`ledger`: a Ledger cannot be pickled, since two of them would each spend"):
        pickle.dumps(ledger)
    on_disk = Ledger(persist=lambda _: None)
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a forked process
    with pytest.raises(InputError, match=r"^`ledger`: it was made in another process, which would not see what is"):
        ledger.append(TRAINING)
    Ledger(ledger.events[:0]).append(TRAINING)
    on_disk.append(TRAINING)


def test_what_was_on_record_is_copied_and_not_persisted_again():
    start, written = [TRAINING], []
    ledger = Ledger(start, written.extend)
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
    other, foreign = renamed(DATA, id="f2"), renamed(DATA, id="x", key_id="k2")
    places = [first, second, other, foreign, DATA]
    events = [replace(TRAINING, dataset=ref) for ref in places]
    ledger = Ledger(events)
    assert ledger.touching(first) == (events[0], events[3], events[4])
    assert ledger.touching(second) == (events[1], events[3], events[4])
    assert ledger.touching(other) == (events[2], events[3])
    assert ledger.touching(foreign) == tuple(events)
    assert ledger.touching(DATA) == (events[0], events[1], events[3], events[4])


# Several ledgers.


@pytest.mark.parametrize(
    ("ledgers", "merged"),
    [
        ([], []),
        ([[], []], []),
        ([[GUARANTEE, TRAINING]], [GUARANTEE, TRAINING]),
        ([[GUARANTEE], [TRAINING]], [GUARANTEE, TRAINING]),
        ([[GUARANTEE, TRAINING], [TRAINING, GUARANTEE]], [GUARANTEE, TRAINING]),  # one release each, told of twice
        ([[GUARANTEE] * 10, [GUARANTEE] * 10], [GUARANTEE] * 10),  # a file and its copy
        ([[GUARANTEE] * 3, [GUARANTEE] * 10, [GUARANTEE]], [GUARANTEE] * 10),
        ([[GUARANTEE], [replace(GUARANTEE, time="u")]], [GUARANTEE, replace(GUARANTEE, time="u")]),
        ([[FIRST], [FIRST]], [FIRST]),
        ([[FIRST], [TRAINING, SELECTION]], [SELECTION, TRAINING]),  # one draw, entered after a training elsewhere
        ([[SELECTION], [FIRST, FIRST]], [SELECTION, SELECTION]),
    ],
)
def test_ledgers_merge_by_the_largest_multiplicity(ledgers, merged):
    assert merge(ledgers) == tuple(merged)


@given(st.lists(st.lists(st.sampled_from([TRAINING, SELECTION, FIRST, GUARANTEE, PRIVATE]), max_size=6), max_size=4))
def test_together_ledgers_hold_what_each_holds_and_no_more(ledgers):
    """No ledger lacks anything in the merged one; without any one of its events, some ledger would be short of it."""
    merged = merge(ledgers)
    for ledger in ledgers:
        assert missing(ledger, merged) == ()
    for place in range(len(merged)):
        assert any(missing(ledger, (*merged[:place], *merged[place + 1 :])) for ledger in ledgers)


@given(*[st.lists(st.sampled_from([TRAINING, SELECTION, FIRST, GUARANTEE]), max_size=6)] * 2)
def test_what_is_missing_makes_a_ledger_whole(events, before):
    """Entered into the ledger it leaves nothing to enter; the ledger and what is missing is what both come to."""
    lacking = missing(events, before)
    assert missing(events, (*before, *lacking)) == ()
    assert len(merge([events, before])) == len(before) + len(lacking)


def test_two_runs_of_ten_equal_looks_are_twenty():
    """As older ledgers hold them; the truth of 20 counts at 0.1 each is 2, and one alone would be certified as 0.1."""
    looks = [replace(pure(0.1), time=time) for time in ("t", "u") for _ in range(10)]
    together = merge([looks[:10], looks, looks[10:]])
    assert together == tuple(looks)
    assert report(together, DELTA, "add-remove").certified.epsilon > 10 * total_epsilon([looks[0]], DELTA)


# Draws that come first.


@pytest.mark.parametrize(
    "earlier",
    [TRAINING, SELECTION, FIRST, LAPLACE, GAUSSIAN, RANDOMIZED, GUARANTEE],
    ids=lambda event: type(event).__name__,
)
def test_a_draw_after_another_release_must_say_so(earlier):
    """Its candidates may depend on what was released: the cheaper composition of a first draw is not proven for it."""
    written = []
    ledger = Ledger([earlier], written.extend)
    with pytest.raises(ArtifactError) as caught:
        ledger.append(FIRST)
    assert str(caught.value) == f"selection event: {TWO_DRAWS}"
    assert written == []
    assert ledger.events == (earlier,)
    ledger.append(SELECTION)
    assert written == [SELECTION]


@pytest.mark.parametrize("earlier", [DATA_FREE, replace(DATA_FREE, provenance="dp"), BUDGET])
def test_what_is_no_release_may_come_before_a_first_draw(earlier):
    ledger = Ledger([earlier])
    ledger.append(FIRST)
    assert ledger.events == (earlier, FIRST)


@pytest.mark.parametrize(
    ("where", "refused"),
    [
        ({"start": 30000}, False),  # declared disjoint
        ({"start": 29999}, True),  # one record in both
        ({"id": "f2"}, False),
        ({"id": "f2", "key_id": "k2"}, True),  # cannot be told apart
    ],
)
def test_only_releases_that_may_share_records_count(where, refused):
    ledger = Ledger([replace(TRAINING, dataset=renamed(DATA, **where))])
    first = replace(FIRST, dataset=replace(DATA, stop=30000))
    if refused:
        with pytest.raises(ArtifactError, match=TWO_DRAWS):
            ledger.append(first)
    else:
        ledger.append(first)
    assert (first in ledger.events) is not refused


# Budgets.


def test_a_budget_refuses_what_exceeds_it():
    """docs/privacy-model.md section 5.5: 3515 steps cost 1.134, 14062 steps 2.382."""
    written = []
    ledger = Ledger([], written.extend)
    ledger.append(BUDGET)
    ledger.append(TRAINING)
    with pytest.raises(BudgetError) as caught:
        ledger.append(having(TRAINING, steps=14062 - 3515))
    assert str(caught.value) == (
        "budget: this would bring mnist[0:60000] to epsilon 2.382 at delta 1e-05, above the budget of 1.2 set on"
        " 2026-01-02; spend less, or set another (dpltm privacy budget)"
    )
    assert written == [BUDGET, TRAINING]
    assert ledger.events == (BUDGET, TRAINING)
    ledger.append(pure(0.05))  # 1.134 + 0.05 at worst
    assert written == [BUDGET, TRAINING, pure(0.05)]


def test_a_budget_may_be_spent_to_the_last_bit():
    """Pure epsilons add up exactly; what equals the budget fits, and the next float does not."""
    exact = total_epsilon([pure(0.25), pure(0.5)], DELTA)
    assert 0.74 < exact <= 0.75
    fitting, short = replace(BUDGET, epsilon=exact), replace(BUDGET, epsilon=math.nextafter(exact, 0.0))
    ledger = Ledger([fitting, pure(0.25)])
    ledger.append(pure(0.5))
    assert ledger.events[-1] == pure(0.5)
    with pytest.raises(BudgetError):
        Ledger([short, pure(0.25)]).append(pure(0.5))


@pytest.mark.parametrize("event", [PRIVATE, REVEALED, having(TRAINING, noise_multiplier=0.0)])
def test_nothing_without_protection_fits_a_budget(event):
    ledger = Ledger([replace(BUDGET, epsilon=1e6)])
    with pytest.raises(BudgetError, match="to epsilon inf at delta 1e-05"):
        ledger.append(event)
    assert len(ledger.events) == 1


def test_the_last_budget_for_the_same_records_counts():
    lower, higher = replace(BUDGET, epsilon=0.3), replace(BUDGET, epsilon=0.8)
    ledger = Ledger([lower])
    with pytest.raises(BudgetError, match=r"above the budget of 0\.3"):
        ledger.append(pure(0.5))
    ledger.append(higher)
    ledger.append(pure(0.5))
    ledger.append(lower)  # takes nothing back, and lets nothing through
    with pytest.raises(BudgetError, match=r"above the budget of 0\.3"):
        ledger.append(pure(0.1))
    assert ledger.events == (lower, higher, pure(0.5), lower)


@pytest.mark.parametrize(
    ("where", "counts"),
    [
        ({"name": "other"}, True),
        ({"start": 30000, "stop": 30001}, True),
        ({"id": "f2"}, False),
        ({"id": "f2", "key_id": "k2"}, True),
    ],
)
def test_a_budget_holds_for_every_record_it_may_share(where, counts):
    there = renamed(DATA, **where)
    ledger = Ledger([replace(BUDGET, epsilon=0.3)])
    event = replace(pure(0.5), dataset=there)
    if counts:
        with pytest.raises(BudgetError):
            ledger.append(event)
    else:
        ledger.append(event)
    assert (event in ledger.events) is not counts


def test_disjoint_parts_of_a_budget_do_not_add_up():
    """Each record is in one part alone (parallel composition); a release over both adds to each."""
    halves = [
        replace(pure(0.5), dataset=replace(DATA, stop=30000)),
        replace(pure(0.5), dataset=replace(DATA, start=30000)),
    ]
    ledger = Ledger([replace(BUDGET, epsilon=0.8)])
    for event in halves:
        ledger.append(event)
    with pytest.raises(BudgetError, match=r"mnist\[0:60000\] to epsilon 0\.[89]"):
        ledger.append(pure(0.4))
    ledger.append(pure(0.25))


def test_every_budget_is_read_at_its_own_delta():
    """mu = 1 costs 4.377 at 1e-5 and 3.139 at 1e-3 by the formula: only the second fits 4."""
    event = having(GAUSSIAN, noise_multiplier=1.0)
    assert gdp_epsilon(1.0, 1e-5) > 4 > gdp_epsilon(1.0, 1e-3)
    Ledger([replace(BUDGET, epsilon=4.0, delta=1e-3)]).append(event)
    with pytest.raises(BudgetError, match="at delta 1e-05, above the budget of 4"):
        Ledger([replace(BUDGET, epsilon=4.0, delta=1e-5)]).append(event)


def test_two_budgets_that_overlap_both_hold():
    part = replace(BUDGET, dataset=replace(DATA, stop=100), epsilon=0.3)
    ledger = Ledger([part, replace(BUDGET, epsilon=0.8)])
    with pytest.raises(BudgetError, match=r"bring mnist\[0:100\]"):
        ledger.append(pure(0.5))
    ledger.append(replace(pure(0.5), dataset=replace(DATA, start=100)))


def test_a_plan_is_checked_as_a_whole():
    """Each event fits by itself; both together do not. Nothing is entered by asking."""
    budget = replace(BUDGET, epsilon=0.8)
    check_budgets([budget], [pure(0.5)])
    check_budgets([budget, pure(0.25)], [pure(0.5)])
    with pytest.raises(BudgetError):
        check_budgets([budget], [pure(0.5), pure(0.5)])
    with pytest.raises(BudgetError):
        check_budgets([], [budget, pure(0.9)])
    check_budgets([pure(5.0)], [pure(5.0)])  # no budget, no limit


def test_a_budget_is_free_and_asks_for_nothing():
    assert report([BUDGET], DELTA, "add-remove") == PrivacyReport(
        Certified(0.0, DELTA, "pld", "add-remove", "record", "poisson"), None, ()
    )


def test_what_costs_nothing_fits_a_budget_that_is_overspent():
    """A budget may be set below what is on record; a data-free ticket set adds nothing to it."""
    ledger = Ledger([TRAINING, replace(BUDGET, epsilon=0.5)])
    ledger.append(DATA_FREE)
    assert ledger.events[-1] == DATA_FREE


def test_the_last_budget_counts_whatever_the_data_are_called():
    renamed = replace(BUDGET, dataset=replace(DATA, name="the same file"), epsilon=0.8)
    ledger = Ledger([replace(BUDGET, epsilon=0.3), renamed])
    ledger.append(pure(0.5))
    assert ledger.events[-1] == pure(0.5)


def test_the_last_budget_counts_whatever_id_the_records_had_that_time():
    """Ids are random: what they stand for is what a budget was set on."""
    again = replace(DATA, id="another")
    assert again.content == DATA.content
    ledger = Ledger([replace(BUDGET, epsilon=0.3), replace(BUDGET, dataset=again, epsilon=0.8)])
    assert budgets_in(ledger.events) == [replace(BUDGET, dataset=again, epsilon=0.8)]
    ledger.append(pure(0.5))
    assert ledger.events[-1] == pure(0.5)


@pytest.mark.parametrize(
    "other",
    [
        renamed(DATA, id="another"),
        replace(DATA, id="another", content=UNKNOWN),
        replace(DATA, stop=30000),
        replace(DATA, cut="positions"),
        DATA.all,
    ],
)
def test_budgets_on_what_is_not_known_to_be_the_same_stand_beside_each_other(other):
    lower, higher = replace(BUDGET, epsilon=0.3), replace(BUDGET, dataset=other, epsilon=0.8)
    assert budgets_in([lower, higher]) == [lower, higher]
    with pytest.raises(BudgetError, match=r"above the budget of 0\.3"):
        Ledger([lower, higher]).append(pure(0.5))


def test_a_budget_holds_for_another_file_with_common_rows():
    """One row more is another content, of the same people."""
    more = replace(renamed(DATA, id="more", name="one row more").all, shares=frozenset({DATA.content}))
    with pytest.raises(BudgetError, match=r"bring mnist\[0:60000\] to epsilon 0\.[5-9]"):
        Ledger([replace(BUDGET, epsilon=0.3)]).append(replace(pure(0.6), dataset=more))


# Several datasets: were they the same people.


OTHER = DatasetRef("other", "o1", "k1")


def test_if_overlapping_everything_adds_up():
    apart = [pure(0.5), replace(pure(0.3), dataset=OTHER)]
    assert total_epsilon(apart, 1e-12) == pytest.approx(0.5, abs=1e-6)
    assert if_overlapping(apart, 1e-12) == pytest.approx(0.8, abs=1e-6)
    third = replace(pure(0.1), dataset=renamed(OTHER, id="o2"))
    assert if_overlapping([*apart, third], 1e-12) == pytest.approx(0.9, abs=1e-6)
    assert if_overlapping([], DELTA) == 0
    assert if_overlapping(apart[:1], 1e-12) == total_epsilon(apart[:1], 1e-12)
    trainings = [TRAINING, replace(TRAINING, dataset=OTHER)]
    assert (
        if_overlapping(trainings, DELTA)
        == total_epsilon([TRAINING, TRAINING], DELTA)
        > total_epsilon(trainings, DELTA)
    )
    assert if_overlapping(trainings, DELTA, "rdp") == total_epsilon([TRAINING, TRAINING], DELTA, "rdp")
    assert if_overlapping(trainings, DELTA, "clt") == if_overlapping(trainings, DELTA)  # certified all the same


def test_parts_of_one_dataset_stay_parts():
    """Each record is in one of them. Ids of one content are one dataset. Beside others, who may be in any, they add up."""
    half, rest = replace(DATA, stop=30000), replace(DATA, id="again", start=30000)
    events = [replace(pure(0.5), dataset=half), replace(pure(0.4), dataset=rest)]
    assert if_overlapping(events, 1e-12) == pytest.approx(0.5, abs=1e-6)
    assert if_overlapping([*events, replace(pure(0.3), dataset=OTHER)], 1e-12) == pytest.approx(1.2, abs=1e-6)


def test_if_overlapping_never_below_what_is_certified():
    events = [
        replace(pure(0.1 * (place + 1)), dataset=ref)
        for place, ref in enumerate(
            [
                DATA,
                OTHER,
                replace(DATA, start=60000, stop=70000),
                replace(OTHER, id="x", content=UNKNOWN),
                replace(OTHER, id="p", cut="positions", stop=10, content=UNKNOWN),
            ]
        )
    ]
    for number in range(1, len(events) + 1):
        assert if_overlapping(events[:number], DELTA) >= total_epsilon(events[:number], DELTA)


def test_the_note_that_several_datasets_call_for():
    events = [pure(0.5), replace(pure(0.3), dataset=OTHER)]
    total = if_overlapping(events, DELTA)
    assert overlap_note(events, DELTA, total_epsilon(events, DELTA)) == [
        "the ledger holds releases from 2 datasets (mnist, other), told apart by what their rows hold; if these overlap:"
        f" epsilon {total:.4g}"
    ]
    assert overlap_note(events, DELTA, total) == []  # said already
    one_more = [*events, replace(pure(0.1), dataset=renamed(OTHER, id="o2"))]
    assert "from 3 datasets (mnist, other), told apart" in overlap_note(one_more, DELTA, 0.5)[0]  # a name is said once


@pytest.mark.parametrize(
    "free",
    [
        replace(BUDGET, dataset=OTHER),
        replace(DATA_FREE, dataset=OTHER),
        replace(DATA_FREE, dataset=OTHER, provenance="public"),
        replace(pure(0.5), dataset=replace(DATA, start=60000, stop=70000)),
        replace(pure(0.5), dataset=replace(DATA, id="again", stop=9)),
    ],
    ids=["budget", "data-free", "public", "another part", "another id"],
)
def test_one_dataset_calls_for_no_note(free):
    assert overlap_note([pure(0.5), free], DELTA, 0.0) == []
    assert overlap_note([], DELTA, 0.0) == []


def test_the_note_where_nothing_is_common():
    events = [pure(0.5), replace(RANDOMIZED, dataset=OTHER)]
    assert overlap_note(events, DELTA, 0.5) == [
        "the ledger holds releases from 2 datasets; if these overlap, nothing is certified: adjacency: the ledger holds"
        " events under add-remove and under replace-one, which have no common guarantee; use one relation throughout, or"
        " separate ledgers"
    ]
    private = [pure(0.5), replace(PRIVATE, dataset=OTHER)]
    assert overlap_note(private, DELTA, 0.5)[0].endswith("if these overlap: epsilon inf")


# Both figures.


@pytest.fixture(scope="module")
def training_delta():
    """delta(epsilon) of TRAINING, straight from dp-accounting, as a table that is interpolated in logs."""
    step = privacy_loss_distribution.from_gaussian_mechanism(
        1.1, sampling_prob=256 / 60000, value_discretization_interval=1e-4
    )
    at = np.arange(-1.0, 2.5, 0.005)
    table = np.log(np.array(step.self_compose(3515).get_delta_for_epsilon(at)))
    return lambda eps: np.exp(np.interp(eps, at, table))


def test_golden_first_draw(training_delta):
    """privacy-model.md 5.5: about 1.42. Oracle: the largest over pairs with losses t and t - eps1, t on a fine grid.

    The grid can only miss the largest, and dp-accounting rounds up: the two agree to a few 1e-3.
    """
    t = np.linspace(0, 0.5, 401)
    chance = np.expm1(t - 0.5) / math.expm1(-0.5)  # of loss t, under P

    def excess(eps):
        return np.max(chance * training_delta(eps - t) + (1 - chance) * training_delta(eps - t + 0.5)) - DELTA

    oracle = brentq(excess, 1.0, 2.0)
    found = report([FIRST, TRAINING], DELTA, "add-remove").certified.epsilon
    assert found == pytest.approx(1.42, abs=5e-3)
    assert found == pytest.approx(oracle, abs=2e-3)


def test_golden_report(training_delta):
    """privacy-model.md 5.5: DPLTM's Theorem 3 adds up to 1.634; a draw that may depend on earlier releases costs less.

    Oracle for that: the largest of the pairs' profiles at each epsilon, (1 - e^((x - e)/2))^2 / (1 - e^-e), is itself the
    profile of losses with density e^((x - e)/2) / (2 (1 - e^-e)) on [-e, e]: e^x times minus the derivative of
    -delta'(x) e^-x.
    """
    found = report([DATA_FREE, SELECTION, TRAINING], DELTA, "add-remove")
    losses = (np.arange(2000) + 0.5) / 2000 - 0.5  # midpoints
    chances = np.exp((losses - 0.5) / 2) / (2 * -math.expm1(-0.5)) / 2000
    assert chances.sum() == pytest.approx(1.0, abs=1e-6)
    oracle = brentq(lambda eps: float(chances @ training_delta(eps - losses)) - DELTA, 1.0, 2.0)
    assert found.certified.epsilon == pytest.approx(oracle, abs=2e-3)
    assert report([FIRST, TRAINING], DELTA, "add-remove").certified.epsilon < found.certified.epsilon < 1.596
    assert found.nominal.epsilon == pytest.approx(1.634, abs=5e-4)
    assert found.nominal == Nominal(found.nominal.epsilon, DELTA, "DPLTM Theorem 3")
    assert replace(found.certified, epsilon=0) == Certified(0, DELTA, "pld", "add-remove", "record", "poisson")
    assert found.notes == (PLACED, SEARCH_NOTE)


def test_permute_and_flip_is_pure_and_no_more():
    """Bounded range is proven for the exponential mechanism alone: 1.596 (privacy-model.md 5.5), whenever it came."""
    draw = having(SELECTION, draw="permute-and-flip")
    for adaptive in (True, False):
        events = [having(draw, adaptive=adaptive), TRAINING]
        assert report(events, DELTA, "add-remove").certified.epsilon == pytest.approx(1.596, abs=1e-3)


# Other accountants.

GOLDEN = [  # sigma, T, CLT epsilon, MA epsilon, PLD epsilon: docs/privacy-model.md section 5.5
    (1.3, 3516, 0.835, 1.19, 0.8646),
    (1.1, 14062, 2.324, 3.01, 2.382),
    (0.5, 23438, 31.117, 32.35, 28.05),
]


@pytest.mark.parametrize(("sigma", "steps", "clt", "ma", "pld"), GOLDEN)
def test_golden_accountants(sigma, steps, clt, ma, pld):
    events = [having(TRAINING, noise_multiplier=sigma, steps=steps)]
    found = {name: report(events, DELTA, "add-remove", accountant=name) for name in ("pld", "rdp", "ma", "clt")}
    assert found["pld"].certified.epsilon == pytest.approx(pld, rel=1e-3)
    assert found["ma"].certified.epsilon == pytest.approx(ma, abs=6e-3)
    assert pld < found["rdp"].certified.epsilon < ma
    for name in ("pld", "rdp", "ma"):
        assert found[name].certified.accountant == name
        assert found[name].nominal is None
        assert found[name].notes == (PLACED, SEARCH_NOTE)
    assert found["clt"].certified == found["pld"].certified  # nothing certified comes from it
    nominal = found["clt"].nominal
    assert nominal == Nominal(nominal.epsilon, DELTA, "GDP central limit theorem, an approximation")
    assert nominal.epsilon == pytest.approx(clt, abs=1e-3)


@pytest.mark.parametrize(
    ("sigma", "steps", "side", "gap"), [(1.3, 3516, "below", 0.8646 - 0.835), (0.5, 23438, "above", 31.117 - 28.05)]
)
def test_the_central_limit_says_by_how_much_it_misses(sigma, steps, side, gap):
    """It lies below the certified figure in one row of the table, above it in another."""
    found = report([having(TRAINING, noise_multiplier=sigma, steps=steps)], DELTA, "add-remove", accountant="clt")
    nominal, certified = found.nominal.epsilon, found.certified.epsilon
    assert abs(nominal - certified) == pytest.approx(gap, abs=0.02)
    assert found.notes == (
        PLACED,
        f"the central limit figure {nominal:.4g} is {abs(nominal - certified):.2g}"
        f" ({100 * abs(nominal - certified) / certified:.1f}%) {side} the certified one: it is an approximation and"
        " promises nothing",
        SEARCH_NOTE,
    )


def test_the_miss_in_words():
    """2.3 is 0.2 below 2.5, which is 8 % of it."""
    words = "the central limit figure {} is {} ({}) {} the certified one: it is an approximation and promises nothing"
    assert compare_central_limit(2.3, 2.5) == words.format("2.3", "0.2", "8.0%", "below")
    assert compare_central_limit(3.0, 2.5) == words.format("3", "0.5", "20.0%", "above")
    vague = "the central limit figure is an approximation and promises nothing"
    assert compare_central_limit(2.3, math.inf) == compare_central_limit(math.inf, 2.5) == vague
    assert compare_central_limit(0.0, 0.0) == vague


def test_the_central_limit_of_a_mixture():
    """A full Gaussian step of noise sigma is exactly 1/sigma-GDP, a draw is added as it is."""
    events = [SELECTION, GAUSSIAN]
    found = report(events, DELTA, "add-remove", accountant="clt")
    assert found.nominal.epsilon == pytest.approx(0.5 + gdp_epsilon(0.25, DELTA), rel=1e-6)
    assert found.certified.epsilon == total_epsilon(events, DELTA)


def test_the_central_limit_of_a_claimed_bound():
    """The claim is what the source accounts for: deviation 1.1 over the claimed 1, not over the true 2."""
    tanh = having(TRAINING, steps=14062, noise_multiplier=0.55, nominal_sensitivity=1.0, sensitivity=2.0)
    found = report([tanh], DELTA, "add-remove", accountant="clt")
    assert found.nominal.epsilon == pytest.approx(2.324, abs=1e-3)  # docs/privacy-model.md section 5.5, sigma 1.1
    assert found.nominal.source == "GDP central limit theorem, an approximation; tanh paper's sensitivity"
    assert found.certified.epsilon == total_epsilon([tanh], DELTA) > 10


def test_the_central_limit_of_private_tickets_certifies_nothing():
    found = report([PRIVATE, having(TRAINING, steps=14062)], DELTA, "add-remove", accountant="clt")
    assert found.certified.epsilon == math.inf
    assert found.nominal.epsilon == pytest.approx(2.324, abs=1e-3)
    assert found.notes[2:] == ("the central limit figure is an approximation and promises nothing", SEARCH_NOTE)


def test_an_accountant_that_nobody_knows():
    with pytest.raises(InputError) as caught:
        report([TRAINING], DELTA, "add-remove", accountant="advanced")
    assert str(caught.value) == "`accountant`: unknown accountant 'advanced'; known: pld, rdp, ma, clt"


def test_theorem_3_adds_every_draw():
    events = [SELECTION, having(SELECTION, eps1=0.2, certified_epsilon=0.2), TRAINING]
    assert report(events, DELTA, "add-remove").nominal.epsilon == pytest.approx(
        0.7 + total_epsilon([TRAINING], DELTA), rel=1e-12
    )


def test_private_tickets_are_infinite_with_the_nominal_beside():
    """docs/privacy-model.md section 2: the paper as printed shows certified inf and nominal eps1 + eps2."""
    found = report([PRIVATE, SELECTION, TRAINING], DELTA, "add-remove")
    assert found.certified.epsilon == math.inf
    assert found.nominal.epsilon == pytest.approx(1.634, abs=5e-4)
    assert found.nominal.source == "DPLTM Theorem 3"
    assert found.notes == (
        PLACED,
        "the tickets were made from mnist[0:60000] with no mechanism (provenance private): their masks may reveal the"
        " records, their predictors even more, so nothing is certified",
        SEARCH_NOTE,
    )


def test_private_tickets_alone():
    found = report([PRIVATE], DELTA, "add-remove")
    assert (found.certified.epsilon, found.nominal.epsilon) == (math.inf, 0)
    assert SEARCH_NOTE not in found.notes


def test_golden_tanh_claim():
    """docs/privacy-model.md section 4.3: a bound of 1 is claimed where sqrt(26010) is true.

    One step truly costs about 11,156, while 60 epochs (14062 steps) are claimed to cost 2.38. The certified figure of
    all 60 epochs takes a while to compute; a private ticket beside them settles it.
    """
    bound = math.sqrt(26010)
    whole = replace(
        having(TRAINING, steps=14062, noise_multiplier=1.1 / bound, nominal_sensitivity=1.0, sensitivity=bound),
        filter="tanh",
        live=26010,
    )
    step = report([having(whole, sampling_rate=0.00427, steps=1)], DELTA, "add-remove")
    assert step.certified.epsilon == pytest.approx(11156, abs=3)
    assert step.nominal.source == "tanh paper's sensitivity"
    found = report([PRIVATE, whole], DELTA, "add-remove")
    assert found.nominal.epsilon == pytest.approx(2.382, rel=1e-3)
    assert found.nominal.source == "DPLTM Theorem 3; tanh paper's sensitivity"


def test_both_claims_together():
    tanh = having(TRAINING, noise_multiplier=0.55, nominal_sensitivity=1.0, sensitivity=2.0)
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
    assert found.notes == (PLACED, "released without protection from mnist[0:60000]: every ticket's score")


def test_training_without_noise():
    found = report([having(TRAINING, noise_multiplier=0.0)], DELTA, "add-remove")
    assert found.certified.epsilon == math.inf
    assert found.notes == (PLACED, "training at noise multiplier 0: nothing is certified", SEARCH_NOTE)


def test_a_draw_below_the_true_sensitivity():
    event = replace(having(SELECTION, eps1=0.1, certified_epsilon=0.4), sensitivity_rule="paper", sensitivity=0.25)
    found = report([event], DELTA, "add-remove")
    # An exponential mechanism: its profile (1 - e^((x - e)/2))^2 / (1 - e^-e), solved for x at delta, is a little below e.
    exact = 0.4 + 2 * math.log(1 - math.sqrt(DELTA * (1 - math.exp(-0.4))))
    assert 0.39 < exact <= found.certified.epsilon <= exact + 1e-4
    assert found.nominal.epsilon == pytest.approx(0.1)
    assert found.notes == (
        PLACED,
        "the paper sensitivity 0.25 is below the true one: the selection at eps1 0.1 is certified as 0.4",
        SEARCH_NOTE,
    )


def test_notes_of_the_caller_come_after_the_events_and_repeats_are_dropped():
    found = report([REVEALED, REVEALED, SELECTION], DELTA, "add-remove", notes=["mine", SEARCH_NOTE, "mine"])
    assert found.notes == (
        PLACED,
        "released without protection from mnist[0:60000]: every ticket's score",
        "mine",
        SEARCH_NOTE,
    )


# JSON.


def test_json_of_an_infinite_figure():
    body = report([PRIVATE, SELECTION, having(TRAINING, noise_multiplier=0.0)], DELTA, "add-remove").to_json()
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
    assert len(body["notes"]) == 4


def test_json_without_a_nominal_figure():
    body = report([having(TRAINING, steps=10)], DELTA, "add-remove").to_json()
    assert body["nominal"] is None
    assert body["certified"]["epsilon"] == total_epsilon([having(TRAINING, steps=10)], DELTA)


# Bad inputs.


@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_bad_delta(delta):
    with pytest.raises(InputError) as caught:
        report([], delta, "add-remove")
    assert str(caught.value) == f"`delta`: {delta:g} is not between 0 and 1"


@pytest.mark.parametrize(("events_for", "asked"), [("add-remove", "replace-one"), ("replace-one", "add-remove")])
def test_the_printed_relation_is_the_one_of_the_events(events_for, asked):
    """The epsilon belongs to the events' relation: printing the other one beside it is a false guarantee."""
    events = [having(TRAINING, steps=10, adjacency=events_for)]
    assert report(events, DELTA, asked).certified.adjacency == events_for


# Several datasets at once: each person is in one of them.


def test_the_relation_stated_is_that_of_the_figure():
    elsewhere = renamed(DATA, id="f2", name="other")
    worse = replace(having(TRAINING, adjacency="replace-one", noise_multiplier=0.5), dataset=elsewhere)
    for events in ((TRAINING, worse), (worse, TRAINING)):
        found = report(events, DELTA, "add-remove")
        assert found.certified.adjacency == "replace-one"
        assert found.certified.epsilon == total_epsilon([worse], DELTA)
        assert any("under another relation" in note for note in found.notes)


@pytest.mark.parametrize(
    "other", [renamed(DATA, id="f2"), replace(DATA, start=60000, stop=70000)], ids=["dataset", "range"]
)
def test_claims_do_not_add_up_over_different_records(other):
    """Theorem 3 adds what one record goes through."""
    found = report((FIRST, replace(FIRST, dataset=other)), DELTA, "add-remove")
    assert found.nominal.epsilon == pytest.approx(0.5)
    assert found.certified.epsilon < 0.5
