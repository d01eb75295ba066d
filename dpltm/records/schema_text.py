"""A schema as a file says it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

from dpltm.privacy.event_json import to_json
from dpltm.privacy.events import Event
from dpltm.records.schema import Column, Schema


def schema_text(schema: Schema, columns: Sequence[Column], events: Sequence[Event]) -> str:
    """TOML of a schema with other columns, and the releases that they were found by.

    Args:
        schema: that they belong to.
        columns: of which nothing is still to be found.
        events: of those releases, which whatever uses the schema enters as well; after what the schema has of others.
    """
    lines = ["# Bounds and values that were private in the draft were found under DP, by the releases below."]
    lines += ["" if schema.header else "header = false", f"missing = {_texts(schema.missing)}"]
    lines += [f"skip = {_text(schema.skip)}"] if schema.skip else []
    lines.append(events_text((*schema.found, *events)))
    head = "\n".join(line for line in lines if line)
    return "\n\n".join([head, *map(_column, columns)]) + "\n"


def _column(column: Column) -> str:
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
            each = (_text(some[0]) if len(some) == 1 else _texts(some) for some in column.values)
            said.append(f"{name} = [{', '.join(each)}]")
        case "hashed":
            said.append(f"buckets = {column.buckets}")
    return "\n".join(said)


def events_text(events: Sequence[Event]) -> str:
    """The key that holds events, for whatever uses a schema."""
    return "\n".join(["found = [", *(f"  {_line(to_json(event))}," for event in events), "]"])


def _line(event: dict[str, Any]) -> str:
    """JSON in a text: as it is where it can stand between single quotes."""
    line = json.dumps(event, ensure_ascii=False)
    return _text(line) if "'" in line else f"'{line}'"


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _texts(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"


def _text(value: str) -> str:
    """A basic string: JSON's, but that TOML wants one more character escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
