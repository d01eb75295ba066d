"""What an audit of a run found: its observations, against what the ledger says of its training."""

from __future__ import annotations

from typing import Any

from dpltm.audit.findings import Findings, examine
from dpltm.errors import InputError
from dpltm.privacy.events import TrainingEvent
from dpltm.privacy.own_event import names, other_event
from dpltm.stages.checks import check_delta_alone
from dpltm.training.run import Run, unfit


def audit(run: Run, *, confidence: float = 0.95, delta: float | None = None) -> Findings:
    """Lower bounds on the epsilon of a training that had canaries, beside what is claimed of it.

    Args:
        run: with its events.
        confidence: that the bounds hold with, both together, in [0.5, 1).
        delta: of every epsilon; None for that of the run.

    Raises:
        InputError: it was not audited, or there were too few canaries for the confidence.
        ArtifactError: its events do not hold its training.

    Guarantees:
        If the training is as private as its event says, a bound above the certified epsilon has probability at most
        1 - ``confidence``.
    """
    if run.observations is None:
        raise InputError(
            f"{run.label}: has no observations of an audit; train with `audit`, such as 1000, to have it attacked"
        )
    options: dict[str, Any] = run.config["options"]
    delta = options["delta"] if delta is None else delta
    check_delta_alone(delta)
    return examine(run.observations, training_of(run), delta, confidence, options["accountant"])


def training_of(run: Run) -> TrainingEvent:
    """The event of the training itself, among those of other trainings on the same records.

    It is the one that the run names; of an older run, the last that fits.

    Raises:
        ArtifactError: there is none.
    """
    fitting = [event for event in run.events if isinstance(event, TrainingEvent) and run.fits(event.mechanism)]
    for event in reversed(fitting):
        if names(run.config, event):
            return event
    raise unfit(run.label, other_event(run.config, fitting))
