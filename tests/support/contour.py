"""delta of many Poisson-subsampled Gaussian steps by contour integration: no losses on a grid, no Fourier transform of one.

With L the loss of one step, X its sum over T steps, and K(z) = T ln E e^(z L),

    delta(epsilon) = E (1 - e^(epsilon - X))+ = 1/(2 pi) int e^(K(z) - z epsilon) / (z (z + 1)) dt,    z = theta + i t,

for every theta > 0 (Alghamdi et al. 2022, "The Saddle-Point Accountant"; here as an integral, not its expansion). At the
theta where e^(K - theta epsilon) is least, nothing cancels. Both integrals, over t and in E over the noise x, are of
analytic functions that decay like normal densities, where the trapezoidal rule is exact to rounding; halving the steps
shows it. Over t it takes in e^(2 pi k theta / dt) delta(epsilon + 2 pi k / dt) as well: none below 0, all negligible.

Where a step may tell all with a tiny chance, E e^(theta L) is carried by that chance. So noise beyond x, whose chance over
all steps is at most ``share`` of delta, is left out: what remains is *below* the truth, by no more than that chance.
"""

import math

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import ndtri


class Steps:
    """``steps`` steps at ``rate`` with noise ``sigma`` over the sensitivity, in one direction; ``left_out`` is a chance.

    ``fine`` divides the steps of both integrals.
    """

    def __init__(self, sigma: float, rate: float, steps: int, way: str, left_out: float, fine: float = 1.0) -> None:
        self.steps, self.fine = steps, fine
        s, q, shift = sigma, rate, 0.5 if way == "replaced" else 1.0
        step = min(s / 16, s * s / 8) / fine
        most = 14 * s if way == "added" else s * -float(ndtri(left_out / steps)) + shift
        x = np.arange(-14 * s - shift, most, step)

        def mixed(x: np.ndarray) -> np.ndarray:
            """ln of (1-q) N(0) + q N(shift) over N(0)."""
            whole = shift * (2 * x - shift) / (2 * s * s)
            return np.logaddexp(math.log1p(-q), math.log(q) + whole) if q < 1 else whole

        of_p = 0.0 if way == "added" else mixed(x)
        of_q = {"removed": 0.0, "added": mixed(x), "replaced": mixed(-x)}[way]
        self._losses = of_p - of_q
        self._weight = of_p - ((x / s) ** 2) / 2 + math.log(step / (s * math.sqrt(2 * math.pi)))

    def _tilted(self, theta: float) -> tuple[float, np.ndarray]:
        """K(theta) / T, and the chances of losses under the tilted law."""
        exponent = self._weight + theta * self._losses
        top = exponent.max()
        chances = np.exp(exponent - top)
        return top + math.log(chances.sum()), chances / chances.sum()

    def log_delta(self, epsilon: float) -> float:
        """ln delta(epsilon), but for what is left out."""

        def bound(log: float) -> float:
            return self.steps * self._tilted(math.exp(log))[0] - math.exp(log) * epsilon - log

        grid = np.linspace(math.log(1e-3), math.log(1e7), 70)
        best = int(np.argmin([bound(log) for log in grid]))
        ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        theta = math.exp(minimize_scalar(bound, bounds=ends, method="bounded").x)
        log_mean, chances = self._tilted(theta)
        mean = float(chances @ self._losses)
        kept = chances > 1e-30
        off, chances = self._losses[kept] - mean, chances[kept]
        log_bound = self.steps * log_mean - theta * epsilon
        dt = (
            min(0.12 / math.sqrt(self.steps * float(chances @ off**2)), 2 * math.pi * theta / (30 - log_bound))
            / self.fine
        )
        total, first = 0.0, 0
        while True:
            t = dt * np.arange(first, first + 64)
            z = theta + 1j * t
            log = self.steps * np.log1p(np.expm1(1j * np.outer(t, off)) @ chances)
            terms = np.exp(log + 1j * t * (self.steps * mean - epsilon)) / (z * (z + 1))
            total += float(terms.real.sum()) - (float(terms.real[0]) / 2 if first == 0 else 0.0)
            first += 64
            if np.abs(terms).max() * first < 1e-9 * abs(total):  # they fall by 1 / t^2 or faster
                return log_bound + math.log(total * dt / math.pi)
            if first > 2**20:
                raise ArithmeticError(f"does not converge at epsilon {epsilon}")


def epsilons(
    sigma: float,
    rate: float,
    steps: int,
    delta: float,
    near: float,
    *,
    replace_one: bool = False,
    share: float = 1e-6,
    fine: float = 1.0,
) -> tuple[float, float]:
    """A lower and an upper value of epsilon at ``delta``, which differ by what is left out; sought from ``near`` on."""
    ways = [
        Steps(sigma, rate, steps, way, share * delta, fine)
        for way in (("replaced",) if replace_one else ("removed", "added"))
    ]

    def excess(log: float, delta: float) -> float:
        return max(way.log_delta(math.exp(log)) for way in ways) - math.log(delta)

    low, high = math.log(near / 1.05), math.log(near * 1.05)
    while excess(low, delta) < 0:
        low -= 0.1
    while excess(high, delta * (1 - share)) > 0:
        high += 0.1
    low, high = (math.exp(brentq(excess, low, high, args=(left,), xtol=1e-8)) for left in (delta, delta * (1 - share)))
    return low, high
