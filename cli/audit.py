"""``dpltm audit``: a claim on disk is attacked; exit code 1 where a bound exceeds what is certified."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole
from rich.table import Table

from dpltm.cli.console import answering
from dpltm.cli.show import show_pairs
from dpltm.privacy.describe import figure
from dpltm.registry import Deferred


def show_findings(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show claims and bounds: of the demo a row each, else with what they rest on."""
    if "rows" in body:
        table = Table("attacked", "nominal", "certified", "at least", "refuted")
        for row in body["rows"]:
            nominal = "-" if row["nominal"] is None else figure(row["nominal"])
            refuted = ", ".join(row["violates"]) or "nothing"
            table.add_row(
                row["audited"], nominal, figure(row["certified"]), figure(row["lower_bound"], 3, down=True), refuted
            )
        rich.print(table)
        return
    claims = {name: figure(body[name]) for name in ("certified", "nominal") if body[name] is not None}
    fallen = {name: f"{claim}: refuted" if name in body["violates"] else claim for name, claim in claims.items()}
    rest = {name: value for name, value in body.items() if name not in ("audited", "method", "guesses", "violates")}
    bounds = {f"bound, {name}": value for name, value in body.get("bounds", {}).items()}
    show_pairs(rich, f"epsilon of {body['audited']}: {body['method']}", {**rest, **fallen, **bounds})


_WORK = Deferred("dpltm.tickets.workbench.audit:attack")
audit_command = answering(_WORK, show_findings, lambda body: "certified" in body["violates"])
