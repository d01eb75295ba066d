"""Images as drawings without torch, in arithmetic that is the same on every machine (see ``dpltm.randomness.exact``).

The rule is that of ``dpltm.features.drawings.feature_map.as_drawings``.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dpltm.features.drawings.exact import PIXEL_BITS
from dpltm.randomness.exact import on_grid

SHARE_BITS = 14
"""Digits behind the point of shares: of colours in the brightness of an image, of pixels in a resized one."""

GREY = (4899, 9617, 1868)
"""Red, green and blue, of 2^SHARE_BITS: 0.299, 0.587 and 0.114 (ITU-R BT.601)."""


def whole_drawings(x: np.ndarray, side: int) -> np.ndarray:
    """Images as the encoder knows them: ``(n, side, side)`` whole numbers in units of 2^-PIXEL_BITS, float64.

    Args:
        x: ``(n, height, width)`` or ``(n, height, width, colours)`` in 0..1, of one colour or three.
        side: of a drawing, pixels.
    """
    images = on_grid(x, PIXEL_BITS)
    if images.ndim == 4:
        images = _down(images @ np.array(GREY, dtype=np.float64)) if images.shape[3] == 3 else images[..., 0]
    top, bottom, left, right = images[:, 0], images[:, -1], images[:, 1:-1, 0], images[:, 1:-1, -1]
    edge = np.concatenate([top, bottom, left, right], axis=1)
    bright = 2 * edge.sum(axis=1) > edge.shape[1] * 2.0**PIXEL_BITS
    images = np.where(bright[:, None, None], 2.0**PIXEL_BITS - images, images)
    high, wide = images.shape[1:]
    if max(high, wide) != side:
        rows, columns = (max(1, round(side * each / max(high, wide))) for each in (high, wide))
        resized = np.matmul(np.matmul(_shares(high, rows), images), _shares(wide, columns).T)
        images = _down(_down(resized))
    drawings = np.zeros((len(images), side, side))
    down, across = ((side - each) // 2 for each in images.shape[1:])
    drawings[:, down : down + images.shape[1], across : across + images.shape[2]] = images
    return drawings


def _down(values: np.ndarray) -> np.ndarray:
    """Sums of pixels times shares, in units of pixels again."""
    result: np.ndarray = np.rint(np.ldexp(values, -SHARE_BITS))
    return result


@lru_cache(maxsize=16)
def _shares(size: int, target: int) -> np.ndarray:
    """What share each of ``size`` pixels has in each of ``target``: whole numbers that add up to 2^SHARE_BITS.

    A triangle as wide as two pixels of the coarser grid, as torch resizes with ``antialias``.
    """
    step = size / target
    reach = max(step, 1.0)
    shares = np.zeros((target, size))
    for place in range(target):
        middle = step * (place + 0.5)
        near = range(max(int(middle - reach + 0.5), 0), min(int(middle + reach + 0.5), size))
        weights = [max(0.0, 1.0 - abs((pixel - middle + 0.5) / reach)) for pixel in near]
        total = sum(weights)
        whole = [round(weight / total * 2**SHARE_BITS) for weight in weights]
        whole[whole.index(max(whole))] += 2**SHARE_BITS - sum(whole)
        shares[place, near.start : near.stop] = whole
    return shares
