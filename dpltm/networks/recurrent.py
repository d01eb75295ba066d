"""``lstm`` and ``gru``: one recurrent layer, whose state after the last step goes into a linear classifier.

Of sequences of vectors, ``lstm:128x9`` takes 128 steps of 9 values, ``lstm:128x9:64`` with 64 units in place of 32; images
go row by row. Of texts, ``lstm:10000`` looks words up in a table of 10,000, with vectors of 16 numbers, and
``lstm:10000:32,64`` has 32 of these and 64 units. Records come flattened.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from dpltm.errors import InputError
from dpltm.networks.kind import MAX_LAYER_WIDTH, LayerSpec, NetworkKind, layer

UNITS, VECTOR = 32, 16
"""Units, and numbers in the vector of a word, where the name does not say."""

_SIZE = "([1-9][0-9]{0,7})"
_WIDTH = "([1-9][0-9]{0,3})"

_CELLS = {"lstm": ("LSTM", 4), "gru": ("GRU", 3)}
"""Layer, and how many products of a unit's inputs, and of the last state, a step takes."""


def resolve(text: str, shape: tuple[int, ...], tables: tuple[int, ...]) -> str:
    """``lstm`` with the size of the sequences, ``lstm:STEPSxVALUES``, or of the table, ``lstm:WORDS``.

    Arguments as :func:`as_given`.

    Raises:
        InputError: records that are neither texts nor sequences of vectors.
    """
    if len(tables) == 1:
        return f"{text}:{tables[0]}"
    if tables or len(shape) < 2:
        what = "that hold positions in several tables" if tables else f"of shape {shape}"
        raise InputError(
            f"`model` {text}: records {what} are no sequences of vectors; if they are flattened ones, say their size, as in"
            f" {text}:128x9"
        )
    return f"{text}:{shape[0]}x{math.prod(shape[1:])}"


def tables(text: str) -> tuple[int, ...]:
    """The size of the table of words; none of sequences of vectors."""
    words = _parts(text).group("words")
    return () if words is None else (int(words),)


def widths(text: str) -> tuple[int | None, int]:
    """Numbers in the vector of a word, None for sequences of vectors, and units."""
    parts = _parts(text)
    if parts.group("words") is None:
        return None, int(parts.group("units") or UNITS)
    return int(parts.group("vector") or VECTOR), int(parts.group("behind") or UNITS)


def _parts(text: str) -> re.Match[str]:
    parts = re.fullmatch(
        f"(?P<kind>{'|'.join(_CELLS)}):(?:(?P<steps>{_SIZE})x(?P<values>{_SIZE})(?::(?P<units>{_WIDTH}))?"
        f"|(?P<words>{_SIZE})(?::(?P<vector>{_WIDTH}),(?P<behind>{_WIDTH}))?)",
        text,
    )
    if parts is None or max(int(parts.group(name) or 1) for name in ("units", "vector", "behind")) > MAX_LAYER_WIDTH:
        kind = text.partition(":")[0]
        raise InputError(
            f"`model`: {text!r:.80}: say the size of the sequences as {kind}:STEPSxVALUES, or of the table of words as"
            f" {kind}:WORDS, and the widths, up to {MAX_LAYER_WIDTH}, if they are others than the usual ones, as in"
            f" {kind}:128x9:{UNITS} and {kind}:10000:{VECTOR},{UNITS}"
        )
    return parts


def check(text: str, features: int) -> None:
    """Raises InputError unless flattened sequences have that many features."""
    if math.prod(record_shape(text, features)) != features:
        size = math.prod(record_shape(text, features))
        raise InputError(f"`model`: {text}: such sequences have {size} features, but the records have {features}")


def record_shape(text: str, features: int) -> tuple[int, ...]:
    """Shape of one record."""
    parts = _parts(text)
    return (features,) if parts.group("words") else (int(parts.group("steps")), int(parts.group("values")))


def renamed(text: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The name of the network of the same layers with these parameters."""
    parts = _parts(text)
    kind = parts.group("kind")
    units = shapes["recurrent.weight_hh_l0"][1]
    if parts.group("words") is None:
        name = f"{kind}:{parts.group('steps')}x{parts.group('values')}"
        return name if units == UNITS else f"{name}:{units}"
    vector = shapes["table.weight"][1]
    name = f"{kind}:{parts.group('words')}"
    return name if (vector, units) == (VECTOR, UNITS) else f"{name}:{vector},{units}"


def shapes(text: str, features: int, classes: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, in order. Arguments as :func:`dpltm.networks.mlp.shapes`."""
    parts, (vector, units) = _parts(text), widths(text)
    gates = _CELLS[parts.group("kind")][1] * units
    by_name: dict[str, tuple[int, ...]] = {}
    if vector is not None:
        by_name["table.weight"] = (int(parts.group("words")), vector)
    return by_name | {
        "recurrent.weight_ih_l0": (gates, vector or record_shape(text, features)[1]),
        "recurrent.weight_hh_l0": (gates, units),
        "recurrent.bias_ih_l0": (gates,),
        "recurrent.bias_hh_l0": (gates,),
        "fc1.weight": (classes, units),
        "fc1.bias": (classes,),
    }


def layers(text: str, features: int, classes: int) -> tuple[LayerSpec, ...]:
    """The layers, in order: ``(batch, features)`` to ``(batch, classes)``. Arguments as :func:`networks.mlp.shapes`."""
    parts, (vector, units) = _parts(text), widths(text)
    if vector is None:
        front = [layer("steps", "Unflatten", 1, record_shape(text, features))]
    else:
        words = int(parts.group("words"))
        front = [layer("words", "Positions", words), layer("table", "Embedding", words, vector)]
    inputs = vector or record_shape(text, features)[1]
    return (
        *front,
        layer("recurrent", _CELLS[parts.group("kind")][0], inputs, units, batch_first=True),
        layer("last", "Last"),
        layer("fc1", "Linear", units, classes),
    )


LSTM = NetworkKind(
    "lstm",
    "One layer of long short-term memory, whose last state is classified.",
    "Hochreiter and Schmidhuber 1997",
    "lstm",
    ("sequences", "texts"),
    check,
    shapes,
    layers,
    renamed,
    record_shape,
    resolve,
    tables,
    no_tanh="the gates of lstm are bounded as they are",
)
GRU = replace(
    LSTM,
    name="gru",
    help="One layer of gated recurrent units, whose last state is classified.",
    source="Cho et al. 2014",
    metavar="gru",
    no_tanh="the gates of gru are bounded as they are",
)
