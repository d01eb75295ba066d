"""Whether a recipe can run on the records at hand: each dataset is read and seen against its arm before anything starts."""

from __future__ import annotations

from collections.abc import Callable

from dpltm.errors import DpltmError, InputError
from dpltm.experiments.reader import check_no_problems
from dpltm.experiments.recipe import Arm, Recipe, Section, data_options, provenance
from dpltm.networks import model_spec
from dpltm.options import resolve
from dpltm.options.data import DataOptions
from dpltm.options.generate import GenerateRequest
from dpltm.options.train import TrainRequest
from dpltm.privacy.entry import Part
from dpltm.privacy.ledger import Ledger
from dpltm.records import Dataset
from dpltm.verbs.generate import check_schedule
from dpltm.verbs.train import protected_units, sampling_of

Load = Callable[[DataOptions], Dataset]
"""Reads the records that options name."""


def check_ready(recipe: Recipe, load: Load, ledger: Ledger) -> dict[str, Part]:
    """Read every dataset, and see whether networks fit them, before anything starts.

    Args:
        recipe: what is to be run.
        load: reads records.
        ledger: of the sweep; nothing is entered.

    Returns:
        What each arm trains on, by its name.

    Raises:
        InputError: all that is missing, in one message.
    """
    look = _Look(recipe, load, ledger)
    for name, section in recipe.tickets.items():
        look.at_set(name, section, f"[tickets.{name}]")
    for arm in recipe.arms:
        look.at_arm(arm, f"[[arm]] {arm.name!r}")
    look.check_disjoint()
    check_no_problems(recipe.path, look.problems)
    return look.private


class _Look:
    """One look at a recipe's records.

    Attributes:
        problems: all that is wrong, each beginning with the table that it is about.
        private: what each arm trains on, by its name.
        public: what is declared public, by the table that does.
    """

    def __init__(self, recipe: Recipe, load: Load, ledger: Ledger) -> None:
        self.recipe, self.problems = recipe, list[str]()
        self.private: dict[str, Part] = {}
        self.public: dict[str, Part] = {}
        self._load, self._ledger = load, ledger
        self._loaded: dict[str, Dataset | None] = {}
        self._absent, self._units = set[str](), set[str]()

    def at_set(self, name: str, section: Section, where: str) -> None:
        """The records of a ticket set, against its network and its schedule."""
        section = section if "from" in section else {"dataset": "digits", **section}
        public = "from" not in section and provenance(self.recipe.tickets, name) == "public"
        dataset = self._read(section, where, public=public)
        if "from" not in section:
            self._check_fit(section, dataset, where, resolve(GenerateRequest, {}, section, str(self.recipe.path)))
        self._read_public(section, where)

    def at_arm(self, arm: Arm, where: str) -> None:
        """The records of an arm, against its options and its network."""
        if arm.latent is not None:
            self._read(arm.latent["encode"], f"{where} latent.encode")
            return
        dataset = self._read(arm.train, f"{where} train")
        if dataset is not None:
            self._check_suitable(arm, dataset, f"{where} train")
        if arm.tickets is None:
            self._check_fit(arm.train, dataset, f"{where} train")
            self._read_public(arm.train, f"{where} train")
        if arm.tune is not None:
            self._read(arm.tune, f"{where} tune", public=True)

    def check_disjoint(self) -> None:
        """Whether records that are declared public are none of those that an arm trains on: all have one ledger."""
        for where, public in self.public.items():
            for name, private in self.private.items():
                if public.overlaps(private):
                    self._note(
                        where,
                        f"`dataset`: {public} is declared public and shares records with {private}, which [[arm]] {name!r}"
                        " trains on; give them different `subset` or `dataset`, or make two recipes of it",
                    )
                    break

    def _note(self, where: str, problem: object) -> None:
        self.problems.append(f"{where} {problem}")

    def _read(self, section: Section, where: str, *, public: bool = False) -> Dataset | None:
        """The dataset that a section names; none, noted once, where it cannot be had."""
        options = data_options(section)
        name, source = repr(sorted(options.items())), str(section.get("dataset"))
        if name not in self._loaded:
            self._loaded[name] = None
            if source in self._absent:  # noted before
                return None
            try:
                self._loaded[name] = self._load(resolve(DataOptions, {}, options, str(self.recipe.path)))
            except DpltmError as error:
                self._note(where, error)
                if not (isinstance(error, InputError) and error.field):  # it is not the options: nothing can be had
                    self._absent.add(source)
        dataset = self._loaded[name]
        if dataset is not None and public and not dataset.synthetic:
            self.public[where] = self._ledger.part(dataset)
        return dataset

    def _read_public(self, section: Section, where: str) -> None:
        if section.get("public") is not None:
            self._read({"dataset": section["public"]}, f"{where} public:", public=True)

    def _check_suitable(self, arm: Arm, dataset: Dataset, where: str) -> None:
        """Whether an arm can train on these records, and be measured by them."""
        try:
            request = resolve(TrainRequest, {"dense": True}, arm.train, str(self.recipe.path))
            dataset = protected_units(dataset, request)
            sampling_of(request, dataset)
        except DpltmError as error:
            self._note(where, error)
        self.private[arm.name] = self._ledger.part(dataset)
        self._units.add(dataset.unit)
        if len(self._units) > 1:
            self._note(
                where, f"`unit`: one ledger protects one {' or one '.join(sorted(self._units))}; make two recipes"
            )
        if dataset.test is None:
            self._note(where, f"`dataset`: {dataset.name} has no test records, by which its row is measured")
        if self.recipe.measure == "rmse" and not dataset.rated:
            self._note(where, f"`dataset`: {dataset.name} holds no ratings, so it has no rmse, [recipe] measure")

    def _check_fit(
        self, section: Section, dataset: Dataset | None, where: str, request: GenerateRequest | None = None
    ) -> None:
        """Whether a section's network takes these records."""
        model = section.get("model", "mlp:300,100")
        if dataset is None or section.get("features") not in (None, "none"):
            return
        try:
            spec = model_spec(model, dataset)
            if request is not None:
                check_schedule(request, spec)
        except DpltmError as error:
            self._note(where, error)
