"""LATENT's records: every value in fixed point, every bit through a channel, the label by a response of its own.

What a record spends is the sum over its bits (``Channel.certified``) and its label. The published setting, UER on 92,160
bits, claims 0.5 and certifies 262,984.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import torch
from scipy import special
from torch import Tensor

from dpltm.errors import InputError
from dpltm.local.channels import Channel, channel, rounded_up
from dpltm.local.encoding import FixedPoint
from dpltm.local.response import MAX_CATEGORIES, Response, whole_numbers
from dpltm.noise import RandomSource

LABEL_BYTES = 2
"""Of a label behind the bits, least byte first."""

NORM = 8.0
"""Usual norm of what a network gets: as behind other feature maps."""


@dataclass(frozen=True)
class BitStrings:
    """How records of z-scores become bits that may be seen.

    Attributes:
        values: r, of a record.
        classes: of labels.
        form: how a value is written, l bits.
        protocol: what happens to a bit.
        epsilon: what the protocol claims for all bits of a record.
        alpha: of the protocols that have one.
        label_epsilon: of the response that sends the label; None where labels are declared public.
    """

    values: int
    classes: int
    form: FixedPoint
    protocol: str
    epsilon: float
    alpha: float | None
    label_epsilon: float | None

    def __post_init__(self) -> None:
        if type(self.values) is not int or type(self.classes) is not int:
            raise InputError(
                f"Expected whole numbers of values and classes, not {self.values!r:.40}, {self.classes!r:.40}"
            )
        if self.values < 1:
            raise InputError(f"Expected {self.values} values >= 1")
        if not 2 <= self.classes <= MAX_CATEGORIES:
            raise InputError(f"Expected {self.classes} categories from 2 to {MAX_CATEGORIES}")
        self.channel  # noqa: B018 - refuses what no channel is
        self.response  # noqa: B018

    @cached_property
    def channel(self) -> Channel:
        """Of all bits of a record."""
        return channel(self.protocol, self.values * self.form.length, self.epsilon, self.alpha)

    @cached_property
    def response(self) -> Response | None:
        """Of the label."""
        return None if self.label_epsilon is None else Response(self.classes, self.label_epsilon)

    @property
    def facts(self) -> dict[str, float | None]:
        """What else there is to say of it."""
        return {"bits": self.channel.bits, "alpha": self.alpha, "label_epsilon": self.label_epsilon}

    @property
    def nominal(self) -> float:
        """What is claimed for a record."""
        return self.epsilon + (self.label_epsilon or 0.0)

    @property
    def certified(self) -> float:
        """Local epsilon of a record under replace-one: of any two records, label included unless it is public."""
        label = 0.0 if self.response is None else self.response.certified
        return rounded_up(Fraction(self.channel.certified()) + Fraction(label))

    @property
    def record_bytes(self) -> int:
        """Of a record as it is sent."""
        return -(-self.channel.bits // 8) + LABEL_BYTES

    @property
    def inputs(self) -> int:
        """Numbers that a network gets of a record."""
        return self.channel.bits

    def randomise(self, scores: np.ndarray, labels: np.ndarray, source: RandomSource) -> tuple[np.ndarray, int]:
        """Records as they are sent.

        Args:
            scores: ``(n, r)`` z-scores by public statistics.
            labels: ``(n,)`` whole numbers below ``classes``.
            source: coins; secret.

        Returns:
            ``(n, record_bytes)`` uint8, and how many values saturated: a private number, for the owner alone.

        Guarantees:
            Each row is ``certified``-locally private, on coins of its own.
        """
        labels, (bits, saturated) = whole_numbers(labels), self.form.encode(scores)
        sent = labels if self.response is None else self.response.send(labels, source)
        tail = sent.astype("<u2").view(np.uint8).reshape(len(bits), LABEL_BYTES)
        return np.concatenate([self.channel.send(bits, source), tail], axis=1), saturated

    def without_coins(self, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Public records in the same form, nothing of them randomised."""
        tail = labels.astype("<u2").view(np.uint8).reshape(len(labels), LABEL_BYTES)
        return np.concatenate([self.form.encode(scores)[0], tail], axis=1)

    def check(self, rows: np.ndarray) -> None:
        """Raises InputError if messages, ``(n, record_bytes)``, hold a label that no class has."""
        if len(rows) and self.labels(rows).max() >= self.classes:
            raise InputError(f"a label is {self.labels(rows).max()}, and there are {self.classes} classes")

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """Labels as they arrived, ``(n,)`` int64: as likely another one as the response says."""
        return np.ascontiguousarray(rows[:, -LABEL_BYTES:]).view("<u2")[:, 0].astype(np.int64)

    def read(self, rows: np.ndarray, randomised: bool = True) -> Tensor:
        """What a network gets: for each bit, the mean of what it adds to its value, given how it arrived.

        That knows the channel and takes z-scores for standard normal; it looks at one record alone, and no other.

        Args:
            rows: ``(n, record_bytes)`` uint8.
            randomised: whether they went through the channel.

        Returns:
            ``(n, bits)`` float32; of randomised records the norm is ``NORM``, in the quadratic mean.
        """
        bits = torch.from_numpy(np.unpackbits(rows[:, :-LABEL_BYTES], axis=1, count=self.inputs))
        low, high = self._randomised if randomised else self._plain
        return low + bits * (high - low)

    @cached_property
    def _randomised(self) -> tuple[Tensor, Tensor]:
        return self._means(*self.channel.probabilities())

    @cached_property
    def _plain(self) -> tuple[Tensor, Tensor]:
        return self._means(np.ones(self.inputs), np.zeros(self.inputs))

    def _means(self, p: np.ndarray, q: np.ndarray) -> tuple[Tensor, Tensor]:
        """What a 0 and a 1 that arrive are worth, ``(bits,)`` each: Bayes's rule, bit by bit."""
        share, size = (np.tile(part, self.values) for part in _normal(self.form))
        arrived = share * p + (1 - share) * q
        ones = share * p / np.maximum(arrived, 1e-300)
        zeros = share * (1 - p) / np.maximum(1 - arrived, 1e-300)
        low, high = (self._unit * size * (part - share) for part in (zeros, ones))
        return torch.from_numpy(low.astype("f4")), torch.from_numpy(high.astype("f4"))

    @cached_property
    def _unit(self) -> float:
        """What inputs are multiplied by, so that those of randomised records have norm ``NORM``."""
        share, size = (np.tile(part, self.values) for part in _normal(self.form))
        p, q = self.channel.probabilities()
        arrived = share * p + (1 - share) * q
        # variance of the mean of a bit, given how it arrived
        told = np.square(share * (1 - share) * (p - q)) / np.maximum(arrived * (1 - arrived), 1e-300)
        return NORM / math.sqrt(max(float(np.square(size) @ told), 1e-300))


def _normal(form: FixedPoint) -> tuple[np.ndarray, np.ndarray]:
    """How often each bit of a standard normal value is 1, and by how much that changes the value, ``(length,)`` each."""
    codes = np.arange(1 << (form.length - 1))
    edges = 2 * special.ndtr(codes * 2.0**-form.fraction) - 1
    mass = np.diff(edges, append=1.0)
    places = np.arange(form.length - 2, -1, -1)
    ones = np.array([mass[codes >> place & 1 == 1].sum() for place in places])
    mean = math.sqrt(2 / math.pi)  # of the size of such a value; the sign turns it round
    return np.array([0.5, *ones]), np.array([-2 * mean, *(2.0 ** (places - form.fraction))])
