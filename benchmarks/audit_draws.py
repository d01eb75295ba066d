"""How far apart can one record move the chances of a winner? Every neighbour of few candidates, exactly; or draws, counted.

One record more or less changes the count of right answers of any candidates by one, all in one direction. So a count vector
of k candidates has at most 2^(k+1) neighbours, and the chances of every winner follow from the scores in closed form. As a
program, it looks at random counts, and prints a line for each mechanism and score: eps1, what is certified, the largest log
ratio, and what draws from the worst two neighbours show at 95 %.

    python benchmarks/audit_draws.py [--counts 20] [--draws 2000] [--seed 0]
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np

from dpltm.audit import check_confidence, pair_bound
from dpltm.errors import InputError
from dpltm.privacy.selection import SelectionPlan, draw, exponential_probabilities, permute_and_flip_probabilities
from dpltm.randomness.noise import FastSource, RandomSource

FEW = 12
"""Most candidates whose neighbours are enumerated."""


def worst_neighbour(plan: SelectionPlan, correct: np.ndarray) -> tuple[float, np.ndarray]:
    """Exact epsilon of a draw at these counts of at most ``FEW`` candidates, and the counts of the neighbour with the
    largest log ratio, either way round."""
    correct = np.asarray(correct)
    if len(correct) > FEW:
        raise InputError(f"Expected at most {FEW} candidates to enumerate, not {len(correct)}; take draws instead")
    here, worst, found = np.log(chances(plan, correct)), 0.0, correct
    for subset in itertools.product((0, 1), repeat=len(correct)):
        for sign in (1, -1):
            other = correct + sign * np.array(subset)
            if (other < 0).any():
                continue
            loss = float(np.abs(here - np.log(chances(plan, other))).max())
            if loss > worst:
                worst, found = loss, other
    return worst, found


def drawn_bound(
    plan: SelectionPlan, first: np.ndarray, second: np.ndarray, draws: int, confidence: float, source: RandomSource
) -> float:
    """A lower bound on epsilon of the code that draws, by winners of two neighbouring count vectors ``(k,)``.

    Guarantees:
        If a draw is epsilon-DP, the bound exceeds epsilon with probability at most 1 - ``confidence``.
    """
    check_confidence(confidence)
    ratios = np.log(chances(plan, first)) - np.log(chances(plan, second))
    before, after = (
        np.array([ratios[draw(plan, counts, source)] for _ in range(draws)]) for counts in (first, second)
    )
    return pair_bound(before, after, 0.0, confidence)


def chances(plan: SelectionPlan, correct: np.ndarray) -> np.ndarray:
    """Chances that each candidate wins, ``(k,)``, by the formula of the mechanism."""
    scores = plan.scores(correct)
    if plan.mechanism == "exponential":
        return exponential_probabilities(scores, plan.exponent)
    return permute_and_flip_probabilities(scores, plan.exponent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, default=20)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tried = np.random.default_rng(options.seed).integers(0, 21, (options.counts, 4))
    for mechanism, score in itertools.product(("exponential", "permute-and-flip"), ("product", "additive")):
        plan = SelectionPlan(0.5, (0.7, 0.5, 0.35, 0.2), 20, score=score, mechanism=mechanism)
        ratio, counts, other = max(((*worst_neighbour(plan, row), row) for row in tried), key=lambda found: found[0])
        bound = drawn_bound(plan, counts, other, options.draws, 0.95, FastSource(options.seed))
        print(
            f"{mechanism}, {score}: eps1 0.5, certified {plan.certified_epsilon:.3f}, exactly {ratio:.3f}, drawn {bound:.3f}"
        )


if __name__ == "__main__":
    main()
