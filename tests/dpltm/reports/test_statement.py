"""Statements: they follow from their events, and whatever does not is named."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from scipy.stats import binomtest

from dpltm.errors import ArtifactError, InputError
from dpltm.privacy.events import (
    DatasetRef,
    GaussianEvent,
    NonPrivateEvent,
    ProvenanceEvent,
    SearchEvent,
    SelectionEvent,
    TrainingEvent,
)
from dpltm.privacy.mechanisms import GaussianRelease, NoisySgd, PrivateSearch, Selection, Unprotected
from dpltm.privacy.report import report
from dpltm.reports import statement as module
from dpltm.reports.checking import differences, kept_apart
from dpltm.reports.fields import PROVENANCE, guarantee_fields, meaning, mechanism_fields, record_fields
from dpltm.reports.statement import Subject, Terms, check_shape, events_of, statement
from dpltm.reports.words import in_plain_words

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
    "clip_norm": 0.5,
    "dataset": "d",
    "records": "d",
    "expected_batch": 10.0,
    "public_records": 100,
    "groups": None,
    "divisor": 10.0,
}
INTERVAL = binomtest(90, 100).proportion_ci(0.95, method="wilson")
OUTCOME = {"accuracy": 0.9, "test_records": 100, "low": INTERVAL.low, "high": INTERVAL.high}
RUN, PLAIN = Subject("run", "r", SETTINGS, OUTCOME), Subject("tickets", "r")
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


def without(body: dict[str, Any], key: str) -> dict[str, Any]:
    return {**body, "settings": {name: value for name, value in body["settings"].items() if name != key}}


@pytest.mark.parametrize("key", ["sampling_rate", "steps", "noise_multiplier", "noise_std", "sensitivity", "filter", "live",
                                 "nominal_sensitivity", "noise_bits", "clip_norm", "dataset", "records"])  # fmt: skip
def test_no_setting_of_the_event_may_be_missing(key: str) -> None:
    found = differences(without(made(DRAW, TRAINING, subject=RUN), key))
    assert [line.partition(", but its event says ")[0] for line in found] == [f"settings.{key}: missing"]


@pytest.mark.parametrize(
    ("path", "to", "said"),
    [
        (("settings", "records"), "e", "settings.records: e, but its event says d"),
        (("settings", "dataset"), "e", "settings.dataset: e, but its event says d"),
        (("settings", "clip_norm"), 0.1, "settings.clip_norm: 0.1, but its event says 0.5"),
        (("settings", "noise_bits"), "fast", "settings.noise_bits: fast, but its event says secure"),
        (("settings", "expected_batch"), 90.0, "settings.expected_batch: 90, but the rate 0.1 of 100 records gives 10"),
        (("settings", "public_records"), 900, "settings.expected_batch: 10, but the rate 0.1 of 900 records gives 90"),
        (("settings", "public_records"), None,
         "settings.expected_batch: 10, but the rate 0.1 of nothing records gives nothing"),
        (("settings", "groups"), 5, "settings.divisor: 10, but groups and expected batch give 5"),
        (("settings", "divisor"), None, "settings.divisor: nothing, but groups and expected batch give 10"),
        (("kind",), "tickets", "kind: tickets, but its settings are those of a run"),
        (("notes",), [], "notes: its events call for one that is missing: hyperparameter search, seed picking and early"
         " stopping on private scores are not covered unless they are paid for"),
        (("outcome", "test_records"), None, "outcome.low: 0.825634, but its events give nothing"),
        (("state",), "damaged", "state: damaged: what it tells of is not complete, so its settings cannot be compared"),
    ],
)  # fmt: skip
def test_what_does_not_fit_its_event_is_named(path: tuple[Any, ...], to: Any, said: str) -> None:
    body = changed(made(DRAW, TRAINING, subject=RUN), *path, to=to)
    assert said in differences(body)


def test_a_run_without_its_training_is_named() -> None:
    body = made(DRAW, subject=replace(RUN, settings={"steps": 20}))
    assert "events: none is that of a training, and the statement is of one" in differences(body)


def test_noise_that_is_not_on_record_is_not_called_secure() -> None:
    shown = [field.meaning for field in mechanism_fields(without(made(TRAINING, subject=RUN), "noise_bits"))]
    assert not any("cryptographic generator" in meaning for meaning in shown)
    assert any("of a generator that is not on record" in meaning for meaning in shown)


def test_events_of_the_same_records_are_not_split() -> None:
    """By id and range alone; halves stand side by side, and what the machine knows beyond that is its word."""
    body = made(DRAW, TRAINING, subject=RUN)
    split = [{"records": "d", "events": [0]}, {"records": "d", "events": [1]}]
    found = differences({**body, "parts": split})
    assert "parts: events 1, 2 touched the same records by their ids, and no part holds them all" in found
    assert kept_apart(body, events_of(body)) is None
    halves = made(*CASES["parts that stand side by side"])
    assert differences(halves) == []
    other = [replace(TRAINING, dataset=DatasetRef("d", each * 32, "k"), time=each) for each in "12"]
    apart, alone = made(*other), made(TRAINING)
    assert apart["certified"] == alone["certified"]  # this machine was told that they are others
    together = report([replace(TRAINING, time=each) for each in "12"], 1e-5, "add-remove").certified.epsilon
    said = kept_apart(apart, events_of(apart))
    assert said is not None
    assert said.endswith(f"were datasets of other ids the same records: epsilon {together:.4g}")


PRIVATE_SET = ProvenanceEvent(REF, "private", "t", time="1")


@pytest.mark.parametrize(
    ("said", "to"),
    [
        ("settings.provenance: data-free, but its event says private", "data-free"),
        ("settings.provenance: nothing, but its event says private", None),
        ("settings.provenance: fine is not one of data-free, public, dp, private", "fine"),
    ],
)
def test_provenance_is_that_of_the_event(said: str, to: str | None) -> None:
    subject = replace(
        RUN, settings={**SETTINGS, "ticket_set": "t", "provenance": "private", "provenance_meaning": "Fine."}
    )
    body = made(PRIVATE_SET, TRAINING, subject=subject)
    assert differences(body) == []
    shown = {field.name: field.meaning for field in record_fields(body)}
    assert shown["provenance of tickets"] == PROVENANCE["private"]  # whatever the file says that it means
    assert differences(changed(body, "settings", "provenance", to=to)) == [said]


def test_notes_that_events_call_for_may_not_be_missing() -> None:
    fast = replace(TRAINING, noise="fast")
    body = made(fast, subject=replace(RUN, settings={**SETTINGS, "noise_bits": "fast"}))
    assert differences(body) == []
    (note,) = [note for note in body["notes"] if "fast" in note]
    kept = [other for other in body["notes"] if other != note]
    assert differences({**body, "notes": kept}) == [f"notes: its events call for one that is missing: {note:.120}"]
    said = replace(RUN, settings={**SETTINGS, "noise_bits": "fast"}, notes=(note,))  # as the result of a run has it
    assert made(fast, subject=said)["notes"] == body["notes"]


def test_a_search_is_compared_with_one_of_its_trainings() -> None:
    search = PrivateSearch((replace(SGD, steps=10), SGD), 5.0, 0.3)
    event = SearchEvent(REF, search, "clip(C=0.5) or clip(C=1)", 100, time="1")
    subject = replace(RUN, settings={**SETTINGS, "tries": 2.0, "tried": 4})
    body = made(event, subject=subject)
    assert differences(body) == []
    assert any("best of a secret number of trainings, 2 in the mean" in line for line in in_plain_words(body))
    found = differences(changed(body, "settings", "steps", to=30))
    assert found == ["settings.steps: 30, but its event says 10"]
    found = differences(changed(body, "settings", "clip_norm", to=1.0))
    assert found == ["settings.clip_norm: 1, but its event says 0.5"]


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


def test_the_attacker_of_two_hypotheses() -> None:
    body = made(TRAINING)
    body["certified"]["adjacency"] = "replace-one"
    assert meaning(body)[0].startswith(
        "An attacker who holds it 50 % likely beforehand that the one of two records was used, and not the other, and then"
    )


def test_persons_are_called_persons() -> None:
    event = replace(TRAINING, mechanism=replace(SGD, unit="user"))
    body = made(event, subject=replace(RUN, settings={**SETTINGS, "per_unit": 8}))
    assert any("took a random part of the persons" in line for line in in_plain_words(body))
    assert any("8 of each person were used at most" in line for line in in_plain_words(body))
    fields = {field.name: field for field in (*mechanism_fields(body), *record_fields(body), *guarantee_fields(body))}
    assert fields["records of a person"].value == "8 at most"
    assert fields["number of persons"].value == "100"
    assert fields["sampling"].meaning.startswith("Each person enters each step")
    assert fields["delta"].meaning.endswith("where n is the number of persons.")


def test_steps_on_all_records_and_what_is_released_beside_them() -> None:
    whole = replace(TRAINING, mechanism=replace(SGD, sampling_rate=1.0))
    release = GaussianEvent(REF, GaussianRelease(9.0), "mean of features", time="1")
    settings = {**SETTINGS, "sampling_rate": 1.0, "expected_batch": 100.0, "divisor": 100.0}
    body = made(release, whole, subject=replace(RUN, settings=settings))
    assert differences(body) == []
    assert body["certified"]["sampling"] == "none"
    fields = {field.name: field.value for field in mechanism_fields(body)}
    assert fields["sampling"] == "none: all records, each step"
    words = " ".join(in_plain_words(body))
    assert "Each step took all records," in words
    assert "counted as well: mean of features." in words


def test_the_sampling_of_a_card_is_compared() -> None:
    body = made(TRAINING)
    assert body["certified"]["sampling"] == "poisson"
    found = differences(changed(body, "certified", "sampling", to="none"))
    assert found == ["certified.sampling: none, but its events give poisson"]
    with pytest.raises(ArtifactError, match=r"^certified.sampling: 'shuffled' is not one of poisson, none$"):
        check_shape(changed(body, "certified", "sampling", to="shuffled"))


def test_parts_are_stated_with_the_sampling_of_the_costlier() -> None:
    """Which is what whoever computes the card again finds, part by part."""
    sampled, whole = (
        TrainingEvent(LEFT, SGD, "f", 1, time="1"),
        TrainingEvent(RIGHT, NoisySgd(1.0, 1, 0.5), "f", 1, time="2"),
    )
    body = made(sampled, whole)
    assert body["certified"]["sampling"] == "none"
    assert differences(body) == []


def test_only_the_best_try_of_a_search_may_be_released() -> None:
    event = SearchEvent(REF, PrivateSearch((SGD, replace(SGD, steps=10)), 5.0, 0.3), "clip(C=0.5)", 100, time="1")
    shown = {
        kind: next(field for field in guarantee_fields(made(one)) if field.name == "what may be released")
        for kind, one in (("search", event), ("training", TRAINING))
    }
    assert shown["search"].value == "the best try alone"
    assert "how many there were must stay secret" in shown["search"].meaning
    assert "intermediate" in shown["training"].meaning
    assert not any("intermediate" in line for line in meaning(made(event)))
    assert any("intermediate" in line for line in meaning(made(TRAINING)))
    assert not [field for field in guarantee_fields(made(DRAW)) if field.name == "what may be released"]


@pytest.mark.parametrize(
    ("filter", "said"),
    [
        ("clip(C=0.5)", "Norm that each gradient is clipped to."),
        ("clip(C=0.5) then tanh(c=1, k=1)", "Norm that each gradient is clipped to."),
        ("normalize(C=0.5)", "Norm that each gradient is scaled to, the short ones as well."),
        ("auto(C=0.5, gamma=0.01)", "Norm that each gradient is scaled to, the short ones as well, but for gamma."),
        ("radial-tanh(C=0.5, k=1)", "Norm that each gradient stays below."),
        ("per-layer(C=0.5)", "Of all layers together: each of L layers is clipped to C / sqrt(L)."),
    ],
)
def test_what_the_norm_does_is_said_of_each_filter(filter: str, said: str) -> None:
    body = made(replace(TRAINING, filter=filter), subject=replace(RUN, settings={**SETTINGS, "filter": filter}))
    (field,) = [field for field in mechanism_fields(body) if field.name == "clip norm"]
    assert (field.value, field.meaning) == ("0.5", said)


@pytest.mark.parametrize(("budget", "said"), [(1000.0, "within it"), (0.001, "larger than it")])
def test_a_budget_is_compared_with_what_was_spent(budget: float, said: str) -> None:
    """Noise may have been stated, or calibrated to a claim: that there is a budget does not say that it was kept."""
    body = made(TRAINING, subject=replace(RUN, settings={**SETTINGS, "budget": budget}))
    (field,) = [field for field in guarantee_fields(body) if field.name == "budget asked for"]
    assert field.meaning == f"The certified epsilon is {said}."


def test_bounds_that_were_found_are_not_called_public() -> None:
    found = GaussianEvent(REF, GaussianRelease(9.0), "histograms of 2 columns for a schema", time="1")
    settings = {**SETTINGS, "low": 0.0, "high": 1.0, "bounds_origin": "declared"}
    shown = {
        field.name: field.meaning
        for field in record_fields(made(found, TRAINING, subject=replace(RUN, settings=settings)))
    }
    assert shown["bounds of features"].startswith(
        "Of columns found under differential privacy (event 1 of the ledger)."
    )
