"""The shape of a gradient filter, as points of a curve."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dpltm.filters import Filter

POINTS = 161
REACH = 4.0
"""How far the curve goes, in multiples of the bound or range of the filter."""


@dataclass(frozen=True)
class Shape:
    """What a filter does to a size.

    Attributes:
        what: ``norm`` of a gradient, or ``value`` of one coordinate.
        before, after: the sizes, point by point.
    """

    what: str
    before: tuple[float, ...]
    after: tuple[float, ...]


def shape_of(filter: Filter) -> Shape | None:
    """The curve of a filter: of a radial one norm against norm, of an element-wise one value against value.

    What an element-wise filter has in front or behind (clipping) is left out of its curve. None for filters that treat
    layers apart.
    """
    if filter.kind == "radial":
        reach = REACH * filter.certified_bound(1)
        norms = torch.linspace(0, reach, POINTS)
        return Shape("norm", tuple(norms.tolist()), tuple((norms * filter.factor(norms)).tolist()))
    if filter.kind == "element-wise":
        reach = REACH * float(getattr(filter, "range", 1.0))
        values = torch.linspace(-reach, reach, POINTS)
        return Shape("value", tuple(values.tolist()), tuple(filter.map(values.clone()).tolist()))
    return None
