"""The public schema of a table: the content of each column, so that records with words, dates and holes become numbers.

A schema is a public input (privacy-model.md 1.4): it is written down by somebody who knows the table, and nothing in it may
be read off private records. Every record is encoded by it alone, so that one record more or less changes one row.
"""

from __future__ import annotations

import datetime
import json
import math
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from dpltm.errors import ArtifactError, DataError, first_line
from dpltm.privacy.entry import NO_LINEAGE, Lineage, lineage_from_text, to_json
from dpltm.records.dataset import shown

PRIVATE = "private"
"""In place of bounds, or of values: they are to be found under DP."""

KINDS = ("number", "category", "hashed", "date", "label", "ignored")

MAX_CATEGORIES, MAX_FEATURES, MAX_BYTES = 10_000, 100_000, 2**20
"""Of a column; of a table; of a file. Guards against typing errors and hostile files."""

_FIELDS = {
    "number": {"bounds", "missing", "other", "log"},
    "category": {"values", "missing", "other"},
    "hashed": {"buckets", "missing"},
    "date": {"bounds", "missing", "other"},
    "label": {"classes"},
    "ignored": set[str](),
}
"""Fields of a column by its kind, beside ``kind``."""


@dataclass(frozen=True)
class Column:
    """Content of a column.

    Attributes:
        bounds: of numbers, or of dates as days since the year 1: what is outside counts as the nearest of them.
        values: spellings of each category, or of each class of labels.
        buckets: numbers that words are hashed to.
        missing: whether cells may be empty; then one feature says so.
        other: whether other categories are allowed; they are none of the features. Of numbers and dates, whether other words
            are; they count as empty cells.
        log: whether logarithms of numbers are taken, from the lower bound on.
        wanted: whether bounds or values are still to be found under DP (``dpltm.verbs.schema``); then one feature.
    """

    name: str
    kind: str
    bounds: tuple[float, float] = (0.0, 1.0)
    values: tuple[tuple[str, ...], ...] = ()
    buckets: int = 0
    missing: bool = False
    other: bool = False
    log: bool = False
    wanted: bool = False

    @property
    def features(self) -> int:
        """Number of features that it becomes."""
        if self.kind in ("label", "ignored"):
            return 0
        spread = {"category": len(self.values), "hashed": self.buckets}
        return 1 if self.wanted else spread.get(self.kind, 1) + self.missing


@dataclass(frozen=True)
class Schema:
    """Content of a table.

    Attributes:
        skip: beginning of lines that are no records; nothing for none.
        lineage: releases that bounds and values were found by, and public records that they were read off.
    """

    columns: tuple[Column, ...]
    header: bool = True
    missing: tuple[str, ...] = ("",)
    skip: str = ""
    lineage: Lineage = NO_LINEAGE
    text: str = ""

    @property
    def label(self) -> Column:
        """The column of labels."""
        return next(column for column in self.columns if column.kind == "label")

    @property
    def class_names(self) -> tuple[str, ...]:
        """First spelling of each class."""
        return tuple(spellings[0] for spellings in self.label.values)

    @property
    def features(self) -> int:
        """Number of features of all columns, one after another."""
        return sum(column.features for column in self.columns)

    @property
    def wanted(self) -> tuple[Column, ...]:
        """Columns of which something is still to be found."""
        return tuple(column for column in self.columns if column.wanted)

    def check_finished(self) -> None:
        """Raise DataError if something is still to be found."""
        if self.wanted:
            raise DataError(
                f"`schema`: bounds or values of {shown([column.name for column in self.wanted])} are still private; write"
                " public ones, or find them with dpltm datasets schema FILE `private` SCHEMA"
            )


def class_names(text: str) -> tuple[str, ...]:
    """Return the names of classes in the text of a schema that a dataset keeps; none without one."""
    return parse_schema(text, "schema").class_names if text else ()


def read_schema(path: Path, option: str = "`schema`") -> Schema:
    """Return the schema in a file that an option names; DataError if there is none, or it is no schema."""
    where = f"{option} {path}"
    if not path.is_file():  # nor a pipe, which would be waited for
        raise DataError(f"{where}: no such file; correct the path, or draft one with dpltm datasets schema")
    try:
        with path.open("rb") as stream:
            body = stream.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise DataError(f"{where}: is larger than {MAX_BYTES >> 20} MB, as no schema is")
        return parse_schema(body.decode(), where)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{where}: cannot be read ({first_line(error)}); correct the path") from None


def parse_schema(text: str, where: str) -> Schema:
    """Return a schema as it is written, TOML; messages say ``where`` it stands. DataError if it is none."""
    try:
        body = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DataError(f"{where}: is no TOML ({first_line(error)}); correct it") from None
    if "found" in body:
        raise DataError(f"{where}: written by dpltm before 0.3; find its bounds and values again")
    strange = sorted(set(body) - {"header", "missing", "skip", "lineage", "column"})
    if strange or not isinstance(body.get("column"), dict) or not body["column"]:
        what = f"has unknown keys {shown(strange)}" if strange else "has no [column.NAME]"
        raise DataError(f"{where}: {what}; dpltm datasets schema drafts one")
    columns = tuple(_column(name, given, f"{where}: column {name!r:.60}") for name, given in body["column"].items())
    header, missing, skip = body.get("header", True), body.get("missing", [""]), body.get("skip", "")
    texts = isinstance(missing, list) and all(isinstance(value, str) for value in missing)
    if not (isinstance(header, bool) and texts and isinstance(skip, str)):
        raise DataError(f"{where}: header is true or false, missing a list of texts, and skip a text")
    labels = sum(column.kind == "label" for column in columns)
    if labels != 1:
        raise DataError(f'{where}: has {labels} columns of kind "label"; give one, with its classes')
    try:
        lineage = lineage_from_text(str(body["lineage"])) if "lineage" in body else NO_LINEAGE
    except ArtifactError as error:
        raise DataError(
            f"{where}: its lineage is damaged ({first_line(error)}); put it back, or find it again"
        ) from None
    schema = Schema(columns, header, tuple(missing), skip, lineage, text)
    if not 0 < schema.features <= MAX_FEATURES:
        raise DataError(f"{where}: makes {schema.features:,} features; give from 1 to {MAX_FEATURES:,}")
    return schema


def _column(name: str, given: object, where: str) -> Column:
    kind = given.get("kind") if isinstance(given, dict) else None
    if not isinstance(given, dict) or kind not in KINDS:
        raise DataError(f"{where}: kind is not one of {', '.join(KINDS)}; say what it holds")
    strange = sorted(set(given) - {"kind"} - _FIELDS[kind])
    if kind == "label" and "values" in strange:
        raise DataError(f'{where}: a label has classes in place of values; write classes = ["A", "B"]')
    if strange:
        raise DataError(f"{where}: {shown(strange)} does not go with kind {kind!r}; leave it out")
    flags = {flag: given.get(flag, False) for flag in ("missing", "other", "log")}
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise DataError(f"{where}: missing, other and log are true or false")
    if kind != "category" and flags["other"] and not flags["missing"]:
        raise DataError(f"{where}: with other = true what is no {kind} counts as empty; say missing = true as well")
    found: dict[str, Any] = {"name": name, "kind": kind, **flags}
    wanted = {"number": "bounds", "date": "bounds", "category": "values"}.get(kind)
    if wanted is not None and given.get(wanted) == PRIVATE:
        return Column(**found, wanted=True)
    match kind:
        case "number" | "date":
            found["bounds"] = _bounds(given.get("bounds"), kind, where)
        case "category" | "label":
            found["values"] = _values(given.get("values" if kind == "category" else "classes"), kind, where)
        case "hashed":
            buckets = found["buckets"] = given.get("buckets")
            if type(buckets) is not int or not 2 <= buckets <= MAX_CATEGORIES:
                raise DataError(f"{where}: buckets is not a whole number from 2 to {MAX_CATEGORIES:,}")
    return Column(**found)


def _bounds(given: object, kind: str, where: str) -> tuple[float, float]:
    wanted = "dates, the first and the last" if kind == "date" else "numbers, the lowest and the highest"
    ends = given if isinstance(given, list) and len(given) == 2 else [None, None]
    plain: list[Any] = [end.date() if isinstance(end, datetime.datetime) else end for end in ends]
    if kind == "date":
        plain = [end.toordinal() if isinstance(end, datetime.date) else None for end in plain]
    if not all(type(end) in (int, float) for end in plain):
        raise DataError(f"{where}: bounds are public {wanted}: bounds = [LO, HI]")
    try:
        low, high = map(float, plain)
    except OverflowError:
        low, high = math.inf, math.inf
    if not (low < high and math.isfinite(high - low)):
        raise DataError(f"{where}: bounds are public {wanted}, and the first below the second")
    return low, high


def _values(given: object, kind: str, where: str) -> tuple[tuple[str, ...], ...]:
    """Categories or classes, each a text or a list of its spellings."""
    name, least = ("classes", 2) if kind == "label" else ("values", 1)
    each = [one if isinstance(one, list) else [one] for one in given] if isinstance(given, list) else []
    plain = all(some and all(type(one) in (int, str) for one in some) for some in each)
    if not (plain and least <= len(each) <= MAX_CATEGORIES):
        raise DataError(f'{where}: {name} are public texts, {least} or more: {name} = ["A", "B"]')
    spelled = tuple(tuple(str(one).strip() for one in some) for some in each)
    most, times = Counter(one for some in spelled for one in some).most_common(1)[0]
    if times > 1:
        raise DataError(f"{where}: {most!r:.40} is among its {name} twice; leave one out")
    return spelled


# as text


def schema_text(schema: Schema, columns: Sequence[Column], lineage: Lineage) -> str:
    """Return a schema with other columns as TOML, with the lineage of the releases that they were found by."""
    lines = ["# Bounds and values that were private in the draft were found under DP, by the releases below."]
    lines += ["" if schema.header else "header = false", f"missing = {_list(schema.missing)}"]
    lines += [f"skip = {_text(schema.skip)}"] if schema.skip else []
    lines.append(lineage_text(schema.lineage | lineage))
    head = "\n".join(line for line in lines if line)
    return "\n\n".join([head, *map(_column_text, columns)]) + "\n"


def _column_text(column: Column) -> str:
    said = [f"[column.{_text(column.name)}]", f"kind = {_text(column.kind)}"]
    said += [f"{flag} = true" for flag in ("missing", "other", "log") if getattr(column, flag)]
    match column.kind:
        case "number":
            ends = (str(int(end)) if end.is_integer() and abs(end) < 2**53 else repr(end) for end in column.bounds)
            said.append("bounds = [{}, {}]".format(*ends))
        case "date":
            days = (datetime.date.fromordinal(int(end)).isoformat() for end in column.bounds)
            said.append("bounds = [{}, {}]".format(*days))
        case "category" | "label":
            name = "values" if column.kind == "category" else "classes"
            each = (_text(some[0]) if len(some) == 1 else _list(some) for some in column.values)
            said.append(f"{name} = [{', '.join(each)}]")
        case "hashed":
            said.append(f"buckets = {column.buckets}")
    return "\n".join(said)


def lineage_text(lineage: Lineage) -> str:
    """Return the line of a schema that holds a lineage: JSON in a text."""
    return f"lineage = {_text(json.dumps(to_json(lineage)))}"


def _list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"


def _text(value: str) -> str:
    """Return a basic string: JSON's, but that TOML wants one more character escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# cells as numbers


def number_of(cell: str) -> float:
    """Return what stands for a cell where records are told apart: itself, or of a word a number made of it."""
    value = as_number(cell)
    return float(int.from_bytes(blake2b(cell.encode(), digest_size=6).digest())) if value is None else value


def as_number(cell: str) -> float | None:
    """Return the number that a cell holds; None where it holds none."""
    try:
        return float(cell)
    except ValueError:
        return None


def as_days(cell: str) -> float | None:
    """Return the days from the year 1 to a date, YYYY-MM-DD and perhaps a time; None where a cell holds none."""
    try:
        return float(datetime.date.fromisoformat(cell[:10]).toordinal())
    except ValueError:
        return None


def encoded(
    column: Column, cells: Sequence[str], empty: frozenset[str], faults: list[str], lines: Sequence[int]
) -> np.ndarray:
    """Return the features of one column, ``(n, column.features)`` float32 in [0, 1].

    Guarantees:
        Row i depends on cell i and on the schema alone.
    """
    found = np.zeros((len(cells), column.features), dtype=np.float32)
    places = {spelling: place for place, spellings in enumerate(column.values) for spelling in spellings}
    hole, (low, high) = found.shape[1] - 1, column.bounds
    for row, cell in enumerate(cells):
        fault = ""
        if cell in empty:
            found[row, hole] = column.missing
            fault = "" if column.missing else " is empty (missing = true allows that)"
        elif column.kind == "category":
            place = places.get(cell)
            if place is not None:
                found[row, place] = 1.0
            elif not column.other:
                fault = f": {cell!r:.40} is none of its values"
        elif column.kind == "hashed":
            found[row, int.from_bytes(blake2b(cell.encode(), digest_size=8).digest()) % column.buckets] = 1.0
        else:
            value = as_days(cell) if column.kind == "date" else as_number(cell)
            if value is not None and not math.isnan(value):
                inside = min(max(value, low), high) - low
                part = math.log1p(inside) / math.log1p(high - low) if column.log else inside / (high - low)
                found[row, 0] = part
            elif column.other:
                found[row, hole] = 1.0
            else:
                what = "date (YYYY-MM-DD)" if column.kind == "date" else "number"
                fault = f": {cell!r:.40} is no {what}"
        if fault:
            faults.append(f"line {lines[row]}, column {column.name!r}{fault}")
    return found


def classes_of(column: Column, cells: Sequence[str], faults: list[str], lines: Sequence[int]) -> np.ndarray:
    """Return the class of each record, ``(n,)`` int64. Arguments as :func:`encoded`."""
    places = {spelling: place for place, spellings in enumerate(column.values) for spelling in spellings}
    faults += (
        f"line {line}, column {column.name!r}: {cell!r:.40} is none of its classes"
        for line, cell in zip(lines, cells, strict=True)
        if cell not in places
    )
    return np.array([places.get(cell, 0) for cell in cells], dtype=np.int64)
