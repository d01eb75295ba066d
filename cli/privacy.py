"""``dpltm privacy``: the accountant on its own, and what a ledger says, in tables."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console as RichConsole
from rich.table import Table

from dpltm.cli.console import answering
from dpltm.cli.show import show_notes, show_privacy
from dpltm.privacy.accountants import ACCOUNTANTS, CERTIFIED, DEFAULT
from dpltm.privacy.describe import figure, percent
from dpltm.registry import Deferred

SHOWN = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
"""False alarms in the table; each is a point of every curve."""


def show_epsilon(rich: RichConsole, body: dict[str, Any]) -> None:
    """The answer of ``dpltm privacy epsilon``."""
    table = Table("accountant", "epsilon", "what it is", title=_title(body), title_justify="left")
    for name in sorted(ACCOUNTANTS, key=lambda name: name not in CERTIFIED):
        accountant = ACCOUNTANTS[name]
        limit = f", mu = {figure(body['mu'])}" if name == "clt" else ""
        style = "bold" if name == DEFAULT else None if accountant.certifies else "dim"
        table.add_row(name, figure(body[name]), accountant.help + limit, style=style)
    rich.print(table)
    _show_nominal_noise(rich, body)
    show_notes(rich, body)


def show_noise(rich: RichConsole, body: dict[str, Any]) -> None:
    """The answer of ``dpltm privacy noise``."""
    quantity = body["found"].replace("_", " ")
    value = body[body["found"]]
    less = quantity != "noise multiplier"  # what is copied keeps the budget: more noise, or a smaller rate
    found = f"{value:,}" if isinstance(value, int) else figure(value, 6, down=less)
    rich.print(f"{quantity} = {found}", style="bold")
    rich.print(
        f"certified epsilon = {figure(body['epsilon'])} of {body['budget']:g} (accountant {body['accountant']});"
        f" {_title(body)}"
    )
    _show_nominal_noise(rich, body)
    show_notes(rich, body)


def _title(body: dict[str, Any]) -> str:
    draw = "" if body["eps1"] is None else f", after a draw at eps1 {body['eps1']:g}"
    return (
        f"noise multiplier {body['noise_multiplier']:.4g}, sampling rate {body['sampling_rate']:.4g}, {body['steps']:,}"
        f" steps, delta {body['delta']:g}, {body['adjacency']}{draw}"
    )


def _show_nominal_noise(rich: RichConsole, body: dict[str, Any]) -> None:
    if body["nominal"] is not None:
        rich.print(
            f"nominal noise multiplier = {body['nominal']['noise_multiplier']:.4g} ({body['nominal']['source']})",
            style="dim",
        )


def show_curve(rich: RichConsole, body: dict[str, Any]) -> None:
    """The answer of ``dpltm privacy curve``."""
    certified, nominal = body["certified"], body["nominal"]
    rich.print(body["sentence"], style="bold")
    rich.print(f"certified epsilon = {figure(body['epsilon_at_delta'])} at delta {body['delta']:g}")
    table = Table("false alarms", "misses, at least", "G_mu (nominal)", title=body["of"], title_justify="left")
    for alpha in SHOWN:
        place = certified["alpha"].index(alpha)
        gdp = "" if nominal is None else percent(nominal["beta"][place])
        misses = math.floor(certified["beta"][place] * 1e4) / 1e4
        table.add_row(percent(alpha), percent(misses), gdp)
    rich.print(table)
    for name in ("csv", "plot"):
        if body[name]:
            rich.print(f"wrote {body[name]}")


def show_ledger(rich: RichConsole, body: dict[str, Any]) -> None:
    """A ledger, line by line."""
    for row in body["entries"]:
        alone = "" if row["epsilon"] is None else f"  epsilon alone {figure(row['epsilon'])}"
        rich.print(f"line {row['line']}  {row['day']}  {row['dataset']}{alone}", style="bold")
        rich.print(f"  {row['words']}")
    if not body["entries"]:
        rich.print("the ledger holds no entry")
        return
    for row in body["parts"]:
        rich.print(f"{', '.join(row['records'])}: epsilon {figure(row['epsilon'])}")
    rich.print("\neverything together", style="bold")
    show_privacy(rich, body["privacy"])


def show_budgets(rich: RichConsole, body: dict[str, Any]) -> None:
    """The budget that a ledger sets."""
    if not body["budgets"]:
        rich.print(f"{body['ledger']} sets no budget; --epsilon E sets one")
        return
    table = Table("unit", "budget", "delta", "spent", title=body["ledger"], title_justify="left")
    for row in body["budgets"]:
        table.add_row(row["unit"], f"{row['epsilon']:g}", f"{row['delta']:g}", figure(row["spent"]))
    rich.print(table)


def show_apart(rich: RichConsole, body: dict[str, Any]) -> None:
    """A declaration."""
    rich.print(f"{body['ledger']}: {body['apart']} is declared to have nobody in common with {body['population']}")


def show_check(rich: RichConsole, body: dict[str, Any]) -> None:
    """What a card says, and what differs."""
    for problem in body["problems"]:
        rich.print(problem, style="bold")
    if body["ok"]:
        rich.print(f"{body['card']}: what was compared agrees with its entries ({body['entries']})", style="bold")
    show_privacy(rich, body["privacy"])
    show_notes(rich, body)


epsilon_command = answering(Deferred("dpltm.tickets.workbench.accountant:epsilon_of"), show_epsilon)
noise_command = answering(Deferred("dpltm.tickets.workbench.accountant:noise_of"), show_noise)
curve_command = answering(Deferred("dpltm.tickets.workbench.accountant:curve_of"), show_curve)
ledger_command = answering(Deferred("dpltm.tickets.workbench.ledgers:explain"), show_ledger)
apart_command = answering(Deferred("dpltm.tickets.workbench.ledgers:declare_apart"), show_apart)
budget_command = answering(Deferred("dpltm.tickets.workbench.ledgers:budgets"), show_budgets)
check_command = answering(
    Deferred("dpltm.tickets.workbench.check_card:check"), show_check, lambda body: not body["ok"]
)
