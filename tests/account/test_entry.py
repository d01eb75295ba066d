"""Parts, entries and lineages: unions, and JSON that refuses the unknown. Whom ranges separate, ``test_world`` shows."""

import copy
import json
import math
import pickle
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.errors import ArtifactError
from dpltm.privacy.entry import (
    END,
    HASHES,
    MECHANISMS,
    Entry,
    Head,
    Lineage,
    Part,
    entry_from_json,
    lineage_from_json,
    lineage_from_text,
    lineage_of,
    to_json,
    union,
)
from dpltm.privacy.mechanisms import GaussianRelease, Guarantee, Mechanism
from every_mechanism import EVERY
from refusals import refused

HALF = HASHES // 2
NOISE = GaussianRelease(4.0)


def ranged(start, stop, cut="record", snapshot="one", columns=("age", "sex")):
    return Part("table", snapshot, columns, cut, start, stop)


def entry(id, mechanism=NOISE, **more):
    return Entry("release", mechanisms=(mechanism,), id=id, **({"home": "home", "day": "2026-01-01"} | more))


@pytest.mark.parametrize(
    ("other", "overlaps"),
    [
        (ranged(0, 1), True),
        (ranged(HALF, HASHES), False),
        (ranged(HALF, HASHES, cut="person"), True),
        (Part("table", "one"), True),
        (Part("table", "two"), False),  # not surely
        (Part(), False),
    ],
)
def test_what_surely_shares_records_refuses(other, overlaps):
    assert ranged(0, HALF).overlaps(other) is overlaps


@pytest.mark.parametrize(
    ("cut", "start", "stop"),
    [
        ("record", 0, HASHES + 1),
        ("record", 0, END),
        ("person", 5, 5),
        ("place", -1, 5),
        ("place", 5, 4),
        ("whole", 0, 5),
    ],
)
def test_what_is_no_range_is_refused(cut, start, stop):
    with pytest.raises(ArtifactError, match=f"table: {start}:{stop}"):
        ranged(start, stop, cut)


@pytest.mark.parametrize(
    ("kind", "mechanisms", "population"),
    [
        ("release", (), None),
        ("local", (), None),
        ("budget", (), None),
        ("budget", (NOISE,), None),
        ("budget", (Guarantee(1.0, 1e-5), Guarantee(1.0, 1e-5)), None),
        ("budget", (Guarantee(1.0),), None),  # no accountant answers at delta 0
        ("public", (NOISE,), None),
        ("excluded", (NOISE,), None),
        ("apart", (NOISE,), "others"),
        ("apart", (), None),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused(kind, mechanisms, population):
    refused(Entry, kind, mechanisms=mechanisms, population=population, kind=ArtifactError)


# --- unions ---------------------------------------------------------------------------------------------------------

POOL = [entry(f"{number:064x}", GaussianRelease(1.0 + number)) for number in range(6)]
lineages = st.builds(
    lambda chosen, counts: Lineage(
        tuple(chosen), tuple(Head(f"ledger {k}", n, f"{k} {n}") for k, n in counts.items())
    ),
    st.lists(st.sampled_from(POOL), unique=True),
    st.dictionaries(st.integers(0, 2), st.integers(0, 5)),
)


def content(lineage):
    return {each.id: each for each in lineage.entries}, {head.ledger: head for head in lineage.heads}


@given(lineages, lineages, lineages)
def test_unions_lose_nothing_count_nothing_twice_and_have_no_order(one, two, three):
    assert (one | two) | three == one | (two | three)
    assert content(one | two) == content(two | one)
    assert content(one | one) == content(Lineage() | one) == content(one)
    assert one | Lineage() == one
    assert {each.id for each in (one | two).entries} == {each.id for part in (one, two) for each in part.entries}
    for ledger, head in content(one | two)[1].items():
        assert head.count == max(each.count for part in (one, two) for each in part.heads if each.ledger == ledger)


def test_one_id_with_two_contents_is_refused_in_either_order():
    true, edited = entry("1" * 64), entry("1" * 64, GaussianRelease(40.0))
    for groups in (((true,), (edited,)), ((edited,), (true,)), ((true, edited),)):
        assert "111111111111" in refused(union, *groups, kind=ArtifactError)


@pytest.mark.parametrize(
    ("entries", "heads"),
    [
        ((entry("1" * 64), entry("1" * 64)), ()),
        ((entry(""),), ()),
        ((entry("1" * 64, home=""),), ()),
        ((), (Head("ledger", 1, "a"), Head("ledger", 2, "b"))),
    ],
)
def test_a_lineage_that_contradicts_itself_is_refused(entries, heads):
    refused(Lineage, entries, heads, kind=ArtifactError)


def test_a_value_that_does_not_say_where_it_comes_from_has_no_lineage():
    assert not lineage_of(None)
    with pytest.raises(AttributeError):
        lineage_of("a text")


# --- JSON -----------------------------------------------------------------------------------------------------------

ONE, TWO = "1" * 64, "2" * 64
FULL = Lineage(
    (
        Entry("release", ranged(0, HALF), EVERY, "words", "facts", "people", "patient", "2026-01-01", ONE, TWO, 1),
        Entry("apart", population="others", id="3" * 64, home=TWO, sequence=2),
    ),
    (Head(TWO, 2, "4" * 64),),
)


def test_every_mechanism_has_a_name():
    assert set(MECHANISMS.values()) == {type(mechanism) for mechanism in EVERY} == set(_concrete(Mechanism))


def _concrete(kind):
    return [
        found
        for each in kind.__subclasses__()
        for found in (each, *_concrete(each))
        if each.__module__ == "dpltm.privacy.mechanisms" and each.__name__ != "TwoSteps"
    ]


def test_json_and_pickles_give_back_what_went_in():
    assert lineage_from_text(json.dumps(to_json(FULL))) == FULL
    assert [entry_from_json(to_json(each)) for each in FULL.entries] == list(FULL.entries)
    assert pickle.loads(pickle.dumps(FULL)) == FULL


@given(
    st.builds(
        Entry,
        st.just("release"),
        st.builds(ranged, st.integers(0, 9), st.integers(10, 20), st.sampled_from(["record", "person", "place"])),
        st.lists(st.sampled_from(EVERY) | st.builds(GaussianRelease, st.floats(1e-300, 1e300)), min_size=1).map(tuple),
        st.text(st.characters(categories=["L", "N", "P"]), max_size=20),
        population=st.none() | st.just("people"),
        sequence=st.integers(0, 10**6),
    )
)
def test_any_entry_survives_json(draft):
    assert entry_from_json(json.loads(json.dumps(to_json(draft)))) == draft


def deep():
    found = []
    for _ in range(5000):
        found = [found]
    return found


HOSTILE = [math.nan, -math.inf, math.inf, True, False, None, -1, 0, 1, 0.5, 1.0, 100.0, 10**400]
HOSTILE += ["", "text\nof two lines", "x" * 10_001, "inf", "100", "\ud800", [], [[]], {}, {"a": 1}]


def paths(body, path=()):
    yield path
    for key, value in body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ():
        yield from paths(value, (*path, key))


def changed(body, path, value):
    if not path:
        return value
    body = copy.copy(body)
    body[path[0]] = changed(body[path[0]], path[1:], value)
    return body


def test_whatever_stands_anywhere_is_read_as_it_is_or_refused():
    body = to_json(FULL)
    read = refused = 0
    for path in paths(body):
        for value in (*HOSTILE, deep()):
            try:
                found = lineage_from_json(changed(body, path, value))
            except ArtifactError:
                refused += 1
                continue
            read += 1
            again = to_json(found)
            for step in path:
                again = again[step]
            assert again == value
            assert type(again) is type(value) or (type(again), type(value)) == (float, int), path
    assert read > 50
    assert refused > 1000


def test_unknown_and_missing_fields_are_refused_everywhere():
    body = to_json(FULL)
    for path in paths(body):
        at = body
        for step in path:
            at = at[step]
        if isinstance(at, dict):
            for wrong in ({**at, "more": 1}, *({k: v for k, v in at.items() if k != gone} for gone in at)):
                refused(lineage_from_json, changed(body, path, wrong), kind=ArtifactError)


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, "NaN", "1" * 5000, '{"entries": [], "heads": [], "x": 1e999}']
)
def test_a_text_that_is_no_lineage_is_refused(text):
    assert "lineage" in refused(lineage_from_text, text, kind=ArtifactError)


def test_a_mechanism_that_no_ledger_knows_is_refused_by_name():
    class Mine(Mechanism):
        pass

    assert "Mine" in refused(to_json, Entry("release", mechanisms=(Mine(),)))


def test_words_of_a_part_name_its_range():
    assert str(ranged(0, HALF)) == "table[0.0:0.5]"
    assert str(ranged(HASHES // 8, HASHES, "person")) == "table[0.125:1.0]"
    assert str(ranged(3, END, "place")) == "table[3:]"
    assert str(Part("table")) == "table"
    assert {item.name for item in fields(Part)} == {"name", "snapshot", "columns", "cut", "start", "stop"}


def test_values_made_of_values_carry_the_lineages_of_all():
    class Value:
        def __init__(self, *entries):
            self.lineage = Lineage(entries)

    made = lineage_of(Value(POOL[0], POOL[1]), None, Value(POOL[1]), Lineage((POOL[2],)))
    assert made.entries == tuple(POOL[:3])
    assert made.paid == made.entries
    assert made
    assert not lineage_of(None)
    with pytest.raises(AttributeError):
        lineage_of("a value that does not say where it comes from")
