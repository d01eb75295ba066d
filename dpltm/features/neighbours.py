"""Records as they are, or with neighbouring values averaged, less their mean."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional

from dpltm.errors import InputError


class NeighbourAverage:
    """Averages of neighbouring values, each record less its mean.

    Args:
        width: values that are averaged at a time.
        shape: of a record.

    Raises:
        InputError: a record has fewer values.
    """

    channel_groups: int | None = None

    def __init__(self, width: int, shape: tuple[int, ...]) -> None:
        values = math.prod(shape)
        if width > values:
            raise InputError(f"`features`: unit:{width} averages more values than the {values} of a record")
        self.width = width
        self.feature_shape: tuple[int, ...] = (-(-values // width),)

    def __call__(self, x: Tensor) -> Tensor:
        """``(n, *shape)`` to ``(n, features)``."""
        values = x.flatten(1)
        if self.width > 1:
            values = functional.avg_pool1d(values[:, None], self.width, ceil_mode=True)[:, 0]
        return values - values.mean(1, keepdim=True)
