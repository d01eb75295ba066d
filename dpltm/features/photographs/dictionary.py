"""What patches of a dictionary an image is made of, and in which quarter: no network that is trained, one convolution.

Patches of an image are brought to one contrast, whitened and compared with those of the dictionary, either sign; what is
not clearly alike counts as nothing (Coates, Ng 2011; Thiry et al. 2021).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

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
