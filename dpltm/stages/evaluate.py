"""Accuracy of a run's network on records that were held out: nothing is spent, where they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpltm.errors import ArtifactError, InputError
from dpltm.privacy.event_json import ref_from_json
from dpltm.privacy.events import DatasetRef
from dpltm.privacy.lineage import check_test_apart, held_by
from dpltm.privacy.old_ledger import Ledger
from dpltm.records import Dataset, by_user, count_shared
from dpltm.records.notes import bounds_notes, run_bounds_notes
from dpltm.records.registry import registry_of
from dpltm.stages.checks import check_tables
from dpltm.stages.front import take_over_map
from dpltm.stages.inputs import inputs
from dpltm.stages.services import Services
from dpltm.training.evaluation import DIVERGED, accuracy, has_diverged, root_mean_squared_error
from dpltm.training.run import Run


@dataclass(frozen=True)
class Evaluation:
    """What a network gets right.

    Attributes:
        dataset: name of the records.
        records: how many.
        accuracy: fraction right.
        rmse: of the expected rating, where they are ratings; infinite for a network that diverged.
        notes: what was assumed, or could not be checked.
    """

    dataset: str
    records: int
    accuracy: float
    rmse: float | None
    notes: tuple[str, ...]


def plan_evaluation(run: Run, dataset: Dataset, ledger: Ledger | None = None) -> tuple[Dataset, tuple[str, ...]]:
    """The records as the network takes them, and what was assumed or could not be checked of them.

    Args:
        run: with its network.
        dataset: with a test split.
        ledger: of the run, and the registry that tells whose records are meant; by default the one that the run has.

    Raises:
        InputError: records that the network does not take, or that a release was made from: accuracy there would be
            another one.
    """
    dataset = take_over_map(dataset, run.feature_map, None, run.label)
    if run.config.get("unit") == "user" and dataset.rated and dataset.unit == "record":
        dataset = by_user(dataset, 1)  # whose test split has no rating of a user who was trained on
    _check_fits(run, dataset)
    notes = [
        *([DIVERGED] if has_diverged(run.model, run.spec) else []),
        *(run_bounds_notes(run) or bounds_notes(dataset)),
        *check_held_out(run, dataset, ledger or run.ledger or Ledger()),
    ]
    if dataset.bounds != run.bounds:
        raise InputError(
            f"`bounds`: {dataset.name} has {dataset.bounds}, the run was trained with {run.bounds}; use the same"
        )
    return dataset, tuple(notes)


def evaluate(run: Run, dataset: Dataset, ledger: Ledger | None = None, services: Services | None = None) -> Evaluation:
    """Accuracy on the test split of ``dataset``.

    Args:
        run: with its network.
        dataset: with a test split.
        ledger: of the run; by default the one that it has.
        services: where features come from, and who watches.

    Raises:
        InputError: see :func:`plan_evaluation`.
    """
    dataset, notes = plan_evaluation(run, dataset, ledger)
    assert dataset.test is not None  # or it was refused
    x, y = inputs(dataset.test, dataset, services or Services())
    rmse = root_mean_squared_error(run.model, x, y) if dataset.rated else None
    return Evaluation(dataset.name, len(dataset.test), accuracy(run.model, x, y), rmse, notes)


def _check_fits(run: Run, dataset: Dataset) -> None:
    """Raises InputError unless there are test records that the network takes."""
    if dataset.test is None:
        raise InputError(
            f"`dataset`: {dataset.name} has no test split; name a file with one by `test`, or the part that"
            " the training held out, such as `test` 0.2"
        )
    if dataset.features != run.config["features"]:
        raise InputError(
            f"{run.label}: its network takes {run.config['features']} features, but {dataset.name} has {dataset.features};"
            " use records of the same shape"
        )
    if dataset.classes != run.config["classes"]:
        raise InputError(
            f"{run.label}: its network has {run.config['classes']} classes, but {dataset.name} has {dataset.classes}; use"
            " records with the same classes"
        )
    check_tables(run.spec, dataset, f"{run.label}: its network", "use records like those that it was trained on")


def check_held_out(run: Run, dataset: Dataset, ledger: Ledger) -> list[str]:
    """Sentences about whether the test split is apart from what a run was trained on.

    Args:
        run: that is evaluated.
        dataset: its test split is what the run is evaluated on.
        ledger: of the evaluation; its registry tells records apart.

    Raises:
        InputError: training records are in it, or records that another release was made from; accuracy there is private.
    """
    said = _trained_on(run.config)
    if said is None:
        return []  # a run on messages: no record was ever seen
    registry, rows, notes = registry_of(said, ledger.registry), dataset.test_rows, []
    trained_on = registry.resolve(said)
    trained = registry.rows_of(trained_on)
    same_file = registry.look_at(dataset).content == trained_on.content
    vouched = dataset.published and same_file
    if trained is None:
        notes = [
            "whether these records were trained on cannot be checked here, where nobody knows the records of the run;"
            " its accuracy on those is private"
        ]
    elif rows is not None and not vouched:  # a publication says that its splits are separate
        hashes = rows.value_hashes(registry.key)
        if trained_on.cut == rows.cut and same_file:  # hashes of rows under other columns are others
            places = rows.public_hashes()
            hashes = hashes[(places >= trained_on.start) & (places < trained_on.stop)]
        known = () if rows.units is None else np.intersect1d(rows.whose_hashes(registry.key), trained)
        if len(known):
            raise InputError(
                f"`dataset`: {len(known)} of those whose records are in the test split of {dataset.name} were trained on by"
                f" {run.label}, so its accuracy there would show what is protected; use records of others"
            )
        shared = count_shared(trained, hashes) if len(hashes) else 0
        if shared:
            raise InputError(
                f"`dataset`: {shared} of the {len(rows)} test records of {dataset.name} are among those that {run.label} was"
                " trained on, so its accuracy there is private; use records that were held out"
            )
    held = held_by(ledger, run)
    others = (event for event in held if registry.resolve(event.dataset).group != trained_on.group)
    check_test_apart(dataset, others, ledger.registry)
    return notes


def _trained_on(config: Mapping[str, Any]) -> DatasetRef | None:
    """The records that a run says it was trained on; None where there are none."""
    try:
        return ref_from_json(config.get("records"))
    except ArtifactError:
        return None
