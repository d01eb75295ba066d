"""Values as bits: fixed-point numbers of one sign, n whole and m fraction bits, side by side (LATENT, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpltm.errors import InputError

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

    def encode(self, values: np.ndarray) -> tuple[np.ndarray, int]:
        """One merged string of bits for each record: sign, whole and fraction of its first value, then of the next.

        Args:
            values: ``(n, r)`` float32 or float64, z-scores by public statistics. Digits beyond the last bit are dropped;
                what is too large saturates. With a sign
                alone, nothing else is left of them.

        Returns:
            ``(n, ceil(l r / 8))`` uint8, first bit highest; and how many values saturated.

        Raises:
            InputError: a value is not a number.
        """
        if np.isnan(values).any():
            raise InputError("values: some are not numbers; what cannot be compared cannot be encoded")
        count, each = values.shape
        largest, sign = (1 << (self.length - 1)) - 1, np.uint16(1 << (self.length - 1))
        codes = np.zeros((ROWS, -(-each // 8) * 8), dtype=np.uint16)  # all zero beyond the last value
        packed, saturated = np.empty((count, -(-each * self.length // 8)), dtype=np.uint8), 0
        for start in range(0, count, ROWS):
            some = values[start : start + ROWS]
            size = np.abs(some) * 2.0**self.fraction
            saturated += int((size >= largest + 1).sum()) if largest else 0
            code = codes[: len(some)]
            code[:, :each] = np.minimum(size, largest)
            code[:, :each] |= np.signbit(some) * sign
            packed[start : start + ROWS] = _side_by_side(code, self.length)[:, : packed.shape[1]]
        return packed, saturated

    def decode(self, packed: np.ndarray, values: int) -> np.ndarray:
        """The numbers that strings of bits stand for, ``(n, values)`` float32; the inverse, up to dropped digits.

        Of signs alone they are -1 and 1.
        """
        bits = np.unpackbits(packed, axis=1, count=values * self.length).reshape(len(packed), values, self.length)
        places = 2.0 ** (self.whole - 1 - np.arange(self.length - 1, dtype="f4"))
        size = bits[:, :, 1:] @ places.astype("f4") if self.length > 1 else np.float32(1)
        return np.where(bits[:, :, 0] == 1, -size, size).astype("f4")


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
