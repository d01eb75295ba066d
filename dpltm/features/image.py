"""Images as feature maps take them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.records.augmentation import MAX_CHANNELS

LEAST = 8
"""Pixels of a side, at least, of an image that is resized."""


def image_size(kind: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Height, width and number of colours.

    Args:
        kind: of map, for the message.
        shape: of a record as stored.

    Raises:
        InputError: it is no image.
    """
    colours = shape[2] if len(shape) == 3 else 1
    if len(shape) not in (2, 3) or colours > MAX_CHANNELS:
        raise InputError(
            f"`features`: {kind} takes images, (height, width) or (height, width, colours), and a record here is of shape"
            f" {shape}; take unit"
        )
    return shape[0], shape[1], colours


def check_resizable(kind: str, shape: tuple[int, ...]) -> None:
    """Refuses what no bundled file has features of: images are made as large as it wants them, and grey or coloured.

    Args:
        kind: of map, for the message.
        shape: of a record as stored.

    Raises:
        InputError: it is no image, too small, or of other than one or three colours.
    """
    height, width, colours = image_size(kind, shape)
    if min(height, width) < LEAST or colours not in (1, 3):
        raise InputError(
            f"`features`: {kind} takes images of {LEAST} by {LEAST} pixels or more, in grey or in three colours, and these"
            f" are {height} by {width} in {colours}; take unit"
        )


def resized(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Images as large as others, float32: ``(n, height, width)`` or ``(n, height, width, colours)``.

    Args:
        x: images as stored.
        shape: of one of the others, with as many colours.
    """
    images = colours_first(torch.from_numpy(x.astype(np.float32)))
    images = functional.interpolate(images, shape[:2], mode="bilinear", antialias=True)
    return images.permute(0, 2, 3, 1).reshape(len(x), *shape).numpy()


def colours_first(images: Tensor) -> Tensor:
    """``(n, height, width)`` or ``(n, height, width, colours)`` to ``(n, colours, height, width)``."""
    return images.reshape(*images.shape[:3], -1).permute(0, 3, 1, 2)
