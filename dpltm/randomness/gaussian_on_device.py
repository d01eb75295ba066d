"""``gaussian_mechanism`` where the sums are: on a GPU, to which only random bits go.

The arithmetic and its proof are those of ``gaussian_mechanism``, (1) to (3), and so are the results, to the bit: the same
bytes are drawn in the same order, and which multiple of the grid step comes out is decided exactly. The assumption on
logarithm, cosine and sine, 2^-40, holds on CUDA, which is within 2 units in the last place of float64.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from dpltm.randomness.gaussian_mechanism import AT_ONCE, LARGE, OPEN, SEED, exactly, further_bits, grid_step
from dpltm.randomness.noise import RandomSource

TOGETHER = 64
"""Blocks of ``AT_ONCE`` coordinates that are computed with at once."""


def gaussian_mechanism_on_device(values: Tensor, noise_std: float, source: RandomSource) -> Tensor:
    """Values plus N(0, noise_std^2), rounded to whole multiples of ``grid_step(noise_std)``.

    Args:
        values: ``(n,)`` float64, finite; private. Left as they are.
        noise_std: at least 0; public. With 0, the values are returned as they are.
        source: random bits.

    Returns:
        ``(n,)`` float64, on the device of ``values``.

    Guarantees:
        Those of ``gaussian_mechanism``, which gives the same for the same bytes.
    """
    if noise_std == 0:
        return values.clone()
    noisy, whole = torch.empty_like(values), len(values) // AT_ONCE * AT_ONCE
    for start in range(0, whole, TOGETHER * AT_ONCE):
        some = slice(start, min(start + TOGETHER * AT_ONCE, whole))
        noisy[some] = _released(values[some].view(-1, AT_ONCE), noise_std, source).view(-1)
    if whole < len(values):
        noisy[whole:] = _released(values[None, whole:], noise_std, source)[0]
    return noisy


def _released(values: Tensor, noise_std: float, source: RandomSource) -> Tensor:
    """(1) of some blocks, ``(blocks, count)``."""
    step, (blocks, count) = grid_step(noise_std), values.shape
    half, scale = (count + 1) // 2, noise_std / step
    drawn, seeds = np.empty((blocks, 2 * half), dtype=np.int64), list[bytes]()
    for words in drawn:
        data = memoryview(source.random_bytes(16 * half + SEED))
        seeds.append(bytes(data[:SEED]))
        words[:] = np.frombuffer(data[SEED:], dtype=np.int64)
    pairs = _uniform(torch.from_numpy(drawn).to(values.device)).view(blocks, 2, half)
    radius, turn = (pairs[:, 0].log() * (-2.0 * scale * scale)).sqrt(), pairs[:, 1] * (2.0 * math.pi)
    offset = torch.cat([turn.cos() * radius, turn.sin() * radius], 1)[:, :count]
    rest = values * (1 / step)  # exact
    whole = torch.where(rest.abs() < LARGE, 0.0, rest.round())
    rest -= whole  # exact
    offset += rest
    nearest = offset.round()
    at_end = (pairs[:, 0] < OPEN) | (pairs[:, 0] > 1 - OPEN)
    doubtful = ((offset - nearest).abs() > 0.5 - OPEN) | torch.cat([at_end, at_end], 1)[:, :count]
    for block, place in doubtful.nonzero().tolist():
        pair = place % half
        nearest[block, place] = exactly(
            float(rest[block, place]),
            scale,
            pairs[block, :, pair].cpu().numpy(),
            further_bits(seeds[block], pair),
            place >= half,
        )
    return (nearest + whole + 0.0) * step


def _uniform(words: Tensor) -> Tensor:
    """``uniform_of`` of words of 64 bits, int64; they are overwritten."""
    words >>= 12
    words &= 2**52 - 1  # the sign has come in from the left
    words |= 1023 << 52  # 1 + j / 2^52, so far
    return words.view(torch.float64).sub_(1 - 2.0**-53)
