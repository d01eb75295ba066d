"""Magnitude: weights of smallest absolute value are dropped first (Han et al. 2015; Frankle and Carbin 2019).

Or, of a first layer, the inputs whose weights are smallest together (of a table, the words whose vectors are): an input that
is dropped whole costs no noise at all.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dpltm.networks.masks import Mask
from dpltm.pruning.criterion import Groups, PruningRound, Scope
from dpltm.pruning.topk import keep_topk


def prune_by_magnitude(
    weights: Mapping[str, Tensor], mask: Mask, live: Mapping[str, int], scope: Scope = "layer"
) -> Mask:
    """The next mask of DPLTM's Algorithm 1: of each layer, or of the network, the smallest live weights go.

    Args:
        weights: trained parameters, or those at initialisation.
        mask: the present mask.
        live: how many weights of each prunable parameter are to stay.
        scope: ``layer`` or ``global`` (see ``keep_topk``).
    """
    return keep_topk({name: weights[name].abs() for name in live}, mask, live, scope)


def prune_by_input(
    weights: Mapping[str, Tensor],
    mask: Mask,
    live: Mapping[str, int],
    scope: Scope = "layer",
    inputs: int = 1,
    groups: Groups = (),
) -> Mask:
    """The next mask where the first layer is judged by its inputs, and the others by their weights.

    An input counts as much as the L2 norm of its live weights. They go from the least on, one after another, so that
    at most one is dropped in part. Inputs of a group go together: a column of a table lives or dies whole, but for the one
    that the number of live weights may leave in part. It counts as much as what it adds to the next layer varies, if all
    that the schema allows is equally likely.

    Args:
        weights: trained parameters.
        mask, live, scope: see ``prune_by_magnitude``.
        inputs: which dimension of the first parameter of ``live`` the inputs are in.
        groups: variances of neighbouring inputs that go together; none where each stands alone.
    """
    first = next(iter(live))
    scores = {name: weights[name].detach().abs() for name in live}
    columns = (weights[first].detach() * mask[first]).double().transpose(0, inputs).flatten(1).norm(dim=1)
    if sum(map(len, groups)) == len(
        columns
    ):  # else its inputs are no columns: a network that reads steps, or channels
        columns = _by_group(columns, groups)
    shape = [1] * weights[first].ndim
    shape[inputs] = -1
    scores[first] = columns.view(shape).expand_as(weights[first])
    return keep_topk(scores, mask, live, scope)


def _by_group(columns: Tensor, groups: Groups) -> Tensor:
    """For each input the root of what the squared norms of its group come to, each times its variance."""
    split = columns.square().split([len(variances) for variances in groups])
    sums = [(part * part.new_tensor(variances)).sum().sqrt() for part, variances in zip(split, groups, strict=True)]
    return torch.cat([total.expand(len(variances)) for total, variances in zip(sums, groups, strict=True)])


def by_trained_weights(step: PruningRound) -> Mask:
    """The next mask of ``magnitude``."""
    return prune_by_magnitude(step.trained, step.mask, step.live, step.scope)


def by_initial_weights(step: PruningRound) -> Mask:
    """The next mask of ``init-magnitude``."""
    return prune_by_magnitude(step.initial, step.mask, step.live, step.scope)


def by_trained_inputs(step: PruningRound) -> Mask:
    """The next mask of ``inputs``: inputs are the columns of a layer's weights, but the rows of a table."""
    table = isinstance(step.model.get_submodule(next(iter(step.live)).rpartition(".")[0]), nn.Embedding)
    return prune_by_input(step.trained, step.mask, step.live, step.scope, 0 if table else 1, step.groups)
