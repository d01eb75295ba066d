"""Kinds of networks: how their names are read, their layers, and their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import nn

MAX_WIDTH = 100_000
"""Largest width accepted; a guard against typing errors and hostile files."""

MAX_FEATURES = 1_000_000
"""The same for the input size: LATENT's network for CIFAR-10 takes hundreds of thousands of bits."""

MAX_LAYER_WIDTH = 4096
"""The same where a layer's memory grows with the square of it, or with images and tables."""

TANH = "-tanh"
"""Suffix of a kind: tanh in place of ReLU."""

SIZE, WIDTH = "([1-9][0-9]{0,7})", "([1-9][0-9]{0,3})"
"""Patterns of a size of records, and of a width of a layer."""

Inputs = Literal["vectors", "images", "sequences", "texts", "ratings"]
"""Kinds of records: numbers of any count, an image, a sequence of vectors, words of one table, a user and an item."""

_TABLES: dict[Inputs, int] = {"vectors": 0, "images": 0, "sequences": 0, "texts": 1, "ratings": 2}
"""Number of tables that the values of such records are positions in."""

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
        """Parameters of a layer that a kind of this package has; none of any other."""
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
        return {}


def layer(name: str, module: str | Callable[..., nn.Module], *arguments: Any, **options: Any) -> LayerSpec:
    """``layer("fc1", "Linear", 784, 10)``."""
    return LayerSpec(name, module, arguments, options)


def named(head: str, widths: tuple[int, ...], usual: tuple[int, ...]) -> str:
    """``head:8,16``, or ``head`` alone where the widths are the usual ones.

    Args:
        head: the kind, and what the data decide.
        widths: of the layers.
        usual: that a name leaves out.
    """
    return head if widths == usual else f"{head}:{','.join(map(str, widths))}"


@dataclass(frozen=True)
class NetworkKind:
    """A kind of networks that can be chosen by name: a subclass says how it is read, and which layers that means.

    Everything behind the first colon of a network's name is the kind's own. All methods get that name with the kind's.

    Attributes:
        name: such as ``mlp``.
        metavar: how help shows its names; empty where another kind's does.
        inputs: what records may be. A network of vectors takes several of them in a row, ``(..., features)``, as well.
        usage: how an error shows its names, if not by ``name``.
        no_tanh: why ``-tanh`` cannot stand behind its name; None if it can.
        user_parameters: names of the parameters that have a row for each user.
    """

    name: str
    help: str
    source: str
    metavar: str
    inputs: tuple[Inputs, ...]
    usage: str = ""
    no_tanh: str | None = None
    user_parameters: tuple[str, ...] = ()

    @property
    def table_counts(self) -> frozenset[int]:
        """Numbers of tables that inputs may be positions in."""
        return frozenset(_TABLES[inputs] for inputs in self.inputs)

    def check(self, text: str, features: int) -> None:
        """Raise InputError for sizes that are none, or that do not go with so many features."""
        raise NotImplementedError

    def layers(self, text: str, features: int, classes: int) -> tuple[LayerSpec, ...]:
        """The layers, in order: ``(batch, features)`` to ``(batch, classes)``.

        Args:
            text: the name.
            features: of one flattened record.
            classes: number of outputs.
        """
        raise NotImplementedError

    def renamed(self, text: str, shapes: Shapes) -> str:
        """The name of the network of the same layers with these parameters."""
        raise NotImplementedError

    def shapes(self, text: str, features: int, classes: int) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter, in order.

        Args:
            text: the name.
            features: of one flattened record.
            classes: number of outputs.
        """
        layers = self.layers(text, features, classes)
        return {f"{one.name}.{name}": shape for one in layers for name, shape in one.parameters.items()}

    def record_shape(self, text: str, features: int) -> tuple[int, ...]:
        """Shape of one record as it was stored."""
        del text
        return (features,)

    def resolve(self, text: str, shape: tuple[int, ...], tables: tuple[int, ...]) -> str:
        """The name with all that it leaves to the data, which stands right behind the first colon.

        Args:
            text: as the user gives it.
            shape: of one record as it was stored.
            tables: sizes of the tables that its values are positions in; none where they are quantities.

        Raises:
            InputError: records of another kind.
        """
        del shape, tables
        return text

    def tables(self, text: str) -> tuple[int, ...]:
        """Sizes of the tables that inputs are positions in; none where they are quantities."""
        del text
        return ()


def stack(widths: tuple[int, ...], names: tuple[str, ...]) -> tuple[LayerSpec, ...]:
    """Linear layers of these names, with ReLU behind each ``fcN`` but the last: ``widths`` are theirs, inputs first."""
    layers: list[LayerSpec] = []
    for name, inputs, outputs in zip(names, widths[:-1], widths[1:], strict=True):
        layers.append(layer(name, "Linear", inputs, outputs))
        if name.startswith("fc") and name != names[-1]:
            layers.append(layer(name.replace("fc", "relu"), "ReLU"))
    return tuple(layers)
