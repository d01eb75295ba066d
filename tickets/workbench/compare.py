"""``dpltm compare``: runs in folders, beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.options.evaluate import CompareRequest
from dpltm.privacy.account import Account
from dpltm.privacy.entry import lineage_of
from dpltm.privacy.statement import json_figure
from dpltm.progress import Progress
from dpltm.reports.statement import count, interval, run_subject, section
from dpltm.tickets.charts import against_epsilon, new_picture, write_charts
from dpltm.tickets.run import FoundRun, find_run


def compare_runs(request: CompareRequest, progress: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm compare``; a picture is drawn where one was asked for."""
    del progress
    paths: dict[Path, str] = {}  # with what the table calls them; a sweep stands for all of its runs
    for name in request.runs or ():
        members = Path(name) / "members"
        folders = {member / "run": member.name for member in sorted(members.iterdir())} if members.is_dir() else None
        paths |= folders or {Path(name): name}
    if len(paths) < 2:
        raise InputError("RUN: name at least two different runs, or a sweep with several")
    picture = new_picture(request.plot)
    body = as_flags(compare([find_run(path, label) for path, label in paths.items()]))
    if picture is not None:
        charts = against_epsilon([row for row in body["rows"] if row["compared"]])
        if not charts:
            raise InputError("`plot`: no run has both an accuracy and a finite epsilon")
        write_charts(picture, charts, "Runs")
    return {**body, "plot": request.plot}


CHOOSING = "choosing among these rows by their accuracy is a search, which no figure here counts"
READING = {
    "low": "intervals are Wilson's, 95 %, over test records: of these networks alone, not of other noise",
    "majority": "majority: accuracy of always saying the most frequent class of the test split; AUC: of one class against"
    " the rest, 0.5 by guessing",
}
"""How columns are to be read, where any row has them."""


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
    return {"rows": rows, "together": _together(alike), "notes": _notes(runs, rows, alike)}


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
    for what in ("test records", "classes"):
        mine, its = (count(row.config.get(what.replace(" ", "_"))) for row in (run, other))
        if mine != its and None not in (mine, its):
            return f"other {what}: {its:,}, not {mine:,}"
    private = [section(row.config, "options").get("eval_private") is None for row in (run, other)]
    return (
        None if private[0] == private[1] else "accuracy on training records, with noise, beside that on the test split"
    )


SETTINGS = ("density", "live", "parameters", "filter", "steps", "noise_multiplier")
MEASURED = ("accuracy", "test_records", "auc", "chance_over_share", "log_loss", "r2", "rmse", "mean_rmse")
"""Of a statement, which stand in a row under the same names."""


def _row(run: FoundRun, why: str | None) -> dict[str, Any]:
    subject = run_subject(run.label, run.config, run.result, parameters=run.parameters)
    settings, outcome = subject.settings, subject.outcome
    certified = section(run.privacy, "certified")
    density, at = settings["density"], settings["round"]
    ends = interval(outcome["accuracy"], outcome.get("test_records"))
    return {
        "run": run.label,
        "state": run.state,
        "compared": run.part is not None and bool(run.result) and why is None,
        "why_not": why if why is not None else next(iter(run.problems), None),
        "records": None if run.part is None else str(run.part),
        "network": settings["model"],
        "trained": None if density is None else "dense" if density == 1 or at is None else f"ticket, round {at}",
        "low": ends.get("low"),
        "high": ends.get("high"),
        "majority": outcome.get("majority_accuracy"),
        **{name: outcome.get(name) for name in MEASURED},
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
        epsilon = json_figure(Account.alone(lineage_of(*(run.lineage for run in alike))).epsilon(delta))
    except InputError:  # of two units
        epsilon = "inf"
    return {"runs": len(alike), "epsilon": epsilon, "delta": delta}


def _notes(runs: Sequence[FoundRun], rows: Sequence[Mapping[str, Any]], alike: Sequence[FoundRun]) -> list[str]:
    notes = []
    for run, row in zip(runs, rows, strict=True):
        why = None if row["compared"] else row["why_not"]
        notes += [f"{run.label}: not compared: {why}"] if why else []
        notes += [f"{run.label}: {problem}" for problem in run.problems if problem != why]
    if len({run.part.snapshot for run in alike if run.part is not None}) > 1:
        notes.append("records are taken for the same by their name: their ledgers cannot tell whether they are")
    notes += [note for key, note in READING.items() if any(row[key] is not None for row in rows)]
    return [*notes, CHOOSING]
