"""An encoder that learned to tell drawings of a formula apart: features that come from nobody's data.

``scripts/make_drawings.py`` made the bundled encoder: a formula draws, and it is trained on nothing else. No other file is
read.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpltm.features import DRAWINGS_DIGEST, DRAWINGS_FILE, Transform
from dpltm.features.transforms import LEAST, colours_first, image_size
from dpltm.records.files import bundled_tensors

SIDE = 28  # pixels of a drawing's side
GREY = (0.299, 0.587, 0.114)  # shares of red, green and blue in the brightness of an image (ITU-R BT.601)


class Drawings(Transform):
    """Units of the encoder along the ``count`` directions in which drawings differ most; every image by itself."""

    def __init__(self, count: int, shape: tuple[int, ...]) -> None:
        image_size("drawings", shape, LEAST, (1, 3))
        self.feature_shape = (count,)
        self._encoder, self._mean, directions = _bundled()  # now: what is damaged is refused before anything is spent
        self._directions = directions[:count].clone()

    def __call__(self, x: Tensor) -> Tensor:
        units = self._encoder(as_drawings(x).contiguous(memory_format=torch.channels_last))
        return (units - self._mean) @ self._directions.T


@cache
def _bundled() -> tuple[Encoder, Tensor, Tensor]:
    tensors = bundled_tensors(DRAWINGS_FILE, DRAWINGS_DIGEST)
    wide = {name: torch.from_numpy(value).float() for name, value in tensors.items()}
    mean, directions = wide.pop("mean"), wide.pop("directions")
    with torch.device("meta"):  # no weights are drawn, and no generator of the caller's moves on
        encoder = Encoder()
    encoder.load_state_dict(wide, assign=True)
    return encoder.requires_grad_(False), mean, directions


def as_drawings(x: Tensor) -> Tensor:
    """Return images as drawings, each by itself: ``(n, *shape)`` to ``(n, 1, SIDE, SIDE)``, grey, bright on dark; one
    whose edge is bright on average is taken for dark on light."""
    images = colours_first(x)
    if images.shape[1] == 3:
        images = (images * torch.tensor(GREY).view(1, 3, 1, 1)).sum(1, keepdim=True)
    edge = torch.cat([images[..., 0, :], images[..., -1, :], images[..., 1:-1, 0], images[..., 1:-1, -1]], dim=-1)
    images = torch.where(edge.mean(-1)[..., None, None] > 0.5, 1 - images, images)
    most = max(images.shape[2:])
    height, width = (max(1, round(SIDE * side / most)) for side in images.shape[2:])
    if most != SIDE:
        images = functional.interpolate(images, (height, width), mode="bilinear", antialias=True)
    down, right = SIDE - height, SIDE - width
    return functional.pad(images, (right // 2, right - right // 2, down // 2, down - down // 2))


WIDTHS = (32, 64, 128)  # channels at 28 x 28, at 14 x 14 and at 14 x 14 and 7 x 7 pixels
GROUPS = 8  # groups of channels that are normalised within an image; half as many in the first layer
POOLED = 3  # rows and columns of windows that units are averaged over
UNITS = WIDTHS[-1] * POOLED**2  # what the encoder says of an image


class Encoder(nn.Module):
    """``(n, 1, SIDE, SIDE)`` in 0..1 to ``(n, UNITS)``; every image by itself.

    No convolution skips pixels: maps are halved by averages (Zhang 2019), so a drawing gives much the same anywhere.
    """

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
        return functional.adaptive_avg_pool2d(self.layers(images), POOLED).flatten(1)
