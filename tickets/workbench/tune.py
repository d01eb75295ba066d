"""A search on files: the best setting becomes a configuration file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.networks.own import OwnModel
from dpltm.options import recorded
from dpltm.options.network import GIVEN, names_file
from dpltm.options.tune import TuneRequest
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.statement import json_figure
from dpltm.progress import Progress
from dpltm.records import Dataset, DatasetCache
from dpltm.tickets.files import check_free, check_writable, new_file
from dpltm.tickets.ledger_file import ledger_of
from dpltm.tickets.store import find_set
from dpltm.tickets.workbench.code import own_of, with_code_of_set
from dpltm.tickets.workbench.opening import open_features, services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.training.artifacts import TicketSet
from dpltm.training.start import default_network
from dpltm.verbs import tune as tuning
from dpltm.verbs.tune import check_request, widest_front


def tune(
    request: TuneRequest, progress: Progress, *, portable: bool = False, dataset_cache: DatasetCache | None = None
) -> dict[str, Any]:
    """Try every setting and write the best; return what ``dpltm tune`` prints as JSON.

    Args:
        portable: write the names of files alone, not where they lie: for a folder that is handed on, where nobody takes the
            file for ``--config``.
    """
    check_request(request)
    out = None if request.out is None else Path(request.out)
    if out is not None:
        if out.suffix != ".toml":
            raise InputError(f"`out`: {request.out} is a configuration file; name it {out.stem}.toml")
        check_free(out)
        check_writable(out)
    tickets, dataset, ledger = _opened(request, progress, dataset_cache)
    target = _whole(request, dataset) if tickets is None else tickets
    plan = tuning.plan(target, dataset, request, ledger)
    result = tuning.tune(plan, services(progress))
    if out is not None:
        named = recorded(request) if portable else asdict(request)
        with new_file(out) as staging:
            staging.write_text("".join(f"{line}\n" for line in _lines(named, result)), encoding="utf-8")
    return as_flags(_answer(request, dataset, tickets, result))


def _lines(named: dict[str, Any], result: tuning.SearchResult) -> Iterator[str]:
    """Yield the lines of the best setting as a configuration file of ``dpltm train``."""
    metric, score = result.plan.options.metric, result.best.score
    scored = f"{score:.4f} right" if metric == "accuracy" else f"{metric} {score:.4f}"
    yield f"# best of dpltm tune, {scored} on public records: dpltm train --dataset NAME --config FILE"
    yield "[train]"
    network = {"model": named["model"]}
    if names_file(named["model"]):  # from the file's own folder
        network["model"] = os.path.relpath(named["model"], Path(named["out"]).parent)
    start: dict[str, Any] = {"ticket": f"{named['set']}@{result.best.round}", **network}
    if named["set"] is None:
        start = {"dense": True, **network, **{key: named[key] for key in ("features", "public", *GIVEN)}}
    for key, value in {**start, **result.settings}.items():
        if value is not None:
            yield f"{key.replace('_', '-')} = {json.dumps(value, ensure_ascii=False)}"  # TOML writes all of these alike


def _answer(
    request: TuneRequest, dataset: Dataset, tickets: TicketSet | None, result: tuning.SearchResult
) -> dict[str, Any]:
    return {
        "dataset": dataset.name,
        "ticket_set": None if tickets is None else tickets.label,
        "for_records": request.for_records,
        "epsilon": request.epsilon,
        "metric": request.metric,
        "best": _trial(result.best),
        "trials": [_trial(trial) for trial in result.trials],
        "config": request.out,
        "privacy": result.privacy.to_json(),
    }


def _trial(trial: tuning.Trial) -> dict[str, Any]:
    figures = {"score": json_figure(trial.score), "scores": [json_figure(one) for one in trial.scores]}
    return {**asdict(trial), **figures}


def _opened(
    request: TuneRequest, progress: Progress, dataset_cache: DatasetCache | None
) -> tuple[TicketSet | None, Dataset, Ledger]:
    front, dataset = widest_front(request), open_dataset(request, dataset_cache=dataset_cache)
    ledger = ledger_of(request.dataset, request.ledger, request.population, dataset.unit)  # refused before features
    tickets = None if request.set is None else with_code_of_set(find_set(request.set), request)
    return tickets, open_features(dataset, front, progress, tickets), ledger


def _whole(request: TuneRequest, dataset: Dataset) -> OwnModel | str:
    return own_of(request.model, request) or request.model or default_network(dataset)
