"""Trial of a filter's bound on made-up gradients, before anything is spent on it.

No trial proves a bound. It finds the slips that a user's own filter is likeliest to have: a bound that is too small, a
factor of the wrong shape, and one that looks at other records. Factors are held to the bound in each sum as well; an
element-wise map with nothing behind it is not.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpltm.errors import InputError, first_line
from dpltm.filters.descriptor import ElementWiseFilter, Filter, LayerWiseFilter, RadialFilter

SIZES = (1, 10, 1000)
"""Live coordinates of the gradients that are tried; in two layers, where there is more than one."""

LENGTHS = 17
"""Norms that are tried."""

EVERY, MANY = 64, (1, 10**3, 10**6, 10**9)
"""Values of a coordinate that are tried, for each power of ten; and coordinates that may all have one."""

SLACK = 1e-5
"""Relative rounding of float32, in which filters are computed."""


def check_filter_bound(filter: Filter) -> None:
    """Refuse a filter whose bound made-up gradients show to be wrong, or that depends on other records."""
    if filter.kind not in ("radial", "layer-wise", "element-wise"):
        raise InputError(f"`filter`: {filter}: is of an unknown kind {filter.kind!r:.40}")
    for live in SIZES:
        bound = filter.certified_bound(live)
        if not (isinstance(bound, (int, float)) and 0 < bound < math.inf):
            raise InputError(f"`filter`: {filter}: bound at {live} coordinates is {bound!r:.40}, no positive number")
        gradients = _gradients(live)
        try:
            halves = (2 * torch.arange(live) >= live).long().expand(gradients.shape)
            mapped = filtered(filter, gradients, halves, 2)
            alone = torch.cat([filtered(filter, row[None], halves[:1], 2) for row in gradients[::7]])
        except InputError:
            raise
        except Exception as error:  # whatever somebody's own filter raises
            raise InputError(f"`filter`: {filter}: fails on made-up gradients: {first_line(error)}") from error
        if not bool(mapped.isfinite().all()):
            raise InputError(f"`filter`: {filter}: makes a finite gradient one that is not")
        if not torch.allclose(mapped[::7], alone, rtol=SLACK, atol=0.0):
            raise InputError(f"`filter`: {filter}: what a record gives depends on others, so no bound would hold")
        _check_norm(filter, live, float(mapped.norm(dim=1).max()))
    if filter.kind == "element-wise":
        _check_map(filter)


def _check_norm(filter: Filter, live: int, longest: float) -> None:
    if longest > (bound := filter.certified_bound(live)) * (1 + SLACK):
        raise InputError(
            f"`filter`: {filter}: a gradient of {live} coordinates comes out with norm {longest:.4g}, above its"
            f" certified bound of {bound:.4g}; state the largest norm over all gradients"
        )


def _check_map(filter: ElementWiseFilter) -> None:
    """Refuse a map that is not of each number alone, not finite, or that brings k equal coordinates beyond the bound."""
    sizes = torch.logspace(-12, 18, 30 * EVERY + 1, dtype=torch.float64)  # to what the engine takes
    values = torch.cat([torch.zeros(1, dtype=torch.float64), sizes, -sizes])
    longest = math.inf
    if filter.before is not None:
        longest = float((sizes * _factor(filter.before, sizes)).max())
        values = values[values.abs() <= longest]
    numbers = values.float()
    mapped = filter.map(numbers[None].clone())[0]
    if not bool(mapped.isfinite().all()):
        raise InputError(f"`filter`: {filter}: makes a finite gradient one that is not, in float32")
    alone = torch.cat([filter.map(part[None].clone())[0] for part in numbers.split(500)])
    if not torch.allclose(mapped, alone, rtol=SLACK, atol=0.0):
        raise InputError(f"`filter`: {filter}: maps a coordinate in a way that depends on others; make it radial")
    squares = mapped.double().square()
    for live in MANY if filter.after is None else ():
        equal = torch.floor((longest / values.abs()).square()).clamp(max=live)  # coordinates of that size
        norms = (equal * squares + (live - equal) * squares[0])[1:].sqrt()
        _check_norm(filter, live, float(norms.max()))


def _gradients(live: int) -> Tensor:
    """Rows of every length in several directions, and one of zeros, ``(rows, live)`` float64."""
    generator = torch.Generator().manual_seed(0)
    unit = torch.zeros(live, dtype=torch.float64)
    unit[0] = 1.0
    drawn = torch.randn(live, generator=generator, dtype=torch.float64)
    directions = torch.stack([unit, -unit, torch.ones_like(unit), drawn])
    directions /= directions.norm(dim=1, keepdim=True)
    lengths = torch.logspace(-8, 8, LENGTHS, dtype=torch.float64)
    rows = (lengths[:, None, None] * directions).flatten(0, 1)
    return torch.cat([torch.zeros_like(unit)[None], rows])


def filtered(filter: Filter, gradients: Tensor, layers: Tensor, count: int) -> Tensor:
    """Every row through the filter, as the engine does it, written out plainly.

    Args:
        filter: any.
        gradients: of records, on some live coordinates; zero on all others, ``(records, coordinates)``.
        layers: which of ``count`` layers each of these is in, of the same shape, int64.
        count: number of layers.
    """
    if filter.kind == "radial":
        return gradients * _factor(filter, gradients.norm(dim=1))[:, None]
    if filter.kind == "layer-wise":
        squares = gradients.new_zeros(len(gradients), count).scatter_add_(1, layers, gradients.square())
        return gradients * _factor(filter, squares.sqrt().T).T.gather(1, layers)
    if filter.before is not None:
        gradients = gradients * _factor(filter.before, gradients.norm(dim=1))[:, None]
    mapped = filter.map(gradients.clone())
    _check_shape(filter, mapped, gradients)
    return mapped if filter.after is None else mapped * _factor(filter.after, mapped.norm(dim=1))[:, None]


def _factor(filter: RadialFilter | LayerWiseFilter, norms: Tensor) -> Tensor:
    factor = filter.factor(norms)
    _check_shape(filter, factor, norms)
    return factor


def _check_shape(filter: object, returned: object, like: Tensor) -> None:
    if not isinstance(returned, Tensor) or returned.shape != like.shape:
        shape = tuple(returned.shape) if isinstance(returned, Tensor) else type(returned).__name__
        raise InputError(f"`filter`: {filter}: gives {shape} for {tuple(like.shape)}; one value for each is expected")
