"""Kinds, bounds and categories of the columns of a table, found under DP: one Gaussian query over all of its columns.

A record is counted in a histogram of each column: of numbers over magnitudes, of dates over quarters, of categories over
whatever values there are; of a column whose kind nobody knows in the one of the three that takes its cell. A number or
a date counts twice, each time with ``WEIGHT``: in an interval, and in the group of ``SUB_STEPS`` intervals around it.
Gaussian noise is added to all counts at once. What stands out of the noise is public from then on: a range of numbers,
names of categories, and which of the three most of a column is in.

**Guarantee** (proven in docs/privacy-model.md section 1.8). Let there be m columns, k of them with names, and noise of
standard deviation s. For one record more or less the release is the composition of a Gaussian mechanism of L2 sensitivity
sqrt(m) and a mechanism that is (0, k Q((t - 1) / s))-DP, where t is the threshold of names and Q the Gaussian tail. With one
record replaced by another, read sqrt(2m) and 2k. What follows (intervals, order, names that are kept) is post-processing.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np
from scipy.special import ndtri

from dpltm.errors import DataError, InputError
from dpltm.options.datasets import FindOptions
from dpltm.privacy.account import Planned
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.entry import NO_LINEAGE, Entry, Secret
from dpltm.privacy.ledger import Book, Ledger
from dpltm.privacy.mechanisms import Adjacency, GaussianRelease, Guarantee, NoisySgd
from dpltm.privacy.release import Once, pay, price
from dpltm.privacy.statement import PrivacyReport, statement
from dpltm.progress import Progress
from dpltm.randomness.gaussian_mechanism import gaussian_mechanism, grid_step
from dpltm.randomness.noise import KeyedSource, RandomSource
from dpltm.records.dataset import Dataset
from dpltm.records.files import reading, stem_of
from dpltm.records.notes import public_input_notes, unit_notes
from dpltm.records.schema import MAX_FEATURES, UNKNOWN, Column, Schema, schema_text
from dpltm.records.settle import Declared, check_delta, parse_fraction, settle
from dpltm.records.tables import Cells, Table, read_by_schema
from dpltm.records.units import at_unit

SUB_STEPS, SMALLEST, LARGEST = 16, -20, 60
"""Intervals of a group: of numbers within a power of two, of dates in four years; and exponents of the first and the last
such power on either side of 0."""

WEIGHT = 181 / 256
"""What a number counts in its interval, and in its group: 2 WEIGHT^2 < 1."""

FIRST_YEAR, LAST_YEAR = 1900, 2100

STANDS_OUT, NEAR = 5.0, 3.0
"""Standard deviations of its noise that the count of a group must have, and that of one next to those: 0.1 % of releases
find one in 15 empty columns, and 0.1 % of empty groups beside others count as theirs (2 % at 2)."""

TAIL, THIN = 0.03, 0.01
"""Shares of a column's numbers that may be left out at either end, by their noisy count and a standard deviation: the first
where noise is large, the second where ``NEAR`` of its standard deviations are less."""

RAREST, FEWEST, SURELY, LIKE = 0.01, 10, 1.645, 0.5
"""Share of the records, and number, from which on a class must be found 19 times of 20; what this takes of its noise; and
the share of rows that are alike where a column is easy to find."""

MOST_NAMES, LONGEST_NAME = 2000, 100
"""Categories that are kept, of all columns together, and bytes of one in UTF-8: longer cells count as other values."""

HOLE = -1.0
"""Code of an empty cell, and of one that is not counted."""

NAMES_DELTA = 0.01
"""Part of delta for names of categories that one record alone has: ten times more would lower their threshold by 8 %."""

MOST_TEXT, MOST_COLUMNS = 2**19, 2000
"""Characters of a draft, and columns to be found, that make no schema which is too large to be read, whatever is found."""

LEAST = 1e-9
"""Epsilon of that release, which is (0, delta)-DP: the least that accountants count."""


@dataclass(frozen=True)
class Histogram:
    """Public intervals of the values of a kind of columns, ``number`` or ``date``, and groups of neighbouring ones.

    Interval i goes from edge i - 1 up to edge i; the first and the last have no end. ``sizes`` are those of groups.
    """

    kind: str
    edges: np.ndarray
    sizes: np.ndarray

    def range(
        self, cells: np.ndarray, groups: np.ndarray, noise_std: float
    ) -> tuple[float, tuple[float, float], float]:
        """Return how many values stand out of the noise, the range of these, and the share of them that may be beyond it.

        Groups that stand out, and what lies beside them as long as it does so a little, hold the values. From either end
        intervals are left out while those left out are few. ``cells`` and ``groups`` are noisy counts.
        """
        out, quiet = np.flatnonzero(groups >= STANDS_OUT * noise_std), np.flatnonzero(groups < NEAR * noise_std)
        if not len(out):
            return 0.0, (0.0, 0.0), 0.0
        first = int(quiet[quiet < out[0]].max(initial=-1)) + 1
        inside = slice(first, int(quiet[quiet > out[-1]].min(initial=len(groups))))
        mass = float(groups[inside][groups[inside] >= NEAR * noise_std].sum())
        begin, end = int(self.sizes[:first].sum()), int(self.sizes[: inside.stop].sum())
        cells, groups, sizes = cells[begin:end], groups[inside], self.sizes[inside]
        most = min(TAIL * mass, max(THIN * mass, NEAR * noise_std))
        below, under = _left_out(cells, groups, sizes, most, noise_std)
        above, over = _left_out(cells[::-1], groups[::-1], sizes[::-1], most, noise_std)
        last = end - 1 - above
        low, high = max(min(begin + below, last) - 1, 0), min(last, len(self.edges) - 1)
        if low == high:  # everything lies beyond one end
            low, high = (low, high + 1) if low == 0 else (low - 1, high)
        return mass, (float(self.edges[low]), float(self.edges[high])), min((under + over) / mass, 1.0)


def _left_out(
    cells: np.ndarray, groups: np.ndarray, sizes: np.ndarray, most: float, noise_std: float
) -> tuple[int, float]:
    """Return how many intervals from the outermost on hold ``most`` values, and how many may lie outside of the rest."""
    starts = np.cumsum(sizes) - sizes
    at = np.repeat(np.arange(len(sizes)), sizes)
    further = (np.cumsum(groups) - groups)[at]
    sums = np.cumsum(cells)
    count, outer = np.arange(len(cells)) - starts[at] + 1, sums - (sums - cells)[starts][at]
    rest, inner = np.add.reduceat(cells, starts)[at] - outer, sizes[at] - count
    here = np.where(count <= 1 + inner, outer, groups[at] - rest)  # the less noisy of two sums
    likely = further + here + noise_std * np.sqrt(at + np.minimum(count, 1 + inner))
    beyond = np.maximum.accumulate(further - noise_std * np.sqrt(at) > most)
    few = np.flatnonzero((likely <= most) & ~beyond)
    unseen = NEAR * noise_std
    return (int(few[-1]) + 1, max(float(likely[few[-1]]), unseen)) if len(few) else (0, unseen)


def _histograms() -> dict[str, Histogram]:
    """Return those of numbers, by magnitude on either side of 0, and of dates, by quarters of a year."""
    powers = np.exp2(np.arange(SMALLEST, LARGEST, dtype=np.float64))[:, None]
    above = np.append(powers * (1 + np.arange(SUB_STEPS) / SUB_STEPS), 2.0**LARGEST)
    quarters = np.arange(f"{FIRST_YEAR}-01", f"{LAST_YEAR}-02", 3, dtype="datetime64[M]").astype("datetime64[D]")
    side, years = [SUB_STEPS] * len(powers), [SUB_STEPS] * ((len(quarters) - 1) // SUB_STEPS)
    days = quarters.astype(np.float64) + datetime.date(1970, 1, 1).toordinal()
    return {
        "number": Histogram(
            "number", np.concatenate([-above[::-1], [0.0], above]), np.array([1, *side, 1, 1, *side, 1])
        ),
        "date": Histogram("date", days, np.array([1, *years, 1])),
    }


HISTOGRAMS = _histograms()


def histograms_of(column: Column) -> list[Histogram]:
    """Return the public histograms of a column; where there are several, a cell is in the first that takes it."""
    return [histogram for kind, histogram in HISTOGRAMS.items() if column.kind in (kind, UNKNOWN)]


def is_named(column: Column) -> bool:
    """Tell whether cells that are in none of those are counted by their names."""
    return column.kind in ("category", "label", UNKNOWN)


class Coder:
    """Cells as numbers of intervals, those of all histograms in a row, then of categories as they are met."""

    def __init__(self) -> None:
        self.names: dict[str, dict[str, int]] = {}

    def __call__(self, column: Column, cells: Cells, empty: frozenset[str]) -> np.ndarray:
        """Return the code of each cell, by that cell alone, ``(n,)`` float64; ``HOLE`` for what is not counted."""
        left = ~cells.among(empty)
        codes = np.full(len(cells.values), HOLE)
        start = 0
        for histogram in histograms_of(column):
            values = cells.parsed(replace(column, kind=histogram.kind))
            counted = left & ~np.isnan(values)
            codes[counted] = start + np.searchsorted(histogram.edges, values[counted], side="right")
            left, start = left & ~counted, start + int(histogram.sizes.sum())
        names = self.names.setdefault(column.name, {}) if is_named(column) else {}
        for place in np.flatnonzero(left) if is_named(column) else ():
            if may_be_named(name := cells.texts[place]):
                codes[place] = start + names.setdefault(name, len(names))
        return codes[cells.codes]


def may_be_named(cell: str) -> bool:
    """Return whether a value may be released: a short text that a terminal shows as it is."""
    return cell.isprintable() and len(cell.encode()) <= LONGEST_NAME


@dataclass(frozen=True)
class ColumnQuery:
    """Histograms of columns, as one query."""

    columns: tuple[Column, ...]
    adjacency: Adjacency = "add-remove"

    @property
    def sensitivity(self) -> float:
        """L2 bound of what one record changes: sqrt(m), or sqrt(2m) where it is replaced."""
        return math.nextafter(math.sqrt(len(self.columns) * self._ends), math.inf)

    @property
    def lone_names(self) -> int:
        """Most categories that only one of two neighbours has: k, or 2k where a record is replaced."""
        return sum(map(is_named, self.columns)) * self._ends

    @property
    def _ends(self) -> int:
        return 2 if self.adjacency == "replace-one" else 1

    def threshold(self, noise_std: float, delta: float) -> float:
        """Return what the noisy count of a category must reach: names of one record alone come out with chance delta."""
        tail = -float(ndtri(delta / self.lone_names)) * (1 + 1e-9)
        return 1 + tail * noise_std + grid_step(noise_std)  # Q((t - step - 1) / s) = delta / k

    def sure(self, noise_std: float, delta: float) -> tuple[int | None, int, str]:
        """Return how many rows a category has that is found 19 times of 20, and what needs most; and that in words."""
        # a noisy count N(c, s^2) reaches t with chance Q((t - c) / s): 0.95 at c = t + 1.645 s
        rarest = math.ceil(self.threshold(noise_std, delta) + SURELY * noise_std) if self.lone_names else None
        # groups of numbers count WEIGHT times their rows, and must reach 5 s
        numbers = any(map(histograms_of, self.columns))
        densest = math.ceil((STANDS_OUT + SURELY) * noise_std / WEIGHT) if numbers else 0
        surely = [] if rarest is None else [f"a category that {rarest:,} rows have"]
        surely += (
            [f"bounds of a column where {densest:,} rows lie within a factor of 2, or 4 years"] if numbers else []
        )
        return rarest, max(densest, rarest or 0), f"found 19 times of 20 at this epsilon: {'; '.join(surely)}"

    def counts(self, codes: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return histograms of all columns by codes ``(n, columns)``, private: of intervals, categories and groups."""
        counts = []
        for column, column_codes in zip(self.columns, codes.T, strict=True):
            sizes = np.array([size for histogram in histograms_of(column) for size in histogram.sizes], dtype=np.int64)
            counted = column_codes[column_codes != HOLE].astype(np.int64)
            cells, categories = np.split(np.bincount(counted, minlength=sizes.sum()).astype(np.float64), [sizes.sum()])
            cells = cells * WEIGHT
            groups = np.add.reduceat(cells, np.cumsum(sizes) - sizes) if len(sizes) else cells
            counts.append((cells, categories, groups))
        return counts


def find_columns(
    query: ColumnQuery, codes: np.ndarray, names: Mapping[str, Mapping[str, int]], noise_std: float, delta: float,
    noise: RandomSource,
) -> tuple[tuple[Column, float], ...]:  # fmt: skip
    """Return the columns with bounds and values, where something stands out of the noise; as ignored ones elsewhere.

    With each comes the share of its numbers that may be outside of its bounds. ``codes`` ``(n, columns)`` and ``names`` are
    private; ``delta`` is the chance that names come out which one record alone has.

    Guarantees:
        The composition of a Gaussian mechanism of that noise over ``query.sensitivity`` and a (0, delta)-DP one (see above).
        A column that is found takes empty cells, and whatever else stands in them: no later refusal depends on its cells.
    """
    counts = query.counts(codes)
    # a category without a record has no count: nothing tells that it was ever met
    plain = [part for cells, name_counts, groups in counts for part in (cells, name_counts[name_counts > 0], groups)]
    ends = np.cumsum([len(part) for part in plain])[:-1]
    noisy = np.split(gaussian_mechanism(np.concatenate(plain), noise_std, noise), ends)
    least = query.threshold(noise_std, delta) if query.lone_names else math.inf
    largest = np.sort(np.concatenate(noisy[1::3]))[::-1]
    if len(largest) > MOST_NAMES:  # of noisy counts, so it costs nothing
        least = max(least, largest[MOST_NAMES - 1])
    columns = []
    for column, (_, met, _), cells, name_counts, groups in zip(
        query.columns, counts, noisy[::3], noisy[1::3], noisy[2::3], strict=True
    ):
        spelled = np.array(list(names.get(column.name, {})), dtype=object)[np.flatnonzero(met)]
        words = {word: float(count) for word, count in zip(spelled, name_counts, strict=True) if count >= least}
        columns.append(_found_column(column, cells / WEIGHT, groups / WEIGHT, words, noise_std / WEIGHT))
    return tuple(columns)


def _found_column(
    column: Column, cells: np.ndarray, groups: np.ndarray, words: Mapping[str, float], noise_std: float
) -> tuple[Column, float]:
    """Return a column by what stands out of the noise: the kind of which that is most, with its bounds or values."""
    total = sum(words.values())
    spelled = tuple((word,) for word in sorted(words))
    if column.kind == "label":  # all counts are above the threshold, so positive
        shares = tuple(max(round(words[word] / total, 4), 1e-4) for word in sorted(words))
        return (replace(column, values=spelled, shares=shares, wanted=False) if len(spelled) > 1 else column), 0.0
    finished = replace(column, missing=True, other=True, wanted=False)
    candidates = [(0.0, Column(column.name, "ignored"), 0.0)]  # of which nothing is known is no feature
    for histogram in histograms_of(column):
        part_cells, cells = np.split(cells, [histogram.sizes.sum()])
        part_groups, groups = np.split(groups, [len(histogram.sizes)])
        mass, (low, high), outside = histogram.range(part_cells, part_groups, noise_std)
        if histogram.kind == "number" and not column.log:
            # from 0 on, where that takes an eighth of the width at most: smaller numbers are inside for nothing
            low, high = 0.0 if 0 < 8 * low <= high else low, 0.0 if 0 < -8 * high <= -low else high
        candidates.append((mass, replace(finished, kind=histogram.kind, bounds=(low, high)), outside))
    candidates.append((total, replace(finished, kind="category", values=spelled), 0.0))
    _, likely, outside = max(candidates, key=lambda candidate: candidate[0])  # the first of equals
    return likely, outside


# tables and releases


@dataclass(frozen=True)
class Unfinished:
    """A table, one row a person where persons are protected, with codes in columns of which something is to be found; and
    the private names of the categories that codes stand for, by column."""

    dataset: Dataset
    names: Mapping[str, Mapping[str, int]] = field(repr=False)


def load_unfinished(
    path: Path, schema: Schema, units: str | None = None, subset: str | None = None, records: int | None = None,
    test: str | None = None,
) -> Unfinished:  # fmt: skip
    """Return a table, checked by what its schema says already; arguments as of :func:`dpltm.records.load`.

    Of each person one row counts, that of the lowest public hash.
    """
    with reading(path, ""):
        if not schema.wanted:
            raise DataError("`private`: nothing in this schema is private; leave `private` out")
        hold_out = parse_fraction(test)
        if test is not None and hold_out is None:
            raise DataError(f"`test` {test}: give the part that the training holds out, such as 0.2, and no file")
        declared, coder = Declared(records=records), Coder()
        raw = read_by_schema(Table(path, schema), units, coder=coder)
    dataset = settle(stem_of(path), raw, None, declared, hold_out=hold_out, subset=subset)
    return Unfinished(at_unit(dataset, None if units is None else 1), coder.names)


FOUND = """What was not known of this table was found under DP, by the release below; whatever uses this schema carries it.
In columns that are ignored nothing stood out of the noise: words of which each is rare can be hashed."""


@dataclass(frozen=True)
class FoundSchema:
    """A finished schema, and what it cost; of a dry run what it would cost, and the draft.

    ``rarest`` records of a category or class are found 19 times of 20; None where none is looked for. ``outside`` are shares
    of the numbers of columns that may be outside of their bounds.
    """

    mechanism: GaussianRelease
    privacy: PrivacyReport
    rarest: int | None
    columns: tuple[Column, ...]
    outside: Mapping[str, float]
    text: str


def find_schema(
    table: Unfinished, options: FindOptions, ledger: Ledger, progress: Progress, *, dry_run: bool = False
) -> FoundSchema:
    """Pay for the histograms, or price them in a dry run; the schema is a function of the draft and of that release.

    InputError where delta is out of range, or it would be paid for in vain; BudgetError where a budget does not allow it.
    """
    check_delta(options.delta, table.dataset)
    progress.say(f"calibrating noise to epsilon {options.private:g} at delta {options.delta:g}")
    schema = table.dataset.schema
    lineage = NO_LINEAGE
    found_columns: dict[str, tuple[Column, float]] = {}
    if dry_run:
        release = _release(table, options, ledger, ledger.book, progress)
        account, entry = price(release, ledger.book), release.entry
    else:
        paid = pay(lambda book, _: _release(table, options, ledger, book, progress), ledger)
        account, entry, lineage = paid.account, paid.entry, paid.lineage
        found_columns = {column.name: (column, outside) for column, outside in next(paid.values)}
    (histograms,) = entry.of(GaussianRelease)
    columns = tuple(found_columns.get(column.name, (column,))[0] for column in schema.columns)
    query = ColumnQuery(schema.wanted, histograms.adjacency)
    rarest, _, surely = query.sure(histograms.noise_std, NAMES_DELTA * options.delta)
    notes = [*public_input_notes(table.dataset), *unit_notes(table.dataset), surely]
    if table.dataset.test is None:
        part = "no part of the file is held out, so no later command can measure on one exactly"
        notes.append(f"{part}; `test` 0.2 leaves a fifth out")
    return FoundSchema(
        histograms,
        statement(account, delta=options.delta, adjacency=histograms.adjacency, notes=notes),
        rarest,
        columns,
        {name: share for name, (column, share) in found_columns.items() if column.kind in HISTOGRAMS},
        schema_text(schema, columns, lineage, FOUND),
    )


def _release(
    table: Unfinished, options: FindOptions, ledger: Ledger, book: Book, progress: Progress
) -> Once[tuple[tuple[Column, float], ...]]:
    """Return the release, calibrated to what a ledger leaves of the budget; refused where it would be paid for in vain."""
    adjacency = cast(Adjacency, options.adjacency)
    schema = table.dataset.schema
    query = ColumnQuery(schema.wanted, adjacency)
    delta = NAMES_DELTA * options.delta
    lone = (Guarantee(LEAST, delta, adjacency=adjacency),) if query.lone_names else ()
    alone = NoisySgd(1.0, 1, 1.0, query.sensitivity, adjacency=adjacency)
    part = ledger.part(table.dataset)
    beside = Planned(book.account(schema.lineage), part, lone)
    noise = calibrate_noise(cast(float, options.private), options.delta, alone, beside).noise_multiplier
    histograms = GaussianRelease(noise, query.sensitivity, adjacency=adjacency)
    words = f"histograms of {len(query.columns)} column{'s' * (len(query.columns) > 1)} for a schema"
    entry = Entry("release", part, (*lone, histograms), words, unit=book.unit)
    text = schema_text(schema, schema.columns, NO_LINEAGE, FOUND)
    if len(text) > MOST_TEXT or len(query.columns) > MOST_COLUMNS or 2 * schema.features > MAX_FEATURES:
        raise InputError(
            "`private`: what is found might make a schema too large to be read; draft fewer columns or values"
        )
    records = table.dataset.records
    rarest, most, surely = query.sure(histograms.noise_std, delta)
    if LIKE * records < most:
        raise InputError(
            f"`private`: {surely}; {records:,} rows count, so hardly any column would be found, and it would be paid for in"
            " vain; raise it, or write public bounds and values into a `schema`"
        )
    progress.say(surely)
    if rarest is not None and schema.label.wanted and rarest > max(RAREST * records, FEWEST):
        raise InputError(
            f"`classes` is missing: at this epsilon a class with under {rarest:,} of {records:,} rows may not be found, and"
            " would be paid for in vain; name all classes, give `target_bounds` of a number, or raise `private`"
        )

    def columns_found(secret: Secret) -> tuple[tuple[Column, float], ...]:
        x = table.dataset.train.open(secret).x
        wanted = [column.wanted for column in schema.feature_columns]
        codes = x.reshape(len(x), -1)[:, wanted]  # a person has one row
        noise = KeyedSource(secret.child("noise"))
        return find_columns(query, codes, table.names, histograms.noise_std, delta, noise)

    return Once(entry, schema.lineage, columns_found)
