"""Images as feature maps take them."""

from __future__ import annotations

from torch import Tensor

from dpltm.data.augmentation import MAX_CHANNELS
from dpltm.errors import InputError


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


def colours_first(images: Tensor) -> Tensor:
    """``(n, height, width)`` or ``(n, height, width, colours)`` to ``(n, colours, height, width)``."""
    return images.reshape(*images.shape[:3], -1).permute(0, 3, 1, 2)
