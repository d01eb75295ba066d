"""A draw of an estimator's ticket, made once it is known that nothing about the training after it will be refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpltm import face
from dpltm.calls import records_and_options
from dpltm.errors import in_python
from dpltm.estimators.account import Book
from dpltm.options.arguments import Arguments
from dpltm.options.features import FeatureOptions
from dpltm.options.select import SelectOptions
from dpltm.options.train import TrainOptions
from dpltm.privacy.events import Event
from dpltm.privacy.old_ledger import Ledger
from dpltm.pruning.ticket_set import TicketSet, Winner
from dpltm.records import Dataset
from dpltm.stages import select as select_stage
from dpltm.stages import train as train_stage
from dpltm.stages.front import take_over_map
from dpltm.stages.services import Services
from dpltm.stages.starting_point import starting_point


def draw_ticket(
    tickets: TicketSet | Winner,
    dataset: Dataset,
    book: Book,
    ledger: Ledger,
    draw: Mapping[str, Any],
    training: Mapping[str, Any],
) -> Winner:
    """The winner of a draw on the private records, which is paid for.

    Args:
        tickets: a set with predictors, or the winner of a draw before.
        dataset: the private records.
        book: whose budgets hold.
        ledger: of the fit, that the draw is entered in.
        draw: options of ``dpltm.select``.
        training: options of ``dpltm.train`` for the training that follows.

    Raises:
        DpltmError: what the draw, or the training after it, would be refused for; nothing was entered.
    """
    book.check(_planned(tickets, dataset, ledger, draw, training), dataset, training["adjacency"])
    return face.select(tickets, dataset, ledger=ledger, **draw)


def _planned(
    tickets: TicketSet | Winner,
    dataset: Dataset,
    ledger: Ledger,
    draw: Mapping[str, Any],
    training: Mapping[str, Any],
) -> tuple[Event, ...]:
    """What the draw and the training would enter, had the sparsest ticket won: that is public, whoever wins.

    Arguments as :func:`draw_ticket`.
    """
    earlier = (*tickets.earlier, (tickets.round, tickets.events)) if isinstance(tickets, Winner) else ()
    body = tickets.tickets if isinstance(tickets, Winner) else tickets
    if body is None:
        return ()  # the draw says so
    drawn = Arguments(dict(draw), (SelectOptions,)).take(SelectOptions)
    with in_python(model="tickets", public="tickets"):
        plan = select_stage.plan(body, dataset, drawn, ledger, Services(), earlier)
    rehearsal = Ledger((*ledger.events, *plan.planned), registry=ledger.registry)
    events, last = plan.planned[len(plan.origins) :], plan.candidates[-1].round
    won = Winner(last, events, earlier, replace(body, ledger=rehearsal), select_stage.planned_report(plan), ())
    dataset, given = records_and_options(dataset, None, training, TrainOptions, FeatureOptions)
    settings = given.take(TrainOptions)
    with in_python(model="ticket", public="ticket"):
        behind = take_over_map(dataset, None, given.take(FeatureOptions), body.label)
        start = starting_point(won, behind, seed=settings.seed, registry=rehearsal.registry)
        after = train_stage.plan(start, behind, settings, rehearsal, Services())
    return (*plan.planned, *after.lineage, after.event)
