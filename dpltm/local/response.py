"""k-ary randomised response: a category is sent as it is, or as another one (Warner 1965; Kairouz et al. 2014)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext

import numpy as np

from dpltm.errors import InputError
from dpltm.local.channels import MAX_EPSILON, WHOLE, chance, log_distance
from dpltm.randomness.noise import RandomSource

MAX_CATEGORIES = 1 << 16


@dataclass(frozen=True)
class Response:
    """A category among k arrives unchanged with a fixed chance, else as one of the others, all alike.

    Attributes:
        categories: k.
        epsilon: how much likelier the true category is than any other, its logarithm.
    """

    categories: int
    epsilon: float

    def __post_init__(self) -> None:
        if not 2 <= self.categories <= MAX_CATEGORIES:
            raise InputError(f"Expected {self.categories} categories from 2 to {MAX_CATEGORIES}")
        if not 0 < self.epsilon <= MAX_EPSILON:
            raise InputError(f"`epsilon`: {self.epsilon:g} is not a positive number up to {MAX_EPSILON:g}")

    @property
    def truth(self) -> int:
        """Chance that a category arrives unchanged, in units of 2^-64."""
        with localcontext() as context:
            context.prec = 60
            return chance(1 / (1 + (self.categories - 1) * (-Decimal(self.epsilon)).exp()))

    @property
    def certified(self) -> float:
        """Local epsilon of what the coins do: log of the largest ratio of chances, over categories and answers."""
        return log_distance(self.truth * (self.categories - 1), WHOLE - self.truth)

    @property
    def chances(self) -> tuple[float, float]:
        """That a category arrives as itself, and as any one other."""
        return self.truth / WHOLE, (WHOLE - self.truth) / WHOLE / (self.categories - 1)

    def send(self, values: np.ndarray, source: RandomSource) -> np.ndarray:
        """Categories as they arrive, each on coins of its own.

        Args:
            values: ``(n,)`` whole numbers from 0 to k - 1.
            source: coins; secret.

        Guarantees:
            A category stays as it is with probability exactly truth / 2^64; the others are exactly as likely as each other.

        Raises:
            InputError: a value is no category.
        """
        values = whole_numbers(values)
        if len(values) and not (values.min() >= 0 and values.max() < self.categories):
            raise InputError(
                f"Expected categories from 0 to {self.categories - 1}, not {values.min()} to {values.max()}"
            )
        drawn = np.frombuffer(source.random_bytes(8 * len(values)), dtype=np.uint64)
        others = (values + 1 + below(source, len(values), self.categories - 1)) % self.categories
        return np.where(drawn < np.uint64(self.truth), values, others).astype(np.int64)


def below(source: RandomSource, count: int, limit: int) -> np.ndarray:
    """Uniform whole numbers below ``limit``, ``(count,)`` int64; words of the last, incomplete run are drawn anew.

    Args:
        source: coins; secret where what they decide is.
        count: how many numbers.
        limit: from 1 to 2^63.
    """
    last, numbers = WHOLE // limit * limit - 1, np.zeros(count, dtype=np.uint64)
    left = np.arange(count)
    while len(left):
        numbers[left] = np.frombuffer(source.random_bytes(8 * len(left)), dtype=np.uint64)
        left = left[numbers[left] > np.uint64(last)]
    return (numbers % np.uint64(limit)).astype(np.int64)


def whole_numbers(values: np.ndarray) -> np.ndarray:
    """Labels as int64, so that no arithmetic on them wraps.

    Raises:
        InputError: they are of another kind.
    """
    values = np.asarray(values)
    if values.dtype.kind not in "iu":
        raise InputError(f"Expected labels that are whole numbers, not {values.dtype}")
    return values.astype(np.int64)
