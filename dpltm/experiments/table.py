"""Outcome of a recipe: one row an arm, with the paper's figure, the interval over seeds, and both epsilons.

``dpltm.reports.sweep_table`` shows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpltm.experiments.recipe import Arm, Recipe, provenance
from dpltm.reports.sweep_table import all_terms

MAX_NAMES = 2
"""Rows that a note is about beyond which they are only counted."""


CONFIDENCE = 0.95
"""Of the intervals."""


@dataclass(frozen=True)
class Summary:
    """Several measurements of one figure, each with its own seed.

    Attributes:
        sd: sample standard deviation (n - 1); nan of fewer than two.
        half: half width of the 95 % confidence interval of the mean, t sd / sqrt(n) with Student's t of n - 1 degrees of
            freedom; nan of fewer than two.
    """

    count: int
    mean: float
    sd: float
    half: float

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, which has no nan."""
        parts = {"count": self.count, "mean": self.mean, "sd": self.sd, "interval": self.half}
        return {name: None if math.isnan(part) else part for name, part in parts.items()}


def summary(values: Sequence[float]) -> Summary:
    """Return mean, standard deviation and 95 % interval of finite ``values``."""
    from scipy import stats

    count = len(values)
    mean = math.fsum(values) / count if count else math.nan
    if count < 2:
        return Summary(count, mean, math.nan, math.nan)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return Summary(count, mean, sd, float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * sd / math.sqrt(count))


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> Summary:
    """Return the differences ``one - other`` over the seeds that both have: what they share by a seed cancels."""
    return summary([one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())])


def table(
    recipe: Recipe, results: Mapping[str, Any], failures: Mapping[str, str], privacy: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the answer of a sweep, but for where it lies."""
    trained = {
        arm.name: {
            trial.seed: results[trial.name]["train"]
            for trial in recipe.trials if trial.arm is arm and trial.name in results
        }
        for arm in recipe.arms
    }  # fmt: skip
    values = {
        name: {
            seed: float(body[recipe.measure]) for seed, body in each.items() if body.get(recipe.measure) is not None
        }
        for name, each in trained.items()
    }
    rows = []
    for arm in recipe.arms:
        own, bodies = values[arm.name], trained[arm.name]
        missing = [trial for trial in recipe.trials if trial.arm is arm and trial.seed not in own]
        unmeasured = "finished, without what the recipe measures"
        why = [failures.get(one.name, unmeasured if one.name in results else "not run") for one in missing]
        holes = [{"seed": trial.seed, "why": reason} for trial, reason in zip(missing, why, strict=True)]
        against = None if arm.against is None else paired(own, values[arm.against])
        difference = None if against is None else {"to": arm.against, **against.to_json()}
        rows.append({**_row(arm, own, bodies), "difference": difference, "missing": holes})
    stated = all_terms(rows)  # where rows agree on it, it is said once; else in each
    return {
        "recipe": recipe.title,
        "source": recipe.source,
        "quick": recipe.quick,
        "privacy": dict(privacy),
        "measure": recipe.measure,
        "seeds": list(range(recipe.seeds)),
        "finished": sum(trial.name in results for trial in recipe.trials),
        "members": len(recipe.trials),
        "arms": rows,
        "notes": [
            *recipe.notes,
            *_notes(recipe),
            *((f"certified epsilon: {stated[0]}",) if len(stated) == 1 else ()),
            *_caveats(rows, privacy["notes"]),
        ],
    }


def _row(arm: Arm, values: Mapping[int, float], trained: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    known = {key: [one[key] for one in trained.values() if one.get(key) is not None] for key in ("live", "density")}
    live, density = known["live"], known["density"]
    first: Mapping[str, Any] = next(iter(trained.values()), {})
    privacy = [body["privacy"] for body in trained.values()]
    return {
        **{key: getattr(arm, key) for key in ("name", "group", "varied", "note", "paper")},
        "values": {str(seed): value for seed, value in values.items()},
        **summary(list(values.values())).to_json(),
        "rounds": {str(seed): body.get("round") for seed, body in trained.items()},
        "live": [min(live), max(live)] if live else None,
        "density": sum(density) / len(density) if density else None,
        **{key: first.get(key) for key in ("steps", "noise_multiplier", "lr")},
        "privacy": max(privacy, key=lambda one: float(one["certified"]["epsilon"]), default=None),
    }


def planned(recipe: Recipe, spent: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Return a plan: every arm, with its price, as far as that does not wait for its tickets."""
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
    """Tell whether an arm trains the whole network with settings that it states, so that its price is known beforehand."""
    return arm.latent is None and arm.tickets is None and arm.tune is None


def _at_most(recipe: Recipe, arm: Arm) -> str:
    """Describe an arm's certified epsilon before its tickets are made."""
    if arm.tickets is not None and provenance(recipe.tickets, arm.tickets) == "private":
        return "inf"
    epsilon = arm.train.get("epsilon")
    return f"at most {epsilon:g}" if epsilon is not None and arm.train.get("noise") != "nominal" else "-"


def _notes(recipe: Recipe) -> list[str]:
    over = f"means over {recipe.seeds} seeds with 95 % intervals (Student's t)" if recipe.seeds > 1 else "one seed"
    return [
        f"{over}, given what was searched once for all; the epsilon of a row is that of one of its trials, with all that it"
        " is made of; what they cost together is said above",
        "settings that the recipe fixes were chosen by people who had seen results on these datasets; what dpltm tune"
        " searched, it searched on public records; choosing among the rows by their accuracy is a search as well",
    ]


def _caveats(rows: Sequence[Mapping[str, Any]], of_all: Sequence[str]) -> list[str]:
    """Caveats of the rows' own guarantees, but for those of all together."""
    said: dict[str, list[str]] = {}
    for row in rows:
        for note in () if row["privacy"] is None else dict.fromkeys(row["privacy"]["notes"]):
            if note not in of_all:
                said.setdefault(note, []).append(repr(row["name"]))
    notes = []
    for note, names in said.items():
        few = " and ".join(names) if len(names) <= MAX_NAMES else f"{len(names)} of {len(rows)} rows"
        notes.append(note if len(names) == len(rows) else f"{few}: {note}")
    return notes
