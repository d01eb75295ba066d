"""The Gaussian mechanism on a GPU: noise and rounding are made where the sum is, and the bits of long sums as well.

What is released is (1) of ``gaussian_mechanism``, by its proof and to its bound (3). Which multiple of the grid step
comes out is decided exactly, so the same bytes give the same result, and below ``STRETCHED`` coordinates that of the
processor.

**The bits.** From ``STRETCHED`` coordinates on, each piece of ``PIECE`` of them asks the source for 64 bytes: 32 are a
key of ChaCha20 (RFC 8439), which runs on the GPU in 32-bit integers; from the other 32 come further bits, as everywhere.
No key is used twice, so nonce and first counter are zero. (3) then rests on AES-256 and on ChaCha20. Fewer coordinates
get the source's own bytes, which are there sooner.

**Fused.** ``torch.compile`` makes one kernel of two double rounds, and one of Box-Muller, rounding and the test for
doubt, without fast mathematics; what is wrong, or cannot be compiled, is left uncompiled. Products and sums may be
contracted: that rounds less often, so (2) holds for every way in which a kernel computes t. Doubtful coordinates, each with
chance 2^-20, go to the processor together; running time, which tells how many there are, is not protected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpltm.randomness.gaussian_mechanism import AT_ONCE, LARGE, OPEN, SEED, exactly, further_bits, grid_step
from dpltm.randomness.noise import RandomSource, uniform_of

STRETCHED, PIECE = 2**20, 2**24  # coordinates from which on the device makes bits, and as many get theirs at a time
KEY = 32  # bytes of a key of ChaCha20
_CONSTANT = b"expand 32-byte k"
_QUARTERS = tuple(
    tuple(4 * row + (column + row * diagonal) % 4 for row in range(4)) for diagonal in (0, 1) for column in range(4)
)


def two_double_rounds(words: Tensor) -> Tensor:
    """A fifth of the permutation of ChaCha20 (RFC 8439, 2.3) of each column of ``words``, ``(16, blocks)`` int32."""
    rows = list(words.unbind(0))
    for a, b, c, d in 2 * _QUARTERS:
        for left, right in ((16, 12), (8, 7)):
            rows[a] = rows[a] + rows[b]
            rows[d] = _turned(rows[d] ^ rows[a], left)
            rows[c] = rows[c] + rows[d]
            rows[b] = _turned(rows[b] ^ rows[c], right)
    return torch.stack(rows)


def _turned(word: Tensor, by: int) -> Tensor:
    return (word << by) | ((word >> (32 - by)) & (2**by - 1))  # the sign comes in from the left


def joined(permuted: Tensor, state: Tensor) -> Tensor:
    """Words of 64 bits of the key stream, ``(8, blocks)`` int64."""
    words = permuted + state
    return (words[1::2].long() << 32) | (words[0::2].long() & 0xFFFFFFFF)


def rounded(words: Tensor, values: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """(1) of ``values``, ``(blocks, count)`` float64, as float64 gives it, and where that is in doubt.

    ``words`` are those of U and of V, ``(blocks, 2, half)`` int64, and ``scales`` s, 1 / step and step.
    """
    uniform = (((words >> 12) & (2**52 - 1)).double() + 0.5) * 2.0**-52  # as ``uniform_of``
    radius = (uniform[:, 0].log() * (-2.0 * scales[0] * scales[0])).sqrt()
    turn = uniform[:, 1] * (2.0 * math.pi)
    rest = values * scales[1]  # exact
    integers = torch.where(rest.abs() < LARGE, 0.0, rest.round())
    count = values.shape[1]
    noise = torch.cat([turn.cos() * radius, turn.sin() * radius], 1)[:, :count]
    offset = noise + (rest - integers)  # the last is exact
    nearest = offset.round()
    at_end = (uniform[:, 0] < OPEN) | (uniform[:, 0] > 1 - OPEN)
    doubtful = ((offset - nearest).abs() > 0.5 - OPEN) | torch.cat([at_end, at_end], 1)[:, :count]
    noisy = (nearest + integers) * scales[2]
    return torch.where(noisy == 0, 0.0, noisy), doubtful  # zeros without the sign that a sum of zeros has


class Functions(NamedTuple):
    """The three, compiled or not."""

    rounds: Callable[[Tensor], Tensor] = two_double_rounds
    joined: Callable[[Tensor, Tensor], Tensor] = joined
    rounded: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = rounded


PLAIN = Functions()


def compiled(device: torch.device) -> Functions:
    """Compile all three for ``device``. Raises what the compiler raises, and ArithmeticError if one of them is wrong."""
    options: dict[str, Any] = {
        "use_fast_math": False,
        "cpp.enable_unsafe_math_opt_flag": False,
        "cpp.enable_floating_point_contract_flag": "off",
    }
    fused = Functions._make(torch.compile(function, dynamic=True, options=options) for function in PLAIN)
    state = torch.arange(16 * 96, dtype=torch.int32, device=device).view(16, 96) * 0x9E3779B  # wraps around
    permuted = PLAIN.rounds(state)
    words = PLAIN.joined(permuted, state)
    pairs = words.view(1, 2, 384)
    values = torch.zeros(1, 767, dtype=torch.float64, device=device)
    scales = values.new_tensor([2.0**40, 1.0, 1.0])  # so many steps that an error of 2^-40 shows
    off = fused.rounded(pairs, values, scales)[0] - PLAIN.rounded(pairs, values, scales)[0]
    same = torch.equal(fused.rounds(state), permuted) and torch.equal(fused.joined(permuted, state), words)
    if not (same and float(off.abs().max()) <= 1):
        raise ArithmeticError("torch.compile: what it makes is wrong")
    return fused


@cache
def _functions(device: torch.device) -> Functions:
    try:
        return compiled(device)
    except Exception:  # whatever the compiler lacks, and nothing is spent by it
        return PLAIN


def chacha20(key: bytes | memoryview, count: int, device: torch.device, functions: Functions = PLAIN) -> Tensor:
    """At least ``count`` words of 64 bits of key stream with nonce zero, ``(n,)``: word k of block b at k blocks + b.

    Key and last state on the device are overwritten after use; what earlier rounds leave in freed memory is not.
    """
    blocks = math.ceil(count / 8)
    fixed = torch.from_numpy(np.frombuffer(_CONSTANT + bytes(key), dtype="<i4").astype(np.int32)).to(device)
    state = torch.zeros(16, blocks, dtype=torch.int32, device=device)
    state[:12] = fixed[:, None]
    state[12] = torch.arange(blocks, dtype=torch.int32, device=device)
    permuted = state
    for _ in range(5):
        permuted = functions.rounds(permuted)
    words = functions.joined(permuted, state)
    for secret in (fixed, state, permuted):  # the last of these could be undone
        secret.zero_()
    return words.view(-1)


def gaussian_mechanism_on_device(values: Tensor, noise_std: float, source: RandomSource) -> Tensor:
    """The same as ``gaussian_mechanism`` on the device of ``values``, ``(n,)``, with its guarantees."""
    if noise_std == 0 or not len(values):
        return values.clone()
    stretched = len(values) >= STRETCHED
    functions = _functions(values.device) if stretched and values.is_cuda else PLAIN
    pieces = _stretched(values, source, functions) if stretched else _sent(values, source)
    return torch.cat([_released(*piece, noise_std, functions).view(-1) for piece in pieces])


_Piece = tuple[Tensor, Tensor, list[bytes]]
"""Values, ``(blocks, count)``; words of U and V for them, ``(blocks, 2, half)`` int64; and seeds of further bits."""


def _stretched(values: Tensor, source: RandomSource, functions: Functions) -> Iterator[_Piece]:
    for piece in values.split(PIECE):
        half = (len(piece) + 1) // 2
        data = memoryview(source.random_bytes(SEED + KEY))
        words = chacha20(data[SEED:], 2 * half, values.device, functions)
        yield piece[None], words[: 2 * half].view(1, 2, half), [bytes(data[:SEED])]


def _sent(values: Tensor, source: RandomSource) -> Iterator[_Piece]:
    """The bytes that the processor would draw, in their order."""
    in_batches = len(values) // AT_ONCE * AT_ONCE
    for some in (values[:in_batches].view(-1, AT_ONCE), values[None, in_batches:]):
        if some.numel():
            half = (some.shape[1] + 1) // 2
            data = [memoryview(source.random_bytes(16 * half + SEED)) for _ in some]
            words = np.stack([np.frombuffer(block[SEED:], dtype="<i8") for block in data]).reshape(-1, 2, half)
            yield some, torch.from_numpy(words).to(values.device), [bytes(block[:SEED]) for block in data]


def _released(values: Tensor, words: Tensor, seeds: list[bytes], noise_std: float, functions: Functions) -> Tensor:
    step = grid_step(noise_std)
    half = words.shape[2]
    scale = noise_std / step
    noisy, doubtful = functions.rounded(words, values, values.new_tensor([scale, 1 / step, step]))
    block, place = doubtful.nonzero(as_tuple=True)
    if len(place):
        pair = place % half
        undecided = torch.stack([block, place, *words[block, :, pair].T, values[block, place].view(torch.int64)]).cpu()
        uniform = uniform_of(undecided[2:4].numpy().tobytes()).reshape(2, -1)
        plain = undecided[4].view(torch.float64).tolist()
        decided = []
        for at, (value, (of, where)) in enumerate(zip(plain, undecided[:2].T.tolist(), strict=True)):
            rest = value / step
            integer = 0.0 if abs(rest) < LARGE else float(round(rest))
            further = further_bits(seeds[of], where % half)
            draw = exactly(rest - integer, scale, uniform[:, at], further, where >= half)
            decided.append((draw + integer + 0.0) * step)
        noisy[block, place] = values.new_tensor(decided)
    return noisy
