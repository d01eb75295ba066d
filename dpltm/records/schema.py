"""The public schema of a table: what each column holds, so that records with words, dates and holes become numbers.

A schema is a public input (privacy-model.md 1.4): it is written down by somebody who knows the table, and nothing in it may
be read off private records. Every record is encoded by it alone, so that one record more or less changes one row.
"""

from __future__ import annotations

import datetime
import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError, DataError, first_line
from dpltm.privacy.entry import Lineage, lineage_from_text, to_json
from dpltm.records.raw import shown

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
    """What a column holds.

    Attributes:
        name: of the column.
        kind: one of ``KINDS``.
        bounds: of numbers, or of dates as days since the year 1: what is outside counts as the nearest of them.
        values: spellings of each category, or of each class of labels.
        buckets: numbers that words are hashed to.
        missing: whether cells may be empty; then one feature says so.
        other: whether other categories are allowed; they are none of the features. Of numbers and dates, whether other words
            are; they count as empty cells.
        log: whether logarithms of numbers are taken, from the lower bound on.
        wanted: whether bounds or values are still to be found under DP (``records.private_columns``); then one feature.
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
    def features(self) -> tuple[str, ...]:
        """Names of the features that it becomes."""
        if self.kind in ("label", "ignored"):
            return ()
        if self.wanted:
            return (self.name,)
        hole = (f"{self.name} missing",) if self.missing else ()
        if self.kind == "category":
            return (*(f"{self.name}={spellings[0]}" for spellings in self.values), *hole)
        if self.kind == "hashed":
            return (*(f"{self.name}#{number}" for number in range(self.buckets)), *hole)
        return (self.name, *hole)


@dataclass(frozen=True)
class Schema:
    """What a table holds.

    Attributes:
        columns: in the order of the file, where it has no header.
        header: whether the first line of a .csv file has names.
        missing: what stands for an empty cell.
        skip: beginning of lines that are no records; nothing for none.
        lineage: releases that bounds and values were found by, and public records that they were read off.
        text: the file, for whoever keeps it.
    """

    columns: tuple[Column, ...]
    header: bool = True
    missing: tuple[str, ...] = ("",)
    skip: str = ""
    lineage: Lineage = field(default_factory=Lineage)
    text: str = ""

    @property
    def label(self) -> Column:
        """The column of labels."""
        return next(column for column in self.columns if column.kind == "label")

    @property
    def features(self) -> tuple[str, ...]:
        """Names of all features, in order."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def wanted(self) -> tuple[Column, ...]:
        """Columns of which something is still to be found."""
        return tuple(column for column in self.columns if column.wanted)

    def check_finished(self) -> None:
        """Raises DataError if something is still to be found."""
        if self.wanted:
            raise DataError(
                f"`schema`: bounds or values of {shown([column.name for column in self.wanted])} are still private; write"
                " public ones, or find them with dpltm datasets schema FILE `private` SCHEMA"
            )


def read_schema(path: Path, option: str = "`schema`") -> Schema:
    """A schema in a file.

    Args:
        path: of the file.
        option: where it comes from, for messages.

    Raises:
        DataError: there is none, or it is not what a schema must be.
    """
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
    """A schema as it is written.

    Args:
        text: TOML.
        where: it stands, for messages.

    Raises:
        DataError: it is none.
    """
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
    columns = tuple(_column(name, given, where) for name, given in body["column"].items())
    header, missing, skip = body.get("header", True), body.get("missing", [""]), body.get("skip", "")
    if not (isinstance(header, bool) and _texts(missing) and isinstance(skip, str)):
        raise DataError(f"{where}: header is true or false, missing a list of texts, and skip a text")
    labels = [column.name for column in columns if column.kind == "label"]
    if len(labels) != 1:
        raise DataError(f'{where}: has {len(labels)} columns of kind "label"; give one, with its classes')
    schema = Schema(columns, header, tuple(missing), skip, _lineage(body.get("lineage"), where), text)
    if not 0 < len(schema.features) <= MAX_FEATURES:
        raise DataError(f"{where}: makes {len(schema.features):,} features; give from 1 to {MAX_FEATURES:,}")
    _check_told_apart(columns, where)
    return schema


def _check_told_apart(columns: tuple[Column, ...], where: str) -> None:
    """Raises DataError if two columns make a feature of one name, or may make one when all is found."""
    maker: dict[str, Column] = {}
    for column in columns:
        for name in (*column.features, *((f"{column.name} missing",) if column.wanted else ())):
            if name in maker:
                raise _alike(maker[name], column, name, where)
            maker[name] = column
    begin = {f"{column.name}=": column for column in columns if column.wanted and column.kind == "category"}
    for name, column in maker.items() if begin else ():
        for place in (place for place, mark in enumerate(name, 1) if mark == "="):
            other = begin.get(name[:place], column)
            if other is not column:
                raise _alike(other, column, name, where)


def _alike(one: Column, other: Column, name: str, where: str) -> DataError:
    return DataError(
        f"{where}: columns {one.name!r:.60} and {other.name!r:.60} could both make a feature {name!r:.60}; rename one of"
        " them, in the table too"
    )


def _lineage(text: object, where: str) -> Lineage:
    """What the command that found bounds and values, or read them off public records, wrote."""
    try:
        return Lineage() if text is None else lineage_from_text(str(text))
    except ArtifactError as error:
        raise DataError(
            f"{where}: its lineage is damaged ({first_line(error)}); put it back, or find it again"
        ) from None


def _texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _column(name: str, given: object, where: str) -> Column:
    where = f"{where}: column {name!r:.60}"
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
    if (kind in ("number", "date") and given.get("bounds") == PRIVATE) or (
        kind == "category" and given.get("values") == PRIVATE
    ):
        return Column(**found, wanted=True)
    if kind in ("number", "date"):
        found["bounds"] = _bounds(given.get("bounds"), kind, where)
    if kind in ("category", "label"):
        found["values"] = _values(given.get("values" if kind == "category" else "classes"), kind, where)
    if kind == "hashed":
        buckets = given.get("buckets")
        if isinstance(buckets, bool) or not isinstance(buckets, int) or not 2 <= buckets <= MAX_CATEGORIES:
            raise DataError(f"{where}: buckets is not a whole number from 2 to {MAX_CATEGORIES:,}")
        found["buckets"] = buckets
    return Column(**found)


def _bounds(given: object, kind: str, where: str) -> tuple[float, float]:
    wanted = "dates, the first and the last" if kind == "date" else "numbers, the lowest and the highest"
    ends = given if isinstance(given, list) and len(given) == 2 else []
    plain = [end.date() if isinstance(end, datetime.datetime) else end for end in ends]
    if kind == "date" and len(plain) == 2 and all(isinstance(end, datetime.date) for end in plain):
        low, high = (float(end.toordinal()) for end in plain)
    elif kind == "number" and len(ends) == 2 and all(type(end) in (int, float) for end in ends):
        try:
            low, high = (float(end) for end in ends)
        except OverflowError:
            low, high = math.inf, math.inf
    else:
        raise DataError(f"{where}: bounds are public {wanted}: bounds = [LO, HI]")
    if not (low < high and math.isfinite(high - low)):
        raise DataError(f"{where}: bounds are public {wanted}, and the first below the second")
    return low, high


def _values(given: object, kind: str, where: str) -> tuple[tuple[str, ...], ...]:
    """Categories or classes, each a text or a list of its spellings."""
    name = "classes" if kind == "label" else "values"
    each = [one if isinstance(one, list) else [one] for one in given] if isinstance(given, list) else []
    plain = all(some and all(type(one) in (int, str) for one in some) for some in each)
    if not (plain and (2 if kind == "label" else 1) <= len(each) <= MAX_CATEGORIES):
        least = 2 if kind == "label" else 1
        raise DataError(f'{where}: {name} are public texts, {least} or more: {name} = ["A", "B"]')
    spelled = tuple(tuple(str(one).strip() for one in some) for some in each)
    flat = [one for some in spelled for one in some]
    if len(set(flat)) < len(flat):
        twice = next(one for one in flat if flat.count(one) > 1)
        raise DataError(f"{where}: {twice!r:.40} is among its {name} twice; leave one out")
    return spelled


def schema_text(schema: Schema, columns: Sequence[Column], lineage: Lineage) -> str:
    """Return a schema with other columns, and the releases that they were found by, as TOML.

    Args:
        schema: that they belong to.
        columns: of which nothing is still to be found.
        lineage: of those releases; whatever uses the schema carries it.
    """
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
            said.append("bounds = [{}, {}]".format(*map(_number, column.bounds)))
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


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"


def _text(value: str) -> str:
    """A basic string: JSON's, but that TOML wants one more character escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
