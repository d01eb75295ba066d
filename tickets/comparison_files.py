"""A comparison as text: cells for people, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dpltm.privacy.figures import figure
from dpltm.reports.fields import percent

HEAD = (
    "run",
    "accuracy",
    "95 % interval",
    "certified epsilon",
    "nominal",
    "density",
    "live",
    "parameters",
    "trained",
    "filter",
)


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row, one text a column of ``HEAD``; a dash where something is not known."""
    measured = percent(row["accuracy"]) if row["accuracy"] is not None else "-"
    if row["rmse"] is not None:
        measured = f"RMSE {row['rmse']:.4g}"
    said = (
        row["run"]
        if row["compared"]
        else f"{row['run']} ({'not compared' if row['state'] == 'finished' else row['state']})"
    )
    return (
        said,
        measured,
        "-" if row["low"] is None else f"{100 * row['low']:.2f} to {percent(row['high'])}",
        *(_epsilon(row, key) for key in ("certified", "nominal")),
        "-" if row["density"] is None else percent(row["density"]),
        *("-" if row[key] is None else f"{row[key]:,}" for key in ("live", "parameters")),
        *(row[key] or "-" for key in ("trained", "filter")),
    )


def _epsilon(row: Mapping[str, Any], key: str) -> str:
    """An epsilon, with relation and unit where they are not those of the other rows."""
    if row[key] is None:
        return "-"
    return figure(row[key]) + (f" ({row['other_terms']})" if row["other_terms"] else "")


def terms(body: Mapping[str, Any]) -> str:
    """What the certified epsilons are stated at, where all compared rows agree."""
    stated = {
        f"delta {row['delta']:g}, {row['adjacency']}, unit {row['unit']}"
        for row in body["rows"] if row["compared"] and row["certified"] is not None
    }  # fmt: skip
    return stated.pop() if len(stated) == 1 else ""


def together(body: Mapping[str, Any]) -> str:
    """What all of them cost, in words; empty where they are fewer than two."""
    one = body["together"]
    if one is None:
        return ""
    return (
        f"all {one['runs']} released together: certified epsilon = {figure(one['epsilon'])} at delta {one['delta']:g}"
    )


def baseline_lines(body: Mapping[str, Any]) -> list[str]:
    """What training baselines costs, or did, in words.

    Args:
        body: what the answer says of them.
    """
    count, cost, states = body["to_train"], body["cost"], Counter(one["state"] for one in body["trainings"])
    if not body["trainings"]:
        return ["no baseline is missing: a run of the whole network is a dense one itself, and has no random mask"]
    if not count:
        return [f"baselines: nothing is left to pay for in {body['out']}"]
    did = "would cost" if states["planned"] else "cost"
    return [
        f"{count} baseline{'' if count == 1 else 's'} in {body['out']} {did} certified epsilon ="
        f" {figure(cost['epsilon'])} at delta {cost['delta']:g}, all together"
    ]


def markdown(body: Mapping[str, Any]) -> str:
    """The table for a document."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    lines += ["| " + " | ".join(_plain(cell) for cell in cells(row)) + " |" for row in body["rows"]]
    said = [f"certified epsilon: {terms(body)}" if terms(body) else "", together(body), *body["notes"]]
    return "\n".join([*lines, "", *(f"- {_plain(line)}" for line in said if line), ""])


def table_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows, one column a key."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _formula_free(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def _plain(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|").replace("<", "&lt;")


def _formula_free(value: Any) -> Any:
    """A text that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
