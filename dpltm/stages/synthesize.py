"""Synthetic records as a stage: what they cost, the records, and how well a network trained on them does on real ones."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from dpltm.errors import InputError
from dpltm.networks import ModelSpec, build
from dpltm.options.sections import check_choices
from dpltm.options.synthesize import SynthesizeOptions
from dpltm.privacy.events import Event, GaussianEvent
from dpltm.privacy.lineage import (
    check_never_private,
    check_not_public,
    check_test_apart,
    entered_on,
    measured_on,
    relation_notes,
    to_enter,
)
from dpltm.privacy.mechanisms import Adjacency
from dpltm.privacy.old_ledger import Ledger
from dpltm.privacy.parts import touching
from dpltm.privacy.report import report
from dpltm.privacy.statement import PrivacyReport
from dpltm.pruning.generation import GenerationConfig, train_dense
from dpltm.randomness.noise import SecureSource
from dpltm.records import Dataset, from_arrays, unscale
from dpltm.records.notes import public_input_notes, unit_notes
from dpltm.records.settle import MAX_NAME
from dpltm.records.synthetic import release_moments
from dpltm.records.synthetic_origin import SyntheticOrigin
from dpltm.stages.checks import LedgerState, check_count, check_delta, check_epsilon, model_spec
from dpltm.stages.front import feature_events, feature_notes
from dpltm.stages.inputs import tensors
from dpltm.stages.moments import check_moments, draw_records, plan_moments
from dpltm.stages.services import Services
from dpltm.training.evaluation import accuracy

MAX_VALUES = 2**28
"""Values of all synthetic records together: a gigabyte of them."""

PASSES, BATCH = 20, 400
"""How long the network that is scored is trained: passes over the synthetic records, and records per step."""


@dataclass(frozen=True, kw_only=True)
class SynthesisPlan:
    """A synthesis as settled before it starts; nothing is spent yet.

    Attributes:
        options: as they were given.
        dataset: the private records.
        spec: the network that is scored.
        lineage: what bounds and categories of the records were found by, where the ledger does not know it yet.
        event: what will be spent.
        ledger: that it is entered in.
        before: the ledger as it was when the plan was made.
    """

    options: SynthesizeOptions
    dataset: Dataset
    spec: ModelSpec
    lineage: tuple[Event, ...]
    event: GaussianEvent
    ledger: Ledger
    before: LedgerState


@dataclass(frozen=True, kw_only=True)
class Score:
    """Train on synthetic, test on real.

    Attributes:
        model: the network that was trained, without noise, on the synthetic records alone.
        accuracy: on the test split.
        records: of the test split.
    """

    model: str
    accuracy: float
    records: int


@dataclass(frozen=True, kw_only=True)
class SyntheticRecords:
    """Synthetic records, and what they cost.

    Attributes:
        dataset: the records, with what they come from: every stage takes it, and enters that.
        privacy: the report on the private records.
        ledger: that holds the release.
        score: of a network trained on them; None where there is no test split.
    """

    dataset: Dataset
    privacy: PrivacyReport
    ledger: Ledger = field(repr=False)
    score: Score | None = None

    @property
    def x(self) -> np.ndarray:
        """Features, ``(n, ...)`` float32, shaped and scaled as the private ones."""
        return self.dataset.train.x

    @property
    def y(self) -> np.ndarray:
        """Labels, ``(n,)`` int64."""
        return self.dataset.train.y


def plan(dataset: Dataset, options: SynthesizeOptions, ledger: Ledger, services: Services) -> SynthesisPlan:
    """Settles and refuses everything before anything is spent.

    Args:
        dataset: the private records.
        options: how many, and for what epsilon.
        ledger: what it holds counts towards the budget.
        services: told how far it is.

    Raises:
        InputError: options out of range; records that may not be used like that.
        BudgetError: the ledger leaves too little of the budget.
    """
    check_choices(options)
    if options.epsilon is None:
        raise InputError("`epsilon` is missing: what may be spent on these records, such as 1")
    check_epsilon("epsilon", options.epsilon)
    check_count("records_out", options.records_out)
    if not 0 <= options.seed < 2**63:
        raise InputError(f"`seed`: {options.seed} is not between 0 and 2^63 - 1")
    if dataset.synthetic is not None:
        raise InputError(
            f"`dataset`: records of {dataset.name} are synthetic already, and cost nothing more; name the private ones"
        )
    check_moments(dataset, "`dataset`", "make tickets by dpltm generate `criterion` dp-train")
    if options.records_out * dataset.features > MAX_VALUES:
        raise InputError(
            f"`records_out`: {options.records_out:,} records of {dataset.features:,} features are more than a gigabyte; ask"
            f" for at most {MAX_VALUES // dataset.features:,}"
        )
    check_delta(options.delta, dataset)
    spec, before = model_spec(options.model, dataset), ledger.events
    adjacency = cast(Adjacency, options.adjacency)
    records = entered_on(dataset, adjacency, ledger.registry)
    measured = measured_on(dataset, ledger.registry)
    lineage = to_enter((*feature_events(dataset, records, ledger.registry), *measured), before)
    known = (*before, *lineage)
    check_not_public(known, records, ledger.registry)
    services.progress.say(f"calibrating noise to epsilon {options.epsilon:g} at delta {options.delta:g}")
    event = plan_moments(options.epsilon, options.delta, adjacency, records, known)
    check_test_apart(dataset, (*known, event), ledger.registry)
    check_never_private(before, lineage)
    ledger.check_budgets((*lineage, event))
    return SynthesisPlan(
        options=options,
        dataset=dataset,
        spec=spec,
        lineage=lineage,
        event=event,
        ledger=ledger,
        before=LedgerState(ledger),
    )


def planned_report(plan: SynthesisPlan) -> PrivacyReport:
    """What the report would be, were the plan carried out."""
    return _report(plan, (*plan.before.events, *plan.lineage, plan.event))


def synthesize(plan: SynthesisPlan, services: Services) -> SyntheticRecords:
    """Enters the release, makes it, and draws the records from the answer.

    Args:
        plan: as settled.
        services: told how far it is.

    Raises:
        InputError: the ledger has grown since the plan was made.

    Guarantees:
        The event is on record before any noise is drawn, and so is what bounds and categories were found by. The records are
        post-processing of these releases, and of public facts: the bounds, the number of classes and the shape of a record.
    """
    dataset, options, sigma = plan.dataset, plan.options, plan.event.mechanism.noise_multiplier
    plan.before.check(plan.ledger)
    x, y = tensors(dataset.train, dataset, services)
    plan.ledger.enter((*plan.lineage, plan.event), plan.before.events)  # before the query is asked
    services.progress.say(f"releasing moments of {dataset.features} features")
    moments = release_moments(
        x, y, dataset.classes, noise_multiplier=sigma, adjacency=plan.event.mechanism.adjacency, noise=SecureSource()
    )
    drawn, labels = draw_records(moments, dataset, options.records_out, options.seed)
    made = unscale(drawn.numpy(), dataset.bounds).reshape(-1, *dataset.row_shape)
    return SyntheticRecords(
        dataset=_as_dataset(plan, made, labels.numpy()),
        privacy=_report(plan, plan.ledger.events),
        ledger=plan.ledger,
    )


def scored(plan: SynthesisPlan, made: SyntheticRecords, services: Services) -> SyntheticRecords:
    """The records with the score of a network that was trained on them, where there is a test split to score on.

    The training is ordinary: it is post-processing, and nothing but the test split is looked at beside.

    Args:
        plan: that they were made by.
        made: the records.
        services: told how far it is.
    """
    dataset, spec = plan.dataset, plan.spec
    if dataset.test is None:
        return made
    x, y = tensors(made.dataset.train, made.dataset, services)
    batch = min(BATCH, len(y))
    config = GenerationConfig(
        rounds=1, iterations=max(1, PASSES * len(y) // batch), batch_size=batch, seed=plan.options.seed
    )
    with services.progress.progress("training on synthetic records", config.iterations) as step:
        trained = train_dense(spec, x, y, config, lambda done, _: step(done))
    model = build(spec)
    model.load_state_dict(trained.predictor or {})
    found = accuracy(model, *tensors(dataset.test, dataset, services))
    return replace(made, score=Score(model=spec.text, accuracy=found, records=len(dataset.test)))


def _as_dataset(plan: SynthesisPlan, x: np.ndarray, y: np.ndarray) -> Dataset:
    """The records with their public facts, and with what they come from."""
    dataset, digest = plan.dataset, hashlib.sha256()
    for part in (x, y):
        digest.update(f"{part.dtype.name} {part.shape}\n".encode())
        digest.update(np.ascontiguousarray(part, dtype=part.dtype.newbyteorder("<")).tobytes())
    made = from_arrays(
        x,
        y,
        bounds=dataset.bounds,
        classes=dataset.classes,
        name=f"synthetic {dataset.name}"[:MAX_NAME],
        for_training=False,
    )
    origin = SyntheticOrigin(digest.hexdigest(), plan.event, dataset.bounds, dataset.classes, dataset.found)
    return replace(made, synthetic=origin, found=origin.found, records_origin="described", classes_origin="described")


def _report(plan: SynthesisPlan, held: tuple[Event, ...]) -> PrivacyReport:
    dataset, options = plan.dataset, plan.options
    notes = [*public_input_notes(dataset), *unit_notes(dataset), *relation_notes(dataset, options.adjacency)]
    notes += feature_notes(dataset, plan.event.dataset, options.delta, plan.ledger.registry)
    notes.append(
        "the synthetic records are post-processing of what was spent: whatever is made of them costs these records nothing"
        " more, and using them beside other releases from these records adds up"
    )
    if dataset.test is not None:
        notes.append("accuracy is measured on the test split, which is declared separate from the private records")
    adjacency = plan.event.mechanism.adjacency
    return report(touching(held, plan.event.dataset), options.delta, adjacency, notes, held=held)
