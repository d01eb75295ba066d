"""Gradient filters: maps of one record's gradient whose output norm is bounded, each with the bound beside it.

Two kinds exist and the engine follows the kind (DESIGN.md). A *radial* filter rescales the whole gradient by a
function of its norm. An *element-wise* filter maps each live coordinate, after an optional radial filter in front.

A filter is a frozen value with ``kind``, ``certified_bound(live)`` and its map. ``certified_bound`` is the largest
L2 norm of the filtered gradient of one record, over every input, as computed in float32: the sensitivity under
add/remove; replace-one doubles it.
"""

from __future__ import annotations

from dpltm.errors import InputError
from dpltm.filters.clip import Clip
from dpltm.filters.tanh import Tanh

Filter = Clip | Tanh

NAMES = ("clip", "tanh")


def make_filter(
    name: str, *, clip_norm: float = 1.0, tanh_scale: float = 1.0, tanh_range: float = 1.0, pre_clip: bool = True
) -> Filter:
    """The filter called ``name`` on the command line.

    Args:
        name: ``clip``, or ``tanh``, which clips to ``clip_norm`` first unless ``pre_clip`` is False.
        clip_norm: C of clip, R of clip-then-tanh.
        tanh_scale: vertical range c.
        tanh_range: horizontal range k.
        pre_clip: False for tanh as printed in the paper.
    """
    if name == "clip":
        return Clip(clip_norm)
    if name == "tanh":
        return Tanh(tanh_scale, tanh_range, Clip(clip_norm) if pre_clip else None)
    raise InputError(f"--filter: unknown filter {name!r}; known: {', '.join(NAMES)}")


__all__ = ["NAMES", "Clip", "Filter", "Tanh", "make_filter"]
