"""A frozen network in front: what it gives to its last layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.features.registry import Takes
from dpltm.features.transform import Transform
from dpltm.networks import ModelSpec, build


@dataclass(frozen=True, eq=False)
class FrozenNetwork:
    """A network that is not trained any more, whose last layer is left out.

    Attributes:
        spec: the network.
        parameters: all of it, by name.

    Raises:
        InputError: a network that looks words up.
    """

    spec: ModelSpec
    parameters: Mapping[str, Tensor]

    channels = by_place = False
    digest = ""

    def __post_init__(self) -> None:
        if self.spec.tables:
            raise InputError(
                f"`features`: the network {self.spec.text} looks words up; take one that was trained on quantities"
            )

    @property
    def text(self) -> str:
        """As artifacts and ids have it."""
        return "network"

    @property
    def takes(self) -> Takes:
        """What a record has to be."""
        return "any"

    def on(self, shape: tuple[int, ...], signed: bool = False) -> Transform:
        """The transform for records of this shape, in the range that the network was trained on.

        Args:
            shape: of a record.
            signed: decides nothing here.

        Raises:
            InputError: it cannot take them.
        """
        del signed
        if self.spec.features != math.prod(shape):
            raise InputError(
                f"`features`: the network takes {self.spec.features} features, but the records have {math.prod(shape)};"
                " take one that was trained on records of the same shape"
            )
        return _Body(self)


class _Body:
    """The network without its last layer; every record by itself."""

    channel_groups: int | None = None

    def __init__(self, network: FrozenNetwork) -> None:
        model = build(network.spec)
        model.load_state_dict({name: network.parameters[name] for name in network.spec.shapes()})
        self._layers = nn.Sequential(*list(model)[:-1])
        with torch.no_grad():
            units = self._layers(torch.zeros(1, network.spec.features)).numel()
        self.feature_shape: tuple[int, ...] = (units,)

    def __call__(self, x: Tensor) -> Tensor:
        """``(n, *shape)`` to ``(n, units)``."""
        units: Tensor = self._layers(x.flatten(1))
        return units.flatten(1)
