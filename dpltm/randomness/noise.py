"""Randomness for privacy: where the bits come from, and what is made of them.

Draws that privacy rests on (who is sampled, the noise, the winner) come from a cryptographic generator. Tests inject a
seeded source; ``fast`` noise uses a statistical generator keyed by the system's.
"""

from __future__ import annotations

import math
import os
import ssl
from typing import Any, NoReturn, Protocol

import numpy as np

from dpltm.errors import InputError


class RandomSource(Protocol):
    """Anything that yields uniformly random bytes."""

    def random_bytes(self, count: int) -> bytes | memoryview:
        """``count`` independent uniform bytes."""
        ...


class SecureSource:
    """OpenSSL's cryptographic generator, seeded by the operating system's; some ten times quicker than asking that."""

    def random_bytes(self, count: int) -> bytes:
        return ssl.RAND_bytes(count)


class OneProcess:
    """A source with a state, which stays in the process and the object that it began in.

    Guarantees:
        A forked process gets no bytes: they would be those of its parent. Nothing copies or pickles it: a copy would give
        the same bytes once more. Who goes on elsewhere, does so by the state.
    """

    def __init__(self) -> None:
        self._process = os.getpid()

    def check_process(self) -> None:
        """Raises InputError in another process than the one it began in."""
        if os.getpid() != self._process:
            raise InputError(
                "training: it was begun in another process, whose noise this one would repeat; begin anew"
            )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raises InputError: see above."""
        raise InputError(
            "noise: a source of random bits cannot be copied, since both would give the same; make another"
        )


class FastSource(OneProcess):
    """NumPy's SFC64: quick, statistically sound, but not cryptographic; an observer might predict it.

    Args:
        seed: fixed seed, for tests only; the system's generator provides one otherwise.
    """

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        entropy = int.from_bytes(os.urandom(32), "little") if seed is None else seed
        self._generator = np.random.SFC64(entropy)

    @classmethod
    def of(cls, words: bytes) -> FastSource:
        """The source with these 32 bytes as its state."""
        source = cls()
        known: Any = source._generator.state  # what numpy says of its type lets nothing be put in
        known["state"]["state"] = np.frombuffer(words, dtype="<u8").astype(np.uint64)
        source._generator.state = known
        return source

    @property
    def state(self) -> str:
        """All that its further bytes depend on; those before can be computed from it as well."""
        words: Any = self._generator.state["state"]
        return f"sfc64:{words['state'].astype('<u8').tobytes().hex()}"

    def random_bytes(self, count: int) -> bytes:
        """``count`` bytes, in the process that it began in."""
        self.check_process()
        return self._generator.random_raw((count + 7) // 8).tobytes()[:count]


MIN_EPSILON = 1e-6
"""Least epsilon of one noisy count: noise of a million records; the grid of uniform draws, 2^-52, is far finer."""


def two_sided_geometric(source: RandomSource, epsilon: float) -> int:
    """One whole number k with probability proportional to e^(-epsilon |k|): the noise of a count, epsilon-DP.

    The difference of two geometric draws (Ghosh, Roughgarden, Sundararajan 2009). A guarantee of real arithmetic: chances
    below about 2^-52 are not met.

    Args:
        source: random bits.
        epsilon: at least ``MIN_EPSILON``; the count must change by at most one between neighbours.
    """
    if not epsilon >= MIN_EPSILON:
        raise InputError(f"Expected epsilon={epsilon} >= {MIN_EPSILON:g}")
    first, second = (np.floor(np.log(uniform(source, 2)) / -epsilon)).tolist()
    return int(first) - int(second)


def uniform(source: RandomSource, count: int) -> np.ndarray:
    """``count`` float64 values, uniform on the grid (j + 1/2) / 2^52 with 0 <= j < 2^52: all exact, never 0, never 1."""
    return uniform_of(source.random_bytes(8 * count))


def uniform_of(data: bytes | memoryview) -> np.ndarray:
    """The values of :func:`uniform` that these bytes are, 8 a value: j is the upper 52 bits of a word."""
    words = np.frombuffer(data, dtype=np.uint64) >> np.uint64(12)
    words |= np.float64(1).view(np.uint64)  # 1 + j / 2^52, so far
    values = words.view(np.float64)
    values -= 1 - 2.0**-53
    return values


def gaussian(source: RandomSource, count: int) -> np.ndarray:
    """``count`` independent standard normal float64 values, for what is public: releases take ``gaussian_mechanism``."""
    half = (count + 1) // 2
    return box_muller(np.stack([uniform(source, half), uniform(source, half)]), 1.0)[:count]


def box_muller(pairs: np.ndarray, scale: float) -> np.ndarray:
    """Normal values of standard deviation ``scale`` (Box and Muller 1958).

    Args:
        pairs: of uniform numbers u and v, ``(2, half)`` float64; overwritten.
        scale: at least 0.

    Returns:
        ``(2 half,)`` float64: scale sqrt(-2 ln u) times cos(2 pi v), then times sin(2 pi v).
    """
    import torch  # its logarithm, cosine and sine are vectorised in float64, which numpy's are not everywhere

    radius, turn = pairs
    torch.from_numpy(radius).log_()
    radius *= -2.0 * scale * scale
    np.sqrt(radius, out=radius)
    turn *= 2.0 * math.pi
    values, angle = np.empty(pairs.shape), torch.from_numpy(turn)
    torch.cos(angle, out=torch.from_numpy(values[0]))
    torch.sin(angle, out=torch.from_numpy(values[1]))
    values *= radius
    return values.reshape(-1)
