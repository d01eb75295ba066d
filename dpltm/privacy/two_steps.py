"""What a release says of two datasets that lie two steps between its neighbours apart.

So it is for a record that is replaced by another, where the release is stated for add/remove: the record leaves, and another
one comes. A sampled Gaussian step gives s + B g + noise on the one dataset and s + B g' + noise on the other, with what
others contribute, s, the same coin B, and |g|, |g'| <= C. That is the pair of the replace-one relation
(``SampledGaussianLoss``) at the sensitivity 2 C, which therefore dominates it. Whatever else is known to be
(epsilon, delta)-DP is, by two such steps, (2 epsilon, (1 + e^epsilon) delta)-DP; a range of losses is twice as wide; a
sensitivity doubles. Every release is so dominated by a pair of distributions of its own, and these compose adaptively
(Zhu, Dong, Wang 2022, Theorem 10), whatever they came from.
"""

from __future__ import annotations

import math
import sys
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
    Unprotected,
)


def over_two_steps(mechanism: Mechanism) -> Mechanism:
    """Return a mechanism as it concerns somebody who is two steps between its neighbours away.

    Raises:
        InputError: one for which there is no such rule.
    """
    match mechanism:
        case NoisySgd():
            noise, bound = mechanism.noise_multiplier / 2, _twice(mechanism.sensitivity)
            return replace(mechanism, adjacency="replace-one", noise_multiplier=noise, sensitivity=bound)
        case GaussianRelease():
            noise, bound = _half(mechanism.noise_multiplier), _twice(mechanism.sensitivity)
            return replace(mechanism, noise_multiplier=noise, sensitivity=bound)
        case PrivateSearch():
            trainings = tuple(replace(over_two_steps(each), adjacency="replace-one") for each in mechanism.trainings)
            noise = _half(mechanism.score_noise)
            return replace(mechanism, adjacency="replace-one", trainings=trainings, score_noise=noise)  # type: ignore[arg-type]
        case Selection():
            return replace(mechanism, certified_epsilon=2 * mechanism.certified_epsilon)
        case LaplaceRelease():
            return replace(mechanism, sensitivity=_twice(mechanism.sensitivity))
        case Guarantee():
            growth = math.exp(mechanism.epsilon) if mechanism.epsilon < MAX_EXPONENT else math.inf
            failing = mechanism.delta and (1 + growth) * mechanism.delta
            if failing >= 1:
                return Unprotected(adjacency=mechanism.adjacency)
            return replace(mechanism, epsilon=_twice(mechanism.epsilon), delta=failing)
        case Unprotected():
            return mechanism
    raise InputError(f"the accountant does not know what {type(mechanism).__name__} says over two steps")


def _twice(value: float) -> float:
    """Without leaving the finite numbers: what is that large costs the most there is either way."""
    return min(2 * value, sys.float_info.max)


def _half(value: float) -> float:
    """Without becoming 0: what is that small costs the most there is either way."""
    return value / 2 or value


MAX_EXPONENT = 700.0
"""Beyond this e^x leaves float64."""
