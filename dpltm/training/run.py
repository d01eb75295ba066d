"""Runs: a trained network with its mask, what stands in front of it, and what it cost; values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from dpltm.errors import ArtifactError
from dpltm.features.feature_map import FeatureMap
from dpltm.networks import ModelSpec
from dpltm.networks.masks import Mask
from dpltm.privacy.events import Event, SearchEvent, TrainingEvent
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.privacy.own_event import other_event

if TYPE_CHECKING:
    from dpltm.audit.canaries import Observations
    from dpltm.privacy.old_ledger import Ledger
    from dpltm.privacy.statement import PrivacyReport

RECORDED = ("noise_multiplier", "sampling_rate", "steps", "sensitivity")
"""Public facts that a run and its event have in common."""


@dataclass(frozen=True)
class Run:
    """A trained network, and everything that says how it came about.

    Attributes:
        config: its settings, as ``config.json`` holds them.
        model: the network, on the CPU; pruned weights are zero.
        mask: live coordinates.
        feature_map: what stands in front of the network; None where it takes records as they are.
        metrics: what was noted on the way, a line for each point.
        privacy: the report on the records that were trained on; None of a run that was read.
        ledger: that its events were entered in; None where nothing was.
        events: of that ledger, those that tell of records which the run depends on: what goes with it wherever it goes.
        seconds: how long its training took, which no artifact keeps.
        observations: what an audit of its training saw; None where there was none.
        label: what messages call it.
        path: its folder; None for a run in memory.
    """

    config: Mapping[str, Any]
    model: nn.Sequential
    mask: Mask
    feature_map: FeatureMap | None = None
    metrics: tuple[Mapping[str, Any], ...] = ()
    privacy: PrivacyReport | None = field(default=None, compare=False)
    ledger: Ledger | None = field(default=None, compare=False, repr=False)
    events: tuple[Event, ...] = field(default=(), compare=False, repr=False)
    seconds: float = field(default=0.0, compare=False)
    observations: Observations | None = field(default=None, compare=False, repr=False)
    label: str = field(default="the run", compare=False)
    path: Path | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        spent = "" if self.privacy is None else f", {self.privacy.certified}"
        return f"Run({self.label!r}: {self.spec.text}, {self.mask.live:,} weights{spent})"

    @property
    def bounds(self) -> tuple[float, float]:
        """Public bounds that inputs are scaled by."""
        low, high = self.config["bounds"]
        return float(low), float(high)

    @property
    def spec(self) -> ModelSpec:
        """The network."""
        return ModelSpec(self.config["model"], self.config["features"], self.config["classes"])

    def fits(self, mechanism: NoisySgd) -> bool:
        """Whether a mechanism is of a training with the settings of this run."""
        facts = self.config.get("resolved")
        return isinstance(facts, Mapping) and all(getattr(mechanism, name) == facts.get(name) for name in RECORDED)


def check_fits(run: Run, events: Iterable[Event]) -> None:
    """Raises ArtifactError for a run whose ledger holds trainings, or searches, but not its own, by event and settings."""
    tried: list[NoisySgd] = []
    events = tuple(events)
    for event in events:
        if isinstance(event, TrainingEvent):
            tried.append(event.mechanism)
        elif isinstance(event, SearchEvent):
            tried += event.mechanism.trainings
    if tried and not any(map(run.fits, tried)):
        raise unfit(run.label)
    if (differs := other_event(run.config, events)) is not None:
        raise unfit(run.label, differs)


def unfit(label: str, differs: str | None = None) -> ArtifactError:
    """What is said of a run and a ledger that do not fit each other.

    Args:
        label: of the run.
        differs: what ``other_event`` said.
    """
    return ArtifactError(
        f"{label}: its ledger {differs or 'holds no training with its settings; the two do not fit each other'}"
    )
