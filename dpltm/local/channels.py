"""Binary channels and k-ary randomised response, which randomise bits and labels (privacy-model.md 6.1 to 6.3).

Probabilities are whole multiples of 2^-64, so that what is certified is what the coins do, to the last bit of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from itertools import cycle, islice, permutations

import numpy as np

from dpltm.errors import InputError
from dpltm.local import BIT_PROTOCOLS, PROTOCOLS
from dpltm.options import EPSILON, Range
from dpltm.randomness.noise import RandomSource, below

WHOLE = 1 << 64
MAX_CATEGORIES = 1 << 16
BLOCK = 1 << 14  # words at a time: what fits the caches


@dataclass(frozen=True)
class Bit:
    """p and q of a bit, P(1 -> 1) and P(0 -> 1), in units of 2^-64: above 0, below ``WHOLE``."""

    one: int
    zero: int

    @property
    def likelier(self) -> tuple[float, float]:
        """Largest log of P(output | 1) / P(output | 0), and of its inverse, over the two outputs; rounded up."""
        no_one, no_zero = WHOLE - self.one, WHOLE - self.zero
        as_one = max(log_ratio(self.one, self.zero), log_ratio(no_one, no_zero))
        return as_one, max(log_ratio(self.zero, self.one), log_ratio(no_zero, no_one))

    @property
    def epsilon(self) -> float:
        """Epsilon of this bit alone, whichever two inputs are compared: at most |ln| of either ratio."""
        return max(self.likelier)


@dataclass(frozen=True)
class Channel:
    """Independent channels of the bits of one record, for which the pattern is repeated."""

    bits: int
    pattern: tuple[Bit, ...]

    def certified(self, one_hot: bool = False) -> float:
        """Return the least epsilon of the channel, rounded up: a sum, since bits are independent."""
        if one_hot:  # two bits differ, wherever they are: of each place of the pattern, two are enough
            few = islice(cycle(self.pattern), min(self.bits, 2 * len(self.pattern)))
            ratios = [tuple(map(Fraction, bit.likelier)) for bit in few]
            pairs = (rounded_up(left[0] + right[1]) for left, right in permutations(ratios, 2))
            return max(pairs, default=0.0)  # of one bit there is only one such string
        # all bits may differ, each in the direction that tells more
        counts = [len(range(place, self.bits, len(self.pattern))) for place in range(len(self.pattern))]
        sums = (Fraction(bit.epsilon) * count for bit, count in zip(self.pattern, counts, strict=True))
        return rounded_up(sum(sums, Fraction()))

    def probabilities(self) -> tuple[np.ndarray, np.ndarray]:
        """p and q of every bit, float64 ``(bits,)``: what a server needs to know."""
        p, q = zip(*((bit.one / WHOLE, bit.zero / WHOLE) for bit in self.pattern), strict=True)
        return np.resize(p, self.bits), np.resize(q, self.bits)

    def send(self, packed: np.ndarray, source: RandomSource) -> np.ndarray:
        """Return bits as they arrive, fresh coins for each; those that only fill up the last byte are 0.

        Args:
            packed: ``(n, ceil(bits / 8))`` uint8, first bit highest (``numpy.packbits``).
            source: coins; secret.

        Guarantees:
            A bit comes out as 1 with probability exactly one / 2^64 or zero / 2^64, whatever the others do.
        """
        width = packed.shape[1]
        words = np.pad(packed, ((0, 0), (0, -width % 8))).view(np.uint64)
        place = np.arange(64 * words.shape[1]) % len(self.pattern)
        masks = [np.packbits(place == number).view(np.uint64) for number in range(len(self.pattern))]
        at_a_time = max(1, BLOCK // words.shape[1])
        received = np.empty_like(words)
        for start in range(0, len(words), at_a_time):
            block = slice(start, start + at_a_time)
            received[block] = _below(words[block], masks, self.pattern, source)
        sent = np.ascontiguousarray(received.view(np.uint8)[:, :width])
        sent[:, -1] &= 256 - (1 << -self.bits % 8)
        return sent


def channel(protocol: str, bits: int, epsilon: float, alpha: float | None = None) -> Channel:
    """Return the channel of a protocol as its paper defines it, with chances rounded to multiples of 2^-64.

    Args:
        protocol: one of ``BIT_PROTOCOLS``.
        bits: of one record.
        epsilon: what the protocol claims: the nominal figure.
        alpha: of ``WITH_ALPHA``.

    Raises:
        InputError: a number that is out of range, an alpha too many or missing.
    """
    chosen = PROTOCOLS.find(protocol, among=BIT_PROTOCOLS)
    assert chosen.chances is not None
    if (alpha is None) == chosen.has_alpha:
        fix = "needs one, such as 7" if alpha is None else "has none; leave it out"
        raise InputError(f"`alpha`: {protocol} {fix}")
    check("epsilon", epsilon, EPSILON)
    check("alpha", 1 if alpha is None else alpha, Range(high=1e6, above=True))
    check("bits", bits, Range(1, 10**9))
    with localcontext(prec=60):  # far more digits than the 20 of 2^-64
        pairs = chosen.chances(Decimal(epsilon), Decimal(alpha or 0), bits)
        # a 1 a little less likely where it was a 1, a little likelier where it was a 0
        return Channel(bits, tuple(Bit(chance(p), chance(q, ROUND_CEILING)) for p, q in pairs))


def chance(value: Decimal, rounding: str = ROUND_FLOOR) -> int:
    """Return a multiple of 2^-64 next to a chance, neither 0 nor 1: rounded to where it tells less."""
    return min(max(int((value * WHOLE).to_integral_value(rounding)), 1), WHOLE - 1)


def _below(bits: np.ndarray, masks: Sequence[np.ndarray], pattern: Sequence[Bit], source: RandomSource) -> np.ndarray:
    """Return ones where a uniform number of 64 bits is below its bit's threshold; ``masks`` have each bit's places."""
    # numbers are drawn from their highest bit on, all of a word at once, as far as it takes to tell them from thresholds
    flat = bits.reshape(-1)
    places = [np.broadcast_to(mask, bits.shape).reshape(-1) for mask in masks]
    below = np.zeros_like(flat)
    left = np.full_like(flat, ~np.uint64(0))
    at = np.arange(len(flat))
    for height in range(63, -1, -1):
        threshold = np.zeros_like(flat)
        for place, bit in zip(places, pattern, strict=True):
            if bit.one >> height & 1:
                threshold |= place & flat
            if bit.zero >> height & 1:
                threshold |= place & ~flat
        drawn = np.frombuffer(source.random_bytes(8 * len(flat)), dtype=np.uint64)
        below[at] |= left & threshold & ~drawn
        left &= ~(threshold ^ drawn)
        if height % 8 == 0:  # go on with the words that hold an open number
            still = np.flatnonzero(left)
            at, flat, left, places = at[still], flat[still], left[still], [place[still] for place in places]
    return below.reshape(bits.shape)


def log_ratio(a: int, b: int) -> float:
    """ln(a / b), rounded up: never below what it stands for."""
    with localcontext(prec=50):
        return rounded_up(Fraction((Decimal(a) / Decimal(b)).ln()))


def rounded_up(value: Fraction) -> float:
    """Return the least float64 that is not below."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


@dataclass(frozen=True)
class Response:
    """One of ``near`` categories among k arrives with a fixed chance, each e^epsilon times as likely as any other.

    With one near it is randomised response (Warner 1965; Kairouz et al. 2014), with more subset selection (Ye, Barg 2018).
    """

    categories: int
    epsilon: float
    near: int = 1

    def __post_init__(self) -> None:
        check("categories", self.categories, Range(2, MAX_CATEGORIES))
        check("near", self.near, Range(1, self.categories - 1))
        check("epsilon", self.epsilon, EPSILON)

    @property
    def truth(self) -> int:
        """Chance that one of the near categories arrives, in units of 2^-64."""
        with localcontext(prec=60):
            return chance(1 / (1 + (-Decimal(self.epsilon)).exp() * (self.categories - self.near) / self.near))

    @property
    def certified(self) -> float:
        """Local epsilon of what the coins do: log of the largest ratio of chances, over categories and answers."""
        near, other = self.truth * (self.categories - self.near), (WHOLE - self.truth) * self.near
        # rounded coins may make another answer the likelier
        return max(log_ratio(near, other), log_ratio(other, near))

    @property
    def chances(self) -> tuple[float, float]:
        """Chances that any one near category arrives, and any one other."""
        return self.truth / WHOLE / self.near, (WHOLE - self.truth) / WHOLE / (self.categories - self.near)

    def send(self, near: np.ndarray, source: RandomSource) -> np.ndarray:
        """Return a category for each record, on coins of its own: ``(n,)`` int64.

        Args:
            near: ``(n, near)`` categories, different ones in each row.
            source: coins; secret.

        Guarantees:
            Each row is ``certified``-locally private, whatever decides which are near: one of them is reported with chance
            exactly truth / 2^64, and they are exactly as likely as each other; so are all others.
        """
        if len(near) and not (near.min() >= 0 and near.max() < self.categories):
            raise InputError(f"Expected categories from 0 to {self.categories - 1}, not {near.min()} to {near.max()}")
        drawn = np.frombuffer(source.random_bytes(8 * len(near)), dtype=np.uint64)
        inside = near[np.arange(len(near)), below(source, len(near), self.near)]
        # the j-th of those that are not near: past one more category for each near one that is not beyond it
        outside = below(source, len(near), self.categories - self.near)
        passed = (np.sort(near, axis=1) - np.arange(self.near) <= outside[:, None]).sum(1)
        return np.where(drawn < np.uint64(self.truth), inside, outside + passed)


def check(name: str, value: float, within: Range) -> None:
    """Raise InputError unless an argument of that name lies within the range."""
    if value not in within:
        raise InputError(name, value, within.describe("a number" if isinstance(value, float) else "a whole number"))
