"""Public scaling: features into the unit range by declared bounds, never by the data's own; positions in tables stay.

Every value depends on its own feature and on public bounds alone (docs/privacy-model.md section 1.4).
"""

from __future__ import annotations

import math

import numpy as np

from dpltm.errors import DataError
from dpltm.records.input_parts import Parts, split

MAX_CHANNELS = 4
"""Most colour channels of an image; whatever has more in its last dimension is none."""


def unit_range(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return where ``bounds`` are mapped to: ``(0, 1)`` when nothing is negative, else ``(-1, 1)``."""
    return (0.0, 1.0) if bounds[0] >= 0 else (-1.0, 1.0)


def affine(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return multiplier and offset, finite in single precision, that take finite ``low < high`` onto the unit range."""
    low, high = (float(b) for b in bounds)
    option = "`bounds` " + ",".join(repr(end).removesuffix(".0") for end in (low, high))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise DataError(f"{option}: both ends must be finite; pass the public range of the features, LO,HI")
    if low >= high:
        raise DataError(f"{option}: LO must be less than HI; swap or correct them")
    bottom, top = unit_range((low, high))
    multiplier = (top - bottom) / (high - low)
    offset = 0.0 - low / (high - low) if bottom == 0 else 0.0 - (high + low) / (high - low)
    limits = np.finfo(np.float32)
    if not (limits.tiny <= multiplier <= limits.max and abs(offset) <= 2**23):
        raise DataError(f"{option}: too narrow or too wide for single precision; rescale features and bounds")
    return multiplier, offset


def scale(x: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """Return features ``(n, ...)`` in the unit range, ``(n, features)`` float32, row by row; those outside saturate."""
    multiplier, offset = affine(bounds)
    flat = x.reshape(len(x), math.prod(x.shape[1:]))
    scaled = flat.astype(np.result_type(x.dtype, np.float32))
    # A value far outside the bounds may overflow to infinity on its way to the clamp, which is where it belongs.
    with np.errstate(over="ignore"):
        scaled *= multiplier
        scaled += offset
    np.clip(scaled, *unit_range(bounds), out=scaled)
    return scaled.astype(np.float32, copy=False)


def unscale(x: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """Return features in the range of ``bounds`` again, float32: what :func:`scale` takes to ``x``, up to rounding."""
    multiplier, offset = affine(bounds)
    wide = (x.astype(np.float64) - offset) / multiplier
    low, high = (np.float32(end) for end in bounds)
    return np.clip(wide.astype(np.float32), low, high)


def prepare(x: np.ndarray, bounds: tuple[float, float], tables: tuple[int, ...] = (), parts: Parts = ()) -> np.ndarray:
    """Return what a network gets of records, ``(n, features)`` float32, row by row: features scaled (:func:`scale`), or
    positions in tables of such sizes, exact, with 0 for whatever is outside; ``parts`` each by bounds of its own.
    """
    if parts:
        part_values = zip(parts, split(x, parts), strict=True)
        return np.concatenate(
            [scale(values.astype(np.float64), part.bounds(bounds)) for part, values in part_values], 1
        )
    if not tables:
        return scale(x, bounds)
    flat = x.reshape(len(x), -1)
    in_table = (flat >= 0) & (flat < np.resize(np.asarray(tables, dtype=np.float64), flat.shape[1]))
    return np.where(in_table, flat, 0).astype(np.float32)


def count_outside(x: np.ndarray, bounds: tuple[float, float], parts: Parts = ()) -> int:
    """Return how many values of ``x`` saturate when scaled by ``bounds``, or by those of its parts.

    Bounds are taken at the precision of ``x``: what was rounded to an end of the range is no value outside.
    """
    if parts:
        part_values = zip(parts, split(x, parts), strict=True)
        return sum(count_outside(values, part.bounds(bounds)) for part, values in part_values)
    with np.errstate(over="ignore"):  # an end that half precision cannot hold is beyond all of its values
        low, high = np.asarray(bounds, dtype=x.dtype if x.dtype.kind == "f" else np.float64)
    return int(np.count_nonzero(x < low)) + int(np.count_nonzero(x > high))
