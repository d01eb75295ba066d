"""``mlp:300,100``: Linear layers with ReLU between them.

``mlp:project64,300,100`` has a Linear layer ``project`` of 64 outputs in front, with no activation behind it: what is behind
does not depend on the width of the records, and moves to other ones with a new layer in front (DPLTM, section 4.5).
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dpltm.errors import InputError

if TYPE_CHECKING:
    from torch import nn

WIDEST = 100_000
"""Largest width or input size accepted; a guard against typing errors and hostile files."""


PROJECTION = "project"
"""Name of the layer in front whose weights belong to the records' width, and to no ticket."""


TABLES = (0,)
"""How many tables inputs are positions in."""


def tables(text: str) -> tuple[int, ...]:
    """None: inputs are quantities."""
    del text
    return ()


def check(text: str, features: int) -> None:
    """Raises InputError for widths that are none."""
    del features
    widths(text)


def resolve(text: str, shape: tuple[int, ...], tables: tuple[int, ...]) -> str:
    """The name as it is: an mlp takes whatever comes."""
    del shape, tables
    return text


def record_shape(text: str, features: int) -> tuple[int, ...]:
    """Shape of one record."""
    del text
    return (features,)


def widths(text: str) -> tuple[int | None, tuple[int, ...]]:
    """Outputs of the projection in front, None where there is none, and widths of the hidden layers."""
    parts = text.partition(":")[2].split(",") if ":" in text else []
    front = [part.removeprefix(PROJECTION) for part in parts[:1] if part.startswith(PROJECTION)]
    sizes = [_width(part) for part in (*front, *parts[len(front) :])]
    if any(not 1 <= size <= WIDEST for size in sizes) or len(sizes) - len(front) > 100:
        raise InputError(
            f"`model`: {text!r:.80}: widths must be whole numbers from 1 to {WIDEST}, as in mlp:300,100"
            + (f"; only the first may be a projection, as in mlp:{PROJECTION}64,300,100" if PROJECTION in text else "")
        )
    return (sizes[0] if front else None), tuple(sizes[len(front) :])


def renamed(text: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The name of the network of the same layers with these parameters."""
    front, hidden = widths(text)
    parts = [] if front is None else [f"{PROJECTION}{shapes[f'{PROJECTION}.weight'][0]}"]
    parts += [str(shapes[f"fc{number}.weight"][0]) for number in range(1, len(hidden) + 1)]
    return ":".join(("mlp", ",".join(parts))) if parts else "mlp"


def shapes(text: str, features: int, classes: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, in order."""
    found: dict[str, tuple[int, ...]] = {}
    for name, fan_in, fan_out in _layers(text, features, classes):
        found[f"{name}.weight"] = (fan_out, fan_in)
        found[f"{name}.bias"] = (fan_out,)
    return found


def network(text: str, features: int, classes: int) -> nn.Sequential:
    """The network, of whatever weights: ``(batch, features)`` to ``(batch, classes)``."""
    from torch import nn

    found: OrderedDict[str, nn.Module] = OrderedDict()
    layers = _layers(text, features, classes)
    for name, fan_in, fan_out in layers:
        found[name] = nn.Linear(fan_in, fan_out)
        if name not in (PROJECTION, layers[-1][0]):
            found[name.replace("fc", "relu")] = nn.ReLU()
    return nn.Sequential(found)


def _width(part: str) -> int:
    return int(part) if re.fullmatch("[1-9][0-9]{0,8}", part) else 0


def _layers(text: str, features: int, classes: int) -> list[tuple[str, int, int]]:
    """Name, inputs and outputs of every layer."""
    front, hidden = widths(text)
    names = [f"fc{number}" for number in range(1, len(hidden) + 2)]
    sizes = [features, *hidden, classes]
    if front is not None:
        names, sizes = [PROJECTION, *names], [features, front, *hidden, classes]
    return [(name, *sides) for name, sides in zip(names, itertools.pairwise(sizes), strict=True)]
