"""Made-up rows that show whether a function of a batch keeps its rows apart: what others a row is put among."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product

import torch
from torch import Tensor, nn

PADDINGS = (0, 1, -1, -100)
"""Values that stand where a short row ends; of bytes 255 as well, and of numbers that are not whole NaN; of images the ends
of what is scaled alone. Bounds need no more: that ends at 0, 1 or -1 (``scaling.unit_range``)."""


def paddings(x: Tensor) -> tuple[float, ...]:
    """Return the values that rows like those of ``x`` may be padded with."""
    largest = 1 if x.is_floating_point() or x.dtype == torch.bool else torch.iinfo(x.dtype).max
    if x.is_cuda and not x.is_floating_point():
        return (0,)  # a token that is none ends the process there
    if x.ndim > 3:
        ends = (0, 1, -1) if x.is_floating_point() else (0, largest)
        return ends if largest <= 255 else (0,)
    if x.is_floating_point():
        return (*PADDINGS, math.nan)
    if x.dtype.is_signed:
        return PADDINGS
    return tuple(dict.fromkeys((0, 1, largest) if largest <= 255 else (0, 1)))


def padding_rows(x: Tensor) -> Tensor:
    """Return a row of each of those values alone, ``(paddings, ...)``."""
    return torch.stack([torch.full_like(x[0], value) for value in paddings(x)])


def tokens_of(model: nn.Module, last: bool = True) -> set[int]:
    """Return tokens that tables of a model declare as padding; and, if ``last``, that of each which stands at its end."""
    tokens = {getattr(module, "padding_idx", None) for module in model.modules()}
    if last:
        tokens |= {module.num_embeddings - 1 for module in model.modules() if isinstance(module, nn.Embedding)}
    return {token for token in tokens if isinstance(token, int)}


def fractions(count: int, columns: int) -> Tensor:
    """Return numbers from 0 to 1 that follow no pattern, ``(count, columns)`` float64: multiples of the golden ratio."""
    places = torch.arange(count * columns, dtype=torch.float64)
    return (places * 0.6180339887498949).frac().view(count, columns)


def constant(row: Tensor, largest: int = 1) -> list[Tensor]:
    """Return rows of one value each in the place of ``row``: of whole numbers from 0 to ``largest``."""
    if row.is_floating_point():
        return [torch.full_like(row, value) for value in (0.0, 0.5, 1.0, math.nan)]
    return [torch.zeros_like(row), torch.full_like(row, largest)]


def padded(x: Tensor, declared: Iterable[int] = (), fillings: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of short rows, and each once more with the first row as it is in ``x``, which is long.

    A function that cuts its batch to the longest row gives the others something else in the two. Rows are short along
    every dimension in turn: a quarter is left, and at least one; the rest is padding, behind it or before it.

    Args:
        x: rows, ``(n, ...)``.
        declared: paddings that somebody names.
        fillings: rows of padding, ``(k, ...)``, that somebody knows beside those of one value.
    """
    ways = [torch.full_like(x[0], value) for value in dict.fromkeys((*paddings(x), *declared))]
    if x.is_cuda and not x.is_floating_point():
        fillings = None
    for filling in () if fillings is None else fillings.to(x):
        if not any(torch.equal(filling.nan_to_num(9e9), way.nan_to_num(9e9)) for way in ways):
            ways.append(filling)
    for along in range(1, x.ndim):
        length = x.shape[along]
        if length < 2:
            continue
        kept = max(1, length // 4)
        for filling, start in product(ways, (kept, 0)):
            short = x.clone()
            short.narrow(along, start, length - kept).copy_(filling.narrow(along - 1, start, length - kept))
            long = short.clone()
            long[0] = x[0]
            yield short, long
