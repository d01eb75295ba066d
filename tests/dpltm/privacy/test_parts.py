"""Parts of a dataset: what one record more or less changes in them, and what the accountant makes of it.

docs/privacy-model.md section 1.5. Each rule is compared with the truth, worked out from the records themselves.
"""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dpltm.errors import ArtifactError, InputError
from dpltm.privacy.accountant import approximate
from dpltm.privacy.event_json import from_json, ref_from_json, ref_to_json, to_json
from dpltm.privacy.events import (
    HASHES,
    OPEN_END,
    UNKNOWN,
    BudgetEvent,
    DatasetRef,
    Event,
    GaussianEvent,
    GuaranteeEvent,
    LaplaceEvent,
    NonPrivateEvent,
    ProvenanceEvent,
    RandomizedResponseEvent,
    SelectionEvent,
    TrainingEvent,
)
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import (
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    NoisySgd,
    RandomizedResponse,
    Selection,
    Unprotected,
)
from dpltm.privacy.parts import as_replace_one, mechanisms_of, parts, profiles, stated_relations, total_epsilon
from dpltm.privacy.report import report
from entries import having

DELTA = 1e-5
HALF = HASHES // 2
FILE = DatasetRef("mine", "a" * 32, "k1")


def ranged(start, stop, cut, ref=FILE):
    return replace(ref, cut=cut, start=start, stop=stop)


def pure(ref, eps, adjacency="add-remove", unit="record"):
    """An epsilon-DP release and nothing else about it: it adds up exactly where it is all there is."""
    return GuaranteeEvent(ref, Guarantee(eps, adjacency=adjacency, unit=unit), "a count", time="t")


def total(events):
    """Of pure guarantees: their sum, at a delta at which nothing is gained."""
    return total_epsilon(events, 1e-12)


def full_batch(ref, noise, adjacency="add-remove"):
    return TrainingEvent(ref, NoisySgd(1.0, 1, noise, adjacency=adjacency), "clip 1", 10, time="t")


def gaussian_epsilon(mu):
    """Epsilon of mu-GDP at DELTA by the formula of docs/privacy-model.md section 5.3."""

    def excess(eps):
        return ndtr(-eps / mu + mu / 2) - math.exp(eps + log_ndtr(-eps / mu - mu / 2)) - DELTA

    return brentq(excess, 0.0, mu * mu + 20 * mu)


def noise_for(eps):
    return 1 / brentq(lambda mu: gaussian_epsilon(mu) - eps, 0.01, 5.0)


# --- against the sums themselves ---


def distance(sums, others):
    """How far apart the released sums of two neighbours are, all ranges together."""
    return math.sqrt(sum((one - other) ** 2 for one, other in zip(sums, others, strict=True)))


@pytest.mark.parametrize(("ranges", "truth"), [(1, 2.15), (2, 3.18), (10, 8.17)])
def test_ranges_by_position_against_brute_force(ranges, truth):
    """The first record is deleted, every later one moves: each range loses a gradient of norm C and gains its opposite."""
    each, noise = 19, noise_for(1.0)  # odd, so that what comes in is not the like of what leaves
    gradients = np.tile([1.0, -1.0], ranges * each)
    edges = [(place * each, place * each + each) for place in range(ranges)]
    apart = distance(
        [gradients[start:stop].sum() for start, stop in edges],
        [gradients[1:][start:stop].sum() for start, stop in edges],
    )
    assert apart == pytest.approx(2 * math.sqrt(ranges))
    true = gaussian_epsilon(apart / noise)
    assert true == pytest.approx(truth, abs=0.01)
    events = [full_batch(ranged(start, stop, "positions"), noise) for start, stop in edges]
    assert true <= total_epsilon(events, DELTA) <= 1.002 * true
    for accountant in ("rdp", "ma"):
        assert total_epsilon(events, DELTA, accountant) >= true
    assert approximate(mechanisms_of(events), DELTA) == pytest.approx(true, rel=1e-6)
    assert [profile.epsilon(DELTA) >= true for profile in profiles(events)] == [True]


@pytest.mark.parametrize("parts_of", [1, 2, 10])
@pytest.mark.parametrize("cut", ["values", "columns", "places"])
def test_parts_by_hash_or_place_against_brute_force(parts_of, cut):
    """The control: whoever is taken out is missed in one part, and that is all that any number of parts costs."""
    records, noise = 400, noise_for(1.0)
    gradients = np.tile([1.0, -1.0], records // 2)
    all_of = records if cut == "places" else HASHES
    where = np.arange(records) if cut == "places" else np.random.default_rng(0).integers(0, HASHES, records)
    edges = [(all_of * place // parts_of, all_of * (place + 1) // parts_of) for place in range(parts_of)]

    def sums(there):
        return [gradients[there & (where >= start) & (where < stop)].sum() for start, stop in edges]

    everybody = np.ones(records, dtype=bool)
    worst = max(distance(sums(everybody), sums(np.arange(records) != gone)) for gone in range(records))
    assert worst == 1
    events = [full_batch(ranged(start, stop, cut), noise) for start, stop in edges]
    assert gaussian_epsilon(worst / noise) <= total_epsilon(events, DELTA) <= 1.001


def test_where_positions_were_public_beside_private_releases_nothing_is_certified():
    """With one record less, the first of the private range is in the public one, whose every number is known."""
    public = ProvenanceEvent(ranged(0, 10, "positions"), "public", "s", time="t")
    private = full_batch(ranged(10, 20, "positions"), 5.0)
    records = np.arange(30.0)
    assert not set(records[:10]) & set(records[10:20])
    assert set(records[1:][:10]) & set(records[10:20])
    assert total_epsilon([private], DELTA) < math.inf
    for events in ([public, private], [private, public], [public, pure(FILE, 0.1)]):
        assert total_epsilon(events, DELTA) == approximate(mechanisms_of(events), DELTA) == math.inf
        assert report(events, DELTA, "add-remove").certified.epsilon == math.inf
    assert total_epsilon([public], DELTA) == 0  # public alone costs nothing
    for cut in ("values", "places"):  # where nobody moves there is nothing to fear
        apart = [replace(public, dataset=ranged(0, 10, cut)), replace(private, dataset=ranged(10, 20, cut))]
        assert total_epsilon(apart, DELTA) == pytest.approx(total_epsilon([apart[1]], DELTA))


# --- positions ---


def test_positions_count_twice_and_add_up():
    first, second = pure(ranged(0, 10, "positions"), 0.5), pure(ranged(10, 20, "positions"), 0.3)
    assert total([first]) == pytest.approx(1.0, abs=1e-6)
    assert total([first, second]) == pytest.approx(1.6, abs=1e-6)
    assert [len(part) for _, part in parts([first, second])] == [2]
    for cut in ("whole", "places", "values"):  # whatever else there is of that file, it may be in any range
        other = pure(FILE if cut == "whole" else ranged(0, 5, cut), 0.1)
        assert total([first, second, other]) == pytest.approx(1.7, abs=1e-6)


@pytest.mark.parametrize(
    "event",
    [
        full_batch(FILE, 8.0),
        TrainingEvent(FILE, NoisySgd(0.1, 20, 4.0), "clip 1", 10, time="t"),
        GaussianEvent(FILE, GaussianRelease(8.0), "a mean", time="t"),
        LaplaceEvent(FILE, LaplaceRelease(4.0), "a mean", time="t"),
        pure(FILE, 0.5),
        GuaranteeEvent(FILE, Guarantee(0.5, 1e-8), "a count", time="t"),
        SelectionEvent(FILE, Selection(0.5, 0.5), "additive", "exact", 1.0, 3, "s", time="t"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_range_by_position_costs_what_a_replacement_would(event):
    """One record leaves it and one comes in. Under replace-one nobody moves, and it counts once."""
    placed = replace(event, dataset=ranged(0, 10, "positions"))
    replaced = as_replace_one(event)
    assert total_epsilon([placed], DELTA) == total_epsilon([replaced], DELTA) > 1.5 * total_epsilon([event], DELTA)
    there = replace(replaced, dataset=ranged(0, 10, "positions"))
    assert total_epsilon([there], DELTA) == total_epsilon([replaced], DELTA)


def test_nothing_is_left_where_positions_have_no_mechanism():
    for event in (
        NonPrivateEvent(ranged(0, 10, "positions"), Unprotected(), "all", time="t"),
        ProvenanceEvent(ranged(0, 10, "positions"), "private", "s", time="t"),
    ):
        assert total_epsilon([event], DELTA) == math.inf
        assert total_epsilon([event, pure(ranged(20, 30, "positions"), 0.1)], DELTA) == math.inf


def test_a_report_says_how_old_ranges_count():
    events = [pure(ranged(start, start + 10, "positions"), 0.5) for start in (0, 10)]
    assert report(events, DELTA, "add-remove").notes[0] == (
        "2 entries name ranges by position, as versions before 0.2 did: a record more or less moves all that follow it, so"
        " each counts at twice its sensitivity, and all of them together"
    )


# --- hashes and places ---


@pytest.mark.parametrize("cut", ["values", "columns"])
def test_parts_by_hash_compose_in_parallel(cut):
    events = [pure(ranged(0, HALF, cut), 0.5), pure(ranged(HALF, HASHES, cut), 0.3)]
    assert total(events) == pytest.approx(0.5, abs=1e-6)
    assert total([*events, pure(ranged(HALF - 1, HALF + 1, cut), 0.1)]) == pytest.approx(0.6, abs=1e-6)
    assert total([*events, pure(FILE, 0.1)]) == pytest.approx(0.6, abs=1e-6)


@pytest.mark.parametrize("event", [full_batch(FILE, 4.0), pure(FILE, 0.5)], ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("cut", ["values", "columns"])
def test_parts_by_hash_are_refused_under_replace_one(event, cut):
    """A record replaced by one of another hash changes two parts."""
    part = ranged(0, HALF, cut)
    with pytest.raises(ArtifactError) as caught:
        replace(having(event, adjacency="replace-one"), dataset=part)
    message = (
        "mine[0.0:0.5]: a record replaced by another may leave one such part and enter another, so Expected the whole"
        " dataset under replace-one"
    )
    assert str(caught.value) == message
    with pytest.raises(ArtifactError) as caught:
        from_json(to_json(replace(event, dataset=part)) | {"adjacency": "replace-one"})
    assert str(caught.value) == message
    assert replace(having(event, adjacency="replace-one"), dataset=part.widened).dataset == FILE


@pytest.mark.parametrize("ref", [FILE, ranged(0, 10, "places"), ranged(0, 10, "positions")], ids=str)
def test_other_parts_may_be_replaced_in(ref):
    """Whoever comes in stands where the other stood."""
    assert ref.widened == ref
    assert pure(ref, 0.5, "replace-one").dataset == ref


@pytest.mark.parametrize("cut", ["values", "columns", "places", "positions"])
def test_as_replace_one(cut):
    """Two steps between neighbours, and of a part by hash, the whole dataset: twice the sensitivity either way."""
    part = ranged(0, 10, cut)
    touched = FILE if cut in ("values", "columns") else part
    for event, changes in (
        (full_batch(part, 4.0), {"noise_multiplier": 2.0, "sensitivity": 2.0}),
        (
            GaussianEvent(part, GaussianRelease(4.0), "m", time="t"),
            {"noise_multiplier": 2.0, "sensitivity": 2.0},
        ),
        (LaplaceEvent(part, LaplaceRelease(4.0), "m", time="t"), {"sensitivity": 2.0}),
        (pure(part, 0.5), {"epsilon": 1.0}),
        (
            GuaranteeEvent(part, Guarantee(0.5, 1e-6), "m", time="t"),
            {"epsilon": 1.0, "delta": pytest.approx((1 + math.exp(0.5)) * 1e-6)},
        ),
        (
            SelectionEvent(part, Selection(0.5, 0.5), "additive", "exact", 1.0, 3, "s", time="t"),
            {"certified_epsilon": 1.0},
        ),
    ):
        found = as_replace_one(event)
        assert {name: getattr(found.mechanism, name) for name in changes} == changes
        assert (found.dataset, found.mechanism.adjacency, found.mechanism.unit) == (touched, "replace-one", "record")
        assert as_replace_one(found) == found
        assert type(found) is type(event)


def test_what_is_no_release_stays_as_it_is():
    for event in (
        NonPrivateEvent(ranged(0, 10, "values"), Unprotected(), "all", time="t"),
        ProvenanceEvent(ranged(0, 10, "values"), "dp", "s", time="t"),
    ):
        assert as_replace_one(event) is event


def test_widened_parts_add_up_under_replace_one():
    """In parallel they cost the larger one; a record that changes its part is in both."""
    events = [pure(ranged(0, HALF, "values"), 0.5), pure(ranged(HALF, HASHES, "values"), 0.3)]
    assert total([as_replace_one(event) for event in events]) == pytest.approx(2 * 0.5 + 2 * 0.3, abs=1e-6)


def test_two_relations_over_disjoint_parts_are_told_apart():
    replaced, added = pure(ranged(0, 10, "places"), 0.5, "replace-one"), pure(ranged(10, 20, "places"), 0.3)
    assert total([replaced, added]) == pytest.approx(0.5, abs=1e-6)
    with pytest.raises(InputError, match="which have no common guarantee"):
        total([replaced, replace(added, dataset=ranged(9, 20, "places"))])


def test_hashes_and_places_cut_across_each_other():
    """A place may hold any hash: what is known by the one counts in every part by the other."""
    hashed = [pure(ranged(0, HALF, "values"), 0.5), pure(ranged(HALF, HASHES, "values"), 0.3)]
    placed = [pure(ranged(0, 10, "places"), 0.2), pure(ranged(10, 20, "places"), 0.1)]
    assert total([*hashed, *placed]) == pytest.approx(1.0, abs=1e-6)  # 0.7 in truth: at a place 0.2, any hash
    assert total([hashed[0], placed[0]]) == pytest.approx(0.7, abs=1e-6)
    assert total([pure(ranged(0, HALF, "values"), 0.5), pure(ranged(HALF, HASHES, "columns"), 0.3)]) == pytest.approx(
        0.8, abs=1e-6
    )


CUTS = ("whole", "values", "columns", "places", "positions")


@st.composite
def somewhere(draw):
    """A part of one of three datasets: of two that are known to be apart, or of one that nothing is known of."""
    ref = draw(st.sampled_from([FILE, replace(FILE, id="b", content=None), replace(FILE, id="c", content=UNKNOWN)]))
    cut = draw(st.sampled_from(CUTS))
    start = draw(st.integers(0, 4))
    return ref if cut == "whole" else ranged(start, start + draw(st.integers(1, 3)), cut, ref)


@given(st.lists(somewhere(), min_size=1, max_size=7))
def test_no_record_was_touched_by_more_than_some_part_holds(found):
    """Record by record: one has a hash of its values, one of its columns and a place; by position it may be anywhere."""
    events = [pure(ref, (number + 1) / 10) for number, ref in enumerate(found)]
    held = [set(part) for _, part in parts(events)]
    for dataset in {event.dataset.id for event in events}:
        for where in product(range(8), repeat=3):
            at = dict(zip(("values", "columns", "places"), where, strict=True))
            touching = set()
            for event in events:
                ref = event.dataset
                inside = ref.cut not in at or ref.start <= at[ref.cut] < ref.stop
                unknown = "c" in (ref.id, dataset)
                if (ref.id == dataset and inside) or (ref.id != dataset and unknown):
                    touching.add(event)
            if any(event.dataset.id == dataset for event in touching):
                assert any(touching <= part for part in held)


# --- whose records ---


def test_what_is_not_known_adds_up():
    """A reference that is read from a file and that nobody here has met."""
    stranger, other = (ref_from_json(ref_to_json(replace(FILE, id=name))) for name in ("b", "c"))
    assert stranger.content == other.content == UNKNOWN
    assert total([pure(FILE, 0.5), pure(stranger, 0.3), pure(other, 0.1)]) == pytest.approx(0.9, abs=1e-6)
    for one, two in ((FILE, stranger), (stranger, other)):
        assert one.may_overlap(two)
        assert two.may_overlap(one)
        assert not one.surely_overlaps(two)
    assert stranger.surely_overlaps(stranger)  # the same id
    halves = [pure(ranged(0, HALF, "values", stranger), 0.5), pure(ranged(HALF, HASHES, "values", stranger), 0.3)]
    assert total(halves) == pytest.approx(0.5, abs=1e-6)  # parts of one dataset, whatever it is
    events = [pure(FILE, 0.5), pure(stranger, 0.3)]
    assert (
        "records under ids that are not known here (mine) may be the same as any others: they add up"
        in report(events, DELTA, "add-remove").notes
    )


def test_known_to_be_other_records_costs_nothing():
    other = DatasetRef("other", "b" * 32, "k1")
    assert not FILE.may_overlap(other)
    assert total([pure(FILE, 0.5), pure(other, 0.3)]) == pytest.approx(0.5, abs=1e-6)


def test_another_id_for_the_same_content_is_the_same():
    again = replace(FILE, id="b" * 32, name="renamed")
    assert again.content == FILE.content
    assert FILE.surely_overlaps(again)
    assert total([pure(FILE, 0.5), pure(again, 0.3)]) == pytest.approx(0.8, abs=1e-6)
    halves = [pure(ranged(0, HALF, "values"), 0.5), pure(ranged(HALF, HASHES, "values", again), 0.3)]
    assert total(halves) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("mutual", [True, False])
@pytest.mark.parametrize("same", [True, False])
def test_common_rows_add_up(mutual, same):
    """Whichever of the two was met first; by coincidence or not, which decides what is refused, and not what it costs."""

    def known(ref, content):
        found = frozenset({"k1:" + content * 32})
        return replace(ref, shares=found, same=found if same else frozenset())

    other = known(DatasetRef("other", "b" * 32, "k1"), "a")
    first = known(FILE, "b") if mutual else FILE
    for one, two in ((first, other), (other, first)):
        assert one.surely_overlaps(two) is same
        assert one.may_overlap(two)
        assert total([pure(one, 0.5), pure(two, 0.3)]) == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize("cut", ["values", "columns"])
def test_parts_of_two_files_with_common_rows_are_not_known_to_be_apart(cut):
    """Rows are recognised under other columns, in other orders; their public hashes are then others."""
    found = frozenset({"k1:" + "a" * 32})
    other = replace(DatasetRef("other", "b" * 32, "k1"), shares=found, same=found)
    one, two = ranged(0, HALF, cut), ranged(HALF, HASHES, cut, other)
    assert one.may_overlap(two)
    assert two.may_overlap(one)
    assert not one.surely_overlaps(two)
    assert total([pure(one, 0.5), pure(two, 0.3)]) == pytest.approx(0.8, abs=1e-6)
    assert one.surely_overlaps(ranged(0, HALF, cut, other))


def test_a_first_draw_looks_at_whoever_it_may_share():
    draw = SelectionEvent(
        ranged(0, HALF, "values"), Selection(0.5, 0.5, adaptive=False), "additive", "exact", 1.0, 3, "s", time="t"
    )
    Ledger([pure(ranged(HALF, HASHES, "values"), 0.1)]).append(draw)
    for before in (
        pure(FILE, 0.1),
        pure(ranged(0, 5, "positions"), 0.1),
        pure(replace(FILE, id="c", content=""), 0.1),
    ):
        with pytest.raises(ArtifactError, match="Expected adaptive=True"):
            Ledger([before]).append(draw)


# --- references ---


@pytest.mark.parametrize("cut", ["values", "columns"])
@pytest.mark.parametrize(("start", "stop"), [(0, HASHES + 1), (5, 5), (HASHES, HASHES + 1)])
def test_hashes_end(cut, start, stop):
    with pytest.raises(ArtifactError) as caught:
        ranged(start, stop, cut)
    assert str(caught.value) == f"dataset reference mine: records {start}:{stop} are not a range"


@pytest.mark.parametrize(("start", "stop"), [(1, OPEN_END), (0, 10)])
def test_the_whole_has_no_range(start, stop):
    with pytest.raises(ArtifactError) as caught:
        ranged(start, stop, "whole")
    assert str(caught.value) == f"dataset reference mine: the whole of it has no range {start}:{stop}"


def test_what_is_known_here_is_never_written_and_makes_no_difference():
    known = replace(FILE, content="k1:secret", shares=frozenset({"k1:other"}), same=frozenset({"k1:other"}))
    assert known == FILE
    assert hash(known) == hash(FILE)
    for text in (str(ref_to_json(known)), str(to_json(pure(known, 0.5))), repr(known), str(known)):
        assert "secret" not in text
        assert "k1:other" not in text


BEFORE = {"name": "mine", "fingerprint": "f" * 32, "key_id": "k1", "start": 0, "stop": OPEN_END}


def test_references_of_before_are_read_as_the_costlier_case():
    """Their fingerprint knew the file and not the people; their ranges moved."""
    whole, part = ref_from_json(BEFORE), ref_from_json({**BEFORE, "start": 10, "stop": 20})
    assert (whole.cut, whole.id, whole.content) == ("whole", "f" * 32, UNKNOWN)
    assert (part.cut, part.start, part.stop, part.content) == ("positions", 0, OPEN_END, UNKNOWN)
    assert ref_from_json({**BEFORE, "stop": 1438}).cut == "positions"
    assert ref_from_json({**BEFORE, "start": 5}).cut == "positions"
    assert whole.may_overlap(FILE)
    assert part.may_overlap(ref_from_json({**BEFORE, "fingerprint": "e", "start": 20, "stop": 30}))


@pytest.mark.parametrize(
    "body",
    [
        {**BEFORE, "cut": "places"},
        {**BEFORE, "id": "f"},
        {key: value for key, value in BEFORE.items() if key != "fingerprint"},
        {**{key: value for key, value in BEFORE.items() if key != "fingerprint"}, "id": "f"},
    ],
)
def test_neither_as_before_nor_as_now(body):
    with pytest.raises(ArtifactError, match="reference to records: unknown or missing field"):
        ref_from_json(body)


# --- as lists of parts ---


def statistic(start, stop, eps, name="a", key="k1", cut="places"):
    ref = DatasetRef("d", name, key, start, stop, cut)
    return GuaranteeEvent(ref, Guarantee(eps), f"{start}", time="t")


def layout(events):
    return [(ref.id, ref.start, ref.stop, {event.mechanism.epsilon for event in part}) for ref, part in parts(events)]


def test_disjoint_ranges_compose_in_parallel():
    events = [statistic(0, 100, 0.5), statistic(100, 200, 0.3)]
    assert layout(events) == [("a", 0, 100, {0.5}), ("a", 100, 200, {0.3})]
    assert total_epsilon(events, 1e-12) == total_epsilon(events[:1], 1e-12) == pytest.approx(0.5, abs=1e-6)


def test_overlapping_ranges_add_up_where_they_overlap():
    events = [statistic(0, 100, 0.5), statistic(99, 200, 0.3), statistic(150, 300, 0.4)]
    assert layout(events) == [
        ("a", 0, 99, {0.5}),
        ("a", 99, 100, {0.5, 0.3}),
        ("a", 100, 150, {0.3}),
        ("a", 150, 200, {0.3, 0.4}),
        ("a", 200, 300, {0.4}),
    ]
    assert total_epsilon(events, 1e-12) == pytest.approx(0.8, abs=1e-6)


def test_gaps_and_other_data_are_kept_apart():
    events = [statistic(0, 10, 0.5), statistic(20, 30, 0.3), statistic(0, 30, 0.4, "b")]
    assert layout(events) == [("a", 0, 10, {0.5}), ("a", 20, 30, {0.3}), ("b", 0, 30, {0.4})]


def test_other_keys_count_everywhere():
    """What their ids stand for cannot be compared, so that they may be the same records."""
    events = [statistic(0, 10, 0.5), statistic(20, 30, 0.3), statistic(0, 5, 0.2, "b", "k2")]
    assert layout(events) == [
        ("a", 0, 10, {0.5, 0.2}),
        ("a", 20, 30, {0.3, 0.2}),
        ("b", 0, 5, {0.5, 0.3, 0.2}),
    ]
    assert total_epsilon(events, 1e-12) == pytest.approx(1.0, abs=1e-6)


def test_neighbouring_ranges_that_were_treated_alike_are_one_part():
    events = [statistic(0, 30, 0.5), statistic(10, 20, 0.5, "b")]
    assert [(ref.start, ref.stop) for ref, _ in parts(events)] == [(0, 30), (10, 20)]
    assert parts([]) == []


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 8), st.integers(1, 8), st.sampled_from(["a", "b"]), st.sampled_from(["k1", "k1", "k2"])
        ),
        min_size=1,
        max_size=6,
    )
)
def test_parts_cover_every_record(ranges):
    """Record by record: for each there is a part that holds every event that may have touched it, and nothing less."""
    events = [statistic(start, start + size, 0.1 * (n + 1), f, k) for n, (start, size, f, k) in enumerate(ranges)]
    found = parts(events)
    for event in events:
        own = event.dataset
        for record in range(own.start, own.stop):
            one = DatasetRef("d", own.id, own.key_id, record, record + 1, "places")
            touching = {e for e in events if e.dataset.may_overlap(one)}
            assert any(touching <= set(part) for _, part in found)
    for _, part in found:  # and no part adds up ranges of one dataset that share no record
        for key in {(e.dataset.key_id, e.dataset.id) for e in part}:
            same = [e.dataset for e in part if (e.dataset.key_id, e.dataset.id) == key]
            keys = {e.dataset.key_id for e in part}
            assert len(keys) > 1 or max(ref.start for ref in same) < min(ref.stop for ref in same)


def test_profiles_are_one_for_each_part():
    events = [statistic(0, 100, 0.5), statistic(100, 200, 0.3)]
    tops = [float(profile.delta(np.array([0.0]))[0]) for profile in profiles(events)]
    assert tops == pytest.approx([math.tanh(0.25), math.tanh(0.15)], rel=1e-3)
    part = ranged(0, 100, "places")
    for event in (NonPrivateEvent(part, Unprotected(), "scores"), pure(part, 600.0)):
        with pytest.raises(InputError) as caught:
            profiles([event])
        assert str(caught.value) == (
            "mine[0:100]: there is no curve to draw: something was released without protection, or at an epsilon above 500"
        )


# --- statements, and what is known of events ---


def provenance(kind):
    return ProvenanceEvent(FILE, kind, "set", time="t")


def test_what_costs_nothing():
    assert total_epsilon([], DELTA) == 0
    assert total_epsilon([provenance("data-free"), provenance("public"), provenance("dp")], DELTA) == 0
    assert total_epsilon([BudgetEvent(FILE, 1.0, DELTA)], DELTA) == 0
    events = [pure(FILE, 0.5)]
    assert total_epsilon([provenance("dp"), *events], DELTA) == total_epsilon(events, DELTA) > 0


@pytest.mark.parametrize("among", [0, 1])
def test_private_provenance_is_infinite(among):
    assert total_epsilon([provenance("private"), *[pure(FILE, 0.5)] * among], DELTA) == math.inf


def test_stated_relations():
    response = RandomizedResponseEvent(FILE, RandomizedResponse(0.1, 2), "labels")
    revealed = NonPrivateEvent(FILE, Unprotected(), "scores")
    events = [pure(FILE, 0.1), response, revealed, provenance("dp"), BudgetEvent(FILE, 1.0, DELTA)]
    assert stated_relations(events) == ["add-remove", "replace-one"]


def test_unknown_event_is_refused():
    """A kind without a cost must never pass as free."""
    with pytest.raises(InputError) as caught:
        total_epsilon([Event(FILE)], DELTA)
    assert str(caught.value) == "the accountant does not know the event Event"
