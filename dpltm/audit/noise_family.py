"""Releases that differ from one another by their noise alone: what a bound by trade-off functions is taken over."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from dpltm.audit.f_dp import TradeOff, epsilon_bound
from dpltm.errors import InputError
from dpltm.privacy.accountant import profile
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.privacy.pld import Profile


class NoiseFamily:
    """All trainings like one, with more noise or less.

    Args:
        mechanism: that one.
        delta: of every epsilon.
    """

    def __init__(self, mechanism: NoisySgd, delta: float) -> None:
        self._mechanism, self._delta = replace(mechanism, sensitivity=1.0, nominal_sensitivity=None), delta

    def bound(self, refuted: Callable[[TradeOff], bool]) -> float:
        """The largest epsilon of a member that is refuted; 0 where none is.

        Args:
            refuted: whether the release with this trade-off function is; with more noise it stays so.
        """

        def at(noise: float) -> bool:
            known = self._member(noise)
            return known is not None and refuted(known[1])

        def epsilon(noise: float) -> float:
            known = self._member(noise)
            return math.inf if known is None else known[0].epsilon(self._delta)

        return epsilon_bound(at, epsilon, max(self._mechanism.noise_multiplier, 0.5))

    def _member(self, noise: float) -> tuple[Profile, TradeOff] | None:
        return _claims(replace(self._mechanism, noise_multiplier=noise))


@lru_cache(maxsize=200)
def _claims(mechanism: NoisySgd) -> tuple[Profile, TradeOff] | None:
    """What a training claims; None where hardly any noise claims nothing."""
    try:
        one = profile((mechanism,))
    except InputError:
        return None
    return one, TradeOff.of(one.epsilon, one.delta)
