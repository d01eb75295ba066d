"""What a message tells of a record, found out by trying: local mechanisms are run on words of the caller's choice.

A mechanism compares uniform words of 64 bits with thresholds. Served just below and just above what it says its threshold
is, it shows whether that is so, and with it the exact chances of every answer. Each function returns the largest log ratio
of the chances of an answer between any two records, and what is wrong, if anything.
"""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dpltm.local.channels import WHOLE
from dpltm.local.scheme import FixedPoint

Retry = Callable[[np.ndarray, Any], np.ndarray]


class Words:
    """Serves, at each request, the next of some arrays of words, as often as it takes."""

    def __init__(self, *words: np.ndarray) -> None:
        self._words = list(words)

    def random_bytes(self, count: int) -> bytes:
        found = self._words.pop(0).astype(np.uint64).tobytes()
        assert len(found) == count, f"{count} bytes were asked for"
        return found


class Bits:
    """Serves one number to every position of words that are compared from their highest bit on."""

    def __init__(self, number: int) -> None:
        self._number, self._height = number, 63

    def random_bytes(self, count: int) -> bytes:
        bit = self._number >> self._height & 1
        self._height -= 1
        return (b"\xff" if bit else b"\0") * count


class Hashed:
    """Serves a fixed stream, no part of which comes twice."""

    def __init__(self) -> None:
        self._turn = 0

    def random_bytes(self, count: int) -> bytes:
        self._turn += 1
        return hashlib.shake_256(f"{self._turn}".encode()).digest(count)


def same_coins(retry: Retry, query: np.ndarray) -> bool:
    """Whether records that are all alike always get the same answer."""
    alike = np.repeat(query[:1], 64, axis=0)
    return len(np.unique(retry(alike, Hashed()), axis=0)) == 1


def told_by_response(means: Any, retry: Retry, query: np.ndarray) -> tuple[float, str]:
    """Of a category that is one of those near the record, such as its label, or another one."""
    truth, near, rest = means.truth, means.near, means.categories - means.near
    for row in query:
        if len(set(row.tolist())) != near or not 0 <= row.min() <= row.max() < means.categories:
            return math.inf, f"near categories are not {near} different ones"
    row = query[0]

    def send(number: int, count: int) -> set[int]:
        """Answers, one for each way of choosing among ``count``."""
        ways, drawn = np.arange(count), np.full(count, number, dtype=np.uint64)
        return set(retry(np.tile(row, (count, 1)), Words(drawn, ways % near, ways % rest)).tolist())

    theirs = set(row.tolist())
    if send(0, near) != theirs or send(truth - 1, near) != theirs:
        return math.inf, "the chance of a near category is another one"
    if not send(truth, rest) == send(WHOLE - 1, rest) == set(range(means.categories)) - theirs:
        return math.inf, "the other categories are not all of those that are not near"
    return abs(math.log(truth * rest / ((WHOLE - truth) * near))), ""


def told_by_bits(means: Any, retry: Retry, query: np.ndarray) -> tuple[float, str]:
    """Of independent bits."""
    bits, period = means.bits, len(means.pattern)
    total = 0.0
    for value in (0, 1):
        sent = np.packbits(np.full((1, bits), value, dtype=np.uint8), axis=1)
        for place, bit in enumerate(means.pattern):
            threshold = bit.one if value else bit.zero
            for number, expected in ((threshold - 1, 1), (threshold, 0)):
                arrived = np.unpackbits(retry(sent, Bits(number)), axis=1, count=bits)[0, place::period]
                if (arrived != expected).any():
                    return math.inf, "the chance of a bit is another one"
    for place, bit in enumerate(means.pattern):
        ratios = (math.log(bit.one / bit.zero), math.log((WHOLE - bit.one) / (WHOLE - bit.zero)))
        total += max(abs(one) for one in ratios) * len(range(place, bits, period))
    assert query.shape[1] == -(-bits // 8)
    return total, ""


def decoded(form: FixedPoint, packed: np.ndarray, values: int) -> np.ndarray:
    """The numbers that strings of bits stand for, ``(n, values)`` float32, up to dropped digits; of signs alone -1 and 1."""
    bits = np.unpackbits(packed, axis=1, count=values * form.length).reshape(len(packed), values, form.length)
    places = 2.0 ** (form.whole - 1 - np.arange(form.length - 1, dtype="f4"))
    size = bits[:, :, 1:] @ places.astype("f4") if form.length > 1 else np.float32(1)
    return np.where(bits[:, :, 0] == 1, -size, size).astype("f4")
