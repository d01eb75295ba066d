"""Units: one record, or one user with all their records; and what a release for the one says of the other.

At unit ``record`` two datasets are neighbours where they differ in one record; at unit ``user``, under add/remove, where one
has a user more than the other, with whatever records. One ledger may hold releases for both. What they come to together:

- *For a user*, a release for records is worth nothing: a user may have many records, and how many is private. It counts
  as one without a mechanism.
- *For a record*, a release for users under add/remove counts at **twice** its sensitivity, not once. Let D' be D and one
  more rating by user u. No single step between neighbours at unit ``user`` leads from D to D' where u has other ratings: u
  leaves D and comes again with one rating more. A sampled Gaussian step gives s + B g + noise on D and s + B g' + noise on
  D', with what others contribute, s, the same coin B of u, and |g|, |g'| <= C; where the rating is u's only one, g = 0. That
  is what one record replaced by another does, so the pair of the replace-one relation (``SampledGaussianLoss``) dominates
  it, at the sensitivity 2 C. Whatever else is known to be (epsilon, delta)-DP for a user is, by two such steps,
  (2 epsilon, (1 + e^epsilon) delta)-DP for a record; a range of losses is twice as wide; an L1 or L2 sensitivity doubles.
- Under replace-one there is no such rule: a rating replaced by one of another user changes two users.

Two steps also lie between neighbours where a release is on a **range of positions** of a file that fixes no places, under
add/remove, as ledgers before 0.2 have them: a record more or less moves all that follow it, so the range loses one record
and gains another. The same rule holds. Every range of the file is so affected, so all add up; and where one of them was
declared public, a private record may have moved into it, so nothing is certified. Under replace-one nobody moves.

For one pair of neighbours D, D' at unit ``record``, every release is so dominated by a pair of distributions of its own, and
these compose adaptively (Zhu, Dong, Wang 2022, Theorem 10), whatever they came from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from dpltm.errors import InputError
from dpltm.privacy.mechanisms import (
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    Mechanism,
    NoisySgd,
    PrivateSearch,
    Selection,
    TwoSteps,
    Unit,
    Unprotected,
)


def unit_of(mechanisms: Iterable[Mechanism]) -> Unit:
    """The unit that all ``mechanisms`` together protect: ``user`` where every one does."""
    stated = [mechanism.unit for mechanism in mechanisms if not isinstance(mechanism, Unprotected)]
    return "user" if stated and all(unit == "user" for unit in stated) else "record"


def bounds_nothing(mechanism: Mechanism, unit: Unit) -> bool:
    """Whether a mechanism says nothing of this unit, though it does of another."""
    return unit == "user" and mechanism.unit == "record" and not isinstance(mechanism, Unprotected)


def neighbours_between(mechanism: Mechanism, unit: Unit) -> int:
    """How many steps between the mechanism's own neighbours lead from one neighbour at ``unit`` to the other: 1 or 2."""
    return 2 if isinstance(mechanism, TwoSteps) or (unit == "record" and mechanism.unit == "user") else 1


def over_two_steps(mechanism: Mechanism) -> Mechanism:
    """A mechanism as it concerns somebody who is two steps between its neighbours away; at once at most two.

    Raises:
        InputError: one for which there is no such rule.
    """
    match mechanism:
        case TwoSteps():
            return over_two_steps(mechanism.mechanism)
        case NoisySgd():
            noise, bound = mechanism.noise_multiplier / 2, 2 * mechanism.sensitivity
            return replace(mechanism, adjacency="replace-one", noise_multiplier=noise, sensitivity=bound)
        case GaussianRelease():
            noise, bound = mechanism.noise_multiplier / 2, 2 * mechanism.sensitivity
            return replace(mechanism, noise_multiplier=noise, sensitivity=bound)
        case PrivateSearch():
            trainings = tuple(replace(over_two_steps(each), adjacency="replace-one") for each in mechanism.trainings)
            noise = mechanism.score_noise / 2
            return replace(mechanism, adjacency="replace-one", trainings=trainings, score_noise=noise)  # type: ignore[arg-type]
        case Selection():
            return replace(mechanism, certified_epsilon=2 * mechanism.certified_epsilon)
        case LaplaceRelease():
            return replace(mechanism, sensitivity=2 * mechanism.sensitivity)
        case Guarantee():
            growth = math.exp(mechanism.epsilon) if mechanism.epsilon < MAX_EXPONENT else math.inf
            failing = mechanism.delta and (1 + growth) * mechanism.delta
            if failing >= 1:
                return Unprotected(adjacency=mechanism.adjacency, unit=mechanism.unit)
            return replace(mechanism, epsilon=2 * mechanism.epsilon, delta=failing)
    raise InputError(f"the accountant does not know what {type(mechanism).__name__} says of one record")


MAX_EXPONENT = 700.0
"""Beyond this e^x leaves float64."""
