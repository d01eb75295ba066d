"""Pruning criteria: their inputs, defaults, and how each makes the next mask.

A new criterion is one ``Criterion``, and one line in ``CRITERIA``. Functions that make masks need torch, and are deferred.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from dpltm.registry import Deferred, Registry

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dpltm.networks import Network
    from dpltm.networks.masks import Mask


Scope = Literal["layer", "global"]
"""Scope of the number of weights to keep: layer by layer, or in sum."""

SCOPES: tuple[Scope, ...] = ("layer", "global")

Groups = tuple[tuple[float, ...], ...]
"""Neighbouring inputs that are dropped together: the variance of each, as far as that is public."""

Schedule = tuple[dict[str, int], ...]
"""Number of live weights of each prunable parameter, per round."""


@dataclass(frozen=True)
class PruningRound:
    """Inputs from which a criterion makes the next mask.

    Attributes:
        model: as trained under ``mask``.
        live: weights that each prunable parameter is to keep.
        scope: whether ``live`` holds layer by layer or in sum.
        example: one batch of records; only shape and dtype matter.
        groups: inputs that each column of a table became; none where inputs stand alone.
    """

    model: nn.Module
    initial: Mapping[str, Tensor]
    mask: Mask
    live: Mapping[str, int]
    scope: Scope
    example: Tensor
    seed: int
    groups: Groups = ()

    @property
    def trained(self) -> dict[str, Tensor]:
        """Weights after training, by parameter."""
        return dict(self.model.named_parameters())


@dataclass(frozen=True)
class TrainingDefaults:
    """Training of a criterion's networks if nothing is said: minibatch steps of a round, or ``epochs`` in their place; the
    records make at least ``fewest_batches`` batches."""

    iterations: int = 5000
    epochs: float | None = None
    batch_size: int = 400
    fewest_batches: int | None = None
    lr: float = 0.1

    def batch_of(self, records: int) -> int:
        if self.fewest_batches is None:
            return self.batch_size
        return min(self.batch_size, max(1, records // self.fewest_batches))

    def iterations_of(self, records: int, batch_size: int) -> int:
        return self.iterations if self.epochs is None else max(1, round(self.epochs * records / batch_size))


@dataclass(frozen=True)
class Criterion:
    """A pruning criterion that can be chosen by name.

    Attributes:
        looks_at: what decides its masks. Those that look at initial weights, or nothing, depend on no data.
        next_mask: the mask of the next round: nested in the last one, with as many live weights as the round says.
        scope: if nothing is said.
        under_dp: whether it prunes a network trained under DP, for a budget.
        check: of the network and the schedule; raises InputError where it cannot prune the one by the other.
    """

    name: str
    help: str
    source: str
    looks_at: Literal["trained weights", "initial weights", "nothing"]
    next_mask: Callable[[PruningRound], Mask]
    scope: Scope = "layer"
    under_dp: bool = False
    training: TrainingDefaults = field(default_factory=TrainingDefaults)
    check: Callable[[Network, Schedule], None] = lambda _spec, _schedule: None


MAGNITUDE = Criterion(
    "magnitude", "Drops the smallest trained weights.", "Han et al. 2015; Frankle and Carbin 2019", "trained weights",
    Deferred("dpltm.pruning.unstructured:by_trained_weights"),
)  # fmt: skip
INPUTS = Criterion(
    "inputs", "The same, but the first layer loses whole inputs: columns of a table, or words.", "this project",
    "trained weights", Deferred("dpltm.pruning.unstructured:by_trained_inputs"),
)  # fmt: skip
RANDOM = Criterion(
    "random", "Drops weights in a random order that the seed decides.", "the usual control", "nothing",
    Deferred("dpltm.pruning.unstructured:at_random"),
)  # fmt: skip
INIT_MAGNITUDE = Criterion(
    "init-magnitude", "Drops the smallest weights at initialisation.", "Frankle et al. 2021", "initial weights",
    Deferred("dpltm.pruning.unstructured:by_initial_weights"),
)  # fmt: skip
SYNFLOW = Criterion(
    "synflow", "Drops the weights that carry least of the network's flow.", "Tanaka et al. 2020", "initial weights",
    Deferred("dpltm.pruning.unstructured:by_flow"), scope="global",
    check=Deferred("dpltm.pruning.unstructured:check_network"),
)  # fmt: skip
STRUCTURED = Criterion(
    "structured",
    "Drops whole units by their trained weights; only the total number of weights counts, whatever the scope.",
    "Fang et al. 2023", "trained weights", Deferred("dpltm.pruning.structured:by_units"),
    check=Deferred("dpltm.pruning.structured:check_network"),
)  # fmt: skip
DP_TRAIN = replace(
    MAGNITUDE,
    name="dp-train",
    help="Drops the smallest weights of one network trained under DP, round after round.",
    source="this project, after DPLTM",
    under_dp=True,
    training=TrainingDefaults(epochs=15, batch_size=1600, fewest_batches=4, lr=1.0),
)
CRITERIA = Registry[Criterion]("criterion", (MAGNITUDE, INPUTS, RANDOM, INIT_MAGNITUDE, SYNFLOW, STRUCTURED, DP_TRAIN))

DP_CRITERIA = CRITERIA.names(lambda criterion: criterion.under_dp)
"""Criteria that read private records through a training under DP."""

DATA_FREE = CRITERIA.names(lambda criterion: criterion.looks_at != "trained weights")
"""Criteria that look at nothing that was trained, so that their masks depend on no data."""
