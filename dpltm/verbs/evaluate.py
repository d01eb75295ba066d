"""How good a run's network is on records that were held out: nothing is spent, where they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dpltm.errors import InputError
from dpltm.features.inputs import Services, inputs, network_inputs
from dpltm.features.setup import take_over_map
from dpltm.networks import check_takes
from dpltm.networks.evaluation import (
    DIVERGED,
    accuracy,
    check_score,
    has_diverged,
    root_mean_squared_error,
    skill,
)
from dpltm.networks.own_network import network_notes
from dpltm.networks.skill import Skill
from dpltm.options import METRICS
from dpltm.privacy.account import check_declared
from dpltm.privacy.entry import Part
from dpltm.privacy.ledger import Ledger, of_process
from dpltm.records import Dataset, Split, by_user
from dpltm.records.notes import bounds_notes, run_bounds_notes
from dpltm.records.schema import class_names
from dpltm.records.subgroups import check_column, subgroups_of
from dpltm.training.artifacts import Run

YOUR_WORD = (
    "that none of these records was trained on is your word, since rows are not compared across commands: accuracy on"
    " records that were is private"
)


@dataclass(frozen=True)
class Evaluation:
    """Accuracy of a network on some records.

    Attributes:
        rmse: of the expected rating, where they are ratings; infinite for a network that diverged.
        skill: beside what takes none; None of ratings, and for a network that diverged.
    """

    dataset: str
    records: int
    accuracy: float
    rmse: float | None
    notes: tuple[str, ...]
    skill: Skill | None = None


def as_held_out(whole: Dataset) -> Dataset:
    """Return a dataset whose test split these records are, and whose training split is one record that is nobody's."""
    nobody = Split(whole.train.made_up(), part=whole.part, nobodys=True, valued=whole.train.valued)
    return replace(whole, train=nobody, test=replace(whole.train, part=Part(f"{whole.name} (test)"), file=None))


def evaluate(
    run: Run, dataset: Dataset, ledger: Ledger | None = None, services: Services | None = None, by: str | None = None
) -> Evaluation:
    """Return accuracy on the test split of ``dataset``, which the ledger has down as apart from its people from here on.

    Args:
        ledger: of the people whom the records may be of; None for that of this process.
        by: a column that tells subgroups, whose skill is told as well.
    """
    ledger = ledger or run.ledger or of_process(run.config.get("unit", "record"))
    run.spec.check_code(run.label)
    check_score(run.spec, "evaluate")
    dataset = take_over_map(dataset.in_order(run.columns, run.label), run.feature_map, None, run.label)
    if run.config.get("of_persons") and dataset.rated and not dataset.of_persons:
        dataset = by_user(dataset, 1)  # whose test split has no rating of a user who was trained on
    if dataset.test is None:
        raise InputError(
            f"`dataset`: {dataset.name} has no test split; name a file with one by `test`, or the part that"
            " the training held out, such as `test` 0.2; or new records alone by `input`"
        )
    check_takes(run.spec, dataset, run.label, like="those that it was trained on")
    if dataset.bounds != run.bounds:
        raise InputError(
            f"`bounds`: {dataset.name} has {dataset.bounds}, the run was trained with {run.bounds}; use the same"
        )
    undeclared = False
    for draft in ledger.apart(dataset):  # none of a publication, which says that its splits are apart
        check_declared(ledger.account(run.lineage), draft.part, "measured without a price")
        undeclared = bool(run.lineage.paid) and ledger.book.found(draft) is None
    if by is not None:
        check_column(dataset, by)
    test = network_inputs(dataset.test, dataset, services)
    ledger.exclude(dataset)
    groups = None if by is None else subgroups_of(dataset, dataset.test.open(ledger.declared_test(dataset)).x, by)
    x, y = inputs(test.open(ledger.declared_test(dataset)), dataset)
    rmse = root_mean_squared_error(run.model, x, y) if dataset.rated else None
    own = run.spec.score  # of the user's own, which may tell no classes
    found = None
    if not dataset.rated and own is None:
        found = skill(run.model, x, y, class_names(dataset.schema), _metric(run), groups)
    right = accuracy(run.model, x, y, score=own) if found is None else found.accuracy.value
    notes = [
        *([YOUR_WORD] if undeclared else []),
        *([DIVERGED] if has_diverged(run.model, run.spec) else []),
        *(run_bounds_notes(run) or bounds_notes(dataset)),
        *network_notes(run.spec),
    ]
    return Evaluation(dataset.name, len(dataset.test), right, rmse, tuple(notes), found)


def _metric(run: Run) -> str:
    """What its training named."""
    options = run.config.get("options")
    named = options.get("metric") if isinstance(options, Mapping) else None
    return named if named in METRICS else METRICS[0]
