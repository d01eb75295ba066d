"""``dpltm evaluate``: a run in a folder, on records in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpltm.errors import as_flags
from dpltm.options.evaluate import EvaluateRequest
from dpltm.privacy.statement import json_figure
from dpltm.progress import Progress
from dpltm.records.files import TABLES
from dpltm.tickets.ledger_file import ledger_of
from dpltm.tickets.run import load_run
from dpltm.tickets.workbench.as_in_training import as_in_training, schema_of
from dpltm.tickets.workbench.opening import services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.verbs.evaluate import evaluate as measure


def evaluate(request: EvaluateRequest, progress: Progress) -> dict[str, Any]:
    """Accuracy of a run's network."""
    path = Path(request.run or "")
    run = load_run(path)
    asked, schema = as_in_training(run, request), schema_of(run)
    dataset = open_dataset(asked, schema=schema if Path(asked.dataset or "").suffix.lower() in TABLES else None)
    ledger = ledger_of(asked.dataset, asked.ledger, asked.population, str(run.config.get("unit", "record")))
    done = measure(run, dataset, ledger, services(progress))
    return as_flags(
        {
            "run": str(path),
            "dataset": done.dataset,
            "records": done.records,
            "accuracy": done.accuracy,
            **({} if done.rmse is None else {"rmse": json_figure(done.rmse)}),
            "notes": list(done.notes),
        }
    )
