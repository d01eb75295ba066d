"""Networks by name: ``mlp:300,100`` is a fully connected network with hidden layers of 300 and 100 ReLU units."""

from __future__ import annotations

import itertools
import math
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpltm.errors import InputError

if TYPE_CHECKING:
    from torch import nn

LARGEST = 500_000_000
"""Most weights of a network; the same guard, for memory."""

WIDEST = 100_000
"""Largest width or input size accepted; a guard against typing errors and hostile files."""


@dataclass(frozen=True)
class ModelSpec:
    """A network, fully determined: what is built from it has fixed parameter names and shapes.

    Attributes:
        text: the name as the user gives it, e.g. ``mlp:300,100``; ``mlp`` alone is a linear classifier.
        features: input size of one flattened record.
        classes: number of outputs.
    """

    text: str
    features: int
    classes: int

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise InputError(f"model {self.text!r} is not a text")
        self.widths()
        for name, size in (("features", self.features), ("classes", self.classes)):
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= WIDEST:
                raise InputError(f"model {self.text}: {name} {size!r} is not between 1 and {WIDEST}")
        weights = sum(math.prod(shape) for shape in self.shapes().values())
        if weights > LARGEST:
            raise InputError(f"--model: {self.text} has {weights:,} weights, more than the {LARGEST:,} that are taken")

    def widths(self) -> tuple[int, ...]:
        """All layer widths, input and output included.

        Raises:
            InputError: the text names no known network.
        """
        kind, _, rest = self.text.partition(":")
        if kind != "mlp":
            raise InputError(
                f"--model: unknown network {self.text!r}; known: mlp:WIDTH,WIDTH,... (such as mlp:300,100)"
            )
        parts = rest.split(",") if ":" in self.text else []
        hidden = tuple(int(part) if re.fullmatch("[1-9][0-9]{0,8}", part) else 0 for part in parts)
        if any(not 1 <= width <= WIDEST for width in hidden) or len(hidden) > 100:
            raise InputError(
                f"--model: {self.text!r}: widths must be whole numbers from 1 to {WIDEST}, as in mlp:300,100"
            )
        return (self.features, *hidden, self.classes)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter, in order: ``fc1.weight (out, in)``, ``fc1.bias (out,)``, ..."""
        widths = self.widths()
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(widths), start=1):
            shapes[f"fc{layer}.weight"] = (fan_out, fan_in)
            shapes[f"fc{layer}.bias"] = (fan_out,)
        return shapes


def build(spec: ModelSpec, seed: int | None = None) -> nn.Sequential:
    """The network of ``spec``: Glorot normal weights and zero biases drawn from ``seed`` alone, or uninitialised.

    Glorot normal is the initialisation of the lottery-ticket experiments that DPLTM builds on (Frankle and Carbin
    2019). The global random state is neither read nor changed.
    """
    import torch
    from torch import nn

    if seed is not None and not 0 <= seed < 2**63:
        raise InputError(f"--seed: {seed} is not between 0 and 2^63 - 1")
    widths = spec.widths()
    layers: list[tuple[str, nn.Module]] = []
    for number, (fan_in, fan_out) in enumerate(itertools.pairwise(widths), start=1):
        if number > 1:
            layers.append((f"relu{number - 1}", nn.ReLU()))
        layers.append((f"fc{number}", nn.utils.skip_init(nn.Linear, fan_in, fan_out)))
    model = nn.Sequential(OrderedDict(layers))
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                nn.init.xavier_normal_(parameter, generator=generator)
            else:
                nn.init.zeros_(parameter)
    return model
