"""A statement: what was done to which records, what that guarantees, and what came of it, as one JSON object.

It is what cards carry and reports show (docs/formats.md, *Statements*). The guarantee follows from the entries in it, so
whoever has it can compute it again (``differences``), without the records and without torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from types import NoneType
from typing import Any, Literal

import numpy as np

from dpltm.errors import ArtifactError, InputError, in_flags
from dpltm.filters import FILTERS
from dpltm.filters.descriptor import CLIP_NORM
from dpltm.networks.skill import BINS, Skill, TargetSkill, wilson
from dpltm.options import TARGET_METRICS
from dpltm.options.train import LEAST_SQUARES
from dpltm.privacy import statement as privacy
from dpltm.privacy.account import Account
from dpltm.privacy.accountants import ACCOUNTANTS
from dpltm.privacy.checks import PER_UNIT
from dpltm.privacy.entry import entry_from_json, to_json, value_from_json
from dpltm.privacy.mechanisms import Adjacency, NoisySgd, PrivateSearch, Unprotected
from dpltm.privacy.trade_off import Curves, curves_of_profiles
from dpltm.records.schema import stored_schema

FORMAT, SCHEMA = "dpltm-statement", 2

LIBRARIES = ("dpltm", "numpy", "scipy")
"""Libraries that figures are computed with."""

MAX_ENTRIES = 2000
"""Of a statement; more are too many to read."""

PRIORS = (0.5, 0.1)
"""Chances, before anything is seen, that a record was used."""

PROVENANCE = {
    "data-free": "made from no records at all: using it costs no privacy",
    "public": "made from records that were declared public: using it costs no privacy",
    "dp": (
        "made under differential privacy from private records: what that cost is in its lineage, and counts with whatever is"
        " made of it; it may be shared as far as that guarantee goes"
    ),
    "private": (
        "made from private records with no mechanism: the masks may reveal them, the predictors, ordinary networks trained"
        " on them, even more, and nothing can be certified for those records. Think before you share it"
    ),
}
"""Where tickets may come from, and what that means: told from the kind alone, whatever else a file says."""

FALSE_ALARMS = (0.001, 0.01, 0.05, 0.1)
"""Of the table of records that an attacker finds."""


State = Literal["finished", "unfinished", "damaged"]
AccountantName = Literal["pld", "rdp", "ma", "clt"]


@dataclass(frozen=True)
class Subject:
    """Subject of a statement; ``settings`` and ``outcome`` hold texts, numbers, truth values or None by name.

    ``adjacency`` counts where no entry fixes one.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    outcome: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    state: State = "finished"
    delta: float = 1e-5
    accountant: AccountantName = "pld"
    adjacency: Adjacency = "add-remove"


@dataclass(frozen=True)
class Statement:
    """A statement; ``settings`` and the other objects hold texts, numbers, truth values or None by name."""

    format: str
    schema: int
    kind: Literal["run"]
    name: str
    state: State
    certified: privacy.Certified
    nominal: privacy.Nominal | None
    notes: tuple[str, ...]
    accountant: AccountantName
    odds: dict | None
    entries: tuple[dict, ...]
    settings: dict
    outcome: dict
    computed_with: dict
    versions: dict

    def __post_init__(self) -> None:
        for claim in (self.certified, self.nominal):
            if claim is not None and not (claim.epsilon >= 0 and 0 < claim.delta < 1):
                raise InputError(f"certified: epsilon {claim.epsilon:g} at delta {claim.delta:g} is no guarantee")
        if len(self.entries) > MAX_ENTRIES:
            raise InputError(f"{len(self.entries):,} entries, more than the {MAX_ENTRIES:,} of a statement")
        for values in (self.settings, self.outcome, self.computed_with, self.versions):
            for name, value in values.items():
                if not isinstance(value, (str, int, float, NoneType)):
                    raise InputError(f"{name:.40}: bad value {value!r:.60}")


def statement(subject: Subject, account: Account) -> dict[str, Any]:
    """Return the statement on everything in an account; what follows from its entries is taken from them.

    Args:
        account: without a ledger, so that it can be computed again from its entries.
    """
    outcome = {name: value for name, value in subject.outcome.items() if name not in ("low", "high")}
    outcome |= interval(outcome.get("accuracy"), outcome.get("test_records"))
    stated = privacy.statement(account, subject.delta, subject.accountant, subject.adjacency, subject.notes)
    stated = privacy.of_run(stated, account)
    value = Statement(
        FORMAT, SCHEMA, "run", subject.name, subject.state, stated.certified, stated.nominal,
        tuple(dict.fromkeys(map(in_flags, stated.notes))),  # of a training they are in flags already
        subject.accountant, odds(curves_of(account)), tuple(map(to_json, account.entries)),
        {**subject.settings, **_settings(subject.settings, account)}, outcome,
        {name: version(name) for name in LIBRARIES}, dict(subject.versions),
    )  # fmt: skip
    return to_json(value)


def _settings(settings: Mapping[str, Any], account: Account) -> dict[str, Any]:
    """Settings of a run that follow from the entry of its training: of several, or of a search's, the one that fits best."""
    same = ("sampling_rate", "steps", "noise_multiplier", "sensitivity", "nominal_sensitivity", "noise_std")
    batch, groups = settings.get("expected_batch"), settings.get("groups")
    rows = []
    for entry in account.paid:
        for sgd in (*entry.of(NoisySgd), *(sgd for search in entry.of(PrivateSearch) for sgd in search.trainings)):
            parts = len(getattr(sgd, "strategy", (1.0,)))  # of which a step samples one
            records = round(parts * batch / sgd.sampling_rate) if isinstance(batch, (int, float)) else None
            rows.append({
                **{name: getattr(sgd, name) for name in same}, "noise_bits": sgd.bits, "dataset": entry.part.name,
                "records": str(entry.part), "public_records": records, "divisor": batch if groups is None else groups,
            })  # fmt: skip
    return min(rows, key=lambda row: sum(settings.get(name) != value for name, value in row.items()), default={})


# --- the subject of a statement, from the files of a run ----------------------------------------------------------------
# The folder may be somebody else's, or damaged: whatever is not of the type it should have counts as missing.


MAX_COLUMNS = 300
"""Characters of the names of columns that a page has room for."""

_FACTS = ("steps", "sampling_rate", "noise_multiplier", "noise_std", "sensitivity", "live", "density", "round", "lr")
_WORDS = ("filter", "optimizer", "schedule", "average")
_OF_CLASSES = ("majority", "majority_accuracy", "calibration_error", "log_loss", "shares_log_loss", "verdict")


def text(value: object) -> str | None:
    """Return a printable text, no longer than artifacts have them; None for anything else."""
    return value if isinstance(value, str) and len(value) <= 1000 and value.isprintable() else None


def number(value: object) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) < 1e300 else None  # false for NaN


def count(value: object) -> int | None:
    """Return a whole number from 0 up; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def section(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object in another one; empty where it is none."""
    value = body.get(name)
    return value if isinstance(value, Mapping) else {}


def _ends(value: object) -> tuple[float, float] | None:
    """Return both ends of a range; None for anything else."""
    low, high = map(number, value) if isinstance(value, list) and len(value) == 2 else (None, None)
    return None if low is None or high is None else (low, high)


def _columns(config: Mapping[str, Any], facts: Mapping[str, Any]) -> str | None:
    """Return the names of the features of a table as one text; their number, where they are too many to read."""
    named = config.get("columns") or facts.get("columns")
    named = named or [column.name for column in stored_schema(config).columns if column.features]
    if not named or not isinstance(named, list) or None in map(text, named):
        return None
    joined = ", ".join(named)
    return joined if len(joined) <= MAX_COLUMNS else f"{len(named):,} columns"


def terms_of_run(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the terms that a run states its guarantee at."""
    options = section(config, "options")
    delta, accountant = number(options.get("delta")), text(options.get("accountant"))
    return {
        "delta": delta if delta is not None and 0 < delta < 1 else 1e-5,
        "accountant": accountant if accountant in tuple(ACCOUNTANTS) else "pld",
        "adjacency": "replace-one" if options.get("adjacency") == "replace-one" else "add-remove",
    }


def guarantee_of_run(config: Mapping[str, Any], account: Account) -> privacy.PrivacyReport:
    """Return what an account guarantees by itself, at the terms of a run; InputError where no rule says what that is."""
    return privacy.of_run(privacy.statement(account, **terms_of_run(config)), account)


def run_subject(
    name: str,
    config: Mapping[str, Any],
    result: Mapping[str, Any],
    *,
    parameters: int | None = None,
    versions: Mapping[str, Any] | None = None,
    weights: str | None = None,
) -> Subject:
    """Return the subject of a run, from its ``config.json``, its ``result.json`` and the digest of its weights."""
    options, facts, part = section(config, "options"), section(config, "resolved"), section(config, "part")
    notes, target = section(result, "privacy").get("notes"), _ends(config.get("target"))
    low, high = _ends(config.get("bounds")) or (None, None)
    settings: dict[str, Any] = {
        "dataset": text(part.get("name")),
        **{key: text(config.get(key)) for key in ("model", "bounds_origin")},
        "features": count(config.get("features")),
        "classes": count(config.get("classes")) or None,
        **({} if target is None else {"classes": None, "target_low": target[0], "target_high": target[1]}),
        "parameters": parameters,
        "feature_map": text(section(config, "feature_map").get("text")),
        "low": low,
        "high": high,
        "columns": _columns(config, facts),
        "expected_batch": number(config.get("expected_batch")),
        "groups": count(facts.get("groups")),
        "per_unit": (count(options.get("per_unit")) or PER_UNIT) if config.get("of_persons") else None,
        **{key: number(facts.get(key)) for key in _FACTS},
        **{key: text(facts.get(key)) for key in _WORDS},
        "precision": text(options.get("precision")),
        "budget": number(options.get("epsilon")),
        **_clipping(options, facts),
        "weights": weights,
    }
    if (ticket_set := text(config.get("ticket_set_id"))) is not None:
        written = config.get("provenance")
        settings |= {"ticket_set": ticket_set, "provenance": written if written in PROVENANCE else None}
    stated = tuple(filter(text, notes)) if isinstance(notes, list) else ()
    libraries = {library: version for library, version in (versions or {}).items() if text(library) and text(version)}
    return Subject(name, settings, _outcome(config, result), stated, libraries, **terms_of_run(config))


def _clipping(options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name of a filter, the norm that it bounds gradients by, and the quantile that this follows."""
    name = text(options.get("filter"))
    norm = number(facts.get("clip_norm", options.get("clip_norm")))
    if options.get("head") == LEAST_SQUARES:  # it settles the norm, and the bound of a record is that
        bound = number(facts.get("sensitivity"))
        norm = bound if bound is None or options.get("adjacency") != "replace-one" else bound / 2
    if options.get("no_pre_clip") or (name and name in FILTERS and CLIP_NORM not in FILTERS[name].parameters):
        norm = None
    quantile = None if norm is None else number(options.get("clip_quantile")) or None
    return {"filter_name": name, "clip_norm": norm, "clip_quantile": quantile}


def _outcome(config: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outcome of a run: accuracy, and on what it was measured."""
    private = section(config, "options").get("eval_private") is not None
    skill = None if private else skill_in(result)
    accuracy, records = number(result.get("accuracy")), count(config.get("test_records"))
    outcome: dict[str, Any] = {"steps_taken": count(result.get("steps_taken")), "accuracy": accuracy}
    for name in ("balanced_accuracy", *TARGET_METRICS) if private else ():
        if (value := number(result.get(name))) is not None:
            outcome[name] = value
    if accuracy is not None or len(outcome) > 2 or skill is not None:
        of_test, paid = "Of the test split.", "Of the training records, with noise that is paid for."
        outcome["accuracy_of"] = paid if private else of_test
    if not private and records is not None and (accuracy is not None or isinstance(skill, TargetSkill)):
        outcome["test_records"] = records
    if skill is None:
        return outcome
    name, measured = ("r2", skill.r2) if isinstance(skill, TargetSkill) else ("auc", skill.auc)
    if measured is not None:
        outcome |= {name: measured.value, f"{name}_low": measured.low, f"{name}_high": measured.high}
    if isinstance(skill, TargetSkill):
        return outcome | {name: getattr(skill, name) for name in ("rmse", "mae", "mean_rmse", "verdict")}
    if (ratio := skill.chance_over_share) is not None:
        outcome |= {"chance_over_share": ratio.value, "chance_of": ratio.name}
        outcome |= {"chance_low": ratio.low, "chance_high": ratio.high}
    outcome |= {name: getattr(skill, name) for name in _OF_CLASSES}
    return outcome | {"balanced_accuracy": skill.balanced_accuracy.value}


def skill_in(result: Mapping[str, Any]) -> Skill | TargetSkill | None:
    """Return the skill in an answer of train or evaluate; None where there is none, or where it is damaged."""
    body = dict(section(result, "skill"))
    body.pop("verdict", None)  # it follows from the rest
    try:  # empty lists are left out in answers
        if "rmse" in body:
            predicts: TargetSkill = value_from_json(TargetSkill, {"bins": [], **body}, "skill")
            return predicts
        skill: Skill = value_from_json(Skill, {"points": [], "groups": [], **body}, "skill")
    except ArtifactError:
        return None
    classes = len(skill.classes)
    square = skill.confusion is None or {len(skill.confusion), *map(len, skill.confusion)} == {classes}
    return skill if square and classes >= 2 and len(skill.bins) == BINS and skill.records > 0 else None


# --- what an attacker can do: Dong, Roth, Su 2022; Kairouz et al. 2015 ------------------------------------------------
# The attacker knows everything but whether one record (or one user) was among those used, and sees all that was released.


def curves_of(account: Account) -> Curves | None:
    """Return the certified curves of an account; None where it holds nothing paid, or nothing can be certified."""
    try:
        return curves_of_profiles(account.profiles()) if account.paid else None
    except InputError:
        return None


def odds(curves: Curves | None) -> dict[str, Any] | None:
    """Return upper bounds on the best attacker against certified curves, as JSON; None where there are none.

    ``right``: by prior, the largest share of cases in which any guess is right; guessing alone gives max(p, 1 - p).
    ``found``: by share of false alarms, the largest share of the records used that are found.

    Guarantees:
        With prior p <= 1/2 the best guess is right with chance (1 - p) + p delta(ln((1 - p) / p)), since
        p P(S) + (1 - p)(1 - Q(S)) is largest where P - e^epsilon Q is, at epsilon = ln((1 - p) / p). delta is an upper
        bound and taken at the next smaller point of its curve, where it is not smaller.
    """
    if curves is None:
        return None
    right = []
    for prior in PRIORS:
        place = int(np.searchsorted(curves.epsilons, math.log((1 - prior) / prior), side="right")) - 1
        right.append({"prior": prior, "at_most": min((1 - prior) + prior * float(curves.deltas[place]), 1.0)})
    rows = [{"false_alarms": alarms, "at_most": 1 - curves.misses_at(alarms)} for alarms in FALSE_ALARMS]
    return {"right": right, "found": rows}


def precision(true_positives: float, false_alarms: float, prior: float) -> float:
    """Return how often an attacker who says "it was used" is right, by Bayes, from the shares of records that he finds and
    takes for used wrongly, and the chance that one was used before he looks."""
    positives = prior * true_positives + (1 - prior) * false_alarms
    return prior * true_positives / positives if positives else prior


def interval(share: Any, records: Any) -> dict[str, float]:
    """Return Wilson's 95 % interval (1927) of a share of test records, as ``low`` and ``high``; empty where unknown.

    It covers other records of the same kind, and not the noise of another training.
    """
    if type(share) not in (int, float) or not 0 <= share <= 1 or type(records) is not int or records < 1:
        return {}
    low, high = wilson(share, records)
    return {"low": low, "high": high}


# --- read again -------------------------------------------------------------------------------------------------------


def account_of(body: Mapping[str, Any]) -> Account:
    """Return the account of the entries in a statement; ArtifactError for one that cannot be read, or of another unit."""
    entries = tuple(entry_from_json(entry, f"entry {number}") for number, entry in enumerate(body["entries"], start=1))
    try:
        return Account(entries, unit=body["certified"]["unit"])
    except InputError as error:
        raise ArtifactError(f"entries: {error}") from None


SAME, NEAR = 1e-6, 1e-3
"""By how much a figure computed again may differ, in parts of itself: another processor; another version of a library."""

_FIGURES = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?|\binf\b")


def differences(body: Mapping[str, Any]) -> list[str]:
    """Return claims of a statement, read as a :class:`Statement`, that do not follow from its own entries."""
    account = account_of(body)
    settings, state = body["settings"], body["state"]
    terms = body["certified"]["delta"], body["accountant"], body["certified"]["adjacency"]
    about = Subject(body["name"], settings, body["outcome"], (), body["versions"], state, *terms)
    try:
        again = statement(about, account)
    except (InputError, ArithmeticError) as error:
        raise ArtifactError(f"its entries have no figure: {error}") from None
    figures = SAME if body["computed_with"] == again["computed_with"] else NEAR
    lines = [
        line for name in ("certified", "nominal", "odds") for line in _compared(name, body[name], again[name], figures)
    ]
    if state == "finished":
        lines += [line for name in ("outcome", "settings") for line in _compared(name, body[name], again[name], SAME)]
        if not any(entry.of(NoisySgd) or entry.of(PrivateSearch) for entry in account.paid):
            lines.append("entries: none is that of a training, and the statement is of one")
        lines += _unlike_provenance(settings, account)
    else:
        lines.append(f"state: {state}: what it tells of is not complete, so its settings cannot be compared")
    stated = {_FIGURES.sub("#", note) for note in body["notes"]}  # figures may be those of another version
    missing = [note for note in again["notes"] if _FIGURES.sub("#", note) not in stated]
    return lines + [f"notes: its entries call for one that is missing: {note:.120}" for note in missing]


def _unlike_provenance(settings: Mapping[str, Any], account: Account) -> list[str]:
    """Return where the statement says that its tickets come from elsewhere than its entries say."""
    kind = settings.get("provenance")
    if kind is not None and kind not in PROVENANCE:
        return [f"settings.provenance: {_text(kind)} is not one of {', '.join(PROVENANCE)}"]
    if kind is not None and settings.get("ticket_set") is None:
        return [f"settings.provenance: {_text(kind)}, but no ticket set is named"]
    if kind == "private" and not any(entry.of(Unprotected) for entry in account.paid):
        return ["settings.provenance: private, but no entry says that anything was released without protection"]
    return []


def _compared(name: str, stated: Any, again: Any, tolerance: float) -> list[str]:
    """Return where two values of JSON differ, each with its place; numbers by more than ``tolerance`` of themselves."""
    if isinstance(stated, list) and isinstance(again, list):
        stated, again = dict(enumerate(stated, start=1)), dict(enumerate(again, start=1))
    if isinstance(stated, Mapping) and isinstance(again, Mapping):
        return [
            line
            for key in dict.fromkeys((*again, *stated))
            for line in _compared(f"{name}.{key}", stated.get(key, "missing"), again.get(key), tolerance)
        ]
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (stated, again)):
        alike = math.isclose(stated, again, rel_tol=tolerance, abs_tol=1e-12)
    else:
        alike = type(stated) is type(again) and stated == again
    return [] if alike else [f"{name}: {_text(stated)}, but its entries give {_text(again)}"]


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "nothing" if value is None else f"{value!s:.80}"
