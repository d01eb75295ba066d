"""Kinds of networks: how their names are read, which records they take, and their layers.

A name is ``KIND[-tanh][:SIZES][:WIDTHS]``. Sizes, joined by ``x``, are what the data decide; widths are those of layers, the
usual ones where a name leaves them out: ``cnn`` on images of 28 x 28 is ``cnn:28x28x1``, in full ``cnn:28x28x1:16,32,32``.
With ``-tanh`` tanh stands in place of ReLU: bounded activations bound gradients as well (Papernot et al. 2021).

``mlp:300,100`` is Linear layers with ReLU between them. ``mlp:project64,300,100`` has a Linear layer ``project`` of 64
outputs in front, with no activation behind it: what is behind does not depend on the width of the records, and moves to
other ones with a new layer in front (DPLTM, section 4.5).

``cnn`` is the MNIST network of DP papers (Bu, Dong, Long, Su 2020, after the TensorFlow Privacy tutorial): 16 filters of
8 x 8 with stride 2, 32 of 4 x 4 with stride 2, each with ReLU and a 2 x 2 maximum of stride 1, then 32 units: 26,010
parameters on images of 28 x 28, channels last as stored. ``cnn:28x28x1:7,20,15`` has 7 filters, 20 filters and 15 units,
as compaction leaves it.

``latent`` is that of LATENT (Arachchige et al. 2019), after keras's examples and without dropout. For grey images, or three
widths: filters of 3 x 3, 32 and then 64, a 2 x 2 maximum, 128 units. For several channels, or five widths: twice two layers
of filters of 3 x 3, the first of each two padded, and a 2 x 2 maximum, then 512 units.

``embed`` is the network for film reviews of Bu, Dong, Long, Su (2020): a table of 10,000 words with vectors of 16
numbers, their mean over all positions, then 16 units with ReLU. ``embed:10000:32,16`` has vectors of 32 numbers and 16
units, ``embed:10000:32`` no units in between. The vector of padding stays zero; in the paper it is trained as one more
word, which ``embed-pad`` does: most of a record's gradient, and of the norm that clipping leaves, then goes to padding.

``lstm``, ``gru`` and ``rnn`` are one recurrent layer, whose last state goes into a linear classifier. ``lstm:128x9``
takes 128 steps of 9 values, ``lstm:128x9:64`` with 64 units in place of 32; images go row by row. ``lstm:10000`` looks
words up in a table with vectors of 16 numbers, ``lstm:10000:32,64`` of 32, with 64 units.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from dpltm.errors import InputError
from dpltm.registry import Deferred, Registry

if TYPE_CHECKING:
    from torch import nn

MAX_WIDTH = 100_000
"""Largest width accepted; a guard against typing errors and hostile files."""

MAX_FEATURES = 1_000_000
"""The same for the input size: LATENT's network for CIFAR-10 takes hundreds of thousands of bits."""

MAX_LAYER_WIDTH = 4096
"""The same where a layer's memory grows with the square of it, or with images and tables."""

MAX_LAYERS = 100

TANH = "-tanh"
"""Suffix of a kind: tanh in place of ReLU."""

PROJECTION = "project"
"""Name of a layer in front whose weights belong to the records' width, and to no ticket; before its width in a name."""

Inputs = Literal["vectors", "images", "sequences", "texts"]
"""Kinds of records: numbers of any count, an image, a sequence of vectors, words of one table."""

SIZES: Mapping[Inputs, int] = {"vectors": 0, "images": 3, "sequences": 2, "texts": 1}
"""Number of sizes in a name for such records: of texts that of the table that values are positions in, of images and
sequences those of a record."""

_NO_SUCH: Mapping[Inputs, str] = {
    "images": "images; if they are flattened ones, say their size, as in {}",
    "sequences": "sequences of vectors; if they are flattened ones, say their size, as in {}",
    "texts": "texts, whose words are positions in one table; if they are such, say the number of words by `words`",
}

Shapes = Mapping[str, tuple[int, ...]]
"""Name and shape of every parameter, in order."""


_shapes_of = Deferred("dpltm.networks.layers:shapes_of")


@dataclass(frozen=True)
class LayerSpec:
    """One layer, before it is made: ``module`` names a class of ``dpltm.networks.layers`` or ``torch.nn``, or makes
    one."""

    name: str
    module: str | Callable[..., nn.Module]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


def layer(name: str, module: str | Callable[..., nn.Module], *arguments: Any, **options: Any) -> LayerSpec:
    """``layer("fc1", "Linear", 784, 10)``."""
    return LayerSpec(name, module, arguments, options)


@dataclass(frozen=True)
class NetworkKind:
    """A kind of networks that can be chosen by name.

    Attributes:
        name: such as ``mlp``.
        metavar: how help shows its names; empty where another kind's does.
        inputs: what records may be. A network of vectors takes several of them in a row, ``(..., features)``, as well.
        layers: from a name that was read, the features of one flattened record and the number of classes to the layers, in
            order: ``(batch, features)`` to ``(batch, classes)``. Raises InputError for sizes that are too small.
        forms: what stands behind the name's first colon, each with an example.
        usual: widths that a name leaves out, for its sizes.
        counts: numbers of widths that a name may have beside that of the usual ones.
        max_size, max_width: the largest of both.
        usage: how an error shows its names, if not by ``name``.
        no_tanh: why ``-tanh`` cannot stand behind its name; None if it can.
    """

    name: str
    help: str
    source: str
    metavar: str
    inputs: tuple[Inputs, ...]
    layers: Callable[[NetworkName, int, int], tuple[LayerSpec, ...]]
    forms: Mapping[str, str]
    usual: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda _: ()
    counts: Collection[int] = ()
    max_size: int = 99_999_999
    max_width: int = MAX_LAYER_WIDTH
    usage: str = ""
    no_tanh: str | None = None

    def read(self, text: str) -> NetworkName:
        """Return what a name of this kind says; InputError for one that is none."""
        head, *parts = text.split(":")
        sized = self.inputs != ("vectors",)
        sizes = _numbers(parts.pop(0), "x") if sized and parts else ()
        projected = not sized and bool(parts) and parts[0].startswith(PROJECTION)
        explicit = _numbers(parts.pop(0).removeprefix(PROJECTION if projected else ""), ",") if parts else None
        name = NetworkName(self, head != self.name, sizes, explicit, projected)
        if parts or not self._takes_sizes(sizes) or not self._takes_widths(name):
            forms, examples = (
                " or ".join(f"{self.name}:{form}" for form in forms) for forms in (self.forms, self.forms.values())
            )
            size_limit = f"sizes from 1 to {self.max_size:,} and " if sized else ""
            limits = f"{size_limit}widths from 1 to {self.max_width:,}"
            raise InputError(f"`model`: {text!r:.80}: write {forms}, as in {examples}, with {limits}")
        return name

    def _takes_sizes(self, sizes: tuple[int, ...]) -> bool:
        counts = [SIZES[inputs] for inputs in self.inputs]
        return len(sizes) in counts and all(1 <= size <= self.max_size for size in sizes)

    def _takes_widths(self, name: NetworkName) -> bool:
        count = len(name.widths) - name.projected
        counted = count in self.counts or count == len(self.usual(name.sizes))
        return counted and all(1 <= width <= self.max_width for width in name.widths)

    def sizes_of(self, text: str, shape: tuple[int, ...], tables: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sizes that data decide.

        Args:
            text: what the user calls the network.
            shape: of one record as it was stored.
            tables: sizes of the tables that its values are positions in; none where they are quantities.

        Raises:
            InputError: records of another kind.
        """
        for inputs in self.inputs:
            match inputs:
                case "vectors":
                    return ()
                case "images" if len(shape) in (2, 3) and not tables:
                    return (*shape, 1)[:3]
                case "sequences" if len(shape) >= 2 and not tables:
                    return (shape[0], math.prod(shape[1:]))
                case "texts" if len(tables) == 1:
                    return tables
        records = f"with tables of {' and '.join(map(str, tables))} positions" if tables else f"of shape {shape}"
        example = f"{text}:{next(iter(self.forms.values())).partition(':')[0]}"
        raise InputError(f"`model` {text}: records {records} are no {_NO_SUCH[self.inputs[0]].format(example)}")


@dataclass(frozen=True)
class NetworkName:
    """The name of a network, read.

    Attributes:
        tanh: whether tanh stands in the place of ReLU.
        sizes: what the data decide.
        explicit: widths of its layers; None for the usual ones.
        projected: whether the first width is that of a projection.
    """

    kind: NetworkKind
    tanh: bool
    sizes: tuple[int, ...]
    explicit: tuple[int, ...] | None
    projected: bool = False

    def __str__(self) -> str:
        parts = ["x".join(map(str, self.sizes))] if self.sizes else []
        if self.explicit:
            parts.append((PROJECTION if self.projected else "") + ",".join(map(str, self.explicit)))
        return ":".join((f"{self.kind.name}{TANH if self.tanh else ''}", *parts))

    @property
    def inputs(self) -> Inputs:
        return next(inputs for inputs in self.kind.inputs if SIZES[inputs] == len(self.sizes))

    @property
    def widths(self) -> tuple[int, ...]:
        return self.kind.usual(self.sizes) if self.explicit is None else self.explicit

    @property
    def tables(self) -> tuple[int, ...]:
        """Sizes of the tables that inputs are positions in; none where they are quantities."""
        return self.sizes if self.inputs == "texts" else ()

    def record_shape(self, features: int) -> tuple[int, ...]:
        """Return the shape of one record of so many values; it has other numbers of them where these are too many."""
        if self.inputs in ("images", "sequences"):
            return self.sizes
        return (features,)

    def layers(self, features: int, classes: int) -> tuple[LayerSpec, ...]:
        return self.kind.layers(self, features, classes)

    def shapes(self, features: int, classes: int) -> dict[str, tuple[int, ...]]:
        """Return name and shape of every parameter, in order."""
        return _shapes_of(self.layers(features, classes))


def _numbers(text: str, separator: str) -> tuple[int, ...]:
    """Numbers of a name; 0 for what is none."""
    return tuple(int(part) if re.fullmatch("[1-9][0-9]{0,7}", part) else 0 for part in text.split(separator))


def _linear(widths: tuple[int, ...]) -> list[LayerSpec]:
    """Linear layers ``fc1``, ``fc2``, ... with ReLU between them: ``widths`` are theirs, inputs first."""
    layers: list[LayerSpec] = []
    for number, (inputs, outputs) in enumerate(itertools.pairwise(widths), start=1):
        layers += [layer(f"fc{number}", "Linear", inputs, outputs), layer(f"relu{number}", "ReLU")]
    return layers[:-1]


def _mlp(name: NetworkName, features: int, classes: int) -> tuple[LayerSpec, ...]:
    if name.projected:
        return (layer(PROJECTION, "Linear", features, name.widths[0]), *_linear((*name.widths, classes)))
    return tuple(_linear((features, *name.widths, classes)))


MLP = NetworkKind(
    "mlp",
    "Fully connected layers with ReLU between them.",
    "Frankle and Carbin 2019",
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
    "Bu et al. 2020",
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
    table: Literal["Vectors", "table"], name: NetworkName, features: int, classes: int
) -> tuple[LayerSpec, ...]:
    del features
    (words,), widths = name.sizes, name.widths
    return (
        layer("words", "Positions", words),
        layer("table", table, words, widths[0]),
        layer("mean", "Mean"),
        *_linear((*widths, classes)),
    )


EMBED = NetworkKind(
    "embed",
    "A table of word vectors, their average, and two layers.",
    "Bu et al. 2020",
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
    help="The same, with a trained vector for padding.",
    metavar="",
    layers=partial(_embed, "table"),
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
        front = (layer("words", "Positions", words), layer("table", "table", words, inputs))
    return (
        *front,
        layer("recurrent", name.kind.name.upper(), inputs, units, batch_first=True),
        layer("last", "Last"),
        layer("fc1", "Linear", units, classes),
    )


LSTM, GRU, RNN = (
    NetworkKind(
        name,
        f"One layer of {units}, whose last state is classified.",
        source,
        name,
        ("sequences", "texts"),
        _recurrent,
        {"STEPSxVALUES[:UNITS]": "128x9:32", "WORDS[:VECTOR,UNITS]": "10000:16,32"},
        usual=lambda sizes: (32,) if len(sizes) == 2 else (16, 32),
        no_tanh=no_tanh,
    )
    for name, units, source, no_tanh in (
        (
            "lstm", "long short-term memory", "Hochreiter and Schmidhuber 1997", "the gates of lstm are bounded as they are"
        ),
        ("gru", "gated recurrent units", "Cho et al. 2014", "the gates of gru are bounded as they are"),
        ("rnn", "plain recurrent units, with tanh", "Elman 1990", "rnn has tanh as it is"),
    )
)  # fmt: skip

KINDS = Registry[NetworkKind]("model", (MLP, CNN, LATENT, EMBED, EMBED_PAD, LSTM, GRU, RNN))
