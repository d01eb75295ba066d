"""``dpltm compare``: runs in folders, beside each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.options.evaluate import CompareRequest
from dpltm.privacy.account import Account
from dpltm.privacy.describe import figure, guarantee, percent
from dpltm.privacy.entry import RECORD, lineage_of
from dpltm.privacy.statement import json_figure
from dpltm.progress import Progress
from dpltm.reports.statement import interval
from dpltm.reports.subjects import count, run_subject, section
from dpltm.reports.wording import as_share
from dpltm.tickets.charts import against_epsilon, new_picture, write_charts
from dpltm.tickets.run import FoundRun, find_run
from dpltm.tickets.sweep_files import is_sweep


def compare_runs(request: CompareRequest, progress: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm compare``; a picture is drawn where one was asked for."""
    paths = _folders(request.runs or ())  # with what the table calls each
    if len(paths) < 2:
        raise InputError("RUN: name at least two runs, or a sweep with several")
    picture = new_picture(request.plot)
    runs: list[FoundRun] = []
    with progress.progress("reading runs", len(paths)) as step:
        for path, label in paths.items():
            runs.append(find_run(path, label))
            step(len(runs))
    body = as_flags(compare(runs))
    drawn = against_epsilon([row for row in body["rows"] if row["compared"]]) if picture is not None else []
    if picture is not None and not drawn:
        raise InputError("`plot`: no run has both an accuracy and a finite epsilon")
    if picture is not None:
        write_charts(picture, drawn, "Runs")
    return {**body, "plot": request.plot}


def _folders(names: Sequence[str]) -> dict[Path, str]:
    """Folders of runs, with what to call them: a sweep stands for all of its."""
    labels: dict[Path, str] = {}
    for name in names:
        path = Path(name)
        inside = sorted((path / "members").iterdir()) if is_sweep(path) else []
        for folder, label in [(folder / "run", folder.name) for folder in inside] or [(path, name)]:
            if folder in labels:
                raise InputError(f"RUN: {folder} is named twice; name each run once")
            labels[folder] = label
    return labels


NO_TIMES = (
    "seconds a step are left out: they tell the private number of records, so no run holds them;"
    " benchmarks/training_step.py measures them on made-up records"
)
INTERVALS = "intervals are Wilson's, 95 %, over test records: of these networks alone, not of other noise"
MAJORITY = (
    "majority: accuracy of always saying the most frequent class of the test split; AUC: of one class against the rest, 0.5"
    " by guessing"
)
CHOOSING = "choosing among these rows by their accuracy is a search, which no figure here counts"


def compare(runs: Sequence[FoundRun]) -> dict[str, Any]:
    """Return the table: a row for each run, in their order, what they cost together, and notes."""
    ended = [run for run in runs if run.part is not None and run.result]
    why = {run.label: unlike(ended[0], run) for run in ended}
    alike = [run for run in ended if why[run.label] is None]
    if len(ended) >= 2 and len(alike) < 2:
        raise InputError(
            f"RUN: nothing can be compared: {ended[1].label}: {why[ended[1].label]}; name runs on the same records"
        )
    if not ended and not any(run.state == "unfinished" for run in runs):
        raise InputError(f"RUN: nothing can be compared: {runs[0].problems[0]}")
    rows = [_row(run, why.get(run.label)) for run in runs]
    if any(run.config.get("target") for run in runs):
        rows = [dict.fromkeys(OF_NUMBERS.values()) | row for row in rows]
    stated = [row for row in rows if row["certified"] is not None]
    usual = next((_relation(row) for row in stated if row["compared"]), None)
    for row in rows:
        other = usual is not None and row in stated and _relation(row) != usual
        row["other_terms"] = _relation(row) if other else None
    return {"rows": rows, "together": _together(alike), "notes": _notes(runs, rows, alike)}


def _relation(row: Mapping[str, Any]) -> str:
    return f"{row['adjacency']}, unit {row['unit']}"


def unlike(run: FoundRun, other: FoundRun) -> str | None:
    """Return why two runs cannot be compared; None if they can."""
    ours, theirs = run.part, other.part
    assert ours is not None
    assert theirs is not None
    if ours.snapshot != theirs.snapshot and ours.name != theirs.name:  # a snapshot has an id in each ledger
        return f"other data: {theirs}, not {ours}"
    if (ours.cut, ours.start, ours.stop) != (theirs.cut, theirs.start, theirs.stop):
        return f"another part of the data: {theirs}, not {ours}"
    if run.config.get("target") != other.config.get("target"):
        return "other labels: a number to be predicted, within the same range, beside classes or another range"
    for what, key in (("test records", "test_records"), ("classes", "classes")):
        mine, its = count(run.config.get(key)), count(other.config.get(key))
        if mine != its and None not in (mine, its):
            return f"other {what}: {its:,}, not {mine:,}"
    if _measured_privately(run) != _measured_privately(other):
        return "accuracy on training records, with noise, beside that on the test split"
    return None


def _measured_privately(run: FoundRun) -> bool:
    return section(run.config, "options").get("eval_private") is not None


SETTINGS = ("density", "live", "parameters", "filter", "steps", "noise_multiplier")
"""Of a statement, which stand in a row under the same names."""


def _row(run: FoundRun, why: str | None) -> dict[str, Any]:
    subject = run_subject(run.label, run.config, run.result, parameters=run.parameters)
    settings = subject.settings
    outcome = subject.outcome
    certified = section(run.privacy, "certified")
    accuracy, density, at = outcome["accuracy"], settings["density"], settings["round"]
    ends = interval(accuracy, outcome.get("test_records"))
    return {
        "run": run.label,
        "state": run.state,
        "compared": run.part is not None and bool(run.result) and why is None,
        "why_not": why if why is not None else next(iter(run.problems), None),
        "records": None if run.part is None else str(run.part),
        "network": settings["model"],
        "trained": None if density is None else "dense" if density == 1 or at is None else f"ticket, round {at}",
        "accuracy": accuracy,
        "low": ends.get("low"),
        "high": ends.get("high"),
        "test_records": outcome.get("test_records"),
        "majority": outcome.get("majority_accuracy"),
        **{name: outcome.get(name) for name in ("auc", "chance_over_share", "log_loss")},
        **({} if run.config.get("target") is None else {name: outcome.get(name) for name in OF_NUMBERS.values()}),
        "certified": certified.get("epsilon"),
        "nominal": section(run.privacy, "nominal").get("epsilon"),
        **{key: certified.get(key) for key in ("delta", "adjacency", "unit")},
        **{name: settings[name] for name in SETTINGS},
    }


def _together(alike: Sequence[FoundRun]) -> dict[str, Any] | None:
    """Return the joint cost of the runs that can be compared, if all are released; None where there are fewer than two."""
    if len(alike) < 2:
        return None
    delta = min((run.privacy["certified"]["delta"] for run in alike if run.privacy), default=1e-5)
    try:
        lineage = lineage_of(*(run.lineage for run in alike))
        epsilon = Account.of((), lineage, unit=lineage.paid[0].unit if lineage.paid else RECORD).epsilon(delta)
    except InputError:  # of two units
        return {"runs": len(alike), "epsilon": "inf", "delta": delta}
    return {"runs": len(alike), "epsilon": json_figure(epsilon), "delta": delta}


def _notes(runs: Sequence[FoundRun], rows: Sequence[Mapping[str, Any]], alike: Sequence[FoundRun]) -> list[str]:
    notes = []
    for run, row in zip(runs, rows, strict=True):
        if not row["compared"] and row["why_not"]:
            notes.append(f"{run.label}: not compared: {row['why_not']}")
        notes += [
            f"{run.label}: {problem}" for problem in run.problems if row["compared"] or problem != row["why_not"]
        ]
    terms = {(row["delta"], _relation(row)) for row in rows if row["compared"] and row["certified"] is not None}
    if len(terms) > 1:
        notes.append("certified epsilons are stated at different delta, relations or units: read each with its own")
    notes += [f"{row['run']}: its epsilons are for {row['other_terms']}" for row in rows if row["other_terms"]]
    if len({run.part.snapshot for run in alike if run.part is not None}) > 1:
        notes.append("records are taken for the same by their name: their ledgers cannot tell whether they are")
    if any(row["low"] is not None for row in rows):
        notes.append(INTERVALS)
    if any(row["majority"] is not None for row in rows):
        notes.append(MAJORITY)
    if any(row["accuracy"] is not None and row["low"] is None for row in rows):
        notes.append(
            "no interval where the number of test records is not on record: with eval_private it is not told, and runs of"
            " versions before 0.3 do not hold it"
        )
    return [*notes, CHOOSING, NO_TIMES]


# --- as text ----------------------------------------------------------------------------------------------------------


OF_NUMBERS = {"R2": "r2", "RMSE": "rmse", "RMSE of the mean": "mean_rmse"}
"""Columns of runs that predict a number."""


def _figure(key: str, row: Mapping[str, Any]) -> str:
    return "-" if row.get(key) is None else f"{row[key]:.4g}"


COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "run": lambda row: row["run"] if row["compared"] else f"{row['run']} ({_left_out(row)})",
    "accuracy": lambda row: as_share(row["accuracy"]),
    "95 % interval": lambda row: "-" if row["low"] is None else f"{100 * row['low']:.2f} to {percent(row['high'])}",
    "majority": lambda row: as_share(row["majority"]),
    "AUC": lambda row: "-" if row["auc"] is None else f"{row['auc']:.3f}",
    **{name: partial(_figure, key) for name, key in OF_NUMBERS.items()},
    "certified epsilon": lambda row: _epsilon(row, "certified"),
    "nominal": lambda row: _epsilon(row, "nominal"),
    "density": lambda row: as_share(row["density"]),
    "live": lambda row: "-" if row["live"] is None else f"{row['live']:,}",
    "parameters": lambda row: "-" if row["parameters"] is None else f"{row['parameters']:,}",
    "trained": lambda row: row["trained"] or "-",
    "filter": lambda row: row["filter"] or "-",
}
"""The columns of the table, and the text in each; a dash where something is not known."""


def _left_out(row: Mapping[str, Any]) -> str:
    return "not compared" if row["state"] == "finished" else str(row["state"])


def _epsilon(row: Mapping[str, Any], name: str) -> str:
    if row[name] is None:
        return "-"
    return figure(row[name]) + (f" ({row['other_terms']})" if row["other_terms"] else "")


def texts(body: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows as texts."""
    return [[cell(row) for cell in COLUMNS.values()] for row in body["rows"]]


def title(body: Mapping[str, Any]) -> str:
    """Return what the certified epsilons are stated at, where all compared rows agree; else nothing."""
    stated = {
        f"certified epsilon: delta {row['delta']:g}, {_relation(row)}"
        for row in body["rows"] if row["compared"] and row["certified"] is not None
    }  # fmt: skip
    return stated.pop() if len(stated) == 1 else ""


def costs(body: Mapping[str, Any]) -> list[str]:
    """Return what all that is compared costs together, in words; nothing where that is not known."""
    together = body["together"]
    return [] if together is None else [f"all {together['runs']} released together: {guarantee(together)}"]
