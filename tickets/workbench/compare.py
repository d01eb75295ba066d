"""``dpltm compare``: runs in folders, beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.options.report import BaselineOptions, CompareRequest
from dpltm.progress import Progress
from dpltm.reports.comparison import compare
from dpltm.tickets.comparison_files import markdown, table_csv
from dpltm.tickets.curve_files import check_plot
from dpltm.tickets.files import check_free, check_writable, new_file
from dpltm.tickets.report_charts import against_epsilon, write_charts
from dpltm.tickets.run import candidate_of, find_run
from dpltm.tickets.sweep_report import is_sweep
from dpltm.tickets.workbench.baselines import with_baselines


def compare_runs(request: CompareRequest, progress: Progress) -> dict[str, Any]:
    """The JSON answer of ``dpltm compare``; the files that were asked for are written.

    Raises:
        InputError: fewer than two runs, or none that can be compared; or as ``with_baselines``, like BudgetError.
        ArtifactError: a file is there already, or cannot be written.
    """
    for item in fields(BaselineOptions) if not request.baselines else ():
        if getattr(request, item.name) != item.default:
            raise InputError(
                f"`{item.name}`: only with `baselines`, which trains something; add it, or leave this out"
            )
    paths = _folders(request.runs or ())  # with what the table calls each
    if len(paths) < 2 and not request.baselines:
        raise InputError("RUN: name at least two runs, or a sweep with several; or train some beside it (`baselines`)")
    given = {"csv": request.csv, "md": request.md, "plot": request.plot}
    targets = {name: Path(path) for name, path in given.items() if path is not None}
    if len(set(targets.values())) < len(targets):
        raise InputError("`csv`, `md`, `plot`: name different files")
    for name, path in targets.items():
        check_free(path, name)
        check_writable(path)
    if request.plot is not None:
        check_plot(Path(request.plot))
    with progress.progress("reading runs", len(paths)) as step:
        runs = []
        for path, label in paths.items():
            found = find_run(path)
            runs.append((found, candidate_of(found, label)))
            step(len(runs))
    beside = with_baselines(request, runs, progress) if request.baselines else None
    candidates = [*(candidate for _, candidate in runs), *(() if beside is None else beside.rows)]
    body = compare(candidates)
    if beside is not None:
        body |= {"notes": [*beside.notes, *body["notes"]], **beside.body}
    body = as_flags(body)
    if request.dry_run:
        return {"dry_run": True, **body}
    drawn = _charts(body["rows"]) if request.plot is not None else []
    if request.plot is not None and not drawn:
        raise InputError("`plot`: no run has both an accuracy and a finite epsilon")
    for name, text in (("csv", table_csv(body["rows"])), ("md", markdown(body))):
        if name in targets:
            with new_file(targets[name]) as staging:
                staging.write_text(text, encoding="utf-8")
    if request.plot is not None:
        write_charts(Path(request.plot), drawn, "Runs")
    return {**body, **given}


def _folders(names: Sequence[str]) -> dict[Path, str]:
    """Folders of runs, with what to call them: a sweep stands for all of its."""
    labels: dict[Path, str] = {}
    for name in names:
        path = Path(name)
        inside = sorted((path / "members").iterdir()) if is_sweep(path) else []
        for folder, label in [(one / "run", one.name) for one in inside] or [(path, name)]:
            if folder in labels:
                raise InputError(f"RUN: {folder} is named twice; name each run once")
            labels[folder] = label
    return labels


def _charts(rows: Sequence[dict[str, Any]]) -> list[Any]:
    measure = "rmse" if any(row["rmse"] is not None for row in rows) else "accuracy"
    points = [
        {"label": row["run"], "value": row[measure], "epsilon": row["certified"], "low": row["low"], "high": row["high"]}
        for row in rows if row["compared"]
    ]  # fmt: skip
    return against_epsilon(points, measure)
