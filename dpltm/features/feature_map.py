"""Feature maps: each takes every record by itself to a vector of a fixed norm, in front of a network.

It is applied to one record at a time, and made without the private records or by releases that are counted. So it costs
nothing beyond those, and what is proven for training on records holds for training on their features.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dpltm.errors import InputError
from dpltm.features import Choice, Takes, Transform, parse
from dpltm.features.normalisation import ChannelStatistics, GroupNormalisation, Projection, fixed_norm, pixels_first
from dpltm.privacy.entry import Lineage
from dpltm.records.scaling import scale

VERSION = 1
"""Part of every id; raised when the same settings give other features, so that nothing stale is taken for them."""

ROWS = 32  # images at a time: what fits the caches of a processor
CENTRE = "centre"  # name of the tensor that features are centred at


@dataclass(frozen=True)
class FeatureMap:
    """A map of records to features: scaled, transformed, normalised, of a fixed norm; then, if so, projected and centred.

    Attributes:
        statistics: of channels of public images, by which channels are normalised; else within each record. They are of
            schemes of local privacy; dpltm 0.2 had them in front of any network.
        projection: onto principal components of public features, of older artifacts.
        centre: ``(features,)``, a noisy mean that features are centred at, which the ledger of the run has as a release of
            its own.
        lineage: of the public records that it was made from; empty where no data was looked at.
    """

    base: Choice
    shape: tuple[int, ...]
    bounds: tuple[float, float]
    statistics: ChannelStatistics | None = None
    projection: Projection | None = None
    centre: Tensor | None = None
    lineage: Lineage = field(default_factory=Lineage)

    def __post_init__(self) -> None:
        low, high = self.bounds
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "bounds", (float(low), float(high)))  # an id is of 0.0, never of 0
        plain = self.plain_shape
        if self.projection is not None and self.projection.components.shape[1] != math.prod(plain):
            raise InputError(
                f"`features`: components are of {self.projection.components.shape[1]} features, but records of shape"
                f" {self.shape} have {math.prod(plain)}; take public records of the same shape"
            )
        if self.statistics is not None and plain[-1] != len(self.statistics.mean):
            raise InputError(
                f"`features`: statistics are of {len(self.statistics.mean)} channels, but records of shape {self.shape} have"
                f" {plain[-1]}; take records with as many colours"
            )

    @property
    def text(self) -> str:
        """``scatter:J,L``, ``conv:SEED``, ``wavelets:J,Q``, ``unit:K`` or ``fourier:D,GAMMA``."""
        return self.base.text

    @property
    def takes(self) -> Takes:
        """Shape that a record must have."""
        return self.base.takes

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors that decide the features, by the names that artifacts give them."""
        tensors: dict[str, Tensor] = {}
        for part in (self.statistics, self.projection):
            tensors |= {} if part is None else vars(part)
        return tensors if self.centre is None else {**tensors, CENTRE: self.centre}

    @cached_property
    def id(self) -> str:
        """SHA-256 (hex) over all that decides the features."""
        settings = [VERSION, self.text, list(self.shape), list(self.bounds), None]  # for a network, in 0.2
        whole = hashlib.sha256(json.dumps(settings + [self.base.digest] * bool(self.base.digest)).encode())
        for name, value in sorted(self.tensors.items()):
            whole.update(name.encode() + value.numpy().astype("<f4").tobytes())
        return whole.hexdigest()

    @property
    def features(self) -> int:
        """Number of features."""
        return math.prod(self.feature_shape)

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """Of the features of one record: rows, columns and channels, or their number."""
        return self.plain_shape if self.projection is None else (len(self.projection.components),)

    @property
    def plain_shape(self) -> tuple[int, ...]:
        """The same before features are projected."""
        return self._transform.feature_shape

    @property
    def uncentred(self) -> FeatureMap:
        """The same without its centre."""
        return self if self.centre is None else replace(self, centre=None)

    def centred_at(self, centre: Tensor) -> FeatureMap:
        """Return the same with its features centred there: ``(features,)``, in units of ``NORM``."""
        return replace(self, centre=centre)

    def for_records(self, shape: tuple[int, ...], bounds: tuple[float, float]) -> FeatureMap:
        """Return the same for records of another shape or range; statistics of channels stay."""
        if (self.shape, self.bounds) == (shape, bounds):
            return self
        if shape != self.shape and self.base.by_place:
            raise InputError(
                f"`features`: {self.text} was drawn for records of shape {self.shape}, and these are of shape {shape}, where"
                " the same features would mean something else; take records of that shape"
            )
        other = replace(self, shape=shape, bounds=bounds)
        if self.centre is not None and other.feature_shape != self.feature_shape:
            raise InputError(f"`features`: records of shape {shape} do not fit the centre of features; take others")
        return other

    def __call__(self, x: np.ndarray) -> Tensor:
        """Return features of records as stored: ``(n, *shape)`` to ``(n, features)`` float32, each row of norm ``NORM``.

        Guarantees:
            Row i depends on record i alone. Libraries round by the size of a batch, so all are of ``ROWS``; by the place in
            it as well, some of them, in the last bit.
        """
        parts = [self._projected(x[start : start + ROWS]) for start in range(0, len(x), ROWS)]
        return self.centred(torch.cat(parts) if parts else torch.zeros(0, self.features))

    def centred(self, features: Tensor) -> Tensor:
        """Features of ``uncentred`` as features of this map, ``(n, features)``; again, row by row."""
        return features if self.centre is None else fixed_norm(features - self.centre.to(features.device))

    @torch.no_grad()
    def transformed(self, x: np.ndarray) -> Tensor:
        """Records scaled and transformed, before normalisation: ``(n, channels, height, width)`` or ``(n, features)``."""
        return self._transform(torch.from_numpy(scale(x, self.bounds)).view(len(x), *self.shape))

    @torch.no_grad()
    def _projected(self, x: np.ndarray) -> Tensor:
        rows = np.zeros((ROWS, *x.shape[1:]), x.dtype)
        rows[: len(x)] = x
        return self._of(self.transformed(rows))[: len(x)]

    def of_scaled(self, x: Tensor) -> Tensor:
        """Return features of records in the unit range, ``(n, *shape)``: what a network without dpltm computes."""
        return self.centred(self._of(self._transform(x)))

    def _of(self, features: Tensor) -> Tensor:
        """Transformed records as features that are not centred yet."""
        for step in self._normalisation:
            features = step(features)
        features = fixed_norm(features)
        return features if self.projection is None else fixed_norm(self.projection(features))

    @cached_property
    def _transform(self) -> Transform:
        return self.base.on(self.shape, self.bounds[0] < 0)

    @property
    def _normalisation(self) -> tuple[Callable[[Tensor], Tensor], ...]:
        """Normalisations of channels, if there are any."""
        groups = self._transform.channel_groups
        if groups is None:
            return ()
        return (self.statistics or GroupNormalisation(groups), pixels_first)


def make_feature_map(text: str, shape: tuple[int, ...], bounds: tuple[float, float]) -> FeatureMap:
    """Return the map that ``text`` names, such as ``scatter:2,8``; it looks at no data, and normalises within each record.

    >>> make_feature_map("scatter", (28, 28), (0.0, 255.0)).feature_shape
    (7, 7, 81)
    """
    choice = parse(text)
    if choice is None:
        raise InputError(f"`features`: {text!r:.80} is no map that is made without data")
    return FeatureMap(choice, shape, bounds)
