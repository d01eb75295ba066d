"""The public face: the stages as functions of arrays and keyword arguments (``dpltm.generate`` and so on).

Each takes its records as arrays or as a ``Dataset``, and its options by name: the fields of the stage's options, and the
public facts about arrays that ``dpltm.data.from_arrays`` takes. What a stage does with them, ``dpltm.stages`` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from dpltm.data import Dataset, Rows, Split, from_arrays
from dpltm.errors import InputError
from dpltm.options.arguments import Arguments
from dpltm.options.transfer import TransferOptions
from dpltm.privacy.ledger import Ledger
from dpltm.private_loop import PrivateLoop
from dpltm.run import Run
from dpltm.stages import evaluate as evaluation
from dpltm.stages import predict as prediction
from dpltm.stages import transfer as transferring
from dpltm.stages.progress import SILENT, Progress
from dpltm.stages.services import Services
from dpltm.ticket_set import TicketSet, Winner

__all__ = ["Ledger", "PrivateLoop", "evaluate", "predict", "transfer"]

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


def transfer(
    tickets: TicketSet | Winner,
    x: Records,
    y: np.ndarray | Tensor | None = None,
    *,
    round: int | None = None,
    **options: Any,
) -> TicketSet:
    """Tickets for other records: another input width, image size, number of channels or of classes.

    Args:
        tickets: a set; or a winner, for the ticket that was drawn and all that its draws entered.
        x, y: the other records, of which only the shape is looked at.
        round: the ticket that is taken; None for all of a set.
        **options: ``bounds`` and ``classes`` of arrays, and the fields of ``dpltm.options.transfer.TransferOptions``.

    Returns:
        The new set, which depends on whatever the old one depends on, and goes on in its ledger.

    Raises:
        InputError: an option that there is none of; records that the network cannot take, or no layer in common.
    """
    dataset, arguments = records_and_options(x, y, options, TransferOptions)
    winner = tickets if isinstance(tickets, Winner) else None
    if winner is not None:
        round = winner.round if round is None else round
    source = tickets.tickets if isinstance(tickets, Winner) else tickets
    if source is None:
        raise InputError("`tickets`: a winner without its set; pass the set, and `round`")
    taken = arguments.take(TransferOptions)
    plan = transferring.plan_transfer(source, dataset, taken, round=round, winner=winner)
    return transferring.transfer(plan).tickets


def evaluate(
    run: Run,
    x: Records,
    y: np.ndarray | Tensor | None = None,
    *,
    bounds: tuple[float, float] | None = None,
    ledger: Ledger | None = None,
    progress: Progress = SILENT,
) -> evaluation.Evaluation:
    """Accuracy of a run's network on records that were held out, at no cost.

    Args:
        run: with its network.
        x, y: records that no release was made from; or a dataset, whose test split is taken.
        bounds: of arrays; by default those of the run.
        ledger: that the run was entered in; by default the one that it has.
        progress: told how far it is.

    Raises:
        InputError: records that the network does not take, or that a release was made from: accuracy there is private.
    """
    dataset = x if isinstance(x, Dataset) else _held_out(run, _array(x), y, bounds)
    if isinstance(x, Dataset):
        as_dataset(x, y, {"bounds": bounds})  # which refuses both beside it
    return evaluation.evaluate(run, dataset, ledger, Services(progress))


def _held_out(run: Run, x: np.ndarray, y: object, bounds: tuple[float, float] | None) -> Dataset:
    """A dataset whose test split these records are, and whose training split is one record that is nobody's."""
    if y is None:
        raise InputError("`y` is missing: the labels that go with `x`")
    declared = bounds or (run.bounds if run.feature_map is None else run.feature_map.bounds)
    whole = from_arrays(
        x, _array(y), bounds=declared, classes=run.spec.classes, name="the records", for_training=False
    )
    nobody = Split(np.zeros_like(whole.train.x[:1]), np.zeros_like(whole.train.y[:1]))
    made_up = Rows(nobody.x, nobody.y, kin="made up for an evaluation")
    return replace(whole, train=nobody, test=whole.train, rows=made_up, test_rows=whole.rows)


def predict(run: Run, x: np.ndarray | Tensor, *, progress: Progress = SILENT) -> prediction.Predictions:
    """Class probabilities that a run's network gives to records without labels, at no cost for records that it never saw.

    Args:
        run: with its network.
        x: records as in training, ``(n, ...)``, or their values in a row.
        progress: told how far it is.

    Returns:
        ``probabilities`` ``(n, classes)``, ``labels`` ``(n,)``, and how many values ``saturated``; as sensitive as ``x``.

    Raises:
        InputError: records of another shape, or a network that training drove out of the numbers.
    """
    return prediction.predict(run, _array(x), progress=progress)
