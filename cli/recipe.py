"""``dpltm run`` of a recipe: its table on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpltm.cli.show import show_notes
from dpltm.experiments.table import cells, columns, total
from dpltm.privacy.figures import figure

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

NARROW = 110
"""Characters of a line below which a table leaves out what results.md has as well."""

WIDE = 160
"""Characters of a line where nobody's terminal says how many there are."""


def show_recipe(rich: RichConsole, body: dict[str, Any]) -> None:
    """What would be done, or what came of it: first what all of it costs, then a row for each arm."""
    from rich.table import Table

    if body.get("dry_run"):
        _show_plan(rich, body)
        return
    quick = " (quick version: says that it works, and no more)" if body["quick"] else ""
    if not rich.is_terminal:
        rich.width = WIDE
    rich.print(f"all together: certified epsilon = {total(body)}", style="bold")
    table = Table(title=f"{body['recipe']}{quick}", title_justify="left")
    rows, head = [cells(row, body) for row in body["arms"]], columns(body)
    shown = [at for at in range(len(head)) if at == 0 or any(row[at] not in ("", "-") for row in rows)]
    if rich.width < NARROW:
        shown = [at for at in shown if head[at] not in ("sd", "live", "min")]
    for at in shown:
        table.add_column(head[at], overflow="fold", min_width=10 if at == 0 else None)
    for row in rows:
        table.add_row(*(row[at] for at in shown))
    rich.print(table)
    for row in body["arms"]:
        for hole in row["missing"]:
            rich.print(f"hole: {row['name']}, seed {hole['seed']}: {hole['why']}", style="bold")
        if row["note"]:
            rich.print(f"- {row['name']}: {row['note']}", style="dim")
    show_notes(rich, body)
    show_notes(rich, body["privacy"])
    rich.print(f"wrote {body['out']}/results.json, results.md" + (", figure.png" if body.get("figure") else ""))


def _show_plan(rich: RichConsole, body: dict[str, Any]) -> None:
    from rich.table import Table

    head = ("arm", "paper", "tickets", "dataset", "epsilon asked for", "noise multiplier", "certified epsilon")
    table = Table(*head, title=f"would run {body['recipe']} in {body['out']}", title_justify="left")
    for row in body["arms"]:
        keys = ("name", "paper", "tickets", "dataset", "epsilon", "noise_multiplier")
        certified = row["at_most"] if row["privacy"] is None else figure(row["privacy"]["certified"]["epsilon"])
        table.add_row(*("-" if row[key] is None else str(row[key]) for key in keys), certified)
    rich.print(table)
    rich.print(f"{body['members']} trainings: {len(body['arms'])} arms, {len(body['seeds'])} seeds")
