"""Where a training under differential privacy is: kept on the way, gone on from (``training.checkpoint`` says why that is
sound)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from dpltm.errors import ArtifactError, DpltmError
from dpltm.gradients.choose import choices_made
from dpltm.privacy.event_json import to_json
from dpltm.privacy.old_ledger import Ledger
from dpltm.randomness import keyed_source
from dpltm.randomness.keyed_source import KeyedSource, ResumableSource, source_of
from dpltm.randomness.noise import FastSource
from dpltm.stages.going_on import check_same_work, entered_for, records_of
from dpltm.stages.train_plan import TrainingPlan
from dpltm.training.checkpoint import AGAIN, Checkpoint
from dpltm.training.descent import Descent

CENTRE, SECOND, AUDIT = "centre", "second_moments", "audit/"
"""Tensors of a checkpoint: the mean that features are centred at, and the second moments that steps divide by; those of
canaries begin with the last."""


@dataclass(frozen=True)
class Sources:
    """All random numbers of a training that its guarantee rests on.

    Attributes:
        sampling: coins of who enters a step, and which chunk.
        noise: of the centre and of the steps.
        evaluation: noise of counts on the private records.
        audit: where coins of an audit begin; it never moves on.
    """

    sampling: ResumableSource
    noise: ResumableSource
    evaluation: ResumableSource
    audit: ResumableSource | None = None

    @classmethod
    def fresh(cls, noise: str, audited: bool = False) -> Sources:
        """Those of a new training.

        Args:
            noise: ``fast`` for noise of statistical quality.
            audited: whether it has canaries.
        """
        of_noise = FastSource.of(keyed_source.fresh_key()) if noise == "fast" else KeyedSource()
        return cls(KeyedSource(), of_noise, KeyedSource(), KeyedSource() if audited else None)

    @classmethod
    def of(cls, states: Mapping[str, str]) -> Sources:
        """Those of which ``state`` gave the states."""
        return cls(**{name: source_of(state) for name, state in states.items()})

    def state(self) -> dict[str, str]:
        """Their states by name; secret."""
        return {name: source.state for name, source in vars(self).items() if source is not None}


@dataclass
class Passed:
    """What a training has behind it, beside what its network holds.

    Attributes:
        metrics: what was noted on the way.
        seconds: of work.
    """

    metrics: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def reached(self, goal: float | None) -> bool:
        """Whether the last accuracy that was measured ends the training."""
        last = self.metrics[-1]["accuracy"] if self.metrics else None
        return goal is not None and last is not None and last >= goal


def checkpoint_of(
    plan: TrainingPlan, descent: Descent, sources: Sources, passed: Passed, second: torch.Tensor | None = None
) -> Checkpoint:
    """Where a training is, between two steps.

    Args:
        plan: of the training.
        descent: its steps.
        sources: its random numbers.
        passed: what is behind it.
        second: second moments that were released.
    """
    steps, feature_map = plan.event.mechanism.steps, plan.dataset.feature_map
    centre = None if feature_map is None else feature_map.centre
    state = {
        "of": _facts(plan),
        "events": [to_json(event) for event in (*plan.lineage, plan.event)],
        "step": descent.step,
        "metrics": passed.metrics,
        "seconds": passed.seconds,
        "sources": sources.state(),
        "choices": choices_made(),
    }
    tensors = {name: value.cpu().numpy() for name, value in descent.state().items()}
    if plan.centre is not None and centre is not None:
        tensors[CENTRE] = centre.numpy()
    if second is not None:
        tensors[SECOND] = second.numpy()
    tensors |= {AUDIT + name: value for name, value in descent.gradients.canaries.state().items()}
    return Checkpoint(f"step {descent.step} of {steps}", state, tensors)


def go_on(plan: TrainingPlan, descent: Descent, held: Checkpoint) -> Passed:
    """Takes a training to where a checkpoint was taken.

    Args:
        plan: of the training, which the checkpoint fits.
        descent: before its first step.
        held: the checkpoint.

    Raises:
        ArtifactError: it is damaged.
    """
    try:
        audit = {name: value for name, value in held.tensors.items() if name.startswith(AUDIT)}
        tensors = {name: value for name, value in held.tensors.items() if name not in (CENTRE, SECOND, *audit)}
        step = int(held.state["step"])
        if not 0 <= step <= plan.event.mechanism.steps:
            raise ValueError(step)
        descent.resume(step, {name: torch.from_numpy(value) for name, value in tensors.items()})
        descent.gradients.canaries.resume({name.removeprefix(AUDIT): value for name, value in audit.items()})
        return Passed([dict(line) for line in held.state["metrics"]], float(held.state["seconds"]))
    except (KeyError, IndexError, TypeError, ValueError, DpltmError):
        raise ArtifactError(f"checkpoint: damaged, or of another version; {AGAIN}") from None


def released_in(held: Checkpoint | None, name: str) -> torch.Tensor | None:
    """``CENTRE`` or ``SECOND``, where it was released before a checkpoint was taken."""
    values = None if held is None else held.tensors.get(name)
    return None if values is None else torch.from_numpy(np.array(values))


def resumed(plan: TrainingPlan, held: Checkpoint, ledger: Ledger) -> TrainingPlan:
    """The plan of an interrupted training, with the events that it entered.

    Args:
        plan: the same training planned anew, on what the ledger held then (``going_on.planned_on``).
        held: its checkpoint.
        ledger: as it is now.

    Raises:
        InputError: it is another training; what differs is named.
    """
    check_same_work(held, plan.dataset, _facts(plan))
    planned = (*plan.lineage, plan.event)
    entered = entered_for(planned, held, plan.before.events, ledger)
    known: dict[int, Any] = {id(new): old for new, old in zip(planned, entered, strict=True)}  # of the same types
    return replace(
        plan,
        lineage=entered[:-1],
        event=known[id(plan.event)],
        evaluations=tuple(known[id(event)] for event in plan.evaluations),
        centre=None if plan.centre is None else known[id(plan.centre)],
        second=None if plan.second is None else known[id(plan.second)],
        records=entered[-1].dataset,
        ledger=ledger,
    )


def _facts(plan: TrainingPlan) -> dict[str, Any]:
    """What a training is of, beside its options."""
    tickets, feature_map = plan.start.tickets, plan.dataset.feature_map
    return {
        "records": records_of(plan.records, plan.dataset, plan.ledger.registry.key),
        "ticket": None if tickets is None else tickets.id,
        "round": plan.start.round,
        "model": plan.start.spec.text,
        "live": plan.start.mask.live,
        "features": None if feature_map is None else feature_map.uncentred.id,
    }
