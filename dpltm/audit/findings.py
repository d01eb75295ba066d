"""Findings of an audit of a training: lower bounds, beside what is claimed.

A bound holds for a number of guesses that depends on no coin, so how many coins are guessed, and which, is settled before a
score is looked at. Two numbers are tried: one that suits the attack as it would be if nothing were wrong, from public
numbers alone, and all canaries, which tells most where a bug makes the attack perfect. Each gets a part of the error that is
allowed (Bonferroni).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from dpltm.audit.bounds import (
    TradeOff,
    check_confidence,
    clopper_pearson,
    epsilon_bound,
    least_canaries,
    noise_bound,
    refutes,
)
from dpltm.errors import ArtifactError, InputError
from dpltm.privacy import gdp
from dpltm.privacy.account import Account, Planned
from dpltm.privacy.checks import check_delta_alone
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.privacy.statement import Certified, Nominal, json_figure, statement
from dpltm.training.artifacts import Run
from dpltm.training.canaries import Observations

METHOD = "white-box canaries in one run"


SHARES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64)
"""Shares of the canaries that may be guessed."""

PLANNED = 0.8
"""Part of the allowed error that the planned number of guesses gets; all canaries get the rest."""


@dataclass(frozen=True)
class Guesses:
    """A number of guesses, half for the largest scores and half for the smallest, how many were right, and the error
    that a bound from them is allowed: 1 minus its confidence."""

    guesses: int
    correct: int
    error: float


@lru_cache(maxsize=64)
def planned(canaries: int, mu: float, error: float) -> int:
    """Number of guesses with the best expected bound at delta 0, for scores N(0, 1), or N(mu, 1) of canaries that are
    in."""
    numbers = [2 * max(1, int(share * canaries / 2)) for share in SHARES]
    accuracy = [_accuracy(number / canaries, min(mu, 30.0)) for number in numbers]
    bounds = [
        epsilon_bound(canaries, number, int(number * right), 0.0, 1 - error)
        for number, right in zip(numbers, accuracy, strict=True)
    ]
    return numbers[int(np.argmax(bounds))]


def _accuracy(share: float, mu: float) -> float:
    """Accuracy on the ``share`` of canaries at both ends; by symmetry, on those with the largest scores."""
    if share >= 1:
        return float(ndtr(mu / 2))
    threshold = brentq(lambda at: ndtr(mu - at) + ndtr(-at) - share, -40.0, 80.0)
    return float(ndtr(mu - threshold) / share)


def guess(scores: np.ndarray, included: np.ndarray, mu: float, confidence: float) -> tuple[Guesses, ...]:
    """Guesses at both numbers for an attack of ``mu`` from public numbers; bounds hold together with ``confidence``."""
    order, count, error = np.argsort(-scores, kind="stable"), len(scores), 1 - confidence
    numbers = {count // 2 * 2: error * (1 - PLANNED)}
    best = planned(count, mu, error * PLANNED)
    numbers[best] = numbers.get(best, 0.0) + error * PLANNED
    return tuple(
        Guesses(
            number, int(included[order[: number // 2]].sum() + (~included[order[count - number // 2 :]]).sum()), part
        )
        for number, part in numbers.items()
    )


@dataclass(frozen=True)
class Attacked:
    """An attacked claim: the certified epsilon, that of its source (None for no claim of its own), and a lower bound."""

    what: str
    certified: float
    nominal: float | None
    lower_bound: float

    @property
    def violates(self) -> list[str]:
        """Names of the claims that the bound refutes."""
        claims = {"certified": self.certified, "nominal": self.nominal}
        return [name for name, epsilon in claims.items() if epsilon is not None and self.lower_bound > epsilon]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, without what was attacked."""
        return {
            "lower_bound": self.lower_bound,
            "certified": json_figure(self.certified),
            "nominal": None if self.nominal is None else json_figure(self.nominal),
            "violates": self.violates,
        }


@dataclass(frozen=True)
class Findings:
    """Bounds at one confidence, which both hold at together.

    Attributes:
        one_run: the bound by Steinke, Nasr, Jagielski 2023.
        f_dp: that by trade-off functions (Mahloujifar, Melis, Chaudhuri 2024).
        estimate: of a Gaussian-DP release with such scores; no bound.
        guesses: that the bounds rest on.
    """

    certified: Certified
    nominal: Nominal | None
    one_run: float
    f_dp: float
    estimate: float
    canaries: int
    guesses: tuple[Guesses, ...]
    confidence: float

    @property
    def lower_bound(self) -> float:
        return max(self.one_run, self.f_dp)

    @property
    def attacked(self) -> Attacked:
        nominal = None if self.nominal is None else self.nominal.epsilon
        return Attacked(METHOD, self.certified.epsilon, nominal, self.lower_bound)

    @property
    def violates(self) -> list[str]:
        return self.attacked.violates

    def to_json(self) -> dict[str, Any]:
        return {
            **self.attacked.to_json(),
            "delta": self.certified.delta,
            "method": METHOD,
            "canaries": self.canaries,
            "confidence": self.confidence,
            "bounds": {"one_run": self.one_run, "f_dp": self.f_dp},
            "estimate": self.estimate,
            "guesses": [{"guesses": each.guesses, "correct": each.correct} for each in self.guesses],
        }


def examine(
    observations: Observations, mechanism: NoisySgd, delta: float, confidence: float = 0.95, accountant: str = "pld"
) -> Findings:
    """Return the findings of an audit of the training ``mechanism``, as it is on record.

    Guarantees:
        If the training is as private as is on record, a bound above the certified epsilon has probability at most
        1 - ``confidence``, whatever the scores are made of.
    """
    check_confidence(confidence)
    canaries, error = len(observations.scores), 1 - confidence
    least = least_canaries(1 - error * PLANNED / 2)
    if canaries < least:
        raise InputError(
            f"`confidence`: {confidence:g} needs at least {least} canaries, and the run has {canaries}; train with a larger"
            " `audit`, such as 1000, or ask for less confidence"
        )
    claims = statement(Planned(Account()).with_mechanism(mechanism), delta, accountant)
    found = guess(observations.scores, observations.included, attack_strength(observations, mechanism), confidence)
    by_counting = max(epsilon_bound(canaries, one.guesses, one.correct, delta, 1 - one.error / 2) for one in found)

    def refuted(curve: TradeOff) -> bool:
        return any(refutes(curve, canaries, one.guesses, one.correct, 1 - one.error / 2) for one in found)

    return Findings(
        claims.certified,
        claims.nominal,
        by_counting,
        noise_bound(mechanism, delta, refuted),
        gaussian_epsilon(observations.scores, observations.included, delta, confidence),
        canaries,
        found,
        confidence,
    )


def attack_strength(observations: Observations, mechanism: NoisySgd) -> float:
    """mu of an ideal attack on these canaries by the central limit theorem: from public numbers, to plan guesses by."""
    replace_one = mechanism.adjacency == "replace-one"
    change = float(np.median(observations.norms)) * (2 if replace_one else 1)
    noise = mechanism.noise_std / change
    return gdp.clt_mu(noise, mechanism.sampling_rate, mechanism.steps, replace_one=replace_one)


def gaussian_epsilon(scores: np.ndarray, included: np.ndarray, delta: float, confidence: float) -> float:
    """Epsilon at ``delta`` of the mu that the errors suggest, if the release is Gaussian-DP: an estimate, not a bound.

    Of G_mu, false alarms a and misses b give mu = Phi^-1(1 - a) - Phi^-1(b) (Nasr et al. 2023, "Tight Auditing of
    Differentially Private Machine Learning", section 4). Upper Clopper-Pearson bounds on a and b make mu a lower bound *if*
    canaries of one run are independent trials and the trade-off function is Gaussian. Neither is certain, so the figure
    refutes nothing. The half with the larger scores is taken to be in.
    """
    taken = np.zeros(len(scores), dtype=bool)
    taken[np.argsort(-scores, kind="stable")[: len(scores) // 2]] = True
    each = 1 - (1 - confidence) / 2
    inside, outside = int(included.sum()), int((~included).sum())
    alarms = clopper_pearson(int((taken & ~included).sum()), outside, each)
    misses = clopper_pearson(int((~taken & included).sum()), inside, each)
    if alarms + misses >= 1:
        return 0.0
    return gdp.epsilon(delta, float(ndtri(1 - alarms) - ndtri(misses)))


def audit(run: Run, *, confidence: float = 0.95, delta: float | None = None) -> Findings:
    """Return lower bounds on the epsilon of a training that had canaries, beside what is claimed of it.

    Args:
        run: with its lineage.
        confidence: that the bounds hold with, both together, in [0.5, 1).
        delta: of every epsilon; None for that of the run.

    Raises:
        InputError: it was not audited, or there were too few canaries for the confidence.
        ArtifactError: its lineage does not hold its training.

    Guarantees:
        If the training is as private as its entry says, a bound above the certified epsilon has probability at most
        1 - ``confidence``.
    """
    if run.observations is None:
        raise InputError(
            f"{run.label}: has no observations of an audit; train with `audit`, such as 1000, to have it attacked"
        )
    options: dict[str, Any] = run.config["options"]
    delta = options["delta"] if delta is None else delta
    check_delta_alone(delta)
    trainings = () if run.entry is None else run.entry.of(NoisySgd)
    if not trainings:
        raise ArtifactError(f"{run.label}: its lineage holds no training of its own")
    return examine(run.observations, trainings[0], delta, confidence, options["accountant"])
