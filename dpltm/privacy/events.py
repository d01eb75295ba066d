"""Events of dp-accounting (0.6), Google's library, as mechanisms and back; add/remove alone.

dp-accounting prices an exponential mechanism by the worst pair of pure epsilon-DP, in those versions that have an event for
it. The bounded range here (``privacy_loss.BoundedRangeLoss``) costs less, so a draw is refused rather than exported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import dp_accounting as dp

from dpltm.errors import InputError
from dpltm.privacy.mechanisms import (
    BandedSgd,
    GaussianRelease,
    LaplaceRelease,
    Mechanism,
    NoisySgd,
    TruncatedSgd,
    Unprotected,
    Zcdp,
)

MOST = 100_000
"""Mechanisms that one event may come to; steps of Gaussians are one."""


def from_event(event: dp.DpEvent) -> tuple[Mechanism, ...]:
    """Return the mechanisms that an event is; InputError for one that has none here."""
    return tuple(_read(event, 1))


def _read(event: dp.DpEvent, count: int) -> Iterator[Mechanism]:
    match event:
        case dp.NoOpDpEvent():
            return
        case dp.NonPrivateDpEvent():
            yield Unprotected()
        case dp.SelfComposedDpEvent(count=int(times)) if times > 0:  # or a release would cost nothing
            yield from _read(event.event, count * times)
        case dp.ComposedDpEvent():
            for each in event.events:
                yield from _read(each, count)
        case dp.GaussianDpEvent():
            yield NoisySgd(1.0, count, event.noise_multiplier)
        case dp.PoissonSampledDpEvent(event=dp.GaussianDpEvent(noise_multiplier=noise)):
            yield NoisySgd(event.sampling_probability, count, noise)
        case dp.TruncatedSubsampledGaussianDpEvent(dataset_size=records, truncated_batch_size=batch):
            rate, noise = event.sampling_probability, event.noise_multiplier
            yield TruncatedSgd(rate, count, noise, truncated_batch_size=batch, most_records=records)
        case dp.LaplaceDpEvent() if count <= MOST:
            yield from (LaplaceRelease(event.noise_multiplier) for _ in range(count))
        case dp.ZCDpEvent(xi=0):
            yield Zcdp(event.rho * count)
        case _:
            raise InputError(
                f"event: {event!r:.80}, {count:,} times, has no mechanism here; state its (epsilon, delta) as a Guarantee"
            )


def to_event(mechanisms: Iterable[Mechanism]) -> dp.DpEvent:
    """Return mechanisms under add/remove as one event; InputError where dp-accounting has none that costs as much."""
    return dp.ComposedDpEvent([_event(mechanism) for mechanism in mechanisms])


def _event(mechanism: Mechanism) -> dp.DpEvent:
    if mechanism.adjacency == "add-remove":
        match mechanism:
            case TruncatedSgd(sampling_rate=rate, most_records=records, truncated_batch_size=batch):
                step = dp.TruncatedSubsampledGaussianDpEvent(records, rate, batch, mechanism.noise_multiplier)
                return dp.SelfComposedDpEvent(step, mechanism.steps)
            case NoisySgd(sampling_rate=rate, compositions=steps, noise_multiplier=noise) if type(mechanism) in (
                NoisySgd,
                BandedSgd,
            ):
                step = dp.GaussianDpEvent(noise)
                return dp.SelfComposedDpEvent(step if rate == 1 else dp.PoissonSampledDpEvent(rate, step), steps)
            case GaussianRelease(noise_multiplier=noise):
                return dp.GaussianDpEvent(noise)
            case LaplaceRelease(scale=scale, sensitivity=bound):
                return dp.LaplaceDpEvent(scale / bound)
            case Zcdp(rho=rho):
                return dp.ZCDpEvent(rho)
            case Unprotected():
                return dp.NonPrivateDpEvent()
    raise InputError(f"event: dp-accounting has none for a {type(mechanism).__name__} under {mechanism.adjacency}")
