"""``dpltm evaluate`` and ``dpltm predict``: a run in a folder, on records in a file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpltm.cli.console import answering
from dpltm.cli.show import show_judged, show_noted
from dpltm.errors import InputError
from dpltm.options.evaluate import EvaluateRequest, PredictRequest
from dpltm.privacy.statement import json_figure
from dpltm.progress import Progress
from dpltm.records import load_records
from dpltm.records.files import TABLES, kind_of
from dpltm.records.schema import Schema, parse_schema
from dpltm.tickets.files import check_free, check_writable, new_file
from dpltm.tickets.ledger_file import ledger_of
from dpltm.tickets.run import load_run
from dpltm.tickets.workbench.code import with_code_of_run
from dpltm.tickets.workbench.opening import services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.training.artifacts import Run
from dpltm.verbs import predict as stage
from dpltm.verbs.evaluate import evaluate as measure


def said_in_training(run: Run) -> dict[str, str | None]:
    """Options on the table of a training, from its run: columns of labels and of persons, and bounds."""
    options = run.config.get("options")
    said = options if isinstance(options, dict) else {}
    names = ("label", "unit_column", "bounds")
    return {name: said[name] if isinstance(said.get(name), str) else None for name in names}


def schema_of(run: Run) -> Schema | None:
    """Return the schema of the table that a run was trained on, if it had one."""
    text = run.config.get("table_schema")
    return parse_schema(text, f"{run.label}: its schema") if isinstance(text, str) else None


def as_in_training(run: Run, request: EvaluateRequest) -> EvaluateRequest:
    """Return the request, with what was said of the records in training where nothing is said now."""
    said = said_in_training(run)
    if kind_of(Path(request.dataset or "")) not in TABLES:
        said = {"bounds": said["bounds"]} if Path(request.dataset or "").suffix else {}  # of names nothing was said
    unsaid: dict[str, Any] = {name: value for name, value in said.items() if getattr(request, name) is None}
    return replace(request, **unsaid)


def evaluate(request: EvaluateRequest, progress: Progress) -> dict[str, Any]:
    """Accuracy of a run's network."""
    path = Path(request.run or "")
    run = with_code_of_run(load_run(path), request)
    asked, schema = as_in_training(run, request), schema_of(run)
    dataset = open_dataset(asked, schema=schema if Path(asked.dataset or "").suffix.lower() in TABLES else None)
    ledger = ledger_of(asked.dataset, asked.ledger, asked.population, str(run.config.get("unit", "record")))
    done = measure(run, dataset, ledger, services(progress))
    return {
        "run": str(path),
        "dataset": done.dataset,
        "records": done.records,
        "accuracy": done.accuracy,
        **({} if done.rmse is None else {"rmse": json_figure(done.rmse)}),
        "skill": None if done.skill is None else done.skill.to_json(),
        "notes": list(done.notes),
    }


def predict(request: PredictRequest, progress: Progress) -> dict[str, Any]:
    """Write the predictions of a run's network."""
    out, source = Path(request.out or ""), request.input or ""
    if out.suffix.lower() not in (".csv", ".npz"):
        raise InputError(f"`out`: {out} is neither .csv nor .npz; name it {out.stem}.csv or {out.stem}.npz")
    check_free(out)
    check_writable(out)
    run = with_code_of_run(load_run(Path(request.run or "")), request)
    said = said_in_training(run)
    spare = [name for name in (said["unit_column"], said["label"] if request.label is None else None) if name]
    schema = schema_of(run)
    x = load_records(source, request.label, stage.text_layout(run), spare, schema, run.columns)
    predictions = stage.predict(run, x, source=source, progress=progress)
    _write(out, predictions, None if schema is None else schema.class_names)
    return {
        "run": run.label,
        "input": request.input,
        "records": len(x),
        "output": str(out),
        "saturated": predictions.saturated,
        "notes": list(predictions.notes),
    }


def _write(out: Path, predictions: stage.Predictions, names: Sequence[str] | None) -> None:
    """The predictions, whole or not at all, classes by name where a schema has them. Nine digits give back every float32."""
    label, probabilities = predictions.labels, predictions.probabilities
    with new_file(out) as staging:
        if out.suffix.lower() == ".npz":
            named = {} if names is None else {"classes": np.array(names)}
            with staging.open("wb") as stream:
                np.savez(stream, label=label, probabilities=probabilities, **named)  # type: ignore[arg-type]
            return
        columns = (
            [f"p{number}" for number in range(probabilities.shape[1])] if names is None else [f"p {n}" for n in names]
        )
        with staging.open("w", encoding="utf-8", newline="") as text:
            rows = csv.writer(text, lineterminator="\n")
            rows.writerow(["label", *columns])
            for each, chances in zip(label, probabilities, strict=True):
                rows.writerow([each if names is None else names[each], *(f"{chance:.9g}" for chance in chances)])


evaluate_command = answering(evaluate, show_judged)
predict_command = answering(predict, partial(show_noted, "predicted"))
