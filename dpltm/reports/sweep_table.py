"""Tables of a sweep: its answer as cells for people, and as a document that needs nothing else to be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpltm.privacy.describe import figure, guarantee


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


def _percent(value: float | None, measure: str, digits: int = 2) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.{digits}f}" if measure == "accuracy" else f"{value:.{digits + 1}f}"


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
