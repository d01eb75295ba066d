"""What stands in front of a network: a map that takes every record by itself to a vector of a fixed norm.

It is applied to one record at a time and was made without the private records (of which a network in front may have been
trained under differential privacy: then its events are counted). So it costs nothing, and what is proven for training on
records holds for training on their features.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from dpltm.data.scaling import scale
from dpltm.errors import InputError
from dpltm.features.normalisation import GROUPS, NORM, by_channel, by_group, of_norm
from dpltm.features.scattering import Scale, Scattering
from dpltm.models import ModelSpec, build
from dpltm.privacy.events import FEATURES, DatasetRef, Event

VERSION = 1
"""Part of every id; raised when the same settings give other features, so that nothing stale is taken for them."""

ROWS = 32
"""Images at a time: what fits the caches of a processor."""

MOST_CHANNELS = 4
"""Most colour channels of an image; whatever has more in its last dimension is none."""


@dataclass(frozen=True)
class FeatureMap:
    """A map of records to features.

    Attributes:
        text: ``scatter:J,L``, or ``network``.
        shape: of a record as stored.
        bounds: public range of its values.
        source: records declared public that channel statistics were taken from, or those that the network was trained
            on; None where no data was looked at.
        events: what the network's training spent on ``source``; none otherwise.
        tensors: ``mean`` and ``deviation`` of channels, or the network's parameters.
        network: the network, whose last layer is left out.
    """

    text: str
    shape: tuple[int, ...]
    bounds: tuple[float, float]
    source: DatasetRef | None = None
    events: tuple[Event, ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    network: ModelSpec | None = None

    def __post_init__(self) -> None:
        if self.network is None:
            self._scattering  # noqa: B018 - refuses shapes that it cannot take
        elif self.network.features != math.prod(self.shape):
            raise InputError(
                f"--features: the network takes {self.network.features} features, but the records have"
                f" {math.prod(self.shape)}; take one that was trained on records of the same shape"
            )

    @cached_property
    def id(self) -> str:
        """SHA-256 (hex) over all that decides the features."""
        digest = hashlib.sha256()
        network = None if self.network is None else [self.network.text, self.network.features, self.network.classes]
        digest.update(json.dumps([VERSION, self.text, list(self.shape), list(self.bounds), network]).encode())
        for name, value in sorted(self.tensors.items()):
            digest.update(name.encode() + value.numpy().astype("<f4").tobytes())
        return digest.hexdigest()

    @property
    def features(self) -> int:
        """Number of features."""
        return math.prod(self.feature_shape)

    @cached_property
    def feature_shape(self) -> tuple[int, ...]:
        """Of the features of one record: rows, columns and channels, or their number."""
        if self.network is not None:
            return (self._body[1],)
        found = self._scattering
        return (found.height, found.width, found.channels * _channels(self.shape))

    @property
    def label(self) -> str:
        """What ledgers call it."""
        return f"{FEATURES}{self.text} {self.id[:8]}"

    def carried(self, shape: tuple[int, ...], bounds: tuple[float, float]) -> FeatureMap:
        """The same for records of another shape or range; statistics of channels stay, and so do networks.

        Raises:
            InputError: such records it cannot take.
        """
        if (self.shape, self.bounds) == (shape, bounds):
            return self
        found = replace(self, shape=shape, bounds=bounds)
        if self.network is None and self.tensors and found.feature_shape[-1] != len(self.tensors["mean"]):
            raise InputError(
                f"--features: statistics are of {len(self.tensors['mean'])} channels, but records of shape {shape} have"
                f" {found.feature_shape[-1]}; take records with as many colours"
            )
        return found

    def __call__(self, x: np.ndarray) -> Tensor:
        """Features of records as stored: ``(n, *shape)`` to ``(n, features)`` float32, each row of norm ``NORM``.

        Guarantees:
            Row i depends on record i alone.
        """
        parts = [self._mapped(x[start : start + ROWS]) for start in range(0, len(x), ROWS)]
        return torch.cat(parts) if parts else torch.zeros(0, self.features)

    @torch.no_grad()
    def _mapped(self, x: np.ndarray) -> Tensor:
        flat = torch.from_numpy(scale(x, self.bounds))
        if self.network is not None:
            return of_norm(self._body[0](flat).flatten(1))
        values = self.unscaled(x)
        if self.tensors:
            values = by_channel(values, self.tensors["mean"], self.tensors["deviation"])
        else:
            values = by_group(values, GROUPS * _channels(self.shape))
        return of_norm(values.permute(0, 2, 3, 1).flatten(1))

    @torch.no_grad()
    def unscaled(self, x: np.ndarray) -> Tensor:
        """Scattering coefficients before normalisation: ``(n, channels, height, width)``."""
        images = torch.from_numpy(scale(x, self.bounds)).view(len(x), *self.shape[:2], _channels(self.shape))
        found = self._scattering(images.permute(0, 3, 1, 2).flatten(0, 1))
        return found.view(len(x), -1, *found.shape[2:])

    @cached_property
    def _scattering(self) -> Scattering:
        parsed = parse(self.text)
        assert isinstance(parsed, Scale)
        if len(self.shape) not in (2, 3) or _channels(self.shape) > MOST_CHANNELS:
            raise InputError(
                f"--features: scatter takes images, (height, width) or (height, width, colours), and a record here is of"
                f" shape {self.shape}; take --features none"
            )
        return Scattering(parsed, self.shape[0], self.shape[1])

    @cached_property
    def _body(self) -> tuple[Callable[[Tensor], Tensor], int]:
        """The network without its last layer, and how many numbers it gives."""
        assert self.network is not None
        model = build(self.network)
        model.load_state_dict(dict(self.tensors))
        body = nn.Sequential(*list(model)[:-1])
        return body, body(torch.zeros(1, self.network.features)).numel()


def parse(text: str) -> Scale | str | None:
    """What ``--features`` says: a scattering transform, the RUN of ``network:RUN``, or nothing for ``none``.

    Raises:
        InputError: none of these.
    """
    kind, _, rest = text.partition(":")
    if text == "none":
        return None
    if kind == "network" and rest:
        return rest
    numbers = rest.split(",") if rest else []
    if kind == "scatter" and len(numbers) <= 2 and all(number.isdecimal() and len(number) < 4 for number in numbers):
        return Scale(*map(int, numbers))
    raise InputError(f"--features: {text!r:.80} is not none, scatter, scatter:J, scatter:J,L or network:RUN")


def scatter(scale: Scale, shape: tuple[int, ...], bounds: tuple[float, float]) -> FeatureMap:
    """Scattering with normalisation within each record, for records of this shape: no data is needed."""
    return FeatureMap(f"scatter:{scale.scales},{scale.angles}", tuple(shape), bounds)


def statistics(plain: FeatureMap, batches: Iterator[np.ndarray]) -> dict[str, Tensor]:
    """Mean and deviation of every channel over public records, which may be images of another size than the private ones.

    Args:
        plain: the map for records of the public shape.
        batches: those records, as stored.
    """
    count, total, squares = 0, torch.zeros(0), torch.zeros(0)
    for x in batches:
        values = plain.unscaled(x).double()
        count += values[:, 0].numel()
        total, squares = (
            part if not len(old) else old + part
            for old, part in ((total, values.sum((0, 2, 3))), (squares, values.square().sum((0, 2, 3))))
        )
    mean = total / count
    return {"mean": mean.float(), "deviation": (squares / count - mean.square()).clamp_min(0).sqrt().float()}


def _channels(shape: tuple[int, ...]) -> int:
    return 1 if len(shape) == 2 else shape[2]


__all__ = ["NORM", "FeatureMap", "parse", "scatter", "statistics"]
