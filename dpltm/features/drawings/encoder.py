"""The network that drawings train: three scales of small convolutions, normalised within each image.

No convolution skips pixels: maps are halved by averages (Zhang 2019), so that a drawing gives
much the same wherever it starts.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

WIDTHS = (32, 64, 128)
"""Channels at 28 x 28, at 14 x 14 and at 14 x 14 and 7 x 7 pixels."""

GROUPS = 8
"""Groups of channels that are normalised within an image; half as many in the first layer."""

POOLED = 3
"""Rows and columns of windows that units are averaged over."""

UNITS = WIDTHS[-1] * POOLED**2
"""What the encoder says of an image."""


class Encoder(nn.Module):
    """``(n, 1, SIDE, SIDE)`` in 0..1 to ``(n, UNITS)``; every image by itself."""

    def __init__(self) -> None:
        super().__init__()
        first, second, third = WIDTHS
        self.layers = nn.Sequential(
            nn.Conv2d(1, first, 5, padding=2), nn.GroupNorm(GROUPS // 2, first), nn.ReLU(), nn.AvgPool2d(3, 2, 1),
            nn.Conv2d(first, second, 3, padding=1), nn.GroupNorm(GROUPS, second), nn.ReLU(),
            nn.Conv2d(second, third, 3, padding=1), nn.GroupNorm(GROUPS, third), nn.ReLU(), nn.AvgPool2d(3, 2, 1),
            nn.Conv2d(third, third, 3, padding=1), nn.GroupNorm(GROUPS, third), nn.ReLU(),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """See the class."""
        return functional.adaptive_avg_pool2d(self.layers(images), POOLED).flatten(1)
