"""What commands print: random bytes that repeat, and lines that are the same but for machine, time and processor."""

import contextlib
import os
import random
import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpltm
from programs import program

harness = program("tests/golden/harness.py")


@contextlib.contextmanager
def fixed_randomness(key: str) -> Iterator[None]:
    """Random bytes become a function of ``key``, as in tests/golden, where the system's randomness enters.

    That is OpenSSL (noise, sampling, draws), ``os.urandom`` (fast noise) and what ``secrets`` reads (ids, keys of
    fingerprints). So it does not matter which module asks.
    """
    serve = harness.served(key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "RAND_bytes", serve("noise"))
        patch.setattr(os, "urandom", serve("seed"))
        patch.setattr(random, "_urandom", serve("id"))
        yield


class Normal:
    """Replaces what differs between machines and times, in lines without blank ones; numbers ids throughout."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ids = str(folder), dict[str, int]()

    def __call__(self, text: str) -> list[str]:
        text = text.replace(self._folder, "<folder>")
        text = re.sub(r"\b\d{4}-\d\d-\d\d(T[\d:.]+Z| \d\d:\d\d UTC)", "<time>", text)
        text = re.sub(r"\b20\d\d-\d\d-\d\d\b", "<date>", text)
        text = re.sub(rf'(dpltm"?:? "?){re.escape(dpltm.__version__)}\b', r"\1<version>", text)
        text = re.sub(r'("(?:seconds|minutes)": )[\d.e+-]+', r"\1<duration>", text)
        text = re.sub(r"minutes of \d+ cores?", "minutes of <cores>", text)
        text = re.sub(r"(│ seconds +│ )\d+ *", r"\1<duration> ", text)
        text = re.sub(r"(?<![\w.])(?:[0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{12}|[0-9a-f]{8})(?!\w|\.\d)", self._id, text)
        return [line.rstrip() for line in text.splitlines() if line.strip()]

    def _id(self, match: re.Match[str]) -> str:
        return f"<id {self._ids.setdefault(match[0][:8], len(self._ids) + 1)}>"


NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?|\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def close(before: str, one: str, other: str, percent: bool) -> bool:
    """Whether two numbers are the same but for the processor that computed them, as tests/golden has it.

    Args:
        before: what stands before them, which tells what they are.
        one, other: as they are written. Without a point they must be the same.
        percent: whether they are hundredths, of what was measured.
    """
    if not ("." in one and "." in other):
        return one == other
    first, second = (float(text.replace(",", "")) / (100 if percent else 1) for text in (one, other))
    words = re.findall(r"[a-z_]{2,}", before)[-3:]
    if percent or (words[-1:] and words[-1] in harness.MEASURED):
        return harness.same("accuracy", first, second, here=False)
    step = max(_last_place(one), _last_place(other))
    path = "noise" if any("noise" in word for word in words) else "figure"
    return abs(first - second) <= step or harness.same(path, first, second, here=False)


def _last_place(text: str) -> float:
    """What a step of the last digit is worth."""
    digits, _, power = text.partition("e")
    return float(10.0 ** (int(power or 0) - len(digits.partition(".")[2])))


def same(expected: str, found: str) -> bool:
    """Whether two lines are the same: their words exactly, their numbers as ``close`` has it.

    A number of another width moves what stands beside it, so blanks and rules of tables count only where no width differs.
    """
    left, right = list(NUMBER.finditer(expected)), list(NUMBER.finditer(found))
    if len(left) != len(right):
        return False
    words = [NUMBER.sub("0", text) for text in (expected, found)]
    if any(len(a[0]) != len(b[0]) for a, b in zip(left, right, strict=True)):
        words = [re.sub(r"([━─═])\1*", r"\1", re.sub(r" +", " ", text)) for text in words]
    return words[0] == words[1] and all(
        close(expected[: a.start()], a[0], b[0], percent=expected[a.end() :].lstrip(" ").startswith("%"))
        for a, b in zip(left, right, strict=True)
        if a[0] != b[0]
    )
