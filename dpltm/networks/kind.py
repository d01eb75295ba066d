"""Kinds of networks: how their names are read, which records they take, and their layers.

A name is ``KIND[-tanh][:SIZES][:WIDTHS]``. Sizes, joined by ``x``, are what the data decide; widths are those of layers, the
usual ones where a name leaves them out: ``cnn`` on images of 28 x 28 is ``cnn:28x28x1``, in full ``cnn:28x28x1:16,32,32``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dpltm.errors import InputError

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

Inputs = Literal["vectors", "images", "sequences", "texts", "ratings"]
"""Kinds of records: numbers of any count, an image, a sequence of vectors, words of one table, a user and an item."""

SIZES: Mapping[Inputs, int] = {"vectors": 0, "images": 3, "sequences": 2, "texts": 1, "ratings": 2}
"""Number of sizes in a name for such records: of texts and ratings those of the tables that values are positions in, of
images and sequences those of a record."""

_NO_SUCH: Mapping[Inputs, str] = {
    "images": "images; if they are flattened ones, say their size, as in {}",
    "sequences": "sequences of vectors; if they are flattened ones, say their size, as in {}",
    "texts": "texts, whose words are positions in one table; if they are such, say the number of words by `words`",
    "ratings": "ratings, positions of users and items in two tables; take such as those of movielens",
}

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Number of products of a unit's inputs, and of its last state, in a step of a recurrent layer."""

Shapes = Mapping[str, tuple[int, ...]]
"""Name and shape of every parameter, in order."""


@dataclass(frozen=True)
class LayerSpec:
    """One layer, before it is made: ``module`` names a class of ``dpltm.networks.layers`` or ``torch.nn``, or makes
    one."""

    name: str
    module: str | Callable[..., nn.Module]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    @property
    def parameters(self) -> Shapes:
        match self.module, self.arguments:
            case "Linear", (inputs, outputs):
                return {"weight": (outputs, inputs), "bias": (outputs,)}
            case "Conv2d", (inputs, outputs, side):
                return {"weight": (outputs, inputs, side, side), "bias": (outputs,)}
            case "Embedding", (size, dimension):
                return {"weight": (size, dimension)}
            case "Vectors", (size, dimension):  # position 0 has no row
                return {"rows.weight": (size - 1, dimension)}
            case ("LSTM" | "GRU" | "RNN") as cell, (inputs, units):
                gates = GATES[cell] * units
                weights = {"weight_ih_l0": (gates, inputs), "weight_hh_l0": (gates, units)}
                return {**weights, "bias_ih_l0": (gates,), "bias_hh_l0": (gates,)}
            case "Factors", (users, items, product, beside):
                products = {"user_product.weight": (users, product), "item_product.weight": (items, product)}
                return {**products, "user_beside.weight": (users, beside), "item_beside.weight": (items, beside)}
        if isinstance(self.module, str):
            return {}
        import torch

        with torch.device("meta"):
            module = self.module(*self.arguments, **self.options)
        return {name: tuple(value.shape) for name, value in module.named_parameters()}


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
        user_parameters: names of the parameters that have a row for each user.
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
    user_parameters: tuple[str, ...] = ()

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
            raise InputError(
                f"`model`: {text!r:.80}: write {forms}, as in {examples}, with {size_limit}widths from 1 to"
                f" {self.max_width:,}"
            )
        return name

    def _takes_sizes(self, sizes: tuple[int, ...]) -> bool:
        counts = [SIZES[inputs] for inputs in self.inputs]
        return len(sizes) in counts and all(1 <= size <= self.max_size for size in sizes)

    def _takes_widths(self, name: NetworkName) -> bool:
        count = len(name.widths) - name.projected
        known = count in self.counts or count == len(self.usual(name.sizes))
        return known and all(1 <= width <= self.max_width for width in name.widths)

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
                case "texts" | "ratings" if len(tables) == SIZES[inputs]:
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
        return self.sizes if self.inputs in ("texts", "ratings") else ()

    def record_shape(self, features: int) -> tuple[int, ...]:
        """Return the shape of one record of so many values; it has other numbers of them where these are too many."""
        if self.inputs in ("images", "sequences"):
            return self.sizes
        return (2,) if self.inputs == "ratings" else (features,)

    def layers(self, features: int, classes: int) -> tuple[LayerSpec, ...]:
        return self.kind.layers(self, features, classes)

    def shapes(self, features: int, classes: int) -> dict[str, tuple[int, ...]]:
        """Return name and shape of every parameter, in order."""
        layers = self.layers(features, classes)
        return {f"{layer.name}.{name}": shape for layer in layers for name, shape in layer.parameters.items()}


def _numbers(text: str, separator: str) -> tuple[int, ...]:
    """Numbers of a name; 0 for what is none."""
    return tuple(int(part) if re.fullmatch("[1-9][0-9]{0,7}", part) else 0 for part in text.split(separator))


def stack(widths: tuple[int, ...], names: tuple[str, ...]) -> tuple[LayerSpec, ...]:
    """Linear layers of these names, with ReLU behind each ``fcN`` but the last: ``widths`` are theirs, inputs first."""
    layers: list[LayerSpec] = []
    for name, inputs, outputs in zip(names, widths[:-1], widths[1:], strict=True):
        layers.append(layer(name, "Linear", inputs, outputs))
        if name.startswith("fc") and name != names[-1]:
            layers.append(layer(name.replace("fc", "relu"), "ReLU"))
    return tuple(layers)
