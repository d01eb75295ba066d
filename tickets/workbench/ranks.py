"""Commands whose work several processes share, which ``torchrun`` started."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from dpltm import __version__
from dpltm.errors import RankError
from dpltm.options.train import TrainRequest
from dpltm.privacy.ledger import Ledger
from dpltm.progress import SILENT, Progress
from dpltm.records import DatasetCache
from dpltm.tickets.workbench.opening import services
from dpltm.tickets.workbench.train import check_request, open_records, open_start
from dpltm.tickets.workbench.train import train as train_alone
from dpltm.training.launcher import Place, check_alone, launched
from dpltm.training.least_squares import is_least_squares
from dpltm.training.ranks import Ranks, environment
from dpltm.training.release import Training, follow
from dpltm.verbs.train import protected_units, settle


def train(
    request: TrainRequest, progress: Progress, dataset_cache: DatasetCache | None = None
) -> dict[str, Any] | None:
    """``dpltm train``, by this process or by all that ``torchrun`` started.

    Args:
        request: what ``dpltm train`` was asked for.
        progress: who watches.
        dataset_cache: datasets that were read already.

    Returns:
        What it prints as JSON; None on another rank than 0, which shares the work and has nothing to say.

    Raises:
        DpltmError: on all ranks, if on one.
    """
    place = launched()
    if place is None:
        return train_alone(request, progress, dataset_cache=dataset_cache)
    check_request(request)
    if is_least_squares(request):
        check_alone("`head` least-squares")
    if request.dry_run:
        return train_alone(request, progress) if place.rank == 0 else None
    ranks = _joined(place, request, request.device)
    if ranks.first:
        return _leading(lambda: train_alone(request, progress, ranks=ranks))

    def settled() -> Training:
        _, start, dataset = open_start(request)
        dataset = open_records(request, start, None) if dataset is None else dataset
        ledger = Ledger(unit=protected_units(dataset, request).unit)
        return settle(start, dataset, request, ledger, services(SILENT))

    follow(ranks, settled)
    return None


def _leading(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The work of rank 0."""
    try:
        return work()
    except RankError as error:
        raise RankError(f"{error}; the same command goes on") from None


def _joined(place: Place, request: Any, device: str) -> Ranks:
    """The ranks, all of which were asked for the same. Interrupts are left to rank 0, since it keeps the checkpoint."""
    ranks = Ranks.join(place, device)
    if not ranks.first:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    options = {f"`{name}`": repr(value) for name, value in asdict(request).items()}
    ranks.agree(options | {"version of dpltm": __version__} | environment())
    return ranks
