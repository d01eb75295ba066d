"""Subjects of statements: public settings and outcomes of runs, from the files of their folders.

The folder may be somebody else's, or damaged: whatever is not of the type it should have counts as missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpltm.errors import ArtifactError
from dpltm.filters import FILTERS
from dpltm.filters.descriptor import CLIP_NORM
from dpltm.networks.skill import BINS, Skill, TargetSkill
from dpltm.options import TARGET_METRICS
from dpltm.options.train import LEAST_SQUARES
from dpltm.privacy.account import Account
from dpltm.privacy.accountants import ACCOUNTANTS
from dpltm.privacy.checks import PER_UNIT
from dpltm.privacy.entry import value_from_json
from dpltm.privacy.statement import PrivacyReport, of_run, statement
from dpltm.records.schema import stored_schema
from dpltm.reports.statement import PROVENANCE, Subject

MAX_COLUMNS = 300
"""Characters of the names of columns that a page has room for."""

_FACTS = ("steps", "sampling_rate", "noise_multiplier", "noise_std", "sensitivity", "live", "density", "round", "lr")
_WORDS = ("filter", "optimizer", "schedule", "average")


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
    """Return the terms that a run states its guarantee at: ``delta``, ``accountant`` and ``adjacency``."""
    options = section(config, "options")
    delta, accountant = number(options.get("delta")), text(options.get("accountant"))
    return {
        "delta": delta if delta is not None and 0 < delta < 1 else 1e-5,
        "accountant": accountant if accountant in tuple(ACCOUNTANTS) else "pld",
        "adjacency": "replace-one" if options.get("adjacency") == "replace-one" else "add-remove",
    }


def guarantee_of_run(config: Mapping[str, Any], account: Account) -> PrivacyReport:
    """Return what an account guarantees by itself, at the terms of a run; InputError where no rule says what that is."""
    return of_run(statement(account, **terms_of_run(config)), account)


def run_subject(
    name: str,
    config: Mapping[str, Any],
    result: Mapping[str, Any],
    *,
    parameters: int | None = None,
    versions: Mapping[str, Any] | None = None,
    weights: str | None = None,
) -> Subject:
    """Return the subject of a run, from its ``config.json``, ``result.json`` (empty where missing) and lineage.

    Args:
        weights: digest of its weights and mask.
    """
    options, facts, part = section(config, "options"), section(config, "resolved"), section(config, "part")
    notes, target = section(result, "privacy").get("notes"), _ends(config.get("target"))
    low, high = _ends(config.get("bounds")) or (None, None)
    settings: dict[str, Any] = {
        "dataset": text(part.get("name")),
        "model": text(config.get("model")),
        "features": count(config.get("features")),
        "classes": count(config.get("classes")) or None,
        **({} if target is None else {"classes": None, "target_low": target[0], "target_high": target[1]}),
        "parameters": parameters,
        "feature_map": text(section(config, "feature_map").get("text")),
        "low": low,
        "high": high,
        "bounds_origin": text(config.get("bounds_origin")),
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
    return Subject(
        name,
        settings,
        _outcome(config, result),
        tuple(filter(text, notes)) if isinstance(notes, list) else (),
        {library: version for library, version in (versions or {}).items() if text(library) and text(version)},
        **terms_of_run(config),
    )


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
        outcome["accuracy_of"] = (
            "Of the training records, with noise that is paid for." if private else "Of the test split."
        )
    if not private and records is not None and (accuracy is not None or isinstance(skill, TargetSkill)):
        outcome["test_records"] = records
    if isinstance(skill, TargetSkill):
        names: tuple[str, ...] = ("rmse", "mae", "mean_rmse", "verdict")
        ends = {"r2": skill.r2}
    elif skill is not None:
        names = ("majority", "majority_accuracy", "calibration_error", "log_loss", "shares_log_loss", "verdict")
        outcome["balanced_accuracy"] = skill.balanced_accuracy.value
        if (ratio := skill.chance_over_share) is not None:
            outcome |= {"chance_over_share": ratio.value, "chance_of": ratio.name}
            outcome |= {"chance_low": ratio.low, "chance_high": ratio.high}
        ends = {"auc": skill.auc}
    else:
        return outcome
    outcome |= {name: getattr(skill, name) for name in names}
    for name, measured in ends.items():
        if measured is not None:
            outcome |= {name: measured.value, f"{name}_low": measured.low, f"{name}_high": measured.high}
    return outcome


def skill_in(result: Mapping[str, Any]) -> Skill | TargetSkill | None:
    """Return the skill in an answer of train or evaluate; None where there is none, or where it is damaged."""
    body = {"points": [], "groups": [], **section(result, "skill")}  # left out where there are none
    body.pop("verdict", None)  # it follows from the rest
    try:
        if "rmse" in body:
            del body["points"], body["groups"]
            body.setdefault("bins", [])
            predicts: TargetSkill = value_from_json(TargetSkill, body, "skill")
            return predicts
        skill: Skill = value_from_json(Skill, body, "skill")
    except ArtifactError:
        return None
    classes = len(skill.classes)
    square = skill.confusion is None or {len(skill.confusion), *map(len, skill.confusion)} == {classes}
    return skill if square and classes >= 2 and len(skill.bins) == BINS and skill.records > 0 else None
