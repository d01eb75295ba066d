"""LATENT's records: every value in fixed point, every bit through a channel, the label by a response of its own.

What a record spends is the sum over its bits (``Channel.certified``) and its label. The published setting, UER on 92,160
bits, claims 0.5 and certifies 262,984.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from dpltm.errors import InputError
from dpltm.local.channels import MAX_CATEGORIES, Channel, Response, channel, rounded_up, whole_numbers
from dpltm.randomness.noise import RandomSource

MAX_BITS_PER_VALUE = 16

ROWS = 64
"""Records at a time: what fits the caches."""


@dataclass(frozen=True)
class FixedPoint:
    """How a z-score is written.

    Attributes:
        whole: n, bits before the point.
        fraction: m, bits behind it.
    """

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
        """One merged string of bits for each record: sign, whole and fraction of its first value, then of the next.

        Args:
            values: ``(n, r)`` float32 or float64, z-scores by public statistics. Digits beyond the last bit are dropped;
                what is too large saturates. With a sign
                alone, nothing else is left of them.

        Returns:
            ``(n, ceil(l r / 8))`` uint8, first bit highest. How many values saturated is not counted: it depends on the
            records, and no epsilon covers it.

        Raises:
            InputError: a value is not a number.
        """
        if np.isnan(values).any():
            raise InputError("values: some are not numbers; what cannot be compared cannot be encoded")
        count, each = values.shape
        largest, sign = (1 << (self.length - 1)) - 1, np.uint16(1 << (self.length - 1))
        codes = np.zeros((ROWS, -(-each // 8) * 8), dtype=np.uint16)  # all zero beyond the last value
        packed = np.empty((count, -(-each * self.length // 8)), dtype=np.uint8)
        for start in range(0, count, ROWS):
            some = values[start : start + ROWS]
            size = np.abs(some) * 2.0**self.fraction
            code = codes[: len(some)]
            code[:, :each] = np.minimum(size, largest)
            code[:, :each] |= np.signbit(some) * sign
            packed[start : start + ROWS] = _side_by_side(code, self.length)[:, : packed.shape[1]]
        return packed


def _side_by_side(codes: np.ndarray, length: int) -> np.ndarray:
    """Numbers of ``length`` bits without gaps, highest bit first: ``(n, 8 groups)`` uint16 to ``(n, length groups)`` bytes.

    Eight numbers fill ``length`` bytes exactly; every number reaches into two or three of them.
    """
    eight = np.ascontiguousarray(codes.reshape(len(codes), -1, 8).transpose(2, 0, 1))
    packed = np.zeros((*eight.shape[1:], length), dtype=np.uint8)
    for place in range(8):
        first, end = place * length, (place + 1) * length
        for byte in range(first // 8, (end - 1) // 8 + 1):
            down = end - 8 * (byte + 1)
            packed[:, :, byte] |= (eight[place] >> down if down >= 0 else eight[place] << -down).astype(np.uint8)
    return packed.reshape(len(codes), -1)


LABEL_BYTES = 2
"""Of a label behind the bits, least byte first."""


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

    def randomise(self, scores: np.ndarray, labels: np.ndarray, source: RandomSource) -> np.ndarray:
        """Records as they are sent.

        Args:
            scores: ``(n, r)`` z-scores by public statistics.
            labels: ``(n,)`` whole numbers below ``classes``.
            source: coins; secret.

        Returns:
            ``(n, record_bytes)`` uint8.

        Guarantees:
            Each row is ``certified``-locally private, on coins of its own.
        """
        labels, bits = whole_numbers(labels), self.form.encode(scores)
        sent = labels if self.response is None else self.response.send(labels, source)
        tail = sent.astype("<u2").view(np.uint8).reshape(len(bits), LABEL_BYTES)
        return np.concatenate([self.channel.send(bits, source), tail], axis=1)

    def without_coins(self, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Public records in the same form, nothing of them randomised."""
        tail = labels.astype("<u2").view(np.uint8).reshape(len(labels), LABEL_BYTES)
        return np.concatenate([self.form.encode(scores), tail], axis=1)

    def check(self, rows: np.ndarray) -> None:
        """Raises InputError if messages, ``(n, record_bytes)``, hold a label that no class has."""
        if len(rows) and self.labels(rows).max() >= self.classes:
            raise InputError(f"a label is {self.labels(rows).max()}, and there are {self.classes} classes")

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """Labels as they arrived, ``(n,)`` int64: as likely another one as the response says."""
        return np.ascontiguousarray(rows[:, -LABEL_BYTES:]).view("<u2")[:, 0].astype(np.int64)
