"""What is certified for a million and ten million steps, beside figures of other methods, and how long each takes.

``least`` and ``most`` enclose the truth: integrals along a contour, with no losses on a grid (tests/support/contour.py).
``dp_accounting`` is its PLD where a grid of 1/30 of a deviation has under a million points, ``rdp`` its Renyi divergences.
``clt`` is the central limit theorem, and no bound: ``clt_error`` is by how much it is off. Add or remove one record. Prints
JSON, row by row to standard error.

    python benchmarks/many_steps.py [--steps 1000000,10000000]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp.rdp_privacy_accountant import _compute_rdp_poisson_subsampled_gaussian as renyi_divergences
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

from contour import epsilons
from dpltm.privacy import accountant, gdp
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.privacy.privacy_loss import SampledGaussianLoss

NOISES = {1e-5: (0.5, 1.0, 5.0), 1e-4: (0.7, 2.0), 1e-3: (1.0, 5.0, 20.0), 1e-2: (5.0, 20.0)}
"""By sampling rate."""

DELTAS, POINTS = (1e-5, 1e-7, 1e-9), 1e6
ORDERS = [1 + 2.0 ** (place / 8) for place in range(-40, 80)]


def timed(figure: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return figure(), round(time.perf_counter() - began, 2)


def theirs(noise: float, rate: float, steps: int) -> Any:
    """dp-accounting's distribution, where it is feasible."""
    loss = SampledGaussianLoss(noise, rate, False)
    width = loss.scale / 30
    if loss.reach / width > POINTS or 20 * loss.scale * math.sqrt(steps) / width > POINTS:
        return None
    return from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=width).self_compose(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="1000000,10000000", metavar="N,...")
    rows = []
    for steps in map(int, parser.parse_args().steps.split(",")):
        for rate, noise in ((rate, noise) for rate, noises in NOISES.items() for noise in noises):
            known, seconds = timed(lambda noise=noise, rate=rate, steps=steps: theirs(noise, rate, steps))
            spent = steps * renyi_divergences(rate, noise, ORDERS)
            for delta in DELTAS:
                training = NoisySgd(rate, steps, noise)
                ours, our_seconds = timed(lambda training=training, delta=delta: accountant.epsilon([training], delta))
                (least, most), contour_seconds = timed(
                    lambda noise=noise, rate=rate, steps=steps, delta=delta, ours=ours: epsilons(
                        noise, rate, steps, delta, ours
                    )
                )
                clt = gdp.epsilon(delta, gdp.clt_mu(noise, rate, steps))
                rows.append(
                    {"steps": steps, "rate": rate, "noise": noise, "delta": delta}
                    | {"least": least, "most": most, "certified": ours, "too_much": ours / least - 1}
                    | {"below_the_truth": ours < least * (1 - 1e-6), "seconds": our_seconds}
                    | {"dp_accounting": None if known is None else known.get_epsilon_for_delta(delta)}
                    | {"dp_accounting_seconds": None if known is None else seconds, "contour_seconds": contour_seconds}
                    | {
                        "rdp": float(compute_epsilon(ORDERS, spent, delta)[0]),
                        "clt": clt,
                        "clt_error": clt / least - 1,
                    }
                )
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
