"""Made-up rows that show whether a function of a batch keeps its rows apart: what others a row is put among."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

PADDINGS = (0, 1, -1, -100)
"""Values that stand where a short row ends: of whole numbers; of others but for 1, and NaN as well; of images 0 alone."""


def fractions(count: int, columns: int) -> Tensor:
    """Return numbers from 0 to 1 that follow no pattern, ``(count, columns)`` float64: multiples of the golden ratio."""
    places = torch.arange(count * columns, dtype=torch.float64)
    return (places * 0.6180339887498949).frac().view(count, columns)


def constant(row: Tensor, largest: int = 1) -> list[Tensor]:
    """Return rows of one value each in the place of ``row``: of whole numbers from 0 to ``largest``."""
    if row.is_floating_point():
        return [torch.full_like(row, value) for value in (0.0, 0.5, 1.0, math.nan)]
    return [torch.zeros_like(row), torch.full_like(row, largest)]


def padded(x: Tensor, declared: Iterable[int] = ()) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of short rows, and each once more with the first row as it is in ``x``, which is long.

    A function that cuts its batch to the longest row gives the others something else in the two. Rows are short along
    every dimension in turn: a quarter is left, and at least one; the rest is padding, behind it or before it.

    Args:
        x: rows, ``(n, ...)``.
        declared: paddings that somebody names.
    """
    values: tuple[float, ...] = PADDINGS
    if x.ndim > 3 or (
        x.is_cuda and not x.is_floating_point()
    ):  # images; and a token that is none ends the process there
        values = ()
    elif x.is_floating_point():
        values = (*(value for value in PADDINGS if value != 1), math.nan)
    elif not x.dtype.is_signed:
        values = tuple(value for value in PADDINGS if value >= 0)
    named = dict.fromkeys((0, *declared))
    ways = [(value, False) for value in dict.fromkeys((*values, *named))] + [(value, True) for value in named]
    for along in range(1, x.ndim):
        length = x.shape[along]
        if length < 2:
            continue
        kept = max(1, length // 4)
        for value, at_front in ways:
            short = x.clone()
            short.narrow(along, 0 if at_front else kept, length - kept).fill_(value)
            long = short.clone()
            long[0] = x[0]
            yield short, long
