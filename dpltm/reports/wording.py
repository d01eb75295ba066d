"""Wording of a statement, section by section: the texts of ``wording.toml``, filled in from the statement alone.

Whoever shows them (a page, a card) escapes them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dpltm.networks.skill import BINS, Skill
from dpltm.privacy.accountants import ACCOUNTANTS
from dpltm.privacy.describe import describe, figure, guarantee, percent, percent_up
from dpltm.privacy.entry import TRAININGS, entry_from_json
from dpltm.reports.statement import PROVENANCE, precision

HARDLY = 10.0
"""From this epsilon up a guarantee says little: e^10 is about 22,000."""

FOR_SCHEMA = " for a schema"
"""Last words of a release that found the bounds or categories of columns."""

DECISION, ATTACKER, RECORDS = "For whoever decides", "What an attacker can do", "The records"
"""Titles of sections that pages look for."""


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
        return any((self.words, self.fields, self.tables, self.charts, self.notes))


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
    environment.filters.update(
        figure=figure, percent=percent, percent_up=percent_up, f=format, describe=describe, precision=precision,
        share=lambda value: "-" if value is None else percent(value),
    )  # fmt: skip
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
    told = [entry_from_json(entry) for entry in body["entries"]]
    names = {**_names(body), "verdict": verdict(body), "asked": criteria(body), "told": told, "costs": costs}
    parts = [
        Section(
            part["title"],
            [line for text in part.get("words", ()) for line in _template(text).render(names).splitlines() if line],
            [
                field for row in _condition(part.get("each", "[none]"))(names)
                for field in _fields(part.get("fields", ()), {**names, "row": row})
            ],
            _tables(part.get("tables", ()), names),
            notes=body["notes"] if "notes" in part else (),
        )
        for part in _texts()["section"] if _condition(part.get("when", "true"))(names)
    ]  # fmt: skip
    return [part for part in parts if part]


def skill_tables(skill: Skill) -> list[Table]:
    """Return recall and precision by class, subgroups, the confusion matrix, operating points and calibration."""
    bins = [
        {"low": place / BINS, "high": (place + 1) / BINS, **vars(part)}
        for place, part in enumerate(skill.bins) if part.records
    ]  # fmt: skip
    return tables("skill", skill=skill, bins=bins, two=len(skill.classes) == 2)


def tables(kind: str, **names: Any) -> list[Table]:
    """Return the tables of a kind in ``wording.toml`` that have any rows, of the values that they name."""
    return _tables(_texts()[kind], names)


def _tables(parts: Sequence[Mapping[str, Any]], names: Mapping[str, Any]) -> list[Table]:
    tables = []
    for part in parts:
        columns = [
            (name, cell, {**names, "column": column, "at": at})
            for head, cell, *repeated in part["columns"]
            for at, column in enumerate(_condition(repeated[0])(names) if repeated else [None])
            if (name := _template(head).render(names, column=column))
        ]
        rows = [
            [_template(cell).render(known, row=row, number=number) for _, cell, known in columns]
            for number, row in enumerate(_condition(part["each"])(names), start=1)
        ]
        if rows:
            title = _template(part["title"]).render(names)
            tables.append(Table(title, [name for name, *_ in columns], rows, part.get("stacked", False)))
    return tables


def markdown(body: Mapping[str, Any]) -> str:
    """Return the table for a document, with what it needs to be read alone."""
    lines = [f"## {body['recipe']}", "", body["source"], "", f"    dpltm run --config {body['config']}", ""]
    lines += [f"All together: {guarantee(body['privacy']['certified'])}.", ""]
    head = columns(body)
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_one_line(cell) for cell in cells(row, body)) + " |" for row in body["arms"]]
    holes = [(row["name"], hole) for row in body["arms"] for hole in row["missing"]]
    lines += ["", *(f"- HOLE: {name}, seed {hole['seed']}: {hole['why']}" for name, hole in holes)]
    lines += [f"- {row['name']}: {row['note']}" for row in body["arms"] if row["note"]]
    lines += [f"- {note}" for note in (*body["notes"], *body["privacy"]["notes"])]
    return "\n".join(lines) + "\n"


def columns(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the columns."""
    measure = "accuracy, %" if body["measure"] == "accuracy" else "RMSE"
    return ("arm", "paper", measure, "sd", "less control", "seeds", "certified epsilon", "nominal", "live")


def cells(row: Mapping[str, Any], body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a row, one text a column."""
    measure, privacy = body["measure"], row["privacy"]
    certified = "-" if privacy is None else figure(privacy["certified"]["epsilon"])
    nominal = "-" if privacy is None or privacy["nominal"] is None else figure(privacy["nominal"]["epsilon"])
    if privacy is not None and len(all_terms(body["arms"])) > 1:
        certified += f" ({terms(privacy)})"
    count = f"{row['count']}/{len(body['seeds'])}" + (" HOLE" if row["missing"] else "")
    change = "" if row["difference"] is None else _change(row["difference"], measure, row["count"])
    paper = "-" if row["paper"] is None else f"{row['paper']:g}"
    live = "-" if row["live"] is None else " to ".join(dict.fromkeys(f"{count:,}" for count in row["live"]))
    return (
        row["name"], paper, _with_interval(row, measure), _percent(row["sd"], measure), change, count, certified, nominal,
        live,
    )  # fmt: skip


def _percent(value: float | None, measure: str) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.2f}" if measure == "accuracy" else f"{value:.3f}"


def _with_interval(row: Mapping[str, Any], measure: str) -> str:
    """``97.38 ± 0.18``, or what there is of it."""
    mean = _percent(row["mean"], measure)
    return mean if row["interval"] is None else f"{mean} ± {_percent(row['interval'], measure)}"


def _change(difference: Mapping[str, Any], measure: str, count: int) -> str:
    """Return the paired difference; with the number of pairs, where the row has more trials."""
    if difference["mean"] is None:
        return "-"
    sign = "+" if difference["mean"] >= 0 else ""
    pairs = "" if difference["count"] == count else f" ({difference['count']} pairs)"
    return f"{sign}{_with_interval(difference, measure)}{pairs}"


def _one_line(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")


def terms(privacy: Mapping[str, Any]) -> str:
    """Return what a certified epsilon is to be read with (docs/privacy-model.md section 1.1)."""
    return "delta {delta:g}, {adjacency}, unit {unit}".format(**privacy["certified"])


def all_terms(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the terms of the rows, each once."""
    return list(dict.fromkeys(terms(row["privacy"]) for row in rows if row["privacy"] is not None))
