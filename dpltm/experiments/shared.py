"""What trials of a recipe share: ticket sets and searches, each made once, before the trials that need it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dpltm.experiments.recipe import Recipe, Section, Trial, digest, provenance, search_options, slug

SEARCHED = ("lr", "clip-norm", "epochs", "batch-size", "tuned-on")
"""What a search decides of a training."""


@dataclass(frozen=True)
class SharedSet:
    """A ticket set: generated, or carried over from another one.

    Attributes:
        recipe: that it is of.
        title: its name there.
        seed: that it is made with.
    """

    recipe: Recipe = field(repr=False)
    title: str
    seed: int

    @property
    def options(self) -> dict[str, Any]:
        """Its options, but for its seed and the set that it is made from."""
        section = self.recipe.tickets[self.title]
        return {key: value for key, value in section.items() if key not in ("from", "seed")}

    @property
    def origin(self) -> SharedSet | None:
        """The set that it is carried over from."""
        source = self.recipe.tickets[self.title].get("from")
        return None if source is None else shared_set(self.recipe, source, self.seed)

    @property
    def provenance(self) -> str:
        return provenance(self.recipe.tickets, self.title)

    @cached_property
    def folder(self) -> str:
        """Name of its folder; another of its options makes another one."""
        key = digest([self.options, self.seed, None if self.origin is None else self.origin.folder])
        return f"{slug(self.title)}-s{self.seed}-{key[:8]}"

    @property
    def name(self) -> str:
        return f"tickets-{self.folder}"

    @property
    def needs(self) -> tuple[Task, ...]:
        return () if self.origin is None else (self.origin,)


@dataclass(frozen=True)
class Search:
    """A search for settings of a training, of all trials that ask the same.

    Attributes:
        recipe: that it is of.
        options: of ``dpltm tune``.
        seed: that it is made with.
        tickets: the set that it is made with; None for the whole network.
    """

    recipe: Recipe = field(repr=False)
    options: Section
    seed: int
    tickets: SharedSet | None

    @cached_property
    def file(self) -> str:
        """Name of the file with its answer, but for its ending."""
        key = digest([self.options, self.seed, None if self.tickets is None else self.tickets.folder])
        return f"{slug(str(self.options.get('dataset', 'records')))}-{key[:8]}"

    @property
    def name(self) -> str:
        return f"tune-{self.file}"

    @property
    def needs(self) -> tuple[Task, ...]:
        return () if self.tickets is None else (self.tickets,)

    @property
    def trials(self) -> list[Trial]:
        """Those that ask for it."""
        searches = ((trial, search_of(trial)) for trial in self.recipe.trials if trial.arm.tune is not None)
        return [trial for trial, search in searches if search is not None and search.file == self.file]


Task = SharedSet | Search | Trial
"""What can be made by itself, once what it needs is there."""


def shared_set(recipe: Recipe, title: str, seed: int) -> SharedSet:
    """The set of that name and seed, unless it has one seed for all.

    Args:
        recipe: has the set under ``tickets``.
        title: name of the set in the recipe.
        seed: of the trial that asks for it; a seed that the set has itself comes first.
    """
    return SharedSet(recipe, title, recipe.tickets[title].get("seed", seed))


def set_of(trial: Trial) -> SharedSet | None:
    """The set that a trial trains from; None for the whole network."""
    name = trial.arm.tickets
    return None if name is None else shared_set(trial.recipe, name, trial.seed)


def search_of(trial: Trial) -> Search | None:
    """The search for a trial's settings, if its arm asks for one."""
    arm = trial.arm
    if arm.tune is None:
        return None
    asked = search_options(arm)
    title, seed = asked.pop("tickets", arm.tickets), asked.pop("seed", 0)
    if searches_own_release(trial):
        seed = trial.seed
    tickets = None if title is None else shared_set(trial.recipe, title, seed)
    if tickets is not None and isinstance(arm.round, int):
        asked["rounds"] = str(arm.round)
    return Search(trial.recipe, asked, seed, tickets)


def searches_own_release(trial: Trial) -> bool:
    """Whether the search looks at a release, which must be the one that this trial's ledger holds."""
    arm = trial.arm
    title = search_options(arm).get("tickets", arm.tickets)
    return title is not None and title == arm.tickets and provenance(trial.recipe.tickets, title) in ("dp", "private")


def searches_other_set(trial: Trial) -> bool:
    """Whether the search is made with another set than the one that is trained from."""
    title = search_options(trial.arm).get("tickets", trial.arm.tickets)
    return trial.arm.tune is not None and title is not None and title != trial.arm.tickets


def needs_of(task: Task) -> tuple[Task, ...]:
    """What must be there before a task can be made."""
    if isinstance(task, Trial):
        return tuple(need for need in (search_of(task), set_of(task)) if need is not None)
    return task.needs


def name_of(task: Task) -> str:
    """What a task is called in the folder of its sweep."""
    return task.label if isinstance(task, Trial) else task.name


def tasks(trials: Iterable[Trial]) -> dict[str, Task]:
    """These trials and all that they need, by name, each behind what it needs."""
    ordered: dict[str, Task] = {}

    def add(task: Task) -> None:
        if name_of(task) not in ordered:
            for need in needs_of(task):
                add(need)
            ordered[name_of(task)] = task

    for trial in trials:
        add(trial)
    return ordered


def searched_settings(settings: Section) -> dict[str, Any]:
    """What a search decided, of the options that it wrote."""
    return {key: settings[key] for key in SEARCHED if key in settings}
