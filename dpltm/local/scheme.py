"""Schemes: the features, public statistics and randomisation that owners and server agree on before a record is sent.

All of it is public: made without any private record. A record is sent as one index (``dpltm.local.codebook``), or as bits
as in LATENT: every value in fixed point, every bit through a channel, the label by a response of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.features.feature_map import ROWS as MAPPED
from dpltm.features.feature_map import FeatureMap
from dpltm.features.normalisation import NORM, ChannelStatistics
from dpltm.features.transforms import colours_first
from dpltm.local.channels import MAX_CATEGORIES, Channel, Response, channel, check, rounded_up
from dpltm.local.codebook import Codebook
from dpltm.options import Range
from dpltm.privacy.entry import NO_LINEAGE, Lineage
from dpltm.progress import Step
from dpltm.randomness.noise import RandomSource, uniform
from dpltm.records.split import pieces

MAX_BITS_PER_VALUE = 16


@dataclass(frozen=True)
class FixedPoint:
    """Fixed-point form of a z-score: n bits before the point, m behind it, and a sign."""

    whole: int
    fraction: int

    def __post_init__(self) -> None:
        if min(self.whole, self.fraction) < 0 or self.length > MAX_BITS_PER_VALUE:
            raise InputError(
                f"`format`: {self.whole},{self.fraction} is not two numbers of bits, from 0 to"
                f" {MAX_BITS_PER_VALUE - 1} together, such as 4,5"
            )

    @property
    def length(self) -> int:
        """l, bits of one value."""
        return 1 + self.whole + self.fraction

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return the bits of each record, value by value, ``(n, ceil(l r / 8))`` uint8, first bit highest.

        Args:
            values: ``(n, r)`` float32 or float64, z-scores by public statistics. Digits beyond the last bit are dropped;
                what is too large saturates. How many do is not counted: no epsilon covers that.
        """
        largest = (1 << (self.length - 1)) - 1
        sign = np.uint16(1 << (self.length - 1))
        codes = np.minimum(np.abs(values) * 2.0**self.fraction, largest).astype(np.uint16)
        codes |= np.signbit(values) * sign
        bits = np.unpackbits(codes.astype(">u2").view(np.uint8), axis=1).reshape(*values.shape, MAX_BITS_PER_VALUE)
        return np.packbits(bits[:, :, -self.length :].reshape(len(values), values.shape[1] * self.length), axis=1)


LABEL_BYTES = 2  # of a label behind the bits, least byte first


def _labelled(bits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.concatenate([bits, labels.astype("<u2").view(np.uint8).reshape(len(bits), LABEL_BYTES)], axis=1)


@dataclass(frozen=True)
class BitStrings:
    """Channel that turns records of z-scores into bits that may be seen."""

    values: int
    classes: int
    form: FixedPoint
    protocol: str
    epsilon: float
    alpha: float | None
    label_epsilon: float | None

    def __post_init__(self) -> None:
        check("values", self.values, Range(1))
        check("classes", self.classes, Range(2, MAX_CATEGORIES))
        self.channel  # noqa: B018 - refuses what no channel is
        self.response  # noqa: B018

    @cached_property
    def channel(self) -> Channel:
        return channel(self.protocol, self.bits, self.epsilon, self.alpha)

    @cached_property
    def response(self) -> Response | None:
        return None if self.label_epsilon is None else Response(self.classes, self.label_epsilon)

    @property
    def bits(self) -> int:
        return self.values * self.form.length

    @property
    def nominal(self) -> float:
        """Epsilon that is claimed for a record."""
        return self.epsilon + (self.label_epsilon or 0.0)

    @property
    def certified(self) -> float:
        """Local epsilon of a record under replace-one: of any two records, label included unless it is public."""
        label = 0.0 if self.response is None else self.response.certified
        return rounded_up(Fraction(self.channel.certified()) + Fraction(label))

    @property
    def record_bytes(self) -> int:
        return -(-self.bits // 8) + LABEL_BYTES

    @property
    def labels_are_public(self) -> bool:
        """Tell whether labels are sent as they are."""
        return self.label_epsilon is None

    def randomise(self, scores: np.ndarray, labels: np.ndarray, source: RandomSource) -> np.ndarray:
        """Return records as they are sent, ``(n, record_bytes)`` uint8.

        Args:
            scores: ``(n, r)`` z-scores by public statistics.
            labels: ``(n,)`` int64, below ``classes``.
            source: coins; secret.

        Guarantees:
            Each row is ``certified``-locally private, on coins of its own.
        """
        bits = self.form.encode(scores)
        sent = labels if self.response is None else self.response.send(labels[:, None], source)
        return _labelled(self.channel.send(bits, source), sent)

    def without_coins(self, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Public records in the same form, nothing of them randomised."""
        return _labelled(self.form.encode(scores), labels)

    def check(self, rows: np.ndarray) -> None:
        """Raise InputError if messages, ``(n, record_bytes)``, hold a label that no class has."""
        largest = self.labels(rows).max(initial=0)
        if largest >= self.classes:
            raise InputError(f"a label is {largest}, and there are {self.classes} classes")

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """Labels as they arrived, ``(n,)`` int64: as likely another one as the response says."""
        return np.ascontiguousarray(rows[:, -LABEL_BYTES:]).view("<u2")[:, 0].astype(np.int64)


def _normal(form: FixedPoint) -> tuple[np.ndarray, np.ndarray]:
    """Each bit's chance of 1 in a standard normal value, and how much that changes the value, ``(length,)``."""
    codes = np.arange(1 << (form.length - 1))
    edges = 2 * ndtr(codes * 2.0**-form.fraction) - 1
    mass = np.diff(edges, append=1.0)
    places = np.arange(form.length - 2, -1, -1)
    ones = np.array([mass[codes >> place & 1 == 1].sum() for place in places])
    mean = math.sqrt(2 / math.pi)  # of the size of such a value; the sign turns it round
    return np.array([0.5, *ones]), np.array([-2 * mean, *(2.0 ** (places - form.fraction))])


class Messages:
    """Messages ``(n, record_bytes)`` uint8 as a network wants them, a batch at a time: float32 ``(rows, bits)``.

    Of ``inputs`` "bits" it gets each bit as it arrived (LATENT, III-A9). Of "means" it gets the mean of what that adds to
    its value, by Bayes's rule, with the channel known and z-scores taken for standard normal; of randomised records the norm
    is then ``NORM``, in the quadratic mean. ``randomised`` says whether coins were tossed.
    """

    def __init__(
        self, rows: np.ndarray, answer: BitStrings, randomised: bool = True, inputs: str | None = "means"
    ) -> None:
        self._rows = rows
        self._answer = answer
        self._means = inputs != "bits"
        share, size = (np.tile(part, answer.values) for part in _normal(answer.form))
        p, q = answer.channel.probabilities()
        arrived = share * p + (1 - share) * q
        # variance of the mean of a bit, given how it arrived
        information = np.square(share * (1 - share) * (p - q)) / np.maximum(arrived * (1 - arrived), 1e-300)
        unit = NORM / math.sqrt(max(float(np.square(size) @ information), 1e-300))
        if not randomised:
            p, arrived = np.ones_like(p), share
        ones = share * p / np.maximum(arrived, 1e-300)
        zeros = share * (1 - p) / np.maximum(1 - arrived, 1e-300)
        table = (unit * size * (np.stack([zeros, ones]) - share)).astype("f4")
        self._low, self._high = torch.from_numpy(table)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def labels(self) -> Tensor:
        """As they arrived, ``(n,)`` int64."""
        return torch.from_numpy(self._answer.labels(self._rows))

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        """Return network inputs, ``(rows, bits)`` float32."""
        rows = self._rows[index if isinstance(index, slice) else index.numpy()]
        bits = torch.from_numpy(np.unpackbits(rows[:, :-LABEL_BYTES], axis=1, count=self._answer.channel.bits))
        return self._low + bits * (self._high - self._low) if self._means else bits.float()


VERSION = 1  # part of every id; raised when the same settings give other messages
ROWS = 500  # records at a time
MIN_DEVIATION = 1e-3  # of a feature, over the largest: nothing is blown up more than that
PUBLIC_LABELS = "labels are sent as they are: declared public, and not counted"


@dataclass(frozen=True)
class Scheme:
    """Scheme by which a record becomes a message; ``mean`` and ``deviation`` of public records, ``(features,)`` float32."""

    feature_map: FeatureMap
    mean: np.ndarray
    deviation: np.ndarray
    answer: BitStrings | Codebook
    lineage: Lineage = field(default=NO_LINEAGE, compare=False)

    def __post_init__(self) -> None:
        if self.answer.values != self.feature_map.features:
            raise InputError(f"Expected {self.feature_map.features} values, one a feature, not {self.answer.values}")
        if not (np.isfinite([self.mean, self.deviation]).all() and (self.deviation > 0).all()):
            raise InputError("Expected finite means and finite, positive deviations of features")

    @cached_property
    def id(self) -> str:
        """SHA-256 (hex) over all that decides messages."""
        settings = [VERSION, self.feature_map.id, type(self.answer).__name__, asdict(self.answer)]
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        for value in (self.mean, self.deviation):
            digest.update(value.astype("<f4").tobytes())
        return digest.hexdigest()

    @property
    def notes(self) -> list[str]:
        """What a reader should know of any message."""
        return [PUBLIC_LABELS] if self.answer.labels_are_public else []

    def scores(self, x: np.ndarray) -> np.ndarray:
        """z-scores of records as stored: ``(n, *shape)`` to ``(n, features)`` float32, row by row."""
        return (self.feature_map(x).numpy() - self.mean) / self.deviation

    def messages(
        self, x: np.ndarray, y: np.ndarray, source: RandomSource, step: Step = lambda *_: None, augment: int = 0
    ) -> Iterator[np.ndarray]:
        """Yield the messages of records as stored, some at a time: of each, and of ``augment`` varied images of it."""
        for start in range(0, len(x), ROWS):
            rows, labels = x[start : start + ROWS], y[start : start + ROWS]
            yield self.answer.randomise(self.scores(rows), labels, source)
            for _ in range(augment):
                yield self.answer.randomise(self.scores(varied(rows, source)), labels, source)
            step(start + len(rows))


SHIFT, TURN = 0.1, math.radians(10)  # at most, of a side, and either way (LATENT, IV-A3)


def varied(x: np.ndarray, source: RandomSource) -> np.ndarray:
    """Return images as stored, ``(n, height, width[, colours])``, each moved, turned and perhaps mirrored by ``source``."""
    down, across, turn, mirror = torch.from_numpy(2 * uniform(source, 4 * len(x)) - 1).float().view(4, -1)
    sine, cosine, mirror = (TURN * turn).sin(), (TURN * turn).cos(), mirror.sign()
    places = [mirror * cosine, -sine, 2 * SHIFT * across, mirror * sine, cosine, 2 * SHIFT * down]  # sides are 2 long
    images = colours_first(torch.tensor(x).float())
    grid = functional.affine_grid(torch.stack(places, 1).view(-1, 2, 3), list(images.shape), align_corners=False)
    images = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    return images.permute(0, 2, 3, 1).reshape(x.shape).numpy()


def channel_statistics(plain: FeatureMap, x: np.ndarray) -> ChannelStatistics:
    """Return means and deviations of the channels of a map that has no statistics yet, over public records."""
    blocks = map(plain.transformed, pieces(x, MAPPED))
    mean, deviation = _mean_and_deviation(values.transpose(0, 1).flatten(1).T for values in blocks)
    return ChannelStatistics(mean.float(), deviation.float())


def public_statistics(feature_map: FeatureMap, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of each feature over public records; no deviation is left near zero."""
    mean, deviation = _mean_and_deviation(map(feature_map, pieces(x, ROWS)))
    least = max(MIN_DEVIATION * float(deviation.max()), 1e-12)
    return mean.float().numpy(), deviation.clamp_min(least).float().numpy()


def _mean_and_deviation(blocks: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    parts = [(values.sum(0), values.square().sum(0), len(values)) for values in map(Tensor.double, blocks)]
    total, squares, count = (sum(column) for column in zip(*parts, strict=True))
    mean = total / count
    return mean, (squares / count - mean.square()).clamp_min(0).sqrt()
