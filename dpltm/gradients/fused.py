"""Element-wise filters fused with the products they are applied to, by ``torch.compile``: one pass, nothing written out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from dpltm.gradients.layer import Map

Fused = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor]


def compiler_at_hand() -> bool:
    """Whether there is a C++ compiler for torch to call."""
    named = os.environ.get("CXX")
    return any(shutil.which(name) for name in ((named,) if named else ("g++", "clang++", "c++")))


@lru_cache(maxsize=16)
def mapped_sum(map: Map) -> Fused:
    """The compiled sum over the batch of weight times mapped gradient times input, at ``rows`` and ``columns``."""

    def total(gradient: Tensor, inputs: Tensor, rows: Tensor, columns: Tensor, weight: Tensor | None) -> Tensor:
        values = map(gradient[rows] * inputs[columns])
        return (values if weight is None else values * weight).sum(1, dtype=torch.float64)

    return torch.compile(total)


@lru_cache(maxsize=16)
def mapped_squares(map: Map) -> Fused:
    """The compiled squared norm of each record's mapped gradient times input."""

    def total(gradient: Tensor, inputs: Tensor, rows: Tensor, columns: Tensor, weight: Tensor | None) -> Tensor:
        del weight
        return map(gradient[rows] * inputs[columns]).square().sum(0, dtype=torch.float64)

    return torch.compile(total)
