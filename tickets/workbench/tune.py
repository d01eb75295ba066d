"""A search on files: the best setting becomes a configuration file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.options import recorded
from dpltm.options.network import GIVEN, names_file
from dpltm.options.tune import TuneRequest
from dpltm.privacy.statement import json_figure
from dpltm.progress import Progress
from dpltm.records import DatasetCache
from dpltm.tickets.files import check_free, check_writable, new_file
from dpltm.tickets.ledger_file import ledger_of
from dpltm.tickets.store import find_set
from dpltm.tickets.workbench.code import own_of, with_code_of_set
from dpltm.tickets.workbench.opening import services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.training.start import default_network, in_front
from dpltm.verbs import tune as tuning


def tune(
    request: TuneRequest, progress: Progress, *, portable: bool = False, dataset_cache: DatasetCache | None = None
) -> dict[str, Any]:
    """Try every setting and write the best; return what ``dpltm tune`` prints as JSON.

    Args:
        portable: write the names of files alone, not where they lie: for a folder that is handed on, where nobody takes the
            file for ``--config``.
    """
    tuning.check_request(request)
    out = None if request.out is None else Path(request.out)
    if out is not None:
        if out.suffix != ".toml":
            raise InputError(f"`out`: {request.out} is a configuration file; name it {out.stem}.toml")
        check_free(out)
        check_writable(out)
    dataset = open_dataset(request, dataset_cache=dataset_cache)
    ledger = ledger_of(request.dataset, request.ledger, request.population, dataset.unit)  # refused before features
    tickets = None if request.set is None else with_code_of_set(find_set(request.set), request)
    target = tickets or own_of(request.model, request) or request.model
    dataset = in_front(target, dataset, request.features)
    plan = tuning.plan(target or default_network(dataset), dataset, request, ledger)
    result = tuning.tune(plan, services(progress))
    if out is not None:
        lines = _configuration(recorded(request) if portable else asdict(request), result)
        with new_file(out) as staging:
            staging.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    trials = [
        asdict(trial) | {"score": json_figure(trial.score), "scores": [*map(json_figure, trial.scores)]}
        for trial in result.trials
    ]
    return as_flags({
        "dataset": dataset.name,
        "ticket_set": None if tickets is None else tickets.label,
        "for_records": request.for_records,
        "epsilon": request.epsilon,
        "metric": request.metric,
        "best": trials[0],
        "trials": trials,
        "config": request.out,
        "privacy": result.privacy.to_json(),
    })  # fmt: skip


def _configuration(request: dict[str, Any], result: tuning.SearchResult) -> Iterator[str]:
    """Yield the lines of a file by which ``dpltm train`` takes the best setting."""
    metric, score = request["metric"], result.best.score
    scored = f"{score:.4f} right" if metric == "accuracy" else f"{metric} {score:.4f}"
    yield f"# best of dpltm tune, {scored} on public records: dpltm train --dataset NAME --config FILE"
    yield "[train]"
    model = request["model"]
    if names_file(model):  # from the file's own folder
        model = os.path.relpath(model, Path(request["out"]).parent)
    start = {"ticket": f"{request['set']}@{result.best.round}", "model": model}
    if request["set"] is None:
        before = ("features", *GIVEN)
        start = {"dense": True, "model": model, **{name: request.get(name) for name in before}}
    for key, value in {**start, **result.settings}.items():
        if value is not None:
            yield f"{key.replace('_', '-')} = {json.dumps(value, ensure_ascii=False)}"  # TOML writes all of these alike
