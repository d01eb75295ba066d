"""Phase 2 on files: a draw from a set in a folder, which is marked with it, and its winner remembered there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.options.select import SelectRequest
from dpltm.progress import Progress
from dpltm.records import DatasetCache
from dpltm.tickets.files import check_writable
from dpltm.tickets.ledger_file import ledger_of
from dpltm.tickets.store import find_set
from dpltm.tickets.ticket_set import folder_of, is_bundled, last_winner, save_winner, winner_path
from dpltm.tickets.workbench.code import with_code_of_set
from dpltm.tickets.workbench.opening import services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.training.artifacts import Winner
from dpltm.verbs.select import check_options, check_scored, draw_facts, plan, planned_report, select_public
from dpltm.verbs.select import select as draw_winner


def select(
    request: SelectRequest,
    progress: Progress,
    *,
    dataset_cache: DatasetCache | None = None,
    ending: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Draw a winner and remember it; return the answer of ``dpltm select``."""
    tickets = with_code_of_set(find_set(request.set or ""), request)
    check_scored(tickets, request)
    folder = folder_of(tickets)
    if is_bundled(folder):
        raise InputError(
            f"{request.set}: comes with dpltm, and a selection is remembered with the set; copy it with dpltm tickets export"
            f" {request.set} `out` DIR"
        )
    if request.rule == "smallest-within":
        winner = select_public(tickets, request)
    else:
        last_winner(tickets)  # a damaged record of earlier draws is refused before another is paid for
        check_options(request)
        dataset = open_dataset(request, dataset_cache=dataset_cache)
        ledger = ledger_of(request.dataset, request.ledger, request.population, dataset.unit)
        given = services(progress)
        settled = plan(tickets, dataset, request, ledger, given)
        if request.dry_run:
            report = planned_report(settled).to_json()
            return as_flags(
                {"dry_run": True, "ticket_set": request.set, **draw_facts(settled.settled), "privacy": report}
            )
        check_writable(winner_path(tickets))
        winner = draw_winner(settled)
    answer = as_flags(_answer(winner, dry_run=request.dry_run))
    if not request.dry_run:
        if ending is not None:
            ending(answer)
        save_winner(folder, winner)
    return answer


def _answer(winner: Winner, *, dry_run: bool) -> dict[str, Any]:
    assert winner.privacy is not None
    assert winner.tickets is not None  # the verb made both
    revealed = {"revealed": [vars(row) for row in winner.revealed]} if winner.revealed else {}
    return {
        **({"dry_run": True} if dry_run else {}),
        "ticket_set": winner.tickets.label,
        "winner": {"round": winner.round, "density": winner.ticket.mask.density},
        **winner.facts,
        "privacy": winner.privacy.to_json(),
        **revealed,
    }
