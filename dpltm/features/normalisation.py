"""What features go through once they are taken: normalisation, projection, centring and a fixed norm.

Each is a value, and a function of ``(n, ...)`` features that treats every row by itself; they compose. None reads a private
record but the one at hand: what they are made from is public, or a release that is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from dpltm.features.conventions import NORM


@dataclass(frozen=True, eq=False)
class ChannelStatistics:
    """``(n, channels, height, width)`` less the mean and over the deviation of each channel over public images.

    No channel is blown up by more than ten thousand times what the one is that varies most among the public records.

    Attributes:
        mean, deviation: ``(channels,)``.
    """

    mean: Tensor
    deviation: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        smallest = max(1e-4 * float(self.deviation.max()), 1e-12)
        return (values - self.mean[:, None, None]) / self.deviation.clamp_min(smallest)[:, None, None]


@dataclass(frozen=True)
class GroupNormalisation:
    """Every record's channels in groups of neighbours, each less its mean and over its deviation within that record.

    Attributes:
        groups: their number; where the number of channels does not divide by it, the next smaller number that it does.
    """

    groups: int

    def __call__(self, values: Tensor) -> Tensor:
        channels = values.shape[1]
        groups = next(number for number in range(min(self.groups, channels), 0, -1) if channels % number == 0)
        return functional.group_norm(values, groups, eps=1e-10)


@dataclass(frozen=True, eq=False)
class Projection:
    """``(n, features)`` less an offset, onto so many components.

    Attributes:
        offset: ``(features,)``.
        components: ``(count, features)``.
    """

    offset: Tensor
    components: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        return (values - self.offset) @ self.components.T


@dataclass(frozen=True, eq=False)
class Centring:
    """``(n, features)`` less one point.

    Attributes:
        point: ``(features,)``.
    """

    point: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        return values - self.point.to(values.device)


def pixels_first(values: Tensor) -> Tensor:
    """``(n, channels, height, width)`` to ``(n, features)``, pixel by pixel, as images are stored."""
    return values.permute(0, 2, 3, 1).flatten(1)


def fixed_norm(values: Tensor) -> Tensor:
    """``(n, features)`` with every row of norm ``NORM``; rows of zeros stay zero."""
    return values * (NORM / values.norm(dim=1, keepdim=True).clamp_min(1e-12))
