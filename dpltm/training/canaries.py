"""White-box canaries: made-up records in a training, whose presence the noisy sums are searched for.

Canary i stands for a record with a very long gradient on live coordinates of its own, and none elsewhere. A coin of the
audit decides whether it is among the records; from there on it goes the way of a record, through coins, filter and sum.
Its score is the log-likelihood ratio of what is released on its coordinates (docs/privacy-model.md section 7). Canaries are
data-independent, so a record beside them is protected as before, and scores are post-processing of the noisy sums.

A filter that looks at the norm lets a gradient of one coordinate reach its bound. One that maps coordinates, or layers, is
attacked hardest by a gradient that is long on as many as canaries can share out evenly: live / m each. Where the filter
takes mean gradients of groups, a sampled canary is a group by itself, and adds half of what is certified.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpltm.errors import InputError
from dpltm.filters import Filter
from dpltm.filters.trial import filtered
from dpltm.randomness.noise import RandomSource, uniform

LENGTH = 1e8
"""Of a canary's gradient on each coordinate: every filter is at the end of its range there."""

LEAST = 6
"""Canaries that an audit at the default confidence of 95 % needs (``bounds.least_canaries``, not imported: it is slow)."""


@dataclass(frozen=True)
class Observations:
    """Scores and coins that a training with canaries leaves to its audit, one value a canary.

    Attributes:
        scores: the larger, the likelier in, ``(m,)`` float64.
        included: coins of the audit, ``(m,)`` bool. Under replace-one every canary is in, and this is its sign.
        norms: of what a canary adds to the sum of a step, ``(m,)`` float64.
    """

    scores: np.ndarray
    included: np.ndarray
    norms: np.ndarray

    def __post_init__(self) -> None:
        alike = self.scores.shape == self.included.shape == self.norms.shape == (len(self.scores),)
        if not alike or np.isnan(self.scores).any() or not (self.norms > 0).all():
            raise ValueError("Expected a score, which is a number, a coin and a norm > 0 a canary")


def check_canaries(count: int | None, live: int, noise_multiplier: float) -> None:
    """Raise InputError for a count of canaries that a training cannot have, or for a training without noise."""
    if count is None:
        return
    if not LEAST <= count <= live:
        raise InputError(
            f"`audit`: {count:,} canaries: ask for {LEAST} or more, since fewer prove nothing at 95 % confidence, and at"
            f" most {live:,}, since each needs a live coordinate"
        )
    if noise_multiplier == 0:
        raise InputError("`audit`: without noise there is no claim to attack; set `noise_multiplier` above 0")


class Canaries:
    """The canaries of one training.

    Args:
        layers: which layer each live coordinate is in, ``(live,)`` int64.
        replace_one: whether neighbours differ by the value of a record: then a canary is there with either sign.
    """

    def __init__(
        self, count: int, filter: Filter, layers: Tensor, sampling_rate: float, replace_one: bool, coins: RandomSource
    ) -> None:
        self._filter, self._rate, self._replace_one = filter, sampling_rate, replace_one
        share = len(layers) // count
        first = torch.arange(count, device=layers.device)[:, None]
        alone = filter.kind == "radial"
        self._places = first * share if alone else first + count * torch.arange(share, device=layers.device)
        self._layers, self._deepest = layers[self._places], int(layers.max()) + 1
        self._vectors = self._filtered(torch.ones(count, dtype=torch.float64, device=layers.device), slice(None))
        norms = self._vectors.norm(dim=1).cpu().numpy()
        self.observations = Observations(np.zeros(count), uniform(coins, count) < 0.5, norms)
        self._drawn = np.zeros(0, dtype=np.int64)

    @property
    def _records(self) -> np.ndarray:
        included = self.observations.included
        return np.arange(len(included)) if self._replace_one else np.flatnonzero(included)

    @property
    def extra(self) -> int:
        """Number of records more that there are to sample from."""
        return len(self._records)

    def split(self, index: np.ndarray, records: int) -> np.ndarray:
        """Return the places of a sample that are among the records at hand; canaries, behind these, are kept to be added."""
        self._drawn = self._records[index[index >= records] - records]
        return index[index < records]

    def add_to(self, total: Tensor) -> None:
        """Add the filtered gradients of the canaries that were drawn to the sum, ``(live,)`` float64."""
        if len(self._drawn) == 0:
            return
        which = torch.from_numpy(self._drawn).to(total.device)
        signs = torch.from_numpy(np.where(self.observations.included[self._drawn], 1.0, -1.0)).to(total.device)
        total.index_add_(0, self._places[which].flatten(), self._filtered(signs, which).flatten())

    def observe(self, released: Tensor, divisor: float, noise_std: float) -> None:
        """Take in one step, whose noisy mean (``(live,)``) was made from a sum over ``divisor``."""
        norms = self.observations.norms
        along = (released[self._places].double() * (divisor * self._vectors)).sum(1).cpu().numpy()
        shift, half = along / noise_std**2, norms**2 / (2 * noise_std**2)
        self.observations.scores[:] += self._log_ratio(shift - half)
        if self._replace_one:
            self.observations.scores[:] -= self._log_ratio(-shift - half)

    def state(self) -> dict[str, Tensor]:
        """Coins and scores; not copied."""
        scores, included = map(torch.from_numpy, (self.observations.scores, self.observations.included))
        return {"scores": scores, "included": included.view(torch.uint8)}

    def _log_ratio(self, exponent: np.ndarray) -> np.ndarray:
        """ln(1 - q + q e^exponent)."""
        if self._rate == 1:
            return exponent
        return np.logaddexp(np.log1p(-self._rate), np.log(self._rate) + exponent)

    def _filtered(self, signs: Tensor, which: Tensor | slice) -> Tensor:
        """Return the canaries' contributions to a sum, ``(canaries, coordinates)`` float64."""
        layers = self._layers[which]
        gradients = (signs * LENGTH)[:, None].expand(layers.shape)
        return filtered(self._filter, gradients, layers, self._deepest).double()
