"""Gradient filters: maps of one record's gradient whose output norm is bounded, each with the bound beside it.

Three kinds exist and the engine follows the kind. A *radial* filter rescales the whole gradient by a
function of its norm, a *layer-wise* one each layer by a function of that layer's. An *element-wise* filter maps each live
coordinate, with a radial filter in front or behind.

A filter is a frozen value with ``kind``, ``certified_bound(live)`` and its map. ``certified_bound`` is the largest
L2 norm of the filtered gradient of one record, over every input, as computed in float32: the sensitivity under
add/remove; replace-one doubles it. ``nominal_bound`` is what its source claims, where that is something else.

A new filter is one file, and one line in ``_FILTERS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dpltm.errors import InputError
from dpltm.filters.automatic import Automatic
from dpltm.filters.clip import Clip
from dpltm.filters.per_layer import PerLayerClip
from dpltm.filters.radial_tanh import RadialTanh
from dpltm.filters.sigmoid import Sigmoid
from dpltm.filters.tanh import Tanh

RadialFilter = Clip | RadialTanh | Automatic
ElementWiseFilter = Tanh | Sigmoid
Filter = RadialFilter | PerLayerClip | ElementWiseFilter


class _Parameters(NamedTuple):
    clip_norm: float
    tanh_scale: float
    tanh_range: float
    pre_clip: bool


_FILTERS: dict[str, Callable[[_Parameters], Filter]] = {
    "clip": lambda p: Clip(p.clip_norm),
    "per-layer": lambda p: PerLayerClip(p.clip_norm),
    "tanh": lambda p: Tanh(p.tanh_scale, p.tanh_range, before=Clip(p.clip_norm) if p.pre_clip else None),
    "tanh-clip": lambda p: Tanh(p.tanh_scale, p.tanh_range, after=Clip(p.clip_norm)),
    "radial-tanh": lambda p: RadialTanh(p.clip_norm, p.tanh_range),
    "auto": lambda p: Automatic(p.clip_norm),
    "normalize": lambda p: Automatic(p.clip_norm, gamma=0.0),
    "sigmoid": lambda p: Sigmoid(p.tanh_scale, p.tanh_range),
}
NAMES = tuple(_FILTERS)


def make_filter(
    name: str, *, clip_norm: float = 1.0, tanh_scale: float = 1.0, tanh_range: float = 1.0, pre_clip: bool = True
) -> Filter:
    """The filter called ``name`` on the command line; each takes the parameters that concern it.

    Args:
        name: one of ``NAMES``; ``tanh`` clips to ``clip_norm`` first unless ``pre_clip`` is False.
        clip_norm: C; R of clip-then-tanh.
        tanh_scale: vertical range c of tanh and sigmoid.
        tanh_range: horizontal range k of tanh, radial tanh and sigmoid.
        pre_clip: False for tanh as printed in the paper.

    Raises:
        InputError: an unknown name, or a parameter out of range.
    """
    if name not in _FILTERS:
        raise InputError(f"`filter`: unknown filter {name!r}; known: {', '.join(NAMES)}")
    return _FILTERS[name](_Parameters(clip_norm, tanh_scale, tanh_range, pre_clip))


__all__ = [
    "NAMES",
    "Automatic",
    "Clip",
    "ElementWiseFilter",
    "Filter",
    "PerLayerClip",
    "RadialFilter",
    "RadialTanh",
    "Sigmoid",
    "Tanh",
    "make_filter",
]
