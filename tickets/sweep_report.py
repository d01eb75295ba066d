"""What there is of a sweep, for a report: its table, and what all of it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError, DpltmError, first_line
from dpltm.experiments.table import cells, columns
from dpltm.privacy.account import Account
from dpltm.privacy.entry import RECORD, lineage_from_json, lineage_of
from dpltm.privacy.figures import figure
from dpltm.reports.fields import percent
from dpltm.reports.statement import Subject, Terms
from dpltm.reports.subjects import count, number, section, text
from dpltm.tickets.files import MAX_JSON, parse_json, read_bytes, read_json
from dpltm.tickets.ledger_file import BESIDE, open_ledger
from dpltm.tickets.sweep_files import FORMAT, RESULT_FORMAT, RESULT_SCHEMA, SCHEMA


@dataclass(frozen=True)
class FoundSweep:
    """A sweep, as far as it is there.

    Attributes:
        subject: what its statement is about.
        account: of its ledger, and of everything behind what has ended.
        terms: of the guarantee.
        rows: head and rows of its table, as texts.
        points: of its rows, for a chart.
        measure: ``accuracy`` or ``rmse``.
        problems: what is missing or wrong.
        state: ``finished``, ``unfinished`` or ``damaged``.
    """

    subject: Subject
    account: Account
    terms: Terms
    rows: tuple[Sequence[str], Sequence[Sequence[str]]]
    points: Sequence[Mapping[str, Any]]
    measure: str
    problems: Sequence[str]
    state: str


def is_sweep(path: Path) -> bool:
    """Return whether a folder is of a recipe."""
    return (path / "recipe.json").is_file() and (path / "members").is_dir()


def find_sweep(path: Path) -> FoundSweep:
    """Return the sweep in a folder; nothing is written there.

    Raises:
        ArtifactError: its ledger is damaged: nobody could say what all of it cost.
    """
    title = text(read_json(path / "recipe.json", FORMAT, SCHEMA).get("title")) or path.name
    members, problems = _members(path)
    lineage = lineage_of(*(lineage_from_json(one["lineage"]) for one in members if "lineage" in one))
    trained = [(text(one.get("arm")) or path.name, section(one, "train")) for one in members]
    certified = [section(section(one, "privacy"), "certified") for _, one in trained]
    deltas = [delta for one in certified if (delta := number(one.get("delta"))) is not None and 0 < delta < 1]
    replace_one = any(one.get("adjacency") == "replace-one" for one in certified)
    terms = Terms(min(deltas, default=1e-5), adjacency="replace-one" if replace_one else "add-remove")
    rows, points, measure, state = _table(path, trained, problems)
    if (path / BESIDE).exists():
        account = open_ledger(path / BESIDE, links=False).account(lineage)
    else:
        problems.append(f"{path / BESIDE}: is not there: what failed attempts cost is in the ledger that was named")
        account = Account.of((), lineage, unit=next((entry.unit for entry in lineage.paid), RECORD))
    there = len(list((path / "members").iterdir()))
    settings = {"title": title, "arms": len({name for name, _ in trained}), "finished": len(trained), "members": there}
    state = "damaged" if problems and state == "finished" else state
    subject = Subject("sweep", path.resolve().name, settings)
    return FoundSweep(subject, account, terms, rows, points, measure, problems, state)


def _members(path: Path) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The results of trials that are finished, and what is wrong with others."""
    found, problems = list[Mapping[str, Any]](), list[str]()
    for folder in sorted((path / "members").iterdir()):
        try:
            found.append(read_json(folder / "result.json", RESULT_FORMAT, RESULT_SCHEMA))
        except ArtifactError as error:
            ended = (folder / "result.json").exists()
            problems.append(first_line(error) if ended else f"{folder.name}: is not finished")
    return found, problems


def _table(
    path: Path, members: Sequence[tuple[str, Mapping[str, Any]]], problems: list[str]
) -> tuple[Any, Any, str, str]:
    """Head and rows, points, measure, and state: from ``results.json``, or from the trainings that have ended."""
    try:
        body: Any = parse_json(path / "results.json", read_bytes(path / "results.json", MAX_JSON))
        rows = [cells(row, body) for row in body["arms"]]
        points = [_point(row) for row in body["arms"]]
        complete = count(body["finished"]) == count(body["members"])
        return (columns(body), rows), points, str(body["measure"]), "finished" if complete else "unfinished"
    except (DpltmError, KeyError, TypeError, ValueError, AttributeError):
        problems.append(
            f"{path / 'results.json'}: is missing or damaged: the table shows each training that has ended"
        )
    plain = []
    for name, one in members:
        accuracy, spent = number(one.get("accuracy")), section(section(one, "privacy"), "certified").get("epsilon")
        known = spent == "inf" or number(spent) is not None
        plain.append((name, "-" if accuracy is None else percent(accuracy), figure(spent) if known else "-"))  # type: ignore[arg-type]
    return (("arm", "accuracy", "certified epsilon"), plain), [], "accuracy", "unfinished"


def _point(row: Mapping[str, Any]) -> dict[str, Any]:
    mean, half, privacy = row["mean"], row["interval"], row["privacy"]
    known = mean is not None and half is not None
    return {
        "label": str(row["name"]), "value": mean, "epsilon": None if privacy is None else privacy["certified"]["epsilon"],
        "low": mean - half if known else None, "high": mean + half if known else None,
    }  # fmt: skip
