"""Phase 3: train a ticket under differential privacy (DP-SGD on live coordinates; PRIVACY.md section 4).

Each step: Poisson sample, per-record gradients, filter, sum, Gaussian noise on live coordinates only, division by the
*expected* batch size, optimizer. Everything after the noisy sum is post-processing, so every optimizer has the same
guarantee. Pruned weights get neither gradient nor noise and stay exactly zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.filters import Filter
from dpltm.gradients import RecordGradients
from dpltm.masks import Mask
from dpltm.noise import RandomSource, gaussian
from dpltm.privacy.events import Adjacency
from dpltm.sampling import poisson_sample

Optimizer = Literal["sgd", "momentum", "adam", "adagrad"]

_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter], float], torch.optim.Optimizer]] = {
    "sgd": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr),
    "momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    "adam": lambda parameters, lr: torch.optim.Adam(parameters, lr=lr),
    "adagrad": lambda parameters, lr: torch.optim.Adagrad(parameters, lr=lr),
}
OPTIMIZERS = tuple(_OPTIMIZERS)


@dataclass(frozen=True)
class TrainingConfig:
    """A DP training run; all of it is public.

    Attributes:
        filter: what each record's gradient goes through.
        sampling_rate: q in (0, 1].
        steps: number of noisy sums, T.
        expected_batch: q times the public number of records; sums are divided by it.
        noise_std: standard deviation of the noise on each live coordinate of the sum.
        lr: step size.
        optimizer: ``sgd``, ``momentum`` (0.9), ``adam`` or ``adagrad``.
    """

    filter: Filter
    sampling_rate: float
    steps: int
    expected_batch: float
    noise_std: float
    lr: float
    optimizer: Optimizer = "sgd"

    def __post_init__(self) -> None:
        if not 0 < self.sampling_rate <= 1:
            raise InputError(f"Expected 0 < sampling_rate={self.sampling_rate} <= 1")
        if self.steps < 1:
            raise InputError(f"--steps: {self.steps} is not a positive whole number")
        if not (self.expected_batch > 0 and math.isfinite(self.expected_batch)):
            raise InputError(f"--batch-size: {self.expected_batch} is not positive")
        if not (self.noise_std >= 0 and math.isfinite(self.noise_std)):
            raise InputError(f"Expected finite noise_std={self.noise_std} >= 0")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise InputError(f"--lr: {self.lr} is not a positive number")
        if self.optimizer not in _OPTIMIZERS:
            raise InputError(f"--optimizer: unknown optimizer {self.optimizer!r}; known: {', '.join(OPTIMIZERS)}")


def sensitivity(filter: Filter, live: int, adjacency: Adjacency) -> float:
    """Certified L2 change that one neighbour makes to the filtered sum: the bound, doubled for replace-one."""
    return filter.certified_bound(live) * (2.0 if adjacency == "replace-one" else 1.0)


def train(
    model: nn.Module,
    mask: Mask,
    x: Tensor,
    y: Tensor,
    config: TrainingConfig,
    *,
    sampling: RandomSource,
    noise: RandomSource,
    progress: Callable[[int], bool | None] | None = None,
) -> None:
    """Trains ``model`` in place under ``mask``.

    Args:
        model: starts from whatever it holds; pruned weights are zeroed first.
        mask: live coordinates.
        x: scaled features ``(n, features)``; private.
        y: labels ``(n,)``; private.
        config: public settings.
        sampling: coins of the Poisson sampler; cryptographic outside tests.
        noise: bits of the Gaussian noise; cryptographic outside tests and ``--noise fast``.
        progress: called with the number of steps done, after each; training ends where it returns True. What it
            decides by must be public, or paid for.

    Guarantees:
        The parameters after each step are post-processing of ``config.steps`` releases, each a Poisson-subsampled sum
        with sensitivity ``filter.certified_bound(mask.live)`` (add/remove) plus N(0, noise_std^2) on every live
        coordinate. The caller enters the event in a ledger before calling. Nothing private is returned.
    """
    mask.apply(model)
    gradients = RecordGradients(
        model, mask, lambda output, label: functional.cross_entropy(output, label, reduction="none")
    )
    parameters = list(model.parameters())
    live = torch.cat([mask[name].flatten() for name, _ in model.named_parameters()]).nonzero().squeeze(1)
    flat = torch.zeros(sum(parameter.numel() for parameter in parameters))
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
    optimizer = _OPTIMIZERS[config.optimizer](parameters, config.lr)
    for step in range(config.steps):
        index = torch.from_numpy(poisson_sample(sampling, len(x), config.sampling_rate))
        total = gradients.filtered_sum(x[index], y[index], config.filter).values
        flat[live] = noisy_mean(total, config.noise_std, config.expected_batch, noise)
        optimizer.step()
        if progress is not None and progress(step + 1):
            break
    for parameter in parameters:
        parameter.grad = None


def noisy_mean(total: Tensor, noise_std: float, expected_batch: float, noise: RandomSource) -> Tensor:
    """(total + N(0, noise_std^2)) / expected_batch: sum and noise meet in float64, the result is float32.

    Args:
        total: filtered sum on the live coordinates, ``(live,)``.
        noise_std: standard deviation per coordinate; 0 adds nothing.
        expected_batch: public divisor; never the realised batch size, which is private.
        noise: random bits.
    """
    wide = total.to(torch.float64)
    if noise_std > 0:
        wide = wide + noise_std * torch.from_numpy(gaussian(noise, len(total)))
    return (wide / expected_batch).to(torch.float32)
