"""A search on files: its public records and ticket set are opened, and the best setting becomes a configuration file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.features.setup import take_over_map
from dpltm.options import recorded
from dpltm.options.tune import TuneRequest
from dpltm.progress import Progress
from dpltm.records import Dataset, DatasetCache
from dpltm.tickets.checkpoint_files import CheckpointFolder
from dpltm.tickets.files import check_free, check_writable, new_file
from dpltm.tickets.ledger_file import ledger_of
from dpltm.tickets.store import find_set
from dpltm.tickets.workbench.opening import open_features, services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.tickets.workbench.search import search
from dpltm.training.artifacts import TicketSet
from dpltm.training.start import default_network
from dpltm.verbs import tune as verb
from dpltm.verbs.tune import check_request, widest_front


def tune(
    request: TuneRequest, progress: Progress, *, portable: bool = False, dataset_cache: DatasetCache | None = None
) -> dict[str, Any]:
    """Tries every setting and writes the best, or searches in private; returns what ``dpltm tune`` prints as JSON.

    Args:
        request: what to try.
        progress: told how far it is.
        portable: write the names of files alone, not where they lie: for a folder that is handed on, where nobody takes the
            file for ``--config``.
        dataset_cache: holds records that were read before.

    Raises:
        DpltmError: bad input, before the first training.
    """
    check_request(request)
    if request.private:
        return search(request, progress, dataset_cache=dataset_cache)
    out = None if request.out is None else Path(request.out)
    if out is not None:
        if out.suffix != ".toml":
            raise InputError(f"`out`: {request.out} is a configuration file; name it {out.stem}.toml")
        check_free(out)
        check_writable(out)
    dataset = open_dataset(request, dataset_cache=dataset_cache)
    ledger = ledger_of(request.dataset, request.ledger, request.population, dataset.unit)
    tickets, front = None if request.set is None else find_set(request.set), widest_front(request)
    if tickets is None:
        dataset = open_features(dataset, front, progress)
    else:
        dataset = take_over_map(dataset, None, front, tickets.label)
    target = request.model or default_network(dataset) if tickets is None else tickets
    plan = verb.plan(target, dataset, request, ledger)
    if out is None:  # nothing is kept, on the way either
        return as_flags(_answer(request, dataset, tickets, verb.tune(plan, services(progress))))
    with CheckpointFolder(out, request, progress) as checkpoints:
        result = verb.tune(plan, services(progress), checkpoints)
        named = recorded(request) if portable else asdict(request)
        with new_file(out) as staging:
            staging.write_text("".join(f"{line}\n" for line in _lines(named, result)), encoding="utf-8")
        checkpoints.forget()
    return as_flags(_answer(request, dataset, tickets, result))


def _lines(named: dict[str, Any], result: verb.SearchResult) -> Iterator[str]:
    """The best setting as a configuration file of ``dpltm train``."""
    accuracy = result.best.accuracy
    yield f"# best of dpltm tune, {accuracy:.4f} right on public records: dpltm train --dataset NAME --config FILE"
    yield "[train]"
    start: dict[str, Any] = {"ticket": f"{named['set']}@{result.best.round}"}
    if named["set"] is None:
        start = {"dense": True, **{key: named[key] for key in ("model", "features", "public")}}
    for key, value in {**start, **result.settings}.items():
        if value is not None:
            yield f"{key.replace('_', '-')} = {json.dumps(value, ensure_ascii=False)}"  # TOML writes all of these alike


def _answer(
    request: TuneRequest, dataset: Dataset, tickets: TicketSet | None, result: verb.SearchResult
) -> dict[str, Any]:
    return {
        "dataset": dataset.name,
        "ticket_set": None if tickets is None else tickets.label,
        "for_records": request.for_records,
        "epsilon": request.epsilon,
        "best": asdict(result.best),
        "trials": [asdict(trial) for trial in result.trials],
        "config": request.out,
        "privacy": result.privacy.to_json(),
    }
