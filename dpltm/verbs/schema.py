"""Finding the private parts of a table's schema: one Gaussian query over columns (``records.private_columns``)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from dpltm.errors import InputError
from dpltm.options import check_choices
from dpltm.options.datasets import FindOptions
from dpltm.privacy.account import Account, Planned, check_private
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.checks import check_epsilon
from dpltm.privacy.entry import Entry, Lineage, to_json
from dpltm.privacy.ledger import Book, Ledger
from dpltm.privacy.mechanisms import Adjacency, GaussianRelease, Guarantee, NoisySgd
from dpltm.privacy.release import Secret, pay, price
from dpltm.privacy.statement import PrivacyReport, statement
from dpltm.progress import Progress
from dpltm.randomness.noise import KeyedSource
from dpltm.records.checks import check_delta
from dpltm.records.notes import public_input_notes, unit_notes
from dpltm.records.private_columns import LONGEST_NAME, MOST_NAMES, ColumnQuery, Unfinished, find_columns
from dpltm.records.schema import MAX_BYTES, MAX_FEATURES, Column, schema_text

NAMES_DELTA = 0.01
"""Part of delta for names of categories that one record alone has: ten times more would lower their threshold by 8 %."""

NAME_BYTES, COLUMN_BYTES, ENTRY_BYTES = 2 * LONGEST_NAME + 4, 200, 1000
"""Most that a found name, each byte escaped, adds to the text of a schema; the rest of a found column; and of an entry."""

LEAST = 1e-9
"""Epsilon of that release, which is (0, delta)-DP: the least that accountants count."""


@dataclass(frozen=True)
class ColumnsRelease:
    """Histograms of the columns of a table, with their price: a ``Release``.

    Attributes:
        table: the records, and the draft.
        names: of the categories that their codes stand for; private.
        query: histograms of the columns.
        entry: what will be spent.
        delta: of the names that one record alone has.
    """

    table: Unfinished
    names: Mapping[str, Mapping[str, int]] = field(repr=False)
    query: ColumnQuery
    entry: Entry
    delta: float

    @property
    def lineage(self) -> Lineage:
        """Of the draft."""
        return self.table.schema.lineage

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.query.columns)

    @property
    def mechanism(self) -> GaussianRelease:
        """Of the histograms."""
        return cast(GaussianRelease, self.entry.of(GaussianRelease)[0])

    def check(self) -> None:
        """Refuse where what is found might make a schema too large to be read: it would be paid for, and lost.

        Raises:
            InputError: see above.
        """
        schema = self.table.schema
        columns = [Column(column.name, "ignored") if column.wanted else column for column in schema.columns]
        names = MOST_NAMES if any(column.kind == "category" for column in schema.wanted) else 0
        size = len(schema_text(schema, columns, Lineage()).encode()) + names * NAME_BYTES + ENTRY_BYTES
        size += len(schema.wanted) * COLUMN_BYTES + 2 * len(json.dumps(to_json(self.entry)))
        features = sum(len(column.features) for column in columns) + names + 2 * len(schema.wanted)
        if size > MAX_BYTES or features > MAX_FEATURES:
            raise InputError(
                "`private`: what is found might make a schema too large to be read"
                f" ({size:,} of {MAX_BYTES:,} bytes, {features:,} of {MAX_FEATURES:,} features); list fewer values, or"
                " shorter ones, in the draft"
            )

    def draw(self, secret: Secret, at: Any) -> Iterator[tuple[Column, ...]]:
        """Yield the columns that were found. Arguments as ``Release``."""
        del at
        noise = KeyedSource(secret.child("noise"))
        yield find_columns(self.query, self.table.codes, self.names, self.mechanism.noise_std, self.delta, noise)


@dataclass(frozen=True)
class FoundSchema:
    """A finished schema.

    Attributes:
        text: TOML.
        columns: of which something was to be found.
        ignored: columns in which nothing stood out of the noise.
        features: how many it makes; of none, nothing can be learned by it.
        privacy: the report on the records.
        mechanism: of the histograms.
    """

    text: str
    columns: tuple[str, ...]
    ignored: tuple[str, ...]
    features: int
    privacy: PrivacyReport
    mechanism: GaussianRelease


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is to be found, checked; nothing is spent yet.

    Attributes:
        table: the records, and the draft.
        names: of the categories that their codes stand for; private.
        options: what may be spent.
        ledger: that pays.
        progress: told that noise is being calibrated.
    """

    table: Unfinished
    names: Mapping[str, Mapping[str, int]] = field(repr=False)
    options: FindOptions
    ledger: Ledger
    progress: Progress

    def __post_init__(self) -> None:
        check_choices(self.options)
        if self.options.epsilon is None:
            raise InputError("`epsilon` is missing: what finding bounds and values may spend, such as 0.2")
        check_epsilon("epsilon", self.options.epsilon)
        check_delta(self.options.delta, self.table.dataset)

    def plan(self, book: Book, known: Entry | None = None) -> ColumnsRelease:
        """Return the release, calibrated to what a ledger leaves of the budget.

        Args:
            book: of the ledger.
            known: the entry of a release that goes on; there is none, since it is drawn at once.

        Raises:
            InputError: records that are public, or declared apart.
            BudgetError: the ledger leaves too little of the budget.
        """
        del known
        options, adjacency = self.options, cast(Adjacency, self.options.adjacency)
        part, account = self.ledger.part(self.table.dataset), book.account(self.table.schema.lineage)
        check_private(account, part)
        query, delta = ColumnQuery(self.table.schema.wanted, adjacency), NAMES_DELTA * options.delta
        lone = (Guarantee(LEAST, delta, adjacency=adjacency),) if query.lone_names else ()
        assert options.epsilon is not None
        self.progress.say(f"calibrating noise to epsilon {options.epsilon:g} at delta {options.delta:g}")
        alone = NoisySgd(1.0, 1, 1.0, query.sensitivity, adjacency=adjacency)
        noise = calibrate_noise(options.epsilon, options.delta, alone, Planned(account, part, lone)).noise_multiplier
        histograms = GaussianRelease(noise, query.sensitivity, adjacency=adjacency)
        columns = len(query.columns)
        words = f"histograms of {columns} column{'s' * (columns > 1)} for a schema"
        entry = Entry("release", part, (*lone, histograms), words, unit=book.unit)
        return ColumnsRelease(self.table, self.names, query, entry, delta)

    def priced(self) -> tuple[ColumnsRelease, PrivacyReport]:
        """Return what would be released, and what the report would be."""
        release = self.plan(self.ledger.book)
        return release, self._report(price(release, self.ledger.book))

    def found(self) -> FoundSchema:
        """Pay for the histograms, and return the finished schema: a function of the draft and of that release.

        Raises:
            InputError, BudgetError: as :meth:`plan`; nothing is spent then.
        """
        paid = pay(self.plan, self.ledger)
        found = next(paid.values)
        by_name, schema = {column.name: column for column in found}, self.table.schema
        columns = [by_name.get(column.name, column) for column in schema.columns]
        return FoundSchema(
            schema_text(schema, columns, paid.lineage),
            tuple(column.name for column in schema.wanted),
            tuple(column.name for column in found if not column.features),
            sum(len(column.features) for column in columns),
            self._report(paid.account),
            cast(GaussianRelease, paid.entry.of(GaussianRelease)[0]),
        )

    def _report(self, account: Account) -> PrivacyReport:
        notes = [*public_input_notes(self.table.dataset), *unit_notes(self.table.dataset)]
        adjacency = cast(Adjacency, self.options.adjacency)
        return statement(account, self.options.delta, adjacency=adjacency, notes=notes)
