"""Runs beside each other: which of them can be compared, and what all of them cost together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpltm.errors import InputError
from dpltm.privacy.account import Account
from dpltm.privacy.entry import NO_LINEAGE, RECORD, Lineage, Part, lineage_of
from dpltm.privacy.statement import json_figure
from dpltm.reports.intervals import interval
from dpltm.reports.subjects import count, number, section, text

NO_TIMES = (
    "seconds a step are left out: they tell the private number of records, so no run holds them;"
    " benchmarks/training_step.py measures them on made-up records"
)
INTERVALS = "intervals are Wilson's, 95 %, over test records: of these networks alone, not of other noise"
CHOOSING = "choosing among these rows by their accuracy is a search, which no figure here counts"


@dataclass(frozen=True)
class Candidate:
    """A run that is to be compared.

    Attributes:
        label: what the table calls it.
        state: ``finished``, ``unfinished`` or ``damaged``.
        problems: what is missing or wrong with it.
        config, result: of its files; empty where they cannot be read.
        parameters: of its network, if that could be read.
        part: the records that it was trained on, if that is known.
        lineage: everything that it depends on.
        privacy: what that comes to by itself, as JSON; None where no rule says.
    """

    label: str
    state: str
    problems: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    part: Part | None = None
    lineage: Lineage = NO_LINEAGE
    privacy: Mapping[str, Any] | None = None


def compare(candidates: Sequence[Candidate]) -> dict[str, Any]:
    """The table: a row for each candidate, in their order, and notes.

    Raises:
        InputError: no two of those that have ended can be compared.
    """
    ended = [one for one in candidates if one.part is not None and one.result]
    first = ended[0] if ended else None
    why = {one.label: None if first is None else unlike(first, one) for one in ended}
    alike = [one for one in ended if why[one.label] is None]
    if len(ended) >= 2 and len(alike) < 2:
        raise InputError(
            f"RUN: nothing can be compared: {ended[1].label}: {why[ended[1].label]}; name runs on the same records"
        )
    if not ended and not any(one.state == "unfinished" for one in candidates):
        raise InputError(f"RUN: nothing can be compared: {candidates[0].problems[0]}")
    rows = [_row(one, why.get(one.label)) for one in candidates]
    usual = next((_relation(row) for row in rows if row["compared"] and row["certified"] is not None), None)
    for row in rows:
        other = row["certified"] is not None and usual is not None and _relation(row) != usual
        row["other_terms"] = f"{row['adjacency']}, unit {row['unit']}" if other else None
    return {"rows": rows, "together": _together(alike), "notes": _notes(candidates, rows, alike)}


def _relation(row: Mapping[str, Any]) -> tuple[Any, Any]:
    return row["adjacency"], row["unit"]


def unlike(one: Candidate, other: Candidate) -> str | None:
    """Why two runs cannot be compared; None if they can."""
    ours, theirs = one.part, other.part
    assert ours is not None
    assert theirs is not None
    if ours.snapshot != theirs.snapshot and ours.name != theirs.name:  # a snapshot has an id in each ledger
        return f"other data: {theirs}, not {ours}"
    if (ours.cut, ours.start, ours.stop) != (theirs.cut, theirs.start, theirs.stop):
        return f"another part of the data: {theirs}, not {ours}"
    for what, key in (("test records", "test_records"), ("classes", "classes")):
        mine, its = count(one.config.get(key)), count(other.config.get(key))
        if mine != its and None not in (mine, its):
            return f"other {what}: {its:,}, not {mine:,}"
    if ("rmse" in one.result) != ("rmse" in other.result):
        return "another measure"
    if measured_privately(one) != measured_privately(other):
        return "accuracy on training records, with noise, beside that on the test split"
    return None


def measured_privately(one: Candidate) -> bool:
    """Whether accuracy is that on the training records, with noise."""
    return section(one.config, "options").get("eval_private") is not None


def _trained(density: float | None, number_of: int | None) -> str | None:
    """What was trained: a whole network, or the ticket of a round; None where the run does not say."""
    if density is None:
        return None
    return "dense" if density == 1 or number_of is None else f"ticket, round {number_of}"


def _row(one: Candidate, why: str | None) -> dict[str, Any]:
    facts, privacy = section(one.config, "resolved"), one.privacy
    accuracy, density = number(one.result.get("accuracy")), number(facts.get("density"))
    tested = None if measured_privately(one) else count(one.config.get("test_records"))
    ends = interval(accuracy, tested) or {}
    return {
        "run": one.label,
        "state": one.state,
        "compared": one.part is not None and bool(one.result) and why is None,
        "why_not": why if why is not None else next(iter(one.problems), None),
        "records": None if one.part is None else str(one.part),
        "network": text(one.config.get("model")),
        "trained": _trained(density, count(facts.get("round"))),
        "accuracy": accuracy,
        "low": ends.get("low"),
        "high": ends.get("high"),
        "test_records": tested,
        "rmse": number(one.result.get("rmse")),
        "certified": None if privacy is None else privacy["certified"]["epsilon"],
        "nominal": None if privacy is None or privacy["nominal"] is None else privacy["nominal"]["epsilon"],
        "delta": None if privacy is None else privacy["certified"]["delta"],
        "adjacency": None if privacy is None else privacy["certified"]["adjacency"],
        "unit": None if privacy is None else privacy["certified"]["unit"],
        "density": density,
        "live": count(facts.get("live")),
        "parameters": one.parameters,
        "filter": text(facts.get("filter")),
        "steps": count(facts.get("steps")),
        "noise_multiplier": number(facts.get("noise_multiplier")),
    }


def _together(alike: Sequence[Candidate]) -> dict[str, Any] | None:
    """What the runs that can be compared cost if all of them are released; None where there are fewer than two."""
    if len(alike) < 2:
        return None
    privacy = [one.privacy for one in alike if one.privacy is not None]
    delta = min((each["certified"]["delta"] for each in privacy), default=1e-5)
    try:
        found = lineage_of(*(one.lineage for one in alike))
        epsilon = Account.of((), found, unit=found.paid[0].unit if found.paid else RECORD).epsilon(delta)
    except InputError:  # of two units
        return {"runs": len(alike), "epsilon": "inf", "delta": delta}
    return {"runs": len(alike), "epsilon": json_figure(epsilon), "delta": delta}


def _notes(
    candidates: Sequence[Candidate], rows: Sequence[Mapping[str, Any]], alike: Sequence[Candidate]
) -> list[str]:
    notes = [f"{row['run']}: not compared: {row['why_not']}" for row in rows if not row["compared"] and row["why_not"]]
    for one in candidates:
        notes += [
            f"{one.label}: {problem}"
            for problem in one.problems
            if f"{one.label}: not compared: {problem}" not in notes
        ]
    terms = {
        (row["delta"], row["adjacency"], row["unit"])
        for row in rows
        if row["compared"] and row["certified"] is not None
    }
    if len(terms) > 1:
        notes.append("certified epsilons are stated at different delta, relations or units: read each with its own")
    notes += [f"{row['run']}: its epsilons are for {row['other_terms']}" for row in rows if row["other_terms"]]
    if len({one.part.snapshot for one in alike if one.part is not None}) > 1:
        notes.append("records are taken for the same by their name: their ledgers cannot tell whether they are")
    if any(row["low"] is not None for row in rows):
        notes.append(INTERVALS)
    if any(row["accuracy"] is not None and row["low"] is None for row in rows):
        notes.append(
            "no interval where the number of test records is not on record: with eval_private it is not told, and runs of"
            " versions before 0.3 do not hold it"
        )
    return [*notes, CHOOSING, NO_TIMES]
