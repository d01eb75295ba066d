"""What a recipe came to, as data: one row an arm, with what the paper says, the interval over seeds, and both epsilons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpltm.errors import in_flags
from dpltm.experiments.account import Events, total_privacy
from dpltm.experiments.recipe import Arm, Recipe, Trial, provenance
from dpltm.experiments.replicates import Summary, paired, summary
from dpltm.local.protocols import BIT_PROTOCOLS, CODEBOOK
from dpltm.privacy.statement import SEARCH_NOTE
from dpltm.stages.train import NO_NAMED_LEDGER

NOT_RUN = "not run"

NOT_MEASURED = "finished, without what the recipe measures"

DIED = "its process died; of too little memory, perhaps: take fewer `jobs`"
"""Of a trial that was begun in this session, by a process that is no more."""

MAX_NAMES = 2
"""Rows that a note is about beyond which they are only counted."""

CORES = 2
"""Cores that minutes are counted on."""

MINUTES = f"min: minutes of {CORES} cores for all seeds of a row, without what rows share (tickets, searches)"
"""Said where they are: on the terminal of whoever made the sweep."""


@dataclass(frozen=True)
class Outcome:
    """What came of one trial.

    Attributes:
        trial: which.
        result: the answers of its stages; None while it is not finished.
        failure: why it failed in this session, if it did.
        work: seconds of one thread that it took, if that is known.
    """

    trial: Trial
    result: Mapping[str, Any] | None
    failure: str | None = None
    work: float | None = None


def table(recipe: Recipe, outcomes: Sequence[Outcome], ledgers: Sequence[Events]) -> dict[str, Any]:
    """The answer of a sweep, but for where it lies.

    Args:
        recipe: the experiment.
        outcomes: of all its trials.
        ledgers: events of every ledger that the sweep wrote.
    """
    values = {arm.name: _values(recipe, arm, outcomes) for arm in recipe.arms}
    rows = [_row(arm, outcomes, values) for arm in recipe.arms]
    return {
        "recipe": recipe.title,
        "source": recipe.source,
        "quick": recipe.quick,
        "measure": recipe.measure,
        "seeds": list(range(recipe.seeds)),
        "finished": sum(outcome.result is not None for outcome in outcomes),
        "members": len(outcomes),
        "arms": rows,
        "notes": [*recipe.notes, *_notes(recipe), *_terms_note(rows), *_caveats(rows)],
        "privacy": total_privacy(recipe, ledgers),
    }


def public_part(table: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """A table as it may be handed on: without minutes, and without what trials said when they failed.

    Both may tell of a private record.
    """
    label = {(trial.arm.name, trial.seed): trial.label for trial in recipe.trials}

    def hole(arm: str, said: Mapping[str, Any]) -> dict[str, Any]:
        known = said["why"] in (NOT_RUN, NOT_MEASURED, in_flags(DIED))
        why = said["why"] if known else f"it failed; failed/{label[arm, said['seed']]}.json says why"
        return {"seed": said["seed"], "why": why}

    rows = [
        {key: value for key, value in row.items() if key != "minutes"}
        | {"missing": [hole(row["name"], said) for said in row["missing"]]}
        for row in table["arms"]
    ]
    return {**table, "arms": rows, "notes": [note for note in table["notes"] if note != MINUTES]}


def planned(recipe: Recipe, spent: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """What would be done: every arm, with what it would spend, as far as that does not wait for its tickets.

    Args:
        recipe: the experiment.
        spent: by arm, the certified and nominal epsilon of one training; None where tickets or a search come first.
    """
    return {
        "dry_run": True,
        "recipe": recipe.title,
        "source": recipe.source,
        "quick": recipe.quick,
        "seeds": list(range(recipe.seeds)),
        "members": len(recipe.trials),
        "tickets": sorted(recipe.tickets),
        "arms": [
            {
                "name": arm.name,
                "paper": arm.paper,
                "tickets": arm.tickets,
                "dataset": arm.train.get("dataset") if arm.latent is None else arm.latent["encode"].get("dataset"),
                "epsilon": arm.train.get("epsilon") if arm.latent is None else arm.latent["scheme"].get("epsilon"),
                "noise_multiplier": arm.train.get("noise-multiplier"),
                "privacy": privacy,
                "at_most": _at_most(recipe, arm),
            }
            for arm, privacy in zip(recipe.arms, spent, strict=True)
        ],
    }


def trains_at_once(arm: Arm) -> bool:
    """Whether an arm trains the whole network with settings that it states, so that its price is known beforehand."""
    return arm.latent is None and arm.tickets is None and arm.tune is None


def _at_most(recipe: Recipe, arm: Arm) -> str:
    """What can be said of an arm's certified epsilon before its tickets are made."""
    if arm.tickets is not None and provenance(recipe.tickets, arm.tickets) == "private":
        return "inf"
    epsilon = arm.train.get("epsilon")
    if arm.latent is not None:
        exact = arm.latent["scheme"].get("protocol", CODEBOOK.name) not in BIT_PROTOCOLS
        return f"at most {arm.latent['scheme']['epsilon']:g}" if exact else "more than asked for"
    certain = epsilon is not None and arm.train.get("noise") != "nominal"
    return f"at most {epsilon:g}" if certain else "-"


def _values(recipe: Recipe, arm: Arm, outcomes: Sequence[Outcome]) -> dict[int, float]:
    """What the arm is measured by, by seed."""
    measured = {
        outcome.trial.seed: outcome.result["train"].get(recipe.measure)
        for outcome in outcomes
        if outcome.trial.arm is arm and outcome.result is not None
    }
    return {seed: float(value) for seed, value in measured.items() if value is not None}


def _row(arm: Arm, outcomes: Sequence[Outcome], values: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
    mine = [outcome for outcome in outcomes if outcome.trial.arm is arm]
    trained = {outcome.trial.seed: outcome.result["train"] for outcome in mine if outcome.result is not None}
    first: Mapping[str, Any] = next(iter(trained.values()), {})
    own = values[arm.name]
    missing = [
        {"seed": outcome.trial.seed, "why": outcome.failure or (NOT_RUN if outcome.result is None else NOT_MEASURED)}
        for outcome in mine
        if outcome.trial.seed not in own
    ]
    work = [outcome.work for outcome in mine if outcome.result is not None and outcome.work is not None]
    return {
        "name": arm.name,
        "group": arm.group,
        "varied": arm.varied,
        "note": arm.note,
        "paper": arm.paper,
        "values": {str(seed): value for seed, value in own.items()},
        **_numbers(summary(list(own.values()))),
        "difference": None
        if arm.against is None
        else {"to": arm.against, **_numbers(paired(own, values[arm.against]))},
        "missing": missing,
        "rounds": {str(seed): body.get("round") for seed, body in trained.items()},
        "live": _ends([body["live"] for body in trained.values() if body.get("live") is not None]),
        "density": _mean([body["density"] for body in trained.values() if body.get("density") is not None]),
        "steps": first.get("steps"),
        "noise_multiplier": first.get("noise_multiplier"),
        "lr": first.get("lr"),
        "privacy": _weakest([body["privacy"] for body in trained.values()]),
        "minutes": round(sum(work) / 60 / CORES) if work else None,
    }


def _numbers(figures: Summary) -> dict[str, Any]:
    """A summary as JSON, which has no nan."""
    parts = {"count": figures.count, "mean": figures.mean, "sd": figures.sd, "interval": figures.half}
    return {name: None if isinstance(part, float) and math.isnan(part) else part for name, part in parts.items()}


def _ends(values: list[int]) -> list[int] | None:
    """The least and the most of them."""
    return [min(values), max(values)] if values else None


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _weakest(reports: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Of the guarantees of an arm's trials, each for one release, the weakest."""
    return max(reports, key=lambda body: float(body["certified"]["epsilon"])) if reports else None


def _notes(recipe: Recipe) -> list[str]:
    over = f"means over {recipe.seeds} seeds with 95 % intervals (Student's t)" if recipe.seeds > 1 else "one seed"
    return [
        f"{over}, given what was searched once for all; every epsilon is that of one release, the last one that of all",
        "settings that the recipe fixes were chosen by people who had seen results on these datasets; what dpltm tune"
        " searched, it searched on public records; choosing among the rows by their accuracy is a search as well",
        MINUTES,
    ]


def terms(privacy: Mapping[str, Any]) -> str:
    """What a certified epsilon is to be read with (docs/privacy-model.md section 1.1)."""
    return "delta {delta:g}, {adjacency}, unit {unit}".format(**privacy["certified"])


def all_terms(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Those of all rows, each once."""
    return list(dict.fromkeys(terms(row["privacy"]) for row in rows if row["privacy"] is not None))


def _terms_note(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where rows agree on it, it is said once; else in each."""
    stated = all_terms(rows)
    return [f"certified epsilon: {stated[0]}"] if len(stated) == 1 else []


def _caveats(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the rows' own guarantees are to be read with."""
    said: dict[str, list[str]] = {}
    for row in rows:
        for note in () if row["privacy"] is None else dict.fromkeys(row["privacy"]["notes"]):
            if note not in (in_flags(NO_NAMED_LEDGER), SEARCH_NOTE):  # said of all together
                said.setdefault(note, []).append(row["name"])
    return [_about(names, len(rows)) + note for note, names in said.items()]


def _about(names: list[str], rows: int) -> str:
    """Which rows a note is about; nothing where it is all of them."""
    if len(names) == rows:
        return ""
    return f"{len(names)} of {rows} rows: " if len(names) > MAX_NAMES else f"{' and '.join(map(repr, names))}: "
