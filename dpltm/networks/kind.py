"""Kinds of networks: how their names are read, and which records they take; ``dpltm.networks.layers`` has their layers.

A name is ``KIND[-tanh][:SIZES][:WIDTHS]``. Sizes, joined by ``x``, are what the data decide; widths are those of layers, the
usual ones where a name leaves them out: ``cnn`` on images of 28 x 28 is ``cnn:28x28x1``, in full ``cnn:28x28x1:16,32,32``.
With ``-tanh`` tanh stands in place of ReLU: bounded activations bound gradients as well (Papernot et al. 2021).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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

Shapes = Mapping[str, tuple[int, ...]]
"""Name and shape of every parameter, in order."""

Layers = list[tuple[str, "nn.Module"]]
"""Modules by name, in order, each applied to what the one before it gives."""


@dataclass(frozen=True)
class NetworkKind:
    """A kind of networks that can be chosen by name.

    Attributes:
        metavar: how help shows its names; empty where another kind's does.
        inputs: what records may be. A network of vectors takes several of them in a row, ``(..., features)``, as well.
        layers: makes them of a name that was read, the features of one flattened record and the number of classes:
            ``(batch, features)`` to ``(batch, classes)``, with ReLU between them. InputError for sizes that are too small.
        forms: what stands behind the name's first colon, each with an example.
        usual: widths that a name leaves out, for its sizes.
        counts: numbers of widths that a name may have beside that of the usual ones.
        max_size, max_width: the largest of both.
        bounded: its activations are bounded as they are, so that ``-tanh`` cannot stand behind its name.
    """

    name: str
    help: str
    source: str
    metavar: str
    inputs: tuple[Inputs, ...]
    layers: Callable[[NetworkName, int, int], Layers]
    forms: Mapping[str, str]
    usual: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda _: ()
    counts: Collection[int] = ()
    max_size: int = 99_999_999
    max_width: int = MAX_LAYER_WIDTH
    bounded: bool = False

    def read(self, text: str) -> NetworkName:
        """Return what a name of this kind says; InputError for one that is none."""
        head, *parts = text.split(":")
        sized = self.inputs != ("vectors",)
        sizes = _numbers(parts.pop(0), "x") if sized and parts else ()
        projected = not sized and bool(parts) and parts[0].startswith(PROJECTION)
        explicit = _numbers(parts.pop(0).removeprefix(PROJECTION if projected else ""), ",") if parts else None
        name = NetworkName(self, head != self.name, sizes, explicit, projected)
        if self.bounded and name.tanh:
            raise InputError(
                f"`model`: {text!r:.80}: activations of {self.name} are bounded as they are; leave {TANH} out"
            )
        if (
            parts
            or len(sizes) not in [SIZES[inputs] for inputs in self.inputs]
            or len(name.widths) - projected not in (*self.counts, len(self.usual(sizes)))
            or not all(1 <= size <= self.max_size for size in sizes)
            or not all(1 <= width <= self.max_width for width in name.widths)
        ):
            forms = " or ".join(
                f"{self.name}:{form}, as in {self.name}:{example}," for form, example in self.forms.items()
            )
            limits = f"widths up to {self.max_width:,}" + (f" and sizes up to {self.max_size:,}" if sized else "")
            raise InputError(f"`model`: {text!r:.80}: write {forms} with {limits}")
        return name

    def sizes_of(self, text: str, shape: tuple[int, ...], tables: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sizes that data decide; InputError for records that the network does not take.

        Args:
            text: what the user calls the network.
            shape: of one record as it was stored.
            tables: sizes of the tables that its values are positions in; none where they are quantities.
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
        ways = [] if self.inputs == ("texts",) else [f"flattened, say the size: {example}"]
        ways += ["words in one table, give their number (`words`)"] if "texts" in self.inputs else []
        raise InputError(
            f"`model` {text}: records {records} are no {self.inputs[0]}; if they are {', or '.join(ways)}"
        )


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


def _numbers(text: str, separator: str) -> tuple[int, ...]:
    """Numbers of a name; 0 for what is none."""
    return tuple(int(part) if re.fullmatch("[1-9][0-9]{0,7}", part) else 0 for part in text.split(separator))


_MLP = Deferred("dpltm.networks.layers:mlp")
_CNN = Deferred("dpltm.networks.layers:cnn")
_LATENT = Deferred("dpltm.networks.layers:latent")
_EMBED = Deferred("dpltm.networks.layers:embed")
_RECURRENT = Deferred("dpltm.networks.layers:recurrent")
_OF_SEQUENCES = {"STEPSxVALUES[:UNITS]": "128x9:32", "WORDS[:VECTOR,UNITS]": "10000:16,32"}


def _units(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return (32,) if len(sizes) == 2 else (16, 32)


KINDS = Registry[NetworkKind]("model", (
    NetworkKind("mlp", "Fully connected layers with ReLU between them.", "Frankle and Carbin 2019",
        "mlp[-tanh]:W,W,...", ("vectors",), _MLP, {f"[{PROJECTION}OUTPUTS,]WIDTH,WIDTH,...": "300,100"},
        counts=range(MAX_LAYERS + 1), max_width=MAX_WIDTH),
    NetworkKind("cnn", "Two convolutions and two linear layers, as for MNIST in DP papers.", "Bu et al. 2020",
        "cnn[-tanh]", ("images",), _CNN, {"HEIGHTxWIDTHxCHANNELS[:FILTERS,FILTERS,UNITS]": "28x28x1:16,32,32"},
        usual=lambda _: (16, 32, 32), max_size=9_999),
    NetworkKind("latent", "The convolutional networks of LATENT, for grey images and for those of several channels.",
        "Arachchige et al. 2019", "latent[-tanh]", ("images",), _LATENT,
        {"HEIGHTxWIDTHxCHANNELS[:FILTERS,...,UNITS], three widths or five": "28x28x1:32,64,128"},
        usual=lambda sizes: (32, 64, 128) if sizes[2] == 1 else (32, 32, 64, 64, 512), counts=(3, 5), max_size=9_999),
    NetworkKind("embed", "A table of word vectors, their average, and two layers.", "Bu et al. 2020",
        "embed[-pad][-tanh]", ("texts",), _EMBED, {"WORDS[:VECTOR,UNITS,...]": "10000:16,16"},
        usual=lambda _: (16, 16), counts=range(1, MAX_LAYERS + 1)),
    NetworkKind("embed-pad", "The same, with a trained vector for padding.", "Bu et al. 2020",
        "", ("texts",), _EMBED, {"WORDS[:VECTOR,UNITS,...]": "10000:16,16"},
        usual=lambda _: (16, 16), counts=range(1, MAX_LAYERS + 1)),
    NetworkKind("lstm", "One layer of long short-term memory, whose last state is classified.",
        "Hochreiter and Schmidhuber 1997",
        "lstm", ("sequences", "texts"), _RECURRENT, _OF_SEQUENCES, usual=_units, bounded=True),
    NetworkKind("gru", "One layer of gated recurrent units, whose last state is classified.", "Cho et al. 2014",
        "gru", ("sequences", "texts"), _RECURRENT, _OF_SEQUENCES, usual=_units, bounded=True),
    NetworkKind("rnn", "One layer of plain recurrent units, with tanh, whose last state is classified.", "Elman 1990",
        "rnn", ("sequences", "texts"), _RECURRENT, _OF_SEQUENCES, usual=_units, bounded=True),
))  # fmt: skip
