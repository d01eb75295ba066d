"""What patches of painted scenes a photograph is made of: features of photographs from nobody's data.

Every image is made one of three colours and of 32 by 32 pixels first, by a rule that looks at this image alone.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from dpltm.features.image import check_resizable, colours_first
from dpltm.features.photographs.leaves import SIDE
from dpltm.features.registry import PHOTOGRAPHS_DIGEST, PHOTOGRAPHS_FILE
from dpltm.records.bundled import bundled_tensors


class Photographs:
    """Units of the dictionary along the directions in which painted scenes differ most; every image by itself.

    Args:
        count: directions.
        shape: of the images as stored.

    Raises:
        InputError: a record is no image, too small, or of other than one or three colours.
        DataError: the dictionary is not what was bundled.
    """

    channel_groups: int | None = None

    def __init__(self, count: int, shape: tuple[int, ...]) -> None:
        check_resizable("photographs", shape)
        self.feature_shape: tuple[int, ...] = (count,)
        self._filters, self._offset, self._mean, directions = _bundled()  # now: before anything is spent
        self._directions = directions[:count].contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """``(n, *shape)`` to ``(n, count)``."""
        return (units_of(as_photographs(x), self._filters, self._offset) - self._mean) @ self._directions.T


@cache
def _bundled() -> tuple[Tensor, ...]:
    """Filters and offset of patches, the mean of units, and the directions."""
    tensors = bundled_tensors(PHOTOGRAPHS_FILE, PHOTOGRAPHS_DIGEST)
    return tuple(torch.from_numpy(tensors[name]).float() for name in ("filters", "offset", "mean", "directions"))


def as_photographs(x: Tensor) -> Tensor:
    """Images as the dictionary knows them, ``(n, *shape)`` in 0..1 to ``(n, 3, SIDE, SIDE)``.

    Args:
        x: ``(n, height, width)`` or ``(n, height, width, colours)``; grey is taken for three equal colours, and what is of
            another size is resized, proportions and all.
    """
    images = colours_first(x).expand(-1, 3, -1, -1)
    if images.shape[2:] != (SIDE, SIDE):
        images = functional.interpolate(images, (SIDE, SIDE), mode="bilinear", antialias=True)
    return images.contiguous()


# What patches of a dictionary an image is made of, and in which quarter: no network that is trained, one convolution.
#
# Patches of an image are brought to one contrast, whitened and compared with those of the dictionary, either sign; what is
# not clearly alike counts as nothing (Coates, Ng 2011; Thiry et al. 2021).

PATCH = 6
"""Pixels of a patch's side."""

CONTRAST = 0.01
"""Added to the variance of a patch, so that noise of a plain one is not blown up."""

UNLIKE = 0.4
"""Likeness below so many root mean squares, over the dictionary, counts as nothing."""

WINDOWS = 2
"""Rows and columns of windows that likeness is averaged over."""


def units_of(images: Tensor, filters: Tensor, offset: Tensor) -> Tensor:
    """Units of each image, averaged with those of its mirror image: left and right say nothing of what is seen.

    Args:
        images: ``(n, 3, height, width)`` in 0..1.
        filters: ``(patches, 3, PATCH, PATCH)``: whitening and comparison in one, each of mean 0.
        offset: ``(patches,)``, the likeness of the mean patch.

    Returns:
        ``(n, 2 * patches * WINDOWS**2)``.
    """
    return (_units(images, filters, offset) + _units(images.flip(3), filters, offset)) / 2


def _units(images: Tensor, filters: Tensor, offset: Tensor) -> Tensor:
    mean, square = (
        functional.avg_pool2d(part.mean(1, keepdim=True), PATCH, stride=1) for part in (images, images.square())
    )
    deviation = ((square - mean.square()).clamp_min(0) + CONTRAST).sqrt()
    like = functional.conv2d(images, filters) / deviation - offset.view(1, -1, 1, 1)
    least = UNLIKE * like.square().mean(1, keepdim=True).sqrt()
    signs = (functional.adaptive_avg_pool2d((one - least).relu_(), WINDOWS) for one in (like, -like))
    return torch.cat(list(signs), 1).flatten(1)
