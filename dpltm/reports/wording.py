"""Wording of a statement, section by section: the texts of ``wording.toml``, filled in from the statement alone.

Whoever shows them (a page, a card) escapes them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dpltm.networks.skill import BINS, GroupSkill, Skill
from dpltm.privacy.accountants import ACCOUNTANTS
from dpltm.privacy.describe import describe, figure, percent, percent_up
from dpltm.privacy.entry import TRAININGS, entry_from_json
from dpltm.reports.statement import PROVENANCE, precision

HARDLY = 10.0
"""From this epsilon up a guarantee says little: e^10 is about 22,000."""

MOST_COLUMNS, MOST_ROWS = 12, 100
"""Classes whose confusion matrix, and whose recall and precision, a page has room for; ``result.json`` has those of more."""

FOR_SCHEMA = " for a schema"
"""Last words of a release that found the bounds or categories of columns."""

DECISION, ATTACKER, ENTRIES, RECORDS = (
    "For whoever decides", "What an attacker can do", "The entries, line by line", "The records",
)  # fmt: skip
"""Titles of sections that more belongs to than texts."""


@dataclass(frozen=True)
class Field:
    """One line: a field as the literature names it, its value, and a sentence on it; empty for none."""

    name: str
    value: str
    meaning: str = ""


@dataclass(frozen=True)
class Table:
    """A table of texts; the first of a row names it. If ``stacked``, a narrow screen shows its cells below each other."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    stacked: bool = False


@dataclass(frozen=True)
class Section:
    """A part of a page or a card; what is empty is left out. Charts are of pages alone."""

    title: str
    words: Sequence[str] = ()
    fields: Sequence[Field] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Any] = ()
    notes: Sequence[str] = ()

    def __bool__(self) -> bool:
        """Return whether there is anything in it."""
        return bool(self.words or self.fields or self.tables or self.charts or self.notes)


MET, MISSED, OPEN = "yes", "no", "not known"
"""Answers to a criterion."""


@dataclass(frozen=True)
class Criterion:
    """One question of whoever decides about a release, its answer, and what the answer rests on."""

    question: str
    met: str
    why: str


class _Values(dict[str, Any]):
    """Settings or outcomes; what is not among them is None."""

    def __missing__(self, key: str) -> None:
        return None


@cache
def _texts() -> dict[str, Any]:
    source, *_ = PackageLoader("dpltm.reports", ".").get_source(_environment(), "wording.toml")
    return tomllib.loads(source)


@cache
def _environment() -> Environment:
    environment = Environment(undefined=StrictUndefined)
    environment.filters.update(figure=figure, percent=percent, percent_up=percent_up, f=format)
    return environment


@cache
def _template(text: str) -> Any:
    return _environment().from_string(text)


@cache
def _condition(expression: str) -> Any:
    return _environment().compile_expression(expression, undefined_to_none=False)


def _fields(rows: Sequence[Sequence[str]], names: Mapping[str, Any]) -> list[Field]:
    return [
        Field(*(_template(text).render(names) for text in texts))
        for *texts, when in ([*row, "true"][:4] for row in rows)
        if _condition(when)(names)
    ]


def _names(body: Mapping[str, Any]) -> dict[str, Any]:
    """What texts may use: all of a statement, its settings as ``s``, its outcome as ``o``, and what follows from them."""
    said, certified = _Values(body["settings"]), body["certified"]
    mechanisms = [mechanism for entry in body["entries"] for mechanism in entry["mechanisms"]]
    kinds = {mechanism["mechanism"] for mechanism in mechanisms}
    paid = [entry for entry in body["entries"] if entry["kind"] in ("release", "local")]
    steps = {  # of its own training: those of others, such as in front of it, may differ
        mechanism["mechanism"]: mechanism for mechanism in mechanisms
        if mechanism["mechanism"] in TRAININGS
        and all(mechanism[name] == said[name] for name in ("sampling_rate", "steps", "noise_multiplier"))
    }  # fmt: skip
    sampled = (
        "cyclic" if "banded-sgd" in steps else "all" if said["sampling_rate"] == 1 else
        "allocation" if "allocated-sgd" in steps else "truncated" if "truncated-sgd" in steps else "poisson"
    )  # fmt: skip
    trained = body["kind"] == "run" and said["steps"] is not None
    names: dict[str, Any] = {
        **body, "s": said, "o": _Values(body["outcome"]), "unit": certified["unit"], "hardly": HARDLY, "trained": trained,
        "decided": body["kind"] == "run" and body["state"] == "finished", "provenances": PROVENANCE,
        "mechanisms": kinds, "noisy_steps": bool(kinds & TRAININGS), "sampled": sampled,
        "method": ACCOUNTANTS[certified["accountant"]].help if certified["accountant"] in ACCOUNTANTS else "",
        "times": round(said["sampling_rate"] * said["steps"]) if sampled == "allocation" else None,
        "most": steps["truncated-sgd"]["truncated_batch_size"] if sampled == "truncated" else None,
        "days": [str(entry["day"]) for entry in paid if entry.get("day")], "releases": len(paid),
        "schema_entries": [
            number for number, entry in enumerate(body["entries"], start=1)
            if str(entry.get("words", "")).endswith(FOR_SCHEMA)
        ],
        "beside": list(dict.fromkeys(str(entry["words"]) for entry in body["entries"] if _released_alone(entry))),
    }  # fmt: skip
    for name, text in _texts()["names"].items():
        names[name] = _template(text).render(names)
    return names


def _released_alone(entry: Mapping[str, Any]) -> bool:
    kinds = {mechanism["mechanism"] for mechanism in entry["mechanisms"]}
    return bool(kinds & {"gaussian", "laplace"}) and not kinds & TRAININGS


def criteria(body: Mapping[str, Any]) -> list[Criterion]:
    """Return what is asked of a run that has ended, with the answers; nothing for anything else."""
    names, asked = _names(body), list[Criterion]()
    for criterion in _texts()["criterion"] if names["decided"] else ():
        met, why, _ = next(answer for answer in criterion["answers"] if _condition(answer[2])(names))
        answer = {True: MET, False: MISSED, None: OPEN}[_condition(met)(names)]
        asked.append(Criterion(_template(criterion["question"]).render(names), answer, _template(why).render(names)))
    return asked


def verdict(body: Mapping[str, Any]) -> str:
    """Return what the criteria come to, in one sentence; empty for anything but a run that has ended."""
    asked = criteria(body)
    for answer, said in ((MISSED, "should not go out"), (OPEN, "is not decided yet")):
        if reasons := [criterion.why for criterion in asked if criterion.met == answer]:
            return f"By its criteria this {said}: {'; '.join(reasons)}."
    return "By its criteria this may go out: all of them are met." if asked else ""


def headline(body: Mapping[str, Any]) -> str:
    """Return the guarantee in one sentence."""
    return str(_template(_texts()["page"]["headline"]).render(_names(body)))


def boxes(body: Mapping[str, Any]) -> list[Field]:
    """Return the figures that a page begins with."""
    return _fields(_texts()["page"]["boxes"], _names(body))


def sections(body: Mapping[str, Any], costs: Sequence[str] = ()) -> list[Section]:
    """Return the sections of a statement that have anything in them.

    Args:
        costs: of each entry alone, in words; empty to leave them out.
    """
    names, more = {**_names(body), "verdict": verdict(body)}, _computed(body, costs)
    parts = [
        Section(
            part["title"],
            [line for text in part.get("words", ()) for line in _template(text).render(names).splitlines() if line],
            more.get(part["title"], {}).get("fields") or _fields(part.get("fields", ()), names),
            more.get(part["title"], {}).get("tables", ()),
            notes=body["notes"] if part["title"] == "Notes" else (),
        )
        for part in _texts()["section"] if _condition(part.get("when", "true"))(names)
    ]  # fmt: skip
    return [part for part in parts if part]


def _computed(body: Mapping[str, Any], costs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return tables and lists by the title of their section."""
    entries = [entry_from_json(entry) for entry in body["entries"]]
    rows = [(str(at), str(entry.part), describe(entry)) for at, entry in enumerate(entries, start=1)]
    head: tuple[str, ...] = ("entry", "records", "what was done")
    priced: Sequence[tuple[str, ...]] = rows
    if costs:
        priced, head = [(*row, cost) for row, cost in zip(rows, costs, strict=True)], (*head, "epsilon alone")
    found = [
        (f"{100 * row['false_alarms']:g} %", percent_up(row["at_most"]),
         *(percent_up(precision(row["at_most"], row["false_alarms"], prior)) for prior in (0.5, 0.1)))
        for row in (body["odds"] or {"found": ()})["found"]
    ]  # fmt: skip
    finder = (
        "false alarms",
        "records found, at most",
        "a yes is right, at most (prior 50 %)",
        "the same (prior 10 %)",
    )
    asked = [(criterion.question, criterion.met, criterion.why) for criterion in criteria(body)]
    tables = {
        DECISION: Table("Criteria", ("criterion", "met", "because"), asked, stacked=True),
        ATTACKER: Table("The best attacker", finder, found),
        ENTRIES: Table("Entries behind this, in their order", head, priced, stacked=True),
    }
    versions = [Field(name, str(number)) for name, number in body["versions"].items()]
    return {"Made with": {"fields": versions}} | {
        title: {"tables": [table]} for title, table in tables.items() if table.rows
    }


# --- how good a network is: of pages alone ------------------------------------------------------------------------------


def skill_tables(skill: Skill) -> Iterator[Table]:
    """Yield recall and precision by class, of subgroups, the confusion matrix, operating points and calibration."""
    names, two = [one.name for one in skill.classes], len(skill.classes) == 2
    rows = [(one.name, f"{one.records:,}", _share(one.recall), _share(one.precision)) for one in skill.classes]
    yield Table(
        "Class by class, on the test split", ("class", "test records", "recall", "precision"), rows[:MOST_ROWS]
    )
    if skill.groups:
        head: tuple[str, ...] = ("group", "test records", "AUC (95 %)", "accuracy", "majority")
        yield Table("Subgroups of the test split", head, [_judged(group) for group in skill.groups[:MOST_ROWS]])
    if skill.confusion is not None and len(names) <= MOST_COLUMNS:
        counts = [(name, *(f"{cell:,}" for cell in row)) for name, row in zip(names, skill.confusion, strict=True)]
        title = "Test records by their class (rows) and by what the model says"
        yield Table(title, ("class", *(f"says {name}" for name in names)), counts)
    if skill.points:
        points = [
            (f"{one.threshold:g}", *map(_share, (one.recall, one.precision, one.specificity)), f"{one.named:,}")
            for one in skill.points
        ]
        head = (f"chance of {names[1]} from", "found (sensitivity)", "right when named (positive predictive value)",
                "others left alone (specificity)", "named")  # fmt: skip
        title = (
            f"Where to draw the line for {names[1]}; chosen on these test records, so a little better than on others"
        )
        yield Table(title, head, points, stacked=True)
    binned = [
        (f"{place / BINS:.1f} to {(place + 1) / BINS:.1f}", f"{one.records:,}", _share(one.chance), _share(one.share))
        for place, one in enumerate(skill.bins)
        if one.records
    ]
    head = ("bin", "test records", f"mean chance of {names[1] if two else 'the class it says'}",
            f"share of {names[1]}" if two else "share right")  # fmt: skip
    yield Table("Calibration: do its chances come true?", head, binned)


def _judged(group: GroupSkill) -> tuple[str, ...]:
    auc = "-" if group.auc is None else "{value:.3f} ({low:.3f} to {high:.3f})".format(**vars(group.auc))
    accuracy = None if group.accuracy is None else group.accuracy.value
    return group.name, f"{group.records:,}", auc, _share(accuracy), _share(group.majority_accuracy)


def _share(share: float | None) -> str:
    return "-" if share is None else percent(share)
