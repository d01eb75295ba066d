"""The setting of a protocol that certifies a wanted epsilon: the other way round."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dpltm.errors import CalibrationError, InputError
from dpltm.local.channels import MAX_ALPHA, MAX_EPSILON, Channel, channel

MIN_EPSILON = 1e-6
"""Smaller ones come near the grid of chances, 2^-64, once they are shared among many bits."""

TRIED = 400


def largest_epsilon(
    protocol: str, bits: int, wanted: float, alpha: float | None = None, one_hot: bool = False
) -> tuple[float, Channel]:
    """The largest nominal epsilon whose channel certifies ``wanted``, and that channel.

    Args:
        protocol: name of a protocol of bits.
        bits: of a message.
        wanted: certified epsilon, above 0.
        alpha: of the protocol; None where it has none.
        one_hot: whether exactly one bit of a message is set, as the certificate may then assume.

    Returns:
        The nominal epsilon, to a part in 10^12, and its channel.

    Raises:
        CalibrationError: none does; for UER it is alpha that decides.
        InputError: ``wanted`` is not a positive number, no such protocol, or an alpha too many or missing.
    """
    return _largest(
        "epsilon",
        lambda value: channel(protocol, bits, value, alpha),
        wanted,
        (MIN_EPSILON, MAX_EPSILON),
        one_hot,
    )


def largest_alpha(
    protocol: str, bits: int, wanted: float, epsilon: float, one_hot: bool = False
) -> tuple[float, Channel]:
    """The largest alpha, from 1 on, at which the protocol certifies ``wanted``, whatever ``epsilon`` it claims.

    Args:
        protocol: name of a protocol of bits.
        bits: of a message.
        wanted: certified epsilon, above 0.
        epsilon: nominal, what the protocol claims.
        one_hot: as in :func:`largest_epsilon`.

    Returns:
        Alpha, to a part in 10^12, and its channel.

    Raises:
        CalibrationError: none does.
        InputError: ``wanted`` is not a positive number, or a protocol that there is not, or that has no alpha.
    """
    return _largest("alpha", lambda value: channel(protocol, bits, epsilon, value), wanted, (1.0, MAX_ALPHA), one_hot)


def _largest(
    name: str, at: Callable[[float], Channel], wanted: float, ends: tuple[float, float], one_hot: bool
) -> tuple[float, Channel]:
    """The largest value that certifies ``wanted``, to a part in 10^12.

    For UER more is not always worth more: all of a grid is looked at, and the last step of it refined.
    """
    if not 0 < wanted < math.inf:
        raise InputError(f"`certified`: {wanted:g} is not a positive number")
    values = np.geomspace(*ends, TRIED).tolist()
    costs = [at(value).certified(one_hot) for value in values]
    within = [place for place, cost in enumerate(costs) if cost <= wanted]
    if not within:
        raise CalibrationError(
            f"`certified`: no {name} from {ends[0]:g} to {ends[1]:g} certifies {wanted:g}; the least is {min(costs):.6g};"
            " take fewer bits, or ask for more"
        )
    if within[-1] == TRIED - 1:
        return ends[1], at(ends[1])
    low, high = values[within[-1]], values[within[-1] + 1]
    while high / low > 1 + 1e-12:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if at(middle).certified(one_hot) <= wanted else (low, middle)
    return low, at(low)
