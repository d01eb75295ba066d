"""The price of mechanisms that ran on the same records: epsilon at delta, or delta at every epsilon (privacy-model.md 5.1).

``pld``, ``rdp`` and ``ma`` are upper bounds. ``clt`` is an approximation, kept apart (:func:`approximate`) so that nothing
certified can come from it. For a ledger, whose entries touched several kinds of records, see ``account``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from scipy.special import betainc

from dpltm.errors import InputError
from dpltm.privacy import gdp, pld, privacy_loss, renyi
from dpltm.privacy import mechanisms as kinds
from dpltm.privacy.accountants import ACCOUNTANTS, CERTIFIED, FINE, Accountant, Resolution
from dpltm.privacy.pld import Profile
from dpltm.privacy.private_search import SearchLoss
from dpltm.privacy.random_allocation import LEAST_NOISE, AllocationLoss

MIN_NOISE = 1e-3  # below this noise multiplier one step costs an epsilon of half a million; it is reported as infinite
MAX_NOISE, MIN_RATE, MIN_PURE = 1e6, 1e-12, 1e-9  # what is beyond these counts as these: a little more than it costs
MAX_PURE = 500.0  # beyond this a pure epsilon is added as it is, since e^epsilon would soon leave float64


@dataclass(frozen=True)
class Composition:
    """What mechanisms amount to: like losses are counted together, so that their order is forgotten.

    Attributes:
        draw: epsilon of the one exponential mechanism that came before every other release; 0 for none.
        plain: epsilon that is added as it is, because it is too large for anything better; infinite, and all there is, if
            something was released with no mechanism.
        delta: chance with which (epsilon, delta) guarantees may fail, all together.
    """

    losses: Counter[privacy_loss.PrivacyLoss]
    draw: float
    plain: float
    delta: float

    @property
    def pure_epsilon(self) -> float:
        """Epsilon of the losses and the draw at delta 0, infinite where they have none: basic composition."""
        if any(getattr(loss, "delta", 0.0) for loss in self.losses):
            return math.inf
        return sum(bounded_epsilon(loss) * count for loss, count in self.losses.items()) + self.draw


def compose(mechanisms: Iterable[kinds.Mechanism]) -> Composition:
    """Return what mechanisms that ran on the same records amount to; InputError for an unknown one, or two relations."""
    mechanisms = tuple(mechanisms)
    _check_common_relation(mechanisms)
    losses: Counter[privacy_loss.PrivacyLoss] = Counter()
    draws: list[float] = []
    precision = plain = failing = rho = 0.0  # precision of Gaussians: together they are one, of noise precision^(-1/2)

    def add(loss: privacy_loss.BoundedLoss) -> None:
        """Add a loss; beyond ``MAX_PURE`` its epsilon counts as it is."""
        nonlocal plain, failing
        large, delta = loss.epsilon > MAX_PURE, getattr(loss, "delta", 0.0)
        plain += loss.epsilon if large else 0.0
        failing += delta
        if delta or not large:
            losses[replace(loss, epsilon=MIN_PURE if large else max(loss.epsilon, MIN_PURE))] += 1

    for mechanism in mechanisms:
        if is_unprotected(mechanism):
            return Composition(Counter(), 0.0, math.inf, 0.0)
        match mechanism:
            case kinds.AllocatedSgd(participations=times):
                noise = min(mechanism.noise_multiplier, MAX_NOISE)
                least, more = divmod(mechanism.steps, times)  # privacy-model.md 5.10: one of each of K groups of steps
                for groups, steps in ((times - more, least), (more, least + 1)):
                    if steps == 1 or noise < LEAST_NOISE:
                        precision += groups / noise**2
                    elif groups:
                        losses[AllocationLoss(noise, steps)] += groups
            case kinds.NoisySgd() if type(mechanism) in (kinds.NoisySgd, kinds.BandedSgd, kinds.TruncatedSgd):
                if isinstance(mechanism, kinds.TruncatedSgd) and (chance := truncation_chance(mechanism)):
                    # beside its steps, which are priced as those of Poisson sampling
                    add(privacy_loss.GuaranteeLoss(MIN_PURE, chance))
                noise, rate = min(mechanism.noise_multiplier, MAX_NOISE), max(mechanism.sampling_rate, MIN_RATE)
                if rate == 1:
                    precision += mechanism.compositions / noise**2
                else:
                    replace_one = mechanism.adjacency == "replace-one"
                    losses[privacy_loss.SampledGaussianLoss(noise, rate, replace_one)] += mechanism.compositions
            case kinds.GaussianRelease():
                precision += min(mechanism.noise_multiplier, MAX_NOISE) ** -2
            case kinds.PrivateSearch():
                tries = Counter(_losses_of_try(training, mechanism.score_noise) for training in mechanism.trainings)
                losses[SearchLoss(tuple(tries.items()), mechanism.gamma)] += 1
            case kinds.Selection(draw="exponential", adaptive=False) if mechanism.certified_epsilon <= MAX_PURE:
                draws.append(max(mechanism.certified_epsilon, MIN_PURE))
            case kinds.Selection(draw="exponential"):
                add(privacy_loss.BoundedRangeLoss(mechanism.certified_epsilon))
            case kinds.Selection():
                add(privacy_loss.GuaranteeLoss(mechanism.certified_epsilon))
            case kinds.LaplaceRelease():
                add(privacy_loss.LaplaceLoss(mechanism.sensitivity / mechanism.scale))
            case kinds.RandomizedResponse():
                add(privacy_loss.RandomizedResponseLoss(mechanism.epsilon, categories=mechanism.categories))
            case kinds.DiscreteGaussianRelease():
                losses[privacy_loss.DiscreteGaussianLoss(mechanism.deviation, mechanism.sensitivity)] += 1
            case kinds.Zcdp():
                rho += mechanism.rho
            case kinds.Guarantee():
                add(privacy_loss.GuaranteeLoss(mechanism.epsilon, mechanism.delta))
            case _:
                raise InputError(f"the accountant does not know the mechanism {type(mechanism).__name__}")
    if precision:
        losses[privacy_loss.GaussianLoss(precision**-0.5)] += 1
    if rho:
        losses[privacy_loss.ZcdpLoss(rho)] += 1
    draws.sort()
    for extra in draws[:-1]:  # only one can have come before everything else
        losses[privacy_loss.BoundedRangeLoss(extra)] += 1
    return Composition(losses, draws[-1] if draws else 0.0, plain, failing)


def truncation_chance(mechanism: kinds.TruncatedSgd) -> float:
    """Return what truncated Poisson sampling adds to delta, T p q, at most 1: an upper bound, by ``MARGIN`` and rounding.

    **One step.** Neighbours share all coins: a record that is added throws its own on the other side as well, where it
    does nothing, and one shares that of the record in its place. At most N - 1 records are on both sides; B of them or
    more fall with a chance p, at most P(Bin(N - 1, q) >= B).

    - Where fewer fall, both sides are as in Poisson sampling: one more still fits.
    - Where B or more do, and the neighbours' own coin does not (1 - q), both sides are the same, whichever are left out.
    - Where that falls as well (p q), nothing is assumed.

    These chances are equal on both sides, so the step is dominated by the pair of a Poisson step with chance 1 - p q, and
    with chance p q by outcomes that tell the neighbours apart. **T steps** compose as these pairs do: as T Poisson steps
    beside a guarantee that fails with chance 1 - (1 - p q)^T <= T p q, in both directions and under replace-one.
    """
    batch, others = mechanism.truncated_batch_size, mechanism.most_records - 1
    if batch > others:
        return 0.0
    tail = float(betainc(batch, others - batch + 1, mechanism.sampling_rate))
    return min(mechanism.steps * mechanism.sampling_rate * tail * (1 + MARGIN), 1.0)


MARGIN = 1e-4  # of the tail: scipy's, before 1.12, is up to 2e-6 too small, of 10^12 records


def is_unprotected(mechanism: kinds.Mechanism) -> bool:
    """Return whether nothing can be certified of it: there is no mechanism, no noise, or no proof."""
    match mechanism:
        case kinds.Unprotected():
            return True
        case kinds.Selection():
            return math.isinf(mechanism.certified_epsilon)
        case kinds.TruncatedSgd() if truncation_chance(mechanism) == 1:
            return True
        # any training: none is priced that ``compose`` has no case for
        case kinds.NoisySgd() | kinds.GaussianRelease():
            return mechanism.noise_multiplier < MIN_NOISE
        case kinds.PrivateSearch():
            return mechanism.score_noise < MIN_NOISE or any(map(is_unprotected, mechanism.trainings))
        case kinds.DiscreteGaussianRelease():
            return mechanism.deviation / mechanism.sensitivity < MIN_NOISE
    return False  # what is unknown ``compose`` refuses


def _check_common_relation(mechanisms: tuple[kinds.Mechanism, ...]) -> None:
    """Raise InputError for mechanisms that have no relation between neighbours in common; an account gives them one."""
    relations = {mechanism.adjacency for mechanism in mechanisms if not isinstance(mechanism, kinds.Unprotected)}
    if unpriced := relations - {"add-remove", "replace-one"}:
        raise InputError(f"adjacency: no price is known under {', '.join(unpriced)}")
    if len(relations) > 1 and not any(map(is_unprotected, mechanisms)):
        raise InputError("adjacency: mechanisms under add-remove and under replace-one have no common guarantee")


def _losses_of_try(training: kinds.NoisySgd, score_noise: float) -> tuple[tuple[privacy_loss.PrivacyLoss, int], ...]:
    composition = compose([training, kinds.GaussianRelease(score_noise, adjacency=training.adjacency)])
    if composition.delta or composition.plain or composition.draw:
        raise InputError(f"trainings: a search cannot price all that a {type(training).__name__} costs")
    return tuple(composition.losses.items())


def bounded_epsilon(loss: privacy_loss.PrivacyLoss) -> float:
    """Epsilon at the delta that the mechanism itself may fail with, infinite for Gaussians."""
    return loss.epsilon if isinstance(loss, privacy_loss.BoundedLoss) else math.inf


def epsilon(
    mechanisms: Iterable[kinds.Mechanism], delta: float, accountant: str = "pld", *, resolution: Resolution = FINE
) -> float:
    """Certified epsilon of all ``mechanisms`` together at ``delta``, for any one of whom they protect.

    >>> from dpltm.privacy.mechanisms import NoisySgd
    >>> round(epsilon([NoisySgd(256 / 60000, steps=14062, noise_multiplier=1.1)], delta=1e-5), 2)
    2.38

    Args:
        mechanisms: what ran on the same records, in any order; infinite if any is unprotected.
        delta: in (0, 1).
        accountant: one of ``CERTIFIED``.
        resolution: how finely ``pld`` discretises; coarser is quicker, looser, and certified all the same.

    Raises:
        InputError: delta out of range, an accountant that certifies nothing, or mechanisms stated for different relations.

    Guarantees:
        Upper bound on the true epsilon of the adaptive composition of the mechanisms, for the relation that they state.
    """
    check_delta(delta)
    if accountant not in CERTIFIED:
        raise InputError(f"`accountant`: {accountant!r} certifies nothing; known are {', '.join(CERTIFIED)}")
    return _price(tuple(mechanisms), delta, ACCOUNTANTS[accountant], resolution)


def approximate(mechanisms: Iterable[kinds.Mechanism], delta: float, accountant: str = "clt") -> float:
    """Figure of an accountant that certifies nothing: no upper and no lower bound. Arguments as :func:`epsilon`."""
    check_delta(delta)
    return _price(tuple(mechanisms), delta, ACCOUNTANTS.find(accountant), FINE)


def check_delta(delta: float) -> None:
    """Raise InputError unless ``delta`` is in (0, 1)."""
    if not 0 < delta < 1:
        raise InputError("delta", delta, "between 0 and 1")


@lru_cache(maxsize=2048)
def _price(
    mechanisms: tuple[kinds.Mechanism, ...], delta: float, accountant: Accountant, resolution: Resolution
) -> float:
    composition = compose(mechanisms)
    if not (composition.losses or composition.draw):
        return composition.plain
    value = accountant.function(composition, delta, resolution)
    if not (isinstance(value, (int, float)) and value >= 0):  # false for NaN
        raise InputError(f"`accountant`: {accountant.name} gives {value!r:.40}, which is no epsilon")
    # basic composition is the ceiling of what is certified
    return composition.plain + (min(value, composition.pure_epsilon) if accountant.certifies else value)


def by_privacy_loss(composition: Composition, delta: float, resolution: Resolution) -> float:
    """``pld``: privacy loss distributions; Renyi divergences where the grid shows and they do better.

    Args:
        composition: not empty.
        delta: in (0, 1).
        resolution: of the grid of losses.
    """
    profile = pld.compose(composition.losses, composition.draw, resolution, delta)
    if profile is None:
        return by_renyi(composition, delta, resolution)
    if profile.coarse or delta < 1000 * max((losses.infinity for losses in profile.body), default=0):
        return min(profile.epsilon(delta), by_renyi(composition, delta, resolution))
    return profile.epsilon(delta)


def by_renyi(
    composition: Composition, delta: float, _: Resolution, convert: renyi.Conversion = renyi.modern_epsilon
) -> float:
    """``rdp``: Renyi divergences, which add up; guarantees that may fail take their chance off delta. Arguments as
    :func:`by_privacy_loss`, and how a divergence becomes an epsilon."""
    remaining = delta - composition.delta
    return renyi.best_epsilon(_divergence(composition), remaining, convert) if remaining > 0 else math.inf


by_moments = partial(by_renyi, convert=renyi.classical_epsilon)  # ``ma``

FILTER_ORDERS = ((1.0, 1 / 4), (1 / 12, 1 / 16), (1 / 4, 1 / 16), (4.0, 1 / 16), (16.0, 1 / 16))
"""Orders of a Renyi filter, (order - 1) / ln(1 / delta), and the part of delta of each; no release may move them."""


def filter_epsilon(mechanisms: Iterable[kinds.Mechanism], delta: float) -> float:
    """Epsilon of Renyi filters at ``delta``, which also holds for mechanisms that were chosen after looking at answers.

    The largest figure over all ways that answers could have taken holds for the whole (proof: docs/privacy-model.md 5.9);
    this is that of the way that was taken. Infinite where something is unprotected, or may fail with more than delta / 2.
    """
    check_delta(delta)
    composition = compose(mechanisms)
    if composition.delta > delta / 2:
        return math.inf
    if not (composition.losses or composition.draw):
        return composition.plain
    divergence = _divergence(composition)
    figures = list[float]()
    for times, part in FILTER_ORDERS:
        order = 1 - times * math.log(delta)
        figures.append(renyi.modern_epsilon(divergence(order), order, part * delta))
    return composition.plain + max(0.0, min(figures))


def _divergence(composition: Composition) -> renyi.Divergence:
    losses = composition.losses.copy()
    if composition.draw:
        losses[privacy_loss.BoundedRangeLoss(composition.draw)] += 1
    return lambda order: sum(count * loss.renyi(order) for loss, count in losses.items())


def by_central_limit(composition: Composition, delta: float, _: Resolution) -> float:
    """``clt``: the central limit theorem (GDP); an approximation, neither an upper nor a lower bound.

    mu of trainings and Gaussian releases add up in squares. The theorem says nothing of the rest, whose epsilon is added as
    it is. Arguments as :func:`by_privacy_loss`.
    """
    remaining = delta - composition.delta
    if remaining <= 0:
        return math.inf
    rest = 0.0
    for loss, count in composition.losses.items():
        if not _mu(loss):
            bounded = bounded_epsilon(loss)
            rest += count * (renyi.best_epsilon(loss.renyi, remaining) if math.isinf(bounded) else bounded)
    return composition.draw + rest + gdp.epsilon(remaining, _total_mu(composition))


def central_limit_mu(mechanisms: Iterable[kinds.Mechanism]) -> float | None:
    """mu of the central limit theorem where it covers all ``mechanisms``; else None."""
    composition = compose(mechanisms)
    covered = not composition.draw and not composition.plain and all(map(_mu, composition.losses))
    return _total_mu(composition) if covered else None


def _total_mu(composition: Composition) -> float:
    return math.sqrt(sum(count * _mu(loss) ** 2 for loss, count in composition.losses.items()))


def _mu(loss: privacy_loss.PrivacyLoss) -> float:
    match loss:
        case privacy_loss.SampledGaussianLoss(noise_multiplier=sigma, sampling_rate=q, replace_one=replace_one):
            return gdp.clt_mu(sigma, q, 1, replace_one=replace_one)
        case AllocationLoss(noise_multiplier=sigma, steps=steps):
            return gdp.clt_mu(sigma, 1 / steps, steps)
        case privacy_loss.GaussianLoss(noise_multiplier=sigma):
            return 1 / sigma
    return 0.0


def profile(mechanisms: Iterable[kinds.Mechanism]) -> Profile:
    """Certified delta of all ``mechanisms`` together at every epsilon; InputError where no curve can be certified."""
    composition = compose(mechanisms)
    curve = None if composition.plain else pld.compose(composition.losses, composition.draw)
    if curve is None:
        raise InputError(
            "records: there is no curve to draw: something was released without protection, or at an epsilon above 500"
        )
    return curve
