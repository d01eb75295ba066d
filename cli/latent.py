"""``dpltm latent``: local privacy, in tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole

from dpltm.cli.console import answering
from dpltm.cli.show import show_notes, show_pairs, show_privacy
from dpltm.privacy.describe import figure, guarantee, percent
from dpltm.registry import Deferred

SCHEME_FACTS = (
    "features", "values", "bits", "candidates", "classes", "protocol", "epsilon", "alpha", "label_epsilon", "record_bytes",
)  # fmt: skip
ENCODED_FACTS = ("records", "features", "values", "bits", "candidates", "record_bytes")
CLAIM_FACTS = ("protocol", "bits", "epsilon", "alpha", "copies", "label_epsilon", "p", "q")


def show_claim(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the certified figure of a protocol, before the claim."""
    show_pairs(rich, "local privacy of a record", {name: body[name] for name in CLAIM_FACTS})
    certified = {"epsilon": body["certified"], "delta": 0, "adjacency": "replace-one", "unit": "record"}
    rich.print(guarantee(certified, 7), style="bold")
    rich.print(f"nominal epsilon = {figure(body['nominal'])} (claimed by: {body['protocol']})")
    show_notes(rich, body)


def show_scheme(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the scheme."""
    show_pairs(rich, f"wrote {body['scheme']}", {key: body.get(key) for key in SCHEME_FACTS})
    _show_figures(rich, body)
    show_notes(rich, body)


def show_messages(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the messages that were sent, or would be."""
    title = "would encode" if body.get("dry_run") else f"wrote {body['messages']}"
    show_pairs(rich, title, {key: body.get(key) for key in ENCODED_FACTS})
    _show_figures(rich, body)
    show_privacy(rich, body["privacy"])


def show_learned(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the network and how well it does."""
    facts = {key: body[key] for key in ("records", "model", "inputs")} | {"seconds": round(body["seconds"])}
    scores = {"accuracy": body["accuracy"], "on randomised records": body["randomised"]}
    shown = {name: percent(score) for name, score in scores.items() if score is not None}
    show_pairs(rich, f"wrote {body['run']}", facts | shown)
    _show_figures(rich, body)
    show_notes(rich, body)


def _show_figures(rich: RichConsole, body: dict[str, Any]) -> None:
    certified, nominal = figure(body["certified"], 7), figure(body["nominal"])
    rich.print(f"certified local epsilon of a record = {certified} (replace-one, delta = 0)", style="bold")
    rich.print(f"nominal local epsilon of a record = {nominal} (claimed by: {body['protocol']})")


epsilon_command = answering(Deferred("dpltm.verbs.latent:claim"), show_claim)
scheme_command = answering(Deferred("dpltm.tickets.workbench.latent:agree"), show_scheme)
encode_command = answering(Deferred("dpltm.tickets.workbench.latent:send"), show_messages)
train_command = answering(Deferred("dpltm.tickets.workbench.latent:receive"), show_learned)
