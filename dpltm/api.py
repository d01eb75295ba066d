"""The Python API: the verbs as functions of arrays and keyword arguments (``dpltm.generate`` and so on).

Each takes its records ``x``, ``(n, ...)``, and labels ``y``, ``(n,)``, or a ``Dataset`` alone, and its options by name: the
fields of the verb's options, and the public facts about arrays that ``dpltm.records.from_arrays`` takes. All pay by the
ledger that is named, or by that of the process (``dpltm.privacy.ledger.of_process``). What they refuse, by a ``DpltmError``,
costs nothing.

Examples:
    The examples below share these records, and what those before them return.

    >>> import dpltm, numpy as np
    >>> draw = np.random.default_rng(5)
    >>> x_public, x, x_test = (draw.integers(0, 256, (count, 6), dtype=np.uint8) for count in (200, 200, 60))
    >>> y_public, y, y_test = (np.arange(count) % 3 for count in (200, 200, 60))
    >>> ledger = dpltm.Ledger()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, TypeVar

import numpy as np
from torch import Tensor, nn

from dpltm.errors import InputError, naming, whole_number
from dpltm.features.inputs import Services
from dpltm.networks import ModelSpec, Network
from dpltm.networks.own import SETTINGS, OwnModel, check_no_code, own_model
from dpltm.options import Options, arguments
from dpltm.options.generate import GenerateOptions
from dpltm.options.select import SelectOptions
from dpltm.options.tickets import TransferOptions
from dpltm.options.train import TrainOptions
from dpltm.options.tune import TuneOptions
from dpltm.privacy.ledger import Ledger, of_process
from dpltm.progress import Progress, watched_by
from dpltm.records.dataset import Dataset
from dpltm.records.input_parts import facts_of
from dpltm.records.load import as_array, check_no_loader, from_arrays, records_of
from dpltm.records.settle import VALUES, checked_features
from dpltm.records.tables import is_frame
from dpltm.training.artifacts import DEFAULT_NETWORK, Run, TicketSet, Winner, set_of, starting_point
from dpltm.training.launcher import check_alone
from dpltm.verbs import evaluate as evaluate_verb
from dpltm.verbs import generate as generate_verb
from dpltm.verbs import select as select_verb
from dpltm.verbs import train as train_verb
from dpltm.verbs import transfer as transfer_verb
from dpltm.verbs import tune as tune_verb
from dpltm.verbs.private_loop import PrivateLoop
from dpltm.verbs.tune import SearchResult

__all__ = [
    "Ledger", "PrivateLoop",
    "evaluate", "generate", "predict", "select", "train", "transfer", "tune",
]  # fmt: skip

FACTS = (
    "test", "bounds", "classes", "target_bounds", "records", "words", "units", "unit", "schema", "rows_coincide", "name",
)  # fmt: skip
"""Public facts about records that come as arrays."""

Records = np.ndarray | Tensor | Dataset | Mapping[str, Any] | Sequence[Any]
"""Features ``(n, ...)`` as an array, a tensor, or a data frame of pandas or polars, whose columns go by name;
for a network of the user's own also a mapping of arrays; or a dataset of this package, which has its labels."""

Labels = np.ndarray | Tensor | None
"""Labels ``(n,)``, from 0 to the number of classes - 1, or as a schema spells them; None where the records hold them. For a
network of the user's own with a ``loss`` also numbers of any shape, ``(n, ...)``."""

T = TypeVar("T", bound=Options)

_NOUNS: dict[type, str] = {
    Run: "a run, as dpltm.train or dpltm.tickets.load gives it", TicketSet: "a ticket set (of a winner: its .tickets)",
    Winner: "a winner of dpltm.select", OwnModel: "a network of your own (a module, its class or a factory)",
    str: "the name of a network", Ledger: "a dpltm.Ledger (of a file: dpltm.tickets.open_ledger)", NoneType: "None",
}  # fmt: skip

_TYPES: dict[str, tuple[type, ...]] = {
    "run": (Run,), "tickets": (TicketSet, Winner), "ticket": (TicketSet, Winner, OwnModel, str),
    "target": (TicketSet, OwnModel, str), "model": (OwnModel, NoneType), "ledger": (Ledger, NoneType),
}  # fmt: skip
"""Types of arguments of the public face, and what messages call those."""


def called(progress: Progress | None = None, **arguments: object) -> Services:
    """Begin a call: check the types of arguments by their names; InputError too in one of several ``torchrun`` processes."""
    check_alone("a stage of dpltm in Python")
    for name, value in arguments.items():
        if not isinstance(value, _TYPES[name]):
            expected = " or ".join(_NOUNS[kind] for kind in _TYPES[name])
            raise InputError(name, value, expected)
    return Services(watched_by(progress))


def records_and_options(
    x: Records, y: Labels, keywords: Mapping[str, Any], cls: type[T], taker: object = None
) -> tuple[Dataset, T]:
    """Return the records and the options that a caller means by keywords: facts about the records, and fields of ``cls``.

    ``taker`` is what takes them: a set, a winner, a run, or a network of the user's own; None for anything else.
    """
    facts = {name: keywords[name] for name in FACTS if name in keywords}
    both = {"name"} & cls.__dataclass_fields__.keys()
    options = arguments(cls, {k: keywords[k] for k in keywords if k not in facts or k in both}, FACTS)
    if isinstance(x, Dataset):
        facts = {name: value for name, value in facts.items() if name not in both}
    return as_dataset(x, y, facts, taker), options


def own_network(model: Any, options: dict[str, Any]) -> Any:
    """Return the network of the user's own that an argument is: a module, or anything that ``options`` say of one by name,
    which are taken out. None, names, and what has a network already, are returned as they are.
    """
    if isinstance(model, (TicketSet, Winner, Run, OwnModel)):
        return model
    settings = {name: value for name in SETTINGS if (value := options.pop(name, None)) is not None}
    if isinstance(model, str):
        check_no_code(model)
    if not settings and (model is None or isinstance(model, str)):
        return model
    return own_model(DEFAULT_NETWORK if model is None else model, **settings)


def as_dataset(x: Records, y: Labels, facts: Mapping[str, Any], taker: object = None) -> Dataset:
    """Return the dataset that a caller means; InputError for labels or facts beside a dataset."""
    declared = {name: value for name, value in facts.items() if value is not None}
    if isinstance(x, Dataset):
        for name in [*([] if y is None else ["y"]), *declared]:
            raise InputError(f"`{name}`: {x.name} is a dataset, which says so itself; leave `{name}` out")
        return x
    check_no_loader(x)
    with naming():
        spec: Network | None = None
        if isinstance(taker, (TicketSet, Winner, Run)):
            spec = taker.spec if isinstance(taker, Run) else set_of(taker).body.spec
            if len(spec.tables) == 1:
                declared = {"words": spec.tables[0], **declared}
            elif isinstance(x, Mapping):
                declared = {**facts_of(spec.parts, x), **declared}
        if y is not None and not {"classes", "schema", "target_bounds"} & declared.keys():
            are_values = spec is not None and spec.labels is not None
            if isinstance(taker, OwnModel):  # by their type and shape, and by what takes them
                labels = as_array(y, "y")
                quantities = labels.dtype.kind == "f" and taker.loss is not None and not isinstance(taker.code, str)
                are_values = quantities or labels.ndim > 1
            declared |= {"classes": VALUES} if are_values else {}
        return from_arrays(x, y, **declared)


def held_out(run: Run, x: Records, y: Labels, name: str = "the records") -> Dataset:
    """Return a dataset whose test split these records are, and whose training split is one record that is nobody's."""
    if isinstance(x, Dataset):
        return as_dataset(x, y, {})
    declared: dict[str, Any] = {"name": name, "for_training": False}
    if run.schema is not None and is_frame(x):
        declared |= {"schema": run.schema}
    else:
        bounds = run.bounds if run.feature_map is None else run.feature_map.bounds
        of_words = run.spec.tables or (run.spec.parts and all(part.words for part in run.spec.parts))
        declared |= {} if of_words else {"bounds": bounds}
        declared |= {"classes": run.spec.classes} if run.target is None else {"target_bounds": run.target}
    with naming():
        return evaluate_verb.as_held_out(as_dataset(x, y, declared, run))


def generate(
    x: Records, y: Labels = None, *, ledger: Ledger | None = None, progress: Progress | None = None, **options: Any
) -> TicketSet:
    """Phase 1: lottery tickets by iterative pruning.

    Args:
        x, y: the records that tickets are made from; of data-free tickets, what decides the network's shape.
        ledger: that pays, and holds what was declared; by default that of this process.
        progress: told how far it is; None for silence.
        options: ``provenance`` (``public``, ``private``, ``data-free`` or ``dp``), ``model``, ``rounds`` and all other
            fields of ``GenerateOptions``. ``model`` may be a PyTorch module, its class or a factory, with settings of
            ``dpltm.networks.own.OwnModel``.

    Returns:
        The set, with ``.privacy`` and ``.lineage``. Of provenance ``private`` it holds accuracies on private records: look
        at them, and the records have been released (``reveal`` enters that).

    Examples:
        >>> network = {"model": "mlp:8", "rounds": 2, "iterations": 9, "batch_size": 20}
        >>> tickets = dpltm.generate(x_public, y_public, provenance="public", ledger=ledger, **network)
        >>> [ticket.mask.live for ticket in tickets.body.tickets]
        [83, 64, 50]
    """
    services = called(progress, ledger=ledger)
    model = own_network(options.pop("model", None), options)
    own = model if isinstance(model, OwnModel) else None
    dataset, settings = records_and_options(x, y, options | ({} if own else {"model": model}), GenerateOptions, own)
    with naming():
        ledger = ledger or of_process(dataset.noun)
        return generate_verb.generate(generate_verb.plan(dataset, settings, ledger, services, model=own))


def select(
    tickets: TicketSet | Winner,
    x: Records | None = None,
    y: Labels = None,
    *,
    ledger: Ledger | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Winner:
    """Phase 2: one draw of the winning ticket on private records, under differential privacy.

    Args:
        tickets: with predictors, which are scored; or the winner of a draw before, which is remembered as such.
        x, y: the private records; None with ``rule="smallest-within"``, which reads public accuracies.
        ledger, progress: as in :func:`generate`.
        options: ``eps1`` and all other fields of ``SelectOptions``.

    Returns:
        The winner, with its ``.ticket`` and ``.privacy``; ``.tickets`` is the set, which the draw has marked.

    Raises:
        InputError: no records to draw on, and whatever else is bad input.

    Guarantees:
        The draw is entered before it is made, and nothing but the winner depends on the records.

    Examples:
        >>> winner = dpltm.select(tickets, x, y, eps1=0.5, score="additive", ledger=ledger)
        >>> winner.round in (1, 2), round(winner.privacy.certified.epsilon, 2)
        (True, 0.5)
    """
    services = called(progress, tickets=tickets, ledger=ledger)
    body = set_of(tickets)
    if x is None:
        settings = arguments(SelectOptions, options)
        if settings.rule == "mechanism":
            raise InputError("`x` is missing: the private records to draw on")
        with naming():
            return select_verb.select_public(body, settings)
    dataset, settings = records_and_options(x, y, options, SelectOptions, body)
    select_verb.check_reads_none(settings, "x", True)
    with naming(model="tickets"):
        ledger = ledger or of_process(dataset.noun)
        return select_verb.select(select_verb.plan(body, dataset, settings, ledger, services))


def train(
    ticket: Winner | TicketSet | OwnModel | nn.Module | Callable[[], nn.Module] | str,
    x: Records,
    y: Labels = None,
    *,
    round: int | None = None,
    dense: bool = False,
    ledger: Ledger | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Run:
    """Phase 3: trains a ticket under differential privacy (DP-SGD on its live coordinates).

    Args:
        ticket: the winner that ``select`` returned; a ticket set, with ``round`` or ``dense``; or the name of a network,
            such as ``mlp:300,100``, which is trained whole; or a network of your own, as ``model`` of :func:`generate`.
        x, y: the private records.
        round: the ticket to take of a set; of a winner, another than the one that won.
        dense: take the whole network of a set, with its starting weights.
        ledger, progress: as in :func:`generate`.
        options: fields of ``TrainOptions``, such as ``epsilon``, ``epochs`` or ``lr``.

    Returns:
        The run: ``.model``, ``.mask``, ``.privacy``, ``.metrics``, ``.ledger``.

    Guarantees:
        Every release is entered before the noisy value that it pays for is drawn. With ``epsilon``, all that
        counts together stays within it.

    Examples:
        >>> run = dpltm.train(winner, x, y, epsilon=1.0, delta=1e-4, steps=5, ledger=ledger)
        >>> round(run.privacy.certified.epsilon, 2), [entry.kind for entry in run.lineage.entries]
        (1.0, ['public', 'release', 'release'])
    """
    begun = own_network(ticket, options)
    services = called(progress, ticket=begun, ledger=ledger)
    number = None if round is None else whole_number("round", round)
    dataset, settings = records_and_options(x, y, options, TrainOptions, begun)
    with naming(model="ticket"):
        ledger = ledger or of_process(dataset.noun)
        start, dataset = starting_point(begun, dataset, settings, round=number, dense=dense)
        return train_verb.train_start(start, dataset, settings, ledger, services)


def tune(
    target: TicketSet | OwnModel | nn.Module | Callable[[], nn.Module] | str,
    x: Records,
    y: Labels = None,
    *,
    ledger: Ledger | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> SearchResult:
    """Searches the settings of a private training on public records, under the same budget and noise, at no cost.

    Args:
        target: the ticket set, or the network, by its name or a module of your own, whose settings are searched.
        x, y: public records, which the ledger declares so.
        ledger, progress: as in :func:`generate`.
        options: fields of ``TuneOptions``; ``for_records`` and ``epsilon`` are needed.

    Returns:
        All trials, best first. ``train(target, ..., **result.settings)`` trains with the best.

    Examples:
        >>> options = {"for_records": 200, "epsilon": 1.0, "delta": 1e-4, "epochs": 1, "batch_size": 50}
        >>> search = dpltm.tune("mlp:8", x_public, y_public, lr=[0.5, 1.0], ledger=dpltm.Ledger(), **options)
        >>> len(search.trials), search.settings["lr"] in (0.5, 1.0)
        (2, True)
    """
    searched = own_network(target, options)
    services = called(progress, target=searched, ledger=ledger)
    dataset, settings = records_and_options(x, y, options, TuneOptions, searched)
    with naming(model="target"):
        return tune_verb.tune(searched, dataset, settings, ledger or of_process(dataset.noun), services)


def transfer(
    tickets: TicketSet | Winner, x: Records, y: Labels = None, *, round: int | None = None, **options: Any
) -> TicketSet:
    """Tickets for other records: another input width, image size, number of channels or of classes.

    Args:
        tickets: a set; or a winner, for the ticket that was drawn and all that its draws entered.
        x, y: the other records, of which only the shape is looked at.
        round: the ticket that is taken; None for all of a set.
        options: fields of ``TransferOptions``; of a network of your own also ``model``, the same with another last layer.

    Returns:
        The new set, which depends on whatever the old one depends on.

    Examples:
        >>> dpltm.transfer(tickets, np.zeros((3, 9), dtype=np.uint8), np.arange(3)).body.spec.features
        9
    """
    model = own_network(options.pop("model", None), options)
    called(tickets=tickets, model=model)
    number = None if round is None else whole_number("round", round)
    dataset, settings = records_and_options(x, y, options, TransferOptions, model or tickets)
    if isinstance(tickets, Winner) and number is None:
        number = tickets.round
    source = set_of(tickets)
    of_kind = isinstance(source.body.spec, ModelSpec)
    with naming(**({"model": "tickets"} if of_kind and model is None else {})):
        return transfer_verb.transfer(source, dataset, settings, round=number, model=model)[0]


def evaluate(
    run: Run,
    x: Records,
    y: Labels = None,
    *,
    by: str | None = None,
    ledger: Ledger | None = None,
    progress: Progress | None = None,
) -> evaluate_verb.Evaluation:
    """Accuracy of a run's network on records that were held out, at no cost.

    Args:
        run: with its network.
        x, y: records that no release was made from; of a dataset its test split is taken. A data frame is read by the
            schema, or the names of columns, of the training.
        by: a column of a table, such as sex or age, by which skill is told of subgroups as well.
        ledger: of the people whom the records may be of; by default the one that paid for the run, or that of this process.
        progress: as in :func:`generate`.

    Examples:
        >>> evaluation = dpltm.evaluate(run, x_test, y_test)
        >>> evaluation.records, 0 <= evaluation.accuracy <= 1
        (60, True)
    """
    services = called(progress, run=run, ledger=ledger)
    dataset = held_out(run, x, y)
    with naming():
        return evaluate_verb.evaluate(run, dataset, ledger, services, by)


def predict(run: Run, x: Records, *, progress: Progress | None = None) -> evaluate_verb.Predictions:
    """Class probabilities that a run's network gives to records without labels, at no cost for records that it never saw.

    Args:
        run: with its network.
        x: records as in training, or their values in a row; a data frame or a mapping goes by name.
        progress: as in :func:`generate`.

    Returns:
        ``outputs``, ``probabilities``, ``labels``, and how many values ``saturated``: all as sensitive as ``x``.

    Examples:
        >>> dpltm.predict(run, x_test).probabilities.shape
        (60, 3)
    """
    services = called(progress, run=run)
    with naming():
        records = checked_features(records_of(x, run.schema, run.columns, run.spec.parts))
        return evaluate_verb.predict(run, records, progress=services.progress)
