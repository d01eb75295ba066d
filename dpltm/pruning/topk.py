"""From scores to a mask: the weights of highest score stay, exactly as many as the schedule says."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dpltm.networks.masks import Mask
from dpltm.pruning.criterion import Scope


def keep_topk(scores: Mapping[str, Tensor], mask: Mask, live: Mapping[str, int], scope: Scope = "layer") -> Mask:
    """The live weights of highest score.

    Args:
        scores: one a weight, by parameter; only those named in ``live`` are looked at.
        mask: the present mask.
        live: how many weights of each prunable parameter are to stay, from 1 to as many as live now.
        scope: ``layer`` keeps these numbers in each layer; ``global`` keeps their sum, wherever in the network the scores
            are highest, but at least one weight of every layer, so that none is cut off.

    Returns:
        A mask nested in ``mask``. Equal scores are dropped in the order of their position; NaN counts as the highest.
    """
    flat = {name: scores[name].detach().flatten() for name in live}
    alive = {name: mask[name].flatten() for name in live}
    if scope == "layer":
        alive_next = {name: _topk(flat[name], alive[name], count) for name, count in live.items()}
    else:
        alive_next = dict(zip(live, _topk_overall(flat, alive, sum(live.values())), strict=True))
    return Mask({**mask, **{name: values.view_as(mask[name]) for name, values in alive_next.items()}})


def _topk(scores: Tensor, alive: Tensor, count: int) -> Tensor:
    """``alive`` with its ``count`` highest scores left."""
    positions = alive.nonzero().squeeze(1)
    if not 0 <= count <= len(positions):
        raise ValueError(f"Expected 0 <= count={count} <= {len(positions)} live weights")
    order = torch.argsort(scores[positions], stable=True)  # NaN last
    alive_next = alive.clone()
    alive_next[positions[order[: len(positions) - count]]] = False
    return alive_next


def _topk_overall(scores: Mapping[str, Tensor], alive: Mapping[str, Tensor], count: int) -> tuple[Tensor, ...]:
    """The same for all layers together; the highest of each stays."""
    safe = torch.cat([_topk(scores[name], alive[name], 1) for name in scores])
    others = torch.cat([alive[name] for name in scores]) & ~safe
    chosen = _topk(torch.cat(list(scores.values())), others, count - int(safe.sum()))
    return (chosen | safe).split([len(values) for values in scores.values()])
