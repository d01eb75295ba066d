"""``mlp:300,100``: Linear layers with ReLU between them."""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict
from typing import TYPE_CHECKING

from dpltm.errors import InputError

if TYPE_CHECKING:
    from torch import nn

WIDEST = 100_000
"""Largest width or input size accepted; a guard against typing errors and hostile files."""


def check(text: str, features: int) -> None:
    """Raises InputError for widths that are none."""
    del features
    hidden(text)


def hidden(text: str) -> tuple[int, ...]:
    """Widths of the hidden layers."""
    parts = text.partition(":")[2].split(",") if ":" in text else []
    widths = tuple(int(part) if re.fullmatch("[1-9][0-9]{0,8}", part) else 0 for part in parts)
    if any(not 1 <= width <= WIDEST for width in widths) or len(widths) > 100:
        raise InputError(f"--model: {text!r}: widths must be whole numbers from 1 to {WIDEST}, as in mlp:300,100")
    return widths


def shapes(text: str, features: int, classes: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, in order."""
    found: dict[str, tuple[int, ...]] = {}
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise((features, *hidden(text), classes)), start=1):
        found[f"fc{layer}.weight"] = (fan_out, fan_in)
        found[f"fc{layer}.bias"] = (fan_out,)
    return found


def network(text: str, features: int, classes: int) -> nn.Sequential:
    """The network, of whatever weights: ``(batch, features)`` to ``(batch, classes)``."""
    from torch import nn

    layers: list[tuple[str, nn.Module]] = []
    for number, (fan_in, fan_out) in enumerate(itertools.pairwise((features, *hidden(text), classes)), start=1):
        if number > 1:
            layers.append((f"relu{number - 1}", nn.ReLU()))
        layers.append((f"fc{number}", nn.Linear(fan_in, fan_out)))
    return nn.Sequential(OrderedDict(layers))
