"""Networks by name, one kind a file.

``mlp:300,100`` is fully connected; ``cnn`` is the convolutional network of Bu et al., ``latent`` that of LATENT; ``embed``
averages vectors of words; ``lstm`` and ``gru`` are recurrent; ``ncf`` takes users and items. ``mlp-tanh``, ``cnn-tanh`` and
so on are the same with tanh in place of ReLU: bounded activations bound gradients as well, which DP training rewards
(Papernot et al. 2021).

A kind has ``check``, ``shapes`` and ``network``, functions of the name, of the features and of the classes;
``record_shape``, of one record as it was stored; ``resolve``, the name with all that it leaves to the data, which stands
right behind the first colon; ``renamed``, the name of the same network in other widths; and ``tables``, the sizes of the
tables that its inputs are positions in (none where they are quantities), with ``TABLES``, how many those may be.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from dpltm.errors import InputError
from dpltm.models import cnn, embed, latent, mlp, ncf, recurrent
from dpltm.models.mlp import WIDEST

if TYPE_CHECKING:
    from torch import nn

LARGEST = 500_000_000
"""Most weights of a network; the same guard, for memory."""

TANH = "-tanh"
"""Behind a kind: tanh in place of ReLU."""

LONGEST_NAME = 1000
"""Most characters of a name; the same guard, for names out of files."""

_KINDS: dict[str, ModuleType] = {
    "mlp": mlp, "cnn": cnn, "latent": latent, "embed": embed, "embed-pad": embed, "lstm": recurrent, "gru": recurrent,
    "ncf": ncf,
}  # fmt: skip


@dataclass(frozen=True)
class ModelSpec:
    """A network, fully determined: what is built from it has fixed parameter names and shapes.

    Attributes:
        text: the name, e.g. ``mlp:300,100``, ``mlp-tanh:300,100`` or ``cnn:28x28x1`` (see ``resolve``); ``mlp`` alone
            is a linear classifier, ``mlp:project64,300,100`` has a projection in front, ``cnn:28x28x1:7,20,15`` other
            widths.
        features: input size of one flattened record.
        classes: number of outputs.
    """

    text: str
    features: int
    classes: int

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise InputError(f"model {self.text!r:.40} is not a text")
        if len(self.text) > LONGEST_NAME:
            raise InputError(
                f"`model`: a name of {len(self.text):,} characters, more than the {LONGEST_NAME:,} that are taken; it starts"
                f" {self.text[:20]!r}"
            )
        kind = _kind(self.text)
        for name, size in (("features", self.features), ("classes", self.classes)):
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= WIDEST:
                raise InputError(f"model {self.text:.80}: {name} {size!r:.40} is not between 1 and {WIDEST}")
        kind.check(_plain(self.text), self.features)
        if self.parameters > LARGEST:
            raise InputError(
                f"`model`: {self.text} has {self.parameters:,} weights, more than the {LARGEST:,} that are taken"
            )

    @property
    def parameters(self) -> int:
        """Number of parameters, biases included."""
        return sum(math.prod(shape) for shape in self.shapes().values())

    @property
    def tables(self) -> tuple[int, ...]:
        """Sizes of the tables that inputs are positions in, one for all or one each; empty where they are quantities."""
        return _kind(self.text).tables(_plain(self.text))

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one record, as far as the network knows it: that of an image, or else flat."""
        return _kind(self.text).record_shape(_plain(self.text), self.features)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter, in order: ``fc1.weight (out, in)``, ``fc1.bias (out,)``, ..."""
        return _kind(self.text).shapes(_plain(self.text), self.features, self.classes)


def renamed(spec: ModelSpec, shapes: Mapping[str, tuple[int, ...]]) -> ModelSpec:
    """The network of the same layers as ``spec`` that has parameters of these names and shapes.

    Raises:
        InputError: there is none, since more than the widths of layers differs.
    """
    try:
        name = _kind(spec.text).renamed(_plain(spec.text), shapes)
        head, colon, rest = name.partition(":")
        suffix = TANH if spec.text != _plain(spec.text) else ""
        found = ModelSpec(f"{head}{suffix}{colon}{rest}", spec.features, spec.classes)
    except (KeyError, IndexError):
        found = None
    if found is None or list(found.shapes().items()) != list(shapes.items()):
        raise InputError(
            f"model: no widths of {spec.text} give parameters of these names and shapes; it is another network"
        )
    return found


def for_tables(tables: tuple[int, ...]) -> tuple[str, ...]:
    """Kinds of networks whose inputs are positions in so many tables, or are quantities."""
    return tuple(name for name, kind in _KINDS.items() if len(tables) in kind.TABLES)


def resolve(text: str, shape: tuple[int, ...], tables: tuple[int, ...] = ()) -> str:
    """The network's name with all that it leaves to the data: ``cnn`` on images of 28 x 28 is ``cnn:28x28x1``.

    Args:
        text: as the user gives it.
        shape: of one record as stored.
        tables: that its values are positions in, see ``Dataset``.

    Raises:
        InputError: a network of images, texts or sequences, and the records are none.
    """
    kind = _KINDS.get(_plain(text))
    return text if kind is None else kind.resolve(text, shape, tables)


def _plain(text: str) -> str:
    """The name of the same network with ReLU."""
    name, colon, rest = text.partition(":")
    return f"{name.removesuffix(TANH)}{colon}{rest}"


def _kind(text: str) -> ModuleType:
    name = text.partition(":")[0].removesuffix(TANH)
    if name not in _KINDS:
        known = "mlp:WIDTH,WIDTH,... (such as mlp:300,100), mlp-tanh:..., " + ", ".join(list(_KINDS)[1:])
        raise InputError(f"`model`: unknown network {text!r:.80}; known: {known}")
    if _KINDS[name] is recurrent and _plain(text) != text:
        raise InputError(f"`model`: {text!r:.80}: the gates of {name} are bounded as they are; leave {TANH} out")
    if _KINDS[name] is ncf and _plain(text) != text:
        raise InputError(f"`model`: {text!r:.80}: ncf has no ReLU to stand in for; leave {TANH} out")
    return _KINDS[name]


def build(spec: ModelSpec, seed: int | None = None) -> nn.Sequential:
    """The network of ``spec``: Glorot normal weights and zero biases drawn from ``seed`` alone, or whatever weights.

    Glorot normal is the initialisation of the lottery-ticket experiments that DPLTM builds on (Frankle and Carbin
    2019). A network of a single layer starts at zero: its loss is convex, so random weights would be noise and no more.
    The global random state is neither read nor changed.
    """
    import torch
    from torch import nn

    if seed is not None and not 0 <= seed < 2**63:
        raise InputError(f"`seed`: {seed} is not between 0 and 2^63 - 1")
    # torch initialises what it makes, from its global state; skip_init would not, but imports for half a second
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model: nn.Sequential = _kind(spec.text).network(_plain(spec.text), spec.features, spec.classes)
    if spec.text != _plain(spec.text):
        layers = ((name, nn.Tanh() if isinstance(layer, nn.ReLU) else layer) for name, layer in model.named_children())
        model = nn.Sequential(OrderedDict((name.replace("relu", "tanh"), layer) for name, layer in layers))
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        linear = sum(parameter.ndim >= 2 for parameter in model.parameters()) == 1
        for parameter in model.parameters():
            if parameter.ndim >= 2 and not linear:
                nn.init.xavier_normal_(parameter, generator=generator)
            else:
                nn.init.zeros_(parameter)
    return model
