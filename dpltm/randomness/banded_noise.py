"""Noise that is correlated over steps: banded matrix factorisation (BandMF; Choquette-Choo et al. 2023, arXiv 2306.08153).

Let s_t be the filtered sum of step t, and a_0 = 1, a_1, ..., a_{b-1} the strategy: the b bands of the lower-triangular
Toeplitz matrix C. What is private is u_t = s_t + a_1 s_{t-1} + ... + a_{b-1} s_{t-b+1}, released with independent noise.
What training uses is that times C^-1, whose noise partly cancels in the sum over steps.

**What is released.** With r_t the answer to step t, as the optimizer gets it, and w_t = r_t - s_t its noise:

    r_t = M(s_t - a_1 w_{t-1} - ... - a_{b-1} w_{t-b+1}),     M the Gaussian mechanism of standard deviation std.    (1)

Put w_{t-i} = r_{t-i} - s_{t-i} into it: M gets u_t less a_1 r_{t-1} + ... + a_{b-1} r_{t-b+1}, which was released before. So
r_t is a function of u_t + std X_t and of earlier answers, whatever M rounds to (``gaussian_mechanism``'s proof speaks of any
value), and whatever is rounded behind it (the mean of a step is float32: r_t is *that* number, and w_t holds its rounding).
The noise w is what must be kept, b - 1 vectors; with the answers, it tells the sums.

**Price.** A record is in one of b parts by a public hash of itself, and step t samples part t mod b alone: each of its
records by a coin of chance q (cyclic Poisson sampling). Fix all other coins. Let record r be in part j, and let D lack it.
Its participation at step s = j + k b adds v, |v| <= bound, to s_s, and so a_i v to u_{s+i}, for i < b: in the block of
steps s to s + b - 1 and in no other, since C has b bands and r waits b steps. v depends on answers before s alone. Given
these, take from each value of the block what it would be without r, a function of the answers: what is left is N(0, std^2 I)
without r, and (1 - q) N(0, std^2 I) + q N(v (x) a, std^2 I) with it, |v (x) a| <= bound |a|. That is the pair of one sampled
Gaussian step of sensitivity bound |a|. Blocks compose adaptively, ceil(T / b) of them at most. The law of the other coins
does not depend on r, so joint convexity gives the same for their mixture. This is Theorem 5 of the paper, there for parts of
one size; parts by hash make it hold for add/remove, since nobody else changes part. A replaced record may: then blocks
overlap, and only the bound without sampling is proven (``privacy.mechanisms.over_two_steps``).

**Arithmetic.** (1) is computed in float64. Between neighbours its rounding differs in the steps of a block alone, in each
by at most 2^-52 (b + 2) (|s| + |a|_1 |w|). A coordinate of w is at most 16 std |C^-1|_1, since noise is cut off at 16 std.
The sensitivity is raised by ``SLACK``, which is more than that for up to 2^20 records a step (``check_noise``).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from dpltm.errors import InputError

MOST = 64  # bands, at most: each is a vector of float64 in memory and in checkpoints
SLACK = 2.0**-11  # part of the sensitivity that is left for rounding
_GRID = 2.0**20  # coefficients are whole multiples of its inverse, whatever the last bits of a processor


def norm(strategy: tuple[float, ...]) -> float:
    """|a|, rounded up, with ``SLACK``: times a filter's bound it is the sensitivity of what one participation changes."""
    return math.hypot(*strategy) * (1 + SLACK)


def check_noise(strategy: tuple[float, ...], steps: int, noise_multiplier: float, live: int) -> None:
    """Raise InputError for more noise than ``SLACK`` is enough for."""
    grown = 16 * noise_multiplier * math.sqrt(live) * float(np.abs(_series(strategy, np.eye(1, steps)[0])).sum())
    bands = len(strategy)
    if 2.0**-52 * math.sqrt(bands) * (bands + 2) * (2.0**20 + math.fsum(strategy) * grown) > SLACK:
        raise InputError(f"`noise`: banded cannot have a noise multiplier of {noise_multiplier:.4g}; take secure")


def noise_of_sums(strategy: tuple[float, ...], steps: int) -> np.ndarray:
    """Expected squares of the noise in sums of the first 1, ..., ``steps`` answers, ``(steps,)`` for std 1: of the rows
    of A C^-1, A the matrix of prefix sums."""
    return np.cumsum(_series(np.convolve(strategy, (1.0, -1.0)), np.eye(1, steps)[0]) ** 2)


def squared_error(strategy: tuple[float, ...], steps: int) -> float:
    """Mean over steps of the expected squared error of prefix sums, at noise multiplier 1 and bound 1."""
    return float(np.dot(strategy, strategy) * noise_of_sums(strategy, steps).mean())


@cache
def optimal_strategy(bands: int, steps: int) -> tuple[float, ...]:
    """The coefficients of least ``squared_error``, from those of the optimal strategy without bands, (1 - x)^(-1/2)."""
    from scipy.optimize import minimize

    first, weights = np.eye(1, steps)[0], np.arange(steps, 0, -1.0) / steps

    def error(rest: np.ndarray) -> tuple[float, np.ndarray]:
        a = np.array([1.0, *rest])
        sums = _series(np.convolve(a, (1.0, -1.0)), first)  # a column of A C^-1
        slope = _series(a, sums)  # its derivative by a_i is this, i steps later, with a minus
        square, mean = a @ a, weights @ sums**2
        by = np.array([weights[i:] * sums[i:] @ slope[: steps - i] for i in range(1, bands)])
        return float(np.log(square * mean)), 2 * rest / square - 2 * by / mean

    k = np.arange(1, bands)
    with np.errstate(over="ignore", invalid="ignore"):  # far from the optimum C^-1 may grow without bound
        unbanded = np.cumprod((2 * k - 1) / (2 * k))
        optimum = minimize(error, unbanded, jac=True, method="L-BFGS-B", bounds=[(0, 1)] * (bands - 1))
    return 1.0, *(np.round(optimum.x * _GRID) / _GRID).tolist()


def _series(denominator: ArrayLike, values: np.ndarray) -> np.ndarray:
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], denominator, values))


class BandedNoise:
    """The noise in the last answers, as many as there are bands but one, for sums ``like`` this: secret, as keys are."""

    def __init__(self, strategy: tuple[float, ...], like: Tensor) -> None:
        self._strategy = strategy
        self.noise = torch.zeros(len(strategy) - 1, len(like), dtype=torch.float64, device=like.device)

    def query(self, total: Tensor, step: int) -> Tensor:
        """Return what the Gaussian mechanism gets in place of the sum of a step, ``(live,)`` float64: see (1)."""
        bands = len(self.noise)  # of step t in row t mod kept
        ages = [(step - row - 1) % bands + 1 for row in range(bands)]
        return torch.addmv(total, self.noise.T, self.noise.new_tensor([self._strategy[age] for age in ages]), alpha=-1)

    def keep(self, answer: Tensor, total: Tensor, step: int) -> None:
        """Take in the answer to a step, on the scale of the sum."""
        torch.sub(answer, total, out=self.noise[step % len(self.noise)])
