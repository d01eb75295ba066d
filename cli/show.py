"""Tables for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole
from rich.table import Table


def show_tickets(rich: RichConsole, body: dict[str, Any]) -> None:
    """The tickets of a set, one line each."""
    table = Table(
        "round",
        "density",
        "live",
        "accuracy",
        title=f"{body['ticket_set']} ({body['provenance']})",
        title_justify="left",
    )
    for row in body["tickets"]:
        accuracy = "withheld" if row["accuracy"] is None else f"{row['accuracy']:.2%}"
        table.add_row(str(row["round"]), f"{row['density']:.2%}", f"{row['live']:,}", accuracy)
    rich.print(table)


def show_pairs(rich: RichConsole, title: str, pairs: dict[str, Any]) -> None:
    """Names and values, one pair a line; nested values are left out."""
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in pairs.items():
        if value is not None and not isinstance(value, (dict, list)):
            table.add_row(name.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else str(value))
    rich.print(table)


def show_privacy(rich: RichConsole, privacy: dict[str, Any]) -> None:
    """Certified first; nominal only ever beneath it; then the notes."""
    certified, nominal = privacy["certified"], privacy["nominal"]
    terms = "delta = {delta:g}, {adjacency}, unit {unit}, {sampling} sampling, accountant {accountant}".format(
        **certified
    )
    rich.print(f"[bold]certified epsilon = {_number(certified['epsilon'])}[/bold] ({terms})")
    if nominal is not None:
        rich.print(f"nominal epsilon = {_number(nominal['epsilon'])} (claimed by: {nominal['source']}; not proven)")
    for note in privacy["notes"]:
        rich.print(f"- {note}", style="dim")


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
