"""Finding the private parts of a table's schema: planned, entered in the ledger, and only then released.

The release is one Gaussian query over columns (``records.private_columns``). The finished schema holds its events, so that
they are entered wherever it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from dpltm.errors import BudgetError, InputError
from dpltm.options.datasets import FindOptions
from dpltm.options.sections import check_choices
from dpltm.privacy.behind import check_not_read_off
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.events import DatasetRef, Event, GaussianEvent, GuaranteeEvent, ReleaseEvent
from dpltm.privacy.lineage import check_not_public, check_test_apart, entered_on, relation_notes
from dpltm.privacy.mechanisms import Adjacency, GaussianRelease, Guarantee, NoisySgd
from dpltm.privacy.old_ledger import Ledger
from dpltm.privacy.parts import OnRecord, total_epsilon, touching
from dpltm.privacy.report import report
from dpltm.privacy.statement import PrivacyReport
from dpltm.randomness.noise import RandomSource, SecureSource
from dpltm.records.notes import public_input_notes, unit_notes
from dpltm.records.private_columns import LONGEST_NAME, MOST_NAMES, ColumnQuery, find_columns
from dpltm.records.schema import MAX_BYTES, MAX_FEATURES, Column, Schema
from dpltm.records.schema_text import schema_text
from dpltm.records.unfinished import Unfinished
from dpltm.stages.checks import LedgerState, check_delta, check_epsilon
from dpltm.stages.progress import Progress

NAMES_DELTA = 0.01
"""Part of delta for names of categories that one record alone has: ten times more would lower their threshold by 8 %."""

NAME_BYTES, COLUMN_BYTES = 2 * LONGEST_NAME + 4, 200
"""Most that a found name, each of its bytes escaped, adds to the text of a schema; and the rest of a found column."""

LEAST = 1e-9
"""Epsilon of that release, which is (0, delta)-DP: the least that accountants count."""


@dataclass(frozen=True, kw_only=True)
class FindPlan:
    """What is found, settled before anything is spent.

    Attributes:
        options: as they were asked for.
        table: the records, and the draft.
        names: of categories, as their codes are; private.
        query: histograms of the columns.
        records: what the release is entered on.
        gaussian: the histograms.
        events: all that is entered: those, and names of categories.
        ledger: that they are entered in.
        before: the ledger as it was when the plan was made.
    """

    options: FindOptions
    table: Unfinished
    names: Mapping[str, Mapping[str, int]]
    query: ColumnQuery
    records: DatasetRef
    gaussian: GaussianEvent
    events: tuple[ReleaseEvent, ...]
    ledger: Ledger
    before: LedgerState


@dataclass(frozen=True)
class FoundSchema:
    """A finished schema.

    Attributes:
        text: TOML.
        ignored: columns in which nothing stood out of the noise.
        features: how many it makes; of none, nothing can be learned by it.
        privacy: the report on the records.
    """

    text: str
    ignored: tuple[str, ...]
    features: int
    privacy: PrivacyReport


def plan(
    table: Unfinished, names: Mapping[str, Mapping[str, int]], options: FindOptions, ledger: Ledger, progress: Progress
) -> FindPlan:
    """Settles and refuses everything, and spends nothing.

    Args:
        table: the records, and the draft.
        names: of the categories that their codes stand for; private.
        options: what may be spent.
        ledger: what it holds counts towards the budget.
        progress: told that noise is being calibrated.

    Raises:
        InputError: options out of range; records that may not be used so.
        BudgetError: the ledger leaves too little of the budget.
    """
    check_choices(options)
    if options.epsilon is None:
        raise InputError("`epsilon` is missing: what finding bounds and values may spend, such as 0.2")
    check_epsilon("epsilon", options.epsilon)
    dataset, adjacency = table.dataset, cast(Adjacency, options.adjacency)
    check_delta(options.delta, dataset)
    state = LedgerState(ledger)
    records = entered_on(dataset, adjacency, ledger.registry)
    check_not_public(state.events, records, ledger.registry)
    check_not_read_off(table.schema.found, records, ledger.registry)
    check_test_apart(dataset, state.events, ledger.registry)
    query = ColumnQuery(table.schema.wanted, adjacency)
    known, lone = touching(state.events, records), tuple[ReleaseEvent, ...]()
    if query.lone_names:
        chance = Guarantee(LEAST, NAMES_DELTA * options.delta, adjacency=adjacency, unit=dataset.unit)
        one = "person" if dataset.unit == "user" else "record"
        lone = (GuaranteeEvent(records, chance, f"names of categories of a schema, if one {one} alone has them"),)
    if math.isinf(total_epsilon((*known, *lone), options.delta, unit=dataset.unit)):
        raise BudgetError(
            "budget: the ledger holds a release after which nothing can be certified for these records, so there is no"
            " budget to take a part of; take another `ledger`, or write public bounds and values"
        )
    progress.say(f"calibrating noise to epsilon {options.epsilon:g} at delta {options.delta:g}")
    alone = NoisySgd(1.0, 1, 1.0, query.sensitivity, adjacency=adjacency, unit=dataset.unit)
    noise = calibrate_noise(options.epsilon, options.delta, alone, OnRecord(records, (*known, *lone)))
    release = GaussianRelease(noise.noise_multiplier, query.sensitivity, adjacency=adjacency, unit=dataset.unit)
    columns = len(query.columns)
    gaussian = GaussianEvent(records, release, f"histograms of {columns} column{'s' * (columns > 1)} for a schema")
    events = (*lone, gaussian)
    _check_room(table.schema, events)
    ledger.check_budgets(events)
    return FindPlan(
        options=options, table=table, names=names, query=query, records=records, gaussian=gaussian, events=events,
        ledger=ledger, before=state,
    )  # fmt: skip


def _check_room(schema: Schema, events: tuple[ReleaseEvent, ...]) -> None:
    """Raises InputError where what is found might make a schema too large to be read: it would be paid for, and lost."""
    columns = [Column(column.name, "ignored") if column.wanted else column for column in schema.columns]
    names = MOST_NAMES if any(column.kind == "category" for column in schema.wanted) else 0
    size = len(schema_text(schema, columns, events).encode()) + names * NAME_BYTES + len(schema.wanted) * COLUMN_BYTES
    features = sum(len(column.features) for column in columns) + names + 2 * len(schema.wanted)
    if size > MAX_BYTES or features > MAX_FEATURES:
        raise InputError(
            "`private`: what is found might make a schema too large to be read"
            f" ({size:,} of {MAX_BYTES:,} bytes, {features:,} of {MAX_FEATURES:,} features); list fewer values, or shorter"
            " ones, in the draft"
        )


def planned_report(plan: FindPlan) -> PrivacyReport:
    """What the report would be, were the plan carried out."""
    return _report(plan, (*plan.before.events, *plan.events))


def find(plan: FindPlan, noise: RandomSource | None = None) -> FoundSchema:
    """Enters the release, makes it, and returns the finished schema.

    Args:
        plan: as settled.
        noise: random bits; a cryptographic generator's if None.

    Raises:
        InputError: the ledger has grown since it was planned; nothing is spent then.
        BudgetError: a budget set on the records does not allow it.

    Guarantees:
        The events are on record before the noise is drawn. The schema is a function of the draft and of that release.
    """
    plan.ledger.enter(plan.events, plan.before.events)
    found = find_columns(
        plan.query,
        plan.table.codes,
        plan.names,
        plan.gaussian.mechanism.noise_std,
        NAMES_DELTA * plan.options.delta,
        SecureSource() if noise is None else noise,
    )
    by_name, schema = {column.name: column for column in found}, plan.table.schema
    columns = [by_name.get(column.name, column) for column in schema.columns]
    ignored = tuple(column.name for column in found if not column.features)
    features = sum(len(column.features) for column in columns)
    text = schema_text(schema, columns, plan.events)
    return FoundSchema(text, ignored, features, _report(plan, plan.ledger.events))


def _report(plan: FindPlan, held: tuple[Event, ...]) -> PrivacyReport:
    dataset, adjacency = plan.table.dataset, cast(Adjacency, plan.options.adjacency)
    notes = [*public_input_notes(dataset), *unit_notes(dataset), *relation_notes(dataset, adjacency)]
    return report(touching(held, plan.records), plan.options.delta, adjacency, notes, unit=dataset.unit, held=held)
