"""Whether a recipe can run on the records at hand: each dataset is read and seen against its arm before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from dpltm.errors import DpltmError, InputError
from dpltm.experiments.reader import problems_error
from dpltm.experiments.recipe import Arm, Recipe, Section, chain, data_options, provenance
from dpltm.networks import ModelSpec
from dpltm.options.data import DataOptions
from dpltm.options.generate import GenerateRequest
from dpltm.options.sections import resolve, right_keys, section_problems
from dpltm.options.train import TrainRequest
from dpltm.privacy.events import DatasetRef
from dpltm.records import Dataset
from dpltm.records.registry import RecordRegistry
from dpltm.stages.checks import model_spec
from dpltm.stages.generate_settings import check_schedule
from dpltm.stages.train_plan import protected_units, sampling_of

Load = Callable[[DataOptions], Dataset]
"""Reads the records that options name."""


def check_ready(
    recipe: Recipe, load: Load, registry: RecordRegistry, problems: Sequence[str] = ()
) -> dict[str, DatasetRef]:
    """Reads every dataset, and sees whether networks fit them, before anything starts.

    Args:
        recipe: what is to be run.
        load: reads records.
        registry: tells them apart.
        problems: what is known to be wrong with the recipe, to be reported along.

    Returns:
        What each arm trains on, by its name.

    Raises:
        InputError: all that is missing, in one message.
    """
    look = _Look(recipe, load, registry, problems)
    for name, section in recipe.tickets.items():
        look.at_set(section, f"[tickets.{name}]")
    for arm in recipe.arms:
        look.at_arm(arm, f"[[arm]] {arm.name!r}")
    if look.problems:
        raise problems_error(recipe.path, look.problems)
    return look.records


def dataset_options(section: Section, source: object) -> DataOptions:
    """The records that a section of the file ``source`` names.

    Raises:
        InputError: with one line about whatever is wrong.
    """
    return resolve(DataOptions, {}, data_options(section), str(source))


class _Look:
    """One look at a recipe's records.

    Attributes:
        problems: all that is wrong, each beginning with the table that it is about.
        records: what each arm trains on, by its name.
    """

    def __init__(self, recipe: Recipe, load: Load, registry: RecordRegistry, problems: Sequence[str]) -> None:
        self.recipe, self.problems = recipe, list(problems)
        self.records: dict[str, DatasetRef] = {}
        self._load, self._registry = load, registry
        self._loaded: dict[str, Dataset | None] = {}
        self._absent: set[str] = set()

    def at_set(self, section: Section, where: str) -> None:
        """The records of a ticket set, against its network and its schedule."""
        if "from" in section:
            self._read(section, where)
        else:
            dataset = self._read({"dataset": "digits", **section}, where)
            if not section_problems(GenerateRequest, section):
                request = resolve(GenerateRequest, {}, section, str(self.recipe.path))
                self._check_fit(section, dataset, where, partial(check_schedule, request))
        self._read_public(section, where)

    def at_arm(self, arm: Arm, where: str) -> None:
        """The records of an arm, against its options, its network, and what it declares public."""
        if arm.latent is not None:
            self._read(arm.latent["encode"], f"{where} latent.encode")
            return
        dataset = self._read(arm.train, f"{where} train")
        if dataset is not None:
            self._check_suitable(arm, dataset, f"{where} train")
        if arm.tickets is None:
            self._check_fit(arm.train, dataset, f"{where} train")
            self._read_public(arm.train, f"{where} train")
        elif arm.tickets in self.recipe.tickets and provenance(self.recipe.tickets, arm.tickets) == "public":
            root = {"dataset": "digits", **chain(self.recipe.tickets, arm.tickets)[-1]}
            self._check_disjoint(root, arm, f"[tickets.{arm.tickets}]")
        if arm.tune is not None:
            self._check_disjoint(arm.tune, arm, f"{where} tune")

    def _note(self, where: str, problem: object) -> None:
        self.problems.append(f"{where} {problem}")

    def _read(self, section: Section, where: str) -> Dataset | None:
        """The dataset that a section names; none, noted once, where it cannot be had."""
        name, source = repr(sorted(data_options(section).items())), str(section.get("dataset"))
        if name not in self._loaded:
            self._loaded[name] = None
            if section_problems(DataOptions, data_options(section)) or source in self._absent:  # noted before
                return None
            try:
                self._loaded[name] = self._load(dataset_options(section, self.recipe.path))
            except InputError as error:
                self._note(where, error)
                if error.field is None:  # it is not the options: nothing of that name can be had
                    self._absent.add(source)
            except DpltmError as error:
                self._note(where, error)
                self._absent.add(source)
        return self._loaded[name]

    def _read_public(self, section: Section, where: str) -> None:
        if section.get("public") is not None:
            self._read({"dataset": section["public"]}, f"{where} public:")

    def _check_suitable(self, arm: Arm, dataset: Dataset, where: str) -> None:
        """Whether an arm can train on these records, and be measured by them."""
        try:
            section = {**right_keys(TrainRequest, arm.train), "dense": True}
            request = resolve(TrainRequest, {}, section, str(self.recipe.path))
            dataset = protected_units(dataset, request)
            sampling_of(request, dataset)
        except DpltmError as error:
            self._note(where, error)
        self.records[arm.name] = self._registry.look_at(dataset)
        if dataset.test is None:
            self._note(where, f"`dataset`: {dataset.name} has no test records, by which its row is measured")
        if self.recipe.measure == "rmse" and not dataset.rated:
            self._note(where, f"`dataset`: {dataset.name} holds no ratings, so it has no rmse, [recipe] measure")

    def _check_disjoint(self, section: Section, arm: Arm, where: str) -> None:
        """Whether records that are declared public are none of those that an arm trains on."""
        source, ours = self._read(section, where), self.records.get(arm.name)
        if source is not None and ours is not None and (shared := self._registry.look_at(source)).may_overlap(ours):
            self._note(
                where,
                f"`dataset`: {shared} is declared public and shares records with {ours}, which [[arm]] {arm.name!r}"
                " trains on; give them different `subset` or `dataset`",
            )

    def _check_fit(
        self, section: Section, dataset: Dataset | None, where: str, check: Callable[[ModelSpec], object] | None = None
    ) -> None:
        """Whether a section's network takes these records."""
        model = section.get("model", "mlp:300,100")
        if dataset is None or section.get("features") not in (None, "none") or not isinstance(model, str):
            return
        try:
            spec = model_spec(model, dataset)
            if check is not None:
                check(spec)
        except DpltmError as error:
            self._note(where, error)
