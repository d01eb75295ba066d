"""Runs: a trained network with its mask, what stands in front of it, and what it cost; values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from dpltm.errors import ArtifactError, InputError
from dpltm.features.feature_map import FeatureMap, FrozenNetwork
from dpltm.networks import ModelSpec
from dpltm.networks.masks import Mask
from dpltm.privacy.entry import NO_LINEAGE, Entry, Lineage
from dpltm.privacy.mechanisms import NoisySgd, PrivateSearch

if TYPE_CHECKING:
    from dpltm.audit.canaries import Observations
    from dpltm.privacy.ledger import Ledger
    from dpltm.privacy.statement import PrivacyReport
    from dpltm.records import Dataset

RECORDED = ("noise_multiplier", "sampling_rate", "steps", "sensitivity")
"""Public facts that a run and its entry have in common."""


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
        ledger: that paid; None of a run that was read, and where nothing was paid.
        lineage: of everything that it depends on, its own training among it: what goes with it wherever it goes.
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
    lineage: Lineage = field(default=NO_LINEAGE, compare=False, repr=False)
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

    @property
    def entry(self) -> Entry | None:
        """What paid for its training, or search; None of a run that nothing paid for.

        Raises:
            ArtifactError: it names an entry that its lineage lacks, or whose noise is another one.
        """
        named = self.config.get("entry")
        if named is None:
            return None
        found = next((entry for entry in self.lineage.entries if entry.id == named), None)
        if found is None or not any(map(self._fits, _trainings(found))):
            raise ArtifactError(
                f"{self.label}: its lineage holds no training with its settings; the two do not fit each other"
            )
        return found

    def in_front_of(self, dataset: Dataset) -> FeatureMap:
        """Return the network without its last layer, as a map of these records, with the lineage of the run.

        Raises:
            InputError: what the network depends on is not known, or it cannot take these records.
        """
        name = self.label
        if self.feature_map is not None:
            raise InputError(
                f"`features`: {name} stands behind {self.feature_map.text} features itself; take a run on records as they"
                " are"
            )
        if not self.spec.text.partition(":")[2]:
            raise InputError(f"`features`: the network of {name} is one layer, with nothing in front of it to take")
        if not self.lineage:
            raise InputError(f"`features`: {name}: its lineage holds no training, so nothing can be certified")
        parameters = {key: value.detach().clone() for key, value in self.model.named_parameters()}
        network = FrozenNetwork(self.spec, parameters)
        return FeatureMap(network, dataset.row_shape, self.bounds, lineage=self.lineage).for_records(
            dataset.row_shape, dataset.bounds
        )

    def _fits(self, mechanism: NoisySgd) -> bool:
        facts = self.config.get("resolved")
        return isinstance(facts, Mapping) and all(getattr(mechanism, name) == facts.get(name) for name in RECORDED)


def _trainings(entry: Entry) -> list[NoisySgd]:
    tried = [sgd for search in entry.of(PrivateSearch) for sgd in search.trainings]
    return [*entry.of(NoisySgd), *tried]
