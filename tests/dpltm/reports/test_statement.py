"""Statements: they follow from their entries, and whatever does not is named; the best attacker; what decides."""

import copy
import json
import math
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, norm

from dpltm.errors import ArtifactError
from dpltm.filters import FILTERS, make_filter
from dpltm.privacy import gdp
from dpltm.privacy.account import Account
from dpltm.privacy.entry import Entry, Part, value_from_json
from dpltm.privacy.mechanisms import (
    AllocatedSgd,
    BandedSgd,
    GaussianRelease,
    Guarantee,
    Mechanism,
    NoisySgd,
    PrivateSearch,
    Selection,
    TruncatedSgd,
    Unprotected,
)
from dpltm.privacy.statement import SEARCH_NOTE
from dpltm.privacy.trade_off import curves
from dpltm.reports import statement as module
from dpltm.reports.statement import (
    FALSE_ALARMS,
    PRIORS,
    PROVENANCE,
    Statement,
    Subject,
    differences,
    interval,
    odds,
    precision,
    run_subject,
    statement,
)
from dpltm.reports.wording import MET, MISSED, OPEN, criteria, render_statement, verdict
from refusals import refused

WHOLE = Part("d", "1" * 64)
LEFT, RIGHT = (Part("d", "1" * 64, (), "record", *ends) for ends in ((0, 5 * 10**8), (5 * 10**8, 10**9)))
SGD = NoisySgd(0.1, 20, 2.0, sensitivity=0.5)


def entered(number: int, *mechanisms: Mechanism, part: Part = WHOLE, words: str = "a release", **more: Any) -> Entry:
    """A release as entry ``number`` of one ledger."""
    placed: Any = {"id": f"{number:064x}", "home": "f" * 64, "sequence": number, "day": "2026-01-01"}
    return Entry("release", part, mechanisms, words, **placed, **more)


DRAW = entered(1, Selection(0.3, 0.3), words="winner of 5 tickets")
TRAINING = entered(2, SGD, words="a training")
SETTINGS = {
    "sampling_rate": 0.1, "steps": 20, "noise_multiplier": 2.0, "noise_std": 1.0, "sensitivity": 0.5, "live": 100,
    "filter": "clip(C=0.5)", "filter_name": "clip", "clip_norm": 0.5, "nominal_sensitivity": None, "noise_bits": "secure",
    "dataset": "d", "records": "d", "expected_batch": 10.0, "public_records": 100, "groups": None, "divisor": 10.0,
}  # fmt: skip
SET = {"rounds": 1, "model": "mlp:2", "criterion": "random"}
INTERVAL = binomtest(90, 100).proportion_ci(0.95, method="wilson")
OUTCOME = {"accuracy": 0.9, "test_records": 100, "low": INTERVAL.low, "high": INTERVAL.high}
RUN, PLAIN = Subject("r", SETTINGS, OUTCOME), Subject("r", SET)
CASES = {
    "a draw and a training": (DRAW, TRAINING),
    "nothing": (),
    "parts that stand side by side": (entered(1, SGD, part=LEFT), entered(2, NoisySgd(0.2, 30, 1.5), part=RIGHT)),
    "a bare release": (entered(1, Unprotected()), TRAINING),
    "the tanh paper": (entered(1, NoisySgd(0.1, 20, 2.0, 4.0, 1.0)),),
}


def made(*entries: Entry, subject: Subject = PLAIN, unit: str = "record", **terms: Any) -> dict[str, Any]:
    """A statement, as whoever reads its JSON has it."""
    account = Account(entries, unit=unit)
    body: dict[str, Any] = json.loads(json.dumps(statement(replace(subject, **terms), account)))
    value_from_json(Statement, body, "the statement")
    return body


@pytest.mark.parametrize("entries", CASES.values(), ids=CASES)
def test_follows_from_its_entries(entries: tuple[Entry, ...]) -> None:
    body = made(*entries)
    trained = any(entry.of(NoisySgd) for entry in entries)
    assert differences(body) == (
        [] if trained else ["entries: none is that of a training, and the statement is of one"]
    )
    epsilon = Account(entries).epsilon(1e-5)
    assert body["certified"]["epsilon"] == ("inf" if epsilon == float("inf") else epsilon)
    if epsilon in (0, float("inf")):
        assert body["odds"] is None


def test_disjoint_parts_do_not_add_up() -> None:
    """The costlier part, not both."""
    left, right = CASES["parts that stand side by side"]
    body = made(left, right)
    assert body["certified"]["epsilon"] == made(right)["certified"]["epsilon"]


class Field(NamedTuple):
    """What a row of a card tells of a field."""

    value: str
    meaning: str


FRAME = dict.fromkeys(("statement", "privacy_key", "begin", "end", "fence"), "")


def lines(body: dict[str, Any]) -> list[str]:
    """The lines of a card."""
    return render_statement("card.md.jinja", body, metadata={}, **FRAME).splitlines()


def fields_in(lines: list[str]) -> dict[str, Field]:
    """The fields in some lines of a card, by name."""
    rows = [line[2:-2].split(" | ") for line in lines if line.startswith("| ")]
    return {row[0]: Field(*row[1:]) for row in rows if len(row) == 3}


def shown(body: dict[str, Any]) -> dict[str, Field]:
    """The fields of a card, by name."""
    return fields_in(lines(body))


def words(body: dict[str, Any]) -> str:
    """The sentences of a card."""
    return "\n".join(line for line in lines(body) if not line.startswith("|"))


def changed(body: dict[str, Any], *path: Any, to: Any) -> dict[str, Any]:
    other = copy.deepcopy(body)
    place = other
    for key in path[:-1]:
        place = place[key]
    assert place[path[-1]] != to
    place[path[-1]] = to
    return other


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("path", "to", "said"),
    [
        (("certified", "epsilon"), 0.5, "certified.epsilon: 0.5, but its entries give "),
        (("certified", "delta"), 1e-3, "certified.epsilon: "),
        (("nominal", "epsilon"), 0.1, "nominal.epsilon: 0.1, but its entries give "),
        (("nominal",), None, "nominal: nothing, but its entries give "),
        (("odds", "right", 0, "at_most"), 0.51, "odds.right.1.at_most: 0.51, but its entries give "),
        (("odds",), None, "odds: nothing, but its entries give "),
        (("entries", 0, "mechanisms", 0, "eps1"), 0.2, "nominal.epsilon: "),
        (("entries", 0, "mechanisms", 0, "certified_epsilon"), 3.0, "certified.epsilon: "),
        (("entries", 1, "mechanisms", 0, "noise_multiplier"), 4.0, "certified.epsilon: "),
        (("entries", 1, "mechanisms", 0, "sensitivity"), 0.25, "settings.sensitivity: 0.5, but its entries give 0.25"),
        (("settings", "noise_std"), 9.0, "settings.noise_std: 9, but its entries give 1"),
        (("settings", "nominal_sensitivity"), 1.0, "settings.nominal_sensitivity: 1, but its entries give nothing"),
        (("outcome", "low"), 0.89, "outcome.low: 0.89, but its entries give 0.825634"),
        (("settings", "records"), "e", "settings.records: e, but its entries give d"),
        (("settings", "noise_bits"), "fast", "settings.noise_bits: fast, but its entries give secure"),
        (("settings", "expected_batch"), 90.0, "settings.public_records: 100, but its entries give 900"),
        (("settings", "public_records"), 900, "settings.public_records: 900, but its entries give 100"),
        (("settings", "public_records"), None, "settings.public_records: nothing, but its entries give 100"),
        (("settings", "groups"), 5, "settings.divisor: 10, but its entries give 5"),
        (("settings", "divisor"), None, "settings.divisor: nothing, but its entries give 10"),
        (("notes",), [], f"notes: its entries call for one that is missing: {SEARCH_NOTE:.120}"),
        (("outcome", "test_records"), None, "outcome.low: 0.825634, but its entries give nothing"),
        (
            ("state",),
            "damaged",
            "state: damaged: what it tells of is not complete, so its settings cannot be compared",
        ),
        (("certified", "sampling"), "none", "certified.sampling: none, but its entries give poisson"),
    ],
)
def test_what_does_not_follow_is_named(path: tuple[Any, ...], to: Any, said: str) -> None:
    body = made(DRAW, TRAINING, subject=RUN)
    assert differences(body) == []
    assert any(line.startswith(said) for line in differences(changed(body, *path, to=to)))


def without(body: dict[str, Any], key: str) -> dict[str, Any]:
    return {**body, "settings": {name: value for name, value in body["settings"].items() if name != key}}


@pytest.mark.parametrize("key", ["sampling_rate", "steps", "noise_multiplier", "noise_std", "sensitivity",
                                 "nominal_sensitivity", "noise_bits", "dataset", "records"])  # fmt: skip
def test_no_setting_of_the_event_may_be_missing(key: str) -> None:
    found = differences(without(made(DRAW, TRAINING, subject=RUN), key))
    assert [line.partition(", but its entries give ")[0] for line in found] == [f"settings.{key}: missing"]


def test_noise_that_is_not_on_record_is_not_called_secure() -> None:
    noise = shown(without(made(TRAINING, subject=RUN), "noise_bits"))["noise"].meaning
    assert "cryptographic generator" not in noise
    assert "of a generator that is not on record" in noise


@pytest.mark.parametrize(
    ("said", "to"),
    [
        ("settings.provenance: private, but no entry says that anything was released without protection", "private"),
        ("settings.provenance: fine is not one of data-free, public, dp, private", "fine"),
    ],
)
def test_provenance_fits_the_entries(said: str, to: str) -> None:
    subject = replace(RUN, settings={**SETTINGS, "ticket_set": "t", "provenance": "public", "provenance_meaning": "."})
    body = made(TRAINING, subject=subject)
    assert differences(body) == []
    assert shown(body)["provenance of tickets"].meaning == PROVENANCE["public"]  # whatever the file says that it means
    assert differences(changed(body, "settings", "provenance", to=to)) == [said]


def test_notes_that_entries_call_for_may_not_be_missing() -> None:
    fast = entered(2, replace(SGD, bits="fast"))
    body = made(fast, subject=replace(RUN, settings={**SETTINGS, "noise_bits": "fast"}))
    assert differences(body) == []
    (note,) = [note for note in body["notes"] if "fast" in note]
    kept = [other for other in body["notes"] if other != note]
    assert differences({**body, "notes": kept}) == [f"notes: its entries call for one that is missing: {note:.120}"]
    said = replace(RUN, settings={**SETTINGS, "noise_bits": "fast"}, notes=(note,))  # as the result of a run has it
    assert made(fast, subject=said)["notes"] == body["notes"]


def test_a_search_is_compared_with_one_of_its_trainings() -> None:
    entry = entered(1, PrivateSearch((replace(SGD, steps=10), SGD), 5.0, 0.3))
    body = made(entry, subject=RUN)
    assert differences(body) == []
    assert "It is the best of a secret number of trainings." in words(body)
    assert shown(body)["what may be released"].value == "the best try alone"
    assert "intermediate" not in words(body)
    assert "intermediate" in words(made(TRAINING, subject=RUN))
    found = differences(changed(body, "settings", "steps", to=30))
    assert found == ["settings.steps: 30, but its entries give 10"]


def test_entries_that_cannot_be_read_are_refused() -> None:
    body = made(DRAW, TRAINING)
    with pytest.raises(ArtifactError, match=r"^entry 1: "):
        differences(changed(body, "entries", 0, "kind", to="free"))
    with pytest.raises(ArtifactError, match=r"^entries: `unit`"):
        differences(changed(body, "entries", 0, "unit", to="patient"))


@pytest.mark.parametrize(
    ("path", "to", "said"),
    [
        (("kind",), "x", "kind: bad value 'x'"),
        (("certified", "epsilon"), -1.0, "certified: epsilon -1 at delta 1e-05 is no guarantee"),
        (("certified", "delta"), True, "certified: delta: bad value True"),
        (("settings",), {"x": []}, "x: bad value []"),
    ],
)
def test_shapes_that_are_wrong(path: tuple[Any, ...], to: Any, said: str) -> None:
    body = changed(made(TRAINING), *path, to=to)
    assert refused(value_from_json, Statement, body, "the statement", kind=ArtifactError) == f"the statement: {said}"


def test_too_many_entries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 1)
    assert refused(statement, RUN, Account((DRAW, TRAINING))) == "2 entries, more than the 1 of a statement"


def test_persons_are_called_persons() -> None:
    subject = replace(RUN, settings={**SETTINGS, "per_unit": 8})
    body = made(replace(TRAINING, unit="patient"), subject=subject, unit="patient")
    assert "took a random part of the persons" in words(body)
    assert "8 of each person were used at most" in words(body)
    fields = shown(body)
    assert fields["records of a person"].value == "8 at most"
    assert fields["number of persons"].value == "100"
    assert fields["sampling"].meaning.startswith("Each person enters each step")
    assert fields["delta"].meaning.endswith("where n is the number of persons.")


STEPS = vars(SGD)


@pytest.mark.parametrize(
    ("mechanism", "code", "value"),
    [
        (SGD, "poisson", "Poisson, rate 0.1"),
        (NoisySgd(1.0, 20, 2.0), "none", "none: all records, each step"),
        (AllocatedSgd(**STEPS, participations=2), "allocation", "random allocation, 2 of 20 steps"),
        (
            TruncatedSgd(**STEPS, truncated_batch_size=40, most_records=240),
            "truncated-poisson",
            "truncated Poisson, rate 0.1, 40 records at most",
        ),
        (BandedSgd(0.4, 20, 2.0, 0.5, strategy=(1.0, 0.5)), "cyclic-poisson", "cyclic Poisson, rate 0.4"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sampling_is_told_of_its_own_training_and_of_no_other(mechanism: Mechanism, code: str, value: str) -> None:
    """Other releases may stand in front of it: of its features, or its tickets."""
    training = entered(2, mechanism, words="a training")
    body = made(training, subject=RUN)
    assert (body["certified"]["sampling"], shown(body)["sampling"].value) == (code, value)
    both = made(entered(1, GaussianRelease(9.0), words="mean of features"), training, subject=RUN)
    assert shown(both)["sampling"].value == value
    assert "counted as well: mean of features." in words(both)
    if "-poisson" in code:
        front = entered(1, replace(mechanism, noise_multiplier=3.0), words="features")
        behind = made(front, TRAINING, subject=RUN)
        assert shown(behind)["sampling"].value == "Poisson, rate 0.1"


@pytest.mark.parametrize(("budget", "said"), [(1000.0, "within it"), (0.001, "larger than it")])
def test_a_budget_is_compared_with_what_was_spent(budget: float, said: str) -> None:
    """Noise may have been stated, or calibrated to a claim: that there is a budget does not say that it was kept."""
    body = made(TRAINING, subject=replace(RUN, settings={**SETTINGS, "budget": budget}))
    assert shown(body)["budget asked for"].meaning == f"The certified epsilon is {said}."


def test_bounds_that_were_found_are_not_called_public() -> None:
    found = entered(1, GaussianRelease(9.0), words="histograms of 2 columns for a schema")
    settings = {**SETTINGS, "low": 0.0, "high": 1.0, "bounds_origin": "declared"}
    bounds = shown(made(found, TRAINING, subject=replace(RUN, settings=settings)))["bounds of features"]
    assert bounds.meaning.startswith("Of columns found under differential privacy (entry 1).")


# Settings of a run, and intervals


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("more", [{}, {"no_pre_clip": True}, {"clip_quantile": 0.5}])
def test_the_clip_norm_is_that_of_the_filter(name: str, more: dict[str, Any]) -> None:
    """Of the filter that the options make, its part in front or behind included; None where nothing clips."""
    parameters = {parameter.name for parameter in FILTERS[name].parameters}
    more = {option: value for option, value in more.items() if option in parameters}
    norm = {"clip_norm": 0.25} if "clip_norm" in parameters and "no_pre_clip" not in more else {}
    made: Any = make_filter(name, **norm, **more)
    parts = (made, getattr(made, "before", None), getattr(made, "after", None))
    expected = next((part.clip_norm for part in parts if hasattr(part, "clip_norm")), None)
    options = {"filter": name, "clip_norm": 0.25, "clip_quantile": 0.0, "no_pre_clip": False, **more}
    facts = {"filter": "words that say clip(C=9)"}
    settings = run_subject("r", {"options": options, "resolved": facts}, {}).settings
    assert (settings["filter_name"], settings["clip_norm"]) == (name, expected)
    assert settings["clip_quantile"] == (more.get("clip_quantile") if norm else None)


@given(st.integers(1, 20_000).flatmap(lambda records: st.tuples(st.integers(0, records), st.just(records))))
def test_an_interval_is_that_of_scipy(counts: tuple[int, int]) -> None:
    correct, records = counts
    expected = binomtest(correct, records).proportion_ci(0.95, method="wilson")
    found = interval(correct / records, records)
    assert found == {"low": pytest.approx(expected.low, abs=1e-9), "high": pytest.approx(expected.high, abs=1e-9)}


@pytest.mark.parametrize(
    "counts", [(None, 10), (0.5, None), (1.5, 10), (float("nan"), 10), ("0.5", 10), (0.5, 0), (0.5, True)]
)
def test_no_interval_where_something_is_not_known(counts: tuple[object, object]) -> None:
    assert interval(*counts) == {}


def by_the_best_attacker(*mechanisms: Mechanism) -> tuple[dict[float, float], dict[float, float]]:
    """How often the best attacker is right, by prior; and what he finds, by false alarms."""
    body = odds(curves(mechanisms))
    right, found = (list(body[name]) for name in ("right", "found"))
    return ({row["prior"]: row["at_most"] for row in right}, {row["false_alarms"]: row["at_most"] for row in found})


def test_against_a_gaussian_release() -> None:
    """Of mu = 1: total variation 2 Phi(1/2) - 1, trade-off Phi(Phi^-1(1 - alpha) - 1), delta by Balle and Wang."""
    right, found = by_the_best_attacker(GaussianRelease(1.0))
    assert right[0.5] == pytest.approx(norm.cdf(0.5), abs=1e-4)
    assert right[0.5] >= norm.cdf(0.5)
    exact = 0.9 + 0.1 * gdp.delta(math.log(9), 1.0)
    assert exact <= right[0.1] <= exact + 1e-3
    for alarms in FALSE_ALARMS:
        assert found[alarms] == pytest.approx(1 - norm.cdf(norm.ppf(1 - alarms) - 1), rel=0.01)
        assert found[alarms] >= 1 - norm.cdf(norm.ppf(1 - alarms) - 1)


def test_against_a_pure_guarantee() -> None:
    """Of epsilon = ln 3 the best guess at even odds is right in 3 of 4 cases, and a yes at alpha finds 3 alpha."""
    right, found = by_the_best_attacker(Guarantee(math.log(3)))
    assert 0.75 <= right[0.5] <= 0.75001
    assert right[0.1] == pytest.approx(0.9, abs=1e-6)  # 9 to 1 against: no answer outweighs that
    assert found[0.05] == pytest.approx(0.15, rel=1e-3)


def test_nothing_learnt() -> None:
    right, found = by_the_best_attacker()
    assert right == {prior: max(prior, 1 - prior) for prior in PRIORS}
    assert found == pytest.approx({alarms: alarms for alarms in FALSE_ALARMS})


@given(st.floats(0.5, 20), st.floats(1e-3, 1), st.integers(1, 200))
def test_no_attacker_does_worse_than_guessing_or_better_than_always(noise: float, rate: float, steps: int) -> None:
    right, found = by_the_best_attacker(NoisySgd(rate, steps, noise))
    for prior, share in right.items():
        assert max(prior, 1 - prior) <= share + 1e-12 <= 1 + 1e-9
    for alarms, share in found.items():
        assert alarms <= share + 1e-9
        assert share <= 1


def test_precision_is_bayes() -> None:
    assert precision(0.3, 0.1, 0.5) == pytest.approx(0.75)
    assert precision(0.3, 0.1, 0.1) == pytest.approx(0.25)
    assert precision(0.0, 0.0, 0.1) == 0.1


OF_A_RUN = {"public_records": 1000, "budget": 10.0, "model": "mlp:2", "records": "d", "expected_batch": 100.0,
            "filter": "clip(C=1)", "clip_norm": 1.0, "live": 9}  # fmt: skip
SKILL = {
    "accuracy": 0.9, "test_records": 100, "majority": "no", "majority_accuracy": 0.8, "balanced_accuracy": 0.7,
    "auc": 0.8, "auc_low": 0.7, "auc_high": 0.9, "calibration_error": 0.1, "verdict": None,
    "chance_over_share": 0.9, "chance_of": "yes", "chance_low": 0.8, "chance_high": 1.1,
}  # fmt: skip
COUNTED = {"others": 2, "together": 1.5, "limit": 2.0, "limit_delta": 1e-5}
BUDGET, DELTA, ALL, BETTER, CHANCES = range(5)


def decided_on(*, settings: Any = (), state: str = "finished", bare: bool = False, **outcome: Any):
    mechanism = Unprotected() if bare else NoisySgd(0.1, 20, 2.0)
    entry = Entry("release", Part("d", "1" * 64), (mechanism,), "a training", day="2026-02-03", unit="patient")
    got = {**SKILL, **COUNTED, **outcome}
    got = {name: value for name, value in got.items() if value != "gone"}
    subject = Subject("r", {**OF_A_RUN, **dict(settings)}, got, state=state)
    return statement(subject, Account((entry,), unit="patient"))


DECISION = "## For whoever decides\n"


def of_the_decision(statement: dict[str, Any]) -> dict[str, Field]:
    """What stands first, by field: its value, and what it means."""
    part = "\n".join(lines(statement)).partition(DECISION)[2].partition("\n## ")[0]
    return fields_in(part.splitlines())


def test_all_are_met() -> None:
    assert [one.met for one in criteria(decided_on())] == [MET] * 5
    assert verdict(decided_on()) == "By its criteria this may go out: all of them are met."


@pytest.mark.parametrize(
    ("which", "met", "changed", "why"),
    [
        (
            BUDGET,
            MISSED,
            {"together": 2.5},
            "everything on these people comes to 2.5, and the budget in their ledger is 2",
        ),
        (BUDGET, MISSED, {"limit_delta": 1e-7}, "and the budget in their ledger is 2"),
        (BUDGET, MISSED, {"together": "inf"}, "released with no protection"),
        (BUDGET, MISSED, {"bare": True}, "released with no protection"),
        (BUDGET, MET, {"limit": "gone"}, "and 10 was asked for"),
        (BUDGET, MISSED, {"limit": "gone", "settings": {"budget": 0.01}}, "and 0.01 was asked for"),
        (BUDGET, OPEN, {"limit": "gone", "settings": {"budget": None}}, "no budget is on record"),
        (DELTA, MISSED, {"settings": {"expected_batch": 1e5}}, "one over their number 1e-06"),
        (DELTA, OPEN, {"settings": {"expected_batch": None}}, "not on record"),
        (ALL, OPEN, {"others": "gone", "together": "gone", "limit": "gone"}, "not at hand"),
        (BETTER, MISSED, {"verdict": "No better than chance"}, "no better than chance"),
        (BETTER, OPEN, {"auc": "gone"}, "nothing here says"),
        (CHANCES, MET, {"chance_over_share": 1.25}, "over its share is 1.25"),
        (CHANCES, MISSED, {"chance_over_share": 0.31, "chance_low": 0.2, "chance_high": 0.5}, "default --head"),
        (CHANCES, MISSED, {"chance_over_share": 1.4, "chance_low": 1.3, "chance_high": 1.5}, "not right"),
        (CHANCES, OPEN, {"chance_over_share": 0.7, "chance_low": 0.5, "chance_high": 0.9}, "too few test records"),
    ],
)
def test_one_is_not(which: int, met: str, changed: dict[str, Any], why: str) -> None:
    one = decided_on(**changed)
    found = criteria(one)
    assert [each.met for each in found] == [met if at == which else MET for at in range(5)]
    assert why in found[which].why
    starts = {MISSED: "By its criteria this should not go out: ", OPEN: "By its criteria this is not decided yet: "}
    if met == MET:
        assert verdict(one).endswith("all of them are met.")
    else:
        assert verdict(one) == f"{starts[met]}{found[which].why}."


def test_what_is_missed_is_said_before_what_is_open() -> None:
    one = decided_on(others="gone", together="gone", limit="gone", verdict="No better than chance")
    assert verdict(one) == "By its criteria this should not go out: no better than chance."


def test_whom_it_protects_and_what_it_reads() -> None:
    one = decided_on(settings={"columns": "age, sex", "purpose": "triage", "per_unit": 64})
    shown = of_the_decision(one)
    assert shown["protects"] == (
        "each patient in d",
        "All records of one patient together; of a patient 64 records are used at most.",
    )
    assert shown["reads"][0] == "age, sex"
    assert of_the_decision(decided_on(bare=True))["certified epsilon"].value == "inf"
    assert shown["purpose"] == ("triage", "")
    assert shown["contact"] == ("-", "Not stated: dpltm report --contact TEXT says it.")
    assert shown["last paid release"][0] == "2026-02-03"
    assert shown["all on the same people"][0] == "1.5"
    assert shown["released"][0] == "a network (mlp:2), every noisy step, and this page"


def test_nothing_is_decided_on_a_run_that_has_not_ended() -> None:
    one = decided_on(state="unfinished")
    assert of_the_decision(one) == {}
    assert verdict(one) == ""
