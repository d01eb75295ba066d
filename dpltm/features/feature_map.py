"""Feature maps: each takes every record by itself to a vector of a fixed norm, in front of a network.

A map is made without the private records, or by releases that are counted. So it costs nothing beyond those, and what is
proven for training on records holds for training on their features.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.features import Choice, Transform
from dpltm.features.normalisation import NORM, ChannelStatistics, fixed_norm, normalised
from dpltm.privacy.entry import Lineage
from dpltm.records.made_up import bits_hold
from dpltm.records.scaling import scale
from dpltm.records.split import pieces

VERSION = 1  # part of every id; raised when the same settings give other features
ROWS = 32  # images at a time: what fits the caches of a processor
CENTRE = "centre"  # name of the tensor that features are centred at


@dataclass(frozen=True)
class FeatureMap:
    """A map of records to features: scaled, transformed, normalised, of a fixed norm; then, if so, centred.

    Attributes:
        statistics: of channels of public images (schemes of local privacy have them), by which channels are normalised;
            else within each record.
        centre: ``(features,)``, a noisy mean that features are centred at, a release of its own in the run's ledger.
        lineage: of the public records that it was made from; empty where no data was looked at.
    """

    base: Choice
    shape: tuple[int, ...]
    bounds: tuple[float, float]
    statistics: ChannelStatistics | None = None
    centre: Tensor | None = None
    lineage: Lineage = field(default_factory=Lineage)
    _released: ClassVar[tuple[str, ...]] = (CENTRE,)

    def __post_init__(self) -> None:
        low, high = self.bounds
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "bounds", (float(low), float(high)))  # an id is of 0.0, never of 0
        channels = self.feature_shape[-1]
        if self.statistics is not None and channels != len(self.statistics.mean):
            raise InputError(
                f"`features`: statistics are of {len(self.statistics.mean)} channels, but records of shape {self.shape} have"
                f" {channels}; take records with as many colours"
            )

    @property
    def text(self) -> str:
        return self.base.text

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors that decide the features, by the names that artifacts give them."""
        released = {name: getattr(self, name) for name in self._released}
        tensors = {} if self.statistics is None else dict(vars(self.statistics))
        return tensors | {name: value for name, value in released.items() if isinstance(value, Tensor)}

    @cached_property
    def id(self) -> str:
        """SHA-256 (hex) over all that decides the features."""
        digest = hashlib.sha256(json.dumps(self._settings).encode())
        for name, value in sorted(self.tensors.items()):
            digest.update(name.encode() + value.numpy().astype("<f4").tobytes())
        return digest.hexdigest()

    @property
    def _settings(self) -> list[object]:
        """All that decides the features but tensors, as JSON has it."""
        settings: list[object] = [VERSION, self.text, list(self.shape), list(self.bounds), None]  # a network, in 0.2
        return settings + [self.base.digest] * bool(self.base.digest)

    @property
    def stored_features(self) -> int:
        return self.features

    @property
    def features(self) -> int:
        return math.prod(self.feature_shape)

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """Of the features of one record: rows, columns and channels, or their number."""
        return self._transform.feature_shape

    @property
    def uncentred(self) -> Self:
        nothing: dict[str, Any] = dict.fromkeys(self._released)
        return self if self.centre is None else replace(self, **nothing)

    @property
    def moment_count(self) -> int:
        """Number of values that the mean is released of."""
        return self.features

    def moment_rows(self, features: Tensor) -> Tensor:
        """What the mean is released of, ``(n, moment_count)``, of norm ``NORM`` at most."""
        return self.centred(features)

    def centred_at(self, centre: Tensor) -> FeatureMap:
        """Return the same with its features centred at ``(features,)``, in units of ``NORM``."""
        return replace(self, centre=centre)

    def for_records(self, shape: tuple[int, ...], bounds: tuple[float, float]) -> FeatureMap:
        """Return the same for records of another shape or range; statistics of channels stay."""
        if (self.shape, self.bounds) == (shape, bounds):
            return self
        if shape != self.shape and any(kind.by_place for kind, _ in self.base.parts):
            raise InputError(
                f"`features`: {self.text} was drawn for records of shape {self.shape}, and these are of shape {shape}, where"
                " the same features would mean something else; take records of that shape"
            )
        return replace(self, shape=shape, bounds=bounds)

    def __call__(self, x: np.ndarray) -> Tensor:
        """Return features of records as stored: ``(n, *shape)`` to ``(n, features)`` float32, each row of norm ``NORM``.

        Guarantees:
            Row i depends on record i alone, to a bit: batches have one size, and one row if made-up ones move bits even so.
        """
        return self.centred(self.stored(x))

    @torch.no_grad()
    def stored(self, x: np.ndarray) -> Tensor:
        """Return what ``centred`` makes features of, for records as stored: ``(n, *shape)`` to ``(n, stored_features)``."""
        together = self._together if len(x) else ROWS
        parts = [torch.zeros(0, self.stored_features)]
        rows = np.zeros((together, *x.shape[1:]), x.dtype)
        for block in pieces(x, together):
            rows[: len(block)], rows[len(block) :] = block, 0
            parts.append(self._of(self.transformed(rows))[: len(block)])
        return torch.cat(parts)

    @property
    def _together(self) -> int:
        """Records that are computed side by side, tried once for a map and a number of threads."""
        threads = torch.get_num_threads()
        if threads not in self._tried:
            like = torch.zeros(1, *self.shape)
            of_rows = partial(bits_hold, lambda rows: self._of(self.transformed(rows.numpy())), like)
            together = next((rows for rows in (ROWS, 1) if of_rows(rows)), 0)
            if not together:  # what it keeps of one record would be in others
                raise InputError(f"`features`: {self.text} gives the same record another answer; let it keep no state")
            self._tried[threads] = together
        return self._tried[threads]

    @cached_property
    def _tried(self) -> dict[int, int]:
        return {}

    def centred(self, features: Tensor) -> Tensor:
        """What is ``stored`` as features of this map, ``(n, features)``; again, row by row."""
        return features if self.centre is None else fixed_norm(features - self.centre.to(features.device))

    @torch.no_grad()
    def transformed(self, x: np.ndarray) -> Tensor:
        """Records scaled and transformed, before normalisation: ``(n, channels, height, width)`` or ``(n, features)``."""
        return self._transform(torch.from_numpy(scale(x, self.bounds)).view(len(x), *self.shape))

    def of_scaled(self, x: Tensor) -> Tensor:
        """Return features of records in the unit range, ``(n, *shape)``: what a network without dpltm computes."""
        return self.centred(self._of(self._transform(x)))

    def _of(self, features: Tensor) -> Tensor:
        """Transformed records as features that are not centred yet."""
        return fixed_norm(normalised(features, self._transform.channel_groups, self.statistics))

    @cached_property
    def _transform(self) -> Transform:
        return self.base.on(self.shape, self.bounds[0] < 0)


# Features of a table. A number becomes so many hats: function k is 1 at the k-th of equally spaced knots over its public
# bounds, 0 at all others, and linear between (linear B-splines; de Boor 1978), and a straight line. An indicator of a
# category stays as it is. One layer makes of them a generalised additive model (Hastie and Tibshirani 1986). Of pairs that a
# head keeps (``training.least_squares``) the product, and ``GRID`` by ``GRID`` hats of both, are features too, for half of
# the squared norm. What depends on other records (centre, moments, pairs) is released, and in the run's ledger.

LINE = 2.0  # height of the straight line at the ends: most of what a number tells, one feature says at less noise
GRID = 4  # hats of each column of a pair, over ``WITHIN`` deviations on both sides of its mean
PAIRS = 12  # most pairs that are kept
WITHIN, FARTHEST = 2.0, 3.0  # deviations that the hats of pairs cover, and at which standardised columns end
LEAST_VARIANCE = 1e-3  # of a column, over its bounds: what noise makes smaller, or negative, counts as this
SPLINES = "splines"  # name of the kind of maps


class Columns(Transform):
    """Values of a table as they are, within the unit range."""

    def __init__(self, _: int, shape: tuple[int, ...]) -> None:
        self.feature_shape = (math.prod(shape),)

    def __call__(self, x: Tensor) -> Tensor:
        return x.flatten(1)


@dataclass(frozen=True)
class SplineMap(FeatureMap):
    """A map of records to splines; see the module.

    Attributes:
        numbers: places of the columns that are numbers, public; the others are indicators from 0 to 1.
        slots: pairs that there is room for: features of those that are not kept are 0.
        moments: ``(2, columns)``, released means and deviations of the columns; None before that.
        pairs: places of both columns of each pair that is kept; None before that.
        centre: ``(single,)``, of the features of single columns.
    """

    numbers: tuple[int, ...] = ()
    slots: int = 0
    moments: Tensor | None = None
    pairs: tuple[tuple[int, int], ...] | None = None
    _released = (CENTRE, "moments", "pairs")

    @property
    def columns(self) -> int:
        """Number of columns, which is also what is stored of a record."""
        return math.prod(self.shape)

    @property
    def stored_features(self) -> int:
        return self.columns

    @property
    def single(self) -> int:
        """Number of features of single columns."""
        return self._knots * len(self.numbers) + self.columns

    @property
    def feature_shape(self) -> tuple[int, ...]:
        return (self.single + self.slots * (GRID**2 + 1),)

    @property
    def kept(self) -> int:
        return len(self.pairs or ())

    @property
    def screens(self) -> bool:
        """Tell whether there is room for pairs, and nobody has said which they are."""
        return self.slots > 0 and self.pairs is None

    @property
    def live(self) -> Tensor:
        """Features that are not 0 of all records, ``(features,)`` bool."""
        places, products = torch.arange(self.features) - self.single, self.slots * GRID**2
        return (places < self.kept * GRID**2) | ((places >= products) & (places < products + self.kept))

    def standardised(self, values: Tensor) -> Tensor:
        """Columns ``(n, columns)`` less their released means, over their deviations, cut at ``FARTHEST``."""
        assert self.moments is not None
        mean, deviation = self.moments.to(values.device)
        return ((values - mean) / deviation).clamp(-FARTHEST, FARTHEST)

    def centred(self, features: Tensor) -> Tensor:
        """Columns in the unit range, ``(n, columns)``, as features, ``(n, features)``, each row of norm ``NORM``."""
        values = self.of_single(features)
        if self.centre is not None:
            values = fixed_norm(values - self.centre.to(values.device))
        if not self.slots:
            return values
        if not self.kept:
            return functional.pad(values, (0, self.features - self.single))
        z = self.standardised(features)
        left, right = (z[:, list(places)] for places in zip(*(self.pairs or ()), strict=True))
        first, second = (_hats((side + WITHIN) / (2 * WITHIN), GRID) for side in (left, right))
        grid = fixed_norm((first[..., :, None] * second[..., None, :]).flatten(1))
        free = self.slots - self.kept
        grids = [functional.pad(grid, (0, free * GRID**2)), functional.pad(fixed_norm(left * right), (0, free))]
        return torch.cat([values, torch.cat(grids, 1) / math.sqrt(2)], 1) / math.sqrt(2)

    def of_single(self, features: Tensor) -> Tensor:
        """Features of single columns before they are centred, ``(n, single)``, each row of norm ``NORM``."""
        hats = _hats(features[:, list(self.numbers)], self._knots).flatten(1)
        lines = LINE * (2 * features[:, list(self.numbers)] - 1)
        return fixed_norm(torch.cat([hats, lines, features[:, self._indicators]], 1))

    def moment_rows(self, features: Tensor) -> Tensor:
        """The same: for half of the squared norm features of single columns; for the other numbers, from -1 to 1, their
        squares, and indicators. A row with more than half of these is clipped, so noise is less than if all could be 1."""
        numbers = 2 * features[:, list(self.numbers)] - 1
        columns = torch.cat([numbers, numbers.square(), features[:, self._indicators]], 1) / self._longest
        columns = columns * (NORM / columns.norm(dim=1, keepdim=True).clamp_min(1))
        return torch.cat([self.of_single(features), columns], 1) / math.sqrt(2)

    @property
    def moment_count(self) -> int:
        return self.single + len(self.numbers) + self.columns

    def centred_at(self, centre: Tensor) -> SplineMap:
        """Return the same with the released mean of ``moment_rows``: centre, and moments of the columns."""
        wide, count = centre.double() * math.sqrt(2), len(self.numbers)
        single, first, second, shares = wide.split([self.single, count, count, len(self._indicators)])
        first, second, shares = (part * (self._longest / NORM) for part in (first, second, shares))
        first, shares = first.clamp(-1, 1), shares.clamp(0, 1)
        moments = torch.empty(2, self.columns, dtype=torch.float64)
        moments[:, list(self.numbers)] = torch.stack([(first + 1) / 2, (second - first.square()) / 4])
        moments[:, self._indicators] = torch.stack([shares, shares * (1 - shares)])
        moments[1] = moments[1].clamp_min(LEAST_VARIANCE).sqrt()
        return replace(self, centre=single.float(), moments=moments.float())

    @property
    def _settings(self) -> list[object]:
        return [*super()._settings, self.numbers, self.slots, self.pairs]

    @cached_property
    def _knots(self) -> int:
        ((_, (knots,)),) = self.base.parts
        return int(knots)

    @cached_property
    def _indicators(self) -> list[int]:
        return sorted(set(range(self.columns)) - set(self.numbers))

    @property
    def _longest(self) -> float:
        return math.sqrt(2 * len(self.numbers) + (len(self._indicators) + 1) // 2)

    def _of(self, features: Tensor) -> Tensor:
        return features  # as they are stored: the rest of it is cheap, and changes with what is released


def _hats(values: Tensor, knots: int) -> Tensor:
    """Hats of values from 0 to 1, ``(n, columns)`` to ``(n, columns, knots)``; beyond the ends, those of the ends."""
    places = torch.arange(knots, dtype=values.dtype, device=values.device)
    return (1 - (values.clamp(0, 1)[..., None] * (knots - 1) - places).abs()).clamp_min(0)


def map_of(
    choice: Choice, shape: tuple[int, ...], bounds: tuple[float, float], numbers: tuple[int, ...] | None = None
) -> FeatureMap:
    """Return the map of a choice without any release; ``numbers`` are places of values that are numbers, None for all."""
    if SPLINES not in [kind.name for kind, _ in choice.parts]:
        return FeatureMap(choice, shape, bounds)
    return SplineMap(choice, shape, bounds, numbers=tuple(range(math.prod(shape))) if numbers is None else numbers)
