"""Phase 3: train a ticket under differential privacy (docs/privacy-model.md section 4).

``plan`` settles everything and refuses what cannot be done; it spends nothing. What it makes is a :class:`Training`, the
release that ``pay`` enters in the ledger, and of which it then draws. One entry pays for all of a training: the mean of
features, their second moments, the noisy steps, and counts of right answers on the records themselves.
"""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from dpltm.audit.canaries import check_canaries, plant
from dpltm.errors import ArtifactError, BudgetError, DpltmError, InputError
from dpltm.features.inputs import Services, batched_records, inputs, network_inputs
from dpltm.features.normalisation import SENSITIVITY, release_mean
from dpltm.features.setup import check_kind, check_quantities
from dpltm.filters import PARAMETERS, Filter, check_claims, check_compiles, make_filter
from dpltm.gradients.choose import choices_made, repeat_choices
from dpltm.gradients.fused import compiler_at_hand
from dpltm.networks import for_inputs
from dpltm.networks.masks import Mask
from dpltm.options import check_choices, recorded
from dpltm.options.train import PER_UNIT, TrainOptions
from dpltm.privacy.account import Account, Planned, check_private
from dpltm.privacy.accountants import certified_by, check_certifies
from dpltm.privacy.best_of import best_of_notes
from dpltm.privacy.calibration import calibrate_noise, calibrate_steps, check_share
from dpltm.privacy.checks import MAX_STEPS, check_epsilon, check_noise, default_batch, steps_of
from dpltm.privacy.entry import Entry, Lineage, Part, lineage_from_text, lineage_of, to_json
from dpltm.privacy.figures import figure, percent
from dpltm.privacy.ledger import Book, Ledger, canonical
from dpltm.privacy.mechanisms import (
    Adjacency,
    Bits,
    GaussianRelease,
    Guarantee,
    NoisySgd,
    PrivateSearch,
    Selection,
    Unprotected,
)
from dpltm.privacy.odometer import POINTS, Odometer
from dpltm.privacy.release import Secret, pay
from dpltm.privacy.statement import PrivacyReport, as_claimed, json_figure, statement
from dpltm.pruning.unstructured import columns_read
from dpltm.randomness.keyed_source import KeyedSource, ResumableSource, source_of
from dpltm.randomness.noise import MIN_EPSILON, FastSource, two_sided_geometric
from dpltm.records import Augmentation, Dataset, Split, at_unit, copies_of, held_out_users
from dpltm.records.checks import check_delta
from dpltm.records.mapped import pieces
from dpltm.records.notes import NO_TEST, feature_notes, public_input_notes, rating_notes, test_notes, unit_notes
from dpltm.records.units import ABSENT
from dpltm.registry import changed, listed
from dpltm.training import least_squares as head
from dpltm.training.checkpoint import AGAIN, NOT_KEPT, Checkpoint, Checkpoints, Kept
from dpltm.training.descent import Descent, NoisyGradients, TrainingConfig
from dpltm.training.evaluation import DIVERGED, accuracy, count_correct, has_diverged, root_mean_squared_error
from dpltm.training.losses import cross_entropy, mean_cross_entropy, user_cross_entropy
from dpltm.training.optimizers import DECAY
from dpltm.training.ranks import Ranks, in_turn, rows_digest
from dpltm.training.run import Run
from dpltm.training.sensitivity import microbatch_note, nominal_sensitivity, nominal_source, sensitivity
from dpltm.training.start import StartingPoint, weights_id

LEARNING_RATES = {"sgd": 1.0, "momentum": 0.1, "adam": 0.002, "adagrad": 0.05}
"""Default step sizes, for clip norm 1."""

SPREAD = 0.25
"""Of one layer behind features of a fixed norm: what the noise of all steps adds up to in each weight, by default (standard
deviation); where there is hardly any noise, as if it were that of 2-Gaussian-DP. Found on kmnist-7k at epsilon 0.2 to 8: it
was the best for any clip norm, number of steps and schedule."""

MEAN_ROWS = 1000
"""Records at a time when their mean is taken."""

UNPROTECTED = (
    "budget: the ledger holds an unprotected release from these records, so no epsilon can be certified any more; state the"
    " noise with `noise_multiplier` instead of `epsilon`, or name the account of other people (`ledger`, `population`)"
)

CENTRE, SECOND, AUDIT = "centre", "second_moments", "audit/"
"""Tensors of a checkpoint: the mean that features are centred at, and the second moments that steps divide by; those of
canaries begin with the last."""


# --- what is settled before anything is spent -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A training that is settled but for its noise.

    Attributes:
        start: network, weights, mask.
        dataset, part: what is trained on.
        config: its settings.
        mechanism: its steps, with any noise.
        lineage: of everything that it is made of.
        notes: sentences for the statement.
    """

    start: StartingPoint
    dataset: Dataset
    part: Part
    config: TrainingConfig
    mechanism: NoisySgd
    lineage: Lineage
    notes: tuple[str, ...]


def draft(start: StartingPoint, dataset: Dataset, options: TrainOptions, ledger: Ledger) -> Draft:
    """Settle, and refuse, everything about a training whatever its noise.

    Args:
        start: what is trained; behind the map that its tickets remember, if it has any.
        dataset: the private records.
        options: of the training.
        ledger: that it will be entered in.

    Raises:
        DpltmError: bad input, or records that may not be used so.
    """
    if start.tickets is not None:
        dataset = start.tickets.takes(dataset)
    dataset = protected_units(dataset, options)
    start = _without_held_out(start, dataset)
    rate, steps, batch = sampling_of(head.settled(options, start, dataset), dataset)
    adjacency, live, filter = cast(Adjacency, options.adjacency), start.mask.live, check_filter(options)
    claim = nominal_sensitivity(filter, live, adjacency, options.noise == "nominal", options.microbatch)
    mechanism = NoisySgd(
        rate,
        steps,
        1.0,
        sensitivity(filter, live, adjacency, options.microbatch),
        claim,
        "" if claim is None else nominal_source(filter, options.microbatch),
        adjacency=adjacency,
        bits=noise_bits(options),
    )
    _check_augmented(options, start, dataset)
    notes = [
        *public_input_notes(dataset),
        *unit_notes(dataset),
        *rating_notes(dataset),
        *feature_notes(dataset, options.delta),
    ]
    if options.compile and not compiler_at_hand():
        notes.append("`compile`: no C++ compiler is at hand (g++ or clang++), so the filter is not compiled")
    return Draft(
        start=start,
        dataset=dataset,
        part=ledger.part(dataset),
        config=_config(options, filter, rate, steps, batch),
        mechanism=mechanism,
        lineage=lineage_of(dataset, dataset.feature_map, start, searched_on(options)),
        notes=tuple(notes),
    )


def searched_on(options: TrainOptions) -> Lineage:
    """Return the lineage of settings that were searched for, as their file carries it.

    Raises:
        InputError: it is none.
    """
    try:
        return Lineage() if options.lineage is None else lineage_from_text(options.lineage)
    except ArtifactError as error:
        raise InputError(f"`lineage`: not as dpltm tune writes it: {error}") from None


def sampling_of(options: TrainOptions, dataset: Dataset) -> tuple[float, int, float]:
    """Return sampling rate, steps and expected batch size, from public inputs only.

    Args:
        options: of the training.
        dataset: its public number of records counts.

    Raises:
        InputError: they, or delta, do not suit so many records.
    """
    check_delta(options.delta, dataset)
    batch = options.batch_size if options.batch_size is not None else default_batch(dataset.records)
    if not 0 < batch <= dataset.records:
        raise InputError(
            f"`batch_size`: {batch:g} is not between 0 and the {dataset.records} records of {dataset.name}"
        )
    rate = batch / dataset.records
    epochs = 15.0 if options.epochs is None else options.epochs
    steps = options.steps if options.steps is not None else steps_of(epochs, rate)
    if steps > MAX_STEPS:
        raise InputError(f"`epochs`, `steps`: more than {MAX_STEPS:,} steps; ask for fewer")
    return rate, steps, batch


def protected_units(dataset: Dataset, options: TrainOptions) -> Dataset:
    """Return the records at the unit that is asked for; users may have been made of them already."""
    return at_unit(dataset, options.unit, options.per_unit, PER_UNIT)


def noise_bits(options: TrainOptions) -> Bits:
    """Return what the noise of a training is made of."""
    return "fast" if options.noise == "fast" else "secure"


def _without_held_out(start: StartingPoint, dataset: Dataset) -> StartingPoint:
    """With users of ratings, what belongs to held-out ones is pruned: nobody trains it, and it would be noise alone."""
    if not dataset.of_persons or not dataset.rated:
        return start
    out, owned = torch.from_numpy(held_out_users(dataset.tables[0])), start.spec.kind.user_parameters
    live = {name: value & ~out[:, None] if name in owned else value for name, value in start.mask.items()}
    return replace(start, mask=Mask(live))


def _config(options: TrainOptions, filter: Filter, rate: float, steps: int, batch: float) -> TrainingConfig:
    """Its settings; there is no noise yet."""
    return TrainingConfig(
        filter,
        rate,
        steps,
        batch,
        0.0,
        options.lr if options.lr is not None else LEARNING_RATES[options.optimizer],
        options.optimizer,  # type: ignore[arg-type]
        options.physical_batch,
        options.compile,
        options.precision,  # type: ignore[arg-type]
        options.schedule,  # type: ignore[arg-type]
        options.average,  # type: ignore[arg-type]
        options.kernels,
        options.microbatch,
    )


def _step_size(options: TrainOptions, start: StartingPoint, dataset: Dataset, config: TrainingConfig) -> float | None:
    """Of one layer behind features, where nobody chose one: by the noise, and other public numbers; None elsewhere."""
    if head.is_least_squares(options):
        return head.step_size(config)
    one_layer = dataset.feature_map is not None and len(start.spec.shapes()) == 2
    if options.lr is not None or not one_layer or config.optimizer not in ("sgd", "momentum"):
        return None
    bound, root = config.filter.certified_bound(start.mask.live), math.sqrt(config.steps)
    if not 0 < bound < math.inf:
        return None
    spread = max(config.noise_std, config.sampling_rate * root * bound / 2) * root
    farther = 1 / (1 - DECAY) if config.optimizer == "momentum" else 1.0
    if config.schedule != "constant":
        farther /= 2  # the mean of either schedule that falls to zero
    return SPREAD * config.divisor / (spread * farther)


# --- options that are refused by themselves -------------------------------------------------------------------------


def check_options(options: TrainOptions) -> None:
    """Raise InputError for options out of range, that contradict each other, or that lack their other half."""
    check_choices(options)
    head.check_head(options)
    check_filter(options)
    _check_budget(options)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("`device`: cuda is not there (no such device, or torch was built without it); use cpu")
    if not 0 <= options.seed < 2**63:
        raise InputError(f"`seed`: {options.seed} is not between 0 and 2^63 - 1")
    if options.epochs is not None and options.steps is not None:
        raise InputError("`epochs`, `steps`: give one of them")
    if options.epochs is not None and not (options.epochs > 0 and math.isfinite(options.epochs)):
        raise InputError("epochs", options.epochs, "a positive number")
    if options.steps is not None and options.steps < 1:
        raise InputError("steps", options.steps, "a positive whole number")
    if options.centre is not None and not 0 < options.centre < 1:
        raise InputError("centre", options.centre, "a part between 0 and 1, such as 0.05")
    if options.centre is not None and options.epsilon is None:
        raise InputError("`centre`: a part of a budget, so it needs `epsilon`; `noise_multiplier` states no budget")


def check_filter(options: TrainOptions) -> Filter:
    """Return the gradient filter; refuse what it does not take, or cannot do."""
    filter = make_filter(options.filter, **changed(PARAMETERS, options))
    if options.noise == "nominal" and options.microbatch is None:  # of groups, every filter has the papers' claim
        check_claims(filter, options.filter)
    if options.compile:
        check_compiles(filter, options.filter)
    return filter


def _check_budget(options: TrainOptions) -> None:
    """Raises InputError for a budget out of range, or where it is not clear what decides the noise."""
    if options.budget_stop and (options.epsilon is None or options.noise_multiplier is None):
        raise InputError("`budget_stop`: needs `epsilon`, where to stop, and `noise_multiplier`, how fast it is spent")
    if not options.budget_stop and (options.epsilon is None) == (options.noise_multiplier is None):
        raise InputError("`epsilon` or `noise_multiplier`: give one of them; `epsilon` is the whole budget, such as 1")
    if options.budget_stop and options.noise == "nominal":
        raise InputError("`budget_stop`: holds for certified noise only; leave `noise` nominal out")
    if options.epsilon is not None:
        check_certifies(options.accountant)
    check_epsilon("eval_private", options.eval_private)
    if options.stop_at is not None and not 0 < options.stop_at <= 1:
        raise InputError("stop_at", options.stop_at, "an accuracy above 0 and at most 1")
    check_epsilon("epsilon", options.epsilon)
    check_noise(options.noise_multiplier)


def _check_augmented(options: TrainOptions, start: StartingPoint, dataset: Dataset) -> None:
    """Raises InputError for records, or a network, that copies of a record, or a person's records, cannot go through."""
    takers = listed(for_inputs("vectors"))
    if dataset.of_persons and not dataset.rated:
        if options.augment != "none":
            raise InputError("`augment`: copies are of single records; leave it out where a person is the unit")
        if "vectors" not in start.spec.kind.inputs:
            raise InputError(
                f"`unit_column`: a person's records go through an {takers}, behind features too, not through"
                f" {start.spec.text}; take such a network"
            )
    copies_of(dataset.train.x[:1], cast(Augmentation, options.augment))
    if options.augment == "none":
        return
    check_kind(dataset, "image", "augment", "none")
    if "vectors" not in start.spec.kind.inputs:
        raise InputError(
            f"`augment`: {options.augment} goes with an {takers}, not with {start.spec.text}; take `augment` none"
        )


# --- how the budget is divided --------------------------------------------------------------------------------------


def _before_steps(options: TrainOptions, drafted: Draft, before: Planned) -> head.Before:
    """What is released before the steps: each as noisy as one that spends all the budget, over the root of its share.

    The noise of several Gaussian mechanisms adds up by its inverse square, so the rest is left for training.
    """
    bits = noise_bits(options)
    if head.is_least_squares(options):
        return head.releases(
            drafted.dataset, drafted.mechanism, _whole_noise(options, drafted.mechanism, before), bits
        )
    if options.centre is None:
        return head.Before()
    check_quantities(drafted.dataset, "`centre`")
    if drafted.dataset.feature_map is None:
        raise InputError(f"`centre`: {head.NEEDS_FEATURES}")
    noise = _whole_noise(options, drafted.mechanism, before) / math.sqrt(options.centre)
    adjacency = drafted.mechanism.adjacency
    bound = SENSITIVITY * (2.0 if adjacency == "replace-one" else 1.0)
    return head.Before(GaussianRelease(noise, bound, adjacency=adjacency, bits=bits))


def _whole_noise(options: TrainOptions, mechanism: NoisySgd, before: Planned) -> float:
    """The noise multiplier of one Gaussian release that spends all the budget; or the one that is stated."""
    if options.epsilon is None:
        return options.noise_multiplier or 0.0
    _check_finite(before, options.delta)
    alone = replace(mechanism, sampling_rate=1.0, steps=1)
    return calibrate_noise(options.epsilon, options.delta, alone, before, options.accountant).noise_multiplier


def _check_finite(before: Planned, delta: float) -> None:
    """Raises BudgetError where no epsilon can be certified any more; InputError where that is because delta is too small."""
    if math.isfinite(before.with_mechanism(None).epsilon(delta)):
        return
    spent = math.fsum(known.delta for entry in before.account.paid for known in entry.of(Guarantee))
    if spent >= delta:
        raise InputError(
            f"`delta`: {delta:g} is not above {spent:g}, the delta of releases on record for these records, such as of names"
            " of categories in a schema; raise it (below 1/n), or find a schema with a smaller one"
        )
    raise BudgetError(UNPROTECTED)


def _evaluations(options: TrainOptions, dataset: Dataset, mechanism: NoisySgd) -> tuple[Guarantee, ...]:
    """What measuring accuracy on the records themselves costs: one count a checkpoint if it may stop the run, else one."""
    if options.eval_private is None:
        if options.stop_at is not None and dataset.test is None:
            raise InputError(
                f"`stop_at`: {dataset.name} has no test split, and stopping on the private records is a release that nothing"
                " pays for; put its cost into the plan with `eval_private` E, or name a `test` file"
            )
        return ()
    if dataset.of_persons:
        raise InputError("`eval_private`: counts right answers one a record, and a user has many; leave it out")
    count = 1 if options.stop_at is None else min(POINTS, mechanism.steps)
    each = options.eval_private / count
    if each < MIN_EPSILON:
        raise InputError(
            f"`eval_private`: {options.eval_private:g} over {count} evaluations is nothing but noise; give at least"
            f" {count * MIN_EPSILON:g}"
        )
    return (Guarantee(each, adjacency=mechanism.adjacency),) * count


def _with_noise(options: TrainOptions, mechanism: NoisySgd, before: Planned, services: Services) -> NoisySgd:
    """The mechanism with its noise multiplier: as stated, or calibrated to what the budget leaves.

    Where ``epsilon`` is given and the noise is certified, everything together costs at most ``epsilon``, by the certified
    bound of the filter and a certified accountant.
    """
    nominal = options.noise == "nominal"
    claimed = (mechanism.nominal_sensitivity or mechanism.sensitivity) / mechanism.sensitivity if nominal else 1.0
    if options.noise_multiplier is not None and not options.budget_stop:
        return replace(mechanism, noise_multiplier=options.noise_multiplier * claimed)
    budget = options.epsilon or 0.0
    private = any(entry.of(Unprotected) for entry in before.account.paid)  # DPLTM's own setting: made from the records
    if nominal or (private and not options.budget_stop):
        budget, before = _nominal_remainder(budget, before, options.delta)
    else:
        _check_finite(before, options.delta)
    if options.budget_stop:
        stated = replace(mechanism, noise_multiplier=options.noise_multiplier or 0.0)
        return calibrate_steps(budget, options.delta, stated, before, options.accountant, most=mechanism.steps)
    services.progress.say(f"calibrating noise to epsilon {budget:g} at delta {options.delta:g}")
    calibrated = calibrate_noise(budget, options.delta, mechanism, before, options.accountant)
    return replace(calibrated, noise_multiplier=calibrated.noise_multiplier * claimed)


def _nominal_remainder(budget: float, before: Planned, delta: float) -> tuple[float, Planned]:
    """What the papers would leave for training: the budget less each eps1, with earlier training as they account it.

    Used where nothing can be certified (tickets made from these records unprotected) or the user asked for the paper's
    noise: the certified epsilon is then above the budget, and is printed.
    """
    paid = before.account.paid
    spent = sum(drawn.eps1 for entry in paid for drawn in entry.of(Selection))
    drawn = replace(before.account, entries=tuple(entry for entry in paid if entry.of(Selection)))
    check_share(budget, spent, replace(before, account=drawn), delta, "nominal epsilon")
    trained = [
        replace(entry, mechanisms=tuple(as_claimed(each) for each in (*entry.of(NoisySgd), *entry.of(PrivateSearch))))
        for entry in paid
        if entry.of(NoisySgd) or entry.of(PrivateSearch)
    ]
    return budget - spent, replace(before, account=replace(before.account, entries=tuple(trained)))


# --- the release ----------------------------------------------------------------------------------------------------


OWN_NOTE = (
    "the figure is of what this run itself depends on; its ledger may hold more from the same people, which adds up"
)


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training, settled: a release of ``dpltm.privacy.release``.

    Its model is trained in place, so each is for one run.

    Attributes:
        options: as they were asked for.
        start: network, weights, mask.
        dataset: what is trained on.
        config: its settings.
        entry: what pays for all of it; a draft, or, of work that goes on, as it is on record.
        lineage: of everything that it is made of.
        account: what counts beside it.
        notes: sentences for the statement.
        facts: what the work is of, by name.
        services: progress, and where features come from.
        ranks: that share the work, of which this is rank 0; None for one process.
        checkpoints: where the training is kept on the way.
    """

    options: TrainOptions
    start: StartingPoint
    dataset: Dataset
    config: TrainingConfig
    entry: Entry
    lineage: Lineage
    account: Account
    notes: tuple[str, ...]
    facts: Mapping[str, Any]
    services: Services
    ranks: Ranks | None = None
    checkpoints: Checkpoints = NOT_KEPT

    @property
    def mechanism(self) -> NoisySgd:
        """Its noisy steps."""
        (steps,) = self.entry.of(NoisySgd)
        return cast(NoisySgd, steps)

    @property
    def before_steps(self) -> head.Before:
        """What is released before them."""
        return head.Before(*self.entry.of(GaussianRelease))

    @property
    def evaluations(self) -> tuple[Guarantee, ...]:
        """Counts of right answers on the records, in the order in which they are made."""
        return self.entry.of(Guarantee)

    def check(self) -> None:
        """Refuse what cannot be trained, on all ranks, before anything is spent; the rest was refused by :func:`plan`."""
        if self.ranks is not None:
            _call(self.ranks, self)

    def draw(self, secret: Secret, at: Checkpoint | None) -> Iterator[Drawn]:
        """Train, and yield where it came to. Arguments as :meth:`Release.draw`."""
        return _drawn(replace(self, entry=secret.entry), secret, at)  # which checkpoints name


@dataclass
class Drawn:
    """Where a training is.

    Attributes:
        metrics: what was noted so far.
        seconds: of work.
        dataset: with features as they are trained on, centred if they are.
        descent: its steps.
    """

    metrics: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    dataset: Dataset | None = None
    descent: Descent | None = None

    def reached(self, goal: float | None) -> bool:
        """Return whether the last accuracy that was measured ends the training."""
        last = self.metrics[-1]["accuracy"] if self.metrics else None
        return goal is not None and last is not None and last >= goal


def plan(
    start: StartingPoint,
    dataset: Dataset,
    options: TrainOptions,
    ledger: Ledger,
    book: Book,
    services: Services,
    *,
    known: Entry | None = None,
    own: bool = False,
) -> Training:
    """Settle everything about a training, and refuse, before budget is spent.

    Args:
        start: what is trained; behind the map that its tickets remember, if it has any.
        dataset: the private records.
        options: of the training.
        ledger: that it will be entered in.
        book: what that holds; it counts. Nothing is entered here.
        services: progress, and where features come from.
        known: its entry, if it is on record already: then nothing is calibrated.
        own: whether the epsilon that is asked for is that of its own lineage alone, as of a trial of a sweep.

    Raises:
        DpltmError: bad input, records that may not be used so, or too small a budget.
    """
    check_options(options)
    drafted = draft(start, dataset, options, ledger)
    check_private(book.account(drafted.lineage), drafted.part)
    start, dataset, notes = drafted.start, drafted.dataset, list(drafted.notes)
    account = book.own_account(drafted.lineage) if own else book.account(drafted.lineage)
    facts = _facts(drafted, ledger, options)
    counts: tuple[Guarantee, ...]
    if known is not None:  # its noise, beside everything else as it is asked for now: the door compares the two
        made, counts, (paid,) = head.Before(*known.of(GaussianRelease)), known.of(Guarantee), known.of(NoisySgd)
        mechanism = replace(drafted.mechanism, steps=paid.steps, noise_multiplier=paid.noise_multiplier)
        account = replace(account, entries=tuple(entry for entry in account.entries if entry.id != known.id))
    else:
        before = Planned(account, drafted.part)
        made = _before_steps(options, drafted, before)
        counts = _evaluations(options, dataset, drafted.mechanism)
        asked = head.for_steps(options, made)
        before = replace(before, others=(*made.mechanisms, *counts))
        mechanism = _with_noise(asked, drafted.mechanism, before, services)
    words = f"training, {drafted.config.filtered}, {start.mask.live:,} live weights"
    digest = hashlib.sha256(canonical(facts).encode()).hexdigest()
    mechanisms = (*made.mechanisms, mechanism, *counts)
    entry = Entry("release", drafted.part, mechanisms, words, digest, unit=dataset.unit)
    check_canaries(options.audit, start.mask.live, mechanism.noise_multiplier)
    if mechanism.steps < drafted.mechanism.steps:
        notes.append(
            f"`budget_stop` ends training after {mechanism.steps} of {drafted.mechanism.steps} steps, before the one that"
            " would exceed"
        )
    config = replace(drafted.config, steps=mechanism.steps, noise_std=mechanism.noise_std)
    lr = _step_size(options, start, dataset, config)
    if lr is not None:
        config = replace(config, lr=lr)
        if not head.is_least_squares(options):
            notes.append(f"`lr` is {lr:.3g}, so that the noise of all steps adds up to {SPREAD} in each weight")
    return Training(
        options=options,
        start=start,
        dataset=dataset,
        config=config,
        entry=entry,
        lineage=drafted.lineage,
        account=account,
        notes=tuple(notes),
        facts=facts,
        services=services,
    )


def _facts(drafted: Draft, ledger: Ledger, options: TrainOptions) -> dict[str, Any]:
    """What a training is of; of the records a keyed digest in their order: with others one key would noise two sums."""
    start, feature_map = drafted.start, drafted.dataset.feature_map
    names = [item.name for item in fields(TrainOptions)]  # and none of where its files lie
    return {
        "options": {name: value for name in names if (value := getattr(options, name)) is not None},
        "records": ledger.snapshot(drafted.dataset.train.digest.encode()),
        "ticket": None if start.tickets is None else start.tickets.id,
        "round": start.round,
        "model": start.spec.text,
        "weights": weights_id(start),
        "features": None if feature_map is None else feature_map.uncentred.id,
    }


def train_start(
    start: StartingPoint,
    dataset: Dataset,
    options: TrainOptions,
    ledger: Ledger,
    services: Services | None = None,
    *,
    checkpoints: Checkpoints = NOT_KEPT,
    ranks: Ranks | None = None,
    own: bool = False,
) -> Run:
    """Pay for a training and carry it out, or go on with what was paid for.

    Args:
        start, dataset, options, ledger, services, own: as :func:`plan`.
        checkpoints: where the training is kept on the way, and what it goes on from.
        ranks: that share the work, of which this is rank 0; the others :func:`follow`. None for one process.

    Returns:
        The run, with its statement.

    Raises:
        InputError: what cannot be trained; nothing is spent then.
        BudgetError: a budget does not allow it; nothing is entered then.

    Guarantees:
        The entry is on record before any noisy value that it pays for is drawn. Whatever ends the training after that, the
        entry stays. A step is noised once, whoever computes it how often (``dpltm.training.checkpoint``).
    """
    services = services or Services()
    check_options(options)
    facts = _facts(draft(start, dataset, options, ledger), ledger, options)
    if options.compile and compiler_at_hand():
        services.progress.say("compiling the filter")

    rehearsed: list[Training] = []

    def planned(book: Book, known: Entry | None) -> Training:
        made = plan(start, dataset, options, ledger, book, services, known=known, own=own)
        if known is None and not rehearsed:  # nothing is entered, and no checkpoint begun, that cannot be trained
            book.account(made.lineage).check_budget((made.entry,))
            prepare(in_a_copy(made), Sources.unused(options.noise))
            rehearsed.append(made)
        if options.eval_private is None:
            # the test split is measured exactly, so it is declared first; that moves the head, and pay plans again (Moved)
            ledger.exclude(dataset)
        return replace(made, ranks=ranks, checkpoints=checkpoints)

    paid = pay(planned, ledger, Kept(checkpoints, facts))
    training = cast(Training, paid.release)
    training = replace(training, entry=paid.entry)
    if checkpoints.held is not None and "key" not in checkpoints.held.state:
        services.progress.say(f"going on from {checkpoints.held.place}; nothing more is spent")
    (drawn,) = paid.values  # which trains
    assert drawn.dataset is not None
    assert drawn.descent is not None
    diverged = has_diverged(training.start.model, training.start.spec)
    taken = drawn.metrics[-1]["step"]
    account = ledger.book.own_account(paid.lineage) if own else paid.account
    if own:
        training = replace(training, notes=(*training.notes, OWN_NOTE))
    return Run(
        config_of(training, drawn.descent.gradients.gradients.kernels),
        training.start.model,
        training.start.mask,
        drawn.dataset.feature_map,
        tuple(drawn.metrics),
        stated(training, account, taken, diverged=diverged),
        ledger,
        paid.lineage,
        drawn.seconds,
        observations=drawn.descent.gradients.canaries.observations,
    )


def planned_statement(training: Training) -> PrivacyReport:
    """Return what the statement would be, were the training carried out."""
    drafts = (training.entry,)
    return stated(training, training.account + drafts, training.mechanism.steps)


def stated(training: Training, account: Account, taken: int, *, diverged: bool = False) -> PrivacyReport:
    """Return the statement on a training, and on all that counts with it.

    Args:
        training: of which is spoken.
        account: everything that counts.
        taken: steps, of those that were paid for.
        diverged: whether the network that was trained gives no finite numbers.
    """
    options, notes, mechanism = training.options, list(training.notes), training.mechanism
    trained = sum(bool(entry.of(NoisySgd)) for entry in account.paid)
    if trained > 1:
        notes.append(f"{trained} training runs are in this account; epsilon covers all of them together")
        notes += best_of_notes(account, options.delta, certified_by(options.accountant), priced=False)
    if taken < mechanism.steps:
        notes.append(
            f"`stop_at` ended training after {taken} of {mechanism.steps} steps; the ledger keeps all of them"
        )
    if diverged:
        notes.append(DIVERGED)
    if training.evaluations:
        notes.append(
            f"accuracy is that on the training records, with noise; its epsilon of {options.eval_private:g} is included"
        )
    else:
        notes += test_notes(training.dataset) or ([] if training.dataset.known else [NO_TEST])
    made = training.before_steps
    if head.is_least_squares(options):
        notes.append(head.releases_note(made.second, training.dataset))
    elif made.mean is not None:
        notes.append(
            f"features are centred at their noisy mean, released for {100 * (options.centre or 0):g} % of the budget"
        )
    if options.audit is not None:
        notes.append(
            f"{options.audit:,} made-up records attacked this training (`audit`), at no cost to privacy and some to accuracy"
        )
    if options.microbatch is not None:
        notes.append(
            microbatch_note(
                training.config, mechanism, training.start.mask.live, options.noise == "nominal", training.dataset.unit
            )
        )
    if options.noise == "nominal":
        notes.append(
            "`noise` nominal adds as much noise as the paper would; the certified epsilon is what that is worth"
        )
    return statement(account, options.delta, options.accountant, mechanism.adjacency, notes)


def facts_of(training: Training) -> dict[str, Any]:
    """Return the public facts of a training, known before it starts."""
    tickets, mechanism, made = training.start.tickets, training.mechanism, training.before_steps
    dataset, config = training.dataset, training.config
    columns = columns_read(dataset.schema, training.start.mask, dataset.feature_map)
    return {
        "ticket_set": None if tickets is None else tickets.label,
        "round": training.start.round,
        "steps": mechanism.steps,
        "sampling_rate": mechanism.sampling_rate,
        "noise_multiplier": mechanism.noise_multiplier,
        "noise_std": config.noise_std,
        "filter": config.filtered,
        "groups": config.groups,
        "sensitivity": mechanism.sensitivity,
        "live": training.start.mask.live,
        "density": training.start.mask.density,
        "optimizer": config.optimizer,
        "lr": config.lr,
        "schedule": config.schedule,
        "average": config.average,
        "centre": None if made.mean is None else {"noise_multiplier": made.mean.noise_multiplier},
        "augment": training.options.augment,
        "features": None if dataset.feature_map is None else dataset.feature_map.text,
        **head.head_facts(training.options, made.second),
        **({} if columns is None else {"columns": columns}),
    }


def config_of(training: Training, kernels: Mapping[str, str]) -> dict[str, Any]:
    """Return what the run says of its settings, and of the kernels that its layers were computed with.

    Args:
        training: with its entry as it is on record.
        kernels: by layer.
    """
    spec, tickets, dataset = training.start.spec, training.start.tickets, training.dataset
    test = None if dataset.test is None or training.evaluations else len(dataset.test.y)
    return {
        "model": spec.text,
        "features": spec.features,
        "classes": spec.classes,
        "bounds": list(dataset.bounds),
        "bounds_origin": dataset.bounds_origin,
        "part": to_json(training.entry.part),
        "unit": dataset.unit,
        "of_persons": dataset.of_persons,
        "entry": training.entry.id,
        **({"table_schema": dataset.schema} if dataset.schema else {}),
        "ticket_set_id": None if tickets is None else tickets.id,
        "provenance": None if tickets is None else tickets.provenance,
        "round": training.start.round,
        "expected_batch": training.config.expected_batch,
        "divisor": training.config.divisor,
        "test_records": test,
        "options": recorded(training.options),
        "resolved": {**facts_of(training), "kernels": dict(kernels)},
    }


# --- what is drawn --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sources:
    """All random numbers of a training that its guarantee rests on.

    Attributes:
        sampling: coins of who enters a step, and which chunk.
        noise: of the centre, the moments and the steps.
        evaluation: noise of counts on the private records.
        audit: where coins of an audit begin; it never moves on.
    """

    sampling: ResumableSource
    noise: ResumableSource
    evaluation: ResumableSource
    audit: ResumableSource | None = None

    @classmethod
    def of_secret(cls, secret: Secret, noise: str = "secure", audited: bool = False) -> Sources:
        """Return those of a release.

        Args:
            secret: of it.
            noise: ``fast`` for noise of statistical quality.
            audited: whether it has canaries.
        """
        noisy = FastSource.of(secret.child("noise")) if noise == "fast" else KeyedSource(secret.child("noise"))
        return cls(
            KeyedSource(secret.child("sampling")),
            noisy,
            KeyedSource(secret.child("evaluation")),
            KeyedSource(secret.child("audit")) if audited else None,
        )

    @classmethod
    def unused(cls, noise: str = "secure") -> Sources:
        """Return some of which nothing is drawn: of a rank that is not the first, or of a rehearsal."""
        return cls(KeyedSource(), FastSource.of(bytes(32)) if noise == "fast" else KeyedSource(), KeyedSource())

    @classmethod
    def of(cls, states: Mapping[str, str]) -> Sources:
        """Return those of which ``state`` gave the states."""
        return cls(**{name: source_of(state) for name, state in states.items()})

    def state(self) -> dict[str, str]:
        """Return their states by name; secret."""
        return {name: source.state for name, source in vars(self).items() if source is not None}


def in_a_copy(training: Training) -> Training:
    """Return the same with a network of its own, to be trained, or tried out, in place."""
    return replace(training, start=replace(training.start, model=copy.deepcopy(training.start.model)))


def _drawn(training: Training, secret: Secret, at: Checkpoint | None) -> Iterator[Drawn]:
    """Draw the centre, then the moments, then take the noisy steps on features so centred; or go on from a checkpoint.

    Yields once, at the end. Noise is added in ``NoisyGradients.backward``, which each step of ``Descent.run`` calls: sample,
    filtered sum, noise.
    """
    options, services, ranks, made = training.options, training.services, training.ranks, training.before_steps
    if at is None:
        sources = Sources.of_secret(secret, options.noise, options.audit is not None)
    else:
        repeat_choices(at.state["choices"])
        sources = Sources.of(at.state["sources"])
    descent = in_turn(ranks, lambda: Descent(prepare(training, sources)))
    if made.mean is not None:
        training = _centred(training, made.mean, sources, _released(at, CENTRE))
    second = _released(at, SECOND)
    if second is None and made.second is not None:
        second = head.second_moments(made.second, training.dataset, services, sources.noise)
    if head.is_least_squares(options):
        newton = head.newton(training.start, training.dataset, made.second, second)
        descent = Descent(prepare(training, sources), newton)
    elif made.mean is not None:
        descent = Descent(prepare(training, sources))
    drawn = Drawn() if at is None else _resumed(training, descent, at)
    drawn.dataset, drawn.descent = training.dataset, descent
    if ranks is not None:
        _begin(ranks, training, descent, drawn.reached(options.stop_at))
    yield from _descend(training, descent, sources, drawn, second)


def prepare(training: Training, sources: Sources) -> NoisyGradients:
    """Return the training before its first draw; refuse here what cannot be trained.

    Args:
        training: to prepare.
        sources: its random numbers.
    """
    dataset, services = training.dataset, training.services
    if dataset.test is not None and not training.evaluations:
        network_inputs(dataset.test, dataset, services)  # features that cannot be had are missed now
    if training.before_steps.mean is not None:
        network_inputs(dataset.train, dataset, services)
    gradients = noisy_gradients(
        training.start, dataset, training.options, training.config, services, sources, training.ranks
    )
    if sources.audit is not None:
        coins = source_of(sources.audit.state)  # the same, however often this is called
        plant(gradients, training.options.audit, training.mechanism.adjacency, coins)
    return gradients


def noisy_gradients(
    start: StartingPoint,
    dataset: Dataset,
    options: TrainOptions,
    config: TrainingConfig,
    services: Services,
    sources: Sources,
    ranks: Ranks | None = None,
) -> NoisyGradients:
    """Return network, records, loss and random numbers of a training put together.

    Args:
        start: network, weights, mask.
        dataset: the private records.
        options: as they were asked for.
        config: the settings that follow.
        services: where features come from.
        sources: its random numbers; of several ranks, those of rank 0 count.
        ranks: that share the work; None for one process.
    """
    model, augment = start.model.to(options.device), cast(Augmentation, options.augment)
    source = batched_records(dataset.train, dataset, services, options.device, augment)
    loss = cross_entropy if augment == "none" else mean_cross_entropy
    loss = user_cross_entropy if dataset.of_persons else loss
    return NoisyGradients(
        model, start.mask, loss, source, config, sampling=sources.sampling, noise=sources.noise, ranks=ranks
    )


def _centred(training: Training, mean: GaussianRelease, sources: Sources, known: torch.Tensor | None) -> Training:
    """The training with features centred at their mean, which is released here or ``known``."""
    dataset = training.dataset
    feature_map = dataset.feature_map
    assert feature_map is not None
    if known is None:
        x = network_inputs(dataset.train, dataset, training.services)
        rows = _means(x, dataset.train)
        known = release_mean(rows, feature_map.features, dataset.records, mean.noise_std, sources.noise)
        if head.is_least_squares(training.options):
            known = head.shrunk(known, mean.noise_std, dataset.records)
    return replace(training, dataset=replace(dataset, feature_map=feature_map.centred_at(known)))


def _means(x: np.ndarray, split: Split) -> Iterator[torch.Tensor]:
    """Features a record, ``(rows, features)``; of users the mean over what each gave, no longer than the longest."""
    done = 0
    for some in pieces(x, MEAN_ROWS):
        rows, labels = torch.from_numpy(np.array(some)), torch.tensor(split.y[done : done + len(some)])
        done += len(some)
        if split.slots is None:
            yield rows
            continue
        there = (labels != ABSENT).double()[..., None]
        yield (rows.double() * there).sum(1) / there.sum(1).clamp_min(1)


def _descend(
    training: Training, descent: Descent, sources: Sources, drawn: Drawn, second: torch.Tensor | None
) -> Iterator[Drawn]:
    """Trains in place, from where ``drawn`` is."""
    options, mechanism, ranks, services = training.options, training.mechanism, training.ranks, training.services
    steps, others = mechanism.steps, tuple(each for each in training.entry.mechanisms if each is not mechanism)
    beside = Planned(training.account, training.entry.part, others)
    score, error = _score(training, sources, len(drawn.metrics)), _rating_error(training)
    odometer = Odometer(beside, mechanism, options.delta, certified_by(options.accountant))
    began, note, told = time.perf_counter() - drawn.seconds, "", ""

    def measure(done: int) -> bool:
        nonlocal note
        if done in odometer.steps:
            measured = score(done == steps)
            drawn.metrics.append({"step": done, "epsilon": json_figure(odometer.after(done)), "accuracy": measured})
            note = "" if measured is None else f", accuracy {percent(measured)}"
            if error is not None:
                off = error()
                drawn.metrics[-1]["rmse"] = json_figure(off)
                note += f", rmse {off:.4g}"
        stop = drawn.reached(options.stop_at)
        return stop if ranks is None or options.stop_at is None else ranks.same(stop)

    with services.progress.progress("training under DP", steps) as step:
        # the first step takes longer: kernels are timed in it, or compiled
        step(descent.step, "taking the first step" if descent.step == 0 else "going on")

        def between() -> None:
            nonlocal told
            drawn.seconds = time.perf_counter() - began
            now = partial(_checkpoint, training, descent, sources, drawn, second)
            if training.checkpoints.offer(now, figures=note != told):
                told = note
            step(descent.step, f"epsilon so far {figure(odometer.after(descent.step))}{told}")

        if drawn.reached(options.stop_at):
            descent.end()
        else:
            descent.run(measure, between)
    training.start.model.to("cpu")
    drawn.seconds = time.perf_counter() - began
    yield drawn


def _score(training: Training, sources: Sources, measured: int) -> Callable[[bool], float | None]:
    """What measures accuracy at a checkpoint; its argument says whether it is the last.

    On the private records it releases a noisy count, at every checkpoint or at the last alone: each with the noise that the
    entry holds for it, and of no other. None of them is left where none is paid for. The first ``measured`` were made before
    the training was interrupted.
    """
    model, dataset, device, services = (
        training.start.model, training.dataset, training.options.device, training.services,
    )  # fmt: skip
    paid = training.evaluations
    if paid:
        x, y = inputs(dataset.train, dataset, services, device)
        left = iter(paid[measured if len(paid) > 1 else 0 :])

        def release(last: bool) -> float | None:
            if not last and len(paid) == 1:
                return None
            count = count_correct(model, x, y) + two_sided_geometric(sources.evaluation, next(left).epsilon)
            return min(max(count / dataset.records, 0.0), 1.0)

        return release
    if dataset.test is None:
        return lambda _: None
    test = inputs(dataset.test, dataset, services, device)
    return lambda _: accuracy(model, *test)


def _rating_error(training: Training) -> Callable[[], float] | None:
    """What measures by how many stars the network is wrong on the test split; None where there are no ratings there."""
    dataset = training.dataset
    if not dataset.rated or dataset.test is None or training.evaluations:
        return None
    test = inputs(dataset.test, dataset, training.services, training.options.device)
    return lambda: root_mean_squared_error(training.start.model, *test)


# --- checkpoints ----------------------------------------------------------------------------------------------------


def _checkpoint(
    training: Training, descent: Descent, sources: Sources, drawn: Drawn, second: torch.Tensor | None
) -> Checkpoint:
    """Where a training is, between two steps."""
    feature_map = training.dataset.feature_map
    centre = None if feature_map is None else feature_map.centre
    state = {
        "of": dict(training.facts),
        "id": training.entry.id,
        "step": descent.step,
        "metrics": drawn.metrics,
        "seconds": drawn.seconds,
        "sources": sources.state(),
        "choices": choices_made(),
    }
    tensors = {name: value.cpu().numpy() for name, value in descent.state().items()}
    if training.before_steps.mean is not None and centre is not None:
        tensors[CENTRE] = centre.numpy()
    if second is not None:
        tensors[SECOND] = second.numpy()
    tensors |= {AUDIT + name: value for name, value in descent.gradients.canaries.state().items()}
    return Checkpoint(f"step {descent.step} of {training.mechanism.steps}", state, tensors)


def _resumed(training: Training, descent: Descent, held: Checkpoint) -> Drawn:
    """Takes a training to where a checkpoint was taken."""
    try:
        audit = {name: value for name, value in held.tensors.items() if name.startswith(AUDIT)}
        tensors = {name: value for name, value in held.tensors.items() if name not in (CENTRE, SECOND, *audit)}
        step = int(held.state["step"])
        if not 0 <= step <= training.mechanism.steps:
            raise ValueError(step)
        descent.resume(step, {name: torch.from_numpy(value) for name, value in tensors.items()})
        descent.gradients.canaries.resume({name.removeprefix(AUDIT): value for name, value in audit.items()})
        return Drawn([dict(line) for line in held.state["metrics"]], float(held.state["seconds"]))
    except (KeyError, IndexError, TypeError, ValueError, DpltmError):
        raise ArtifactError(f"checkpoint: damaged, or of another version; {AGAIN}") from None


def _released(held: Checkpoint | None, name: str) -> torch.Tensor | None:
    """``CENTRE`` or ``SECOND``, where it was released before a checkpoint was taken."""
    values = None if held is None else held.tensors.get(name)
    return None if values is None else torch.from_numpy(np.array(values))


# --- several ranks --------------------------------------------------------------------------------------------------
# Rank 0 plans, pays, keeps checkpoints, measures and reports, as one process does. The others open the same records and the
# same ticket, and hear the rest: noise, steps, step size, a released centre, and the state that a checkpoint goes on from.

_SETTLED = ("steps", "noise_std", "lr")
"""Of a configuration, what the plan settles after the draft, by the ledger and by calibration."""


def _call(ranks: Ranks, training: Training) -> None:
    """Has the other ranks make ready for a training of which nothing is entered yet."""
    ranks.together(lambda: None)
    ranks.agree(*_in_common(training))
    ranks.tell({name: getattr(training.config, name) for name in _SETTLED})


def _begin(ranks: Ranks, training: Training, descent: Descent, ended: bool) -> None:
    """Has the other ranks take their first step, or the one that a checkpoint goes on with."""
    feature_map = training.dataset.feature_map
    centre = None if training.before_steps.mean is None or feature_map is None else feature_map.centre
    ranks.tell({"step": descent.step, "ended": ended})
    ranks.share({} if centre is None else {"centre": centre})
    ranks.share(descent.state())


def follow(
    ranks: Ranks, opened: Callable[[], tuple[StartingPoint, Dataset]], options: TrainOptions, services: Services
) -> None:
    """Do the share of a rank that is not the first, and return when the last step is done.

    Args:
        ranks: of the training.
        opened: opens what is trained, and the records.
        options: of the training.
        services: where features come from.

    Raises:
        DpltmError: what rank 0 raises as well, or what ended it.
    """

    def drafted() -> Draft:
        check_options(options)
        start, dataset = opened()
        return draft(start, dataset, options, Ledger(unit=protected_units(dataset, options).unit))

    mine = ranks.together(drafted)
    ranks.agree(*_in_common(mine))
    start, dataset, config = mine.start, mine.dataset, replace(mine.config, **ranks.tell())
    sources = Sources.unused(options.noise)
    gradients = ranks.in_turn(lambda: noisy_gradients(start, dataset, options, config, services, sources, ranks))
    told, centre = ranks.tell(), ranks.share({}).get("centre")
    if centre is not None:
        assert dataset.feature_map is not None
        dataset = replace(dataset, feature_map=dataset.feature_map.centred_at(centre))
        gradients = noisy_gradients(start, dataset, options, config, services, sources, ranks)
    descent = Descent(gradients)
    descent.resume(told["step"], ranks.share({}))
    if not told["ended"]:
        descent.run(None if options.stop_at is None else lambda _: ranks.same(False))


def _in_common(planned: Training | Draft) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """What all ranks must have in common beside their options; and digests, of what no message may show."""
    start, dataset, config = planned.start, planned.dataset, planned.config
    feature_map = dataset.feature_map
    shown = {
        "network": f"{start.spec.text} of {start.spec.features} features and {start.spec.classes} classes",
        "filter": config.filtered,
        "sampling rate": repr(config.sampling_rate),
        "expected batch": repr(config.expected_batch),
        "bounds": repr(dataset.bounds),
        "features": "none" if feature_map is None else feature_map.uncentred.id,
    }
    private = {
        "records of `dataset`": rows_digest(dataset.train.x, dataset.train.y),
        "starting weights and mask": weights_id(start),
    }
    return shown, private
