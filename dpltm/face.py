"""The public face: the stages as functions of arrays and keyword arguments (``dpltm.generate`` and so on).

Each takes its records as arrays or as a ``Dataset``, and its options by name: the fields of the stage's options, and the
public facts about arrays that ``dpltm.data.from_arrays`` takes. What a stage does with them, ``dpltm.stages`` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from dpltm.data import Dataset, from_arrays
from dpltm.errors import InputError
from dpltm.options.arguments import Arguments
from dpltm.options.features import FeatureOptions
from dpltm.options.train import TrainOptions
from dpltm.options.tune import TuneOptions
from dpltm.privacy.ledger import Ledger
from dpltm.private_loop import PrivateLoop
from dpltm.run import Run
from dpltm.stages import train as train_stage
from dpltm.stages import tune as tune_stage
from dpltm.stages.front import FeatureSources, take_over_map, with_feature_map
from dpltm.stages.progress import SILENT, Progress
from dpltm.stages.services import Services
from dpltm.stages.starting_point import starting_point
from dpltm.stages.tune import SearchResult
from dpltm.ticket_set import TicketSet, Winner

__all__ = ["Ledger", "PrivateLoop", "train", "tune"]

FACTS = ("test", "bounds", "classes", "records")
"""Public facts about records that come as arrays."""

Records = np.ndarray | Tensor | Dataset
"""Features ``(n, ...)`` as an array, a tensor or a memory map; or a dataset, which has its labels."""


def as_dataset(x: Records, y: np.ndarray | Tensor | None, facts: Mapping[str, Any]) -> Dataset:
    """The dataset that a caller means.

    Args:
        x: features, or a dataset.
        y: labels; None with a dataset.
        facts: of ``FACTS``, those that were given.

    Raises:
        InputError: labels or facts beside a dataset; arrays that are not what they must be.
    """
    if isinstance(x, Dataset):
        beside = [*(["y"] if y is not None else []), *(name for name in FACTS if facts.get(name) is not None)]
        if beside:
            raise InputError(f"`{beside[0]}`: {x.name} is a dataset, which says so itself; leave `{beside[0]}` out")
        return x
    if y is None:
        raise InputError("`y` is missing: the labels that go with `x`")
    test = facts.get("test")
    if test is not None and len(test) != 2:
        raise InputError("`test`: not a pair of features and labels")
    held_out = None if test is None else (_array(test[0]), _array(test[1]))
    rest = {name: facts.get(name) for name in FACTS if name != "test"}
    return from_arrays(_array(x), _array(y), test=held_out, **rest)


def _array(values: object) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def records_and_options(
    x: Records, y: np.ndarray | Tensor | None, given: Mapping[str, Any], *classes: type
) -> tuple[Dataset, Arguments]:
    """The records and the options that a caller means by keyword arguments.

    Args:
        x, y: as :func:`as_dataset` takes them.
        given: keyword arguments: facts about the records, and fields of ``classes``.
        classes: of options.

    Returns:
        The dataset, and options by class: ``arguments.take(TrainOptions)``.

    Raises:
        InputError: an option that none of them has, with the nearest that there is; a value of the wrong type.
    """
    facts = {name: given[name] for name in FACTS if name in given}
    rest = {name: value for name, value in given.items() if name not in facts}
    options = Arguments(rest, classes, FACTS)
    return as_dataset(x, y, facts), options


def train(
    ticket: Winner | TicketSet | str,
    x: Records,
    y: np.ndarray | Tensor | None = None,
    *,
    round: int | None = None,
    dense: bool = False,
    ledger: Ledger | None = None,
    progress: Progress = SILENT,
    **options: Any,
) -> Run:
    """Phase 3: trains a ticket under differential privacy (DP-SGD on its live coordinates).

    Args:
        ticket: the winner that ``select`` returned; a ticket set, with ``round`` or ``dense``; or the name of a network,
            such as ``mlp:300,100``, which is trained whole.
        x: the private records, ``(n, ...)``, or a dataset.
        y: labels ``(n,)``; None with a dataset.
        round: the ticket to take of a set; of a winner, another than the one that won.
        dense: take the whole network of a set, with its starting weights.
        ledger: that everything is entered in; that of the ticket set by default, or a new one in memory.
        progress: told how far it is.
        options: fields of ``TrainOptions``, such as ``epsilon``, ``epochs`` or ``lr``; of ``FeatureOptions``, where a
            network is named; and public facts about arrays (``test``, ``bounds``, ``classes``, ``records``).

    Returns:
        The run: ``.model``, ``.mask``, ``.privacy``, ``.metrics``, ``.ledger``.

    Raises:
        DpltmError: whatever ``dpltm train`` refuses, before anything is spent.

    Guarantees:
        Every event is entered before the noisy value that it pays for is drawn. With ``epsilon``, all that the ledger holds
        for these records stays within it.
    """
    dataset, given = records_and_options(x, y, options, TrainOptions, FeatureOptions)
    settings, services = given.take(TrainOptions), Services(progress)
    entered = _ledger_of(ticket) if ledger is None else ledger
    dataset = _in_front(ticket, dataset, given.take(FeatureOptions), entered, progress)
    start = starting_point(ticket, dataset, round=round, dense=dense, seed=settings.seed)
    plan = train_stage.plan(start, dataset, settings, entered, services, names_ledger=ledger is not None)
    return train_stage.train(plan, services)


def tune(
    target: TicketSet | str,
    x: Records,
    y: np.ndarray | Tensor | None = None,
    *,
    ledger: Ledger | None = None,
    progress: Progress = SILENT,
    **options: Any,
) -> SearchResult:
    """Searches the settings of a private training on public records, under the same budget and noise, at no cost.

    Args:
        target: the ticket set, or the name of a network, whose settings are searched.
        x: public records: the search declares them so.
        y: labels; None with a dataset.
        ledger: that knows which records are private; that of the ticket set by default. Nothing is entered.
        progress: told how far it is.
        options: fields of ``TuneOptions``; ``for_records`` and ``epsilon`` are needed, and lists of settings may be lists of
            numbers. Fields of ``FeatureOptions``, and public facts about arrays, as in :func:`train`.

    Returns:
        All trials, best first. ``train(target, ..., **result.settings)`` trains with the best.

    Raises:
        DpltmError: whatever ``dpltm tune`` refuses, before the first training.
    """
    dataset, given = records_and_options(x, y, options, TuneOptions, FeatureOptions)
    known = _ledger_of(target) if ledger is None else ledger
    dataset = _in_front(target, dataset, given.take(FeatureOptions), known, progress)
    return tune_stage.tune(tune_stage.plan(target, dataset, given.take(TuneOptions), known), Services(progress))


def _ledger_of(ticket: Winner | TicketSet | str) -> Ledger:
    """The ledger that goes with a ticket; a new one in memory where there is none."""
    tickets = ticket.tickets if isinstance(ticket, Winner) else ticket
    known = tickets.ledger if isinstance(tickets, TicketSet) else None
    return Ledger() if known is None else known


def _in_front(
    ticket: Winner | TicketSet | str, dataset: Dataset, settings: FeatureOptions, ledger: Ledger, progress: Progress
) -> Dataset:
    """The records behind what is asked for in front of a network; a ticket set remembers its own, and asking is refused."""
    if isinstance(ticket, str):
        sources = FeatureSources(registry=ledger.registry)
        if dataset.feature_map is not None:
            return take_over_map(dataset, None, settings, dataset.name)
        return with_feature_map(dataset, settings, sources, progress)
    tickets = ticket.tickets if isinstance(ticket, Winner) else ticket
    return take_over_map(dataset, None, settings, "the ticket set" if tickets is None else tickets.label)
