"""What is done with runs: ``dpltm evaluate``, ``predict``, ``export``, ``report`` and ``compare``; and tables of recipes."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole

from dpltm.cli.console import answering
from dpltm.cli.show import (
    Cell,
    show_answer,
    show_notes,
    show_privacy,
    show_table,
    show_texts,
    show_verdict,
    show_wrote,
)
from dpltm.errors import DataError, InputError
from dpltm.networks.evaluation import check_score
from dpltm.options.evaluate import EvaluateRequest, ExportRequest, PredictRequest
from dpltm.privacy.describe import figure, guarantee
from dpltm.progress import Progress
from dpltm.records import tables
from dpltm.records.files import TABLES, reading
from dpltm.records.input_parts import shown
from dpltm.records.load import load_records
from dpltm.records.schema import NO_SCHEMA, Schema
from dpltm.registry import Deferred
from dpltm.reports.subjects import section
from dpltm.reports.wording import COLUMNS as ARM_COLUMNS
from dpltm.reports.wording import cells
from dpltm.tickets.feature_files import services
from dpltm.tickets.files import check_free, check_writable, new_file
from dpltm.tickets.ledger_file import ledger_of
from dpltm.tickets.predict import no_formula
from dpltm.tickets.workbench import compare
from dpltm.tickets.workbench.code import opened_run
from dpltm.tickets.workbench.handover import exported
from dpltm.tickets.workbench.records import open_dataset
from dpltm.training.artifacts import Run
from dpltm.verbs import evaluate as stage

BOUNDS, COLUMNS = ("bounds", "target_bounds"), ("label", "unit_column")
"""Options on the records of a training that hold for others as well; the latter of tables."""


def options_of(run: Run) -> dict[str, str]:
    """Return those options of a run's training that were given."""
    options = section(run.config, "options")
    return {name: text for name in (*BOUNDS, *COLUMNS) if isinstance(text := options.get(name), str)}


def evaluate(request: EvaluateRequest, progress: Progress) -> dict[str, Any]:
    """How good a run's network is."""
    run = opened_run(request.run, request.model)
    check_score(run.spec, "evaluate")
    resolved = request
    if request.input is not None:  # of persons only where the file tells them apart
        for name in ("dataset", "test", "subset"):
            if getattr(request, name) is not None:
                raise InputError(f"`{name}`: `input` holds all records to measure on; leave `{name}` out")
        has_classes = run.schema is not None or request.schema is not None or run.target is not None
        classes = request.classes or (None if has_classes else run.spec.classes)
        resolved = replace(request, dataset=request.input, classes=classes)
    path = Path(resolved.dataset or "")
    shared: tuple[str, ...] = BOUNDS if path.suffix else ()  # a dataset by its name has its own
    if path.suffix.lower() in TABLES:
        shared = (*BOUNDS, *COLUMNS)
    trained_with: dict[str, Any] = {name: text for name, text in options_of(run).items() if name in shared}
    resolved = replace(resolved, **{name: getattr(resolved, name) or text for name, text in trained_with.items()})
    layout = stage.text_layout(run)
    schema = run.schema if path.suffix.lower() in TABLES else None
    opened = partial(open_dataset, resolved, for_training=request.input is None, schema=schema)
    dataset = opened()
    if layout is not None and dataset.features != layout.length:
        with contextlib.suppress(DataError):  # no texts: another shape, which is refused below
            dataset = opened(length=layout.length)
    if request.input is not None:
        dataset = stage.as_held_out(dataset)
    ledger = ledger_of(resolved.dataset, resolved, str(run.config.get("unit", "record")))
    done = stage.evaluate(run, dataset, ledger, services(progress), request.by)
    return {
        "run": str(run.path),
        "dataset": done.dataset,
        "records": done.records,
        "accuracy": done.accuracy,
        "skill": None if done.skill is None else done.skill.to_json(),
        "notes": list(done.notes),
    }


def predict(request: PredictRequest, progress: Progress) -> dict[str, Any]:
    """Write the predictions of a run's network."""
    out = Path(request.out)
    source = request.input
    if out.suffix.lower() != ".csv":
        raise InputError(f"`out`: {out} is no .csv; name it so (dpltm.predict gives arrays)")
    check_free(out)
    check_writable(out)
    run = opened_run(request.run, request.model)
    trained_with, schema = options_of(run), run.schema
    features = {column.name for column in schema.columns if column.features} if schema else set(run.columns or ())
    spare = (trained_with.get("unit_column"), request.label or trained_with.get("label"), request.id)
    spared = [name for name in spare if name and name not in (request.label, *features)]
    beside = _beside(Path(source), features, schema, {*spared, request.label})
    passed = f"{source} has columns that the run does not take; they are passed over: {shown(beside)}"
    ids = None if request.id is None else (request.id, tables.column_texts(Path(source), request.id, schema))
    x = load_records(source, request.label, stage.text_layout(run), [*spared, *beside], schema, run.columns)
    predictions = stage.predict(run, x, source=source, progress=progress)
    _write(out, predictions, None if schema is None else schema.class_names, ids)
    return {
        "run": run.label,
        "input": request.input,
        "records": len(x),
        "output": str(out),
        "saturated": predictions.saturated,
        "notes": [*([passed] if beside else []), *predictions.notes],
    }


def _beside(source: Path, features: set[str], schema: Schema | None, expected: set[str | None]) -> list[str]:
    """Return the columns of a table that has all features of a run, but for these, ``expected`` ones and its schema's."""
    if not features or source.suffix.lower() not in TABLES:
        return []
    with reading(source, "`input`"):
        names = tables.Table(source, schema or NO_SCHEMA).names
    expected = expected | features | {column.name for column in (() if schema is None else schema.columns)}
    return [name for name in names if name not in expected] if features <= set(names) else []


def _write(
    out: Path, predictions: stage.Predictions, names: Sequence[str] | None, ids: tuple[str, list[str]] | None
) -> None:
    """The predictions, whole or not at all, classes by name where a schema has them. Nine digits give back every float32."""
    columns: list[tuple[str, Iterable[Any]]] = [] if ids is None else [(no_formula(ids[0]), map(no_formula, ids[1]))]
    if predictions.target is not None:
        columns.append(("prediction", map("{:.9g}".format, predictions.values)))
    else:
        labels, chances = predictions.labels, predictions.probabilities.T
        columns.append(("label", labels if names is None else (no_formula(names[label]) for label in labels)))
        heads = (f"p{number}" if names is None else f"p {names[number]}" for number in range(len(chances)))
        columns += [(head, map("{:.9g}".format, column)) for head, column in zip(heads, chances, strict=True)]
    with new_file(out) as staging, staging.open("w", encoding="utf-8", newline="") as text:
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(head for head, _ in columns)
        rows.writerows(zip(*(column for _, column in columns), strict=True))


def export(request: ExportRequest, progress: Progress) -> dict[str, Any]:
    """Write a run's network for use without dpltm."""
    run = opened_run(request.run, request.model)
    export = exported(run, Path(request.out), consent=request.yes, progress=progress)
    return {
        "run": run.label, "form": export.about["form"], "written": str(export.path),
        "files": sorted(path.name for path in export.path.iterdir()), "difference": export.difference,
        "compared": export.records, "about": export.about, "notes": list(export.notes),
    }  # fmt: skip


def show_export(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show what was written, how near it is to dpltm, and what it cost."""
    rich.print(f"wrote {body['written']}: {', '.join(body['files'])}")
    rich.print(
        f"the same answers as dpltm to {body['difference']:.1g}, on {body['compared']} made-up records", style="dim"
    )
    rich.print(guarantee(body["about"]["certified"]), style="bold")
    show_notes(rich, body)


evaluate_command = answering(evaluate, partial(show_answer, "evaluated {run}"))
predict_command = answering(predict, partial(show_answer, "predicted by {run}"))
export_command = answering(export, show_export)


def show_report(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show what was written, and the guarantee in it."""
    for problem in body["problems"]:
        rich.print(f"not complete: {problem}", style="bold")
    show_privacy(rich, body["privacy"])
    show_wrote(rich, body, "report")
    if body["decision"]:
        rich.print(body["decision"], style="bold")
    else:
        show_verdict(rich, body)


def show_comparison(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the table, what all of it costs, and notes."""
    show_texts(rich, list(compare.COLUMNS), compare.texts(body), compare.title(body) or None)
    if (together := body["together"]) is not None:
        rich.print(f"all {together['runs']} released together: {guarantee(together)}", style="bold")
    show_notes(rich, body)
    show_wrote(rich, body, "plot")


def show_recipe(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show a plan or an outcome: first what all of it costs, then a row for each arm."""
    if body.get("dry_run"):
        names = ("name", "paper", "tickets", "dataset", "epsilon", "noise_multiplier")
        columns: dict[str, Cell] = {name.replace("_", " "): name for name in names}
        columns["certified epsilon"] = lambda row: (
            "-" if row["privacy"] is None else figure(row["privacy"]["certified"]["epsilon"])
        )
        show_table(rich, body["arms"], columns, f"would run {body['recipe']} in {body['out']}")
        rich.print(f"{body['members']} trainings: {len(body['arms'])} arms, {len(body['seeds'])} seeds")
        return
    rich.print(f"all together: {guarantee(body['privacy']['certified'])}", style="bold")
    quick = " (quick version: says that it works, and no more)" if body["quick"] else ""
    show_texts(rich, ARM_COLUMNS, [cells(row, body) for row in body["arms"]], f"{body['recipe']}{quick}")
    for row in body["arms"]:
        for hole in row["missing"]:
            rich.print(f"hole: {row['name']}, seed {hole['seed']}: {hole['why']}", style="bold")
        if row["note"]:
            rich.print(f"- {row['name']}: {row['note']}", style="dim")
    show_notes(rich, body)
    show_notes(rich, body["privacy"])
    rich.print(f"wrote {body['out']}/results.json, results.md" + (", figure.png" if body.get("figure") else ""))


report_command = answering(
    Deferred("dpltm.tickets.workbench.report:report"), show_report, lambda body: body["state"] == "damaged"
)
compare_command = answering(
    Deferred("dpltm.tickets.workbench.compare:compare_runs"),
    show_comparison,
    lambda body: any(row["state"] == "damaged" for row in body["rows"]),
)
