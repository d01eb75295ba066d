"""``mlp:300,100``: Linear layers with ReLU between them.

``mlp:project64,300,100`` has a Linear layer ``project`` of 64 outputs in front, with no activation behind it: what is behind
does not depend on the width of the records, and moves to other ones with a new layer in front (DPLTM, section 4.5).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

from dpltm.errors import InputError
from dpltm.networks.kind import MAX_WIDTH, LayerSpec, NetworkKind, layer

PROJECTION = "project"
"""Name of the layer in front whose weights belong to the records' width, and to no ticket."""


def check(text: str, features: int) -> None:
    """Raises InputError for widths that are none."""
    del features
    widths(text)


def widths(text: str) -> tuple[int | None, tuple[int, ...]]:
    """Outputs of the projection in front, None where there is none, and widths of the hidden layers."""
    parts = text.partition(":")[2].split(",") if ":" in text else []
    front = [part.removeprefix(PROJECTION) for part in parts[:1] if part.startswith(PROJECTION)]
    sizes = [_width(part) for part in (*front, *parts[len(front) :])]
    if any(not 1 <= size <= MAX_WIDTH for size in sizes) or len(sizes) - len(front) > 100:
        raise InputError(
            f"`model`: {text!r:.80}: widths must be whole numbers from 1 to {MAX_WIDTH}, as in mlp:300,100"
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
    """Name and shape of every parameter, in order.

    Args:
        text: name of the network.
        features: of one record.
        classes: of labels.
    """
    by_name: dict[str, tuple[int, ...]] = {}
    for name, fan_in, fan_out in _layers(text, features, classes):
        by_name[f"{name}.weight"] = (fan_out, fan_in)
        by_name[f"{name}.bias"] = (fan_out,)
    return by_name


def layers(text: str, features: int, classes: int) -> tuple[LayerSpec, ...]:
    """The layers, in order: ``(..., features)`` to ``(..., classes)``. Arguments as :func:`shapes`."""
    result, linear = [], _layers(text, features, classes)
    for name, fan_in, fan_out in linear:
        result.append(layer(name, "Linear", fan_in, fan_out))
        if name not in (PROJECTION, linear[-1][0]):
            result.append(layer(name.replace("fc", "relu"), "ReLU"))
    return tuple(result)


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


MLP = NetworkKind(
    "mlp",
    "Fully connected layers with ReLU between them.",
    "as in the lottery-ticket experiments of Frankle and Carbin 2019",
    "mlp[-tanh]:W,W,...",
    ("vectors",),
    check,
    shapes,
    layers,
    renamed,
    usage="mlp:WIDTH,WIDTH,... (such as mlp:300,100), mlp-tanh:...",
)
