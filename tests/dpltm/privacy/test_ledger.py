"""The ledger: what is on record stays, what is not on disk does not count, and both figures come from the events."""

import contextlib
import copy
import json
import math
import os
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.errors import ArtifactError, BudgetError, InputError
from dpltm.privacy.budgets import budgets_in, check_budgets
from dpltm.privacy.events import UNKNOWN, DatasetRef
from dpltm.privacy.mechanisms import GaussianRelease, NoisySgd, PrivateSearch, Selection, TwoSteps, sampling_of
from dpltm.privacy.old_ledger import Ledger, as_adaptive, beside, merge, missing
from dpltm.privacy.parts import total_epsilon
from dpltm.privacy.report import compare_central_limit, if_overlapping, overlap_note, report
from dpltm.privacy.statement import SEARCH_NOTE, Certified, Nominal, PrivacyReport
from entries import (
    BUDGET,
    DATA,
    FIRST,
    GAUSSIAN,
    GUARANTEE,
    PRIVATE,
    PROVENANCE,
    RANDOMIZED,
    REVEALED,
    SELECTION,
    TRAINING,
    having,
    pure,
)
from exact import gaussian_epsilon

DELTA = 1e-5
DATA_FREE = replace(PROVENANCE, provenance="data-free")
PLACED = (
    "parts of mnist are cut by its places, which its published file fixes: the neighbour is that file with one place"
    " empty"
)
TWO_DRAWS = "earlier releases from these records are on record, so Expected adaptive=True"


def renamed(ref, **changes):
    """Another reference, of which nothing is known but what it says: ``replace`` alone would keep what was known."""
    return replace(ref, content=None, **changes)


# Entering.


def test_events_are_persisted_before_they_count():
    seen, start = [], [DATA_FREE]

    def persist(events):
        seen.append((*events, ledger.events))

    ledger = Ledger(start, persist)
    start.clear()  # what was on record is copied, and not persisted again
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
    events = [replace(TRAINING, dataset=ref) for ref in (first, second, other, foreign, DATA)]
    ledger = Ledger(events)
    for asked, places in ((first, (0, 3, 4)), (second, (1, 3, 4)), (other, (2, 3)), (foreign, (0, 1, 2, 3, 4))):
        assert ledger.touching(asked) == tuple(events[place] for place in places)


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


@given(
    st.lists(st.lists(st.sampled_from([TRAINING, SELECTION, FIRST, GUARANTEE, PROVENANCE]), max_size=6), max_size=4)
)
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


# Draws that come first.


@pytest.mark.parametrize("earlier", [*PRIVATE, FIRST], ids=lambda event: type(event).__name__)
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
    assert Ledger([earlier, FIRST]).events == (earlier, SELECTION)  # as it is read from a file


@pytest.mark.parametrize("earlier", [DATA_FREE, replace(DATA_FREE, provenance="dp"), BUDGET])
def test_what_is_no_release_may_come_before_a_first_draw(earlier):
    ledger = Ledger([earlier])
    ledger.append(FIRST)
    assert ledger.events == (earlier, FIRST)


SHARED = [
    ({"start": 30000}, False),  # declared disjoint
    ({"start": 29999}, True),  # one record in both
    ({"name": "other"}, True),
    ({"id": "f2"}, False),
    ({"id": "f2", "key_id": "k2"}, True),  # cannot be told apart
]


@pytest.mark.parametrize(("where", "shared"), SHARED)
def test_only_releases_and_budgets_that_may_share_records_count(where, shared):
    there, part = renamed(DATA, **where), replace(DATA, stop=30000)
    for held, new, error in (
        (replace(TRAINING, dataset=there), replace(FIRST, dataset=part), ArtifactError),
        (replace(BUDGET, dataset=there, epsilon=0.3), pure(0.5, part), BudgetError),
    ):
        ledger = Ledger([held])
        with pytest.raises(error) if shared else contextlib.nullcontext():
            ledger.append(new)
        assert (new in ledger.events) is not shared


# Budgets.


def test_a_budget_refuses_what_exceeds_it():
    """docs/privacy-model.md section 5.5: 3515 steps cost 1.134, 14062 steps 2.382. What equals the budget fits."""
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
    exact = min(total_epsilon([pure(0.25), pure(0.5)], DELTA, each) for each in ("rdp", "pld"))
    Ledger([replace(BUDGET, epsilon=exact), pure(0.25)]).append(pure(0.5))
    with pytest.raises(BudgetError):
        Ledger([replace(BUDGET, epsilon=math.nextafter(exact, 0.0)), pure(0.25)]).append(pure(0.5))


@pytest.mark.parametrize("event", [PROVENANCE, REVEALED, having(TRAINING, noise_multiplier=0.0)])
def test_nothing_without_protection_fits_a_budget(event):
    ledger = Ledger([replace(BUDGET, epsilon=1e6)])
    with pytest.raises(BudgetError, match="to epsilon inf at delta 1e-05"):
        ledger.append(event)
    assert len(ledger.events) == 1


def test_what_costs_nothing_fits_any_budget():
    """A budget may be set below what is on record; neither another one nor a data-free ticket set adds anything to it."""
    ledger = Ledger([pure(0.5), replace(BUDGET, epsilon=0.1)])
    for free in (DATA_FREE, replace(BUDGET, epsilon=0.2)):
        ledger.append(free)
        assert ledger.events[-1] == free
    assert total_epsilon([BUDGET, DATA_FREE], DELTA) == 0


def test_the_last_budget_for_the_same_records_counts():
    """Whatever they are called, and whatever random id they had that time."""
    again = replace(DATA, name="the same file", id="another")
    assert again.content == DATA.content
    lower, higher = replace(BUDGET, epsilon=0.3), replace(BUDGET, dataset=again, epsilon=0.8)
    assert budgets_in([lower, higher]) == [higher]
    ledger = Ledger([lower])
    with pytest.raises(BudgetError, match=r"above the budget of 0\.3"):
        ledger.append(pure(0.5))
    ledger.append(higher)
    ledger.append(pure(0.5))
    ledger.append(lower)  # takes nothing back, and lets nothing through
    with pytest.raises(BudgetError, match=r"above the budget of 0\.3"):
        ledger.append(pure(0.1))
    assert ledger.events == (lower, higher, pure(0.5), lower)


def test_every_budget_is_read_at_its_own_delta():
    """mu = 1 costs 4.377 at 1e-5 and 3.139 at 1e-3 by the formula: only the second fits 4."""
    event = having(GAUSSIAN, noise_multiplier=1.0)
    assert gaussian_epsilon(1.0, 1e-5) > 4 > gaussian_epsilon(1.0, 1e-3)
    Ledger([replace(BUDGET, epsilon=4.0, delta=1e-3)]).append(event)
    with pytest.raises(BudgetError, match="at delta 1e-05, above the budget of 4"):
        Ledger([replace(BUDGET, epsilon=4.0)]).append(event)


def test_parts_of_a_budget_do_not_add_up_and_budgets_that_overlap_both_hold():
    """Each record is in one part alone (parallel composition); a release over both adds to each."""
    halves = [pure(0.5, replace(DATA, stop=30000)), pure(0.5, replace(DATA, start=30000))]
    ledger = Ledger([replace(BUDGET, dataset=replace(DATA, stop=100), epsilon=0.3), replace(BUDGET, epsilon=0.8)])
    with pytest.raises(BudgetError, match=r"bring mnist\[0:100\]"):
        ledger.append(halves[0])
    ledger = Ledger([replace(BUDGET, epsilon=0.8), *halves])
    with pytest.raises(BudgetError, match=r"mnist\[0:60000\] to epsilon 0\.[89]"):
        ledger.append(pure(0.4))
    ledger.append(pure(0.25))


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
        Ledger([replace(BUDGET, epsilon=0.3)]).append(pure(0.6, more))


# Several datasets: were they the same people.


OTHER = DatasetRef("other", "o1", "k1")


def test_if_overlapping_everything_adds_up():
    """What is between parts of one dataset stays apart, under whatever id; beside others, who may be in any, it adds up."""
    apart = [pure(0.5), pure(0.3, OTHER)]
    assert total_epsilon(apart, 1e-12) == pytest.approx(0.5, abs=1e-6)
    assert if_overlapping(apart, 1e-12) == pytest.approx(0.8, abs=1e-6)
    assert if_overlapping([*apart, pure(0.1, renamed(OTHER, id="o2"))], 1e-12) == pytest.approx(0.9, abs=1e-6)
    halves = [pure(0.5, replace(DATA, stop=30000)), pure(0.4, replace(DATA, id="again", start=30000))]
    assert if_overlapping(halves, 1e-12) == pytest.approx(0.5, abs=1e-6)
    assert if_overlapping([*halves, pure(0.3, OTHER)], 1e-12) == pytest.approx(1.2, abs=1e-6)
    assert if_overlapping([], DELTA) == 0
    noisy = having(TRAINING, steps=10)
    trainings = [noisy, replace(noisy, dataset=OTHER)]
    both = total_epsilon([noisy, noisy], DELTA)
    assert if_overlapping(trainings, DELTA) == both > total_epsilon(trainings, DELTA)
    assert if_overlapping(trainings, DELTA, "rdp") == total_epsilon([noisy, noisy], DELTA, "rdp") != both
    assert if_overlapping(trainings, DELTA, "clt") == both  # certified all the same


def test_if_overlapping_never_below_what_is_certified():
    places = [
        DATA,
        OTHER,
        replace(DATA, start=60000, stop=70000),
        replace(OTHER, id="x", content=UNKNOWN),
        replace(OTHER, id="p", cut="positions", stop=10, content=UNKNOWN),
    ]
    events = [pure(0.1, ref) for ref in places]
    for number in range(2, len(events) + 1):
        assert if_overlapping(events[:number], DELTA) >= total_epsilon(events[:number], DELTA)


def test_the_note_that_several_datasets_call_for():
    events = [pure(0.5), pure(0.3, OTHER)]
    total = if_overlapping(events, DELTA)
    said = (
        "the ledger holds releases from 2 datasets (mnist, other), told apart by what their rows hold; if these overlap:"
        f" epsilon {total:.4g}"
    )
    assert overlap_note(events, DELTA, total_epsilon(events, DELTA)) == [said]
    assert said in report(events[:1], DELTA, "add-remove", held=events).notes
    assert overlap_note(events, DELTA, total) == []  # said already
    one_more = [*events, pure(0.1, renamed(OTHER, id="o2"))]
    assert "from 3 datasets (mnist, other), told apart" in overlap_note(one_more, DELTA, 0.5)[0]  # a name is said once
    mixed = [pure(0.5), replace(RANDOMIZED, dataset=OTHER)]
    assert overlap_note(mixed, DELTA, 0.5) == [
        "the ledger holds releases from 2 datasets; if these overlap, nothing is certified: adjacency: the ledger holds"
        " events under add-remove and under replace-one, which have no common guarantee; use one relation throughout, or"
        " separate ledgers"
    ]
    private = [pure(0.5), replace(PROVENANCE, dataset=OTHER)]
    assert overlap_note(private, DELTA, 0.5)[0].endswith("if these overlap: epsilon inf")


@pytest.mark.parametrize(
    "free",
    [
        replace(BUDGET, dataset=OTHER),
        replace(DATA_FREE, dataset=OTHER),
        replace(DATA_FREE, dataset=OTHER, provenance="public"),
        pure(0.5, replace(DATA, start=60000, stop=70000)),
        pure(0.5, replace(DATA, id="again", stop=9)),
    ],
    ids=["budget", "data-free", "public", "another part", "another id"],
)
def test_one_dataset_calls_for_no_note(free):
    assert overlap_note([pure(0.5), free], DELTA, 0.0) == []
    assert overlap_note([], DELTA, 0.0) == []


# Both figures.


def test_golden_report():
    """privacy-model.md 5.5: DPLTM's Theorem 3 adds up to 1.634; the certified figure of a later draw is 1.444."""
    found = report(iter([DATA_FREE, SELECTION, TRAINING]), DELTA, "add-remove")
    assert found.certified == Certified(found.certified.epsilon, DELTA, "pld", "add-remove", "record", "poisson")
    assert found.certified.epsilon == pytest.approx(1.444, abs=1e-3)
    assert found.nominal == Nominal(found.nominal.epsilon, DELTA, "DPLTM Theorem 3")
    assert found.nominal.epsilon == pytest.approx(1.634, abs=5e-4)
    assert found.notes == (PLACED, SEARCH_NOTE)
    assert report([TRAINING], DELTA, "replace-one").nominal is None  # clipping claims what is true
    two = report([SELECTION, having(SELECTION, eps1=0.2, certified_epsilon=0.2), TRAINING], DELTA, "add-remove")
    assert two.nominal.epsilon == pytest.approx(0.7 + total_epsilon([TRAINING], DELTA), rel=1e-12)  # every draw


def test_the_central_limit_says_by_how_much_it_misses():
    """Nothing certified comes from it. 2.3 is 0.2 below 2.5, which is 8 % of it."""
    found = report([TRAINING], DELTA, "add-remove", accountant="clt")
    assert found.certified == report([TRAINING], DELTA, "add-remove").certified
    assert found.nominal == Nominal(found.nominal.epsilon, DELTA, "GDP central limit theorem, an approximation")
    missed = compare_central_limit(found.nominal.epsilon, found.certified.epsilon)
    assert found.notes == (PLACED, missed, SEARCH_NOTE)
    words = "the central limit figure {} is {} ({}) {} the certified one: it is an approximation and promises nothing"
    assert compare_central_limit(2.3, 2.5) == words.format("2.3", "0.2", "8.0%", "below")
    assert compare_central_limit(3.0, 2.5) == words.format("3", "0.5", "20.0%", "above")
    vague = "the central limit figure is an approximation and promises nothing"
    assert compare_central_limit(2.3, math.inf) == compare_central_limit(math.inf, 2.5) == vague
    assert compare_central_limit(0.0, 0.0) == vague


@pytest.mark.parametrize("accountant", ["rdp", "ma"])
def test_a_certified_accountant_names_itself(accountant):
    found = report([TRAINING], DELTA, "add-remove", accountant=accountant)
    assert found.certified.accountant == accountant
    assert found.certified.epsilon == total_epsilon([TRAINING], DELTA, accountant)
    assert found.nominal is None


def test_the_central_limit_of_a_claimed_bound_and_of_private_tickets():
    """The claim is what the source accounts for: deviation 1.1 over the claimed 1, not over the true 2."""
    tanh = having(TRAINING, steps=14062, noise_multiplier=0.55, nominal_sensitivity=1.0, sensitivity=2.0)
    found = report([PROVENANCE, tanh], DELTA, "add-remove", accountant="clt")
    assert found.nominal.epsilon == pytest.approx(2.324, abs=1e-3)  # docs/privacy-model.md section 5.5, sigma 1.1
    assert found.nominal.source == "GDP central limit theorem, an approximation; tanh paper's sensitivity"
    assert found.certified.epsilon == math.inf
    assert found.notes[2:] == ("the central limit figure is an approximation and promises nothing", SEARCH_NOTE)


def test_private_tickets_are_infinite_with_the_nominal_beside():
    """docs/privacy-model.md section 2: the paper as printed shows certified inf and nominal eps1 + eps2."""
    found = report([PROVENANCE, SELECTION, TRAINING], DELTA, "add-remove")
    assert found.certified.epsilon == math.inf
    assert found.nominal.epsilon == pytest.approx(1.634, abs=5e-4)
    assert found.nominal.source == "DPLTM Theorem 3"
    assert found.notes == (
        PLACED,
        "the tickets were made from mnist[0:60000] with no mechanism (provenance private): their masks may reveal the"
        " records, their predictors even more, so nothing is certified",
        SEARCH_NOTE,
    )
    alone = report([PROVENANCE], DELTA, "add-remove")
    assert (alone.certified.epsilon, alone.nominal.epsilon) == (math.inf, 0)
    assert SEARCH_NOTE not in alone.notes


def test_golden_tanh_claim():
    """docs/privacy-model.md section 4.3: a bound of 1 is claimed where sqrt(26010) is true; 60 epochs claim 2.38."""
    claim = {"nominal_sensitivity": 1.0, "sensitivity": math.sqrt(26010), "noise_multiplier": 1.1 / math.sqrt(26010)}
    step = report([having(TRAINING, sampling_rate=0.00427, steps=1, **claim)], DELTA, "add-remove")
    assert step.certified.epsilon == pytest.approx(11156, abs=3)
    assert step.nominal.source == "tanh paper's sensitivity"
    found = report([PROVENANCE, having(TRAINING, steps=14062, **claim)], DELTA, "add-remove")
    assert found.nominal.epsilon == pytest.approx(2.382, rel=1e-3)
    assert found.nominal.source == "DPLTM Theorem 3; tanh paper's sensitivity"


def test_nothing_on_record_costs_nothing():
    found = report([], DELTA, "replace-one", notes=["first release"])
    assert found == PrivacyReport(
        Certified(0.0, DELTA, "pld", "replace-one", "record", "none"), None, ("first release",)
    )


WHOLE, SAMPLED = NoisySgd(1.0, 3, 2.0), NoisySgd(0.5, 3, 2.0)


@pytest.mark.parametrize(
    ("mechanism", "sampling"),
    [
        (WHOLE, "none"),
        (SAMPLED, "poisson"),
        (TwoSteps(WHOLE), "none"),
        (TwoSteps(SAMPLED), "poisson"),
        (PrivateSearch((WHOLE, WHOLE), 5.0, 0.3), "none"),
        (PrivateSearch((WHOLE, SAMPLED), 5.0, 0.3), "poisson"),
        (TwoSteps(PrivateSearch((SAMPLED,), 5.0, 0.3)), "poisson"),
        (GaussianRelease(2.0), "none"),
        (Selection(0.1, 0.1), "none"),
    ],
)
def test_sampling_is_that_of_what_was_done(mechanism, sampling):
    assert sampling_of([mechanism]) == sampling
    assert sampling_of([GaussianRelease(2.0), mechanism]) == sampling


def test_a_release_on_all_records_is_not_said_to_be_sampled():
    assert report([GAUSSIAN, having(TRAINING, sampling_rate=1.0)], DELTA, "add-remove").certified.sampling == "none"
    assert report([GAUSSIAN, TRAINING], DELTA, "add-remove").certified.sampling == "poisson"
    assert report([SELECTION], DELTA, "add-remove").certified.sampling == "none"


# Notes.


def test_a_draw_below_the_true_sensitivity():
    event = replace(having(SELECTION, eps1=0.1, certified_epsilon=0.4), sensitivity_rule="paper", sensitivity=0.25)
    found = report([event], DELTA, "add-remove")
    # An exponential mechanism: its profile (1 - e^((x - e)/2))^2 / (1 - e^-e), solved for x at delta, is a little below e.
    exact = 0.4 + 2 * math.log(1 - math.sqrt(DELTA * (1 - math.exp(-0.4))))
    assert 0.39 < exact <= found.certified.epsilon <= exact + 1e-4
    assert found.nominal.epsilon == pytest.approx(0.1)
    assert found.notes[1] == (
        "the paper sensitivity 0.25 is below the true one: the selection at eps1 0.1 is certified as 0.4"
    )


def test_notes_of_the_caller_come_after_the_events_and_repeats_are_dropped():
    events = [REVEALED, REVEALED, having(TRAINING, noise_multiplier=0.0)]
    found = report(events, DELTA, "add-remove", notes=["mine", SEARCH_NOTE, "mine"])
    assert found.notes == (
        PLACED,
        "released without protection from mnist[0:60000]: every ticket's score",
        "training at noise multiplier 0: nothing is certified",
        "mine",
        SEARCH_NOTE,
    )


def test_json():
    body = report([PROVENANCE, SELECTION, having(TRAINING, noise_multiplier=0.0)], DELTA, "add-remove").to_json()
    assert json.loads(json.dumps(body, allow_nan=False)) == body
    assert body["certified"] == {
        "epsilon": "inf", "delta": DELTA, "accountant": "pld", "adjacency": "add-remove", "unit": "record",
        "sampling": "poisson",
    }  # fmt: skip
    assert body["nominal"] == {"epsilon": "inf", "delta": DELTA, "source": "DPLTM Theorem 3"}
    assert len(body["notes"]) == 4
    assert report([GAUSSIAN], DELTA, "add-remove").to_json()["nominal"] is None


# Several datasets at once: each person is in one of them.


def test_the_relation_stated_is_that_of_the_figure():
    """The epsilon belongs to the events' relation: the other one printed beside it would be a false guarantee."""
    elsewhere = renamed(DATA, id="f2", name="other")
    worse = replace(having(TRAINING, adjacency="replace-one", noise_multiplier=0.5), dataset=elsewhere)
    for events in ((TRAINING, worse), (worse, TRAINING)):
        found = report(events, DELTA, "add-remove")
        assert found.certified.adjacency == "replace-one"
        assert found.certified.epsilon == total_epsilon([worse], DELTA)
        note = "other records have releases under another relation; the figure is that of replace-one ones"
        assert note in found.notes
    assert report([TRAINING], DELTA, "replace-one").certified.adjacency == "add-remove"


@pytest.mark.parametrize(
    "other", [renamed(DATA, id="f2"), replace(DATA, start=60000, stop=70000)], ids=["dataset", "range"]
)
def test_claims_do_not_add_up_over_different_records(other):
    """Theorem 3 adds what one record goes through."""
    found = report((FIRST, replace(FIRST, dataset=other)), DELTA, "add-remove")
    assert found.nominal.epsilon == pytest.approx(0.5)
    assert found.certified.epsilon < 0.5


# --- several ledgers of one keeper ---


@pytest.mark.parametrize("here", ["held", "planned"])
def test_a_draw_is_a_later_release_where_another_ledger_may_have_one(here):
    """Which of the two came first is not on record: it costs what it costs as the later one."""
    held, planned = ((FIRST,), ()) if here == "held" else ((), (FIRST,))
    assert beside(held, planned, held) == (held, planned)  # nobody else
    apart = having(TRAINING, steps=100)
    before, then = beside(held, planned, (*held, replace(apart, dataset=replace(DATA, start=60000, stop=60001))))
    assert (*before, *then)[-1 if here == "planned" else 0] == FIRST
    before, then = beside(held, planned, (*held, apart))
    assert set(before + then) == {as_adaptive(FIRST), apart}
    assert total_epsilon(before + then, 1e-5) >= total_epsilon((FIRST, apart), 1e-5)


def test_a_draw_of_another_ledger_is_a_later_release():
    before, _ = beside((TRAINING,), (), (FIRST, TRAINING))
    assert before == (as_adaptive(FIRST), TRAINING)
