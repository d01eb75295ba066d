"""``cnn``: the convolutional MNIST network of DP papers (Bu, Dong, Long, Su 2020, after the TensorFlow Privacy tutorial).

16 filters of 8 x 8 with stride 2, 32 of 4 x 4 with stride 2, each with ReLU and a 2 x 2 maximum of stride 1, then 32 units:
26,010 parameters on images of 28 x 28. ``cnn:28x28x1:7,20,15`` has 7 filters, 20 filters and 15 units instead, as compaction
leaves it. Records come flattened, channels last, as datasets hold images.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dpltm.errors import InputError

if TYPE_CHECKING:
    from torch import nn

WIDTHS = (16, 32, 32)
"""Filters of both convolutions, and units behind them, where the name does not say."""

WIDEST = 4096
"""Most of any of them."""

_NUMBER = "([1-9][0-9]{0,3})"

LEAST_SIDE = 14
"""What two convolutions and two maxima leave one pixel of."""


TABLES = (0,)
"""How many tables inputs are positions in."""


def tables(text: str) -> tuple[int, ...]:
    """None: inputs are quantities."""
    del text
    return ()


def resolve(text: str, shape: tuple[int, ...], tables: tuple[int, ...] = ()) -> str:
    """The name with the size of the images: ``cnn:HEIGHTxWIDTHxCHANNELS``."""
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
    if min(height, width) < LEAST_SIDE:
        raise InputError(f"`model`: {text}: images must be at least {LEAST_SIDE} x {LEAST_SIDE}")
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
    if not all(1 <= width <= WIDEST for width in (first, second, units)):
        raise InputError(
            f"`model`: {text!r:.80}: behind the size of the images come FILTERS,FILTERS,UNITS, whole numbers from 1 to"
            f" {WIDEST}, as in cnn:28x28x1:16,32,32"
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
    found = tuple(shapes[f"{layer}.weight"][0] for layer in ("conv1", "conv2", "fc1"))
    name = "cnn:" + "x".join(str(size) for size in image(text))
    return name if found == WIDTHS else f"{name}:" + ",".join(str(width) for width in found)


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
    """Name and shape of every parameter, in order."""
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


def network(text: str, features: int, classes: int) -> nn.Sequential:
    """The network, of whatever weights: ``(batch, features)`` to ``(batch, classes)``."""
    from torch import nn

    from dpltm.models.layers import Images

    del features
    height, width, channels = image(text)
    first, second, units = widths(text)
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            image=Images(height, width, channels),
            conv1=nn.Conv2d(channels, first, 8, stride=2, padding=3),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2, stride=1),
            conv2=nn.Conv2d(first, second, 4, stride=2),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2, stride=1),
            flat=nn.Flatten(),
            fc1=nn.Linear(second * _pixels(height, width), units),
            relu3=nn.ReLU(),
            fc2=nn.Linear(units, classes),
        )
    )
