"""Canaries put into a training."""

from __future__ import annotations

from dpltm.audit.canaries import Canaries
from dpltm.privacy.mechanisms import Adjacency
from dpltm.randomness.noise import RandomSource
from dpltm.training.descent import NoisyGradients


def plant(gradients: NoisyGradients, count: int | None, adjacency: Adjacency, coins: RandomSource) -> None:
    """Adds canaries to a training that has not begun.

    Args:
        gradients: of the training.
        count: of canaries; None for no audit.
        adjacency: the relation that is claimed.
        coins: of the audit.

    Raises:
        InputError: more canaries than live coordinates.
    """
    if count is not None:
        layers, config = gradients.gradients.layer_of, gradients.config
        gradients.canaries = Canaries(
            count, config.filter, layers, config.sampling_rate, adjacency == "replace-one", coins
        )
