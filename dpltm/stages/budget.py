"""How the budget of a training is divided: the noise of its steps, the centre of its features, its evaluations.

All of it is settled before anything is spent, on what the ledger holds already (docs/privacy-model.md section 5).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from dpltm.data import Dataset
from dpltm.errors import BudgetError, InputError
from dpltm.features.centre import SENSITIVITY
from dpltm.noise import LEAST_EPSILON
from dpltm.options.train import TrainOptions
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.calibration import calibrate_noise, calibrate_steps, check_share
from dpltm.privacy.events import (
    Event,
    GaussianEvent,
    GuaranteeEvent,
    ProvenanceEvent,
    SelectionEvent,
    TrainingEvent,
    now,
)
from dpltm.privacy.odometer import POINTS
from dpltm.privacy.units import bounds_nothing
from dpltm.stages.front import check_quantities
from dpltm.stages.progress import Progress

NO_FEATURES = "`centre`: needs features of a fixed norm; add `features` unit, or a map that suits the records"


def with_noise(
    options: TrainOptions, draft: TrainingEvent, before: tuple[Event, ...], progress: Progress
) -> TrainingEvent:
    """The event with its noise multiplier: as stated, or calibrated to what the budget leaves.

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
    if nominal or (_is_unprotected(before) and not options.budget_stop):
        budget, before = _nominal_remainder(budget, before, options.delta)
    elif math.isinf(epsilon(before, options.delta, unit=draft.unit)):
        raise BudgetError(
            "budget: the ledger holds an unprotected release from these records, so no epsilon can be certified any more;"
            " state the noise with `noise_multiplier` instead of `epsilon`"
        )
    if options.budget_stop:
        stated = replace(draft, noise_multiplier=options.noise_multiplier or 0.0)
        return calibrate_steps(budget, options.delta, stated, before, options.accountant, most=draft.steps)
    progress.say(f"calibrating noise to epsilon {budget:g} at delta {options.delta:g}")
    calibrated = calibrate_noise(budget, options.delta, draft, before, options.accountant)
    return replace(calibrated, noise_multiplier=calibrated.noise_multiplier * claimed)


def _is_unprotected(before: Iterable[Event]) -> bool:
    """Whether nothing can be certified because the tickets were made from these records: DPLTM's own setting."""
    return any(isinstance(event, ProvenanceEvent) and event.provenance == "private" for event in before)


def _nominal_remainder(budget: float, before: tuple[Event, ...], delta: float) -> tuple[float, tuple[Event, ...]]:
    """What the papers would leave for training: the budget less each eps1, with earlier training as they account it.

    Used where nothing can be certified (tickets made from these records unprotected) or the user asked for the paper's
    noise: the certified epsilon is then above the budget, and is printed.
    """
    drawn = [event for event in before if isinstance(event, SelectionEvent)]
    spent = sum(event.eps1 for event in drawn)
    nominal = [replace(event, certified_epsilon=event.eps1) for event in drawn]
    check_share(budget, spent, nominal, delta, "record", "nominal epsilon")
    trained = [event for event in before if isinstance(event, TrainingEvent)]
    return budget - spent, tuple(replace(event, noise_multiplier=event.nominal_noise_multiplier) for event in trained)


def centre_release(
    options: TrainOptions, dataset: Dataset, draft: TrainingEvent, before: tuple[Event, ...]
) -> GaussianEvent | None:
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
    if math.isinf(epsilon(before, options.delta)):
        raise InputError(
            "`centre`: nothing can be certified for these records any more, so there is no budget to take a part of; leave"
            " it out"
        )
    alone = replace(draft, sampling_rate=1.0, steps=1)
    whole = calibrate_noise(options.epsilon, options.delta, alone, before, options.accountant)
    sensitivity = SENSITIVITY * (2.0 if draft.adjacency == "replace-one" else 1.0)
    noise = whole.noise_multiplier / math.sqrt(options.centre)
    return GaussianEvent(draft.dataset, now(), draft.adjacency, "record", "mean of features", sensitivity, noise)


def evaluation_releases(options: TrainOptions, dataset: Dataset, draft: TrainingEvent) -> tuple[GuaranteeEvent, ...]:
    """What measuring accuracy on the records themselves costs: one release a checkpoint if it may stop the run, else one.

    Each has a time of its own: two releases are never equal, so that ledgers that tell of them can be merged.

    Raises:
        InputError: the run is to stop on a score that is private, and nothing pays for it.
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
    if each < LEAST_EPSILON:
        raise InputError(
            f"`eval_private`: {options.eval_private:g} over {count} evaluations is nothing but noise; give at least"
            f" {count * LEAST_EPSILON:g}"
        )
    return tuple(
        GuaranteeEvent(draft.dataset, now(), draft.adjacency, "record", what, each, 0.0) for _ in range(count)
    )


def check_unit(options: TrainOptions, dataset: Dataset, before: Iterable[Event]) -> None:
    """Raises InputError for a budget for users where releases for single records are on record already."""
    if options.epsilon is None:
        return
    worthless = next((event for event in before if bounds_nothing(event, dataset.unit)), None)
    if worthless is not None:
        raise InputError(
            f"`unit`: the ledger, or what the ticket was made by, holds a release for single records of {worthless.dataset},"
            " which certifies nothing for a user, so no budget for users can hold; take `unit` record, or other records"
        )
