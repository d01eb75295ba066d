"""Events: exact JSON round trips, strict reading, and which records two events may share."""

import json
import math
import re
from dataclasses import FrozenInstanceError, fields, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.errors import ArtifactError, InputError
from dpltm.privacy import events as event_module
from dpltm.privacy.event_json import KINDS, from_json, to_json
from dpltm.privacy.events import (
    HASHES,
    OPEN_END,
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
    now,
)
from dpltm.privacy.mechanisms import (
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    NoisySgd,
    RandomizedResponse,
    Selection,
    Unprotected,
)
from entries import having

texts = st.text(st.characters().filter(str.isprintable), max_size=40) | st.just("x" * 1000)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
adjacencies = st.sampled_from(["add-remove", "replace-one"])
wholes = st.builds(DatasetRef, texts, texts, texts)
by_place = st.tuples(st.integers(0, 10**9), st.integers(1, 10**9), st.sampled_from(["places", "positions"])).flatmap(
    lambda at: st.builds(DatasetRef, texts, texts, texts, st.just(at[0]), st.just(at[0] + at[1]), st.just(at[2]))
)
by_hash = st.tuples(
    st.lists(st.integers(0, HASHES), min_size=2, max_size=2, unique=True).map(sorted),
    st.sampled_from(["values", "columns"]),
).flatmap(lambda at: st.builds(DatasetRef, texts, texts, texts, st.just(at[0][0]), st.just(at[0][1]), st.just(at[1])))
touched = st.one_of(
    st.tuples(wholes | by_place | by_hash, st.just("add-remove")),
    st.tuples(wholes | by_place, st.just("replace-one")),  # of parts by hash nothing is stated under it
)


def releases(event, mechanism, parameters, **words):
    """Entries of one kind, of any mechanism of its class."""
    relation = {} if mechanism is RandomizedResponse else {"adjacency": adjacencies}
    made = st.builds(mechanism, **relation, unit=st.sampled_from(["record", "user"]), **parameters)
    return st.builds(event, dataset=wholes | by_place, mechanism=made, time=texts, **words)


below_one = st.floats(0, 1, exclude_max=True)
by_kind = {
    "provenance": st.builds(
        ProvenanceEvent,
        dataset=wholes | by_place,
        provenance=st.sampled_from(["data-free", "public", "dp", "private"]),
        ticket_set=texts,
        time=texts,
    ),
    "selection": releases(
        SelectionEvent,
        Selection,
        {
            "eps1": st.floats(0, 2, exclude_min=True),
            "certified_epsilon": st.floats(min_value=2),  # never below eps1; may be infinite
            "draw": st.sampled_from(["exponential", "permute-and-flip"]),
            "adaptive": st.booleans(),
        },
        score=st.sampled_from(["product", "additive"]),
        sensitivity_rule=st.sampled_from(["exact", "paper"]),
        sensitivity=positive,
        candidates=st.integers(1, 10**6),
        ticket_set=texts,
    ),
    "training": releases(
        TrainingEvent,
        NoisySgd,
        {
            "sampling_rate": st.floats(0, 1, exclude_min=True),
            "steps": st.integers(1, 10**9),
            "noise_multiplier": st.floats(min_value=0, allow_infinity=False),
            "sensitivity": positive,
            "nominal_sensitivity": st.none() | positive,
        },
        filter=texts,
        live=st.integers(1, 10**9),
    ),
    "laplace": releases(LaplaceEvent, LaplaceRelease, {"sensitivity": positive, "scale": positive}, what=texts),
    "gaussian": releases(
        GaussianEvent, GaussianRelease, {"sensitivity": positive, "noise_multiplier": positive}, what=texts
    ),
    "randomized-response": releases(
        RandomizedResponseEvent,
        RandomizedResponse,
        {"epsilon": positive, "categories": st.integers(2, 10**9)},
        what=texts,
    ),
    "guarantee": releases(GuaranteeEvent, Guarantee, {"epsilon": positive, "delta": below_one}, what=texts),
    "non-private": releases(NonPrivateEvent, Unprotected, {}, what=texts),
    "budget": st.builds(
        BudgetEvent,
        dataset=wholes | by_place,
        epsilon=positive,
        delta=st.floats(0, 1, exclude_min=True, exclude_max=True),
        unit=st.sampled_from(["record", "user"]),
        time=texts,
    ),
}

REF = DatasetRef("mnist", "f1", "k1", 0, 10, "places")
TRAINING = TrainingEvent(REF, NoisySgd(0.5, 3, 1.1, 2.0), "clip 2", 7, time="t")
SELECTION = SelectionEvent(REF, Selection(0.1, 0.1), "product", "exact", 0.005, 15, "set", time="t")
PROVENANCE = ProvenanceEvent(REF, "data-free", "set", time="t")
NON_PRIVATE = NonPrivateEvent(REF, Unprotected(), "scores", time="t")
LAPLACE = LaplaceEvent(REF, LaplaceRelease(4.0, 2.0), "a mean", time="t")
GAUSSIAN = GaussianEvent(REF, GaussianRelease(1.5, 3.0), "a sum", time="t")
RANDOMIZED = RandomizedResponseEvent(REF, RandomizedResponse(1.5, 10), "labels", time="t")
GUARANTEE = GuaranteeEvent(REF, Guarantee(0.5, 1e-6, adjacency="replace-one"), "a count", time="t")
BUDGET = BudgetEvent(REF, 2.0, 1e-5, time="t")
EXAMPLES = {
    "provenance": PROVENANCE,
    "selection": SELECTION,
    "training": TRAINING,
    "laplace": LAPLACE,
    "gaussian": GAUSSIAN,
    "randomized-response": RANDOMIZED,
    "guarantee": GUARANTEE,
    "non-private": NON_PRIVATE,
    "budget": BUDGET,
}

# Written out by hand, keys in order: a ledger of today must be readable by every later version. Change a line here only
# if ledgers that are on disk already keep their meaning.
HEAD = {
    "dataset": {"name": "mnist", "id": "f1", "key_id": "k1", "start": 0, "stop": 10, "cut": "places"},
    "time": "t",
    "adjacency": "add-remove",
    "unit": "record",
}
REPLACED = HEAD | {"adjacency": "replace-one"}
ON_DISK = {
    "provenance": {"kind": "provenance", **HEAD, "provenance": "data-free", "ticket_set": "set"},
    "selection": {
        "kind": "selection",
        **HEAD,
        "mechanism": "exponential",
        "score": "product",
        "eps1": 0.1,
        "sensitivity_rule": "exact",
        "sensitivity": 0.005,
        "certified_epsilon": 0.1,
        "candidates": 15,
        "ticket_set": "set",
        "adaptive": True,
    },
    "training": {
        "kind": "training",
        **HEAD,
        "sampling_rate": 0.5,
        "steps": 3,
        "noise_multiplier": 1.1,
        "sensitivity": 2.0,
        "nominal_sensitivity": None,
        "filter": "clip 2",
        "live": 7,
    },
    "laplace": {"kind": "laplace", **HEAD, "what": "a mean", "sensitivity": 2.0, "scale": 4.0},
    "gaussian": {"kind": "gaussian", **HEAD, "what": "a sum", "sensitivity": 3.0, "noise_multiplier": 1.5},
    "randomized-response": {
        "kind": "randomized-response",
        **REPLACED,
        "what": "labels",
        "epsilon": 1.5,
        "categories": 10,
    },
    "guarantee": {"kind": "guarantee", **REPLACED, "what": "a count", "epsilon": 0.5, "delta": 1e-6},
    "non-private": {"kind": "non-private", **HEAD, "what": "scores"},
    "budget": {"kind": "budget", **HEAD, "epsilon": 2.0, "delta": 1e-5},
}
OPTIONAL = {("selection", "adaptive")}
"""Fields that were added to a kind after ledgers had been written with it."""


def refusal(body):
    with pytest.raises(ArtifactError) as caught:
        from_json(body)
    return str(caught.value)


# Round trips.


@pytest.mark.parametrize("kind", by_kind)
@given(data=st.data())
def test_round_trip(kind, data):
    """Through strict JSON text (no Infinity, no NaN) and back: the same event, hence the same cost tomorrow."""
    event = data.draw(by_kind[kind])
    records, adjacency = data.draw(touched)
    if kind in ("provenance", "budget"):
        event = replace(event, dataset=records)
    elif kind != "randomized-response":
        event = having(replace(event, dataset=records.widened), adjacency=adjacency)
    text = json.dumps(to_json(event), allow_nan=False)
    back = from_json(json.loads(text))
    assert back == event
    assert type(back) is type(event)


# Texts: printable and no longer than a thousand characters, in both directions.

UNPRINTABLE = ["\x1b[2J", "two\nlines", "a\tb", "\x00", "\x7f", "\u202e", "\u2028", "\ud800", "x" * 1001]
TEXTS = [
    (kind, name)
    for kind, example in EXAMPLES.items()
    for name, value in vars(example).items()
    if isinstance(value, str) and name in {"time", "ticket_set", "filter", "what"}
]
NAMES = ["name", "id", "key_id"]


def unwritable(event):
    with pytest.raises(ArtifactError) as caught:
        to_json(event)
    return str(caught.value)


def test_every_free_text_is_covered_here():
    """Those that are no choice of a few."""
    free = {(kind, field.name) for kind in KINDS for field in fields(KINDS[kind].event) if field.type == "str"}
    assert set(TEXTS) == free
    assert set(NAMES) == {field.name for field in fields(DatasetRef) if field.type == "str"}


@pytest.mark.parametrize("text", UNPRINTABLE, ids=ascii)
@pytest.mark.parametrize(("kind", "name"), TEXTS)
def test_texts_that_no_terminal_shows_as_they_are(kind, name, text):
    assert unwritable(replace(EXAMPLES[kind], **{name: text})) == (
        f"event field {name}: {text!r:.60} is no printable text of at most 1000 characters"
    )
    assert refusal(to_json(EXAMPLES[kind]) | {name: text}) == (
        f"{kind} event: field {name}: bad value {text!r:.60}, expected str"
    )


@pytest.mark.parametrize("text", UNPRINTABLE, ids=ascii)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", EXAMPLES)
def test_texts_of_the_dataset_that_no_terminal_shows_as_they_are(kind, name, text):
    event = EXAMPLES[kind]
    assert unwritable(replace(event, dataset=replace(event.dataset, **{name: text}))) == (
        f"event field {name}: {text!r:.60} is no printable text of at most 1000 characters"
    )
    body = to_json(event)
    assert refusal(body | {"dataset": body["dataset"] | {name: text}}) == (
        f"reference to records: field {name}: bad value {text!r:.60}, expected str"
    )


@pytest.mark.parametrize("text", ["", "x" * 1000, "Größe 数字 ½", "[bold]x[/bold]", '"\\'])
@pytest.mark.parametrize(("kind", "name"), TEXTS)
def test_every_other_text_is_as_good_as_any(kind, name, text):
    event = replace(EXAMPLES[kind], **{name: text})
    event = replace(event, dataset=replace(event.dataset, name=text, id=text, key_id=text))
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


def test_every_kind_is_covered_here():
    assert set(by_kind) == set(EXAMPLES) == set(ON_DISK) == set(KINDS)


@pytest.mark.parametrize("kind", ON_DISK)
def test_form_on_disk(kind):
    assert to_json(EXAMPLES[kind]) == ON_DISK[kind]
    assert list(to_json(EXAMPLES[kind])) == list(ON_DISK[kind])
    assert from_json(ON_DISK[kind]) == EXAMPLES[kind]


def test_infinity_on_disk():
    event = having(SELECTION, certified_epsilon=math.inf)
    assert to_json(event) == ON_DISK["selection"] | {"certified_epsilon": "inf"}
    assert from_json(to_json(event)) == event


@pytest.mark.parametrize("adaptive", [True, False])
def test_whether_a_draw_was_adaptive_is_kept(adaptive):
    event = having(SELECTION, adaptive=adaptive)
    assert to_json(event)["adaptive"] is adaptive
    assert from_json(to_json(event)).mechanism.adaptive is adaptive


def test_a_draw_of_an_older_version_is_read_as_adaptive():
    """It did not say, and earlier releases may have shaped the candidates: the costlier reading is the safe one."""
    body = {name: value for name, value in ON_DISK["selection"].items() if name != "adaptive"}
    assert from_json(body) == SELECTION
    assert from_json(body).mechanism.adaptive is True


def test_whole_numbers_are_numbers():
    """JSON writers may drop the ``.0``."""
    assert from_json(to_json(TRAINING) | {"noise_multiplier": 1}) == having(TRAINING, noise_multiplier=1.0)


@pytest.mark.parametrize("kind", ["provenance", "budget"])
@pytest.mark.parametrize("unit", ["record", "user"])
def test_a_statement_has_no_relation(kind, unit):
    """One is written all the same, as ever; whichever stands there is read."""
    written = ON_DISK[kind] | {"adjacency": "replace-one", "unit": unit}
    read = from_json(written)
    assert to_json(read) == written | {"adjacency": "add-remove", "unit": unit if kind == "budget" else "record"}
    assert refusal(written | {"adjacency": "add"}).endswith("expected Adjacency")


@pytest.mark.parametrize(
    ("relation", "message"),
    [
        ({"adjacency": "add"}, "Expected adjacency='add' to be one of add-remove, replace-one"),
        ({"unit": "file"}, "Expected unit='file' to be one of record, user"),
    ],
)
def test_a_relation_that_there_is_not(relation, message):
    with pytest.raises(InputError) as caught:
        Guarantee(1.0, **relation)
    assert str(caught.value) == message


def test_events_are_frozen():
    with pytest.raises(FrozenInstanceError):
        TRAINING.mechanism.noise_multiplier = 9.0


def test_now_is_utc_to_the_minute_and_random_digits():
    """Times to the second would tell how long a training on private records took: until the next event, or the set's."""
    before, text, after = datetime.now(UTC), now(), datetime.now(UTC)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:00\.\d{12}Z", text)
    moment = datetime.fromisoformat(text)  # the further digits are read over
    assert moment.utcoffset() == timedelta(0)
    assert before.replace(second=0, microsecond=0) <= moment.replace(microsecond=0) <= after


class Frozen(datetime):
    """A clock that stands still, at a moment whose first digits are zeros."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 2, 3, 4, 5, 67, tzinfo=tz)


def test_no_two_releases_share_a_time(monkeypatch):
    """Equal events are one release, so two within one tick of the clock must differ."""
    assert now() != now()
    monkeypatch.setattr(event_module, "datetime", Frozen)
    found = [now() for _ in range(20)]
    assert {text[:20] for text in found} == {"2026-01-02T03:04:00."}
    assert len(set(found)) == 20  # of a million millions


def test_the_random_digits_of_a_time_cannot_be_foretold(monkeypatch):
    """Not from a seed that two processes may share, and with leading zeros kept."""
    drawn = iter([0, 7, 10**12 - 1])
    monkeypatch.setattr(event_module, "datetime", Frozen)
    monkeypatch.setattr(event_module.secrets, "randbelow", lambda most: next(drawn) if most == 10**12 else None)
    assert [now()[20:] for _ in range(3)] == ["000000000000Z", "000000000007Z", "999999999999Z"]


# Strict reading.


@pytest.mark.parametrize("body", [None, [], "training", 3, [("kind", "training")]])
def test_not_an_object(body):
    assert refusal(body) == "an event must be a JSON object"


@pytest.mark.parametrize("kind", ["shuffle", "Training", "", None, 3, ["training"]])
def test_unknown_kind(kind):
    assert refusal(to_json(TRAINING) | {"kind": kind}) == (
        f"unknown event {kind!r}: known are provenance, selection, training, laplace, gaussian, randomized-response,"
        " guarantee, non-private, budget; a newer dpltm may have written it"
    )


def test_missing_kind():
    body = to_json(TRAINING)
    del body["kind"]
    assert refusal(body).startswith("unknown event None: known are")


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_field_is_needed(kind):
    for name in ON_DISK[kind]:
        if name == "kind" or (kind, name) in OPTIONAL:
            continue
        body = to_json(EXAMPLES[kind])
        del body[name]
        if name == "dataset":
            assert refusal(body) == "reference to records: expected an object"
        else:
            assert refusal(body) == f"{kind} event: unknown or missing field {name!r}"


@pytest.mark.parametrize("kind", EXAMPLES)
def test_unknown_field(kind):
    """A newer version may have given it a meaning that costs something."""
    assert refusal(to_json(EXAMPLES[kind]) | {"extra": 1}) == f"{kind} event: unknown or missing field 'extra'"


@pytest.mark.parametrize("name", ["name", "id", "key_id", "start", "stop", "cut"])
def test_every_field_of_the_dataset_is_needed(name):
    body = to_json(TRAINING)
    del body["dataset"][name]
    assert refusal(body) == f"reference to records: unknown or missing field {name!r}"


@pytest.mark.parametrize("value", [None, "mnist", 3, []])
def test_dataset_must_be_an_object(value):
    assert refusal(to_json(TRAINING) | {"dataset": value}) == "reference to records: expected an object"


@pytest.mark.parametrize(
    ("kind", "name", "value", "expected"),
    [
        ("training", "steps", True, "int"),
        ("training", "steps", 3.0, "int"),
        ("training", "steps", "3", "int"),
        ("training", "steps", None, "int"),
        ("training", "live", False, "int"),
        ("selection", "candidates", True, "int"),
        ("training", "sampling_rate", True, "float"),
        ("training", "sampling_rate", "0.5", "float"),
        ("training", "sampling_rate", None, "float"),
        ("training", "noise_multiplier", math.nan, "float"),
        ("training", "noise_multiplier", [1.0], "float"),
        ("training", "noise_multiplier", -math.inf, "float"),
        ("selection", "certified_epsilon", -math.inf, "float"),
        ("training", "nominal_sensitivity", True, "float"),
        ("training", "nominal_sensitivity", math.nan, "float"),
        ("training", "nominal_sensitivity", "none", "float"),
        ("selection", "certified_epsilon", math.nan, "float"),
        ("selection", "certified_epsilon", "Infinity", "float"),
        ("selection", "eps1", {}, "float"),
        ("training", "time", 3, "str"),
        ("training", "filter", None, "str"),
        ("non-private", "what", ["scores"], "str"),
        ("training", "adjacency", "add", "Adjacency"),
        ("training", "adjacency", None, "Adjacency"),
        ("training", "adjacency", ["add-remove"], "Adjacency"),
        ("provenance", "provenance", "Private", "ProvenanceKind"),
        ("selection", "adaptive", 0, "bool"),
        ("selection", "adaptive", 1, "bool"),
        ("selection", "adaptive", "False", "bool"),
        ("selection", "adaptive", None, "bool"),
        ("laplace", "what", 3, "str"),
        ("laplace", "scale", "4", "float"),
        ("laplace", "scale", math.nan, "float"),
        ("gaussian", "noise_multiplier", True, "float"),
        ("gaussian", "sensitivity", None, "float"),
        ("randomized-response", "categories", 10.0, "int"),
        ("randomized-response", "categories", True, "int"),
        ("randomized-response", "epsilon", math.nan, "float"),
        ("guarantee", "delta", None, "float"),
        ("guarantee", "epsilon", math.nan, "float"),
        ("budget", "delta", "1e-5", "float"),
        ("budget", "epsilon", False, "float"),
    ],
)
def test_wrong_type(kind, name, value, expected):
    body = to_json(EXAMPLES[kind]) | {name: value}
    assert refusal(body) == f"{kind} event: field {name}: bad value {value!r}, expected {expected}"


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("selection", "mechanism", "report-noisy-max"),
        ("selection", "score", 1),
        ("selection", "sensitivity_rule", None),
    ],
)
def test_wrong_choice(kind, name, value):
    """The text after ``expected`` is the annotation; the choices are in it."""
    assert refusal(to_json(EXAMPLES[kind]) | {name: value}).startswith(
        f"{kind} event: field {name}: bad value {value!r}, expected Literal["
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("start", True, "int"), ("stop", 2.5, "int"), ("name", None, "str"), ("id", 1, "str"), ("cut", "hash", "Cut")],
)
def test_wrong_type_in_the_dataset(name, value, expected):
    body = to_json(TRAINING)
    body["dataset"][name] = value
    assert refusal(body) == f"reference to records: field {name}: bad value {value!r}, expected {expected}"


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        ("training", "sampling_rate", 0.0, "Expected 0 < sampling_rate=0.0 <= 1"),
        ("training", "sampling_rate", -0.1, "Expected 0 < sampling_rate=-0.1 <= 1"),
        ("training", "sampling_rate", 1.5, "Expected 0 < sampling_rate=1.5 <= 1"),
        ("training", "sampling_rate", "inf", "Expected 0 < sampling_rate=inf <= 1"),
        ("training", "steps", 0, "Expected steps=0 to be a whole number from 1 to 1,000,000,000"),
        ("training", "steps", -3, "Expected steps=-3 to be a whole number from 1 to 1,000,000,000"),
        ("training", "noise_multiplier", -1.0, "Expected finite noise_multiplier=-1.0 >= 0"),
        ("training", "noise_multiplier", "inf", "Expected finite noise_multiplier=inf >= 0"),
        ("training", "sensitivity", 0.0, "Expected sensitivity=0.0 > 0"),
        ("training", "sensitivity", "inf", "Expected sensitivity=inf > 0"),
        ("training", "nominal_sensitivity", 0.0, "Expected nominal_sensitivity=0.0 > 0"),
        ("training", "nominal_sensitivity", "inf", "Expected nominal_sensitivity=inf > 0"),
        ("selection", "eps1", 0, "Expected eps1=0 > 0"),
        ("selection", "eps1", -0.1, "Expected eps1=-0.1 > 0"),
        ("selection", "eps1", "inf", "Expected eps1=inf > 0"),
        ("selection", "sensitivity", -1, "Expected sensitivity=-1 > 0"),
        ("selection", "certified_epsilon", 0.0, "Expected certified_epsilon=0.0 > 0"),
        ("laplace", "sensitivity", 0.0, "Expected sensitivity=0.0 > 0"),
        ("laplace", "sensitivity", "inf", "Expected sensitivity=inf > 0"),
        ("laplace", "scale", 0, "Expected scale=0 > 0"),
        ("laplace", "scale", -4.0, "Expected scale=-4.0 > 0"),
        ("laplace", "scale", "inf", "Expected scale=inf > 0"),
        ("gaussian", "sensitivity", -3.0, "Expected sensitivity=-3.0 > 0"),
        ("gaussian", "noise_multiplier", 0.0, "Expected noise_multiplier=0.0 > 0"),
        ("gaussian", "noise_multiplier", "inf", "Expected noise_multiplier=inf > 0"),
        ("randomized-response", "epsilon", 0.0, "Expected epsilon=0.0 > 0"),
        ("randomized-response", "epsilon", "inf", "Expected epsilon=inf > 0"),
        ("randomized-response", "categories", 1, "Expected categories=1 from 2 to 1,000,000,000"),
        ("randomized-response", "categories", -2, "Expected categories=-2 from 2 to 1,000,000,000"),
        (
            "randomized-response",
            "adjacency",
            "add-remove",
            "randomised response shows who is there: Expected adjacency replace-one",
        ),
        ("guarantee", "epsilon", 0.0, "Expected epsilon=0.0 > 0"),
        ("guarantee", "epsilon", "inf", "Expected epsilon=inf > 0"),
        ("guarantee", "delta", -1e-9, "Expected 0 <= delta=-1e-09 < 1"),
        ("guarantee", "delta", 1.0, "Expected 0 <= delta=1.0 < 1"),
        ("guarantee", "delta", "inf", "Expected 0 <= delta=inf < 1"),
        ("budget", "epsilon", 0.0, "Expected epsilon=0.0 > 0"),
        ("budget", "epsilon", "inf", "Expected epsilon=inf > 0"),
        ("budget", "delta", 0.0, "Expected 0 < delta=0.0 < 1"),
        ("budget", "delta", 1, "Expected 0 < delta=1 < 1"),
    ],
)
def test_out_of_range(kind, name, value, message):
    assert refusal(to_json(EXAMPLES[kind]) | {name: value}) == message


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (5, 5), (6, 5), (-1, 5)])
def test_dataset_range(start, stop):
    with pytest.raises(ArtifactError) as caught:
        DatasetRef("mnist", "f", "k", start, stop, "places")
    assert str(caught.value) == f"dataset reference mnist: records {start}:{stop} are not a range"


@pytest.mark.parametrize("steps", [True, 2.0, 0])
def test_steps_are_checked_without_json_too(steps):
    with pytest.raises(InputError) as caught:
        having(TRAINING, steps=steps)
    assert str(caught.value) == f"Expected steps={steps!r} to be a whole number from 1 to 1,000,000,000"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (TRAINING.mechanism, "sampling_rate"),
        (TRAINING.mechanism, "noise_multiplier"),
        (TRAINING.mechanism, "sensitivity"),
        (SELECTION.mechanism, "eps1"),
        (SELECTION.mechanism, "certified_epsilon"),
        (SELECTION, "sensitivity"),
        (LAPLACE.mechanism, "sensitivity"),
        (LAPLACE.mechanism, "scale"),
        (GAUSSIAN.mechanism, "sensitivity"),
        (GAUSSIAN.mechanism, "noise_multiplier"),
        (RANDOMIZED.mechanism, "epsilon"),
        (GUARANTEE.mechanism, "epsilon"),
        (GUARANTEE.mechanism, "delta"),
        (BUDGET, "epsilon"),
        (BUDGET, "delta"),
    ],
)
def test_nan_is_refused_without_json_too(value, name):
    with pytest.raises(InputError) as caught:
        replace(value, **{name: math.nan})
    assert f"{name}=nan" in str(caught.value)


@pytest.mark.parametrize("name", ["noise_multiplier", "sensitivity", "nominal_sensitivity"])
def test_a_number_beyond_float64(name):
    """JSON may hold an integer that no float can."""
    assert refusal(to_json(TRAINING) | {name: 10**400}).startswith(f"training event: field {name}: bad value 1000")


# Which records.


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),  # the same records
        ({"name": "other"}, True),  # the name is the user's; only the id speaks
        ({"start": 9, "stop": 20}, True),  # one record shared
        ({"start": 10, "stop": 20}, False),  # half-open: adjacent ranges share none
        ({"start": 3, "stop": 4}, True),  # inside
        ({"id": "f2"}, False),  # other data under the same key
        ({"id": "f2", "start": 10, "stop": 20}, False),
        ({"key_id": "k2"}, True),  # keys that cannot tell
        ({"key_id": "k2", "id": "f2"}, True),
        ({"key_id": "k2", "id": "f2", "start": 10, "stop": 20}, True),
    ],
)
def test_may_overlap(change, expected):
    other = replace(REF, content=None, **change)
    assert REF.may_overlap(other) is expected
    assert other.may_overlap(REF) is expected


@given(st.tuples(st.integers(0, 12), st.integers(1, 6)), st.tuples(st.integers(0, 12), st.integers(1, 6)))
def test_ranges_cross_as_sets_do(first, second):
    one = replace(REF, start=first[0], stop=sum(first))
    two = replace(REF, start=second[0], stop=sum(second))
    shared = set(range(one.start, one.stop)) & set(range(two.start, two.stop))
    assert one.may_overlap(two) is bool(shared)


def test_reference_as_text():
    """Where the number of records is private, no end is printed."""
    assert str(REF) == "mnist[0:10]"
    assert str(REF.all) == "mnist"
    assert str(replace(REF, stop=OPEN_END)) == "mnist[0:]"
    assert str(replace(REF, cut="positions")) == "mnist[0:10]"
    assert str(replace(REF, cut="values", start=25 * 10**7, stop=HASHES)) == "mnist[0.25:1.0]"
    assert str(replace(REF, cut="columns", start=0, stop=1)) == "mnist[0.0:0.000000001]"


def test_a_guarantee_without_a_chance_of_failure():
    assert from_json(ON_DISK["guarantee"] | {"delta": 0}) == having(GUARANTEE, delta=0.0)


# The claimed noise.


def test_nominal_noise_multiplier():
    """Deviation 1.1 x 2 = 2.2, over a claimed bound of 0.5: 4.4. Without a claim it is the certified one."""
    assert replace(TRAINING.mechanism, nominal_sensitivity=0.5).nominal_noise_multiplier == pytest.approx(4.4)
    assert TRAINING.mechanism.nominal_noise_multiplier == 1.1


def test_a_selection_cannot_cost_less_than_eps1():
    with pytest.raises(InputError) as caught:
        having(SELECTION, eps1=0.5, certified_epsilon=0.4)
    assert str(caught.value) == "Expected certified_epsilon=0.4 >= eps1=0.5"
