"""Events: exact JSON round trips, strict reading, and which records two events may share."""

import json
import math
import re
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.errors import ArtifactError, InputError
from dpltm.privacy import events as event_module
from dpltm.privacy.event_json import KINDS, from_json, to_json
from dpltm.privacy.events import HASHES, OPEN_END, DatasetRef, now
from entries import (
    BUDGET,
    DATA,
    GAUSSIAN,
    GUARANTEE,
    LAPLACE,
    PROVENANCE,
    RANDOMIZED,
    REVEALED,
    SEARCH,
    SELECTION,
    TRAINING,
    having,
)
from refusals import told

EXAMPLES = {
    "provenance": replace(PROVENANCE, provenance="data-free"),
    "selection": SELECTION,
    "training": TRAINING,
    "search": SEARCH,
    "laplace": LAPLACE,
    "gaussian": GAUSSIAN,
    "randomized-response": RANDOMIZED,
    "guarantee": having(GUARANTEE, adjacency="replace-one"),
    "non-private": REVEALED,
    "budget": BUDGET,
}

# Written out by hand, keys in order: a ledger of today must be readable by every later version. Change a line here only
# if ledgers that are on disk already keep their meaning.
HEAD = {
    "dataset": {"name": "mnist", "id": "f1", "key_id": "k1", "start": 0, "stop": 60000, "cut": "places"},
    "time": "t",
    "adjacency": "add-remove",
    "unit": "record",
}
REPLACED = HEAD | {"adjacency": "replace-one"}
ON_DISK = {
    "provenance": {"kind": "provenance", **HEAD, "provenance": "data-free", "ticket_set": "set"},
    "selection": {
        "kind": "selection", **HEAD, "mechanism": "exponential", "score": "product", "eps1": 0.5,
        "sensitivity_rule": "exact", "sensitivity": 0.005, "certified_epsilon": 0.5,
        "candidates": 15, "ticket_set": "set", "adaptive": True,
    },
    "training": {
        "kind": "training", **HEAD, "sampling_rate": 256 / 60000, "steps": 3515, "noise_multiplier": 1.1, "sensitivity": 1.0,
        "nominal_sensitivity": None, "filter": "clip 1", "live": 10,
    },
    "search": {
        "kind": "search", **HEAD, "gamma": 0.1, "score_noise": 50.0,
        "trainings": [
            {"sampling_rate": 256 / 60000, "steps": 3515, "noise_multiplier": 1.5, "sensitivity": 1.0},
            {"sampling_rate": 0.5, "steps": 20, "noise_multiplier": 8.0, "sensitivity": 1.0},
        ],
        "filter": "clip 1", "live": 10,
    },
    "laplace": {"kind": "laplace", **HEAD, "what": "a mean", "sensitivity": 2.0, "scale": 4.0},
    "gaussian": {"kind": "gaussian", **HEAD, "what": "a sum", "sensitivity": 3.0, "noise_multiplier": 4.0},
    "randomized-response": {
        "kind": "randomized-response", **REPLACED, "what": "labels", "epsilon": 0.5, "categories": 10,
    },
    "guarantee": {"kind": "guarantee", **REPLACED, "what": "a count", "epsilon": 0.5, "delta": 1e-7},
    "non-private": {"kind": "non-private", **HEAD, "what": "every ticket's score"},
    "budget": {"kind": "budget", **HEAD, "time": "2026-01-02T03:04:05Z", "epsilon": 1.2, "delta": 1e-5},
}  # fmt: skip


def refusal(body):
    return told(from_json, body)


# Round trips.


# Every number of an entry in its range; an infinite epsilon is in test_other_values_on_disk.
TEXT = st.text(st.characters().filter(str.isprintable), max_size=40) | st.just("x" * 1000)
VALUES = {
    "str": TEXT,
    "int": st.integers(2, 10**9),
    "float": st.floats(0, 1, exclude_min=True, exclude_max=True),
    "float | None": st.none() | st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    "bool": st.booleans(),
    "Unit": st.sampled_from(["record", "user"]),
    'Literal["product", "additive"]': st.sampled_from(["product", "additive"]),
    'Literal["exact", "paper"]': st.sampled_from(["exact", "paper"]),
    'Literal["exponential", "permute-and-flip"]': st.sampled_from(["exponential", "permute-and-flip"]),
    "NoiseBits": st.sampled_from(["secure", "fast"]),
    "ProvenanceKind": st.sampled_from(["data-free", "public", "dp", "private"]),
}


@st.composite
def entries_of(draw, kind):
    """Any entry of a kind, on any records that its relation allows."""

    def varied(value, kept=()):
        known = {field.name: str(field.type) for field in fields(value) if field.name not in kept}
        chosen = {name: draw(VALUES[of]) for name, of in known.items() if of in VALUES}
        chosen |= {
            name: draw(st.sampled_from(of[9:-2].split('", "'))) for name, of in known.items() if of[:9] == 'Literal["'
        }
        if "certified_epsilon" in known:  # never below eps1
            chosen["certified_epsilon"] = draw(st.floats(min_value=1))
        return replace(value, **chosen)

    cut = draw(st.sampled_from(["whole", "values", "columns", "places", "positions"]))
    start = draw(st.integers(0, HASHES - 1))
    part = {} if cut == "whole" else {"start": start, "stop": draw(st.integers(start + 1, HASHES))}
    ref = DatasetRef(draw(TEXT), draw(TEXT), draw(TEXT), cut=cut, **part)
    event = varied(EXAMPLES[kind])
    if kind in ("provenance", "budget"):
        return replace(event, dataset=ref)
    if kind == "search":  # its trainings share its relation
        relation = {"adjacency": draw(st.sampled_from(["add-remove", "replace-one"])), "unit": draw(VALUES["Unit"])}
        numbers = {"gamma": draw(st.floats(1e-9, 0.999)), "score_noise": draw(VALUES["float"])}
        replaced = relation["adjacency"] == "replace-one"
        return replace(having(SEARCH, **relation, **numbers), dataset=ref.widened if replaced else ref)
    mechanism = varied(event.mechanism)
    if kind != "randomized-response":
        mechanism = replace(mechanism, adjacency=draw(st.sampled_from(["add-remove", "replace-one"])))
    return replace(event, mechanism=mechanism, dataset=ref if mechanism.adjacency == "add-remove" else ref.widened)


@pytest.mark.parametrize("kind", EXAMPLES)
@given(data=st.data())
def test_round_trip(kind, data):
    """Through strict JSON text (no Infinity, no NaN) and back: the same event, hence the same cost tomorrow."""
    event = data.draw(entries_of(kind))
    back = from_json(json.loads(json.dumps(to_json(event), allow_nan=False)))
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


def unwritable(event):
    with pytest.raises(ArtifactError) as caught:
        to_json(event)
    return str(caught.value)


def test_every_kind_and_free_text_is_covered_here():
    """Free texts are those that are no choice of a few."""
    assert set(EXAMPLES) == set(ON_DISK) == set(KINDS)
    free = {(kind, field.name) for kind in KINDS for field in fields(KINDS[kind].event) if field.type == "str"}
    assert set(TEXTS) == free


@pytest.mark.parametrize("text", UNPRINTABLE, ids=ascii)
@pytest.mark.parametrize("kind", EXAMPLES)
def test_texts_that_no_terminal_shows_as_they_are(kind, text):
    event, body = EXAMPLES[kind], to_json(EXAMPLES[kind])
    told = "event field {}: {!r:.60} is no printable text of at most 1000 characters"
    read = "{}: field {}: bad value {!r:.60}, expected str"
    for name in [name for of, name in TEXTS if of == kind]:
        assert unwritable(replace(event, **{name: text})) == told.format(name, text)
        assert refusal(body | {name: text}) == read.format(f"{kind} event", name, text)
    for name in ("name", "id", "key_id"):
        assert unwritable(replace(event, dataset=replace(DATA, **{name: text}))) == told.format(name, text)
        written = body | {"dataset": body["dataset"] | {name: text}}
        assert refusal(written) == read.format("reference to records", name, text)


@pytest.mark.parametrize("text", ["", "x" * 1000, "Größe 数字 ½", "[bold]x[/bold]", '"\\'])
@pytest.mark.parametrize(("kind", "name"), TEXTS)
def test_every_other_text_is_as_good_as_any(kind, name, text):
    event = replace(EXAMPLES[kind], **{name: text})
    event = replace(event, dataset=replace(event.dataset, name=text, id=text, key_id=text))
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


@pytest.mark.parametrize("kind", ON_DISK)
def test_form_on_disk(kind):
    assert to_json(EXAMPLES[kind]) == ON_DISK[kind]
    assert list(to_json(EXAMPLES[kind])) == list(ON_DISK[kind])
    assert from_json(ON_DISK[kind]) == EXAMPLES[kind]


@pytest.mark.parametrize(
    ("event", "changed"),
    [
        (having(SELECTION, certified_epsilon=math.inf), {"certified_epsilon": "inf"}),
        (having(SELECTION, adaptive=False), {"adaptive": False}),
        (replace(TRAINING, noise="fast"), {"noise": "fast"}),
        (replace(GAUSSIAN, noise="fast"), {"noise": "fast"}),
        (having(TRAINING, noise_multiplier=1.0), {"noise_multiplier": 1}),  # JSON writers may drop the ``.0``
        (having(GUARANTEE, delta=0.0), {"delta": 0}),
    ],
)
def test_other_values_on_disk(event, changed):
    assert to_json(event) == to_json(from_json(to_json(event) | changed))
    assert {name: to_json(event)[name] for name in changed} == changed


def test_a_draw_of_an_older_version_is_read_as_adaptive():
    """It did not say, and earlier releases may have shaped the candidates: the costlier reading is the safe one."""
    body = {name: value for name, value in ON_DISK["selection"].items() if name != "adaptive"}
    assert from_json(body) == SELECTION
    assert SELECTION.mechanism.adaptive is True


@pytest.mark.parametrize("kind", ["provenance", "budget"])
@pytest.mark.parametrize("unit", ["record", "user"])
def test_a_statement_has_no_relation(kind, unit):
    """One is written all the same, as ever; whichever stands there is read."""
    written = ON_DISK[kind] | {"adjacency": "replace-one", "unit": unit}
    read = from_json(written)
    assert to_json(read) == written | {"adjacency": "add-remove", "unit": unit if kind == "budget" else "record"}
    assert refusal(written | {"adjacency": "add"}).endswith("expected Adjacency")


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
    message = (
        f"unknown event {kind!r}: known are provenance, selection, training, search, laplace, gaussian, randomized-response,"
        " guarantee, non-private, budget; a newer dpltm may have written it"
    )
    assert refusal(ON_DISK["training"] | {"kind": kind}) == message
    if kind is None:
        assert refusal(HEAD) == message


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_field_is_needed_and_no_other_known(kind):
    """A newer version may have given another one a meaning that costs something."""
    body = ON_DISK[kind]
    for name in body.keys() - {"kind", "dataset", "adaptive"}:
        less = {key: value for key, value in body.items() if key != name}
        assert refusal(less) == f"{kind} event: unknown or missing field {name!r}"
    assert refusal(body | {"extra": 1}) == f"{kind} event: unknown or missing field 'extra'"
    for name in body["dataset"]:
        less = {key: value for key, value in body["dataset"].items() if key != name}
        assert refusal(body | {"dataset": less}) == f"reference to records: unknown or missing field {name!r}"
    for value in (None, "mnist", 3, []):
        assert refusal(body | {"dataset": value}) == "reference to records: expected an object"


@pytest.mark.parametrize(
    ("kind", "name", "values", "expected"),
    [
        ("training", "steps", (True, 3.0, "3", None), "int"),
        ("training", "live", (False, 0, -1, 2**63), "int from 1 to 9223372036854775807"),
        ("selection", "candidates", (True, 0, -3), "int from 1 to 9223372036854775807"),
        ("randomized-response", "categories", (10.0, True), "int"),
        ("training", "sampling_rate", (True, "0.5", None), "float"),
        ("training", "noise_multiplier", (math.nan, [1.0], -math.inf, 10**400), "float"),
        ("training", "nominal_sensitivity", (True, math.nan, "none"), "float"),
        ("selection", "certified_epsilon", (math.nan, "Infinity", -math.inf), "float"),
        ("laplace", "scale", ("4", {}), "float"),
        ("gaussian", "sensitivity", (None,), "float"),
        ("guarantee", "delta", (None, math.nan), "float"),
        ("budget", "epsilon", (False,), "float"),
        ("training", "filter", (None, 3, ["clip"]), "str"),
        ("training", "adjacency", ("add", None, ["add-remove"]), "Adjacency"),
        ("training", "unit", ("file",), "Unit"),
        ("provenance", "provenance", ("Private",), "ProvenanceKind"),
        ("selection", "adaptive", (0, 1, "False", None), "bool"),
        ("training", "noise", ("slow", "", 1, None), "NoiseBits"),
        ("selection", "mechanism", ("report-noisy-max",), "Literal["),
        ("selection", "score", (1,), "Literal["),
        ("selection", "sensitivity_rule", (None,), "Literal["),
    ],
)
def test_wrong_type(kind, name, values, expected):
    for value in values:
        start = f"{kind} event: field {name}: bad value {value!r:.60}, expected {expected}"
        said = refusal(ON_DISK[kind] | {name: value})
        assert said.startswith(start) if expected == "Literal[" else said == start


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("start", True, "int"), ("stop", 2.5, "int"), ("name", None, "str"), ("id", 1, "str"), ("cut", "hash", "Cut")],
)
def test_wrong_type_in_the_dataset(name, value, expected):
    body = ON_DISK["training"] | {"dataset": HEAD["dataset"] | {name: value}}
    assert refusal(body) == f"reference to records: field {name}: bad value {value!r}, expected {expected}"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (TRAINING.mechanism, "sensitivity"),
        (TRAINING.mechanism, "nominal_sensitivity"),
        (SELECTION.mechanism, "eps1"),
        (SELECTION, "sensitivity"),
        (LAPLACE.mechanism, "sensitivity"),
        (LAPLACE.mechanism, "scale"),
        (GAUSSIAN.mechanism, "sensitivity"),
        (GAUSSIAN.mechanism, "noise_multiplier"),
        (RANDOMIZED.mechanism, "epsilon"),
        (GUARANTEE.mechanism, "epsilon"),
        (BUDGET, "epsilon"),
    ],
)
def test_positive_and_finite(value, name):
    for bad in (0.0, -4.0, math.inf, math.nan):
        with pytest.raises(InputError) as caught:
            replace(value, **{name: bad})
        assert str(caught.value) == f"Expected {name}={bad} > 0"


WHOLE = "Expected steps={!r} to be a whole number from 1 to 1,000,000,000"


@pytest.mark.parametrize(
    ("value", "name", "bad", "message"),
    [
        (
            TRAINING.mechanism,
            "sampling_rate",
            (0.0, -0.1, 1.5, math.inf, math.nan),
            "Expected 0 < sampling_rate={} <= 1",
        ),
        (TRAINING.mechanism, "steps", (0, -3, True, 2.0, 10**9 + 1), WHOLE),
        (
            TRAINING.mechanism,
            "noise_multiplier",
            (-1.0, math.inf, math.nan),
            "Expected finite noise_multiplier={} >= 0",
        ),
        (SELECTION.mechanism, "certified_epsilon", (0.0, -0.1, math.nan), "Expected certified_epsilon={} > 0"),
        (SELECTION.mechanism, "certified_epsilon", (0.4,), "Expected certified_epsilon={} >= eps1=0.5"),
        (RANDOMIZED.mechanism, "categories", (1, -2, 10**9 + 1), "Expected categories={} from 2 to 1,000,000,000"),
        (
            RANDOMIZED.mechanism,
            "adjacency",
            ("add-remove",),
            "randomised response shows who is there: Expected adjacency replace-one",
        ),
        (GUARANTEE.mechanism, "delta", (-1e-9, 1.0, math.inf, math.nan), "Expected 0 <= delta={} < 1"),
        (GUARANTEE.mechanism, "adjacency", ("add",), "Expected adjacency={!r} to be one of add-remove, replace-one"),
        (GUARANTEE.mechanism, "unit", ("file",), "Expected unit={!r} to be one of record, user"),
        (BUDGET, "delta", (0.0, 1, math.nan), "Expected 0 < delta={} < 1"),
    ],
)
def test_out_of_range(value, name, bad, message):
    for each in bad:
        with pytest.raises(InputError) as caught:
            replace(value, **{name: each})
        assert str(caught.value) == message.format(each)


def test_what_is_out_of_range_is_refused_on_disk_too():
    assert refusal(ON_DISK["training"] | {"steps": 0}) == WHOLE.format(0)
    assert refusal(ON_DISK["laplace"] | {"scale": "inf"}) == "Expected scale=inf > 0"
    assert refusal(ON_DISK["budget"] | {"delta": 1}) == "Expected 0 < delta=1 < 1"


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (5, 5), (6, 5), (-1, 5)])
def test_dataset_range(start, stop):
    with pytest.raises(ArtifactError) as caught:
        DatasetRef("mnist", "f", "k", start, stop, "places")
    assert str(caught.value) == f"dataset reference mnist: records {start}:{stop} are not a range"


# Which records.


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),  # the same records
        ({"name": "other"}, True),  # the name is the user's; only the id speaks
        ({"start": 59999, "stop": 60002}, True),  # one record shared
        ({"start": 60000, "stop": 60002}, False),  # half-open: adjacent ranges share none
        ({"start": 3, "stop": 4}, True),  # inside
        ({"id": "f2"}, False),  # other data under the same key
        ({"id": "f2", "start": 60000, "stop": 60002}, False),
        ({"key_id": "k2"}, True),  # keys that cannot tell
        ({"key_id": "k2", "id": "f2", "start": 60000, "stop": 60002}, True),
    ],
)
def test_may_overlap(change, expected):
    other = replace(DATA, content=None, **change)
    assert DATA.may_overlap(other) is expected
    assert other.may_overlap(DATA) is expected


def test_reference_as_text():
    """Where the number of records is private, no end is printed."""
    assert str(DATA) == str(replace(DATA, cut="positions")) == "mnist[0:60000]"
    assert str(DATA.all) == "mnist"
    assert str(replace(DATA, stop=OPEN_END)) == "mnist[0:]"
    assert str(replace(DATA, cut="values", start=25 * 10**7, stop=HASHES)) == "mnist[0.25:1.0]"
    assert str(replace(DATA, cut="columns", start=0, stop=1)) == "mnist[0.0:0.000000001]"


def test_nominal_noise_multiplier():
    """Deviation 1.1 x 2 = 2.2, over a claimed bound of 0.5: 4.4. Without a claim it is the certified one."""
    claimed = replace(TRAINING.mechanism, sensitivity=2.0, nominal_sensitivity=0.5)
    assert claimed.nominal_noise_multiplier == pytest.approx(4.4)
    assert claimed.noise_std == pytest.approx(2.2)
    assert TRAINING.mechanism.nominal_noise_multiplier == 1.1
    assert GAUSSIAN.mechanism.noise_std == 12.0
