"""Trade-off functions: what an attacker who must tell two neighbours apart can do (Dong, Roth, Su 2022).

An attacker with false alarms (type I errors) alpha misses (type II errors) at least f(alpha): the largest of
1 - delta - e^epsilon alpha and e^-epsilon (1 - delta - alpha) over all epsilon >= 0 (Proposition 2.12). Any epsilons give a
lower bound on the misses, and the certified delta is an upper bound, so the curve promises what it shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpltm.privacy import gdp
from dpltm.privacy.account import Account
from dpltm.privacy.accountant import central_limit_mu, profile
from dpltm.privacy.mechanisms import Adjacency, Mechanism
from dpltm.privacy.pld import Profile

POINTS = 400
SHOWN = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)  # false alarms that are always among the points of a curve
MIN_DELTA = 1e-10  # delta at which the curve of epsilons ends, or the least that is reached


@dataclass(frozen=True)
class Curves:
    """The privacy of mechanisms as curves; all arrays ascend in their first coordinate.

    Attributes:
        epsilons, deltas: the certified (epsilon, delta) curve, from epsilon 0.
        false_alarms, misses: the certified trade-off function; type I against least type II error.
        mu: of the central limit theorem, nominal; None where it does not apply.
        misses_gdp: G_mu at ``false_alarms``, nominal; None where it does not apply.
    """

    epsilons: np.ndarray
    deltas: np.ndarray
    false_alarms: np.ndarray
    misses: np.ndarray
    mu: float | None
    misses_gdp: np.ndarray | None

    def misses_at(self, false_alarms: float) -> float:
        """Least share of misses at a share of false alarms in [0, 1], from the certified curve."""
        return float(_misses(np.array([false_alarms]), self.epsilons, self.deltas)[0])


def curves(mechanisms: Iterable[Mechanism]) -> Curves:
    """Curves of ``mechanisms`` that ran on the same records; InputError where nothing can be certified."""
    mechanisms = tuple(mechanisms)
    return curves_of_profiles([profile(mechanisms)], central_limit_mu(mechanisms))


def curves_of_account(account: Account) -> Curves:
    """Curves of everything that counts, for any one person; InputError where nothing can be certified."""
    limits = [central_limit_mu(account.mechanisms(piece)) for piece in account.pieces]
    return curves_of_profiles(account.profiles(), None if None in limits else max(filter(None, limits), default=0.0))


def curves_of_profiles(certified: Sequence[Profile], mu: float | None = None) -> Curves:
    """The worst of the profiles at each point: each is of other records, and a neighbour differs in one of them."""
    reached = (max(profile.epsilon(delta) for profile in certified) for delta in np.geomspace(MIN_DELTA, 1, 81)[:-1])
    last = max(next((value for value in reached if math.isfinite(value)), 1.0), 1e-3) if certified else 1e-3
    epsilons = np.linspace(0.0, last, POINTS)
    deltas = np.max([profile.delta(epsilons) for profile in certified], axis=0) if certified else np.zeros(POINTS)
    alphas = np.unique(
        np.concatenate([[0.0, *SHOWN], np.geomspace(1e-6, 0.5, POINTS // 2), np.linspace(0.5, 1.0, POINTS // 2)])
    )
    gaussian = None if mu is None else gdp.trade_off(alphas, mu)
    return Curves(epsilons, deltas, alphas, _misses(alphas, epsilons, deltas), mu, gaussian)


def _misses(alphas: np.ndarray, epsilons: np.ndarray, deltas: np.ndarray) -> np.ndarray:
    """Largest of 0 and the lines that the (epsilon, delta) pairs put under the trade-off function."""
    grown = np.exp(np.minimum(epsilons, 700.0))[:, None]
    steep = 1 - deltas[:, None] - grown * alphas
    flat = (1 - deltas[:, None] - alphas) / grown
    return np.maximum(np.maximum(steep, flat).max(axis=0), 0.0)


def sentence(
    misses: float, false_alarms: float = 0.05, adjacency: Adjacency = "add-remove", unit: str = "record"
) -> str:
    """The curve at one point in a sentence, with shares from 0 to 1; that of misses is rounded down."""
    if adjacency == "replace-one":
        asked, cases = f"which of two {unit}s", "the cases"
    elif unit == "record":
        asked, cases = "whether one person's record", "those whose record was"
    else:
        asked, cases = f"whether any record of one {unit}", "those whose records were"
    return (
        f"at {100 * false_alarms:g} % false alarms, an attacker who asks {asked} was used misses at least"
        f" {math.floor(misses * 1000) / 10:g} % of {cases}"
    )
