"""The accountants: functions from what was done (events) to what it cost (epsilon at delta).

``pld`` composes privacy loss distributions, ``rdp`` Renyi divergences with the modern conversion, ``ma`` the same with the
classical conversion of the moments accountant: all three are upper bounds, each looser than the one before. ``clt`` is an
approximation (:func:`central_limit`), and is kept apart so that nothing certified can come from it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dpltm.errors import InputError
from dpltm.privacy import gdp, pld, renyi
from dpltm.privacy.events import (
    HASHES,
    OPEN_END,
    Adjacency,
    BudgetEvent,
    Cut,
    DatasetRef,
    Event,
    GaussianEvent,
    GuaranteeEvent,
    LaplaceEvent,
    NonPrivateEvent,
    ProvenanceEvent,
    RandomizedResponseEvent,
    SelectionEvent,
    TrainingEvent,
    Unit,
)
from dpltm.privacy.mechanisms import (
    BoundedLoss,
    BoundedRange,
    Gaussian,
    Guarantee,
    Laplace,
    Mechanism,
    RandomizedResponse,
    SampledGaussian,
)
from dpltm.privacy.pld import FINE, Profile, Resolution
from dpltm.privacy.units import bounds_nothing, is_release, moves_into_public, neighbours_between, unit_of

CERTIFIED = ("pld", "rdp", "ma")
"""Accountants whose figure may be promised, tightest first."""

LEAST_NOISE = 1e-3
"""Below this noise multiplier one step costs an epsilon of half a million; it is reported as infinite."""

LARGEST_NOISE, SMALLEST_RATE, SMALLEST_PURE = 1e6, 1e-12, 1e-9
"""More noise, a lower rate or a smaller epsilon than these counts as these: a little more than it costs."""

LARGEST_PURE = 500.0
"""Beyond this a pure epsilon is added as it is, since e^epsilon would soon leave float64."""


@dataclass(frozen=True)
class Composition:
    """Private events as mechanisms, like ones counted together, so that their order is forgotten.

    Attributes:
        mechanisms: how often each was used.
        draw: epsilon of the one exponential mechanism that came before every other release; 0 for none.
        plain: epsilon that is added as it is, because it is too large for anything better.
        delta: chance with which (epsilon, delta) guarantees may fail, all together.
        private: False if something was released with no mechanism; the rest then says nothing.
    """

    mechanisms: Counter[Mechanism]
    draw: float
    plain: float
    delta: float
    private: bool


def epsilon(
    events: Iterable[Event],
    delta: float,
    accountant: str = "pld",
    *,
    resolution: Resolution = FINE,
    unit: Unit | None = None,
) -> float:
    """Certified epsilon of all ``events`` together at ``delta``, for any one record or user; infinite if any is non-private.

    Args:
        events: what was done, in any order. Events on records that may overlap add up; see :func:`parts`.
        delta: in (0, 1).
        accountant: one of ``CERTIFIED``.
        resolution: how finely ``pld`` discretises; coarser is quicker, looser, and certified all the same.
        unit: what the figure is for; that of the events if None, ``record`` where they have both (see ``units``).

    Raises:
        InputError: delta out of range, an accountant that certifies nothing, or events stated for different
            neighbouring relations.

    Guarantees:
        Upper bound on the true epsilon of the adaptive composition of the events, add/remove or replace-one as they
        state, for one record or one user, Poisson sampling.
    """
    if not 0 < delta < 1:
        raise InputError(f"delta: {delta} is not between 0 and 1")
    if accountant not in CERTIFIED:
        raise InputError(f"accountant: {accountant!r} certifies nothing; known are {', '.join(CERTIFIED)}")
    events = tuple(events)
    unit = unit_of(events) if unit is None else unit
    return max((_epsilon(part, delta, accountant, resolution, unit) for _, part in parts(events)), default=0.0)


def _epsilon(events: tuple[Event, ...], delta: float, accountant: str, resolution: Resolution, unit: Unit) -> float:
    """Epsilon of events that all touched the same records."""
    total = collect(events, unit)
    if not total.private:
        return math.inf
    if not total.mechanisms and not total.draw:
        return total.plain
    ceiling = sum(_pure_epsilon(mechanism) * count for mechanism, count in total.mechanisms.items()) + total.draw
    if accountant != "pld":
        return total.plain + min(_by_renyi(total, delta, accountant), ceiling)
    profile = pld.compose(total.mechanisms, total.draw, resolution)
    value = math.inf if profile is None else profile.epsilon(delta)
    # Where the grid or its arithmetic shows, Renyi may do better.
    if profile is None or profile.coarse or delta < 1000 * profile.rounding:
        value = min(value, _by_renyi(total, delta, "rdp"))
    return total.plain + min(value, ceiling)


def certified_by(accountant: str) -> str:
    """The accountant of the certified figure where ``accountant`` was asked for: ``clt`` has none, so ``pld`` stands in."""
    return "pld" if accountant == "clt" else accountant


def profiles(events: Iterable[Event]) -> list[Profile]:
    """The certified delta at every epsilon, a profile for each of the :func:`parts` of ``events``.

    Raises:
        InputError: a part for which nothing, or no curve, can be certified.
    """
    events = tuple(events)
    found, unit = [], unit_of(events)
    for ref, part in parts(events):
        total = collect(part, unit)
        profile = pld.compose(total.mechanisms, total.draw) if total.private and not total.plain else None
        if profile is None:
            raise InputError(
                f"{ref}: there is no curve to draw: something was released without protection, or at an epsilon above 500"
            )
        found.append(profile)
    return found


def central_limit(events: Iterable[Event], delta: float, unit: Unit | None = None) -> float:
    """What the central limit theorem gives for ``events``: an approximation, neither an upper nor a lower bound.

    Each training is q sqrt(T (e^(1/sigma^2) - 1))-GDP in the limit; each Gaussian release, as each step that takes every
    record (q = 1), is exactly 1/sigma-GDP; these add up in squares. The theorem says nothing of the rest, whose epsilon is
    added as it is.
    """
    events = tuple(events)
    unit = unit_of(events) if unit is None else unit
    return max((_central_limit(part, delta, unit) for _, part in parts(events)), default=0.0)


def _central_limit(events: tuple[Event, ...], delta: float, unit: Unit) -> float:
    total = collect(events, unit)
    if not total.private:
        return math.inf
    rest = sum(
        _plain_epsilon(mechanism) * count for mechanism, count in total.mechanisms.items() if not _mu(mechanism)
    )
    remaining = delta - total.delta
    if remaining <= 0:
        return math.inf
    return total.plain + total.draw + rest + gdp.epsilon(remaining, _total_mu(total))


def central_limit_mu(events: Iterable[Event]) -> float | None:
    """mu of the central limit theorem where it speaks of all ``events``, the largest over the :func:`parts`; else None."""
    events = tuple(events)
    unit = unit_of(events)
    totals = [collect(part, unit) for _, part in parts(events)]
    for total in totals:
        if not total.private or total.draw or total.plain or not all(_mu(mechanism) for mechanism in total.mechanisms):
            return None
    return max((_total_mu(total) for total in totals), default=0.0)


def _total_mu(total: Composition) -> float:
    return math.sqrt(sum(count * _mu(mechanism) ** 2 for mechanism, count in total.mechanisms.items()))


def _mu(mechanism: Mechanism) -> float:
    """mu of one release, 0 where there is none."""
    match mechanism:
        case SampledGaussian(noise_multiplier=sigma, sampling_rate=q, replace_one=replace_one):
            return gdp.clt_mu(sigma, q, 1, replace_one=replace_one)
        case Gaussian(noise_multiplier=sigma):
            return 1 / sigma
    return 0.0


def parts(events: Iterable[Event]) -> list[tuple[DatasetRef, tuple[Event, ...]]]:
    """Records that were treated alike, with the events that touched them.

    Parts of one dataset that a public hash of each record cuts out, or places that a published file fixes, are disjoint: a
    neighbour differs in one of them alone, so they compose in parallel, and the largest epsilon of any part is that of the
    whole. Hashes and places cut across each other: what is known by the one counts in every part by the other. Datasets
    without a common record are kept apart; what cannot be told apart counts everywhere.

    Args:
        events: of one or several datasets.
    """
    events = tuple(events)
    if len({event.dataset for event in events}) == 1:
        return [(events[0].dataset, events)]
    groups: dict[str, list[DatasetRef]] = {}
    for event in events:
        groups.setdefault(event.dataset.group, []).append(event.dataset)
    found: list[tuple[DatasetRef, tuple[Event, ...]]] = []
    for refs in groups.values():
        last: tuple[DatasetRef, tuple[Event, ...]] | None = None
        for ref in _cells(refs):
            touching = tuple(event for event in events if event.dataset.may_overlap(ref))
            if not any(event.dataset.group == ref.group for event in touching):
                continue  # a gap between two ranges
            if last and last[0].cut == ref.cut and last[0].stop == ref.start and last[1] == touching:
                found[-1] = last = (replace(last[0], stop=ref.stop), touching)
            else:
                last = (ref, touching)
                found.append(last)
    return found


def _cells(refs: list[DatasetRef]) -> Iterator[DatasetRef]:
    """The smallest parts of one dataset that some of ``refs`` cut out of it; the whole where none does."""
    whole = refs[0].all
    cuts: dict[Cut, int] = {"values": HASHES, "columns": HASHES, "places": OPEN_END}
    present = [cut for cut in cuts if any(ref.cut == cut for ref in refs)]
    if not present:
        yield whole
    for cut in present:
        edges = {edge for ref in refs if ref.cut == cut for edge in (ref.start, ref.stop)}
        if any(ref.cut != cut for ref in refs):
            edges |= {0, cuts[cut]}
        for start, stop in itertools.pairwise(sorted(edges)):
            yield replace(whole, cut=cut, start=start, stop=stop)


def _by_renyi(total: Composition, delta: float, accountant: str) -> float:
    """Renyi divergences add up; guarantees that may fail take their chance off delta."""
    remaining = delta - total.delta
    if remaining <= 0:
        return math.inf
    mechanisms = total.mechanisms + Counter({BoundedRange(total.draw): 1} if total.draw else {})

    def divergence(order: float) -> float:
        return sum(count * mechanism.renyi(order) for mechanism, count in mechanisms.items())

    if accountant == "ma":
        return renyi.best_epsilon(divergence, remaining, renyi.classical_epsilon)
    return renyi.best_epsilon(divergence, remaining)


def _pure_epsilon(mechanism: Mechanism) -> float:
    """Epsilon at delta 0, infinite for what has none."""
    return math.inf if isinstance(mechanism, Guarantee) and mechanism.delta else _plain_epsilon(mechanism)


def _plain_epsilon(mechanism: Mechanism) -> float:
    """Epsilon at the delta that the mechanism itself may fail with, infinite for Gaussians."""
    return mechanism.epsilon if isinstance(mechanism, BoundedLoss) else math.inf


def stated_relations(events: Iterable[Event]) -> list[Adjacency]:
    """The relations that private events are stated for, one an event."""
    return [event.adjacency for event in events if is_release(event)]


def collect(events: Iterable[Event], unit: Unit | None = None) -> Composition:
    """What ``events`` amount to, in whatever order, for one ``unit`` (that of the events if None; see ``units``).

    Raises:
        InputError: an event that no accountant knows, or events stated for different relations, or for users of whom one
            may be replaced where one record is asked about.
    """
    events = tuple(events)
    unit = unit_of(events) if unit is None else unit
    relations = set(stated_relations(events))
    if len(relations) > 1 and not any(_is_non_private(event) for event in events):
        raise InputError(
            "adjacency: the ledger holds events under add-remove and under replace-one, which have no common guarantee;"
            " use one relation throughout, or separate ledgers"
        )
    if "replace-one" in relations and any(
        event.unit != unit and neighbours_between(event, unit) > 1 for event in events if is_release(event)
    ):
        raise InputError(
            "unit: the ledger holds releases for records and for users under replace-one, which have no common guarantee;"
            " use one unit throughout, or separate ledgers"
        )
    counts: Counter[Mechanism] = Counter()
    draws: list[float] = []
    precision = plain = failing = 0.0  # precision of Gaussians: together they are one, of noise precision^(-1/2)
    moved = any(is_release(event) for event in events)
    for event in events:
        if _is_non_private(event) or bounds_nothing(event, unit) or (moved and moves_into_public(event)):
            return Composition(Counter(), 0.0, 0.0, 0.0, False)
        if is_release(event) and neighbours_between(event, unit) > 1:
            event = _twice(event)
            if _is_non_private(event):
                return Composition(Counter(), 0.0, 0.0, 0.0, False)
        match event:
            case ProvenanceEvent() | BudgetEvent():
                pass
            case TrainingEvent(sampling_rate=1):
                precision += event.steps / min(event.noise_multiplier, LARGEST_NOISE) ** 2
            case TrainingEvent():
                counts[_sampled(event)] += event.steps
            case GaussianEvent():
                precision += min(event.noise_multiplier, LARGEST_NOISE) ** -2
            case SelectionEvent() if event.certified_epsilon > LARGEST_PURE:
                plain += event.certified_epsilon
            case SelectionEvent(mechanism="exponential", adaptive=False):
                draws.append(max(event.certified_epsilon, SMALLEST_PURE))
            case SelectionEvent(mechanism="exponential"):
                counts[BoundedRange(max(event.certified_epsilon, SMALLEST_PURE))] += 1
            case SelectionEvent():
                counts[Guarantee(max(event.certified_epsilon, SMALLEST_PURE))] += 1
            case LaplaceEvent() if event.sensitivity / event.scale > LARGEST_PURE:
                plain += event.sensitivity / event.scale
            case LaplaceEvent():
                counts[Laplace(max(event.sensitivity / event.scale, SMALLEST_PURE))] += 1
            case RandomizedResponseEvent() if event.epsilon > LARGEST_PURE:
                plain += event.epsilon
            case RandomizedResponseEvent():
                counts[RandomizedResponse(max(event.epsilon, SMALLEST_PURE), event.categories)] += 1
            case GuaranteeEvent():
                large = event.epsilon > LARGEST_PURE
                plain += event.epsilon if large else 0.0
                failing += event.delta
                if event.delta or not large:
                    counts[Guarantee(SMALLEST_PURE if large else max(event.epsilon, SMALLEST_PURE), event.delta)] += 1
    if precision:
        counts[Gaussian(precision**-0.5)] += 1
    draws.sort()
    for extra in draws[:-1]:  # only one can have come before everything else
        counts[BoundedRange(extra)] += 1
    return Composition(counts, draws[-1] if draws else 0.0, plain, failing, True)


def as_replace_one(event: Event) -> Event:
    """A release stated for add/remove as one for replace-one: two steps between its neighbours, on the whole dataset."""
    if not is_release(event) or event.adjacency == "replace-one":
        return event
    return replace(_twice(replace(event, dataset=event.dataset.widened)), adjacency="replace-one")


def _twice(event: Event) -> Event:
    """A release as it concerns somebody who is two steps between its neighbours away (see ``units``)."""
    match event:
        case TrainingEvent():
            noise, bound = event.noise_multiplier / 2, 2 * event.sensitivity
            return replace(event, adjacency="replace-one", noise_multiplier=noise, sensitivity=bound)
        case GaussianEvent():
            return replace(event, noise_multiplier=event.noise_multiplier / 2, sensitivity=2 * event.sensitivity)
        case SelectionEvent():
            return replace(event, certified_epsilon=2 * event.certified_epsilon)
        case LaplaceEvent():
            return replace(event, sensitivity=2 * event.sensitivity)
        case GuaranteeEvent():
            growth = math.exp(event.epsilon) if event.epsilon < pld.LARGEST_LOSS else math.inf
            failing = event.delta and (1 + growth) * event.delta
            if failing >= 1:
                return NonPrivateEvent(event.dataset, event.time, event.adjacency, event.unit, event.what)
            return replace(event, epsilon=2 * event.epsilon, delta=failing)
    raise InputError(f"the accountant does not know what {type(event).__name__} says of one record")


def _sampled(event: TrainingEvent) -> SampledGaussian:
    noise, rate = min(event.noise_multiplier, LARGEST_NOISE), max(event.sampling_rate, SMALLEST_RATE)
    return SampledGaussian(noise, rate, event.adjacency == "replace-one")


def _is_non_private(event: Event) -> bool:
    match event:
        case NonPrivateEvent():
            return True
        case ProvenanceEvent():
            return event.provenance == "private"
        case SelectionEvent():
            return math.isinf(event.certified_epsilon)
        case TrainingEvent() | GaussianEvent():
            return event.noise_multiplier < LEAST_NOISE
        case LaplaceEvent() | RandomizedResponseEvent() | GuaranteeEvent() | BudgetEvent():
            return False
    raise InputError(f"the accountant does not know the event {type(event).__name__}")
