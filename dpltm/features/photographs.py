"""A dictionary of patches of scenes that a program painted: features of photographs that come from nobody's data.

Patches of an image are brought to one contrast, whitened and compared with those of the dictionary; what is not clearly
alike, or clearly its opposite, counts as nothing (Coates, Ng 2011; Thiry et al. 2021). ``scripts/make_photographs.py`` made
the bundled file; no other is read.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from dpltm.features import PHOTOGRAPHS_DIGEST, PHOTOGRAPHS_FILE, Transform
from dpltm.features.transforms import LEAST, colours_first, image_size
from dpltm.records.files import bundled_tensors

SIDE = 32  # pixels of an image's side


class Photographs(Transform):
    """Units of the dictionary along the ``count`` directions in which painted scenes differ most; every image by itself."""

    def __init__(self, count: int, shape: tuple[int, ...]) -> None:
        image_size("photographs", shape, LEAST, (1, 3))
        self.feature_shape = (count,)
        self._filters, self._offset, self._mean, self._directions, scale = _bundled()  # now: before anything is spent
        self._kept = scale.argsort(stable=True)[:count]
        self._scale = scale[self._kept]

    def __call__(self, x: Tensor) -> Tensor:
        units = units_of(as_photographs(x), self._filters, self._offset) - self._mean
        return turned(units, self._directions)[:, self._kept] * self._scale


@cache
def _bundled() -> tuple[Tensor, ...]:
    tensors = bundled_tensors(PHOTOGRAPHS_FILE, PHOTOGRAPHS_DIGEST)
    names = ("filters", "offset", "mean", "directions", "scale")
    return tuple(torch.from_numpy(tensors[name]).float() for name in names)


def as_photographs(x: Tensor) -> Tensor:
    """Return images in three colours and of one size, ``(n, *shape)`` in 0..1 to ``(n, 3, SIDE, SIDE)``; each by itself."""
    images = colours_first(x).expand(-1, 3, -1, -1)
    if images.shape[2:] != (SIDE, SIDE):
        images = functional.interpolate(images, (SIDE, SIDE), mode="bilinear", antialias=True)
    return images.contiguous()


PATCH = 6  # pixels of a patch's side
CONTRAST = 0.01  # added to the variance of a patch, so that noise of a plain one is not blown up
UNLIKE = 0.4  # likeness below so many root mean squares, over the dictionary, counts as nothing
WAVES = ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (0, 2))  # halves of a cosine wave down an image, and across
TAPER = 0.35  # a wave of k halves down and m across counts for exp(-TAPER (k^2 + m^2))


def waves(rows: int, columns: int) -> Tensor:
    """Return what likeness at each place counts for in each average over an image, ``(rows * columns, len(WAVES))``: low
    frequencies of a discrete cosine transform over places of a patch, the higher ones counted for less."""

    def wave(halves: int, places: int) -> Tensor:
        return math.sqrt(2 if halves else 1) * torch.cos(math.pi * halves * (torch.arange(places) + 0.5) / places)

    parts = [math.exp(-TAPER * (k**2 + m**2)) * torch.outer(wave(k, rows), wave(m, columns)) for k, m in WAVES]
    return torch.stack(parts, 2).flatten(0, 1) / (rows * columns)


def units_of(images: Tensor, filters: Tensor, offset: Tensor) -> Tensor:
    """Return units of each image, averaged with those of its mirror image: likeness with its sign, and without.

    Args:
        images: ``(n, 3, height, width)`` in 0..1.
        filters: ``(patches, 3, PATCH, PATCH)``: whitening and comparison in one, each of mean 0.
        offset: ``(patches,)``, the likeness of the mean patch.
    """
    counts = waves(images.shape[2] - PATCH + 1, images.shape[3] - PATCH + 1).to(images) / 2
    # of an image alone others change no bit; of an export, and for a gradient, all go through one product
    together = torch.compiler.is_compiling() or (torch.is_grad_enabled() and images.requires_grad)
    units = [
        _units(some, filters, offset, counts) + _units(some.flip(3), filters, offset, counts)
        for some in ((images,) if together else images.split(1))  # an image at a time fits the caches of a processor
    ]
    return torch.cat(units)


def _units(images: Tensor, filters: Tensor, offset: Tensor, counts: Tensor) -> Tensor:
    """Averages by ``counts``, ``(places, waves)``."""
    mean, square = (
        functional.avg_pool2d(part.mean(1, keepdim=True), PATCH, stride=1) for part in (images, images.square())
    )
    deviation = ((square - mean.square()).clamp_min(0) + CONTRAST).sqrt()
    patches = functional.unfold(images, PATCH) / deviation.flatten(2)
    flat = filters.flatten(1).expand(images.shape[0], -1, -1)
    like = torch.baddbmm(-offset.view(1, -1, 1), flat, patches)
    least = UNLIKE * like.square().mean(1, keepdim=True).sqrt()
    above = (like - least).relu_() @ counts
    below = (like + least).neg_().relu_() @ counts
    return torch.stack([above - below, above + below], 1)


def turned(units: Tensor, directions: Tensor) -> Tensor:
    """Turn what ``units_of`` gives, within each wave, along ``directions``, ``(2, count, patches)``."""
    return torch.einsum("sdp,nspw->nsdw", directions, units).flatten(1)
