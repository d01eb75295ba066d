"""How the budget of a training is divided: the noise of its steps, the centre of its features, its evaluations.

All of it is settled before anything is spent, on what the ledger holds already (docs/privacy-model.md section 5).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from dpltm.errors import BudgetError, InputError
from dpltm.features.centre import SENSITIVITY
from dpltm.options.train import TrainOptions
from dpltm.privacy.calibration import calibrate_noise, calibrate_steps, check_share
from dpltm.privacy.events import (
    DatasetRef,
    Event,
    GaussianEvent,
    GuaranteeEvent,
    NoiseBits,
    ProvenanceEvent,
    ReleaseEvent,
    SearchEvent,
    SelectionEvent,
    TrainingEvent,
)
from dpltm.privacy.mechanisms import GaussianRelease, Guarantee, NoisySgd
from dpltm.privacy.odometer import POINTS
from dpltm.privacy.parts import OnRecord, other_users, total_epsilon, users_of
from dpltm.privacy.privacy_unit import bounds_nothing
from dpltm.privacy.report import as_claimed
from dpltm.randomness.noise import MIN_EPSILON
from dpltm.records import Dataset
from dpltm.stages.front import check_quantities
from dpltm.stages.progress import Progress

UNPROTECTED = (
    "budget: the ledger holds an unprotected release from these records, so no epsilon can be certified any more; state the"
    " noise with `noise_multiplier` instead of `epsilon`"
)
_DELTA_IS_SPENT = (
    "`delta`: {delta:g} is not above {spent:g}, the delta of releases on record for these records, such as of names of"
    " categories in a schema; raise it (below 1/n), or find a schema with a smaller one"
)
NO_FEATURES = "`centre`: needs features of a fixed norm; add `features` unit, or a map that suits the records"


def with_noise(options: TrainOptions, draft: NoisySgd, before: OnRecord, progress: Progress) -> NoisySgd:
    """The mechanism with its noise multiplier: as stated, or calibrated to what the budget leaves.

    Args:
        options: of the training.
        draft: the training, with any noise.
        before: everything else that counts for its records: what is on record, and what the run itself will enter.
        progress: told that noise is being calibrated.

    Raises:
        BudgetError: nothing is left of the budget, or nothing can be certified.
        CalibrationError: no noise reaches it.

    Guarantees:
        Where ``epsilon`` is given and the noise is certified, everything together costs at most ``epsilon``, by the
        certified bound of the filter and a certified accountant.
    """
    nominal = options.noise == "nominal"
    claimed = (draft.nominal_sensitivity or draft.sensitivity) / draft.sensitivity if nominal else 1.0
    if options.noise_multiplier is not None and not options.budget_stop:
        return replace(draft, noise_multiplier=options.noise_multiplier * claimed)
    budget = options.epsilon or 0.0
    if nominal or (_is_unprotected(before.events) and not options.budget_stop):
        budget, before = _nominal_remainder(budget, before, options.delta)
    elif math.isinf(total_epsilon(before.events, options.delta, unit=draft.unit)):
        raise nothing_left(before, options.delta)
    if options.budget_stop:
        stated = replace(draft, noise_multiplier=options.noise_multiplier or 0.0)
        return calibrate_steps(budget, options.delta, stated, before, options.accountant, most=draft.steps)
    progress.say(f"calibrating noise to epsilon {budget:g} at delta {options.delta:g}")
    calibrated = calibrate_noise(budget, options.delta, draft, before, options.accountant)
    return replace(calibrated, noise_multiplier=calibrated.noise_multiplier * claimed)


def nothing_left(before: OnRecord, delta: float) -> BudgetError:
    """Why no epsilon can be certified, after what is on record, at that delta.

    Raises:
        InputError: because that delta is too small.
    """
    check_delta_left(before, delta)
    return BudgetError(UNPROTECTED)


def check_delta_left(before: OnRecord, delta: float) -> None:
    """Raises InputError if releases of which only (epsilon, delta) is known have all of ``delta``, or more."""
    spent = math.fsum(event.mechanism.delta for event in before.events if isinstance(event, GuaranteeEvent))
    if spent >= delta:
        raise InputError(_DELTA_IS_SPENT.format(delta=delta, spent=spent))


def _is_unprotected(before: Iterable[Event]) -> bool:
    """Whether nothing can be certified because the tickets were made from these records: DPLTM's own setting."""
    return any(isinstance(event, ProvenanceEvent) and event.provenance == "private" for event in before)


def _nominal_remainder(budget: float, before: OnRecord, delta: float) -> tuple[float, OnRecord]:
    """What the papers would leave for training: the budget less each eps1, with earlier training as they account it.

    Used where nothing can be certified (tickets made from these records unprotected) or the user asked for the paper's
    noise: the certified epsilon is then above the budget, and is printed.
    """
    claimed = tuple(as_claimed(event) for event in before.events)
    drawn = tuple(event for event in claimed if isinstance(event, SelectionEvent))
    spent = sum(event.mechanism.eps1 for event in drawn)
    check_share(budget, spent, replace(before, events=drawn), delta, "record", "nominal epsilon")
    trained = tuple(event for event in claimed if isinstance(event, (TrainingEvent, SearchEvent)))
    return budget - spent, replace(before, events=trained)


def noise_bits(options: TrainOptions) -> NoiseBits:
    """What the noise of a training is made of."""
    return "fast" if options.noise == "fast" else "secure"


def centre_release(options: TrainOptions, dataset: Dataset, draft: NoisySgd, before: OnRecord) -> GaussianEvent | None:
    """The release of the mean of features: as noisy as one that spends all the budget, over the root of its share.

    The noise of several Gaussian mechanisms adds up by its inverse square, so the rest is left for training.

    Args:
        options: of the training.
        dataset: with the map in front of the network.
        draft: the training, with any noise.
        before: what is on record for its records, or will be before the release.

    Returns:
        The release; None where features are not centred.

    Raises:
        InputError: there are no features of a fixed norm, or no budget to take a part of.
    """
    if options.centre is None or options.epsilon is None:
        return None
    check_quantities(dataset, "`centre`")
    if dataset.feature_map is None:
        raise InputError(NO_FEATURES)
    if math.isinf(total_epsilon(before.events, options.delta, unit=draft.unit)):
        check_delta_left(before, options.delta)
        raise InputError(
            "`centre`: nothing can be certified for these records any more, so there is no budget to take a part of; leave"
            " it out"
        )
    sensitivity = SENSITIVITY * (2.0 if draft.adjacency == "replace-one" else 1.0)
    noise = whole_noise(options, draft, before) / math.sqrt(options.centre)
    release = GaussianRelease(noise, sensitivity, adjacency=draft.adjacency, unit=draft.unit)
    return GaussianEvent(before.dataset, release, "mean of features", noise_bits(options))


def whole_noise(options: TrainOptions, draft: NoisySgd, before: OnRecord) -> float:
    """The noise multiplier of one Gaussian release that spends all the budget; or the one that is stated.

    Args:
        options: of the training.
        draft: the training, with any noise.
        before: what is on record for its records, or will be before the release.

    Raises:
        BudgetError: nothing can be certified.
    """
    if options.epsilon is None:
        return options.noise_multiplier or 0.0
    if math.isinf(total_epsilon(before.events, options.delta, unit=draft.unit)):
        raise nothing_left(before, options.delta)
    alone = replace(draft, sampling_rate=1.0, steps=1)
    return calibrate_noise(options.epsilon, options.delta, alone, before, options.accountant).noise_multiplier


def evaluation_releases(
    options: TrainOptions, dataset: Dataset, draft: NoisySgd, records: DatasetRef
) -> tuple[GuaranteeEvent, ...]:
    """What measuring accuracy on the records themselves costs: one release a checkpoint if it may stop the run, else one.

    Each has a time of its own: two releases are never equal, so that ledgers that tell of them can be merged.

    Args:
        options: with ``eval_private``, the whole epsilon for it, and ``stop_at``.
        dataset: the private records.
        draft: the training; its steps and relation count.
        records: what the releases are entered on.

    Raises:
        InputError: the run is to stop on a score that is private, and nothing pays for it; or counts that cannot be had:
            those of users, or with so little epsilon that they are nothing but noise.
    """
    if options.eval_private is None:
        if options.stop_at is not None and dataset.test is None:
            raise InputError(
                f"`stop_at`: {dataset.name} has no test split, and stopping on the private records is a release that nothing"
                " pays for; put its cost into the plan with `eval_private` E, or name a `test` file"
            )
        return ()
    if dataset.unit == "user":
        raise InputError("`eval_private`: counts right answers one a record, and a user has many; leave it out")
    count = 1 if options.stop_at is None else min(POINTS, draft.steps)
    what = "count of right answers on the training records, with two-sided geometric noise"
    each = options.eval_private / count
    if each < MIN_EPSILON:
        raise InputError(
            f"`eval_private`: {options.eval_private:g} over {count} evaluations is nothing but noise; give at least"
            f" {count * MIN_EPSILON:g}"
        )
    return tuple(GuaranteeEvent(records, Guarantee(each, adjacency=draft.adjacency), what) for _ in range(count))


def check_unit(options: TrainOptions, dataset: Dataset, before: Iterable[Event], records: DatasetRef) -> None:
    """Raises InputError for a budget for users where releases for single records are on record already.

    Args:
        options: with the budget; without one nothing is refused.
        dataset: with the unit that the budget is for.
        before: what is on record, with what will be entered first.
        records: that the training will be entered on.
    """
    if options.epsilon is None:
        return
    releases = [event for event in before if isinstance(event, ReleaseEvent)]
    worthless = next((event for event in releases if bounds_nothing(event.mechanism, dataset.unit)), None)
    if worthless is not None:
        raise InputError(
            f"`unit`: the ledger, or what the ticket was made by, holds a release for single records of {worthless.dataset},"
            " which certifies nothing for a user, so no budget for users can hold; take `unit` record, or other records"
        )
    others = [ref for ref in users_of(releases) if other_users(ref, records)] if dataset.unit == "user" else []
    if others:
        shown = ", ".join(sorted({ref.units or "the users of ratings" for ref in others}))
        raise InputError(
            f"`unit_column`: the ledger holds a release for other users of these records, by {shown}, which certifies"
            f" nothing for those by {dataset.units_name}; take the same column, or other records"
        )
