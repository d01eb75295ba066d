"""Parts of a dataset: what one record more or less changes in them, and what the accountant makes of it.

docs/privacy-model.md section 1.5. Each rule is compared with the truth, worked out from the records themselves.
"""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from dpltm.errors import ArtifactError, InputError
from dpltm.privacy.accountant import approximate
from dpltm.privacy.event_json import from_json, ref_from_json, ref_to_json, to_json
from dpltm.privacy.events import HASHES, OPEN_END, UNKNOWN, DatasetRef, Event
from dpltm.privacy.mechanisms import Unprotected
from dpltm.privacy.old_ledger import Ledger
from dpltm.privacy.parts import as_replace_one, mechanisms_of, parts, profiles, stated_relations, total_epsilon
from dpltm.privacy.report import report
from entries import (
    BUDGET,
    FIRST,
    GAUSSIAN,
    GUARANTEE,
    LAPLACE,
    PRIVATE,
    PROVENANCE,
    REVEALED,
    SELECTION,
    TRAINING,
    having,
    pure,
)
from exact import gaussian_epsilon

DELTA = 1e-5
HALF = HASHES // 2
FILE = DatasetRef("mine", "a" * 32, "k1")


def ranged(start, stop, cut, ref=FILE):
    return replace(ref, cut=cut, start=start, stop=stop)


FIRST_HALF, SECOND_HALF = ranged(0, HALF, "values"), ranged(HALF, HASHES, "values")
NOISE = 1 / brentq(lambda mu: gaussian_epsilon(mu) - 1.0, 0.01, 5.0)
"""At which a full step costs 1."""


def total(events):
    """Of pure guarantees: their sum, at a delta at which nothing is gained."""
    return total_epsilon(events, 1e-12)


def full_batch(ref, noise, adjacency="add-remove"):
    return replace(
        having(TRAINING, sampling_rate=1.0, steps=1, noise_multiplier=noise, adjacency=adjacency), dataset=ref
    )


# --- against the sums themselves ---


def distance(sums, others):
    """How far apart the released sums of two neighbours are, all ranges together."""
    return math.sqrt(sum((one - other) ** 2 for one, other in zip(sums, others, strict=True)))


@pytest.mark.parametrize(("ranges", "truth"), [(1, 2.15), (10, 8.17)])
def test_ranges_by_position_against_brute_force(ranges, truth):
    """The first record is deleted, every later one moves: each range loses a gradient of norm C and gains its opposite."""
    each = 19  # odd, so that what comes in is not the like of what leaves
    gradients = np.tile([1.0, -1.0], ranges * each)
    edges = [(place * each, place * each + each) for place in range(ranges)]
    apart = distance(
        [gradients[start:stop].sum() for start, stop in edges],
        [gradients[1:][start:stop].sum() for start, stop in edges],
    )
    assert apart == pytest.approx(2 * math.sqrt(ranges))
    true = gaussian_epsilon(apart / NOISE)
    assert true == pytest.approx(truth, abs=0.01)
    events = [full_batch(ranged(start, stop, "positions"), NOISE) for start, stop in edges]
    assert true <= total_epsilon(events, DELTA) <= 1.002 * true
    for accountant in ("rdp", "ma"):
        assert total_epsilon(events, DELTA, accountant) >= true
    assert approximate(mechanisms_of(events), DELTA) == pytest.approx(true, rel=1e-6)
    assert [profile.epsilon(DELTA) >= true for profile in profiles(events)] == [True]


@pytest.mark.parametrize("parts_of", [1, 10])
@pytest.mark.parametrize("cut", ["values", "columns", "places"])
def test_parts_by_hash_or_place_against_brute_force(parts_of, cut):
    """The control: whoever is taken out is missed in one part, and that is all that any number of parts costs."""
    records = 40
    gradients = np.tile([1.0, -1.0], records // 2)
    all_of = records if cut == "places" else HASHES
    where = np.arange(records) if cut == "places" else np.random.default_rng(0).integers(0, HASHES, records)
    edges = [(all_of * place // parts_of, all_of * (place + 1) // parts_of) for place in range(parts_of)]

    def sums(there):
        return [gradients[there & (where >= start) & (where < stop)].sum() for start, stop in edges]

    everybody = np.ones(records, dtype=bool)
    worst = max(distance(sums(everybody), sums(np.arange(records) != gone)) for gone in range(records))
    assert worst == 1
    events = [full_batch(ranged(start, stop, cut), NOISE) for start, stop in edges]
    assert gaussian_epsilon(worst / NOISE) <= total_epsilon(events, DELTA) <= 1.001


def test_where_positions_were_public_beside_private_releases_nothing_is_certified():
    """With one record less, the first of the private range is in the public one, whose every number is known."""
    public = replace(PROVENANCE, dataset=ranged(0, 10, "positions"), provenance="public")
    private = full_batch(ranged(10, 20, "positions"), 5.0)
    records = np.arange(30.0)
    assert not set(records[:10]) & set(records[10:20])
    assert set(records[1:][:10]) & set(records[10:20])
    assert total_epsilon([private], DELTA) < math.inf
    for events in ([public, private], [private, public], [public, pure(0.1, FILE)]):
        assert total_epsilon(events, DELTA) == approximate(mechanisms_of(events), DELTA) == math.inf
        assert report(events, DELTA, "add-remove").certified.epsilon == math.inf
    assert total_epsilon([public], DELTA) == 0  # public alone costs nothing
    for cut in ("values", "places"):  # where nobody moves there is nothing to fear
        apart = [replace(public, dataset=ranged(0, 10, cut)), replace(private, dataset=ranged(10, 20, cut))]
        assert total_epsilon(apart, DELTA) == pytest.approx(total_epsilon([apart[1]], DELTA))


# --- positions ---


def test_positions_count_twice_and_add_up():
    events = [pure(eps, ranged(start, start + 10, "positions")) for start, eps in ((0, 0.5), (10, 0.3))]
    assert total(events[:1]) == pytest.approx(1.0, abs=1e-6)
    assert total(events) == pytest.approx(1.6, abs=1e-6)
    assert [len(part) for _, part in parts(events)] == [2]
    for ref in (FILE, ranged(0, 5, "places"), FIRST_HALF):  # whatever else there is of that file may be in any range
        assert total([*events, pure(0.1, ref)]) == pytest.approx(1.7, abs=1e-6)
    assert report(events, DELTA, "add-remove").notes[0] == (
        "2 entries name ranges by position, as versions before 0.2 did: a record more or less moves all that follow it, so"
        " each counts at twice its sensitivity, and all of them together"
    )
    for event in (REVEALED, PROVENANCE):
        assert total([*events, replace(event, dataset=ranged(30, 40, "positions"))]) == math.inf


ADDED = [
    full_batch(FILE, 8.0),
    having(TRAINING, sampling_rate=0.1, steps=5, noise_multiplier=4.0),
    GAUSSIAN,
    LAPLACE,
    pure(0.5),
    having(GUARANTEE, delta=1e-8),
    SELECTION,
]
"""Releases stated for add/remove."""


@pytest.mark.parametrize("event", ADDED, ids=lambda event: type(event).__name__)
def test_a_range_by_position_costs_what_a_replacement_would(event):
    """One record leaves it and one comes in. Under replace-one nobody moves, and it counts once."""
    placed = replace(event, dataset=ranged(0, 10, "positions"))
    replaced = as_replace_one(replace(event, dataset=FILE))
    assert total_epsilon([placed], DELTA) == total_epsilon([replaced], DELTA) > 1.5 * total_epsilon([event], DELTA)
    there = replace(replaced, dataset=ranged(0, 10, "positions"))
    assert total_epsilon([there], DELTA) == total_epsilon([replaced], DELTA)


# --- hashes and places ---


@pytest.mark.parametrize("cut", ["values", "columns"])
def test_parts_by_hash_compose_in_parallel(cut):
    """Under replace-one a record that changes its part is in both: widened to the whole, they add up at twice each."""
    events = [pure(0.5, ranged(0, HALF, cut)), pure(0.3, ranged(HALF, HASHES, cut))]
    assert total(events) == pytest.approx(0.5, abs=1e-6)
    assert total([*events, pure(0.1, ranged(HALF - 1, HALF + 1, cut))]) == pytest.approx(0.6, abs=1e-6)
    assert total([*events, pure(0.1, FILE)]) == pytest.approx(0.6, abs=1e-6)
    assert total([as_replace_one(event) for event in events]) == pytest.approx(1.6, abs=1e-6)


@pytest.mark.parametrize("event", [*PRIVATE, REVEALED], ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("cut", ["values", "columns"])
def test_parts_by_hash_are_refused_under_replace_one(event, cut):
    """A record replaced by one of another hash changes two parts; by place or position, it stands where the other stood."""
    replaced, part = having(event, adjacency="replace-one"), ranged(0, HALF, cut)
    with pytest.raises(ArtifactError) as caught:
        replace(replaced, dataset=part)
    message = (
        "mine[0.0:0.5]: a record replaced by another may leave one such part and enter another, so Expected the whole"
        " dataset under replace-one"
    )
    assert str(caught.value) == message
    with pytest.raises(ArtifactError) as caught:
        from_json(to_json(replaced) | {"dataset": ref_to_json(part)})
    assert str(caught.value) == message
    assert replace(replaced, dataset=part.widened).dataset == FILE
    for ref in (FILE, ranged(0, 10, "places"), ranged(0, 10, "positions")):
        assert replace(replaced, dataset=ref).dataset == ref.widened == ref


@pytest.mark.parametrize("cut", ["values", "columns", "places", "positions"])
def test_as_replace_one(cut):
    """Two steps between neighbours, and of a part by hash, the whole dataset: twice the sensitivity either way."""
    part = ranged(0, 10, cut)
    for event, changes in (
        (having(TRAINING, noise_multiplier=4.0), {"noise_multiplier": 2.0, "sensitivity": 2.0}),
        (GAUSSIAN, {"noise_multiplier": 2.0, "sensitivity": 6.0}),
        (LAPLACE, {"sensitivity": 4.0, "scale": 4.0}),
        (pure(0.5), {"epsilon": 1.0, "delta": 0.0}),
        (GUARANTEE, {"epsilon": 1.0, "delta": pytest.approx((1 + math.exp(0.5)) * 1e-7)}),
        (SELECTION, {"certified_epsilon": 1.0, "eps1": 0.5}),
    ):
        found = as_replace_one(replace(event, dataset=part))
        assert {name: getattr(found.mechanism, name) for name in changes} == changes
        assert (found.dataset, found.mechanism.adjacency) == (part.widened, "replace-one")
        assert as_replace_one(found) == found
        assert type(found) is type(event)
    for event in (REVEALED, PROVENANCE):  # no release
        assert as_replace_one(event) is event
    sure = having(GUARANTEE, epsilon=50.0)  # of which two steps leave nothing
    assert as_replace_one(sure) == replace(REVEALED, mechanism=Unprotected(adjacency="replace-one"), what="a count")


def test_two_relations_over_disjoint_parts_are_told_apart():
    replaced = pure(0.5, ranged(0, 10, "places"), adjacency="replace-one")
    added = pure(0.3, ranged(10, 20, "places"))
    assert total([replaced, added]) == pytest.approx(0.5, abs=1e-6)
    assert stated_relations([added, replaced, REVEALED, PROVENANCE, BUDGET]) == ["add-remove", "replace-one"]
    with pytest.raises(InputError, match="which have no common guarantee"):
        total([replaced, replace(added, dataset=ranged(9, 20, "places"))])


def test_hashes_and_places_cut_across_each_other():
    """A place may hold any hash: what is known by the one counts in every part by the other."""
    hashed = [pure(0.5, FIRST_HALF), pure(0.3, SECOND_HALF)]
    placed = [pure(0.2, ranged(0, 10, "places")), pure(0.1, ranged(10, 20, "places"))]
    assert total([*hashed, *placed]) == pytest.approx(1.0, abs=1e-6)  # 0.7 in truth: at a place 0.2, any hash
    assert total([hashed[0], placed[0]]) == pytest.approx(0.7, abs=1e-6)
    assert total([hashed[0], pure(0.3, ranged(HALF, HASHES, "columns"))]) == pytest.approx(0.8, abs=1e-6)


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
    """Record by record: one has a hash of its values, one of its columns and a place; by position it may be anywhere.

    And no part adds up ranges that share no record, of a dataset all of whose events are cut by place.
    """
    events = [pure((number + 1) / 10, ref) for number, ref in enumerate(found)]
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
    for (ref, _), part in zip(parts(events), held, strict=True):
        same = [event.dataset for event in part if event.dataset.id == ref.id and event.dataset.cut == ref.cut]
        assert max(each.start for each in [ref, *same]) < min(each.stop for each in [ref, *same])


# --- whose records ---


def test_what_is_not_known_adds_up():
    """A reference that is read from a file and that nobody here has met."""
    stranger, other = (ref_from_json(ref_to_json(replace(FILE, id=name))) for name in ("b", "c"))
    assert stranger.content == other.content == UNKNOWN
    assert total([pure(0.5, FILE), pure(0.3, stranger), pure(0.1, other)]) == pytest.approx(0.9, abs=1e-6)
    for one, two in ((FILE, stranger), (stranger, other)):
        assert one.may_overlap(two)
        assert two.may_overlap(one)
        assert not one.surely_overlaps(two)
    assert stranger.surely_overlaps(stranger)  # the same id
    halves = [pure(0.5, ranged(0, HALF, "values", stranger)), pure(0.3, ranged(HALF, HASHES, "values", stranger))]
    assert total(halves) == pytest.approx(0.5, abs=1e-6)  # parts of one dataset, whatever it is
    assert (
        "records under ids that are not known here (mine) may be the same as any others: they add up"
        in report([pure(0.5, FILE), pure(0.3, stranger)], DELTA, "add-remove").notes
    )


def test_another_id_for_the_same_content_is_the_same():
    again, other = replace(FILE, id="b" * 32, name="renamed"), DatasetRef("other", "b" * 32, "k1")
    assert again.content == FILE.content
    assert FILE.surely_overlaps(again)
    assert total([pure(0.5, FILE), pure(0.3, again)]) == pytest.approx(0.8, abs=1e-6)
    halves = [pure(0.5, FIRST_HALF), pure(0.3, ranged(HALF, HASHES, "values", again))]
    assert total(halves) == pytest.approx(0.5, abs=1e-6)
    assert not FILE.may_overlap(other)
    assert total([pure(0.5, FILE), pure(0.3, other)]) == pytest.approx(0.5, abs=1e-6)


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
        assert total([pure(0.5, one), pure(0.3, two)]) == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize("cut", ["values", "columns"])
def test_parts_of_two_files_with_common_rows_are_not_known_to_be_apart(cut):
    """Rows are recognised under other columns, in other orders; their public hashes are then others: no part is apart."""
    found = frozenset({"k1:" + "a" * 32})
    other = replace(DatasetRef("other", "b" * 32, "k1"), shares=found, same=found)
    one, two = ranged(0, HALF, cut), ranged(HALF, HASHES, cut, other)
    assert one.may_overlap(two)
    assert two.may_overlap(one)
    assert one.surely_overlaps(two)
    assert total([pure(0.5, one), pure(0.3, two)]) == pytest.approx(0.8, abs=1e-6)
    assert one.surely_overlaps(ranged(0, HALF, cut, other))


def test_a_first_draw_looks_at_whoever_it_may_share():
    draw = replace(FIRST, dataset=FIRST_HALF)
    Ledger([pure(0.1, SECOND_HALF)]).append(draw)
    for ref in (FILE, ranged(0, 5, "positions"), replace(FILE, id="c", content="")):
        with pytest.raises(ArtifactError, match="Expected adaptive=True"):
            Ledger([pure(0.1, ref)]).append(draw)


# --- references ---


@pytest.mark.parametrize(
    ("start", "stop", "cut", "said"),
    [
        (0, HASHES + 1, "values", "records 0:1000000001 are not a range"),
        (HASHES, HASHES + 1, "columns", "records 1000000000:1000000001 are not a range"),
        (5, 5, "places", "records 5:5 are not a range"),
        (6, 5, "positions", "records 6:5 are not a range"),
        (-1, 5, "places", "records -1:5 are not a range"),
        (1, OPEN_END, "whole", f"the whole has no range 1:{OPEN_END}"),
        (0, 10, "whole", "the whole has no range 0:10"),
    ],
)
def test_no_range(start, stop, cut, said):
    with pytest.raises(ArtifactError) as caught:
        ranged(start, stop, cut)
    assert str(caught.value) == f"dataset reference mine: {said}"


def test_what_is_known_here_is_never_written_and_makes_no_difference():
    known = replace(FILE, content="k1:secret", shares=frozenset({"k1:other"}), same=frozenset({"k1:other"}))
    assert known == FILE
    assert hash(known) == hash(FILE)
    for text in (str(ref_to_json(known)), str(to_json(pure(0.5, known))), repr(known), str(known)):
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


def statistic(start, stop, eps, name="a", key="k1"):
    return pure(eps, DatasetRef("d", name, key, start, stop, "places"))


def layout(events):
    return [(ref.id, ref.start, ref.stop, {event.mechanism.epsilon for event in part}) for ref, part in parts(events)]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([statistic(0, 100, 0.5), statistic(100, 200, 0.3)], [("a", 0, 100, {0.5}), ("a", 100, 200, {0.3})]),
        (
            [statistic(0, 100, 0.5), statistic(99, 200, 0.3), statistic(150, 300, 0.4)],
            [
                ("a", 0, 99, {0.5}),
                ("a", 99, 100, {0.5, 0.3}),
                ("a", 100, 150, {0.3}),
                ("a", 150, 200, {0.3, 0.4}),
                ("a", 200, 300, {0.4}),
            ],
        ),
        (
            [statistic(0, 10, 0.5), statistic(20, 30, 0.3), statistic(0, 30, 0.4, "b")],
            [("a", 0, 10, {0.5}), ("a", 20, 30, {0.3}), ("b", 0, 30, {0.4})],
        ),
        # What other keys stand for cannot be compared, so that it counts everywhere.
        (
            [statistic(0, 10, 0.5), statistic(20, 30, 0.3), statistic(0, 5, 0.2, "b", "k2")],
            [("a", 0, 10, {0.5, 0.2}), ("a", 20, 30, {0.3, 0.2}), ("b", 0, 5, {0.5, 0.3, 0.2})],
        ),
        # Neighbouring ranges that were treated alike are one part.
        ([statistic(0, 30, 0.5), statistic(10, 20, 0.5, "b")], [("a", 0, 30, {0.5}), ("b", 10, 20, {0.5})]),
        ([], []),
    ],
)
def test_ranges_add_up_where_they_overlap(events, expected):
    assert layout(events) == expected
    largest = max((sum(epsilons) for *_, epsilons in expected), default=0.0)
    assert total(events) == pytest.approx(largest, abs=1e-6)


def test_profiles_are_one_for_each_part():
    events = [statistic(0, 100, 0.5), statistic(100, 200, 0.3)]
    tops = [float(profile.delta(np.array([0.0]))[0]) for profile in profiles(events)]
    assert tops == pytest.approx([math.tanh(0.25), math.tanh(0.15)], rel=1e-3)
    for event in (REVEALED, pure(600.0)):
        with pytest.raises(InputError, match=r"^mnist\[0:60000\]: there is no curve to draw: "):
            profiles([event])


# --- statements, and what is known of events ---


def test_what_statements_cost():
    """Nothing, but that tickets were made with no mechanism."""
    free = [replace(PROVENANCE, provenance=kind) for kind in ("data-free", "public", "dp")]
    assert total_epsilon([], DELTA) == total_epsilon([*free, BUDGET], DELTA) == 0
    assert total_epsilon([*free, GUARANTEE], DELTA) == total_epsilon([GUARANTEE], DELTA) > 0
    assert total_epsilon([PROVENANCE], DELTA) == total_epsilon([PROVENANCE, GUARANTEE], DELTA) == math.inf


def test_unknown_event_is_refused():
    """A kind without a cost must never pass as free."""
    with pytest.raises(InputError) as caught:
        total_epsilon([Event(FILE)], DELTA)
    assert str(caught.value) == "the accountant does not know the event Event"
