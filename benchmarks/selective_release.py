"""What DPSUR's selective release leaks beside what it accounts for: the trade-off of a worst case, computed.

DPSUR (Fu et al. 2024) takes a noisy DP-SGD step, then a noisy test: the fall of a validation loss, clipped to [-C, C], plus
N(0, (2 C sigma_v)^2), is compared with beta C. A step that passes is kept and released, another one is taken back. Its
accounting charges the T steps that are kept, and T tests. Taken from the paper and its code, JeffffffFu/DPSUR.

The worst case here: a target whose gradient is C along one axis while the others have none there, and a test that passes by
whether the noisy sum exceeds a threshold on this axis. Then steps that hold the target pass more often, and what is released
is no longer a sample at rate q. Only the T accepted sums are looked at; how many tests there were, and how each ended, is
ignored. So the figures refute the rule where the test may be any function of the noisy sum and of what was released before.
One loss of the weights alone does that for one step, whose figures are ``once``: from known weights, it is low beyond the
threshold and high before it. It cannot fall again by the same amount at every later step; that takes a loss that moves on.
(Huang, Xie 2026 dispute the same accounting, without an attack.)

*nominal*: T steps, T tests and both releases for the normalisation, by ``dpltm``'s Renyi accountant, which converts to
epsilon as their code does; T is what the claim has room for. *certified*: every step and every test, as many as are needed
on average, and both releases, by the accountant of everything certified. A training would have to state a limit on them in
advance. The attack looks at neither of the releases.

    python benchmarks/selective_release.py [--accountant pld]
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass

import numpy as np
from scipy.stats import norm

from dpltm.privacy.accountant import epsilon
from dpltm.privacy.mechanisms import NoisySgd

DELTA = 1e-5
STEP = 2e-4
"""Privacy losses are rounded down to multiples of this, so that the delta of a composition comes out too small."""

WINDOW = 80.0
"""Of privacy losses that a composition may have; what lies outside is far below ``DELTA``."""


@dataclass(frozen=True)
class Setting:
    """One training; defaults are those of DPSUR's commands for MNIST.

    Attributes:
        sigma, sigma_v: noise multipliers of a step and of a test.
        claim: epsilon that the training ends at, by the claim.
        beta: threshold of the test over C.
        rate, rate_v: of the samples of a step and of a test.
        sigma_n: noise multiplier of mean and of spread of the features, each of all records: ``--input_norm=BN``.
    """

    sigma: float
    sigma_v: float
    claim: float
    beta: float = -1.0
    rate: float = 1024 / 60000
    rate_v: float = 256 / 60000
    sigma_n: float = 8.0

    def both(self, count: int) -> tuple[NoisySgd, NoisySgd]:
        """So many steps and tests."""
        return NoisySgd(self.rate, count, self.sigma), NoisySgd(self.rate_v, count, self.sigma_v)

    def cost(self, count: int, accountant: str = "pld") -> float:
        """Epsilon of so many steps and tests, and of the normalisation."""
        return epsilon((*self.both(count), NoisySgd(1.0, 2, self.sigma_n)), DELTA, accountant)

    def accepted(self, accountant: str) -> int:
        """Steps that the claim has room for."""
        low, high = 1, 2**15
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.cost(middle, accountant) <= self.claim else (low, middle)
        return low


PUBLISHED = (Setting(2.0, 1.3, 1.0), Setting(1.5, 1.0, 2.0), Setting(1.35, 0.9, 3.0))
"""The commands for MNIST at epsilon 1, 2 and 3."""


@dataclass(frozen=True)
class Found:
    """Of one setting: accepted steps, tests on average, and epsilons.

    Attributes:
        once: lower bound for one accepted step.
        once_claimed: epsilon of one step and one test, by the tightest accountant.
    """

    accepted: int
    tests: int
    nominal: float
    lower_bound: float
    certified: float
    once: float
    once_claimed: float


def released_step(setting: Setting, threshold: float | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """The sum of an accepted step, on a grid, along the target's axis in units of C.

    Args:
        setting: of the training.
        threshold: beyond which the test is likely to pass; None where every step is released.

    Returns:
        Chances with the target and without, the log of their ratio, and how often a step is accepted without.
    """
    at = np.linspace(-12 * setting.sigma, 12 * setting.sigma + 1, 200_001)
    passes = np.ones_like(at)
    if threshold is not None:
        fall, rise = (norm.cdf((setting.beta + sign) / (2 * setting.sigma_v)) for sign in (1, -1))  # their (11), (12)
        passes = np.where(at > threshold, fall, rise)
    plain = norm.pdf(at, 0, setting.sigma)
    without = plain * passes
    ratio = np.log1p(setting.rate * np.expm1((2 * at - 1) / (2 * setting.sigma**2)))
    present = without * np.exp(ratio)
    return (
        present / present.sum(),
        without / without.sum(),
        ratio - math.log(present.sum() / without.sum()),
        without.sum() / plain.sum(),
    )


def composed(chances: np.ndarray, losses: np.ndarray, steps: int) -> float:
    """Epsilon at ``DELTA`` of so many independent steps, from below."""
    size = int(2 ** math.ceil(math.log2(WINDOW / STEP)))
    places = np.floor(losses / STEP).astype(int)
    once = np.bincount(places % size, weights=chances, minlength=size)
    many = np.fft.irfft(np.fft.rfft(once) ** steps, size)
    centre = round(float(places @ chances) * steps)
    values = np.arange(centre - size // 2, centre + size // 2)
    chance, loss = np.maximum(many[values % size], 0.0), values * STEP
    low, high = 0.0, WINDOW / 2
    for _ in range(50):
        middle = (low + high) / 2
        above = loss > middle
        delta = float(chance[above] @ -np.expm1(middle - loss[above]))
        low, high = (middle, high) if delta > DELTA else (low, middle)
    return low


def worst(setting: Setting, steps: int, threshold: float | None) -> float:
    """The larger of both directions."""
    present, without, ratio, _ = released_step(setting, threshold)
    return max(composed(present, ratio, steps), composed(without, -ratio, steps))


def examine(setting: Setting, accountant: str = "rdp") -> Found:
    """The worst of some thresholds; ``accountant`` is of the claim."""
    steps = setting.accepted(accountant)
    thresholds = setting.sigma * np.array([0.5, 1.0, 1.5, 2.0])
    bounds = [worst(setting, steps, threshold) for threshold in thresholds]
    place = int(np.argmax(bounds))
    tests = round(steps / released_step(setting, thresholds[place])[3])
    once = max(worst(setting, 1, threshold) for threshold in thresholds)
    claimed = epsilon(setting.both(1), DELTA)
    return Found(steps, tests, setting.cost(steps, accountant), bounds[place], setting.cost(tests), once, claimed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accountant", choices=("rdp", "pld"), default="rdp", help="of the claim")
    given = parser.parse_args()
    for setting in PUBLISHED:
        print(json.dumps({**asdict(setting), **asdict(examine(setting, given.accountant))}), flush=True)


if __name__ == "__main__":
    main()
