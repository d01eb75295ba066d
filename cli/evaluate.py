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
from dpltm.cli.show import named, show_answer, show_notes, show_table, show_wrote
from dpltm.errors import DataError, InputError, naming
from dpltm.networks.evaluation import check_score
from dpltm.options.evaluate import EvaluateRequest, ExportRequest, PredictRequest
from dpltm.privacy.describe import guarantee, percent
from dpltm.progress import Progress
from dpltm.records import tables
from dpltm.records.encode import no_formula
from dpltm.records.files import TABLES, reading, suffix_of
from dpltm.records.input_parts import shown
from dpltm.records.load import load_records
from dpltm.records.schema import NO_SCHEMA, Schema
from dpltm.registry import Deferred
from dpltm.reports.statement import section
from dpltm.reports.wording import markdown
from dpltm.tickets.feature_files import services
from dpltm.tickets.files import check_free, check_writable, new_file
from dpltm.tickets.ledger_file import ledger_of
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
    held_out = request.input is not None
    if held_out:  # of persons only where the file tells them apart
        for name in ("dataset", "test", "subset"):
            if getattr(request, name) is not None:
                raise InputError(f"`{name}`: `input` holds all records to measure on; leave `{name}` out")
        has_classes = run.schema is not None or request.schema is not None or run.target is not None
        classes = request.classes or (None if has_classes else run.spec.classes)
        request = replace(request, dataset=request.input, classes=classes)
    path = Path(request.dataset or "")
    of_table = suffix_of(path) in TABLES
    shared = (*(BOUNDS if path.suffix else ()), *(COLUMNS if of_table else ()))  # a dataset by its name has its own
    as_trained: dict[str, Any] = {name: text for name, text in options_of(run).items() if name in shared}
    request = replace(request, **{name: getattr(request, name) or text for name, text in as_trained.items()})
    opened = partial(open_dataset, request, for_training=not held_out, schema=run.schema if of_table else None)
    with naming(dataset="input", unit_column="unit_column") if held_out else contextlib.nullcontext():
        dataset, layout = opened(), stage.text_layout(run)
        if layout is not None and dataset.features != layout.length:
            with contextlib.suppress(DataError):  # no texts: another shape, which is refused below
                dataset = opened(length=layout.length)
        ledger = ledger_of(request.dataset, request, str(run.config.get("unit", "record")))
        tested = stage.as_held_out(dataset) if held_out else dataset
        done = stage.evaluate(run, tested, ledger, services(progress), request.by)
    return {"run": str(run.path), **vars(done), "skill": None if done.skill is None else done.skill.to_json()}


def predict(request: PredictRequest, progress: Progress) -> dict[str, Any]:
    """Write the predictions of a run's network."""
    out, source = Path(request.out), request.input
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
    if not features or suffix_of(source) not in TABLES:
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
    show_answer("wrote {written}", rich, {name: part for name, part in body.items() if name != "about"})
    rich.print(guarantee(body["about"]["certified"]), style="bold")


evaluate_command = answering(evaluate, partial(show_answer, "evaluated {run}"))
predict_command = answering(predict, partial(show_answer, "predicted by {run}"))
export_command = answering(export, show_export)


def show_report(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show what was written, and last what it decides."""
    show_answer("wrote {report}", rich, body)
    rich.print(body["decision"] or body["verdict"] or "", style="bold")


COMPARED = (
    "auc", "r2", "rmse", "mean_rmse", "certified", "nominal", "delta", "adjacency", "unit", "density", "live", "parameters",
    "trained", "filter",
)  # fmt: skip
"""Keys of rows that the table of a comparison shows as they are."""


def show_comparison(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the table, what all of it costs, and notes."""
    columns = named("run", "accuracy", *COMPARED)
    columns["95 % interval"] = lambda row: (
        "-" if row["low"] is None else f"{100 * row['low']:.2f} to {percent(row['high'])}"
    )
    columns["majority"] = lambda row: "-" if row["majority"] is None else percent(row["majority"])
    show_table(rich, body["rows"], columns)
    if (together := body["together"]) is not None:
        rich.print(f"all {together['runs']} released together: {guarantee(together)}", style="bold")
    show_notes(rich, body)
    show_wrote(rich, body, "plot")


def show_recipe(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show a plan; or an outcome, as ``results.md`` has it."""
    if not body.get("dry_run"):
        rich.print(markdown(body), soft_wrap=True)
        rich.print(f"wrote {body['out']}/results.json, results.md" + (", figure.png" if body["figure"] else ""))
        return
    columns = named("name", "paper", "tickets", "dataset", "epsilon", "noise_multiplier", "certified")
    show_table(rich, body["arms"], columns, f"would run {body['recipe']} in {body['out']}")
    rich.print(f"{body['members']} trainings: {len(body['arms'])} arms, {len(body['seeds'])} seeds")


report_command = answering(
    Deferred("dpltm.tickets.workbench.report:report"), show_report, lambda body: body["state"] == "damaged"
)
compare_command = answering(
    Deferred("dpltm.tickets.workbench.compare:compare_runs"),
    show_comparison,
    lambda body: any(row["state"] == "damaged" for row in body["rows"]),
)
