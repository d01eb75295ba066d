"""Tables for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console as RichConsole
from rich.table import Column, Table

from dpltm.options import TARGET_METRICS
from dpltm.privacy.describe import figure, guarantee, percent

# what names mean; those of figures in percent; of those that are rounded up; beginnings of those that are rounded down
WORDS = {
    "clt": "clt (nominal)", "mu": "mu (nominal)", "rarest": "rarest value found (records)",
    "saturated": "values outside the bounds", "compared": "records compared with dpltm",
    "difference": "largest difference of chances",
}  # fmt: skip
SHARES = (
    "accuracy", "balanced accuracy", "density", "confidence", "training", "randomised", "probability", "supermask",
    "shuffled mask",
)  # fmt: skip
EPSILONS = ("epsilon", "eps1", "label epsilon", "spent", "certified", "nominal", "pld", "rdp", "ma", "clt", "mu")
BOUNDS = ("lower bound", "bounds, ")

FOLDED = 16  # characters a line that the widest column of a table has at least
FEW_CLASSES = 3  # most classes whose recall is shown in a line
FIND = 0.8  # share of the second of two classes that the operating point in a line finds


def shown(name: str, value: object) -> str:
    """Return a value as people read it, by the name that it has in words."""
    if isinstance(value, list):
        texts = (shown(name, part) for part in value)
        return ("x" if all(type(part) is int for part in value) else ", ").join(texts) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return "-" if value is None or isinstance(value, dict) else str(value)
    if name.rpartition(", ")[2] in SHARES or name.startswith("outside, "):
        return percent(value)
    if name in EPSILONS or name.startswith(BOUNDS):
        return figure(value, down=name not in EPSILONS)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


# parts of an answer that are no facts in its table
APART = ("run", "dry_run", "notes", "config", "kernels", "lineage", "skill", "privacy", "decision", "verdict")
Cell = str | Callable[[Any], str]  # the key of a row whose value is shown as people read it; or what makes its text


def named(*keys: str) -> dict[str, Cell]:
    """Return columns that show the values of these keys."""
    return {key.replace("_", " "): key for key in keys}


def show_table(rich: RichConsole, rows: Iterable[Any], columns: Mapping[str, Cell], title: str | None = None) -> None:
    """Show a table by the heads of its columns, turned or one for each row where it is too wide, without empty columns."""
    rows = list(rows)
    turned = [
        [head, *(cell(row) if callable(cell) else shown(cell.replace("_", " "), row.get(cell)) for row in rows)]
        for head, cell in columns.items()
    ]
    turned = [texts for texts in turned if not {"", "-"}.issuperset(texts[1:])]
    head, *lines = [list(texts) for texts in zip(*turned, strict=True)] or [[]]
    fitting = next((texts for texts in ([head, *lines], turned) if _fits(rich, texts)), None)
    if fitting is None:
        for line in lines:
            show_pairs(rich, line[0], dict(zip(head[1:], line[1:], strict=True)))
        return
    table = Table(*(Column(text, overflow="fold") for text in fitting[0]), title=title, title_justify="left")
    for line in fitting[1:]:
        table.add_row(*line)
    rich.print(table)


def _fits(rich: RichConsole, lines: Sequence[Sequence[str]]) -> bool:
    """Tell whether a table has place for its texts: heads are cut between words, and the widest column is folded."""
    widths = sorted(max(map(len, [*head.split(), *texts])) + 3 for head, *texts in zip(*lines, strict=True))
    return sum(widths[:-1]) + FOLDED <= rich.width


def show_tickets(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the tickets of a set, one line each."""
    missing = "withheld" if body["provenance"] == "private" else "-"
    columns = named("round", "density", "live")
    auc = body.get("metric") == "auc"  # where most records are of one class
    written = "{:.3f}".format if auc else percent
    columns["AUC" if auc else "accuracy"] = lambda row: (
        missing if row["accuracy"] is None else written(row["accuracy"])
    )
    if "columns" in body["tickets"][0]:
        columns["columns read"] = lambda row: ", ".join(row["columns"])
    show_table(rich, body["tickets"], columns, f"{body['ticket_set']} ({body['provenance']})")


def show_wrote(rich: RichConsole, body: Mapping[str, Any], *names: str) -> None:
    """Show which files were written, of those that an answer names."""
    for name in names:
        if body.get(name):
            rich.print(f"wrote {body[name]}")


def show_pairs(rich: RichConsole, title: str, pairs: Mapping[str, Any]) -> None:
    """Show names and values, one pair a line, those inside an object too; what is deeper, or not there, is left out."""
    table = Table("", Column(overflow="fold"), title=title, title_justify="left", show_header=False)
    for name, value in pairs.items():
        values = {f"{name}, {key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
        for key, part in values.items():
            if part is not None and not isinstance(part, dict) and not is_rows(part):
                words = key.replace("_", " ")
                table.add_row(WORDS.get(words, words), shown(words, part))
    if table.row_count:
        rich.print(table)


def is_rows(value: object) -> bool:
    """Tell whether a value of an answer is a table: a list of objects."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def show_privacy(rich: RichConsole, privacy: dict[str, Any]) -> None:
    """Certified first; nominal only ever beneath it; then the notes."""
    certified, nominal = privacy["certified"], privacy["nominal"]
    rich.print(guarantee(certified), style="bold")
    if nominal is not None:
        rich.print(f"nominal epsilon = {figure(nominal['epsilon'])} (claimed by: {nominal['source']}; not proven)")
    show_notes(rich, privacy)


def show_notes(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the notes beside the figures."""
    for note in body.get("notes", ()):
        rich.print(f"- {note}", style="dim")


def show_answer(title: str, rich: RichConsole, body: dict[str, Any]) -> None:
    """Show names and values, what tells of an accuracy, tables, what is certified, notes, and a verdict."""
    skill, facts = body.get("skill"), {name: value for name, value in body.items() if name not in APART}
    if skill is not None:
        facts = {name: value for name, value in facts.items() if name not in TARGET_METRICS}  # the skill has them
        facts |= _skill_cells(skill)
    show_pairs(rich, title.format(**body), facts)
    for name, rows in facts.items():
        if is_rows(rows):
            heads = {key: None for row in rows for key in row if key not in ("id", "bytes")}
            show_table(rich, rows, named(*heads), name.replace("_", " "))
    if "privacy" in body:
        show_privacy(rich, body["privacy"])
    show_notes(rich, body)
    show_verdict(rich, skill)


def _skill_cells(skill: Mapping[str, Any]) -> dict[str, Any]:
    """Return what tells of an accuracy, or of the error of a number, by its name in words."""
    if "rmse" in skill:
        error = f"{skill['rmse']:.4g} (always the mean: {skill['mean_rmse']:.4g})"
        r2 = _interval(skill["r2"], "none: one target")
        return {"R2": r2, "root mean squared error": error, "mean absolute error": skill["mae"]}
    cells: dict[str, Any] = {
        "majority": f"{percent(skill['majority_accuracy'])}, always {skill['majority']}",
        "balanced accuracy": percent(skill["balanced_accuracy"]["value"]),
        "AUC": _interval(skill["auc"], "none: one class"),
        "calibration error": skill["calibration_error"],
        "log loss": f"{skill['log_loss']:.4f} (by shares: {skill['shares_log_loss']:.4f})",
    }
    if len(skill["classes"]) <= FEW_CLASSES:
        rows = [row for row in skill["classes"] if row["recall"] is not None]
        cells["recall"] = [f"{row['name']} {percent(row['recall'])}" for row in rows]
    if (point := next((point for point in skill["points"] if point["recall"] >= FIND), None)) is not None:
        cells[f"to find {percent(point['recall'])}"] = (
            f"take {skill['classes'][1]['name']} from a chance of {point['threshold']:g}: names"
            f" {percent(point['named'] / skill['records'])}, {percent(point['precision'])} of them right"
        )
    if (ratio := skill["chance_over_share"]) is not None:
        cells["chance over share"] = "{value:.3g} of {name} ({low:.3g} to {high:.3g})".format(**ratio)
    for group in skill.get("groups", ()):
        cells[group["name"]] = f"{group['records']:,} records, too few to tell"
        if group["accuracy"] is not None:
            right = f"{percent(group['accuracy']['value'])} (majority {percent(group['majority_accuracy'])})"
            cells[group["name"]] = (
                f"AUC {_interval(group['auc'], 'none')}, accuracy {right}, {group['records']:,} records"
            )
    return cells


def _interval(estimate: Mapping[str, float] | None, missing: str) -> str:
    return missing if estimate is None else "{value:.3f} (95 %: {low:.3f} to {high:.3f})".format(**estimate)


def show_verdict(rich: RichConsole, skill: Mapping[str, Any] | None) -> None:
    """Show in one line that a network is no better than what takes no skill, if that is so."""
    if skill is not None and skill["verdict"]:
        rich.print(skill["verdict"], style="bold")
