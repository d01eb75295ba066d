"""Recipes: an experiment of several arms and seeds. ``dpltm.tickets.workbench.recipes`` reads one from a TOML document.

    [recipe]                     title, source, seeds, notes
    [train]  [select]  [tune]    options of those commands that all arms share
    [tickets.NAME]               dpltm generate, once a seed; with from = "OTHER", dpltm tickets transfer of that set
    [[arm]]                      name, paper, tickets, round, against, vary, and tables train, select, tune
    [figure]                     over = "steps" or "values"; apart = "dataset": accuracy over steps, one chart a dataset
    [quick]                      with --quick: seeds, round, and tables train, select, tune and tickets that override
                                 all of those; of values that vary, the first alone is taken
    [latent.scheme|encode|train] options of dpltm latent, for an arm that has a table latent rather than train

An arm with a table ``select`` draws its ticket. One with ``round`` takes that one (with ``round = "random"``, one of all, by
the seed). One without tickets trains the whole network. With a table ``tune`` its settings are searched first, on public
records; if these have another shape, with another set (``tickets`` in that table) and network (``model``).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dpltm.criteria import DP_CRITERIA
from dpltm.options.select import drawn_from, reads_no_records
from dpltm.reports.wording import all_terms

LATENT_STAGES = ("scheme", "encode", "train")

SEARCHED = ("lr", "clip-norm", "epochs", "batch-size", "lineage")
"""Settings of a training that a search decides."""

SHARED_WITH_SEARCH = ("model", "features", "epsilon", "delta", "optimizer", "schedule", "average", "accountant")
"""Options that a search has in common with the training that it is for."""

Section = Mapping[str, Any]
"""A table of options, as TOML has it."""


@dataclass(frozen=True)
class Arm:
    """One row of a recipe's table: a training, its records and its tickets.

    Attributes:
        group: the name before what varies was put behind it; rows of a group are one line of the figure.
        varied: the value that varies, of its first key, if any.
        paper: what the paper reports, in percent; None if nothing.
        tickets: name of the set it trains from; None for the whole network.
        round: of the ticket, ``random`` for one of all, ``tuned`` for the one that a search chose, None where it is drawn.
        latent: options of the three commands of ``dpltm latent``, where these make up the arm.
    """

    name: str
    train: Section
    group: str = ""
    varied: float | str | None = None
    paper: float | None = None
    tickets: str | None = None
    round: int | str | None = None
    against: str | None = None
    select: Section | None = None
    tune: Section | None = None
    latent: Mapping[str, Section] | None = None
    note: str | None = None

    @property
    def draw(self) -> Section:
        """Options of its draw, which is from the records of its training unless it reads none."""
        section = self.select or {}
        return section if reads_no_records(section) else {**drawn_from(self.train), **section}

    @property
    def search(self) -> tuple[str | None, dict[str, Any]]:
        """The set that its search is with, and the options: its own, and those in common with the training."""
        options = {key: self.train[key] for key in SHARED_WITH_SEARCH if key in self.train} | dict(self.tune or {})
        return options.pop("tickets", self.tickets), options


@dataclass(frozen=True)
class Recipe:
    """An experiment.

    Attributes:
        seeds: 0 to this, less one.
        figure: ``over`` steps or values, ``x``: the label along it, ``log``: whether that is logarithmic, ``apart``: whether
            each dataset has a chart; or None.
    """

    path: Path
    title: str
    source: str = ""
    notes: tuple[str, ...] = ()
    arms: tuple[Arm, ...] = ()
    tickets: Mapping[str, Section] = field(default_factory=dict)
    seeds: int = 1
    figure: Section | None = None
    quick: bool = False

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """Every arm with every seed; seeds last, so that all rows come to one figure each first."""
        return tuple(Trial(self, arm, seed) for seed in range(self.seeds) for arm in self.arms)

    def chain(self, name: str) -> list[Section]:
        """Return the options of a set, and of those it is made from: all of them where they go round in a circle."""
        sections = [self.tickets[name]]
        while sections[-1].get("from") in self.tickets and len(sections) <= len(self.tickets):
            sections.append(self.tickets[sections[-1]["from"]])
        return sections

    def provenance(self, name: str) -> str:
        """Return the provenance of a set as ``dpltm generate`` will state it."""
        return provenance(self.chain(name)[-1])

    def ticket_set(self, name: str | None, seed: int) -> Shared | None:
        """Return the set of that name for a trial's seed, behind the seed that the set has itself; None for no name."""
        if name is None:
            return None
        options = dict(self.tickets[name])
        source, seed = options.pop("from", None), options.pop("seed", seed)
        return Shared("transfer" if source else "generate", name, options, seed, self.ticket_set(source, seed))


@dataclass(frozen=True)
class Trial:
    """One arm with one seed: one release."""

    recipe: Recipe = field(repr=False)
    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        """Name of the sweep, and of its folder."""
        return f"{slug(self.arm.name)}-s{self.seed}-{self.digest[:8]}"

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of all that the recipe says of it: another digest is another experiment, and run anew."""
        arm = self.arm
        parts = [arm.name, arm.train, arm.select, arm.tune, arm.round, arm.latent, self.recipe.quick, self.seed]
        sets = (arm.tickets, (arm.tune or {}).get("tickets"))
        return digest([*parts, *(None if name is None else self.recipe.chain(name) for name in sets)])

    @property
    def tickets(self) -> Shared | None:
        """The set that it trains from; None for the whole network."""
        return self.recipe.ticket_set(self.arm.tickets, self.seed)

    @property
    def search(self) -> Shared | None:
        """The search for its settings, if its arm asks for one."""
        if self.arm.tune is None:
            return None
        name, options = self.arm.search
        seed = options.pop("seed", 0)
        if name is not None and name == self.arm.tickets and self.recipe.provenance(name) in ("dp", "private"):
            seed = self.seed  # so that it depends on one release, rather than two
        if name is not None and isinstance(self.arm.round, int):
            options["rounds"] = str(self.arm.round)
        title = str(options.get("dataset", "records"))
        return Shared("tune", title, options, seed, self.recipe.ticket_set(name, seed))

    @property
    def needs(self) -> tuple[Shared, ...]:
        """Calls that must be made before it."""
        return tuple(need for need in (self.search, self.tickets) if need is not None)


@dataclass(frozen=True)
class Shared:
    """Call that trials share: a ticket set that is generated, or carried over from another one; or a search for settings."""

    command: str
    title: str
    options: Section
    seed: int
    tickets: Shared | None

    @cached_property
    def place(self) -> str:
        """Place in the folder of the sweep; another of its options makes another one."""
        key = digest([self.options, self.seed, None if self.tickets is None else self.tickets.place])[:8]
        if self.command == "tune":
            return f"tune/{slug(self.title)}-{key}.toml"
        return f"tickets/{slug(self.title)}-s{self.seed}-{key}"

    @property
    def name(self) -> str:
        """Name in the sweep."""
        return self.place.replace("/", "-").removesuffix(".toml")

    @property
    def needs(self) -> tuple[Shared, ...]:
        """Calls that must be made before it."""
        return () if self.tickets is None else (self.tickets,)

    @property
    def root(self) -> Shared:
        """The set that was generated, of one that is carried over; itself of all others."""
        return self if self.tickets is None else self.tickets.root


Task = Trial | Shared
"""Task that can be done by itself, once its needs are there."""


def tasks(trials: Iterable[Task]) -> dict[str, Task]:
    """Return these trials and all that they need, by name, each behind what it needs."""
    ordered: dict[str, Task] = {}
    for trial in trials:
        ordered |= tasks(trial.needs) | {trial.name: trial}
    return ordered


def provenance(section: Section) -> str:
    """Return the provenance of a set that is generated with these options: public, private, data-free or dp."""
    return str(section.get("provenance", "dp" if section.get("criterion") in DP_CRITERIA else "data-free"))


def digest(body: Any) -> str:
    """SHA-256 (hex) of a JSON value."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def slug(name: str) -> str:
    """Return a name of a folder that reads like ``name``."""
    return re.sub("-+", "-", re.sub("[^a-z0-9.]+", "-", name.lower())).strip("-.")[:60] or "arm"


# --- the table --------------------------------------------------------------------------------------------------------

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


def paired(one: Mapping[Any, float], other: Mapping[Any, float]) -> Summary:
    """Return the differences ``one - other`` over the seeds that both have: what they share by a seed cancels."""
    return summary([one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())])


def table(
    recipe: Recipe, results: Mapping[str, Any], failures: Mapping[str, str], privacy: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the answer of a sweep, but for where it lies."""
    rows = [_row(recipe, arm, results, failures) for arm in recipe.arms]
    values = {row["name"]: row["values"] for row in rows}
    for arm, row in zip(recipe.arms, rows, strict=True):
        if arm.against is not None:
            row["difference"] = {"to": arm.against, **paired(values[arm.name], values[arm.against]).to_json()}
    stated = all_terms(rows)  # where rows agree on it, it is said once; else in each
    over = f"means over {recipe.seeds} seeds with 95 % intervals (Student's t)" if recipe.seeds > 1 else "one seed"
    return {
        "recipe": recipe.title,
        "source": recipe.source,
        "quick": recipe.quick,
        "privacy": dict(privacy),
        "seeds": list(range(recipe.seeds)),
        "finished": sum(trial.name in results for trial in recipe.trials),
        "members": len(recipe.trials),
        "arms": rows,
        "notes": [
            *recipe.notes,
            f"{over}, given what was searched once for all; the epsilon of a row is that of one of its trials, with all that"
            " it is made of; what they cost together is said above",
            "settings that the recipe fixes were chosen by people who had seen results on these datasets; what dpltm tune"
            " searched, it searched on public records; choosing among the rows by their accuracy is a search as well",
            *((f"certified epsilon: {stated[0]}",) if len(stated) == 1 else ()),
            *_caveats(rows, privacy["notes"]),
        ],
    }


def _row(recipe: Recipe, arm: Arm, results: Mapping[str, Any], failures: Mapping[str, str]) -> dict[str, Any]:
    trials = [trial for trial in recipe.trials if trial.arm is arm]
    trained = {trial.seed: results[trial.name]["train"] for trial in trials if trial.name in results}
    measured = {seed: body.get("accuracy") for seed, body in trained.items()}
    values = {str(seed): float(value) for seed, value in measured.items() if value is not None}
    why = dict.fromkeys(trained, "finished, without an accuracy")
    holes = [
        {"seed": trial.seed, "why": failures.get(trial.name, why.get(trial.seed, "not run"))}
        for trial in trials if str(trial.seed) not in values
    ]  # fmt: skip
    live, density, training = (
        [body[key] for body in trained.values() if body.get(key) is not None]
        for key in ("live", "density", "training")
    )
    first: Mapping[str, Any] = next(iter(trained.values()), {})
    privacy = [body["privacy"] for body in trained.values()]
    return {
        **{key: getattr(arm, key) for key in ("name", "group", "varied", "note", "paper")},
        "values": values,
        **summary(list(values.values())).to_json(),
        "rounds": {str(seed): body.get("round") for seed, body in trained.items()},
        "live": [min(live), max(live)] if live else None,
        "density": sum(density) / len(density) if density else None,
        "training": sum(training) / len(training) if training else None,
        **{key: first.get(key) for key in ("steps", "noise_multiplier", "lr")},
        "privacy": max(privacy, key=lambda body: float(body["certified"]["epsilon"]), default=None),
        "difference": None,
        "missing": holes,
    }


def _caveats(rows: Sequence[Mapping[str, Any]], of_all: Sequence[str]) -> list[str]:
    """Caveats of the rows' own guarantees, but for those of all together."""
    names_of: dict[str, list[str]] = {}
    for row in rows:
        for note in () if row["privacy"] is None else dict.fromkeys(row["privacy"]["notes"]):
            if note not in of_all:
                names_of.setdefault(note, []).append(repr(row["name"]))
    notes = []
    for note, names in names_of.items():
        few = " and ".join(names) if len(names) <= MAX_NAMES else f"{len(names)} of {len(rows)} rows"
        notes.append(note if len(names) == len(rows) else f"{few}: {note}")
    return notes


def planned(recipe: Recipe, spent: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a plan: every arm, with its price by name, as far as that does not wait for its tickets."""
    arms = []
    for arm in recipe.arms:
        latent = arm.latent or {"encode": arm.train, "scheme": arm.train}
        arms.append(
            {
                "name": arm.name,
                "paper": arm.paper,
                "tickets": arm.tickets,
                "dataset": latent["encode"].get("dataset"),
                "epsilon": latent["scheme"].get("epsilon"),
                "noise_multiplier": arm.train.get("noise-multiplier"),
                "privacy": spent.get(arm.name),
                "at_most": _at_most(recipe, arm),
            }
        )
    return {
        "quick": recipe.quick,
        "seeds": list(range(recipe.seeds)),
        "members": len(recipe.trials),
        "tickets": sorted(recipe.tickets),
        "arms": arms,
    }


def _at_most(recipe: Recipe, arm: Arm) -> str:
    """Describe an arm's certified epsilon before its tickets are made."""
    if arm.tickets is not None and recipe.provenance(arm.tickets) == "private":
        return "inf"
    epsilon = arm.train.get("epsilon")
    return f"at most {epsilon:g}" if epsilon is not None and arm.train.get("noise") != "nominal" else "-"
