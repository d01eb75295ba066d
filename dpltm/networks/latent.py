"""``latent``: the two convolutional networks of LATENT (Arachchige et al. 2019), whole and without its randomised bits.

For grey images, as MNIST: filters of 3 x 3, 32 and then 64 of them, each layer with ReLU, a 2 x 2 maximum, 128 units. What
is known of the paper's network is that it flattens 9,216 values of an MNIST image, which is so here and in the example for
MNIST that came with keras; 128 units are that example's. For images of several channels, as CIFAR-10, the paper's layers are
not known here, and keras's example for CIFAR-10 is assumed: twice two layers of filters of 3 x 3, 32 and 32, then 64 and
64, the first of each two padded, each two followed by a 2 x 2 maximum, then 512 units.

Dropout, which both examples have, is left out: the noise of private training takes its place. Behind the size of the images
other widths may be said, three for the network of grey images (``latent:28x28x1:32,64,128``), five for the other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from dpltm.errors import InputError
from dpltm.networks import cnn
from dpltm.networks.kind import MAX_LAYER_WIDTH, LayerSpec, NetworkKind, layer

GREY, COLOUR = (32, 64, 128), (32, 32, 64, 64, 512)
"""Filters of each convolution and units behind them, where the name does not say."""

_NUMBER = "([1-9][0-9]{0,3})"


def _parts(text: str) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """Size of the images, and widths."""
    parts = re.fullmatch(f"latent:{_NUMBER}x{_NUMBER}x{_NUMBER}(?::({_NUMBER}(?:,{_NUMBER})*))?", text)
    if parts is None:
        raise _malformed(text)
    height, width, channels = (int(part) for part in parts.groups()[:3])
    usual = GREY if channels == 1 else COLOUR
    widths = usual if parts.group(4) is None else tuple(map(int, parts.group(4).split(",")))
    if len(widths) not in (len(GREY), len(COLOUR)) or max(widths) > MAX_LAYER_WIDTH:
        raise _malformed(text)
    return (height, width, channels), widths


def _malformed(text: str) -> InputError:
    return InputError(
        f"`model`: {text!r:.80}: say the size of the images, and the widths if they are others than the usual ones, three or"
        f" five whole numbers from 1 to {MAX_LAYER_WIDTH}, as in latent:28x28x1:32,64,128"
    )


def record_shape(text: str, features: int) -> tuple[int, ...]:
    """Height, width, channels."""
    del features
    return _parts(text)[0]


def check(text: str, features: int) -> None:
    """Raises InputError unless flattened images have that many features, and are large enough."""
    size, widths = _parts(text)
    if math.prod(size) != features:
        raise InputError(
            f"`model`: {text}: such images have {math.prod(size)} features, but the records have {features}"
        )
    if min(_left(side, widths) for side in size[:2]) < 1:
        least = next(side for side in range(1, 100) if _left(side, widths) >= 1)
        raise InputError(f"`model`: {text}: images must be at least {least} x {least}")


def _left(side: int, widths: tuple[int, ...]) -> int:
    """Pixels that the last maximum leaves of a side."""
    return (side - 4) // 2 if len(widths) == len(GREY) else ((side - 2) // 2 - 2) // 2


def renamed(text: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The name of the network on the same images with these parameters."""
    size, before = _parts(text)
    layers = (*(f"conv{number}" for number in range(1, len(before))), "fc1")
    new_widths = tuple(shapes[f"{layer}.weight"][0] for layer in layers)
    name = "latent:" + "x".join(map(str, size))
    return name if new_widths == (GREY if size[2] == 1 else COLOUR) else f"{name}:" + ",".join(map(str, new_widths))


def shapes(text: str, features: int, classes: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, in order. Arguments as :func:`dpltm.networks.mlp.shapes`."""
    del features
    (height, width, channels), (*filters, units) = _parts(text)
    by_name: dict[str, tuple[int, ...]] = {}
    for number, (before, after) in enumerate(zip((channels, *filters), filters, strict=False), start=1):
        by_name |= {f"conv{number}.weight": (after, before, 3, 3), f"conv{number}.bias": (after,)}
    left = _left(height, (*filters, units)) * _left(width, (*filters, units))
    return by_name | {
        "fc1.weight": (units, filters[-1] * left),
        "fc1.bias": (units,),
        "fc2.weight": (classes, units),
        "fc2.bias": (classes,),
    }


def layers(text: str, features: int, classes: int) -> tuple[LayerSpec, ...]:
    """The layers, in order: ``(batch, features)`` to ``(batch, classes)``. Arguments as :func:`networks.mlp.shapes`."""
    size, (*filters, units) = _parts(text)
    result, padded = [layer("image", "Images", *size)], len(filters) == 4
    for number, (before, after) in enumerate(zip((size[2], *filters), filters, strict=False), start=1):
        result.append(layer(f"conv{number}", "Conv2d", before, after, 3, padding=number % 2 if padded else 0))
        result.append(layer(f"relu{number}", "ReLU"))
        if number % 2 == 0:
            result.append(layer(f"pool{number // 2}", "MaxPool2d", 2, stride=2))
    inputs = shapes(text, features, classes)["fc1.weight"][1]
    return (
        *result,
        layer("flat", "Flatten"),
        layer("fc1", "Linear", inputs, units),
        layer(f"relu{len(filters) + 1}", "ReLU"),
        layer("fc2", "Linear", units, classes),
    )


LATENT = NetworkKind(
    "latent",
    "The convolutional networks of LATENT, for grey images and for those of several channels.",
    "Arachchige et al. 2019",
    "latent[-tanh]",
    ("images",),
    check,
    shapes,
    layers,
    renamed,
    record_shape,
    cnn.resolve,
)
