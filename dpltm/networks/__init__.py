"""Networks by name.

A new kind is one ``NetworkKind``, and one line in ``KINDS`` (``dpltm.networks.kind``). A network of the user's own is an
``OwnNetwork`` (``dpltm.networks.own_network``): both are a ``Network``. Nothing here imports torch before one is made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from dpltm.errors import InputError, did_you_mean
from dpltm.gone import instead
from dpltm.networks.kind import KINDS as KINDS
from dpltm.networks.kind import MAX_FEATURES, MAX_WIDTH, PROJECTION, TANH, Inputs, NetworkKind, NetworkName, Shapes
from dpltm.privacy.entry import NO_LINEAGE, Lineage
from dpltm.records.input_parts import differences
from dpltm.registry import Deferred

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dpltm.networks.masks import Mask
    from dpltm.networks.own import OwnModel
    from dpltm.records.dataset import Dataset
    from dpltm.records.input_parts import Parts
    from dpltm.records.split import LabelForm

MAX_WEIGHTS = 500_000_000
"""Largest number of weights in a network; a guard for memory."""

MAX_NAME_LENGTH = 1000
"""Largest number of characters in a name, also of names out of files."""

NAMES_CODE = re.compile(r"(?P<place>(?:.*/)?[^:]+\.py|[A-Za-z_]\w*(?:\.\w+)*):(?P<name>[A-Za-z_]\w*(?:\.\w+)*)")
"""Form of a name of code: ``FILE.py:NAME`` or ``package.module:NAME``."""

_make = Deferred("dpltm.networks.layers:make")
_shapes_of = Deferred("dpltm.networks.layers:shapes_of")
_mask = Deferred("dpltm.networks.masks:Mask")
_own_network = Deferred("dpltm.networks.own_network:for_records")

Batch = Callable[["Tensor", "Tensor"], "Tensor"]
"""From outputs and labels to one value a record, ``(batch,)``."""


@dataclass(frozen=True, eq=False)
class Network:
    """A network for some records: what is built from it has fixed parameter names and shapes.

    Attributes:
        text: its name, or where its code came from.
        features: input size of one flattened record.
        classes: number of them; 0 where labels are no class numbers.
        record_shape: of one record, as far as the network knows it.
        tables: sizes of the tables that inputs are positions in, one for all or one each; empty for quantities.
        labels: those that are no class numbers; None of class numbers.
        parts: what stands side by side in a record, and reaches the module by name or place; empty of one array.
        parameter_shapes: in order.
        prunable: names of the weights that criteria prune, in order.
        lineage: of its starting weights; empty where they depend on no private records.
    """

    text: str
    features: int
    classes: int
    record_shape: tuple[int, ...] = field(default=(), compare=False)
    tables: tuple[int, ...] = field(default=(), compare=False)
    labels: LabelForm | None = None
    parts: Parts = ()
    parameter_shapes: Shapes = field(default_factory=dict, compare=False)
    prunable: tuple[str, ...] = field(default=(), compare=False)
    lineage: Lineage = NO_LINEAGE

    @property
    def identity(self) -> str:
        """What its records of settings know it by: other networks have others."""
        return self.text

    @property
    def loss(self) -> Batch | None:
        """From outputs and labels to one value a record; None for the cross-entropy of classes."""
        return None

    @property
    def score(self) -> Batch | None:
        """From outputs and labels to one value in [0, 1] a record; None for whether the label is the largest output."""
        return None

    @property
    def parameters(self) -> int:
        """Number of coordinates of all parameters."""
        return sum(math.prod(shape) for shape in self.parameter_shapes.values())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter, in order: ``fc1.weight (out, in)``, ``fc1.bias (out,)``, ..."""
        return dict(self.parameter_shapes)

    def mask(self, tensors: Mapping[str, Tensor]) -> Mask:
        """Return a mask over all parameters."""
        return _mask(tensors)

    def build(self, seed: int | None) -> nn.Module:
        """See :func:`build`."""
        raise NotImplementedError

    def check_code(self, label: str) -> None:
        """Raise InputError where the code of a network of the user's own is not at hand; ``label`` says whose it is."""


@dataclass(frozen=True)
class ModelSpec(Network):
    """A network of a kind by name, which ``text``, ``features`` and ``classes`` determine.

    The name is such as ``mlp:300,100``, ``mlp-tanh:300,100`` or ``cnn:28x28x1`` (see ``resolve``); ``mlp`` alone is a linear
    classifier, ``mlp:project64,300,100`` has a projection in front, which is never pruned.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or len(self.text) > MAX_NAME_LENGTH:
            raise InputError(f"`model`: {self.text!r:.40} is not a name of at most {MAX_NAME_LENGTH:,} characters")
        name = self.name
        for what, size, most in (("features", self.features, MAX_FEATURES), ("classes", self.classes, MAX_WIDTH)):
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= most:
                raise InputError(f"model {self.text:.80}: {what} {size!r:.40} is not between 1 and {most}")
        record_shape = name.sizes if name.inputs in ("images", "sequences") else (self.features,)
        if (size := math.prod(record_shape)) != self.features:
            raise InputError(f"`model`: {self.text}: such {name.inputs} have {size} features, not {self.features}")
        shapes = _shapes_of(name, self.features, self.classes)
        prunable = (key for key, shape in shapes.items() if len(shape) >= 2 and not key.startswith(f"{PROJECTION}."))
        vars(self).update(
            record_shape=record_shape,
            tables=name.sizes if name.inputs == "texts" else (),
            parameter_shapes=shapes,
            prunable=tuple(prunable),
        )
        if self.parameters > MAX_WEIGHTS:
            raise InputError(f"`model`: {self.text} has {self.parameters:,} weights; take at most {MAX_WEIGHTS:,}")

    @cached_property
    def name(self) -> NetworkName:
        return _kind(self.text).read(self.text)

    def build(self, seed: int | None) -> nn.Module:
        """See :func:`build`."""
        return _make(self.name, self.features, self.classes, seed)


def resized(spec: ModelSpec, units: Sequence[int]) -> ModelSpec:
    """The network of the same layers as ``spec``, of which the last ones before the classifier have so many ``units``."""
    name = spec.name
    widths = (*name.widths[: len(name.widths) - len(units)], *units)
    usual = not name.projected and widths == name.kind.usual(name.sizes)
    return replace(spec, text=str(replace(name, explicit=None if usual else widths)))


def network_metavar(inputs: Inputs | None = None) -> str:
    """Names of the networks for such records, as help shows them."""
    shown = (kind.metavar for kind in KINDS.values() if inputs is None or inputs in kind.inputs)
    return "|".join(name for name in shown if name)


def for_inputs(inputs: Inputs) -> tuple[str, ...]:
    """Kinds of networks for such records."""
    return tuple(name for name, kind in KINDS.items() if inputs in kind.inputs)


def resolve(text: str, shape: tuple[int, ...], tables: tuple[int, ...] = ()) -> str:
    """The network's name with all that it leaves to the data: ``cnn`` on images of 28 x 28 is ``cnn:28x28x1``.

    ``shape`` is that of one record as stored, and its values are positions in ``tables`` (see ``Dataset``). Raises
    InputError for a network of images, texts or sequences where the records are none.
    """
    if ":" in text or kind_name(text) not in KINDS:
        return text
    sizes = KINDS[kind_name(text)].sizes_of(text, shape, tables)
    return f"{text}:{'x'.join(map(str, sizes))}" if sizes else text


def names_code(text: str | None) -> bool:
    """Tell whether a text names code, rather than a kind of network."""
    return text is not None and kind_name(text) not in KINDS and NAMES_CODE.fullmatch(text) is not None


def kind_name(text: str) -> str:
    """Name of the kind, known or not: ``mlp`` of ``mlp-tanh:300,100``."""
    return text.partition(":")[0].removesuffix(TANH)


def _kind(text: str) -> NetworkKind:
    name = kind_name(text)
    if names_code(text):
        raise InputError(
            f"`model`: {text!r:.80} names code, which generate, select, train, tune, run of three stages, evaluate, predict"
            " and tickets transfer take; here name a kind of network"
        )
    if (reason := instead(f"--model {name}")) is not None:
        raise InputError(f"`model` {name}{reason}")
    if name not in KINDS:
        known = network_metavar().replace("|", ", ")
        raise InputError(f"`model`: unknown network {text!r:.80}; known: {known}{did_you_mean(name, KINDS)}")
    return KINDS[name]


def build(spec: Network, seed: int | None = None) -> nn.Module:
    """Build the network of ``spec``: ``(batch, features)`` to ``(batch, classes)``, with weights drawn from ``seed`` alone,
    or any weights.

    Of a kind by name, weights are Glorot normal and biases zero, the initialisation of the lottery-ticket experiments that
    DPLTM builds on (Frankle and Carbin 2019). A network of a single layer starts at zero: its loss is convex, so random
    weights would be noise and no more. A module of the user's own starts as its code says. The global random state is not
    changed.
    """
    if seed is not None and not 0 <= seed < 2**63:
        raise InputError(f"`seed`: {seed} is not between 0 and 2^63 - 1")
    return spec.build(seed)


def model_spec(model: str | OwnModel, dataset: Dataset) -> Network:
    """The network of that name, or of the user's own, for these records."""
    if not isinstance(model, str):
        return _own_network(model, dataset)
    check_kind_takes(model, dataset)
    tables = dataset.input_tables
    spec = ModelSpec(resolve(model, dataset.input_shape, tables), dataset.features, dataset.classes)
    check_tables(spec, dataset, f"`model`: {model}", f"take {network_metavar('texts' if tables else 'vectors')}")
    return spec


def check_tables(spec: Network, dataset: Dataset, network: str, remedy: str = "use records like its own") -> None:
    """Raise InputError unless the network looks up what these records hold."""
    if spec.tables != dataset.input_tables:
        takes, hold = _contents(spec.tables), _contents(dataset.input_tables)
        raise InputError(f"{network} takes {takes}, but records of {dataset.name} hold {hold}; {remedy}")


def check_kind_takes(kind: str, dataset: Dataset) -> None:
    """Raise InputError for records that a kind by name does not take: it has one array, and an output a class."""
    if dataset.input_parts:
        raise InputError(f"`model`: {kind} takes one array, and records of {dataset.name} have several; give a module")
    if dataset.labels is not None:
        raise InputError(f"`model`: {kind} has one output a class, not {dataset.labels}; give a module of your own")


def check_takes(spec: Network, dataset: Dataset, whose: str, fix: str = "", like: str = "its own") -> None:
    """Raise InputError unless a network takes these records, which are behind their map."""
    if other := differences(spec.parts, dataset.input_parts):
        raise InputError(f"{whose}: records of {dataset.name} {other}; give it records of the same parts{fix}")
    for verb, what, mine, theirs, same in (
        ("takes", " features", spec.features, dataset.features, "of the same shape"),
        ("is for", "", spec.labels or "classes", dataset.labels or "classes", "with such labels"),
        ("has", " classes", spec.classes, dataset.classes, "with the same classes"),
    ):
        if mine != theirs:
            raise InputError(
                f"{whose}: its network {verb} {mine}{what}, but {dataset.name} has {theirs}; use records {same}{fix}"
            )
    check_tables(spec, dataset, f"{whose}: its network", f"use records like {like}")
    if not isinstance(spec, ModelSpec) and spec.record_shape != dataset.input_shape:
        raise InputError(
            f"{whose}: its network takes records of shape {spec.record_shape}, but those of {dataset.name} are of shape"
            f" {dataset.input_shape}; use records of the same shape{fix}"
        )


def _contents(tables: tuple[int, ...]) -> str:
    return f"positions in tables of {' and '.join(f'{size:,}' for size in tables)}" if tables else "quantities"
