"""The Gaussian mechanism on a public grid, computed as real arithmetic would compute it.

Noise that is drawn and added in float64 reaches some sums and not others, and Mironov (2012) reads the sum from that. Here
every released value is a multiple of a grid step: a power of two that depends on the standard deviation alone. Which
multiple it is, is decided exactly. For a value S and an ideal X ~ N(0, 1) it is

    M(S) = step floor((S + std X) / step + 1/2).                                                                   (1)

This is post-processing of the Gaussian mechanism S + std X. Rounding takes place after the noise, so it adds nothing to the
sensitivity, and the accounting of S + std X holds as it is.

**Proof sketch.** X = sqrt(-2 ln U) cos(2 pi V), or sin (Box and Muller 1958), for real U and V, uniform in (0, 1). Their
first 52 bits are drawn; u and v are the middles of what is left open. Let s = std / step < 2^11, t = (S + std X) / step and
r = sqrt(-2 ln u). For 2^-22 <= u <= 1 - 2^-22, float64 arithmetic gives t up to

    |dt| <= s 2^-53 / (u r) + s r (2^-41 + 2^-40 + 2^-48) + 2^-26 < 2^-22.                                         (2)

The first term is the open bits of U; it is largest at the least u, where r = 5.52: 0.73 times 2^-22. The next are errors
of 2^-40 in ``log`` (relative) and in cosine or sine (absolute; or relative in the tangent of pi v that they are made of,
since their derivatives by its logarithm are at most 1), and the open bits of V with the rounding of pi v and of the products
behind it. The last is the rounding of the sum t, up to 2^28 steps; where S may be larger, it is first split into whole steps
and a rest, without rounding. So unless t is within 2^-22 of a half, or u is beyond these ends (together one coordinate in a
million), any continuation of the bits gives the multiple that float64 gives.

Those others are computed again with 256 further bits of U and of V: to 320 bits, and where that leaves t within 2^-80 of a
half, to 600. That is wrong at most where t is within 2^-130 of a half, or where U or 1 - U is below 2^-100. So in total
variation

    TV(what is released, M(S)) <= 2^-98 per coordinate.                                                            (3)

What that adds to delta, and what is assumed, is in docs/privacy-model.md 4.4.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from dpltm.randomness.noise import RandomSource, box_muller, uniform_of

if TYPE_CHECKING:
    from mpmath.ctx_mp import MPContext


GRID_BITS = 10  # a standard deviation is at least 2^10 grid steps, and less than 2^11
AT_ONCE = 2**16  # coordinates that get their noise at a time, so that what is computed with stays in a cache
MOST_THREADS, WORTH_A_THREAD = 8, 4  # threads that bits, one block after the other, keep busy; blocks worth one more
SEED = 32  # bytes that further bits of a block come from; drawn in any case, so that no record decides how many
LARGE = 2.0**27  # values from so many steps on are split into whole steps and a rest; noise never reaches 2^14 of them
OPEN = 2.0**-22  # distance to a half, and of a uniform number to 0 or 1, within which float64 is not trusted

_MORE, _PRECISIONS, _CLEAR = 256, (320, 600), 2.0**-80
"""Further bits of a uniform number; bits of arithmetic, more than U has (or mpmath 1.3 takes the logarithm of 1/4 and a
little for that of 1); how far from a half the first of these are enough."""


def grid_step(noise_std: float) -> float:
    """Step of the grid of released values: a power of two, from the public ``noise_std`` > 0 alone."""
    return 2.0 ** max(math.frexp(noise_std)[1] - 1 - GRID_BITS, -900)


def gaussian_mechanism(
    values: np.ndarray, noise_std: float, source: RandomSource, divisor: float | None = None
) -> np.ndarray:
    """Values plus N(0, noise_std^2), rounded to whole multiples of ``grid_step(noise_std)``; zeros have no sign.

    Args:
        values: ``(n,)`` float64, finite, and so is each over the grid step; private. Left as they are.
        noise_std: at least 0; public. With 0, the values are returned as they are.
        divisor: public; where given, what is released is divided by it, and rounded to float32.

    Guarantees:
        The Gaussian mechanism with this noise for these values as they stand, to (3). How many bytes are drawn depends on n
        alone. The same bytes and values give the same result wherever (2) holds, on any number of threads.
    """
    import torch  # as in ``box_muller``

    noisy = np.empty(len(values), np.float64 if divisor is None else np.float32)
    divisor = 1.0 if divisor is None else divisor
    if noise_std == 0:
        return np.divide(values, divisor, out=noisy, casting="same_kind")
    blocks = _blocks(values, source)
    drawing = Lock()

    def work() -> None:
        space = np.empty((3, min(AT_ONCE, len(values) + 1)))
        while True:
            with drawing:  # in order, whoever takes the block
                block = next(blocks, None)
            if block is None:
                return
            place, data = block
            _release(values[place], noise_std, data, noisy[place], divisor, space)

    threads = torch.get_num_threads()
    workers = min(threads, MOST_THREADS, len(values) // (AT_ONCE * WORTH_A_THREAD))
    if workers < 2:
        work()
        return noisy
    try:
        torch.set_num_threads(1)  # what a new thread begins with, or each would have a team of its own
        with ThreadPoolExecutor(workers) as pool:
            others = [pool.submit(work) for _ in range(workers - 1)]
            work()
            for other in others:
                other.result()  # raises what it raised
    finally:
        torch.set_num_threads(threads)
    return noisy


def _blocks(values: np.ndarray, source: RandomSource) -> Iterator[tuple[slice, memoryview]]:
    """Places in ``values``, and the bytes for each."""
    for start in range(0, len(values), AT_ONCE):
        half = (min(AT_ONCE, len(values) - start) + 1) // 2
        yield slice(start, start + AT_ONCE), memoryview(source.random_bytes(16 * half + SEED))


def _release(
    values: np.ndarray, noise_std: float, data: memoryview, noisy: np.ndarray, divisor: float, space: np.ndarray
) -> None:
    """(1) of at least one value, over ``divisor``, into ``noisy``; overwrites ``space``, ``(3, count or more)`` float64."""
    step = grid_step(noise_std)
    count = len(values)
    half = (len(values) + 1) // 2
    pairs = uniform_of(data[SEED:], space[0, : 2 * half]).reshape(2, half)
    doubt = bool(pairs[0].min() < OPEN or pairs[0].max() > 1 - OPEN)
    scale = noise_std / step  # exact, as is whatever else is divided by a power of two
    offset = box_muller(pairs, scale, space[1, : 2 * half])[:count]
    rest = np.multiply(values, 1 / step, out=pairs.reshape(-1)[:count])
    integers: np.ndarray | None = None
    if not (rest.max() < LARGE and rest.min() > -LARGE):
        integers = np.rint(rest)
        rest -= integers  # exact, which with the next lower whole number it would not be for small negative values
    offset += rest
    nearest = np.rint(offset, out=space[2, :count])
    offset -= nearest
    if doubt or offset.max() > 0.5 - OPEN or offset.min() < OPEN - 0.5:
        pairs = uniform_of(data[SEED:]).reshape(2, half)
        at_end = (pairs[0] < OPEN) | (pairs[0] > 1 - OPEN)
        doubtful = (np.abs(offset) > 0.5 - OPEN) | np.concatenate([at_end, at_end])[:count]
        for place in np.flatnonzero(doubtful).tolist():
            pair = place % half
            further = further_bits(bytes(data[:SEED]), pair)
            nearest[place] = exactly(float(rest[place]), scale, pairs[:, pair], further, place >= half)
    if integers is not None:
        nearest += integers
    nearest += 0.0  # or a zero might come with the sign that a sum of zeros has
    np.divide(nearest, divisor / step, out=noisy, casting="same_kind")


def further_bits(seed: bytes, pair: int) -> tuple[int, int]:
    """256 further bits of both uniform numbers of a pair, from the ``SEED`` bytes of its block."""
    data = hashlib.shake_256(seed + pair.to_bytes(4, "little")).digest(_MORE // 4)
    size = _MORE // 8
    return int.from_bytes(data[:size], "little"), int.from_bytes(data[size:], "little")


def exactly(rest: float, scale: float, pair: np.ndarray, further: tuple[int, int], sine: bool) -> float:
    """floor(rest + scale X + 1/2), by arithmetic of ``_PRECISIONS`` bits; X is cosine or sine of the pair."""
    for precision in _PRECISIONS:
        real = _arithmetic(precision)
        first, second = (
            real.ldexp(2 * (int(drawn * 2.0**52) << _MORE | bits) + 1, -53 - _MORE)
            for drawn, bits in zip(pair.tolist(), further, strict=True)
        )
        x = real.sqrt(-2 * real.log(first)) * (real.sinpi if sine else real.cospi)(2 * second)
        shifted = rest + scale * x + 0.5
        nearest = real.floor(shifted)
        if _CLEAR < shifted - nearest < 1 - _CLEAR:
            break
    return float(nearest)


@cache
def _arithmetic(precision: int) -> MPContext:
    from mpmath.ctx_mp import MPContext  # wanted for one coordinate in a million

    real = MPContext()  # of our own: anybody may change the precision of the common one
    real.prec = precision
    return real
