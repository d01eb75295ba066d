"""Gradient filters: maps of one record's gradient whose output norm is bounded, each with the bound beside it.

Three kinds exist and the engine follows the kind. A *radial* filter rescales the whole gradient by a
function of its norm, a *layer-wise* one each layer by a function of that layer's. An *element-wise* filter maps each live
coordinate, with a radial filter in front or behind.

A filter is a frozen value with ``kind``, ``certified_bound(live)`` and its map. ``certified_bound`` is the largest
L2 norm of the filtered gradient of one record, over every input, as computed in float32: the sensitivity under
add/remove; replace-one doubles it. ``nominal_bound`` is what its source claims, where that is something else.

A new filter is one class, and one line in ``FILTERS``. Nothing here imports torch: tensors have the methods that a filter
needs.
"""

from __future__ import annotations

from itertools import starmap

from dpltm.errors import InputError
from dpltm.filters.descriptor import CLIP_NORM, NO_PRE_CLIP, TANH_RANGE, TANH_SCALE, Filter, FilterDescriptor
from dpltm.filters.radial import Automatic, Clip, DpsrCg, PerLayerClip, RadialTanh
from dpltm.filters.tanh import Sigmoid, Tanh
from dpltm.registry import Registry, check_parameters

FILTERS = Registry[FilterDescriptor]("filter", starmap(FilterDescriptor, (
    ("clip", "Every gradient clipped to norm C.", "Abadi et al. 2016", (CLIP_NORM,), Clip),
    ("per-layer", "The gradient of each of L layers clipped to C / sqrt(L).", "McMahan et al. 2018", (CLIP_NORM,),
     PerLayerClip),
    ("tanh", "c tanh(g / k) on each coordinate, by default after clipping to norm R.", "Amian",
     (CLIP_NORM, TANH_SCALE, TANH_RANGE, NO_PRE_CLIP),
     lambda clip_norm, no_pre_clip, **ranges: Tanh(**ranges, before=None if no_pre_clip else Clip(clip_norm))),
    ("tanh-clip", "c tanh(g / k) on each coordinate, then clipped to norm C.", "Amian, thesis 6.4",
     (CLIP_NORM, TANH_SCALE, TANH_RANGE), lambda clip_norm, **ranges: Tanh(**ranges, after=Clip(clip_norm))),
    ("radial-tanh", "The norm becomes C tanh(norm / k); the direction stays.", "this project, after Amian",
     (CLIP_NORM, TANH_RANGE), RadialTanh),
    ("auto", "Every gradient divided by its norm plus a small number, so that small ones stay small: AUTO-S.",
     "Bu et al. 2023", (CLIP_NORM,), Automatic),
    ("normalize", "Every gradient scaled to norm C: AUTO-V.", "Bu et al. 2023", (CLIP_NORM,),
     lambda clip_norm: Automatic(clip_norm, gamma=0.0)),
    ("sigmoid", "c sigmoid(g / k) on each coordinate: a negative control.", "Amian, thesis", (TANH_SCALE, TANH_RANGE),
     Sigmoid),
    ("dpsr-cg", "The filter in DPSR-CG's code for MNIST: norms up to 8 are scaled to C at most, longer ones to 8; a negative"
     " control.", "Huang, Xie 2026, their code", (CLIP_NORM,), DpsrCg),
)))  # fmt: skip

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


def check_compiles(filter: Filter) -> None:
    """Raise InputError unless there is something to compile in a filter."""
    if filter.kind != "element-wise":
        raise InputError(f"`compile`: only for filters that map each coordinate, and {filter} does not; leave it out")


def check_claims(filter: Filter) -> None:
    """Raise InputError unless noise can be calibrated as a filter's source does."""
    if filter.nominal_bound is None:
        raise InputError(
            f"`noise`: nominal is as much as a paper adds that claims another bound, and none does of {filter}; leave it out"
        )


__all__ = [
    "FILTERS", "PARAMETERS", "Automatic", "Clip", "DpsrCg", "Filter", "FilterDescriptor", "PerLayerClip", "RadialTanh",
    "Sigmoid", "Tanh", "check_claims", "check_compiles", "make_filter",
]  # fmt: skip
