"""Phase 2 on files: a draw from a set in a folder, entered in its ledger and remembered beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.options.select import SelectRequest
from dpltm.pruning.ticket_set import TicketSet, Winner
from dpltm.records import DatasetCache
from dpltm.stages.progress import Progress
from dpltm.stages.select import DrawPlan, check_options, check_scored, plan, planned_report, select_public
from dpltm.stages.select import select as draw_winner
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.room import SMALL, check_room
from dpltm.tickets.store import find_set, is_bundled
from dpltm.tickets.ticket_set import folder_of, ledger_path
from dpltm.tickets.winner import drawn_from, load_winner, save_winner, selection_path
from dpltm.tickets.workbench.opening import services
from dpltm.tickets.workbench.records import open_dataset


def select(
    request: SelectRequest,
    progress: Progress,
    *,
    dataset_cache: DatasetCache | None = None,
    ending: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Draws a winner and remembers it; returns the answer of ``dpltm select``.

    Args:
        request: what ``dpltm select`` was asked for.
        progress: who watches.
        dataset_cache: datasets that were read already; None to read them anew.
        ending: as :func:`dpltm.tickets.workbench.generate.generate`.

    Raises:
        DpltmError: bad input, before any budget is spent.
    """
    tickets = find_set(request.set or "")
    check_scored(tickets, request)
    if is_bundled(folder_of(tickets)):
        raise InputError(
            f"{request.set}: comes with dpltm, and a selection is remembered with the set; copy it with dpltm tickets export"
            f" {request.set} `out` DIR"
        )
    if request.rule == "smallest-within":
        answer, winner = _choose(tickets, request)
    else:
        answer, winner = _draw(tickets, request, progress, dataset_cache)
    if winner is not None:
        if ending is not None:
            ending(as_flags(answer))
        save_winner(tickets, winner.round, answer["mechanism"], winner.events)
    return as_flags(answer)


def _draw(
    tickets: TicketSet, request: SelectRequest, progress: Progress, dataset_cache: DatasetCache | None
) -> tuple[dict[str, Any], Winner | None]:
    """The answer, and what is to be remembered; None in a dry run."""
    if drawn_from(tickets):
        load_winner(tickets)  # a damaged record of earlier draws is refused before another is paid for
    check_options(request)
    dataset = open_dataset(request, dataset_cache=dataset_cache)
    path = Path(request.ledger or ledger_path(folder_of(tickets)))
    ledger = open_ledger(path, links=request.ledger is not None, remember=not request.dry_run)
    given = services(progress)
    settled = plan(tickets, dataset, request, ledger, given)
    if request.dry_run:
        return {
            "dry_run": True,
            "ticket_set": request.set,
            **_mechanism(settled),
            "privacy": planned_report(settled).to_json(),
        }, None
    check_room(selection_path(tickets), SMALL, path)
    winner = draw_winner(settled, given)
    assert winner.privacy is not None  # the stage made it
    body = {
        "ticket_set": tickets.label,
        "winner": _winner(winner),
        **_mechanism(settled),
        "privacy": winner.privacy.to_json(),
    }
    return (body if not request.reveal else {**body, "revealed": [vars(row) for row in winner.revealed]}), winner


def _mechanism(plan: DrawPlan) -> dict[str, Any]:
    draw = plan.draw
    return {
        "eps1": draw.eps1,
        "mechanism": draw.mechanism,
        "score": draw.score,
        "sensitivity": {"rule": draw.rule, "value": draw.sensitivity},
    }


def _choose(tickets: TicketSet, request: SelectRequest) -> tuple[dict[str, Any], Winner | None]:
    """The same by the paper's rule, on the accuracies in the set."""
    winner = select_public(tickets, request)
    assert winner.privacy is not None  # the stage made it
    return {
        **({"dry_run": True} if request.dry_run else {}),
        "ticket_set": tickets.label,
        "winner": _winner(winner),
        "eps1": 0.0,
        "mechanism": "smallest-within",
        "score": None,
        "sensitivity": None,
        "privacy": winner.privacy.to_json(),
    }, None if request.dry_run else winner


def _winner(winner: Winner) -> dict[str, Any]:
    return {"round": winner.round, "density": winner.ticket.mask.density}
