"""Phase 3: train a ticket under differential privacy (docs/privacy-model.md section 4).

A training is settled (``settle``), gets its noise from what the ledger leaves (``plan``), is paid for, and is drawn
(``dpltm.training.release``). Whatever can be refused is refused before it is paid for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import fields, replace

import torch

from dpltm.errors import BudgetError, InputError
from dpltm.features.feature_map import SplineMap
from dpltm.features.inputs import Services, check_quantities
from dpltm.filters import PARAMETERS, Filter, check_claims, make_filter
from dpltm.gradients.linear_layer import compiler_at_hand
from dpltm.networks import ModelSpec, Network, for_inputs
from dpltm.networks.evaluation import DIVERGED, check_loss, check_priced, check_score, has_diverged
from dpltm.networks.masks import network_id
from dpltm.networks.own_network import as_trained, check_scored_rows, network_notes, source_facts
from dpltm.options import METRICS, TARGET_METRICS
from dpltm.options.train import LEAST_SQUARES, TrainOptions
from dpltm.privacy.account import Account, Planned
from dpltm.privacy.accountants import certified_by, check_certifies
from dpltm.privacy.calibration import calibrate_noise, calibrate_steps, check_share
from dpltm.privacy.checkpoint import NOT_KEPT, Checkpoints
from dpltm.privacy.checks import MAX_STEPS, default_batch, participations_of, steps_of
from dpltm.privacy.entry import Entry, lineage_from_text, lineage_of
from dpltm.privacy.ledger import Book, Ledger
from dpltm.privacy.mechanisms import (
    AllocatedSgd,
    BandedSgd,
    GaussianRelease,
    Guarantee,
    NoisySgd,
    PrivateSearch,
    Selection,
    Unprotected,
)
from dpltm.privacy.release import pay
from dpltm.privacy.statement import PrivacyReport, as_claimed, statement
from dpltm.randomness import banded_noise
from dpltm.randomness.noise import MIN_EPSILON
from dpltm.records.dataset import Dataset
from dpltm.records.notes import NO_TEST, feature_notes, public_input_notes, shares_notes, test_notes, unit_notes
from dpltm.records.settle import check_delta
from dpltm.records.subgroups import check_column
from dpltm.records.units import at_unit
from dpltm.registry import changed, listed
from dpltm.training import least_squares as head
from dpltm.training.artifacts import Run, StartingPoint
from dpltm.training.canaries import check_canaries
from dpltm.training.optimizers import DECAY
from dpltm.training.plan import check_metric, class_weights, noisy_steps, private_score
from dpltm.training.ranks import Ranks
from dpltm.training.release import Rewound, TrainingPlan, settled_together

LEARNING_RATES = {"sgd": 1.0, "momentum": 0.1, "adam": 0.002, "adagrad": 0.05}  # default step sizes, for clip norm 1

SPREAD = 0.25
"""Default noise in each weight, of all steps added up, for one layer behind features of a fixed norm (its deviation); at
least as if it were that of 2-Gaussian-DP. Found on kmnist-7k at epsilon 0.2 to 8, for any clip norm, steps and schedule."""

OWN_NOTE = (
    "the figure is of what this run itself depends on; its ledger may hold more from the same people, which adds up"
)

BANDED = "banded"

TABLE_SCHEDULE, TABLE_CENTRE = "linear", 0.05
"""Of one layer behind features of a table, or behind a map for any records. Found on public tables (docs/results.md)."""


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
    rewound: Rewound | None = None,
) -> Run:
    """Pay for a training and carry it out, or resume one; of several ranks, rank 0 alone pays, samples and adds noise.

    Guarantees:
        What is refused costs nothing. The entry is on record before any noisy value that it pays for is drawn, and stays. A
        step is noised once, whoever computes it how often (``dpltm.privacy.checkpoint``).
    """
    services = services or Services()
    arguments = start, dataset, options, ledger, services
    settled = settle(*arguments) if ranks is None else settled_together(ranks, lambda: settle(*arguments))
    settled = replace(settled, checkpoints=checkpoints, rewound=rewound)
    paid = pay(lambda book, entered: plan(settled, book, entered=entered, own=own), ledger, checkpoints, settled.facts)
    if checkpoints.latest is not None and "key" not in checkpoints.latest.state:
        services.progress.say(f"going on from {checkpoints.latest.place}; nothing more is spent")
    (drawn,) = paid.values  # the whole training: its one value comes at its end
    trained, gradients = drawn.plan, drawn.descent.gradients
    start = trained.start
    diverged = [DIVERGED] if has_diverged(start.model, start.spec) else []
    notes = [*([OWN_NOTE] if own else []), *drawn.notes, *diverged]
    account = ledger.book.account(paid.lineage, own=True) if own else paid.account
    config = trained.to_json(gradients.gradients.kernels)
    privacy = stated(trained, account, notes)
    return Run(
        config, start.model, start.mask, trained.dataset.feature_map, tuple(drawn.metrics), privacy, ledger, paid.lineage,
        drawn.seconds, gradients.observations, drawn.skill, network=as_trained(start.spec, start.model),
    )  # fmt: skip


def settle(
    start: StartingPoint, dataset: Dataset, options: TrainOptions, ledger: Ledger, services: Services
) -> TrainingPlan:
    """Settle, and refuse, everything about a training but its noise, for which 1 stands; hash records, and open none."""
    filter = check_options(options)
    if start.tickets is not None:
        dataset = start.tickets.takes(dataset)
    options = with_defaults(head.with_head(options, start, dataset), start, dataset)
    dataset = at_unit(dataset, options.per_unit)
    steps = options
    if options.head == LEAST_SQUARES:
        steps, start, dataset = head.settled(options, start, dataset)
        if isinstance(dataset.feature_map, SplineMap):  # where no gradient is clipped
            filter = make_filter("clip", clip_norm=head.LONGEST)
    rate, count, batch = sampling_of(steps, dataset)
    mechanism = noisy_steps(filter, start.mask.live, rate, count, options)
    if options.noise.startswith(BANDED):
        mechanism = _banded(options, dataset, mechanism, batch)
    check_takes_persons(start.spec, dataset)
    _check_measured(options, dataset, start)
    feature_map = dataset.feature_map
    searched = None if options.lineage is None else lineage_from_text(options.lineage)
    chosen = {item.name: getattr(options, item.name) for item in fields(TrainOptions)}
    weighed = options.class_weight, options.class_shares, dataset.classes
    scored = options.eval_private is not None and options.metric == "balanced-accuracy"
    facts = {
        # none of where the files of a command lie
        "options": {name: value for name, value in chosen.items() if value is not None},
        # binds the key to these records in this order: with others it would noise a second sum
        "records": dataset.train.digest(ledger.book.key),
        "ticket": None if start.tickets is None else start.tickets.id,
        "round": start.round,
        "model": start.spec.identity,
        "weights": network_id(start.model, start.mask),
        "features": None if feature_map is None else feature_map.uncentred.id,
        # which no sampling rate tells where all records are in every step
        **({"public": [dataset.records, dataset.target]} if options.head == LEAST_SQUARES else {}),
        **source_facts(start.spec),
    }
    return TrainingPlan(
        options=options,
        filter=filter,
        mechanism=mechanism,
        expected_batch=batch,
        lr=LEARNING_RATES[options.optimizer] if options.lr is None else options.lr,
        class_weight=class_weights(*weighed, dataset.schema.class_shares, scored=scored),
        start=start,
        dataset=dataset,
        part=ledger.part(dataset),
        lineage=lineage_of(dataset, feature_map, start, searched),
        facts=facts,
        beside=ledger.apart(dataset) if options.eval_private is None else (),
        account=Account(unit=dataset.unit),
        ledger=ledger,
        services=services,
    )


def _banded(options: TrainOptions, dataset: Dataset, plain: NoisySgd, batch: float) -> BandedSgd:
    """Return a training with the noise of ``plain`` correlated over as many steps as are asked for, or as are best."""
    if dataset.of_persons:
        raise InputError(f"`noise`: {BANDED} cuts single records into parts; of persons take secure or fast")
    most = min(plain.steps, math.floor(dataset.records / batch * (1 + 1e-12)), banded_noise.MOST)
    bands = _bands_asked(options)
    if (bands or 2) > most:
        raise InputError(
            f"`noise`: {bands or 2} bands, and {most} is the most where {plain.steps} steps take {batch:g} records each"
            f" from one of as many parts of {dataset.records}; ask for fewer, or a smaller `batch_size`, or `noise` secure"
        )
    if bands:
        return _with_bands(plain, bands)

    def squared_error(banded: BandedSgd) -> float:  # of sums of gradients, at the whole budget
        noise = calibrate_noise(options.epsilon or 0.0, options.delta, banded, accountant=options.accountant)
        return noise.noise_multiplier**2 * banded_noise.squared_error(banded.strategy, banded.steps)

    return min((_with_bands(plain, 2**power) for power in range(1, most.bit_length())), key=squared_error)


def _bands_asked(options: TrainOptions) -> int | None:
    bands = options.noise.partition(":")[2]
    return int(bands) if bands else None


def _with_bands(plain: NoisySgd, bands: int) -> BandedSgd:
    strategy = banded_noise.optimal_strategy(bands, plain.steps)
    norm = banded_noise.norm(strategy)
    claim = plain.nominal_sensitivity
    return BandedSgd(
        min(plain.sampling_rate * bands, 1.0), plain.steps, 1.0, plain.sensitivity * norm,
        None if claim is None else claim * norm, plain.claimed_by, strategy, bits=plain.bits, adjacency=plain.adjacency,
    )  # fmt: skip


def _check_measured(options: TrainOptions, dataset: Dataset, start: StartingPoint) -> None:
    metric, spec = options.metric or "", start.spec
    check_metric(metric, spec.score, dataset.target)
    check_loss(spec)
    for name in ("class_weight", "class_shares"):
        if getattr(options, name) is not None and (dataset.target or dataset.labels):
            raise InputError(f"`{name}`: is for classes, and these labels are none; leave it out")
    if dataset.target is not None and (spec.loss is not None or spec.score is not None):
        raise InputError("`loss`, `score`: a target that is a number has its own; leave them out, or `target_bounds`")
    if dataset.test is not None or options.eval_private is not None:
        check_score(spec, "accuracy")
    if options.eval_private is not None:
        private_score(metric, options.class_shares, dataset, spec.score)
        check_scored_rows(spec)
    if options.by is not None:
        check_column(dataset, options.by)


def with_defaults(options: TrainOptions, start: StartingPoint, dataset: Dataset) -> TrainOptions:
    """Return options with what follows from public facts where nobody said it: step sizes, and whether to centre."""
    one_layer = dataset.feature_map is not None and len(start.spec.shapes()) == 2 and not start.unprotected
    # what stands in front of values without an order is good for tables; whether columns have names makes no difference
    table = dataset.is_table or (dataset.feature_map is not None and dataset.feature_map.base.of_any_shape)
    metric = options.metric or (METRICS if dataset.target is None else TARGET_METRICS)[0]
    schedule, centre = "constant", options.centre
    if options.head != LEAST_SQUARES and one_layer and table and options.optimizer in ("sgd", "momentum"):
        schedule = TABLE_SCHEDULE
        budget = options.epsilon is not None and not options.budget_stop and options.audit is None
        centre = TABLE_CENTRE if centre is None and budget else centre
    return replace(options, metric=metric, schedule=options.schedule or schedule, centre=centre or None)


def sampling_of(options: TrainOptions, dataset: Dataset) -> tuple[float, int, float]:
    """Return sampling rate, steps and expected batch size, from public inputs only."""
    check_delta(options.delta, dataset)
    participations, records = participations_of(options.sampling), dataset.records
    batch = options.batch_size if options.batch_size is not None else default_batch(records)
    if not 0 < batch <= records:
        raise InputError(f"`batch_size`: {batch:g} is not between 0 and the {records} records of {dataset.name}")
    rate = batch / records
    steps = options.steps if options.steps is not None else steps_of(participations or options.epochs or 15.0, rate)
    if steps > MAX_STEPS:
        raise InputError(f"`epochs`, `steps`: more than {MAX_STEPS:,} steps; ask for fewer")
    if participations is not None:  # the batch that goes with so many whole steps
        rate, batch = participations / steps, records * participations / steps
    return rate, steps, batch


def _step_size(plan: TrainingPlan) -> float | None:
    """Of one layer behind features, where nobody chose one: by the noise, and other public numbers; None elsewhere."""
    mechanism, options, strategy, feature_map = plan.mechanism, plan.options, plan.strategy, plan.dataset.feature_map
    one_layer = feature_map is not None and len(plan.start.spec.shapes()) == 2
    if options.lr is not None or not one_layer or options.optimizer not in ("sgd", "momentum"):
        return None
    spread = SPREAD
    if options.head == LEAST_SQUARES:
        spread = head.TABLE_SPREAD if isinstance(feature_map, SplineMap) else head.SPREAD
    elif plan.dataset.target is not None:  # chances near the mean, which so much noise would hide
        return None
    bound = plan.filter.certified_bound(plan.start.mask.live)
    root = summed = math.sqrt(mechanism.steps)
    if strategy:
        bound, root = bound * banded_noise.norm(strategy), math.sqrt(mechanism.steps / len(strategy))
        summed = math.sqrt(banded_noise.noise_of_sums(strategy, mechanism.steps)[-1])
    noise = max(mechanism.noise_std, mechanism.sampling_rate * root * bound / 2) * summed
    farther = 1 / (1 - DECAY) if options.optimizer == "momentum" else 1.0
    if options.schedule != "constant":
        farther /= 2  # the mean of either schedule that falls to zero
    return spread * plan.divisor / (noise * farther)


def check_options(options: TrainOptions) -> Filter:
    """Return the gradient filter; refuse options out of range, that contradict each other, or that lack their other half."""
    if options.head == LEAST_SQUARES:
        head.check_options(options)
    if not re.fullmatch(f"secure|fast|nominal|{BANDED}(:([2-9]|[1-9][0-9]{{1,8}}))?", options.noise, re.ASCII):
        raise InputError(f"`noise`: {options.noise!r} is not secure, fast, nominal, or {BANDED}[:N] with N from 2")
    if options.noise.startswith(BANDED):
        # a replaced record may be in another part, where nothing is proven
        _check_alone(options, f"`noise` {BANDED}", "audit", "microbatch", "sampling", "adjacency")
        if _bands_asked(options) is None and (options.epsilon is None or options.budget_stop):
            raise InputError(f"`noise`: {BANDED} needs a budget to choose its bands by; name them, such as {BANDED}:8")
    if participations_of(options.sampling) is not None:  # which has one price for all steps
        _check_alone(options, f"`sampling` {options.sampling}", "budget_stop", "epochs")
        if options.steps is not None:
            _check_alone(options, f"`sampling` {options.sampling} and `steps`", "batch_size")
    filter = make_filter(options.filter, **changed(PARAMETERS, options))
    if options.noise == "nominal" and options.microbatch is None:  # of groups, every filter has the papers' claim
        check_claims(filter)
    stated = [value is not None for value in (options.epsilon, options.noise_multiplier)]
    if options.budget_stop and not all(stated):
        raise InputError("`budget_stop`: needs `epsilon`, where to stop, and `noise_multiplier`, how fast it is spent")
    if not options.budget_stop and sum(stated) != 1:
        raise InputError("`epsilon` or `noise_multiplier`: give one of them; `epsilon` is the whole budget, such as 1")
    if options.budget_stop and options.noise == "nominal":
        raise InputError("`budget_stop`: holds for certified noise only; leave `noise` nominal out")
    if options.epsilon is not None:
        check_certifies(options.accountant)
    if (price := options.eval_private) is not None:
        check_priced(options.metric)
        _check_alone(options, "`eval_private`, which leaves the test split alone", "by")
        if price < MIN_EPSILON:
            raise InputError(f"`eval_private`: {price:g} is nothing but noise; give at least {MIN_EPSILON:g}")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("`device`: cuda is not there (no such device, or torch was built without it); use cpu")
    if options.epochs is not None and options.steps is not None:
        raise InputError("`epochs`, `steps`: give one of them")
    if options.centre and options.epsilon is None:
        raise InputError("`centre`: a part of a budget, so it needs `epsilon`; `noise_multiplier` states no budget")
    return filter


def _check_alone(options: TrainOptions, asked: str, *names: str) -> None:
    for name in names:
        if getattr(options, name) not in (None, 0, "poisson", "add-remove"):
            raise InputError(f"`{name}`: does not go with {asked}; leave one of them out")


def check_takes_persons(spec: Network, dataset: Dataset) -> None:
    """Raise InputError for a network that a person's records, side by side, cannot go through."""
    if dataset.of_persons and not (isinstance(spec, ModelSpec) and "vectors" in spec.name.kind.inputs):
        raise InputError(
            f"`unit_column`: a person's records go through an {listed(for_inputs('vectors'))}, behind features too, not"
            f" through {spec.text}; take such a network"
        )


def _before_steps(settled: TrainingPlan, before: Planned) -> head.Before:
    """Return the releases before the steps: each as noisy as one that spends all the budget, over the root of its share."""
    options, dataset, mechanism = settled.options, settled.dataset, settled.mechanism
    if options.head != LEAST_SQUARES and options.centre is None:
        return {}
    noise = options.noise_multiplier or 0.0
    if options.epsilon is not None:
        _check_finite(before, options.delta)
        alone = NoisySgd(1.0, 1, 1.0, adjacency=mechanism.adjacency)
        noise = calibrate_noise(options.epsilon, options.delta, alone, before, options.accountant).noise_multiplier
    if options.head == LEAST_SQUARES:
        return head.releases(dataset, settled.start.mask, mechanism, noise)
    check_centre(dataset)
    return {"mean": head.release("mean", mechanism, noise, options.centre or 0.0)}


def check_centre(dataset: Dataset) -> None:
    """Raise InputError unless the records are behind features of a fixed norm, whose mean can be released."""
    check_quantities(dataset, "`centre`")
    if dataset.feature_map is None:
        raise InputError(f"`centre`: {head.NEEDS_FEATURES}")


def _check_finite(before: Planned, delta: float) -> None:
    """Raise BudgetError where no epsilon can be certified any more; InputError where that is because delta is too small."""
    if math.isfinite(before.with_mechanism(None).epsilon(delta)):
        return
    spent = math.fsum(guarantee.delta for entry in before.account.paid for guarantee in entry.of(Guarantee))
    if spent >= delta:
        raise InputError(
            f"`delta`: {delta:g} is not above {spent:g}, the delta of releases on record for these records, such as of names"
            " of categories in a schema; raise it (below 1/n), or find a schema with a smaller one"
        )
    raise BudgetError(
        "budget: the ledger holds an unprotected release from these records, so no epsilon can be certified any more;"
        " name the account of other people (`ledger`, `population`)"
    )


def _with_noise(options: TrainOptions, mechanism: NoisySgd, before: Planned, *, certified: bool) -> NoisySgd:
    """Return the mechanism with its noise, stated or calibrated; refuse what must be ``certified`` and cannot."""
    nominal = options.noise == "nominal"
    claimed = (mechanism.nominal_sensitivity or mechanism.sensitivity) / mechanism.sensitivity if nominal else 1.0
    if options.noise_multiplier is not None and not options.budget_stop:
        return replace(mechanism, noise_multiplier=options.noise_multiplier * claimed)
    budget = options.epsilon or 0.0
    private = any(entry.of(Unprotected) for entry in before.account.paid)  # DPLTM's own setting: made from the records
    if nominal or (private and not options.budget_stop and not certified):
        budget, before = _nominal_remainder(budget, before, options.delta)
    else:
        _check_finite(before, options.delta)
    if options.budget_stop:
        stated = replace(mechanism, noise_multiplier=options.noise_multiplier or 0.0)
        return calibrate_steps(budget, options.delta, stated, before, options.accountant, most=mechanism.steps)
    calibrated = calibrate_noise(budget, options.delta, mechanism, before, options.accountant)
    return replace(calibrated, noise_multiplier=calibrated.noise_multiplier * claimed)


def _nominal_remainder(budget: float, before: Planned, delta: float) -> tuple[float, Planned]:
    """Return what the papers would leave for training: less each eps1, with earlier training as they account it."""
    paid = before.account.paid
    spent = sum(drawn.eps1 for entry in paid for drawn in entry.of(Selection))
    drawn = replace(before.account, entries=tuple(entry for entry in paid if entry.of(Selection)))
    check_share(budget, spent, replace(before, account=drawn), delta, "nominal epsilon")
    trained = [
        replace(entry, mechanisms=tuple(map(as_claimed, mechanisms)))
        for entry in paid
        if (mechanisms := (*entry.of(NoisySgd), *entry.of(PrivateSearch)))
    ]
    return budget - spent, replace(before, account=replace(before.account, entries=tuple(trained)))


def plan(settled: TrainingPlan, book: Book, *, entered: Entry | None = None, own: bool = False) -> TrainingPlan:
    """Return a training with its noise: as stated, or as what the ledger holds leaves room for; nothing is entered.

    Args:
        entered: its entry, if it is on record already: then nothing is calibrated.
        own: whether ``epsilon`` is that of its own lineage alone, as of a trial of a sweep.
    """
    options, draft, live = settled.options, settled.mechanism, settled.start.mask.live
    account = book.account(settled.lineage, own=own)
    counts: tuple[Guarantee, ...]
    if entered is not None:  # its noise, beside everything else as it is asked for now: the door compares the two
        before_steps, counts = head.releases_of(entered.of(GaussianRelease), settled.dataset), entered.of(Guarantee)
        (paid,) = entered.of(NoisySgd)
        mechanism = replace(draft, steps=paid.steps, noise_multiplier=paid.noise_multiplier)
        account = account.without(entered)
    else:
        before = Planned(account, settled.part)
        before_steps = _before_steps(settled, before)
        price = options.eval_private
        counts = () if price is None else (Guarantee(price, adjacency=draft.adjacency),)
        before = replace(before, others=(*before_steps.values(), *counts))
        if options.head == LEAST_SQUARES:
            options = head.for_steps(options, before_steps, settled.dataset)
        mechanism = _with_noise(options, draft, before, certified=settled.rewound is not None)
    check_canaries(options.audit, live, mechanism.noise_multiplier)
    if isinstance(mechanism, BandedSgd):
        banded_noise.check_noise(mechanism.strategy, mechanism.steps, mechanism.noise_multiplier, live)
    priced = replace(settled, mechanism=mechanism, before_steps=before_steps, evaluations=counts, account=account)
    lr = _step_size(priced)
    return replace(priced, lr=priced.lr if lr is None else lr, notes=_notes(priced, draft.steps, lr))


def _notes(plan: TrainingPlan, planned_steps: int, lr: float | None) -> tuple[str, ...]:
    options, dataset, mechanism = plan.options, plan.dataset, plan.mechanism
    notes = []
    if plan.strategy:
        notes.append(f"`noise` {BANDED}: correlated over {len(plan.strategy)} steps, of which a record may enter one")
    notes += [*public_input_notes(dataset), *shares_notes(options.class_shares), *unit_notes(dataset)]
    notes += [*feature_notes(dataset), *network_notes(plan.start.spec)]
    hidden = _hidden_notes(plan)
    for note in hidden:  # before payment
        plan.services.progress.say(note)
    notes += hidden
    if options.compile and not compiler_at_hand():
        notes.append("`compile`: no C++ compiler is at hand (g++ or clang++), so the filter is not compiled")
    if mechanism.steps < planned_steps:
        notes.append(
            f"`budget_stop` ends training after {mechanism.steps} of {planned_steps} steps, before the one that would exceed"
        )
    if lr is not None and options.head != LEAST_SQUARES:
        notes.append(f"`lr` is {lr:.3g}, so that the noise of all steps adds up to {SPREAD} in each weight")
    return tuple(notes)


def _hidden_notes(plan: TrainingPlan) -> list[str]:
    """Return notes on what noise hides, by public facts: records, classes and their shares, and the noise."""
    # over T steps k records add at most k q T bounds in any direction, and noise sigma sqrt(T), as sigma / (q sqrt(T)) do
    dataset, mechanism = plan.dataset, plan.mechanism
    whom = "persons" if dataset.of_persons else "records"
    bound = 2.0 if mechanism.adjacency == "replace-one" else 1.0
    # two deviations tell a count from nothing
    hidden = 2 * bound * mechanism.noise_multiplier / (mechanism.sampling_rate * math.sqrt(mechanism.steps))
    if not isinstance(mechanism, BandedSgd) and dataset.records < max(dataset.classes, 2) * hidden:
        return [
            f"nothing can be learned: noise hides what under {math.ceil(hidden):,} {whom} have in common, and there are"
            f" {dataset.records:,} in all classes; take more of them, or less noise"
        ]
    return head.chance_notes(plan.before_steps.get("chances"), dataset, dataset.schema.class_shares)


def stated(plan: TrainingPlan, account: Account | None = None, more: Sequence[str] = ()) -> PrivacyReport:
    """Return the statement on a training, and on all that counts with it; without an account, were it carried out."""
    drafts = (plan.entry,)
    account = plan.account + drafts if account is None else account
    options, notes, mechanism, before = plan.options, [*plan.notes, *more], plan.mechanism, plan.before_steps
    trained = sum(bool(entry.of(NoisySgd)) for entry in account.paid)
    if trained > 1:
        notes.append(f"{trained} training runs are in this account; epsilon covers all of them together")
    if plan.evaluations:
        notes.append(
            f"{options.metric} is that on the training records, with noise; its epsilon of {options.eval_private:g} is"
            " included"
        )
    else:
        notes += test_notes(plan.dataset) or ([] if plan.dataset.catalogued else [NO_TEST])
    if options.head == LEAST_SQUARES:
        notes.append(head.releases_note(before, plan.dataset))
    elif "mean" in before:
        notes.append(
            f"features are centred at their noisy mean, released for {100 * (options.centre or 0):g} % of the budget"
        )
    notes += plan.step_notes(plan.dataset.unit, [*plan.engines.values()][:1])
    if isinstance(mechanism, AllocatedSgd) and (method := certified_by(options.accountant)) != "pld":
        notes.append(
            f"`accountant` {method} counts an allocation as if everybody knew who is in which step; pld does not"
        )
    if options.noise == "nominal":
        notes.append(
            "`noise` nominal adds as much noise as the paper would; the certified epsilon is what that is worth"
        )
    return statement(account, options.delta, options.accountant, mechanism.adjacency, notes)
