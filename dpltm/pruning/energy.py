"""Gradient energy: which weights a training pulls at, and how hard.

The energy of a coordinate is the sum of its squared gradients over the T steps of a training,

    a = sum_t (g_t^2 - v),                                                                                              (1)

where g_t is the mean gradient of step t, and v the variance of the noise in it, 0 without noise. Weights of little energy
go. Unlike magnitudes, energies tell weights apart that start at zero, such as those of a change
(``dpltm.networks.changes_of``) or of an adapter.

**Under DP** (``dp-energy``; TP-TopK, Zhang and Xie 2026, arXiv 2606.04375) g_t is the noisy mean gradient of a step of
DP-SGD, (sum of clipped gradients + N(0, s^2)) / B, with s the noise multiplier times the clip norm C. So v = (s / B)^2.

Sensitivity: C for each of the T noisy sums (``dpltm.training.config``), and nothing beside it. (1) is a map of those sums
and of public numbers, so energies, masks and tickets are post-processing: the entry of that training pays for them all.

(1) is unbiased. Without signal its standard deviation is about v sqrt(2 T). At a fixed epsilon v grows as T, so few steps
of large batches rank coordinates better than many of small ones. Pooling m of them divides that error by sqrt(m).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from dpltm.networks import Network
from dpltm.networks.masks import Mask
from dpltm.pruning import PruningRound
from dpltm.pruning.unstructured import keep_topk

Energy = dict[str, Tensor]
"""Equation (1) so far, float64, by the names of the weights that may be pruned."""


def no_energy(spec: Network) -> Energy:
    """Return what it is before the first step."""
    return {name: torch.zeros(spec.shapes()[name], dtype=torch.float64) for name in spec.prunable}


def add_step(energy: Energy, model: nn.Module, variance: float) -> None:
    """Add a step whose noisy mean gradients, with noise of that variance in each coordinate, lie with the parameters."""
    for name, value in model.named_parameters():
        if name in energy:
            _add(energy[name], value, variance)


@contextlib.contextmanager
def adding(energy: Energy, model: nn.Module) -> Iterator[None]:
    """A block in which every backward pass adds a step without noise."""
    handles = [
        value.register_post_accumulate_grad_hook(partial(_add, energy[name]))
        for name, value in model.named_parameters()
        if name in energy
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _add(total: Tensor, value: Tensor, variance: float = 0.0) -> None:
    if value.grad is not None:
        total += value.grad.to("cpu", torch.float64).square().sub_(variance)


def pooled(energy: Tensor, rows: int) -> Tensor:
    """Return the mean over so many neighbouring rows (dimension 0), in the place of each; 0 leaves coordinates alone."""
    return torch.cat([part.mean().expand_as(part) for part in energy.split(rows)]) if rows else energy


def by_energy(step: PruningRound) -> Mask:
    """The next mask of ``energy``: the coordinates, or pools of rows, of least energy go."""
    scores = {name: pooled(step.energy[name], step.pool) for name in step.live}
    return keep_topk(scores, step.mask, step.live, step.scope)
