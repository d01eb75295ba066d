"""Copies of an image that a record's gradient is averaged over, before the filter (De et al. 2022).

The mean over copies of one record depends on that record alone, so the bound of the filter holds as it stands and no noise
is added for them: the copies cost time, and nothing else. They are fixed, so features of them can be kept.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from dpltm.errors import DataError

Augmentation = Literal["none", "flip", "shift", "shift-flip"]

MAX_CHANNELS = 4
"""Most colour channels of an image; whatever has more in its last dimension is none."""


def copies_of(x: np.ndarray, kind: Augmentation) -> np.ndarray:
    """The images and their copies: ``(n, height, width[, colours])`` to ``(n, copies, height, width[, colours])``.

    Args:
        x: images as stored.
        kind: ``flip`` adds the mirror image, for photographs; ``shift`` those moved by a pixel up, down, left and right,
            with the edge repeated; ``shift-flip`` both, ten copies in all; ``none`` is one copy.

    Raises:
        DataError: the records are no images.
    """
    if kind == "none":
        return x[:, None]
    if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] > MAX_CHANNELS):
        raise DataError(
            f"`augment`: {kind} takes images, (height, width) or (height, width, colours), and a record here is of shape"
            f" {x.shape[1:]}; take `augment` none"
        )
    copies = [x]
    if kind in ("shift", "shift-flip"):
        edged = np.pad(x, ((0, 0), (1, 1), (1, 1)) + ((0, 0),) * (x.ndim - 3), mode="edge")
        height, width = x.shape[1:3]
        copies += [
            edged[:, down : down + height, right : right + width] for down, right in ((0, 1), (2, 1), (1, 0), (1, 2))
        ]
    if kind in ("flip", "shift-flip"):
        copies += [one[:, :, ::-1] for one in copies]
    return np.stack(copies, 1)
