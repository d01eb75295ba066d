"""The public face: the stages as functions of arrays and keyword arguments (``dpltm.generate`` and so on).

Each takes its records as arrays or as a ``Dataset``, and its options by name: the fields of the stage's options, and the
public facts about arrays that ``dpltm.records.from_arrays`` takes. What a stage does with them, ``dpltm.stages`` says.

Examples:
    The examples below share these records, and what those before them return.

    >>> import dpltm, numpy as np
    >>> draw = np.random.default_rng(5)
    >>> x_public, x, x_test = (draw.integers(0, 256, (count, 6), dtype=np.uint8) for count in (200, 200, 60))
    >>> y_public, y, y_test = (np.arange(count) % 3 for count in (200, 200, 60))
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from dpltm.calls import Labels, Records, array_of, check_types, held_out, ledger_of, records_and_options
from dpltm.errors import InputError, in_python, whole_number
from dpltm.options.arguments import Arguments
from dpltm.options.features import FeatureOptions, MapOptions
from dpltm.options.generate import GenerateOptions
from dpltm.options.select import SelectOptions
from dpltm.options.train import TrainOptions
from dpltm.options.transfer import TransferOptions
from dpltm.options.tune import PrivateTuneOptions, TuneOptions
from dpltm.privacy.old_ledger import Ledger
from dpltm.pruning.ticket_set import TicketSet, Winner
from dpltm.records import Dataset
from dpltm.records.checks import checked_features
from dpltm.records.raw import RawSplit
from dpltm.stages import evaluate as evaluate_stage
from dpltm.stages import generate as generate_stage
from dpltm.stages import predict as predict_stage
from dpltm.stages import search as search_stage
from dpltm.stages import select as select_stage
from dpltm.stages import train as train_stage
from dpltm.stages import transfer as transfer_stage
from dpltm.stages import tune as tune_stage
from dpltm.stages.front import FeatureSources, take_over_map, with_feature_map
from dpltm.stages.generate_settings import check_options as check_generation
from dpltm.stages.progress import Progress, watched_by
from dpltm.stages.services import Services
from dpltm.stages.starting_point import starting_point
from dpltm.stages.tune import SearchResult
from dpltm.stages.tune_settings import check_private, widest_front
from dpltm.training.private_loop import PrivateLoop
from dpltm.training.run import Run

__all__ = ["Ledger", "PrivateLoop", "evaluate", "generate", "predict", "search", "select", "train", "transfer", "tune"]


def generate(
    x: Records, y: Labels = None, *, ledger: Ledger | None = None, progress: Progress | None = None, **options: Any
) -> TicketSet:
    """Phase 1: lottery tickets by iterative pruning.

    Args:
        x, y: the records that tickets are made from; of data-free tickets, what decides the network's shape.
        ledger: where it is entered what they depend on, and what that cost; None for one in memory, which goes along with
            the tickets.
        progress: told how far it is; None for silence.
        options: ``provenance`` (``public``, ``private``, ``data-free`` or ``dp``), ``model``, ``rounds`` and all other
            fields of ``GenerateOptions`` and ``FeatureOptions``; of arrays also ``test`` (features and labels of records
            declared separate), ``bounds`` (public range of every feature), ``classes`` and ``records`` (public numbers),
            and ``name``, what messages and the ledger call them, which is then the name of the set as well.

    Returns:
        The set, with ``.privacy`` and ``.ledger``. Of provenance ``private`` it holds accuracies on private records: look at
        them, and the records have been released (``reveal`` enters that).

    Raises:
        DpltmError: bad input, or too small a budget, before any training.

    Examples:
        >>> network = {"model": "mlp:8", "rounds": 2, "iterations": 9, "batch_size": 20}
        >>> tickets = dpltm.generate(x_public, y_public, provenance="public", **network)
        >>> [ticket.mask.live for ticket in tickets.body.tickets]
        [83, 64, 50]
    """
    check_types(ledger=ledger)
    services = Services(watched_by(progress))
    dataset, arguments = records_and_options(x, y, options, GenerateOptions, FeatureOptions)
    settings = arguments.take(GenerateOptions)
    with in_python():
        check_generation(settings)
        entered = ledger_of(settings.model, ledger)
        dataset = _in_front(settings.model, dataset, arguments.take(FeatureOptions), entered, services.progress)
        return generate_stage.generate(generate_stage.plan(dataset, settings, entered, services), services)


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
        x, y: the private records, ``(n, ...)`` and ``(n,)``; None with ``rule="smallest-within"``, which reads public
            accuracies.
        ledger: where the draw is entered; None for that of the tickets.
        progress: told how far it is; None for silence.
        options: ``eps1`` and all other fields of ``SelectOptions``; of arrays also public facts, as in :func:`generate`.

    Returns:
        The winner, with its ``.ticket`` and ``.privacy``; ``.tickets`` is the set, with the ledger.

    Raises:
        DpltmError: bad input, or too small a budget, before any of it is spent.

    Guarantees:
        The draw is entered before it is made, and nothing but the winner depends on the records.

    Examples:
        >>> winner = dpltm.select(tickets, x, y, eps1=0.5, score="additive")
        >>> winner.round in (1, 2), round(winner.privacy.certified.epsilon, 2)
        (True, 0.5)
    """
    check_types(tickets=tickets, ledger=ledger)
    services = Services(watched_by(progress))
    earlier = (*tickets.earlier, (tickets.round, tickets.events)) if isinstance(tickets, Winner) else ()
    body = tickets.tickets if isinstance(tickets, Winner) else tickets
    if body is None:
        raise InputError("`tickets`: a winner without its set; give the set")
    if x is None:
        settings = Arguments(options, (SelectOptions,)).take(SelectOptions)
        if settings.rule == "mechanism":
            raise InputError("`x` is missing: the private records to draw on")
        with in_python():
            return select_stage.select_public(body, settings, earlier)
    dataset, arguments = records_and_options(x, y, options, SelectOptions)
    settings = arguments.take(SelectOptions)
    if settings.rule != "mechanism":
        raise InputError(f"`x`: {settings.rule} reads the public accuracies in the set and no records; leave it out")
    with in_python(model="tickets", public="tickets"):
        plan = select_stage.plan(body, dataset, settings, ledger_of(body, ledger), services, earlier)
        return select_stage.select(plan, services)


def train(
    ticket: Winner | TicketSet | str,
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
            such as ``mlp:300,100``, which is trained whole.
        x, y: the private records, ``(n, ...)``, and their labels ``(n,)``; or a dataset alone.
        round: the ticket to take of a set; of a winner, another than the one that won.
        dense: take the whole network of a set, with its starting weights.
        ledger: that everything is entered in; that of the ticket set by default, or a new one in memory.
        progress: told how far it is; None for silence.
        options: fields of ``TrainOptions``, such as ``epsilon``, ``epochs`` or ``lr``; of ``FeatureOptions``, where a
            network is named; and facts about arrays: ``test``, ``bounds``, ``classes``, ``records``, ``name``; and
            ``units``, whose each record is, ``(n,)``, where all records of a person are protected together.

    Returns:
        The run: ``.model``, ``.mask``, ``.privacy``, ``.metrics``, ``.ledger``.

    Raises:
        DpltmError: whatever ``dpltm train`` refuses, before anything is spent.

    Guarantees:
        Every event is entered before the noisy value that it pays for is drawn. With ``epsilon``, all that the ledger holds
        for these records stays within it.

    Examples:
        >>> run = dpltm.train(winner, x, y, epsilon=1.0, delta=1e-4, steps=5)
        >>> round(run.privacy.certified.epsilon, 2), [type(event).__name__ for event in run.ledger.events]
        (1.0, ['ProvenanceEvent', 'SelectionEvent', 'TrainingEvent'])
    """
    check_types(ticket=ticket, dense=dense, ledger=ledger)
    number = None if round is None else whole_number("round", round)
    services = Services(watched_by(progress))
    dataset, given = records_and_options(x, y, options, TrainOptions, FeatureOptions)
    settings, entered = given.take(TrainOptions), ledger_of(ticket, ledger)
    in_front = "public" if isinstance(ticket, str) else "ticket"  # where the map in front of the network comes from
    with in_python(model="ticket", public=in_front):
        dataset = _in_front(ticket, dataset, given.take(FeatureOptions), entered, services.progress)
        start = starting_point(
            ticket, dataset, round=number, dense=dense, seed=settings.seed, registry=entered.registry
        )
        plan = train_stage.plan(start, dataset, settings, entered, services, names_ledger=ledger is not None)
        return train_stage.train(plan, services)


def tune(
    target: TicketSet | str,
    x: Records,
    y: Labels = None,
    *,
    ledger: Ledger | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> SearchResult:
    """Searches the settings of a private training on public records, under the same budget and noise, at no cost.

    Args:
        target: the ticket set, or the name of a network, whose settings are searched.
        x, y: public records, and their labels; or a dataset alone. The search declares them public.
        ledger: that knows which records are private; that of the ticket set by default. Nothing is entered.
        progress: told how far it is; None for silence.
        options: fields of ``TuneOptions``; ``for_records`` and ``epsilon`` are needed, and lists of settings may be lists of
            numbers. ``features`` and ``public``, and public facts about arrays, as in :func:`train`.

    Returns:
        All trials, best first. ``train(target, ..., **result.settings)`` trains with the best.

    Raises:
        DpltmError: whatever ``dpltm tune`` refuses, before the first training.

    Examples:
        >>> options = {"for_records": 200, "epsilon": 1.0, "delta": 1e-4, "epochs": 1, "batch_size": 50}
        >>> search = dpltm.tune("mlp:8", x_public, y_public, test=(x_test, y_test), lr=[0.5, 1.0], **options)
        >>> len(search.trials), search.settings["lr"] in (0.5, 1.0)
        (2, True)
    """
    check_types(target=target, ledger=ledger)
    services = Services(watched_by(progress))
    dataset, given = records_and_options(x, y, options, TuneOptions, MapOptions)
    known = ledger_of(target, ledger)
    with in_python(model="target"):
        options_of_search = given.take(TuneOptions)
        front = widest_front(given.take(MapOptions), options_of_search)
        dataset = _in_front(target, dataset, front, known, services.progress)
        return tune_stage.tune(tune_stage.plan(target, dataset, options_of_search, known), services)


def search(
    target: Winner | TicketSet | str,
    x: Records,
    y: Labels = None,
    *,
    ledger: Ledger | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Run:
    """Searches the settings of a private training on the private records: the best of a secret number of tries.

    Args:
        target: the ticket set, or the name of a network, whose settings are searched.
        x, y: the private records, and their labels; or a dataset alone.
        ledger: that the search is entered in; that of the ticket set by default, or a new one in memory.
        progress: told how far it is; None for silence.
        options: fields of ``PrivateTuneOptions``: ``epsilon`` (which pays for all tries together), ``tries``, and the lists
            of settings, as in :func:`tune`. ``features`` and ``public``, and public facts about arrays, as in :func:`train`.

    Returns:
        The run of the best try.

    Raises:
        DpltmError: whatever ``dpltm tune --private`` refuses, before anything is spent.

    Guarantees:
        The event is entered before the first draw. Nothing but the run depends on the records; the time that the search
        takes tells of the number of tries, which has to stay secret.

    Examples:
        >>> some = {"epsilon": 2.0, "delta": 1e-4, "epochs": 1, "batch_size": 50, "tries": 2}
        >>> run = dpltm.search("mlp:8", x, y, bounds=(0, 255), classes=3, lr=[0.5, 1.0], **some)
        >>> run.privacy.certified.epsilon <= 2, [type(event).__name__ for event in run.ledger.events]
        (True, ['SearchEvent'])
    """
    check_types(target=target, ledger=ledger)
    services = Services(watched_by(progress))
    dataset, given = records_and_options(x, y, options, PrivateTuneOptions, MapOptions)
    settings, entered = given.take(PrivateTuneOptions), ledger_of(target, ledger)
    with in_python(model="target"):
        check_private(settings)
        front = widest_front(given.take(MapOptions), settings)
        dataset = _in_front(target, dataset, front, entered, services.progress)
        plan = search_stage.plan(target, dataset, settings, entered, services, names_ledger=ledger is not None)
        return search_stage.search(plan, services)


def transfer(
    tickets: TicketSet | Winner, x: Records, y: Labels = None, *, round: int | None = None, **options: Any
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

    Examples:
        >>> dpltm.transfer(tickets, np.zeros((3, 9), dtype=np.uint8), np.arange(3)).body.spec.features
        9
    """
    check_types(tickets=tickets)
    number = None if round is None else whole_number("round", round)
    dataset, arguments = records_and_options(x, y, options, TransferOptions)
    winner = tickets if isinstance(tickets, Winner) else None
    if winner is not None and number is None:
        number = winner.round
    source = tickets.tickets if isinstance(tickets, Winner) else tickets
    if source is None:
        raise InputError("`tickets`: a winner without its set; pass the set, and `round`")
    taken = arguments.take(TransferOptions)
    with in_python(model="tickets"):
        plan = transfer_stage.plan_transfer(source, dataset, taken, round=number, winner=winner)
        return transfer_stage.transfer(plan).tickets


def evaluate(
    run: Run,
    x: Records,
    y: Labels = None,
    *,
    bounds: tuple[float, float] | None = None,
    name: str | None = None,
    ledger: Ledger | None = None,
    progress: Progress | None = None,
) -> evaluate_stage.Evaluation:
    """Accuracy of a run's network on records that were held out, at no cost.

    Args:
        run: with its network.
        x, y: ``(n, ...)`` and ``(n,)``, records that no release was made from; or a dataset, whose test split is taken.
        bounds: of arrays; by default those of the run.
        name: of arrays, what messages call them.
        ledger: that the run was entered in; by default the one that it has.
        progress: told how far it is; None for silence.

    Raises:
        InputError: records that the network does not take, or that a release was made from: accuracy there is private.

    Examples:
        >>> evaluation = dpltm.evaluate(run, x_test, y_test)
        >>> evaluation.records, 0 <= evaluation.accuracy <= 1
        (60, True)
    """
    check_types(run=run, ledger=ledger)
    services, dataset = Services(watched_by(progress)), held_out(run, x, y, {"bounds": bounds, "name": name})
    with in_python(test="x"):
        return evaluate_stage.evaluate(run, dataset, ledger, services)


def predict(run: Run, x: np.ndarray | Tensor, *, progress: Progress | None = None) -> predict_stage.Predictions:
    """Class probabilities that a run's network gives to records without labels, at no cost for records that it never saw.

    Args:
        run: with its network.
        x: records as in training, ``(n, ...)``, or their values in a row.
        progress: told how far it is; None for silence.

    Returns:
        ``probabilities`` ``(n, classes)``, ``labels`` ``(n,)``, and how many values ``saturated``; as sensitive as ``x``.

    Raises:
        InputError: records of another shape, or a network that training drove out of the numbers.

    Examples:
        >>> dpltm.predict(run, x_test).probabilities.shape
        (60, 3)
    """
    check_types(run=run)
    with in_python():
        records = checked_features(RawSplit(array_of(x, "x"), None, "records", "x"))
        return predict_stage.predict(run, records, progress=watched_by(progress))


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
