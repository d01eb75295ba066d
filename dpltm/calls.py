"""What the public face takes from its caller: arguments of the right type, records, facts about them, and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from types import NoneType
from typing import Any

import numpy as np
import torch.utils.data
from torch import Tensor

from dpltm.errors import InputError, in_python
from dpltm.options.arguments import Arguments
from dpltm.options.train import TrainOptions
from dpltm.privacy.old_ledger import Ledger
from dpltm.pruning.ticket_set import TicketSet, Winner
from dpltm.records import Dataset, Rows, Split, from_arrays
from dpltm.records.checks import as_array
from dpltm.records.items import gives_items, read_items
from dpltm.records.settle import check_name
from dpltm.training.launcher import check_alone
from dpltm.training.run import Run

FACTS = ("test", "bounds", "classes", "records", "units", "name")
"""Public facts about records that come as arrays."""

Records = np.ndarray | Tensor | Dataset | torch.utils.data.Dataset
"""Features ``(n, ...)`` as an array, a tensor or a memory map; or a dataset, which has its labels: one of this package, or
one of PyTorch's with random access, which is read once (``dpltm.records.items``)."""

Labels = np.ndarray | Tensor | None
"""Labels ``(n,)``, from 0 to the number of classes - 1; None beside a dataset."""

_MADE = "give what dpltm.{} returns, or dpltm.tickets.load(path)"

_TYPES: dict[str, tuple[tuple[type, ...], str, str]] = {
    "run": ((Run,), "a run", _MADE.format("train")),
    "tickets": ((TicketSet, Winner), "a ticket set or a winner", _MADE.format("generate")),
    "ticket": ((TicketSet, Winner, str), "a ticket set, a winner or the name of a network", _MADE.format("select")),
    "target": (
        (TicketSet, str),
        "a ticket set or the name of a network",
        "of a winner give its set, winner.tickets, and its round as `rounds`",
    ),
    "ledger": (
        (Ledger, NoneType),
        "a ledger",
        "give dpltm.Ledger(), or dpltm.tickets.ledger_file.open_ledger(path) for one on disk",
    ),
    "dense": ((bool,), "True or False", "say whether the whole network is meant"),
}
"""Arguments of the public face: their types, what messages call those, and where such a value comes from."""


def check_types(**given: object) -> None:
    """Raises InputError for an argument of another type than its name calls for, before anything is made of it.

    Or in one of several processes that ``torchrun`` started: each would pay for work of its own.

    Args:
        **given: arguments of the public face, by name.
    """
    check_alone("a stage of dpltm in Python")
    for name, value in given.items():
        types, expected, fix = _TYPES[name]
        if not isinstance(value, types):
            raise InputError(name, value, expected, fix)


def records_and_options(x: Records, y: Labels, given: Mapping[str, Any], *classes: type) -> tuple[Dataset, Arguments]:
    """The records and the options that a caller means by keyword arguments.

    Args:
        x, y: as :func:`as_dataset` takes them.
        given: keyword arguments: facts about the records, and fields of ``classes``. What is made of records, and named by
            an option, has the name of arrays that it was made of.
        classes: of options.

    Returns:
        The dataset, and options by class: ``arguments.take(TrainOptions)``.

    Raises:
        InputError: an option that none of them has, with the nearest that there is; a value of the wrong type.
    """
    named = any(item.name == "name" for cls in classes for item in fields(cls))
    facts = {name: given[name] for name in FACTS if name in given}
    rest = {name: value for name, value in given.items() if name not in facts or (named and name == "name")}
    options = Arguments(rest, classes, FACTS)
    if facts.get("name") is not None:
        check_name(facts["name"])
    if named and isinstance(x, Dataset):
        facts.pop("name", None)
    dataset = as_dataset(x, y, facts)
    if TrainOptions not in classes and (dataset.units is not None or (dataset.unit == "user" and not dataset.rated)):
        raise InputError(
            "`units`: only a training protects persons, and this knows single records alone; leave it out"
        )
    return dataset, options


def as_dataset(x: Records, y: Labels, facts: Mapping[str, Any]) -> Dataset:
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
    if gives_items(x):
        x, y = read_items(x, y)
    if y is None:
        raise InputError("`y` is missing: the labels that go with `x`")
    known = {name: value for name, value in facts.items() if value is not None}
    with in_python():
        return from_arrays(array_of(x, "x"), array_of(y, "y"), **known)


def array_of(values: object, name: str) -> np.ndarray:
    """An argument that is one array, and no dataset.

    Raises:
        InputError: it is none.
    """
    if isinstance(values, Dataset):
        raise InputError(f"`{name}`: a dataset, and not an array; give one of its arrays, such as dataset.test.{name}")
    return as_array(values, name)


def ledger_of(ticket: Winner | TicketSet | str, named: Ledger | None) -> Ledger:
    """The ledger that was named; else the one that goes with a ticket, or a new one in memory where there is none."""
    tickets = ticket.tickets if isinstance(ticket, Winner) else ticket
    known = tickets.ledger if isinstance(tickets, TicketSet) and named is None else named
    return Ledger() if known is None else known


def held_out(run: Run, x: Records, y: Labels, facts: Mapping[str, Any]) -> Dataset:
    """A dataset whose test split these records are, and whose training split is one record that is nobody's.

    Args:
        run: that says the bounds of the records, unless they are declared, and the classes.
        x, y: the records; or a dataset with a test split.
        facts: ``bounds`` and ``name`` of arrays.

    Raises:
        InputError: see :func:`as_dataset`.
    """
    if isinstance(x, Dataset):
        return as_dataset(x, y, facts)
    bounds = run.bounds if run.feature_map is None else run.feature_map.bounds
    known = {name: value for name, value in facts.items() if value is not None}
    known = {"bounds": bounds, "name": "the records", **known, "classes": run.spec.classes, "for_training": False}
    with in_python(classes=""):
        whole = as_dataset(x, y, known)
    nobody = Split(np.zeros_like(whole.train.x[:1]), np.zeros_like(whole.train.y[:1]))
    made_up = Rows(nobody.x, nobody.y, kin="made up for an evaluation")
    return replace(whole, train=nobody, test=whole.train, rows=made_up, test_rows=whole.rows)
