"""``dpltm compare``: runs in folders, beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.options.report import CompareRequest
from dpltm.progress import Progress
from dpltm.tickets.charts import against_epsilon, new_picture, write_charts
from dpltm.tickets.comparison import compare, markdown, table_csv
from dpltm.tickets.files import check_free, check_writable, new_file
from dpltm.tickets.run import FoundRun, find_run
from dpltm.tickets.sweep_files import is_sweep


def compare_runs(request: CompareRequest, progress: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm compare``; files that were asked for are made."""
    paths = _folders(request.runs or ())  # with what the table calls each
    if len(paths) < 2:
        raise InputError("RUN: name at least two runs, or a sweep with several")
    targets = {name: Path(path) for name in ("csv", "md") if (path := getattr(request, name)) is not None}
    for name, path in targets.items():
        check_free(path, name)
        check_writable(path)
    picture = new_picture(request.plot)
    named = [*targets.values(), *(() if picture is None else (picture,))]
    if len(set(named)) < len(named):
        raise InputError("`csv`, `md`, `plot`: name different files")
    runs: list[FoundRun] = []
    with progress.progress("reading runs", len(paths)) as step:
        for path, label in paths.items():
            runs.append(find_run(path, label))
            step(len(runs))
    body = as_flags(compare(runs))
    drawn = [] if picture is None else _charts(body["rows"])
    if picture is not None and not drawn:
        raise InputError("`plot`: no run has both an accuracy and a finite epsilon")
    for name, path in targets.items():
        with new_file(path) as staging:
            staging.write_text(table_csv(body["rows"]) if name == "csv" else markdown(body), encoding="utf-8")
    if picture is not None:
        write_charts(picture, drawn, "Runs")
    return {**body, "csv": request.csv, "md": request.md, "plot": request.plot}


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


def _charts(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    measure = "rmse" if any(row["rmse"] is not None for row in rows) else "accuracy"
    points = [
        {"label": row["run"], "value": row[measure], "epsilon": row["certified"], "low": row["low"], "high": row["high"]}
        for row in rows if row["compared"]
    ]  # fmt: skip
    return against_epsilon(points, measure)
