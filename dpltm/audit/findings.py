"""What an audit of a training found: lower bounds, beside what is claimed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpltm.audit import f_dp, one_run
from dpltm.audit.canaries import Observations
from dpltm.audit.estimate import gaussian_epsilon
from dpltm.audit.guessing import PLANNED, Guesses, guess
from dpltm.audit.noise_family import NoiseFamily
from dpltm.audit.one_run import check_confidence
from dpltm.errors import InputError
from dpltm.privacy import gdp
from dpltm.privacy.account import Account, Planned
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.privacy.statement import Certified, Nominal, json_figure, statement

METHOD = "white-box canaries in one run"


@dataclass(frozen=True)
class Findings:
    """Bounds at one confidence, which both hold at together.

    Attributes:
        certified, nominal: what is claimed of the training.
        one_run: the bound by Steinke, Nasr, Jagielski 2023.
        f_dp: that by trade-off functions (Mahloujifar, Melis, Chaudhuri 2024).
        estimate: of a Gaussian-DP release with such scores; no bound.
        canaries: their number.
        guesses: that the bounds rest on.
        confidence: of the bounds.
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
        """The better of the bounds."""
        return max(self.one_run, self.f_dp)

    @property
    def violates(self) -> list[str]:
        """Claims that the bound refutes: ``certified``, ``nominal``."""
        claims = {"certified": self.certified, "nominal": self.nominal}
        return [name for name, claim in claims.items() if claim is not None and self.lower_bound > claim.epsilon]

    def to_json(self) -> dict[str, Any]:
        """As ``dpltm audit`` prints it."""
        nominal = None if self.nominal is None else json_figure(self.nominal.epsilon)
        return {
            "lower_bound": self.lower_bound,
            "certified": json_figure(self.certified.epsilon),
            "nominal": nominal,
            "delta": self.certified.delta,
            "method": METHOD,
            "canaries": self.canaries,
            "confidence": self.confidence,
            "bounds": {"one_run": self.one_run, "f_dp": self.f_dp},
            "estimate": self.estimate,
            "guesses": [{"guesses": one.guesses, "correct": one.correct} for one in self.guesses],
            "violates": self.violates,
        }


def examine(
    observations: Observations, mechanism: NoisySgd, delta: float, confidence: float = 0.95, accountant: str = "pld"
) -> Findings:
    """The findings of an audit.

    Args:
        observations: of the training.
        mechanism: the training, as it is on record.
        delta: of every epsilon.
        confidence: that the bounds hold with, both together, in (0, 1).
        accountant: of the claims.

    Raises:
        InputError: too few canaries for the confidence, or a confidence out of range.

    Guarantees:
        If the training is as private as is on record, a bound above the certified epsilon has probability at most
        1 - ``confidence``, whatever the scores are made of.
    """
    check_confidence(confidence)
    canaries, error = len(observations.scores), 1 - confidence
    least = one_run.least_canaries(1 - error * PLANNED / 2)
    if canaries < least:
        raise InputError(
            f"`confidence`: {confidence:g} needs at least {least} canaries, and the run has {canaries}; train with a larger"
            " `audit`, such as 1000, or ask for less confidence"
        )
    claims = statement(Planned(Account()).with_mechanism(mechanism), delta, accountant)
    found = guess(observations.scores, observations.included, attack_strength(observations, mechanism), confidence)
    by_counting = max(
        one_run.epsilon_bound(canaries, one.guesses, one.correct, delta, 1 - one.error / 2) for one in found
    )
    return Findings(
        claims.certified,
        claims.nominal,
        by_counting,
        _by_trade_off(canaries, found, mechanism, delta),
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


def _by_trade_off(canaries: int, found: tuple[Guesses, ...], mechanism: NoisySgd, delta: float) -> float:
    """The bound over trainings that differ from this one by their noise."""

    def refuted(curve: f_dp.TradeOff) -> bool:
        return any(f_dp.refutes(curve, canaries, one.guesses, one.correct, 1 - one.error / 2) for one in found)

    return NoiseFamily(mechanism, delta).bound(refuted)
