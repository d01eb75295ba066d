"""What sensitivity, nu and eps1 do to DPLTM's draw, on 15 tickets of densities 0.7^i (privacy-model.md 3.3).

Prints one JSON object: the draw by the paper's sensitivity at several nu and eps1, and by the exact one from 10,000 records.

    python benchmarks/selection_sensitivity.py
"""

import json
import math
from typing import Any

import numpy as np

from dpltm.privacy.selection import SelectionPlan, exponential_probabilities

DENSITIES, RECORDS = tuple(0.7**i for i in range(1, 16)), 10_000


def main() -> None:
    paper = [("paper", nu, eps1) for nu in (2.0, 10.0, 50.0, 1000.0) for eps1 in (0.02, 0.1, 1.0)]
    settings: list[tuple[Any, float, float]] = [("exact", 50.0, 0.1), *paper]
    print(
        json.dumps(
            {f"{rule}, nu {nu:g}, eps1 {eps1:g}": draw(rule, nu, eps1) for rule, nu, eps1 in settings}, indent=1
        )
    )


def draw(rule: Any, nu: float, eps1: float) -> dict[str, Any]:
    """The draw at accuracy 0.97, and how far any draw with these exponents is from a uniform one.

    Exponents lie in an interval of length r. Of n tickets, m have the largest probability with their exponents at the top
    and the others at the bottom: m e^r/(m e^r + n - m) - m/n is at most tanh(r/4), over all m.
    """
    plan = SelectionPlan(eps1=eps1, densities=DENSITIES, records=RECORDS, rule=rule, nu=nu)
    probabilities = exponential_probabilities(plan.scores(np.full(15, 0.97 * RECORDS, dtype=int)), plan.exponent)
    ends = np.append(plan.scores(np.full(15, RECORDS)), 0.0)
    return {
        "sensitivity": plan.sensitivity,
        "total_variation_from_uniform": float(abs(probabilities - 1 / 15).sum() / 2),
        "at_any_accuracy_at_most": math.tanh(plan.exponent * float(np.ptp(ends)) / 4),
        "least": float(probabilities.min()),
        "two_likeliest": sorted((float(p) for p in probabilities), reverse=True)[:2],
    }


if __name__ == "__main__":
    main()
