"""Is the central limit theorem's epsilon too low, or is it only below a cautious accountant? Lower bounds of delta decide.

What an accountant certifies is an upper bound, and to be below one refutes nothing. So every privacy loss is rounded
down here, and what comes out is at most the true delta, but for what Fourier transforms round, some 1e-11 (dp-
accounting's optimistic estimate; add or remove one record, Poisson sampling). On its usual grid that is far too loose:
steps times half an interval are missing from the loss, 0.7 at 14,062 steps and 1e-4. The grids here miss a few
hundredths of it, 0.2 at most.

Where delta is above what is claimed, no accountant of the same kind can certify the claim: of the worst pair of
datasets, for whoever sees every noisy sum. (Who sees only the last model may learn less.) The claims are what the
theorem states for the rows of Bu, Dong, Long, Su (2020), Tables 1 to 4, and the two epsilons that their Figure 4 keeps
at less noise. Prints one JSON list; nominal is the claim.

    python benchmarks/clt_lower_bounds.py
"""

from __future__ import annotations

import json

from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

from dpltm.privacy import accountant, gdp
from dpltm.privacy.checks import steps_of
from dpltm.privacy.mechanisms import NoisySgd

MNIST, IMDB, ADULT, MOVIELENS = 256 / 60_000, 512 / 25_000, 256 / 29_305, 1 / 80

ROWS = [
    ("MNIST", 1.3, MNIST, 15, 1e-5, None),
    ("MNIST", 1.1, MNIST, 60, 1e-5, None),
    ("MNIST", 0.7, MNIST, 45, 1e-5, None),
    ("MNIST", 0.6, MNIST, 62, 1e-5, None),
    ("MNIST", 0.55, MNIST, 68, 1e-5, None),
    ("MNIST", 0.5, MNIST, 100, 1e-5, None),
    ("IMDb", 0.56, IMDB, 9, 1e-5, None),
    ("Adult", 0.55, ADULT, 18, 1e-5, None),
    ("MovieLens", 0.6, MOVIELENS, 20, 1e-6, None),
    ("Figure 4, for 1.3", 1.06, MNIST, 20, 1e-5, 1.350),
    ("Figure 4, for 0.7", 0.638, MNIST, 70, 1e-5, 8.675),
]
"""What, noise multiplier, sampling rate, epochs, delta; and the epsilon that is claimed, where it is not the theorem's."""


def least_delta(noise: float, rate: float, steps: int, epsilon: float) -> float:
    """A lower bound of delta at ``epsilon``."""
    once = from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        value_discretization_interval=4e-6 if epsilon < 5 else 1.5e-5,  # fine enough to decide, in 2 GB
        pessimistic_estimate=False,
        use_connect_dots=False,
    )
    return float(once.self_compose(steps).get_delta_for_epsilon(epsilon))


def main() -> None:
    rows = []
    for what, noise, rate, epochs, delta, claimed in ROWS:
        steps = steps_of(epochs, rate)
        epsilon = claimed or gdp.epsilon(delta, gdp.clt_mu(noise, rate, steps))
        least = least_delta(noise, rate, steps, epsilon)
        training = NoisySgd(rate, steps, noise)
        rows.append(
            {"what": what, "noise": noise, "epochs": epochs, "delta": delta, "nominal_epsilon": epsilon}
            | {"certified_epsilon": accountant.epsilon([training], delta)}
            | {"delta_at_least_at_nominal": least, "refuted": least > delta}
        )
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
