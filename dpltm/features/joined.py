"""Features of several maps side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dpltm.features.normalisation import GroupNormalisation, fixed_norm, pixels_first
from dpltm.features.transform import Transform


class Joined:
    """What several transforms make of a record, each normalised within it and scaled to the same share of the norm.

    Args:
        parts: transforms of records of one shape.
    """

    channel_groups: int | None = None

    def __init__(self, parts: Sequence[Transform]) -> None:
        self._parts = parts
        self.feature_shape: tuple[int, ...] = (sum(math.prod(part.feature_shape) for part in parts),)

    def __call__(self, x: Tensor) -> Tensor:
        """``(n, *shape)`` to ``(n, features)``."""
        return torch.cat([fixed_norm(_flat(part, x)) for part in self._parts], dim=1)


def _flat(part: Transform, x: Tensor) -> Tensor:
    values = part(x)
    return values if part.channel_groups is None else pixels_first(GroupNormalisation(part.channel_groups)(values))
