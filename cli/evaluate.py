"""``dpltm evaluate`` and ``dpltm predict``: the network of a run, in tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console as RichConsole

from dpltm.cli.console import answering
from dpltm.cli.show import show_noted
from dpltm.registry import Deferred


def show_evaluation(rich: RichConsole, body: dict[str, Any]) -> None:
    """Accuracy, and what was assumed or could not be checked."""
    show_noted(rich, "evaluated", body)


def show_predictions(rich: RichConsole, body: dict[str, Any]) -> None:
    """Where the predictions are, and what was assumed."""
    show_noted(rich, "predicted", body)


evaluate_command = answering(Deferred("dpltm.tickets.workbench.evaluate:evaluate"), show_evaluation)
predict_command = answering(Deferred("dpltm.tickets.workbench.predict:predict"), show_predictions)
