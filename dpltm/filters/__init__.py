"""Gradient filters: maps of one record's gradient whose output norm is bounded, each with the bound beside it.

Three kinds exist and the engine follows the kind. A *radial* filter rescales the whole gradient by a
function of its norm, a *layer-wise* one each layer by a function of that layer's. An *element-wise* filter maps each live
coordinate, with a radial filter in front or behind.

A filter is a frozen value with ``kind``, ``certified_bound(live)`` and its map. ``certified_bound`` is the largest
L2 norm of the filtered gradient of one record, over every input, as computed in float32: the sensitivity under
add/remove; replace-one doubles it. ``nominal_bound`` is what its source claims, where that is something else.

A new filter is one class with a ``FilterDescriptor``, and one line in ``FILTERS``. Nothing here imports torch: tensors have
the methods that a filter needs.
"""

from __future__ import annotations

from dpltm.errors import InputError
from dpltm.filters.clip import CLIP, Clip
from dpltm.filters.descriptor import (
    CLIP_NORM,
    NO_PRE_CLIP,
    TANH_RANGE,
    TANH_SCALE,
    ElementWiseFilter,
    Filter,
    FilterDescriptor,
    RadialFilter,
)
from dpltm.filters.radial import (
    AUTO,
    DPSR_CG,
    NORMALIZE,
    PER_LAYER,
    RADIAL_TANH,
    Automatic,
    DpsrCg,
    PerLayerClip,
    RadialTanh,
)
from dpltm.filters.tanh import SIGMOID, TANH, TANH_CLIP, Sigmoid, Tanh
from dpltm.registry import Registry, check_parameters, listed

FILTERS = Registry[FilterDescriptor](
    "filter", (CLIP, PER_LAYER, TANH, TANH_CLIP, RADIAL_TANH, AUTO, NORMALIZE, SIGMOID, DPSR_CG)
)

PARAMETERS = (CLIP_NORM, TANH_SCALE, TANH_RANGE, NO_PRE_CLIP)
"""Parameters of filters that options of a training hold."""


def make_filter(name: str, **parameters: float | bool) -> Filter:
    """Make the filter of that name.

    Args:
        name: one of ``FILTERS``.
        parameters: of that filter, such as ``clip_norm``; those left out are at their defaults.

    Raises:
        InputError: an unknown name, a parameter that this filter does not take, or one out of range.
    """
    descriptor = FILTERS.find(name)
    check_parameters(FILTERS, descriptor, parameters)
    defaults = {parameter.name: parameter.default for parameter in descriptor.parameters}
    return descriptor.make(**{**defaults, **parameters})


def check_compiles(filter: Filter, name: str = "") -> None:
    """Raise InputError unless there is something to compile in a filter, which the message calls ``name``."""
    if filter.kind != "element-wise":
        compiled = ", ".join(FILTERS.names(lambda entry: entry.compiles))
        raise InputError(f"`compile`: only for element-wise filters ({compiled}); {name or filter} cannot be compiled")


def check_claims(filter: Filter, name: str = "") -> None:
    """Raise InputError unless noise can be calibrated as a filter's source does, which the message calls ``name``."""
    if filter.nominal_bound is None:
        claiming = listed(FILTERS.names(lambda entry: entry.claims))
        raise InputError(
            f"`noise`: nominal is as much as a paper adds that claims another bound: only for `filter` {claiming}, not"
            f" {name or filter}"
        )


__all__ = [
    "FILTERS",
    "PARAMETERS",
    "Automatic",
    "Clip",
    "DpsrCg",
    "ElementWiseFilter",
    "Filter",
    "FilterDescriptor",
    "PerLayerClip",
    "RadialFilter",
    "RadialTanh",
    "Sigmoid",
    "Tanh",
    "check_claims",
    "check_compiles",
    "make_filter",
]
