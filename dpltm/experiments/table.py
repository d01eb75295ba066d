"""What a recipe came to: one row an arm, with what the paper says, the interval over seeds, and both epsilons.

As data, as cells for people, and as a document that needs nothing else to be read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpltm.experiments.recipe import Arm, Recipe, Trial, provenance
from dpltm.experiments.replicates import Summary, paired, summary
from dpltm.local import BIT_PROTOCOLS, CODEBOOK
from dpltm.privacy.figures import figure

MAX_NAMES = 2
"""Rows that a note is about beyond which they are only counted."""

CORES = 2
"""Cores that minutes are counted on."""


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


def table(
    recipe: Recipe, outcomes: Sequence[Outcome], privacy: Mapping[str, Any], *, shared: bool = False
) -> dict[str, Any]:
    """Return the answer of a sweep, but for where it lies.

    Args:
        recipe: the experiment.
        outcomes: of all its trials.
        privacy: of all of them together: of the account that they were paid by.
        shared: whether it is to be handed on: then without minutes, and without what trials said when they failed. Both may
            tell of a private record.
    """
    values = {arm.name: _values(recipe, arm, outcomes) for arm in recipe.arms}
    rows = [_row(arm, outcomes, values, shared) for arm in recipe.arms]
    stated = _all_terms(rows)  # where rows agree on it, it is said once; else in each
    minutes = f"min: minutes of {CORES} cores for all seeds of a row, without what rows share (tickets, searches)"
    return {
        "recipe": recipe.title,
        "source": recipe.source,
        "quick": recipe.quick,
        "privacy": dict(privacy),
        "measure": recipe.measure,
        "seeds": list(range(recipe.seeds)),
        "finished": sum(outcome.result is not None for outcome in outcomes),
        "members": len(outcomes),
        "arms": rows,
        "notes": [
            *recipe.notes,
            *_notes(recipe),
            *(() if shared else (minutes,)),
            *((f"certified epsilon: {stated[0]}",) if len(stated) == 1 else ()),
            *_caveats(rows, privacy["notes"]),
        ],
    }


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


def _row(
    arm: Arm, outcomes: Sequence[Outcome], values: Mapping[str, Mapping[int, float]], shared: bool
) -> dict[str, Any]:
    mine = [outcome for outcome in outcomes if outcome.trial.arm is arm]
    trained = {outcome.trial.seed: outcome.result["train"] for outcome in mine if outcome.result is not None}
    first: Mapping[str, Any] = next(iter(trained.values()), {})
    own = values[arm.name]
    missing = [
        {"seed": outcome.trial.seed, "why": _why(outcome, shared)} for outcome in mine if outcome.trial.seed not in own
    ]
    live, density = (
        [body[key] for body in trained.values() if body.get(key) is not None] for key in ("live", "density")
    )
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
        "live": [min(live), max(live)] if live else None,
        "density": sum(density) / len(density) if density else None,
        "steps": first.get("steps"),
        "noise_multiplier": first.get("noise_multiplier"),
        "lr": first.get("lr"),
        "privacy": max((body["privacy"] for body in trained.values()), key=_certified, default=None),
        **({} if shared else {"minutes": round(sum(work) / 60 / CORES) if work else None}),
    }


def _certified(privacy: Mapping[str, Any]) -> float:
    return float(privacy["certified"]["epsilon"])


def _why(outcome: Outcome, shared: bool) -> str:
    """Why there is no value."""
    if outcome.failure is not None:
        return f"it failed; failed/{outcome.trial.label}.json says why" if shared else outcome.failure
    return "not run" if outcome.result is None else "finished, without what the recipe measures"


def _numbers(figures: Summary) -> dict[str, Any]:
    """A summary as JSON, which has no nan."""
    parts = {"count": figures.count, "mean": figures.mean, "sd": figures.sd, "interval": figures.half}
    return {name: None if isinstance(part, float) and math.isnan(part) else part for name, part in parts.items()}


def _notes(recipe: Recipe) -> list[str]:
    over = f"means over {recipe.seeds} seeds with 95 % intervals (Student's t)" if recipe.seeds > 1 else "one seed"
    return [
        f"{over}, given what was searched once for all; the epsilon of a row is that of one of its trials, with all that it"
        " is made of; what they cost together is said above",
        "settings that the recipe fixes were chosen by people who had seen results on these datasets; what dpltm tune"
        " searched, it searched on public records; choosing among the rows by their accuracy is a search as well",
    ]


def terms(privacy: Mapping[str, Any]) -> str:
    """What a certified epsilon is to be read with (docs/privacy-model.md section 1.1)."""
    return "delta {delta:g}, {adjacency}, unit {unit}".format(**privacy["certified"])


def _all_terms(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Those of all rows, each once."""
    return list(dict.fromkeys(terms(row["privacy"]) for row in rows if row["privacy"] is not None))


def _caveats(rows: Sequence[Mapping[str, Any]], of_all: Sequence[str]) -> list[str]:
    """What the rows' own guarantees are to be read with, but for what is said of all together."""
    said: dict[str, list[str]] = {}
    for row in rows:
        for note in () if row["privacy"] is None else dict.fromkeys(row["privacy"]["notes"]):
            if note not in of_all:
                said.setdefault(note, []).append(row["name"])
    return [_about(names, len(rows)) + note for note, names in said.items()]


def _about(names: list[str], rows: int) -> str:
    """Which rows a note is about; nothing where it is all of them."""
    if len(names) == rows:
        return ""
    return f"{len(names)} of {rows} rows: " if len(names) > MAX_NAMES else f"{' and '.join(map(repr, names))}: "


def markdown(body: Mapping[str, Any]) -> str:
    """The table for a document, with what it needs to be read alone."""
    lines = [f"## {body['recipe']}", "", body["source"], "", f"    dpltm run --config {body['config']}", ""]
    lines += [f"All together: certified epsilon {total(body)}.", ""]
    head = columns(body)
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_one_line(cell) for cell in cells(row, body)) + " |" for row in body["arms"]]
    holes = [(row["name"], hole) for row in body["arms"] for hole in row["missing"]]
    lines += ["", *(f"- HOLE: {name}, seed {hole['seed']}: {hole['why']}" for name, hole in holes)]
    lines += [f"- {row['name']}: {row['note']}" for row in body["arms"] if row["note"]]
    lines += [f"- {note}" for note in (*body["notes"], *body["privacy"]["notes"])]
    return "\n".join(lines) + "\n"


def columns(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the columns."""
    measure = "accuracy, %" if body["measure"] == "accuracy" else "RMSE"
    timed = ("min",) if any("minutes" in row for row in body["arms"]) else ()
    return ("arm", "paper", measure, "sd", "less control", "seeds", "certified epsilon", "nominal", "live", *timed)


def cells(row: Mapping[str, Any], body: Mapping[str, Any]) -> tuple[str, ...]:
    """A row, one text a column."""
    measure, privacy = body["measure"], row["privacy"]
    certified = "-" if privacy is None else figure(privacy["certified"]["epsilon"])
    nominal = "-" if privacy is None or privacy["nominal"] is None else figure(privacy["nominal"]["epsilon"])
    if privacy is not None and len(_all_terms(body["arms"])) > 1:
        certified += f" ({terms(privacy)})"
    count = f"{row['count']}/{len(body['seeds'])}" + (" HOLE" if row["missing"] else "")
    change = "" if row["difference"] is None else _change(row["difference"], measure, row["count"])
    paper = "-" if row["paper"] is None else f"{row['paper']:g}"
    live = "-" if row["live"] is None else " to ".join(dict.fromkeys(f"{count:,}" for count in row["live"]))
    return (
        row["name"], paper, _with_interval(row, measure), _percent(row["sd"], measure), change, count, certified, nominal,
        live, *(() if "minutes" not in row else ("-" if row["minutes"] is None else f"{row['minutes'] or '<1'}",)),
    )  # fmt: skip


def total(body: Mapping[str, Any]) -> str:
    """Return the epsilon of all together, with its terms."""
    return f"{figure(body['privacy']['certified']['epsilon'])} ({terms(body['privacy'])})"


def _percent(value: float | None, measure: str, digits: int = 2) -> str:
    """An accuracy in percent, an RMSE as it is."""
    if value is None:
        return "-"
    return f"{100 * value:.{digits}f}" if measure == "accuracy" else f"{value:.{digits + 1}f}"


def _with_interval(row: Mapping[str, Any], measure: str) -> str:
    """``97.38 ± 0.18``, or what there is of it."""
    mean = _percent(row["mean"], measure)
    return mean if row["interval"] is None else f"{mean} ± {_percent(row['interval'], measure)}"


def _change(difference: Mapping[str, Any], measure: str, count: int) -> str:
    """The paired difference; with the number of pairs, where the row has more trials."""
    if difference["mean"] is None:
        return "-"
    sign = "+" if difference["mean"] >= 0 else ""
    pairs = "" if difference["count"] == count else f" ({difference['count']} pairs)"
    return f"{sign}{_with_interval(difference, measure)}{pairs}"


def _one_line(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")
