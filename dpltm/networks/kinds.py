"""Networks by name: of vectors, of images, of texts, of ratings, and of sequences. Records come flattened.

``mlp:300,100`` is Linear layers with ReLU between them. ``mlp:project64,300,100`` has a Linear layer ``project`` of 64
outputs in front, with no activation behind it: what is behind does not depend on the width of the records, and moves to
other ones with a new layer in front (DPLTM, section 4.5).

``cnn`` is the MNIST network of DP papers (Bu, Dong, Long, Su 2020, after the TensorFlow Privacy tutorial): 16 filters of
8 x 8 with stride 2, 32 of 4 x 4 with stride 2, each with ReLU and a 2 x 2 maximum of stride 1, then 32 units: 26,010
parameters on images of 28 x 28, channels last as stored. ``cnn:28x28x1:7,20,15`` has 7 filters, 20 filters and 15 units,
as compaction leaves it.

``latent`` is that of LATENT (Arachchige et al. 2019), after keras's examples and without dropout. For grey images:
filters of 3 x 3, 32 and then 64, each layer with ReLU, a 2 x 2 maximum, 128 units. For several channels: twice two layers
of filters of 3 x 3, 32 and 32, then 64 and 64, the first of each two padded, each two followed by a 2 x 2 maximum, then
512 units. Three widths make the first, five the second.

``embed`` is the network for film reviews of Bu, Dong, Long, Su (2020): a table of 10,000 words with vectors of 16
numbers, their mean over all positions, then 16 units with ReLU. ``embed:10000:32,16`` has vectors of 32 numbers and 16
units, ``embed:10000:32`` no units in between. The vector of padding stays zero; in the paper it is trained as one more
word, which ``embed-pad`` does: most of a record's gradient, and of the norm that clipping leaves, then goes to padding.

``ncf`` is their network for MovieLens (after He et al. 2017): vectors of 5 numbers for user and item, multiplied number
by number, vectors of 10 numbers for both beside them, and one linear layer to five classes, the stars.
``ncf:6040x3952:8,16`` has vectors of 8 and of 16 numbers. A record holds the positions of its user and its item; several
in a row, as a user gives them, go through one by one.

``lstm``, ``gru`` and ``rnn`` are one recurrent layer, whose last state goes into a linear classifier. ``lstm:128x9``
takes 128 steps of 9 values, ``lstm:128x9:64`` with 64 units in place of 32; images go row by row. ``lstm:10000`` looks
words up in a table with vectors of 16 numbers, ``lstm:10000:32,64`` of 32, with 64 units.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from dpltm.errors import InputError
from dpltm.networks.kind import (
    MAX_LAYERS,
    MAX_WIDTH,
    PROJECTION,
    LayerSpec,
    NetworkKind,
    NetworkName,
    layer,
    stack,
)
from dpltm.registry import Registry


def _hidden(count: int) -> tuple[str, ...]:
    return tuple(f"fc{number}" for number in range(1, count + 1))


def _mlp(name: NetworkName, features: int, classes: int) -> tuple[LayerSpec, ...]:
    front = (PROJECTION,) if name.projected else ()
    names = (*front, *_hidden(len(name.widths) + 1 - len(front)))
    return stack((features, *name.widths, classes), names)


MLP = NetworkKind(
    "mlp",
    "Fully connected layers with ReLU between them.",
    "as in the lottery-ticket experiments of Frankle and Carbin 2019",
    "mlp[-tanh]:W,W,...",
    ("vectors",),
    _mlp,
    {f"[{PROJECTION}OUTPUTS,]WIDTH,WIDTH,...": "300,100"},
    counts=range(MAX_LAYERS + 1),
    max_width=MAX_WIDTH,
    usage="mlp:WIDTH,WIDTH,... (such as mlp:300,100), mlp-tanh:...",
)


def _check_side(name: NetworkName, least: int) -> None:
    if min(name.sizes[:2]) < least:
        raise InputError(f"`model`: {name}: images must be at least {least} x {least}")


def _cnn(name: NetworkName, features: int, classes: int) -> tuple[LayerSpec, ...]:
    del features
    (height, width, channels), (first, second, units) = name.sizes, name.widths
    _check_side(name, 14)

    def left(side: int) -> int:
        return ((side - 2) // 2 - 4) // 2

    return (
        layer("image", "Images", height, width, channels),
        layer("conv1", "Conv2d", channels, first, 8, stride=2, padding=3),
        layer("relu1", "ReLU"),
        layer("pool1", "MaxPool2d", 2, stride=1),
        layer("conv2", "Conv2d", first, second, 4, stride=2),
        layer("relu2", "ReLU"),
        layer("pool2", "MaxPool2d", 2, stride=1),
        layer("flat", "Flatten"),
        layer("fc1", "Linear", second * left(height) * left(width), units),
        layer("relu3", "ReLU"),
        layer("fc2", "Linear", units, classes),
    )


CNN = NetworkKind(
    "cnn",
    "Two convolutions and two linear layers, as for MNIST in DP papers.",
    "Bu, Dong, Long, Su 2020, after the TensorFlow Privacy tutorial",
    "cnn[-tanh]",
    ("images",),
    _cnn,
    {"HEIGHTxWIDTHxCHANNELS[:FILTERS,FILTERS,UNITS]": "28x28x1:16,32,32"},
    usual=lambda _: (16, 32, 32),
    max_size=9_999,
)

GREY, COLOUR = (32, 64, 128), (32, 32, 64, 64, 512)
"""Filters of each convolution of ``latent`` and units behind them, where the name does not say."""


def _latent(name: NetworkName, features: int, classes: int) -> tuple[LayerSpec, ...]:
    del features
    (height, width, channels), (*filters, units) = name.sizes, name.widths
    blocks = len(filters) // 2
    _check_side(name, 6 if blocks == 1 else 10)

    def left(side: int) -> int:
        return (side - 4) // 2 if blocks == 1 else ((side - 2) // 2 - 2) // 2

    layers = [layer("image", "Images", height, width, channels)]
    for number, (before, after) in enumerate(zip((channels, *filters), filters, strict=False), start=1):
        padding = number % 2 if blocks == 2 else 0
        layers.append(layer(f"conv{number}", "Conv2d", before, after, 3, padding=padding))
        layers.append(layer(f"relu{number}", "ReLU"))
        if number % 2 == 0:
            layers.append(layer(f"pool{number // 2}", "MaxPool2d", 2, stride=2))
    return (
        *layers,
        layer("flat", "Flatten"),
        layer("fc1", "Linear", filters[-1] * left(height) * left(width), units),
        layer(f"relu{len(filters) + 1}", "ReLU"),
        layer("fc2", "Linear", units, classes),
    )


LATENT = NetworkKind(
    "latent",
    "The convolutional networks of LATENT, for grey images and for those of several channels.",
    "Arachchige et al. 2019",
    "latent[-tanh]",
    ("images",),
    _latent,
    {"HEIGHTxWIDTHxCHANNELS[:FILTERS,...,UNITS], three widths or five": "28x28x1:32,64,128"},
    usual=lambda sizes: GREY if sizes[2] == 1 else COLOUR,
    counts=(len(GREY), len(COLOUR)),
    max_size=9_999,
)


def _embed(
    table: Literal["Vectors", "Embedding"], name: NetworkName, features: int, classes: int
) -> tuple[LayerSpec, ...]:
    del features
    (words,), widths = name.sizes, name.widths
    return (
        layer("words", "Positions", words),
        layer("table", table, words, widths[0]),
        layer("mean", "Mean"),
        *stack((*widths, classes), _hidden(len(widths))),
    )


EMBED = NetworkKind(
    "embed",
    "Words looked up in a table, their vectors averaged, two layers.",
    "Bu, Dong, Long, Su 2020",
    "embed[-pad][-tanh]",
    ("texts",),
    partial(_embed, "Vectors"),
    {"WORDS[:VECTOR,UNITS,...]": "10000:16,16"},
    usual=lambda _: (16, 16),
    counts=range(1, MAX_LAYERS + 1),
)
EMBED_PAD = replace(
    EMBED,
    name="embed-pad",
    help="The same with a vector of padding that is trained.",
    metavar="",
    layers=partial(_embed, "Embedding"),
)


def _ncf(name: NetworkName, features: int, classes: int) -> tuple[LayerSpec, ...]:
    del features
    product, beside = name.widths
    return (
        layer("factors", "Factors", *name.sizes, product, beside),
        layer("fc1", "Linear", product + 2 * beside, classes),
    )


NCF = NetworkKind(
    "ncf",
    "Neural collaborative filtering: vectors of user and item, multiplied and beside each other, one layer.",
    "Bu, Dong, Long, Su 2020, after He et al. 2017",
    "ncf",
    ("ratings",),
    _ncf,
    {"USERSxITEMS[:MULTIPLIED,BESIDE]": "6040x3952:5,10"},
    usual=lambda _: (5, 10),
    max_size=1_000_000,  # networks named in files are built before weights are seen: for memory
    no_tanh="ncf has no ReLU to stand in for",
    user_parameters=("factors.user_product.weight", "factors.user_beside.weight"),
)


def _recurrent(name: NetworkName, features: int, classes: int) -> tuple[LayerSpec, ...]:
    del features
    units = name.widths[-1]
    front: tuple[LayerSpec, ...]
    if name.inputs == "sequences":
        inputs = name.sizes[1]
        front = (layer("steps", "Unflatten", 1, name.sizes),)
    else:
        (words,), inputs = name.sizes, name.widths[0]
        front = (layer("words", "Positions", words), layer("table", "Embedding", words, inputs))
    return (
        *front,
        layer("recurrent", name.kind.name.upper(), inputs, units, batch_first=True),
        layer("last", "Last"),
        layer("fc1", "Linear", units, classes),
    )


LSTM = NetworkKind(
    "lstm",
    "One layer of long short-term memory, whose last state is classified.",
    "Hochreiter and Schmidhuber 1997",
    "lstm",
    ("sequences", "texts"),
    _recurrent,
    {"STEPSxVALUES[:UNITS]": "128x9:32", "WORDS[:VECTOR,UNITS]": "10000:16,32"},
    usual=lambda sizes: (32,) if len(sizes) == 2 else (16, 32),
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
RNN = replace(
    LSTM,
    name="rnn",
    help="One layer of plain recurrent units, with tanh, whose last state is classified.",
    source="Elman 1990",
    metavar="rnn",
    no_tanh="rnn has tanh as it is",
)

KINDS = Registry[NetworkKind]("model", (MLP, CNN, LATENT, EMBED, EMBED_PAD, LSTM, GRU, RNN, NCF))
