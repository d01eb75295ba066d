"""Audits: attacks on what is claimed, and lower bounds on epsilon that follow from how well they do.

An audit finds bugs; it proves no guarantee. Its bounds hold with a stated confidence, whatever the attack, so they stay
below a certified epsilon that is true, and exceed one that is wrong enough (docs/privacy-model.md section 7).

Lower bounds follow from **one run**, by counting right guesses (Steinke, Nasr, Jagielski 2023) or by **trade-off functions**
(Mahloujifar, Melis, Chaudhuri 2024), and from **pairs**: many releases of two neighbouring inputs, told apart by a score. If
a mechanism is (epsilon, delta)-DP, a test that says "first" with probability a on the first input, and b on the second, has
a <= e^epsilon b + delta (Kairouz, Oh, Viswanath 2015). One half of the releases decides the test, and the other half is
counted, so that Clopper-Pearson intervals on a and b hold whatever the scores are.

How many coins an audit of a training guesses, and which, is settled before a score is looked at. Two numbers are tried: one
that suits an attack where nothing is wrong, from public numbers alone, and all canaries, which tells most where a bug makes
the attack perfect. Each gets a part of the error that is allowed (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, ndtr, ndtri
from scipy.stats import beta, binom

from dpltm.errors import ArtifactError, InputError
from dpltm.privacy import gdp
from dpltm.privacy.account import Account, Planned
from dpltm.privacy.accountant import profile
from dpltm.privacy.checks import check_delta_alone
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.privacy.pld import Profile
from dpltm.privacy.statement import Certified, Nominal, json_figure, statement

if TYPE_CHECKING:
    from dpltm.training.artifacts import Run
    from dpltm.training.canaries import Observations

MAX_EPSILON = 50.0
"""Largest epsilon of a bound: no number of canaries in reach says more."""


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The chance, or a bound on it, that an (epsilon, delta)-DP release lets ``correct`` of ``guesses`` be right (Steinke,
    Nasr, Jagielski 2023, Theorem 5.2)."""
    if correct == 0:
        return 1.0
    chance = float(expit(epsilon))
    tail = float(binom.sf(correct - 1, guesses, chance))
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, chance)) / np.arange(1, correct + 1)
    return min(1.0, tail + 2 * canaries * delta * float(below.max()))


def epsilon_bound(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """The largest epsilon that so many right guesses refute; 0 where they refute none.

    Guarantees:
        For a release that is (epsilon, delta)-DP, the bound exceeds epsilon with probability at most 1 - ``confidence``,
        over the coins and the release. It asks nothing of the attack, but that ``guesses`` was fixed before.
    """

    def excess(epsilon: float) -> float:
        return p_value(canaries, guesses, correct, epsilon, delta) - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    if excess(MAX_EPSILON) < 0:
        return MAX_EPSILON
    return max(0.0, float(brentq(excess, 0.0, MAX_EPSILON, xtol=1e-9)) - 1e-8)


def least_canaries(confidence: float) -> int:
    """Fewest guesses, all of them right, that refute anything: 2^-r < 1 - ``confidence``."""
    return math.floor(-math.log2(1 - confidence)) + 1


def check_confidence(confidence: float) -> None:
    """Raise InputError for a confidence that is not in [0.5, 1)."""
    if not 0.5 <= confidence < 1:
        raise InputError(f"`confidence`: {confidence:g} is not at least 0.5 and below 1, such as 0.95")


LINES = 200
"""Lines beneath a trade-off function, by which it is replaced."""

LOOSE, TIGHT, HALVINGS = 60.0, 1e-3, 12
"""Epsilons between which a family is searched, and how often the last interval is halved."""


@dataclass(frozen=True)
class TradeOff:
    """A trade-off function from beneath, by a certified profile (Dong, Roth, Su 2022, Proposition 2.12).

    f(alpha) is at least the largest of 1 - delta - e^epsilon alpha, e^-epsilon (1 - delta - alpha), and 0, over ``epsilons``
    and upper bounds ``deltas`` at these, ``(lines,)`` each.
    """

    epsilons: np.ndarray
    deltas: np.ndarray

    @classmethod
    def of(cls, epsilon: Callable[[float], float], delta: Callable[[np.ndarray], np.ndarray]) -> TradeOff:
        """Trade-off function of a profile: epsilon as a function of delta, and delta at ascending epsilons."""
        ends = (epsilon(least) for least in (1e-9, 1e-6, 1e-3))
        epsilons = np.linspace(0.0, min(next((end for end in ends if math.isfinite(end)), LOOSE), 700.0), LINES)
        return cls(epsilons, delta(epsilons))

    def lines(self) -> tuple[np.ndarray, np.ndarray]:
        """Slopes and values at 0 of lines beneath h -> f(1 - h), ``(2 lines + 1,)`` each."""
        growth = np.exp(self.epsilons)
        slopes = np.concatenate([growth, 1 / growth, [0.0]])
        return slopes, np.concatenate([1 - self.deltas - growth, -self.deltas / growth, [0.0]])


def refutes(curve: TradeOff, canaries: int, guesses: int, correct: int, confidence: float) -> bool:
    """Return whether so many right guesses refute a trade-off function f.

    With p_j the chance that j of r guesses for m canaries are right, h_i = sum_{j >= i} j p_j / m, and
    k_i = sum_{j >= i} (r - j) p_j / m: for all i k_{i - 1} >= f(1 - h_i) (Mahloujifar, Melis, Chaudhuri 2024, Theorem 9).

    Suppose v or more are right with chance t. Then p_v = t, and nothing above, asks least of the chances below: k_{i - 1}
    has a least value for i = v, v - 1, ..., 1, and with it h_{i - 1}. Now h_0 + k_0 is r / m times the sum of all chances.
    Where it would exceed r / m, no release with this f lets v guesses be right with chance t.

    Guarantees:
        A release whose trade-off function for one canary more or less is at least ``curve`` is refuted with probability at
        most 1 - ``confidence``.
    """
    if correct == 0:
        return False
    slopes, values = curve.lines()
    allowed, allowance = 1 - confidence, guesses / canaries
    right, wrong = allowed * correct / canaries, allowed * (guesses - correct) / canaries  # h_v and k_v
    for count in range(correct - 1, -1, -1):
        least = float((slopes * right + values).max())
        if least > wrong:
            right += count / (guesses - count) * (least - wrong)
            wrong = least
        if right + wrong > allowance * (1 + 1e-9):
            return True
    return False


def noise_bound(mechanism: NoisySgd, delta: float, refuted: Callable[[TradeOff], bool]) -> float:
    """The largest epsilon of a training like one, with more noise or less, whose trade-off function is refuted; 0 for none.

    With more noise, what is ``refuted`` stays so, and epsilon falls.

    Guarantees:
        A training at least as private as that of epsilon E gets a bound above E only where ``refuted`` errs at E.
    """
    alike = replace(mechanism, sensitivity=1.0, nominal_sensitivity=None)

    def is_refuted(noise: float) -> bool:
        claims = _claims(replace(alike, noise_multiplier=noise))
        return claims is not None and refuted(claims[1])

    def epsilon(noise: float) -> float:
        claims = _claims(replace(alike, noise_multiplier=noise))
        return math.inf if claims is None else claims[0].epsilon(delta)

    low = high = max(mechanism.noise_multiplier, 0.5)
    while not is_refuted(high):  # more noise: a bolder claim
        if epsilon(high) < TIGHT:
            return 0.0
        low, high = high, 2 * high
    if low == high:
        while is_refuted(low):
            if epsilon(low) > LOOSE:
                return epsilon(low)
            low, high = low / 2, low
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_refuted(middle) else (middle, high)
    return epsilon(high)


@lru_cache(maxsize=200)
def _claims(mechanism: NoisySgd) -> tuple[Profile, TradeOff] | None:
    """Profile and trade-off function of a training; None where hardly any noise claims nothing."""
    try:
        of_release = profile((mechanism,))
    except InputError:
        return None
    return of_release, TradeOff.of(of_release.epsilon, of_release.delta)


THRESHOLDS = 40
"""Thresholds that are tried on the half that decides."""


def pair_bound(first: np.ndarray, second: np.ndarray, delta: float, confidence: float) -> float:
    """The bound from scores of independent releases of either input, larger ones for the first; 0 where nothing is refuted.

    Guarantees:
        For an (epsilon, delta)-DP mechanism the bound exceeds epsilon with probability at most 1 - ``confidence``.
    """
    one_sided = 1 - (1 - confidence) / 2

    def bound(half: int, level: float, side: bool) -> float:
        """Of one test: a score above ``level`` speaks for the first input, or its opposite for the second."""
        ours, theirs = first[half::2], second[half::2]
        likely, unlikely = (ours > level, theirs > level) if side else (theirs <= level, ours <= level)
        low = 1 - clopper_pearson(int((~likely).sum()), len(likely), one_sided)
        high = clopper_pearson(int(unlikely.sum()), len(unlikely), one_sided)
        return math.log((low - delta) / high) if low > delta else -math.inf

    levels = np.unique(np.quantile(np.concatenate([first[::2], second[::2]]), np.linspace(0, 1, THRESHOLDS)))
    least = np.nextafter(levels[0], -math.inf)
    tests = [(level, side) for level in (least, *levels) for side in (True, False)]
    return max(0.0, bound(1, *max(tests, key=lambda test: bound(0, *test))))


def clopper_pearson(count: int, trials: int, confidence: float) -> float:
    """An upper bound on a probability, one-sided (Clopper, Pearson 1934), exact for independent trials."""
    return 1.0 if count >= trials else float(beta.ppf(confidence, count + 1, trials - count))


# --- an audit of a training -------------------------------------------------------------------------------------------

METHOD = "white-box canaries in one run"

SHARES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64)
"""Shares of the canaries that may be guessed."""

PLANNED = 0.8
"""Part of the allowed error that the planned number of guesses gets; all canaries get the rest."""


class Guesses(NamedTuple):
    """Guesses, half for the largest scores and half for the smallest, with the error that a bound from them is allowed."""

    guesses: int
    correct: int
    error: float


@lru_cache(maxsize=64)
def planned(canaries: int, mu: float, error: float) -> int:
    """Number of guesses with the best expected bound at delta 0, for scores N(0, 1), or N(mu, 1) of canaries that are in."""
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
    count, error = len(scores), 1 - confidence
    numbers = {count // 2 * 2: error * (1 - PLANNED)}
    best = planned(count, mu, error * PLANNED)
    numbers[best] = numbers.get(best, 0.0) + error * PLANNED
    coins = included[np.argsort(-scores, kind="stable")]
    right = {number: coins[: number // 2].sum() + (~coins[count - number // 2 :]).sum() for number in numbers}
    return tuple(Guesses(number, int(right[number]), part) for number, part in numbers.items())


@dataclass(frozen=True)
class Findings:
    """An attacked claim: what is certified, and claimed by a source (None for no claim of its own), beside a lower bound.

    ``facts`` are what else the answer tells: of a training ``delta``, the number of ``canaries``, the ``confidence`` in all
    ``bounds`` together, the ``guesses`` that they rest on, and an ``estimate``, which is no bound.
    """

    what: str
    certified: Certified
    nominal: Nominal | None
    lower_bound: float
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def violates(self) -> list[str]:
        """Names of the claims that the bound refutes."""
        claims = {"certified": self.certified, "nominal": self.nominal}
        return [name for name, claim in claims.items() if claim is not None and self.lower_bound > claim.epsilon]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, without what was attacked."""
        return {
            "lower_bound": self.lower_bound,
            "certified": json_figure(self.certified.epsilon),
            "nominal": None if self.nominal is None else json_figure(self.nominal.epsilon),
            "violates": self.violates,
            **self.facts,
        }


def examine(
    observations: Observations, mechanism: NoisySgd, delta: float, confidence: float = 0.95, accountant: str = "pld"
) -> Findings:
    """Return the findings of an audit of the training ``mechanism``, as it is on record, with the guarantee of ``audit``."""
    check_confidence(confidence)
    canaries, error = len(observations.scores), 1 - confidence
    least = least_canaries(1 - error * PLANNED / 2)
    if canaries < least:
        raise InputError(
            f"`confidence`: {confidence:g} needs at least {least} canaries, and the run has {canaries}; train with a larger"
            " `audit`, such as 1000, or ask for less confidence"
        )
    claims = statement(Planned(Account()).with_mechanism(mechanism), delta, accountant)
    guesses = guess(observations.scores, observations.included, attack_strength(observations, mechanism), confidence)
    one_run = max(epsilon_bound(canaries, part.guesses, part.correct, delta, 1 - part.error / 2) for part in guesses)

    def refuted(curve: TradeOff) -> bool:
        return any(refutes(curve, canaries, part.guesses, part.correct, 1 - part.error / 2) for part in guesses)

    f_dp = noise_bound(mechanism, delta, refuted)
    facts = {
        "delta": claims.certified.delta,
        "method": METHOD,
        "canaries": canaries,
        "confidence": confidence,
        "bounds": {"one_run": one_run, "f_dp": f_dp},
        "estimate": gaussian_epsilon(observations.scores, observations.included, delta, confidence),
        "guesses": [{"guesses": part.guesses, "correct": part.correct} for part in guesses],
    }
    return Findings(METHOD, claims.certified, claims.nominal, max(one_run, f_dp), facts)


def attack_strength(observations: Observations, mechanism: NoisySgd) -> float:
    """mu of an ideal attack on these canaries by the central limit theorem: from public numbers, to plan guesses by."""
    replace_one = mechanism.adjacency == "replace-one"
    change = float(np.median(observations.norms)) * (2 if replace_one else 1)
    noise = mechanism.noise_std / change
    return gdp.clt_mu(noise, mechanism.sampling_rate, mechanism.steps, replace_one=replace_one)


def gaussian_epsilon(scores: np.ndarray, included: np.ndarray, delta: float, confidence: float) -> float:
    """Epsilon at ``delta`` of the mu that the errors suggest, if the release is Gaussian-DP: an estimate, not a bound.

    Of G_mu, false alarms a and misses b give mu = Phi^-1(1 - a) - Phi^-1(b) (Nasr et al. 2023, section 4), here by upper
    Clopper-Pearson bounds. Canaries of one run need not be independent, so the figure refutes nothing.
    """
    order, one_sided = np.argsort(-scores, kind="stable"), 1 - (1 - confidence) / 2
    flagged, passed = included[order[: len(order) // 2]], included[order[len(order) // 2 :]]
    alarms = clopper_pearson(int((~flagged).sum()), int((~included).sum()), one_sided)
    misses = clopper_pearson(int(passed.sum()), int(included.sum()), one_sided)
    if alarms + misses >= 1:
        return 0.0
    return gdp.epsilon(delta, float(ndtri(1 - alarms) - ndtri(misses)))


def audit(run: Run, *, confidence: float = 0.95, delta: float | None = None) -> Findings:
    """Return lower bounds on the epsilon of a training that had canaries, beside what is claimed of it.

    Args:
        run: with its lineage.
        confidence: that all bounds hold with together, in [0.5, 1).
        delta: of every epsilon; None for that of the run.

    Raises:
        InputError: it was not audited, or there were too few canaries for the confidence.
        ArtifactError: its lineage does not hold its training.

    Guarantees:
        If the training is as private as its entry says, a bound above the certified epsilon has probability at most
        1 - ``confidence``, whatever the scores are made of.
    """
    if run.observations is None:
        raise InputError(
            f"{run.label}: has no observations of an audit; train with `audit`, such as 1000, to have it attacked"
        )
    trainings = () if run.entry is None else run.entry.of(NoisySgd)
    if not trainings:
        raise ArtifactError(f"{run.label}: its lineage holds no training of its own")
    options: dict[str, Any] = run.config["options"]
    delta = options["delta"] if delta is None else delta
    check_delta_alone(delta)
    return examine(run.observations, trainings[0], delta, confidence, options["accountant"])
