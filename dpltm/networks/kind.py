"""What is known of a kind of networks: how its names are read, its layers, and what its inputs are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import nn

MAX_WIDTH = 100_000
"""Largest width or input size accepted; a guard against typing errors and hostile files."""

MAX_LAYER_WIDTH = 4096
"""The same where a layer's memory grows with the square of it, or with images and tables."""

TANH = "-tanh"
"""Behind the name of a kind: tanh in place of ReLU."""

Inputs = Literal["vectors", "images", "sequences", "texts", "ratings"]
"""What a record is: numbers of any count, an image, a sequence of vectors, words of one table, a user and an item."""

_TABLES: dict[Inputs, int] = {"vectors": 0, "images": 0, "sequences": 0, "texts": 1, "ratings": 2}
"""How many tables the values of such records are positions in."""


@dataclass(frozen=True)
class LayerSpec:
    """One layer of a network, before it is made.

    Attributes:
        name: of the layer, which its parameters' names start with.
        module: name of a class of ``dpltm.networks.layers`` or ``torch.nn``; or whatever makes a module.
        arguments: what it is made with.
        options: the same by name.
    """

    name: str
    module: str | Callable[..., nn.Module]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


def layer(name: str, module: str | Callable[..., nn.Module], *arguments: Any, **options: Any) -> LayerSpec:
    """``layer("fc1", "Linear", 784, 10)``."""
    return LayerSpec(name, module, arguments, options)


def flat(text: str, features: int) -> tuple[int, ...]:
    """``record_shape`` of networks that take records as vectors."""
    del text
    return (features,)


def no_tables(text: str) -> tuple[int, ...]:
    """``tables`` of networks whose inputs are quantities."""
    del text
    return ()


def as_given(text: str, shape: tuple[int, ...], tables: tuple[int, ...]) -> str:
    """``resolve`` of networks whose names leave nothing to the data.

    Args:
        text: name of the network.
        shape: of one record as it was stored.
        tables: sizes of the tables that its values are positions in; none where they are quantities.
    """
    del shape, tables
    return text


@dataclass(frozen=True)
class NetworkKind:
    """A kind of networks that can be chosen by name; everything behind the first colon of a network's name is its own.

    Attributes:
        name: such as ``mlp``.
        help: one sentence.
        source: the paper.
        metavar: how help shows its names; empty where another kind's does.
        inputs: what records may be. A network of vectors takes several of them in a row, ``(..., features)``, as well.
        check: of the name and the features; raises InputError for sizes that are none.
        shapes: of the name, features and classes: name and shape of every parameter, in order.
        layers: of the same: the layers, in order.
        renamed: of the name and shapes: the name of the network of the same layers with these parameters.
        record_shape: of the name and the features: shape of one record as it was stored.
        resolve: of the name, the shape of a record and its tables: the name with all that it leaves to the data, which
            stands right behind the first colon.
        tables: of the name: sizes of the tables that inputs are positions in; none where they are quantities.
        usage: how an error shows its names, if not by ``name``.
        no_tanh: why ``-tanh`` cannot stand behind its name; None if it can.
        user_parameters: names of the parameters that have a row for each user.
    """

    name: str
    help: str
    source: str
    metavar: str
    inputs: tuple[Inputs, ...]
    check: Callable[[str, int], None]
    shapes: Callable[[str, int, int], dict[str, tuple[int, ...]]]
    layers: Callable[[str, int, int], tuple[LayerSpec, ...]]
    renamed: Callable[[str, Mapping[str, tuple[int, ...]]], str]
    record_shape: Callable[[str, int], tuple[int, ...]] = flat
    resolve: Callable[[str, tuple[int, ...], tuple[int, ...]], str] = as_given
    tables: Callable[[str], tuple[int, ...]] = no_tables
    usage: str = ""
    no_tanh: str | None = None
    user_parameters: tuple[str, ...] = ()

    @property
    def table_counts(self) -> frozenset[int]:
        """How many tables inputs may be positions in."""
        return frozenset(_TABLES[inputs] for inputs in self.inputs)
