"""Random pruning: the control that every other criterion is measured against."""

from __future__ import annotations

import torch

from dpltm.networks.masks import Mask
from dpltm.pruning.criterion import PruningRound
from dpltm.pruning.topk import keep_topk


def at_random(step: PruningRound) -> Mask:
    """The next mask in a random order that the seed decides: every round goes on with the same order."""
    generator = torch.Generator().manual_seed(step.seed + 2**33)
    order = {name: torch.rand(step.mask[name].shape, generator=generator, dtype=torch.float64) for name in step.live}
    return keep_topk(order, step.mask, step.live, step.scope)
