"""Descents on toy data whose coins and noise begin at keys, so that they go on elsewhere."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpltm.filters import Clip
from dpltm.networks import ModelSpec, build
from dpltm.randomness.noise import KeyedSource, RandomSource, source_of
from dpltm.training.descent import Descent
from gradient_cases import Hashed, noisy, some_mask, steps_of, toy_data

STEPS = 7


def keyed_descent(states: Sequence[str] = (), share: float = 0.0, **settings: Any) -> Descent:
    """Of a small network that may drop out; its sources are as new, or in ``states``."""
    (x, y), model = toy_data(), build(ModelSpec("mlp:6", 5, 3), 0)
    model = nn.Sequential(nn.Dropout(share), model) if share else model
    plain = {"sampling_rate": 0.5, "steps": STEPS, "expected_batch": 20.0, "noise_std": 0.7, "lr": 0.1}
    plan = steps_of(**{"filter": Clip(1.0), **plain, **settings})
    keyed: list[RandomSource] = [KeyedSource(bytes(32)), KeyedSource(bytes([1] * 32))]
    sources = [source_of(state) for state in states] or keyed
    hashes = Hashed(np.arange(len(x)) * 7)  # which say in which part a record is, for banded noise
    return Descent(noisy(model, x, y, plan, mask=some_mask(model), sources=sources, read=hashes))


def states_of(descent: Descent) -> list[str]:
    """Where its coins and its noise are by now."""
    return [source.state for source in (descent.gradients._sampling, descent.gradients._noise)]


def weights(descent: Descent) -> Tensor:
    return torch.cat([value.detach().flatten() for value in descent.gradients.parameters])
