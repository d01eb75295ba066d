"""``embed``: the network for film reviews of Bu, Dong, Long, Su (2020): words looked up, their vectors averaged, two layers.

A table of 10,000 words with vectors of 16 numbers, the mean of these over all positions of a record, then 16 units with
ReLU. ``embed:10000:32,16`` has vectors of 32 numbers and 16 units, ``embed:10000:32`` no units in between. Padding counts
as a position whose vector is zero, for good: in the paper it is one more word that is trained, and ``embed-pad`` has it so,
with 160,306 parameters. Most reviews are padded, so that row is where most of a record's gradient goes, and of the norm
that clipping leaves, little is for the words. The paper's code, as published, is spared that: TensorFlow clips by the norm
of the gradients of all positions, and adds those of one word up later. What it adds can be 16 times as long, the root of 256
positions, as the bound that its noise is for; padding alone makes it several times as long.

The table starts with Glorot normal values as the other layers do: of deviation 0.014, where keras, which the paper used, has
uniform ones up to 0.05. Adam's first step is as long as either.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace

from dpltm.errors import InputError
from dpltm.networks.kind import MAX_LAYER_WIDTH, LayerSpec, NetworkKind, layer

WIDTHS = (16, 16)
"""Numbers in the vector of a word, and units behind their mean, where the name does not say."""

MAX_LAYERS = 100

PADDED = "embed-pad:"
"""How names begin of networks with a vector of padding that is trained."""


def resolve(text: str, shape: tuple[int, ...], tables: tuple[int, ...]) -> str:
    """``embed`` with the size of the table: ``embed:WORDS``. Arguments as :func:`as_given`.

    Raises:
        InputError: records that are no texts.
    """
    del shape
    if len(tables) != 1:
        raise InputError(
            f"`model` {text}: takes texts, whose words are positions in one table; if these are such, say their number by"
            " `words`"
        )
    return f"{text}:{tables[0]}"


def tables(text: str) -> tuple[int, ...]:
    """The size of the table."""
    return (_parts(text)[0],)


def widths(text: str) -> tuple[int, ...]:
    """Numbers in the vector of a word, and units of the layers behind their mean."""
    return _parts(text)[1]


def _parts(text: str) -> tuple[int, tuple[int, ...]]:
    parts = re.fullmatch("embed(?:-pad)?:([1-9][0-9]{0,7})(?::([1-9][0-9]{0,3}(?:,[1-9][0-9]{0,3})*))?", text)
    layer_widths = WIDTHS if parts is None or parts.group(2) is None else tuple(map(int, parts.group(2).split(",")))
    if parts is None or max(layer_widths) > MAX_LAYER_WIDTH or len(layer_widths) > MAX_LAYERS:
        raise InputError(
            f"`model`: {text!r:.80}: say the size of the table, and the widths if they are others than the usual ones, whole"
            f" numbers from 1 to {MAX_LAYER_WIDTH}, as in embed:10000:16,16"
        )
    return int(parts.group(1)), layer_widths


def check(text: str, features: int) -> None:
    """Raises InputError for sizes that are none."""
    del features
    _parts(text)


def renamed(text: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The name of the network of the same layers with these parameters."""
    words, before = _parts(text)
    kind, (table, _) = text.partition(":")[0], _table(text)
    new_widths = (shapes[table][1], *(shapes[f"fc{number}.weight"][0] for number in range(1, len(before))))
    return f"{kind}:{words}" if new_widths == WIDTHS else f"{kind}:{words}:{','.join(map(str, new_widths))}"


def _table(text: str) -> tuple[str, tuple[int, int]]:
    """Name and shape of the table's parameter; padding has no row unless the name says so."""
    words, (first, *_) = _parts(text)
    return ("table.weight", (words, first)) if text.startswith(PADDED) else ("table.rows.weight", (words - 1, first))


def shapes(text: str, features: int, classes: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, in order. Arguments as :func:`dpltm.networks.mlp.shapes`."""
    del features
    by_name: dict[str, tuple[int, ...]] = dict([_table(text)])
    for name, fan_in, fan_out in _layers(text, classes):
        by_name |= {f"{name}.weight": (fan_out, fan_in), f"{name}.bias": (fan_out,)}
    return by_name


def layers(text: str, features: int, classes: int) -> tuple[LayerSpec, ...]:
    """The layers, in order: ``(batch, features)`` positions to ``(batch, classes)``.

    Arguments as :func:`dpltm.networks.mlp.shapes`.
    """
    del features
    words, (first, *_) = _parts(text)
    table = "Embedding" if text.startswith(PADDED) else "Vectors"
    result = [layer("words", "Positions", words), layer("table", table, words, first), layer("mean", "Mean")]
    linear = _layers(text, classes)
    for number, (name, fan_in, fan_out) in enumerate(linear, start=1):
        result.append(layer(name, "Linear", fan_in, fan_out))
        if number < len(linear):
            result.append(layer(f"relu{number}", "ReLU"))
    return tuple(result)


def _layers(text: str, classes: int) -> list[tuple[str, int, int]]:
    """Name, inputs and outputs of every layer behind the mean."""
    sizes = (*widths(text), classes)
    return [(f"fc{number}", *sides) for number, sides in enumerate(itertools.pairwise(sizes), start=1)]


EMBED = NetworkKind(
    "embed",
    "Words looked up in a table, their vectors averaged, two layers.",
    "Bu, Dong, Long, Su 2020",
    "embed[-pad][-tanh]",
    ("texts",),
    check,
    shapes,
    layers,
    renamed,
    resolve=resolve,
    tables=tables,
)
EMBED_PAD = replace(EMBED, name="embed-pad", help="The same with a vector of padding that is trained.", metavar="")
