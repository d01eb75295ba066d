"""``dpltm generate``, ``select``, ``train`` and ``tune``: what the stages did, in tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole
from rich.table import Table

from dpltm.cli.console import answering
from dpltm.cli.show import show_notes, show_pairs, show_privacy, show_tickets, show_verdict, shown, with_skill
from dpltm.privacy.describe import percent
from dpltm.registry import Deferred
from dpltm.tickets.workbench.records import table_first


def show_training(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the facts of a run, or of what would be one, and its privacy."""
    show_pairs(
        rich,
        "would train" if body.get("dry_run") else f"trained {body['run']}",
        with_skill({k: round(v) if k == "seconds" else v for k, v in body.items() if k not in ("run", "dry_run")}),
    )
    show_privacy(rich, body["privacy"])
    show_verdict(rich, body.get("skill"))


train_command = answering(table_first(Deferred("dpltm.tickets.workbench.train:train_with_ranks")), show_training)


def show_generation(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the tickets, or what would be made, and what is certified."""
    if body.get("dry_run"):
        show_pairs(rich, "would generate", body)
    else:
        show_tickets(rich, body)
    if body["provenance"] in ("private", "dp"):
        show_privacy(rich, body["privacy"])
    else:
        show_notes(rich, body["privacy"])


generate_command = answering(table_first(Deferred("dpltm.tickets.workbench.generate:generate")), show_generation)


def show_draw(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the winner, whatever is revealed, and what is certified."""
    if body.get("dry_run"):
        show_pairs(rich, "would choose", body)
    else:
        winner = body["winner"]
        rich.print(
            f"winner of {body['ticket_set']}: round {winner['round']}, density {percent(winner['density'])}",
            style="bold",
        )
    if "revealed" in body:
        table = Table("round", "density", "accuracy", "score", "probability")
        for row in body["revealed"]:
            shares = (percent(row[key]) for key in ("density", "accuracy"))
            table.add_row(str(row["round"]), *shares, f"{row['score']:.4g}", percent(row["probability"]))
        rich.print(table)
    show_privacy(rich, body["privacy"])


select_command = answering(table_first(Deferred("dpltm.tickets.workbench.select:select")), show_draw)


MAX_ROWS = 10
"""Settings in the table."""

COLUMNS = (
    "round", "density", "lr", "clip_norm", "epochs", "batch_size", "noise_multiplier", "accuracy",
    "score",
)  # fmt: skip
"""Of the table, where any setting has such a thing."""


def show_search(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the best settings."""
    rows = body["trials"]
    columns = [column for column in COLUMNS if any(row.get(column) is not None for row in rows)]
    if "accuracy" in columns:
        columns.remove("score")  # which is the same
    names = [body["metric"] if column == "score" else column.replace("_", " ") for column in columns]
    table = Table(*names, title=f"best settings on {body['dataset']}", title_justify="left")
    for row in rows[:MAX_ROWS]:
        table.add_row(*("-" if row[column] is None else shown(column, row[column]) for column in columns))
    rich.print(table)
    if len(rows) > MAX_ROWS:
        rich.print(f"{len(rows) - MAX_ROWS} more with --json")
    if body["config"]:
        rich.print(f"wrote {body['config']}")
    show_notes(rich, body["privacy"])


tune_command = answering(Deferred("dpltm.tickets.workbench.tune:tune"), show_search)
