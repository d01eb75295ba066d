"""``cnn``: the convolutional MNIST network of DP papers (Bu, Dong, Long, Su 2020, after the TensorFlow Privacy tutorial).

16 filters of 8 x 8 with stride 2, 32 of 4 x 4 with stride 2, each with ReLU and a 2 x 2 maximum of stride 1, then 32 units:
26,010 parameters on images of 28 x 28. ``cnn:28x28x1:7,20,15`` has 7 filters, 20 filters and 15 units instead, as compaction
leaves it. Records come flattened, channels last, as datasets hold images.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from dpltm.errors import InputError
from dpltm.networks.kind import MAX_LAYER_WIDTH, LayerSpec, NetworkKind, layer

WIDTHS = (16, 32, 32)
"""Filters of both convolutions, and units behind them, where the name does not say."""

_NUMBER = "([1-9][0-9]{0,3})"

MIN_SIDE = 14
"""What two convolutions and two maxima leave one pixel of."""


def resolve(text: str, shape: tuple[int, ...], tables: tuple[int, ...]) -> str:
    """The name with the size of the images: ``cnn:HEIGHTxWIDTHxCHANNELS``. Arguments as :func:`as_given`.

    Raises:
        InputError: records that are no images.
    """
    if len(shape) not in (2, 3) or tables:
        raise InputError(
            f"`model` {text}: records of shape {shape} are no images; if they are flattened ones, say their size, as in"
            f" {text}:28x28x1"
        )
    return f"{text}:" + "x".join(str(size) for size in (*shape, 1)[:3])


def image(text: str) -> tuple[int, int, int]:
    """Height, width, channels."""
    parts = _parts(text)
    height, width, channels = (int(part) for part in parts.groups()[:3])
    if min(height, width) < MIN_SIDE:
        raise InputError(f"`model`: {text}: images must be at least {MIN_SIDE} x {MIN_SIDE}")
    return height, width, channels


def record_shape(text: str, features: int) -> tuple[int, ...]:
    """Height, width, channels."""
    del features
    return image(text)


def widths(text: str) -> tuple[int, int, int]:
    """Filters of the first and of the second convolution, and units behind them."""
    given = _parts(text).group(4)
    if given is None:
        return WIDTHS
    parts = re.fullmatch(f"{_NUMBER},{_NUMBER},{_NUMBER}", given)
    first, second, units = (int(part) for part in parts.groups()) if parts else (0, 0, 0)
    if not all(1 <= width <= MAX_LAYER_WIDTH for width in (first, second, units)):
        raise InputError(
            f"`model`: {text!r:.80}: behind the size of the images come FILTERS,FILTERS,UNITS, whole numbers from 1 to"
            f" {MAX_LAYER_WIDTH}, as in cnn:28x28x1:16,32,32"
        )
    return first, second, units


def _parts(text: str) -> re.Match[str]:
    parts = re.fullmatch(f"cnn:{_NUMBER}x{_NUMBER}x{_NUMBER}(?::(.*))?", text, re.DOTALL)
    if parts is None:
        raise InputError(
            f"`model`: {text!r:.80}: say the size of the images as cnn:HEIGHTxWIDTHxCHANNELS, such as cnn:28x28x1"
        )
    return parts


def renamed(text: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The name of the network on the same images with these parameters."""
    new_widths = tuple(shapes[f"{layer}.weight"][0] for layer in ("conv1", "conv2", "fc1"))
    name = "cnn:" + "x".join(str(size) for size in image(text))
    return name if new_widths == WIDTHS else f"{name}:" + ",".join(str(width) for width in new_widths)


def check(text: str, features: int) -> None:
    """Raises InputError unless flattened images have that many features."""
    widths(text)
    size = math.prod(image(text))
    if size != features:
        raise InputError(f"`model`: {text}: such images have {size} features, but the records have {features}")


def _pixels(height: int, width: int) -> int:
    """Pixels that the last maximum leaves of a channel."""

    def left(side: int) -> int:
        first = (side - 2) // 2  # behind the first convolution and maximum
        return (first - 4) // 2  # behind the second

    return left(height) * left(width)


def shapes(text: str, features: int, classes: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, in order. Arguments as :func:`dpltm.networks.mlp.shapes`."""
    del features
    height, width, channels = image(text)
    first, second, units = widths(text)
    return {
        "conv1.weight": (first, channels, 8, 8),
        "conv1.bias": (first,),
        "conv2.weight": (second, first, 4, 4),
        "conv2.bias": (second,),
        "fc1.weight": (units, second * _pixels(height, width)),
        "fc1.bias": (units,),
        "fc2.weight": (classes, units),
        "fc2.bias": (classes,),
    }


def layers(text: str, features: int, classes: int) -> tuple[LayerSpec, ...]:
    """The layers, in order: ``(batch, features)`` to ``(batch, classes)``. Arguments as :func:`networks.mlp.shapes`."""
    del features
    height, width, channels = image(text)
    first, second, units = widths(text)
    return (
        layer("image", "Images", height, width, channels),
        layer("conv1", "Conv2d", channels, first, 8, stride=2, padding=3),
        layer("relu1", "ReLU"),
        layer("pool1", "MaxPool2d", 2, stride=1),
        layer("conv2", "Conv2d", first, second, 4, stride=2),
        layer("relu2", "ReLU"),
        layer("pool2", "MaxPool2d", 2, stride=1),
        layer("flat", "Flatten"),
        layer("fc1", "Linear", second * _pixels(height, width), units),
        layer("relu3", "ReLU"),
        layer("fc2", "Linear", units, classes),
    )


CNN = NetworkKind(
    "cnn",
    "Two convolutions and two linear layers, as for MNIST in DP papers.",
    "Bu, Dong, Long, Su 2020, after the TensorFlow Privacy tutorial",
    "cnn[-tanh]",
    ("images",),
    check,
    shapes,
    layers,
    renamed,
    record_shape,
    resolve,
)
