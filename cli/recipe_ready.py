"""Whether a recipe can run on the records at hand: each dataset is read and seen against its arm before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from dpltm.cli.common import PER_USER, DataOptions, model_spec
from dpltm.cli.generate import GenerateOptions, check_schedule
from dpltm.cli.options import in_flags
from dpltm.cli.recipe import (
    Arm,
    Recipe,
    Section,
    chain,
    data_of,
    dataset_of,
    problems_error,
    provenance,
    train_options,
)
from dpltm.errors import DpltmError, InputError
from dpltm.options.sections import resolve, section_problems
from dpltm.options.sections import right_keys as sound
from dpltm.options.train import TrainRequest

if TYPE_CHECKING:
    from dpltm.data import Dataset
    from dpltm.models import ModelSpec
    from dpltm.privacy.events import DatasetRef
    from dpltm.tickets.sweep_files import SweepFolder


def check_ready(recipe: Recipe, known: Sequence[str] = ()) -> dict[str, DatasetRef]:
    """Reads every dataset, and sees whether networks fit them, before anything starts.

    Args:
        recipe: what is to be run.
        known: what is known to be wrong with it, to be said along.

    Returns:
        What each arm trains on, by its name.

    Raises:
        InputError: all that is missing, in one message.
    """
    looked = _Look(recipe, known)
    for name, section in recipe.tickets.items():
        looked.at_set(section, f"[tickets.{name}]")
    for arm in recipe.arms:
        looked.at_arm(arm, f"[[arm]] {arm.name!r}")
    if looked.problems:
        raise problems_error(recipe.path, looked.problems)
    return looked.records


def check_same_records(recipe: Recipe, folder: SweepFolder, records: Mapping[str, DatasetRef]) -> None:
    """Raises InputError where a finished member was trained on other records than those at hand: rows would mix them."""
    from dpltm.tickets.identity import read_ref

    for member in recipe.members:
        had = (folder.result(member.label) or {}).get("records")
        now = records.get(member.arm.name)
        if had and now and (old := read_ref(had)).content and old.content != now.content:
            raise InputError(
                f"--out: {folder.member(member.label)} was trained on other records than those of {now.name} at hand; take"
                " another --out, or remove its result.json (not its ledger), to have it run again"
            )


class _Look:
    """One look at a recipe's records.

    Attributes:
        problems: all that was found, each beginning with the table that it is about.
        records: what each arm trains on, by its name.
    """

    def __init__(self, recipe: Recipe, known: Sequence[str]) -> None:
        self.recipe, self.problems = recipe, list(known)
        self.records: dict[str, DatasetRef] = {}
        self._loaded: dict[str, Dataset | None] = {}
        self._gone: set[str] = set()

    def at_set(self, section: Section, where: str) -> None:
        """The records of a ticket set, against its network and its schedule."""
        if "from" in section:
            self._read(section, where)
        else:
            dataset = self._read({"dataset": "digits", **section}, where)
            if not section_problems(GenerateOptions, section):
                options = resolve(GenerateOptions, {}, section, str(self.recipe.path))
                self._fits(section, dataset, where, partial(check_schedule, options))
        self._read_public(section, where)

    def at_arm(self, arm: Arm, where: str) -> None:
        """The records of an arm, against its options, its network, and what it declares public."""
        if arm.latent is not None:
            self._read(arm.latent["encode"], f"{where} latent.encode")
            return
        dataset = self._read(arm.train, f"{where} train")
        if dataset is not None:
            self._suits(arm, dataset, f"{where} train")
        if arm.tickets is None:
            self._fits(arm.train, dataset, f"{where} train")
            self._read_public(arm.train, f"{where} train")
        elif provenance(self.recipe.tickets, arm.tickets) == "public":
            root = {"dataset": "digits", **chain(self.recipe.tickets, arm.tickets)[-1]}
            self._disjoint(root, arm, f"[tickets.{arm.tickets}]")
        if arm.tune is not None:
            self._disjoint(arm.tune, arm, f"{where} tune")

    def _note(self, where: str, problem: object) -> None:
        self.problems.append(f"{where} {problem}")

    def _read(self, section: Section, where: str) -> Dataset | None:
        """The dataset that a section names; none, noted once, where it cannot be had."""
        name, source = repr(sorted(data_of(section).items())), str(section.get("dataset"))
        if name not in self._loaded:
            self._loaded[name] = None
            if section_problems(DataOptions, data_of(section)) or source in self._gone:  # noted before
                return None
            try:
                self._loaded[name] = dataset_of(section, self.recipe.path)
            except DpltmError as error:
                self._note(where, error)
                if not in_flags(str(error)).startswith("--"):  # it is not the options: nothing of that name can be had
                    self._gone.add(source)
        return self._loaded[name]

    def _read_public(self, section: Section, where: str) -> None:
        if section.get("public") is not None:
            self._read({"dataset": section["public"]}, f"{where} public:")

    def _suits(self, arm: Arm, dataset: Dataset, where: str) -> None:
        """Whether an arm can train on these records, and be measured by them."""
        from dpltm.data import by_user
        from dpltm.stages.train_plan import sampling_of
        from dpltm.tickets.identity import reference

        try:
            options = train_options({**sound(TrainRequest, arm.train), "dense": True}, str(self.recipe.path))
            if options.unit == "user":
                dataset = by_user(dataset, options.per_user or PER_USER)
            sampling_of(options, dataset)
        except DpltmError as error:
            self._note(where, error)
        self.records[arm.name] = reference(dataset, make_key=False)
        if dataset.test is None:
            self._note(where, f"--dataset: {dataset.name} has no test records, by which its row is measured")
        if self.recipe.measure == "rmse" and not dataset.rated:
            self._note(where, f"--dataset: {dataset.name} holds no ratings, so it has no rmse, [recipe] measure")

    def _disjoint(self, section: Section, arm: Arm, what: str) -> None:
        """Whether records that are declared public are none of those that an arm trains on."""
        from dpltm.tickets.identity import reference

        source, ours = self._read(section, what), self.records.get(arm.name)
        if source is not None and ours is not None and (shared := reference(source, make_key=False)).may_overlap(ours):
            self._note(
                what,
                f"--dataset: {shared} is declared public and shares records with {ours}, which [[arm]] {arm.name!r}"
                " trains on; give them different --subset or --dataset",
            )

    def _fits(
        self, section: Section, dataset: Dataset | None, where: str, check: Callable[[ModelSpec], None] | None = None
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
