"""The public schema of a table: the content of each column, so that records with words, dates and holes become numbers.

A schema is a public input (privacy-model.md 1.4): it is written down by somebody who knows the table, and nothing in it may
be read off private records. Every record is encoded by it alone, so that one record more or less changes one row.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError, DataError, first_line
from dpltm.privacy.entry import NO_LINEAGE, Lineage, lineage_from_text, to_json
from dpltm.records.input_parts import shown

PRIVATE = "private"
"""In place of bounds, values or classes: they are to be found under DP."""

UNKNOWN = "?"
"""In place of a kind: it is to be found as well, by what most cells of the column are."""

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "None")
"""Cells that are taken for empty in drafts, where nobody says which are."""

KINDS = ("number", "category", "hashed", "date", "label", "ignored")

MAX_CATEGORIES, MAX_FEATURES, MAX_BYTES = 10_000, 100_000, 2**22
"""Of a column; of a table; of a file. Guards against typing errors and hostile files."""

_FIELDS = {
    "number": {"bounds", "missing", "other", "log"},
    "category": {"values", "missing", "other"},
    "hashed": {"buckets", "missing"},
    "date": {"bounds", "missing", "other"},
    "label": {"classes", "shares", "bounds"},
    "ignored": set[str](),
    UNKNOWN: set[str](),
}
"""Fields of a column by its kind, beside ``kind``."""

_WANTED = {"number": "bounds", "date": "bounds", "category": "values", "label": "classes"}
"""The field that may be private, by kind."""

_ABOVE: dict[str, Any] = {
    "header": True, "missing": [""], "skip": "", "separator": ",", "encoding": "utf-8", "decimal": ".",
}  # fmt: skip
"""What stands above all columns, and what is meant where it does not."""


@dataclass(frozen=True)
class Column:
    """Content of a column.

    Attributes:
        kind, bounds and so on: as in docs/data.md; of dates bounds are days since the year 1.
        values: spellings of each category, or of each class of labels.
        decimal: the point of numbers, as in the whole table.
        wanted: whether kind, bounds or values are still to be found under DP (``dpltm.verbs.schema``); then one feature.
    """

    name: str
    kind: str
    bounds: tuple[float, float] = (0.0, 1.0)
    values: tuple[tuple[str, ...], ...] = ()
    shares: tuple[float, ...] = ()
    buckets: int = 0
    missing: bool = False
    other: bool = False
    log: bool = False
    decimal: str = "."
    wanted: bool = False

    @property
    def is_target(self) -> bool:
        """Tell whether it holds numbers that are to be predicted, within ``bounds``."""
        return self.kind == "label" and not self.values and not self.wanted

    @property
    def features(self) -> int:
        if self.wanted:
            return 1
        if self.kind in ("label", "ignored"):
            return 0
        spread = {"category": len(self.values), "hashed": self.buckets}
        return spread.get(self.kind, 1) + self.missing


@dataclass(frozen=True)
class Schema:
    """Content of a table.

    Attributes:
        header, missing and so on: how a file is written, as in docs/data.md.
        lineage: releases that bounds and values were found by, and public records that they were read off.
    """

    columns: tuple[Column, ...]
    header: bool = True
    missing: tuple[str, ...] = ("",)
    skip: str = ""
    separator: str = ","
    encoding: str = "utf-8"
    decimal: str = "."
    lineage: Lineage = NO_LINEAGE
    text: str = ""

    @property
    def label(self) -> Column:
        """The column of labels; DataError where there is none."""
        if self.labels is None:
            raise DataError('`schema`: has no column of kind "label"; give one, with its classes')
        return self.labels

    @property
    def labels(self) -> Column | None:
        """The same; None where there is none."""
        return next((column for column in self.columns if column.kind == "label"), None)

    @property
    def target(self) -> tuple[float, float] | None:
        """Public range of targets that are numbers; None of classes, and of a table without labels."""
        return self.labels.bounds if self.labels is not None and self.labels.is_target else None

    @property
    def class_names(self) -> tuple[str, ...]:
        """First spelling of each class; none where there are no labels."""
        return () if self.labels is None else tuple(spellings[0] for spellings in self.labels.values)

    @property
    def class_shares(self) -> tuple[float, ...]:
        """Shares of the classes; none where nobody says them."""
        return () if self.labels is None else self.labels.shares

    @property
    def features(self) -> int:
        """Number of features of all columns, one after another."""
        return len(self.feature_columns)

    @property
    def feature_columns(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns for _ in range(column.features))

    @property
    def number_places(self) -> tuple[int, ...]:
        """Which features are numbers or dates; others are indicators."""
        columns = self.feature_columns
        return tuple(columns.index(column) for column in self.columns if column.kind in ("number", "date"))

    @property
    def wanted(self) -> tuple[Column, ...]:
        """Columns of which something is still to be found."""
        return tuple(column for column in self.columns if column.wanted)


NO_SCHEMA = Schema(())
"""Of a table that none is said of: without columns."""


def as_schema(schema: object) -> Schema | None:
    """Return the schema that an argument of Python means: itself, that in the file of a path, or None for none."""
    if schema is None or isinstance(schema, Schema):
        return schema
    if not isinstance(schema, (str, Path)):
        raise DataError("schema", schema, "a path of a schema", "dpltm datasets schema drafts one")
    return read_schema(Path(schema))


def read_schema(path: Path, part: bool = False) -> Schema:
    """Return the schema in the file that ``schema`` names; arguments and errors as of :func:`parse_schema`."""
    where = f"`schema` {path}"
    if not path.is_file() or path.stat().st_size > MAX_BYTES:  # nor a pipe, which would be waited for
        small = f"no such file of {MAX_BYTES >> 20} MB or less"
        raise DataError(f"{where}: {small}; correct the path, or draft one with dpltm datasets schema")
    try:
        return parse_schema(path.read_text(encoding="utf-8"), where, part)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{where}: cannot be read ({first_line(error)}); correct the path") from None


def parse_schema(text: str, where: str, part: bool = False) -> Schema:
    """Return a schema as it is written, TOML, or ``part`` of one; messages say ``where``. DataError if it is none."""
    try:
        body = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DataError(f"{where}: is no TOML ({first_line(error)}); correct it") from None
    if "found" in body:
        raise DataError(f"{where}: written by dpltm before 0.3; find its bounds and values again")
    strange = sorted(set(body) - {*_ABOVE, "lineage", "column"})
    body.setdefault("column", {})
    if strange or not isinstance(body["column"], dict) or not (body["column"] or part):
        what = f"has unknown keys {shown(strange)}" if strange else "has no [column.NAME]"
        raise DataError(f"{where}: {what}; dpltm datasets schema drafts one")
    above = _above({"missing": list(MISSING), **body} if part else body, where)
    columns = tuple(
        replace(_column(name, body_of_column, f"{where}: column {name!r:.60}"), decimal=above["decimal"])
        for name, body_of_column in body["column"].items()
    )
    if sum(column.kind == "label" for column in columns) > 1:
        raise DataError(f'{where}: has several columns of kind "label"; give one, with its classes')
    try:
        lineage = lineage_from_text(str(body["lineage"])) if "lineage" in body else NO_LINEAGE
    except ArtifactError as error:
        raise DataError(f"{where}: its lineage is damaged ({first_line(error)}); put it back") from None
    schema = Schema(columns, **above, lineage=lineage, text=text)
    if not part and not 0 < schema.features <= MAX_FEATURES:
        raise DataError(f"{where}: makes {schema.features:,} features; give from 1 to {MAX_FEATURES:,}")
    return schema


def _above(body: dict[str, Any], where: str) -> dict[str, Any]:
    """Return what a schema says of the whole table."""
    above: dict[str, Any] = {name: body.get(name, usual) for name, usual in _ABOVE.items()}
    missing, marks = above["missing"], (above["separator"], above["decimal"])
    texts = isinstance(missing, list) and all(isinstance(value, str) for value in missing)
    if not (isinstance(above["header"], bool) and texts and isinstance(above["skip"], str)):
        raise DataError(f"{where}: header is true or false, missing a list of texts, and skip a text")
    if not all(isinstance(mark, str) and re.fullmatch(r'[^\w"\r\n]', mark) for mark in marks):
        raise DataError(f'{where}: separator and decimal are one character each, such as ";" and ","')
    try:
        "".encode(above["encoding"])  # refuses what is no encoding of text
    except (LookupError, TypeError, ValueError):
        raise DataError(f'{where}: encoding is no encoding of text; write "utf-8" or "latin-1"') from None
    return {**above, "missing": tuple(missing)}


def label_column(name: str, classes: Sequence[str] = (), target: tuple[float, float] | None = None) -> Column:
    """Return the column of labels, by its classes or range; classes are to be found where neither is said."""
    if target is not None:
        return _column(name, {"kind": "label", "bounds": list(target)}, "`target_bounds`")
    return _column(name, {"kind": "label", "classes": list(classes) or PRIVATE}, "`classes`")


def _column(name: str, body: object, where: str) -> Column:
    kind = body.get("kind") if isinstance(body, dict) else None
    if not isinstance(body, dict) or kind not in (*KINDS, UNKNOWN):
        raise DataError(f"{where}: kind is not one of {', '.join(KINDS)}; say what it holds")
    strange = set(body) - {"kind"} - _FIELDS[kind] | ({"bounds"} & set(body) if "classes" in body else set())
    if strange:
        raise DataError(f"{where}: {shown(sorted(strange))} does not go with what else is said of it; leave it out")
    flags = {flag: body.get(flag, False) for flag in ("missing", "other", "log")}
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise DataError(f"{where}: missing, other and log are true or false")
    if kind != "category" and flags["other"] and not flags["missing"]:
        raise DataError(f"{where}: with other = true what is no {kind} counts as empty; say missing = true as well")
    options: dict[str, Any] = {"name": name, "kind": kind, **flags}
    if kind == UNKNOWN or body.get(_WANTED.get(kind, "")) == PRIVATE:
        return Column(**options, wanted=True)
    match kind:
        case "category":
            options["values"] = _values(body.get("values"), "values", 1, where)
        case "label" if "bounds" not in body:
            options["values"] = _values(body.get("classes"), "classes", 2, where)
            options["shares"] = _shares(body.get("shares"), len(options["values"]), where)
        case "number" | "date" | "label":
            options["bounds"] = _bounds(body.get("bounds"), kind, where)
        case "hashed":
            buckets = options["buckets"] = body.get("buckets")
            if type(buckets) is not int or not 2 <= buckets <= MAX_CATEGORIES:
                raise DataError(f"{where}: buckets is not a whole number from 2 to {MAX_CATEGORIES:,}")
    return Column(**options)


def _bounds(value: object, kind: str, where: str) -> tuple[float, float]:
    ends = value if isinstance(value, list) and len(value) == 2 else []
    if kind == "date":
        ends = [end.toordinal() for end in ends if isinstance(end, datetime.date)]
    with contextlib.suppress(OverflowError):  # of a whole number beyond all floats
        if len(ends) == 2 and all(type(end) in (int, float) for end in ends):
            low, high = map(float, ends)
            if low < high and math.isfinite(high - low):
                return low, high
    what = "dates" if kind == "date" else "numbers"
    raise DataError(f"{where}: bounds are two public {what}, the first below the second: bounds = [LO, HI]")


def _values(value: object, name: str, least: int, where: str) -> tuple[tuple[str, ...], ...]:
    """Categories or classes, each a text or a list of its spellings."""
    listed = value if isinstance(value, list) else []
    values = [spellings if isinstance(spellings, list) else [spellings] for spellings in listed]
    texts = all(spellings and all(type(text) in (int, str) for text in spellings) for spellings in values)
    if not (texts and least <= len(values) <= MAX_CATEGORIES):
        raise DataError(f'{where}: {name} are public texts, {least} or more: {name} = ["A", "B"]')
    spelled = tuple(tuple(str(text).strip() for text in spellings) for spellings in values)
    most, times = Counter(itertools.chain.from_iterable(spelled)).most_common(1)[0]
    if times > 1:
        raise DataError(f"{where}: {most!r:.40} is among its {name} twice; leave one out")
    return spelled


def _shares(value: object, classes: int, where: str) -> tuple[float, ...]:
    if value is None:
        return ()
    plain = value if isinstance(value, list) and all(type(share) in (int, float) for share in value) else []
    if len(plain) != classes or not all(0 < share <= 1 for share in plain) or abs(math.fsum(plain) - 1) > 0.01:
        raise DataError(f"{where}: shares are those of the classes, in their order: positive numbers of sum 1")
    return tuple(map(float, plain))


# as text


def stored_schema(config: Mapping[str, Any]) -> Schema:
    """Return the schema in the configuration of a set or run; ``NO_SCHEMA`` for none, or none that can be read."""
    text = config.get("table_schema")
    try:
        return parse_schema(text, "schema") if isinstance(text, str) and text else NO_SCHEMA
    except DataError:
        return NO_SCHEMA


def schema_text(schema: Schema, columns: Sequence[Column], lineage: Lineage, words: str) -> str:
    """Return a schema with other columns as TOML, with the lineage of what they come from; ``words`` say so."""
    lines = [f"# {line}" for line in words.splitlines()]
    for name, usual in _ABOVE.items():
        value = getattr(schema, name)
        if name == "missing" or value != usual:
            lines.append(f"{name} = {_toml(value)}")
    lineage = schema.lineage | lineage
    lines += [f"lineage = {_toml(json.dumps(to_json(lineage)))}"] if lineage.entries else []
    return "\n\n".join(["\n".join(lines), *map(_column_text, columns)]) + "\n"


def _column_text(column: Column) -> str:
    lines = [f"[column.{_toml(column.name)}]", f"kind = {_toml(column.kind)}"]
    lines += [f"{flag} = true" for flag in ("missing", "other", "log") if getattr(column, flag)]
    field = "bounds" if column.is_target else _WANTED.get(column.kind)
    if column.wanted:
        lines += [f'{field} = "{PRIVATE}"'] if field else []
    elif field == "bounds":
        lines.append(f"bounds = [{', '.join(_end(end, column.kind) for end in column.bounds)}]")
    elif field:
        lines.append(f"{field} = {_toml([texts[0] if len(texts) == 1 else texts for texts in column.values])}")
        lines += [f"shares = {_toml(column.shares)}"] if column.shares else []
    elif column.kind == "hashed":
        lines.append(f"buckets = {column.buckets}")
    return "\n".join(lines)


def _end(end: float, kind: str) -> str:
    if kind == "date":
        return datetime.date.fromordinal(int(end)).isoformat()
    return str(int(end)) if end.is_integer() and abs(end) < 2**53 else repr(end)


def _toml(value: object) -> str:
    """JSON, which TOML takes for texts, truth values and lists of them, but that it wants one more character escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
