"""What the sensitivity does to the draw: DPLTM's own against the exact one, on 15 tickets (privacy-model.md 3.3).

Densities 0.7^i, accuracy 0.97, nu = 50, eps1 = 0.1, 10,000 records. Prints one JSON object with the exact probabilities.

    python benchmarks/selection_sensitivity.py
"""

import json

import numpy as np

from dpltm.privacy.selection import SelectionPlan, exponential_probabilities


def main() -> None:
    densities = tuple(0.7**i for i in range(1, 16))
    correct = np.full(15, 9_700)
    answer = {}
    for rule in ("paper", "exact"):
        plan = SelectionPlan(eps1=0.1, densities=densities, records=10_000, rule=rule)
        probabilities = exponential_probabilities(plan.scores(correct), plan.exponent)
        answer[rule] = {
            "sensitivity": plan.sensitivity,
            "total_variation_from_uniform": float(abs(probabilities - 1 / 15).sum() / 2),
            "least": float(probabilities.min()),
            "two_likeliest": sorted((float(p) for p in probabilities), reverse=True)[:2],
        }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
