"""Layers that torch has no module for."""

from __future__ import annotations

from torch import Tensor, nn


class Images(nn.Module):
    """Flattened images, channels last, ``(batch, height x width x channels)``, to ``(batch, channels, height, width)``."""

    def __init__(self, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.size = (height, width, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(1, self.size).permute(0, 3, 1, 2).contiguous()
