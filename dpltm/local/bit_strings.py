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
from dpltm.local.channels import Channel, channel, rounded_up
from dpltm.local.encoding import FixedPoint
from dpltm.local.response import MAX_CATEGORIES, Response, whole_numbers
from dpltm.randomness.noise import RandomSource

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
