"""``cnn``: the convolutional MNIST network of DP papers (Bu, Dong, Long, Su 2020, after the TensorFlow Privacy tutorial).

16 filters of 8 x 8 with stride 2, 32 of 4 x 4 with stride 2, each with ReLU and a 2 x 2 maximum of stride 1, then 32 units:
26,010 parameters on images of 28 x 28. Records come flattened, channels last, as datasets hold images.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from typing import TYPE_CHECKING

from dpltm.errors import InputError

if TYPE_CHECKING:
    from torch import nn

FIRST, SECOND, UNITS = 16, 32, 32
"""Filters of both convolutions, and units behind them."""

LEAST_SIDE = 14
"""What two convolutions and two maxima leave one pixel of."""


def resolve(text: str, shape: tuple[int, ...]) -> str:
    """``cnn`` with the size of the images: ``cnn:HEIGHTxWIDTHxCHANNELS``."""
    if len(shape) not in (2, 3):
        raise InputError(
            f"--model {text}: records of shape {shape} are no images; if they are flattened ones, say their size, as in"
            " cnn:28x28x1"
        )
    return f"{text}:" + "x".join(str(size) for size in (*shape, 1)[:3])


def image(text: str) -> tuple[int, int, int]:
    """Height, width, channels."""
    parts = re.fullmatch("cnn:([1-9][0-9]{0,3})x([1-9][0-9]{0,3})x([1-9][0-9]{0,3})", text)
    if parts is None:
        raise InputError(
            f"--model: {text!r}: say the size of the images as cnn:HEIGHTxWIDTHxCHANNELS, such as cnn:28x28x1"
        )
    height, width, channels = (int(part) for part in parts.groups())
    if min(height, width) < LEAST_SIDE:
        raise InputError(f"--model: {text}: images must be at least {LEAST_SIDE} x {LEAST_SIDE}")
    return height, width, channels


def check(text: str, features: int) -> None:
    """Raises InputError unless flattened images have that many features."""
    size = math.prod(image(text))
    if size != features:
        raise InputError(f"--model: {text}: such images have {size} features, but the records have {features}")


def _flat(height: int, width: int) -> int:
    """Outputs of the last maximum, flattened."""

    def left(side: int) -> int:
        first = (side - 2) // 2  # behind the first convolution and maximum
        return (first - 4) // 2  # behind the second

    return SECOND * left(height) * left(width)


def shapes(text: str, features: int, classes: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, in order."""
    del features
    height, width, channels = image(text)
    return {
        "conv1.weight": (FIRST, channels, 8, 8),
        "conv1.bias": (FIRST,),
        "conv2.weight": (SECOND, FIRST, 4, 4),
        "conv2.bias": (SECOND,),
        "fc1.weight": (UNITS, _flat(height, width)),
        "fc1.bias": (UNITS,),
        "fc2.weight": (classes, UNITS),
        "fc2.bias": (classes,),
    }


def network(text: str, features: int, classes: int) -> nn.Sequential:
    """The network, of whatever weights: ``(batch, features)`` to ``(batch, classes)``."""
    from torch import nn

    from dpltm.models.layers import Images

    del features
    height, width, channels = image(text)
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            image=Images(height, width, channels),
            conv1=nn.Conv2d(channels, FIRST, 8, stride=2, padding=3),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2, stride=1),
            conv2=nn.Conv2d(FIRST, SECOND, 4, stride=2),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2, stride=1),
            flat=nn.Flatten(),
            fc1=nn.Linear(_flat(height, width), UNITS),
            relu3=nn.ReLU(),
            fc2=nn.Linear(UNITS, classes),
        )
    )
