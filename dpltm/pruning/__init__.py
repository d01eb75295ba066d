"""Pruning criteria: which live weights to drop next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from dpltm.masks import Mask
from dpltm.pruning.highest import Scope, keep_highest
from dpltm.pruning.magnitude import prune_by_input, prune_by_magnitude
from dpltm.pruning.synflow import prune_by_synflow

Criterion = Literal["magnitude", "inputs", "random", "init-magnitude", "synflow", "structured"]
CRITERIA: tuple[Criterion, ...] = get_args(Criterion)

DATA_FREE: tuple[Criterion, ...] = ("random", "init-magnitude", "synflow")
"""Those that look at no trained weights, so that their masks depend on no data."""

__all__ = ["CRITERIA", "DATA_FREE", "Criterion", "Scope", "next_mask"]


def next_mask(
    criterion: Criterion,
    scope: Scope,
    model: nn.Module,
    initial: Mapping[str, Tensor],
    mask: Mask,
    live: Mapping[str, int],
    example: Tensor,
    seed: int,
) -> Mask:
    """The mask of the next round, nested in ``mask``, with as many live weights as ``live`` says.

    Args:
        criterion: ``magnitude`` of the trained weights; ``inputs``, the same but for the first layer, which loses whole
            inputs, or words of a table; ``random``; ``init-magnitude``, of the weights at initialisation;
            ``synflow``; ``structured``, whole units by their trained weights.
        scope: whether ``live`` holds layer by layer or in sum; ``structured`` takes the sum.
        model: as trained under ``mask``.
        initial: weights at initialisation.
        mask: of the last round.
        live: weights that each prunable parameter is to keep.
        example: one batch of records; only shape and dtype matter.
        seed: decides what ``random`` drops: every round goes on with the same order.
    """
    if criterion == "structured":
        from dpltm.pruning.structured import prune_units  # torch-pruning is not needed otherwise

        return prune_units(model, mask, sum(live.values()), example)
    if criterion == "inputs":
        table = isinstance(model.get_submodule(next(iter(live)).rpartition(".")[0]), nn.Embedding)
        return prune_by_input(dict(model.named_parameters()), mask, live, scope, 0 if table else 1)
    if criterion == "synflow":
        return prune_by_synflow(model, initial, mask, live, scope, example)
    if criterion == "random":
        generator = torch.Generator().manual_seed(seed + 2**33)
        order = {name: torch.rand(mask[name].shape, generator=generator, dtype=torch.float64) for name in live}
        return keep_highest(order, mask, live, scope)
    weights = initial if criterion == "init-magnitude" else dict(model.named_parameters())
    return prune_by_magnitude(weights, mask, live, scope)
