"""Phase 2: draw the winning ticket (DPLTM, Algorithm 1, phase 2; docs/privacy-model.md section 3).

Scores are S_i = A_i (1 - nu C_i) (``product``, DPLTM) or S_i = A_i - lambda C_i (``additive``), with A_i the accuracy
of ticket i on the private records as a count over a *public* number of records, and C_i its density.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpltm.errors import InputError
from dpltm.privacy.mechanisms import Adjacency
from dpltm.randomness.noise import RandomSource, uniform

Draw = Literal["exponential", "permute-and-flip"]
Score = Literal["product", "additive"]
Rule = Literal["exact", "paper"]


MAX_EPS1 = 1e6  # largest eps1: exponents would leave float64 beyond


@dataclass(frozen=True)
class SelectionPlan:
    """Settings of a draw, fixed before the private records are looked at.

    Attributes:
        densities: C_i of every candidate, in (0, 1]; public, fixed by the pruning schedule.
        records: public number n0 that counts are divided by; of another metric than accuracy times its scale.
        nu: weight of the density in the product score; 50 in DPLTM.
        lam: weight lambda of the density in the additive score.
        rule: ``exact`` needs predictors that were fixed without the scored records; ``paper`` is DPLTM's Lemma 1.
        fixed_predictors: whether the predictors were fixed without the scored records. If not, one record can move an
            accuracy from 0 to 1.
    """

    eps1: float
    densities: tuple[float, ...]
    records: float
    score: Score = "product"
    nu: float = 50.0
    lam: float = 0.05
    rule: Rule = "exact"
    mechanism: Draw = "exponential"
    adjacency: Adjacency = "add-remove"
    fixed_predictors: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.eps1 <= MAX_EPS1:
            raise InputError(f"`eps1`: {self.eps1:g} is not above 0 and at most {MAX_EPS1:g}; 0.1 is DPLTM's")
        if not self.densities:
            raise InputError("select: the ticket set holds no pruned ticket to draw from")
        if self.rule == "exact" and not self.fixed_predictors:
            raise InputError(
                "`sensitivity`: exact does not hold, since these tickets' predictors were trained on the records to be"
                " scored; score on other records, or use `sensitivity` paper"
            )
        if self.rule == "paper" and self.score == "additive":
            raise InputError("`sensitivity`: paper is stated for `score` product only; use `sensitivity` exact")
        if not self.sensitivity > 0:
            raise InputError(
                f"`nu`: {self.nu:g} makes the sensitivity 0 (all scores are constant, or nu is 1 under the paper's rule),"
                " which no draw can be calibrated to; use another value"
            )

    def scores(self, correct: np.ndarray) -> np.ndarray:
        """Scores for the number of records that each candidate gets right, shape ``(candidates,)``, float64."""
        fraction = np.asarray(correct, dtype=np.float64) / self.records
        if self.rule == "paper":  # whose sensitivity is that of accuracies in [0, 1]
            fraction = np.minimum(fraction, 1.0)
        density = np.asarray(self.densities)
        return fraction * (1 - self.nu * density) if self.score == "product" else fraction - self.lam * density

    @property
    def sensitivity(self) -> float:
        """Delta that the draw is calibrated with: exact max_i |1 - nu C_i| / n0 (product) or 1 / n0 (additive), since one
        record moves one count by one; of the paper |1 - nu| (DPLTM, Lemma 1), as if an accuracy moved from 0 to 1."""
        return abs(1 - self.nu) if self.rule == "paper" else self._slope / self.records

    @property
    def certified_epsilon(self) -> float:
        """The epsilon that holds for the draw: with the paper's rule the true sensitivity is max_i |1 - nu C_i|, and where
        that is above |1 - nu| (nu below 2) it is more than eps1."""
        if self.rule == "exact":
            return self.eps1
        return self.eps1 * max(1.0, self._slope / self.sensitivity)

    @property
    def _slope(self) -> float:
        return max(abs(1 - self.nu * density) for density in self.densities) if self.score == "product" else 1.0

    @property
    def resolution(self) -> float:
        """Difference of two accuracies that makes one candidate twice as likely as another of its density, at the least."""
        return math.log(2) / (self.exponent * self._slope) if self._slope else math.inf

    @property
    def exponent(self) -> float:
        """Factor of a score inside exp: eps1 / (2 Delta), or eps1 / Delta for monotone scores (privacy-model.md 3.1)."""
        monotone = self.score == "additive" and self.adjacency == "add-remove"  # an added record lowers no score
        return self.eps1 / (self.sensitivity if monotone else 2 * self.sensitivity)


def _weights(scores: np.ndarray, exponent: float) -> np.ndarray:
    """exp(exponent (S_i - max S)): 1 for the best, down to 0; nothing overflows."""
    with np.errstate(over="ignore"):
        return np.exp(exponent * (scores - scores.max()))


def exponential_probabilities(scores: np.ndarray, exponent: float) -> np.ndarray:
    """P(i) proportional to exp(exponent S_i)."""
    weights = _weights(scores, exponent)
    return weights / weights.sum()


def draw_exponential(source: RandomSource, scores: np.ndarray, exponent: float) -> int:
    """Position drawn by the exponential mechanism (McSherry and Talwar 2007), by the inverse distribution function."""
    cumulative = np.cumsum(exponential_probabilities(scores, exponent))
    point = uniform(source, 1)[0] * cumulative[-1]
    return int(np.searchsorted(cumulative, point, side="right"))


def draw_permute_and_flip(source: RandomSource, scores: np.ndarray, exponent: float) -> int:
    """Position drawn by permute-and-flip (McKenna and Sheldon 2020): in random order, accept with exp(exponent (S_i - max)),
    which is 1 of a best candidate, so one pass ends."""
    order = np.argsort(uniform(source, len(scores)), kind="stable")
    accept = _weights(scores, exponent)
    coins = uniform(source, len(scores))
    return int(next(index for index, coin in zip(order, coins, strict=True) if coin <= accept[index]))


def permute_and_flip_probabilities(scores: np.ndarray, exponent: float) -> np.ndarray:
    """P(i) = p_i * integral over u in [0, 1] of prod_{j != i} (1 - p_j u) of permute-and-flip, exact.

    i comes at position u of the order and every j before it (each with chance u) was refused. Gauss and Legendre's rule of
    n/2 points integrates the polynomial exactly, with positive terms only, so that no digits cancel.
    """
    accept = _weights(scores, exponent)
    nodes, weights = np.polynomial.legendre.leggauss(len(scores) // 2 + 1)
    refuse = 1 - accept[:, None] * (nodes + 1) / 2
    others = [np.prod(np.delete(refuse, index, axis=0), axis=0) for index in range(len(scores))]
    return accept * (np.array(others) @ weights) / 2


def draw(plan: SelectionPlan, correct: np.ndarray, source: RandomSource) -> int:
    """Position of the winner by ``correct``, private counts of right answers: the one private release of phase 2.

    Guarantees:
        ``plan.certified_epsilon``-DP for the winner alone. Scores, counts and probabilities stay private.
    """
    if len(correct) != len(plan.densities):
        raise InputError(f"Expected {len(plan.densities)} counts, one for each candidate, got {len(correct)}")
    mechanism = draw_exponential if plan.mechanism == "exponential" else draw_permute_and_flip
    return mechanism(source, plan.scores(correct), plan.exponent)


def smallest_within(
    densities: tuple[float, ...], accuracies: tuple[float, ...], dense: float, tolerance: float, max_density: float
) -> int | None:
    """DPLTM's rule for public data: position of the sparsest ticket, at most ``max_density``, within ``tolerance`` of
    the dense one; None if there is none. It looks at accuracies, which must be public, with no protection."""
    good = [
        index
        for index, (density, accuracy) in enumerate(zip(densities, accuracies, strict=True))
        if density <= max_density and accuracy >= dense - tolerance
    ]
    return min(good, key=lambda index: densities[index]) if good else None
