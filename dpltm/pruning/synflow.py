"""SynFlow (Tanaka, Kunin, Yamins, Ganguli 2020): weights that little of the network's flow goes through are dropped first.

It looks at no data: the flow is what a network of absolute weights makes of an input of ones. A table that is looked up in
is a linear layer of as many inputs as it has rows; for ones at all of them it gives the sum of its rows, at every position.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.pruning.criteria import PruningRound, Schedule, Scope
from dpltm.pruning.unstructured import keep_topk

STEPS = 10
"""A round is pruned in so many steps, each by fresh scores; in one, whole layers would go (the paper's layer collapse)."""


def synflow_scores(model: nn.Module, weights: Mapping[str, Tensor], mask: Mask, example: Tensor) -> dict[str, Tensor]:
    """dR/dw times w for R the sum of outputs of the network of absolute live weights, no biases, for ones (its eq. 1 and 3).

    Args:
        model: gives the architecture.
        weights: at initialisation.
        mask: live coordinates.
        example: one batch of records; only its shape matters.

    Returns:
        A score of at least zero per weight, float64.
    """
    flow = copy.deepcopy(model).double()
    for name, layer in flow.named_children():
        if isinstance(layer, nn.Tanh):  # everything flows, as through a ReLU; where tanh saturates nothing would
            setattr(flow, name, nn.Identity())
    for layer in flow.modules():
        if isinstance(layer, nn.Embedding):
            layer.register_forward_hook(_sum_of_rows)
    with torch.no_grad():
        for name, value in flow.named_parameters():
            value.copy_(weights[name].double().abs() * mask[name] * (value.ndim >= 2))
            value.requires_grad_(True)
    with torch.enable_grad():
        total = flow(torch.ones((1, *example.shape[1:]), dtype=torch.float64)).sum()
    named = {name: value for name, value in flow.named_parameters() if value.ndim >= 2}
    slopes = torch.autograd.grad(total, list(named.values()))
    return {name: slope * value.detach() for (name, value), slope in zip(named.items(), slopes, strict=True)}


def _sum_of_rows(table: nn.Module, given: tuple[Tensor], rows: Tensor) -> Tensor:
    del given
    assert isinstance(table, nn.Embedding)
    return table.weight.sum(0).expand_as(rows)


def prune_by_synflow(
    model: nn.Module, weights: Mapping[str, Tensor], mask: Mask, live: Mapping[str, int], scope: Scope, example: Tensor
) -> Mask:
    """The next mask, with ``live`` weights left, in ``STEPS`` steps of equal ratio.

    Args:
        model: gives the architecture.
        weights: at initialisation.
        mask: the present mask.
        live: how many weights of each prunable parameter are to stay.
        scope: whether these numbers hold in each layer, or only their sum does (see :func:`keep_topk`).
        example: one batch of records; only its shape matters.

    Returns:
        A mask nested in ``mask``.
    """
    present = {name: int(mask[name].sum()) for name in live}
    for step in range(1, STEPS + 1):
        if scope == "layer":
            now = {name: _between(present[name], count, step / STEPS) for name, count in live.items()}
        else:  # where the sum is all that counts
            total = _between(sum(present.values()), sum(live.values()), step / STEPS)
            now = {**dict.fromkeys(live, 0), next(iter(live)): total}
        mask = keep_topk(synflow_scores(model, weights, mask, example), mask, now, scope)
    return mask


def by_flow(step: PruningRound) -> Mask:
    """The next mask of ``synflow``."""
    return prune_by_synflow(step.model, step.initial, step.mask, step.live, step.scope, step.example)


def check_network(spec: ModelSpec, schedule: Schedule) -> None:
    """Raises InputError for a network that has no flow."""
    del schedule
    if any(isinstance(module, nn.RNNBase) for module in build(spec).modules()):
        raise InputError(
            f"`criterion`: synflow follows a flow through layers that are linear for it, and the gates of {spec.text} are"
            " not; take init-magnitude or random"
        )


def _between(before: int, after: int, part: float) -> int:
    """A number on the way from ``before`` to ``after``, in equal ratios; exactly ``after`` at the end."""
    return after if part == 1 else max(after, round(before * (after / before) ** part))
