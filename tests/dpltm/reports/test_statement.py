"""Statements: they follow from their events, and whatever does not is named."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from scipy.stats import binomtest

from dpltm.errors import ArtifactError, InputError
from dpltm.privacy.events import DatasetRef, NonPrivateEvent, ProvenanceEvent, SelectionEvent, TrainingEvent
from dpltm.privacy.mechanisms import NoisySgd, Selection, Unprotected
from dpltm.privacy.report import report
from dpltm.reports import statement as module
from dpltm.reports.statement import Subject, Terms, check_shape, differences, statement

REF = DatasetRef("d", "1" * 32, "k")
LEFT, RIGHT = (DatasetRef("d", "1" * 32, "k", *ends, "values") for ends in ((0, 5 * 10**8), (5 * 10**8, 10**9)))
SGD = NoisySgd(0.1, 20, 2.0, sensitivity=0.5)
DRAW = SelectionEvent(REF, Selection(0.3, 0.3, adaptive=False), "additive", "exact", 0.01, 5, "t", time="1")
TRAINING = TrainingEvent(REF, SGD, "clip(C=0.5)", 100, time="2")
SETTINGS = {
    "sampling_rate": 0.1,
    "steps": 20,
    "noise_multiplier": 2.0,
    "noise_std": 1.0,
    "sensitivity": 0.5,
    "filter": "clip(C=0.5)",
    "live": 100,
    "nominal_sensitivity": None,
    "noise_bits": "secure",
}
INTERVAL = binomtest(90, 100).proportion_ci(0.95, method="wilson")
OUTCOME = {"accuracy": 0.9, "test_records": 100, "low": INTERVAL.low, "high": INTERVAL.high}
RUN, PLAIN = Subject("run", "r", SETTINGS, OUTCOME), Subject("run", "r")
CASES = {
    "a draw and a training": (DRAW, TRAINING),
    "nothing": (),
    "parts that stand side by side": (
        TrainingEvent(LEFT, SGD, "f", 1, time="1"),
        TrainingEvent(RIGHT, NoisySgd(0.2, 30, 1.5), "f", 1, time="2"),
    ),
    "private tickets": (ProvenanceEvent(REF, "private", "t", time="1"), TRAINING),
    "a bare release": (NonPrivateEvent(REF, Unprotected(), "accuracy", time="1"), TRAINING),
    "the tanh paper": (TrainingEvent(REF, NoisySgd(0.1, 20, 2.0, 4.0, 1.0), "tanh", 100, time="1"),),
}  # fmt: skip


def made(*events: Any, subject: Subject = PLAIN, **terms: Any) -> dict[str, Any]:
    """A statement, as whoever reads its JSON has it."""
    body: dict[str, Any] = json.loads(json.dumps(statement(subject, events, Terms(**terms))))
    check_shape(body)
    return body


@pytest.mark.parametrize("events", CASES.values(), ids=CASES)
def test_follows_from_its_events(events: tuple[Any, ...]) -> None:
    body = made(*events)
    assert differences(body) == []
    assert body["certified"] == report(events, 1e-5, "add-remove").to_json()["certified"]
    if body["certified"]["epsilon"] == "inf":
        assert body["odds"] is None


def test_disjoint_parts_do_not_add_up() -> None:
    """As the machine that can tell them apart has it: the costlier part, not both."""
    left, right = CASES["parts that stand side by side"]
    body = made(left, right)
    assert [part["events"] for part in body["parts"]] == [[0], [1]]
    assert body["certified"]["epsilon"] == made(right)["certified"]["epsilon"]


@pytest.mark.parametrize("terms", [{"accountant": "rdp"}, {"accountant": "clt"}, {"delta": 1e-7}])
def test_terms_are_taken_over(terms: dict[str, Any]) -> None:
    assert differences(made(DRAW, TRAINING, **terms)) == []


def changed(body: dict[str, Any], *path: Any, to: Any) -> dict[str, Any]:
    other = copy.deepcopy(body)
    place = other
    for key in path[:-1]:
        place = place[key]
    assert place[path[-1]] != to
    place[path[-1]] = to
    return other


@pytest.mark.parametrize(
    ("path", "to", "said"),
    [
        (("certified", "epsilon"), 0.5, "certified.epsilon: 0.5, but its events give "),
        (("certified", "epsilon"), "inf", "certified.epsilon: inf, but its events give "),
        (("certified", "delta"), 1e-3, "certified.epsilon: "),
        (("nominal", "epsilon"), 0.1, "nominal.epsilon: 0.1, but its events give "),
        (("nominal",), None, "nominal: nothing, but its events give "),
        (("odds", "right", 0, "at_most"), 0.51, "odds.right.1.at_most: 0.51, but its events give "),
        (("odds", "found", 3, "at_most"), 0.11, "odds.found.4.at_most: 0.11, but its events give "),
        (("odds",), None, "odds: nothing, but its events give "),
        (("events", 0, "eps1"), 0.2, "nominal.epsilon: "),
        (("events", 0, "certified_epsilon"), 3.0, "certified.epsilon: "),
        (("events", 1, "noise_multiplier"), 4.0, "certified.epsilon: "),
        (("events", 1, "steps"), 10, "certified.epsilon: "),
        (("events", 1, "sampling_rate"), 0.05, "certified.epsilon: "),
        (("events", 1, "sensitivity"), 0.25, "settings.sensitivity: 0.5, but its event says 0.25"),
        (("events", 1, "filter"), "clip(C=9)", "settings.filter: clip(C=0.5), but its event says clip(C=9)"),
        (("events", 1, "live"), 7, "settings.live: 100, but its event says 7"),
        (("settings", "noise_std"), 9.0, "settings.noise_std: 9, but its event says 1"),
        (("settings", "nominal_sensitivity"), 1.0, "settings.nominal_sensitivity: 1, but its event says nothing"),
        (("outcome", "low"), 0.89, "outcome.low: 0.89, but its events give 0.825634"),
    ],
)
def test_what_does_not_follow_is_named(path: tuple[Any, ...], to: Any, said: str) -> None:
    body = made(DRAW, TRAINING, subject=RUN)
    assert differences(body) == []
    assert any(line.startswith(said) for line in differences(changed(body, *path, to=to)))


def test_events_that_count_for_nothing_are_refused() -> None:
    body = made(DRAW, TRAINING)
    with pytest.raises(ArtifactError, match=r"^parts: event 2 is in none of them, so it would count for nothing$"):
        differences(changed(body, "parts", 0, "events", to=[0]))
    with pytest.raises(ArtifactError, match=r"^parts: one names an event that is not there$"):
        differences(changed(body, "parts", 0, "events", to=[0, 2]))
    with pytest.raises(ArtifactError, match=r"^event 1: unknown event 'free': known are "):
        differences(changed(body, "events", 0, "kind", to="free"))


@pytest.mark.parametrize(
    ("path", "to", "said"),
    [
        (("kind",), "x", "kind: 'x' is not one of run, tickets, sweep"),
        (("accountant",), "x", "accountant: 'x' is not one of pld, rdp, ma, clt"),
        (("certified", "unit"), "x", "certified.unit: 'x' is not one of record, user"),
        (("certified", "epsilon"), -1.0, "epsilon: -1.0 is no epsilon"),
        (("certified", "epsilon"), "1", "epsilon: '1' is no epsilon"),
        (("certified", "delta"), 1.0, "delta: 1.0 is not between 0 and 1"),
        (("certified", "delta"), True, "certified: field delta: bad value True"),
        (("events",), {}, "the statement: field events: bad value {}"),
        (("parts",), [3], "parts: expected an object"),
        (("notes",), [3], "notes: one is no text"),
        (("odds", "right"), [{"prior": 1.0}], "odds.right: unknown or missing field 'at_most'"),
        (("settings",), {"x": []}, "settings.x: neither a text nor a number"),
    ],
)
def test_shapes_that_are_wrong(path: tuple[Any, ...], to: Any, said: str) -> None:
    with pytest.raises(ArtifactError) as refused:
        check_shape(changed(made(TRAINING), *path, to=to))
    assert str(refused.value) == said


def test_unknown_and_missing_fields_are_refused() -> None:
    body = made(TRAINING)
    for wrong in ({**body, "more": 1}, {key: value for key, value in body.items() if key != "notes"}):
        with pytest.raises(ArtifactError, match=r"^the statement: unknown or missing field '(more|notes)'$"):
            check_shape(wrong)


def test_too_many_events_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EVENTS", 1)
    with pytest.raises(InputError, match=r"^r: 2 events, more than the 1 of a statement$"):
        statement(RUN, (DRAW, TRAINING), Terms())
