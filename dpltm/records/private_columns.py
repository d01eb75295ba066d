"""Bounds and categories of the columns of a table, found under DP: one Gaussian query over all of its columns.

Every record is counted once in a histogram of each column: of numbers over a public grid of magnitudes, of dates over
months, of categories over whatever values there are. Gaussian noise is added to all counts at once. What stands out of the
noise is public from then on: an interval of numbers, the names of categories.

**Guarantee** (docs/privacy-model.md section 1.8). Let there be m columns, k of them of categories, and noise of standard
deviation s. For one record more or less the release is the composition of a Gaussian mechanism of L2 sensitivity sqrt(m)
and a mechanism that is (0, k Q((t - 1) / s))-DP, where t is the threshold of names and Q the Gaussian tail. With one record
replaced by another, read sqrt(2m) and 2k.

**Proof.** A record adds e_j to the histogram of a column, or nothing where its cell is empty or no number: an L2 norm of at
most 1 a column, and sqrt(m) of all together; one replaced changes each by e_i - e_j, of norm sqrt(2). Where the cells of a
histogram are public (numbers, dates), that is all. The names of categories are not: a value has a noisy count only where a
record has it. Let D' be D and one record r more, and S the values of D' that no record of D has: at most one a column,
each with count 1. The noise on S is independent of all other noise. So M(D') is the product of (a) noisy counts of the
values of D, which differ from those of M(D) by at most sqrt(m), and (b) for each value of S, whether it is released. In M(D)
none of S is. Each is with chance Q((t - 1) / s), so the two laws of (b) are k Q((t - 1) / s) apart in total variation: that
is (0, delta)-DP in either direction. Where r is replaced by r', values that r alone has are released with the same chance in
the other of the two, hence 2k. Everything that follows (intervals, order, how many names are kept) is post-processing.

Released numbers are rounded to a grid after the noise (``gaussian_mechanism``), which moves a count by half a step at most:
t is one step higher for that.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from scipy.special import ndtri

from dpltm.errors import DataError
from dpltm.privacy.mechanisms import Adjacency
from dpltm.randomness.gaussian_mechanism import gaussian_mechanism, grid_step
from dpltm.randomness.noise import RandomSource
from dpltm.records.at_unit import at_unit
from dpltm.records.dataset import Dataset
from dpltm.records.files import TABLES, reading
from dpltm.records.schema import Column, Schema
from dpltm.records.settle import declared_facts, parse_fraction, settle, take_part
from dpltm.records.tables import as_days, as_number, read_by_schema

SUB_STEPS, SMALLEST, LARGEST = 32, -20, 60
"""Intervals of numbers within a power of two, and exponents of the first and the last such power on either side of 0."""

FIRST_YEAR, LAST_YEAR = 1900, 2100

WIDEST = 32
"""Neighbouring intervals that may stand out together: a power of two of numbers, 32 months of dates."""

STANDS_OUT = 5.0
"""How many standard deviations of its noise a count of intervals must have. Post-processing: it decides what is found, never
what it costs. Of the 10,000 windows of an empty column one would stand out by chance in 0.3 % of releases."""

MOST_NAMES, LONGEST_NAME = 2000, 100
"""Categories that are kept, of all columns together, and bytes of one in UTF-8: longer cells count as other values."""

HOLE = -1.0
"""What an empty cell is coded as, and one that is not counted."""


def _number_edges() -> np.ndarray:
    steps = np.arange(SUB_STEPS) / SUB_STEPS
    powers = np.exp2(np.arange(SMALLEST, LARGEST, dtype=np.float64))
    above = np.append((powers[:, None] * (1 + steps)).ravel(), 2.0**LARGEST)
    return np.concatenate([-above[::-1], [0.0], above])


def _date_edges() -> np.ndarray:
    months = [(year, month) for year in range(FIRST_YEAR, LAST_YEAR) for month in range(1, 13)]
    days = [datetime.date(year, month, 1).toordinal() for year, month in months]
    return np.array([*days, datetime.date(LAST_YEAR, 1, 1).toordinal()], dtype=np.float64)


_EDGES = {"number": _number_edges(), "date": _date_edges()}
"""Between intervals: interval i goes from edge i - 1 up to edge i, and the first and the last have no end."""


@dataclass(frozen=True)
class Coder:
    """Cells as numbers of intervals, or of categories in the order in which they are met.

    Attributes:
        names: of the categories of each column, with their numbers; private.
    """

    names: dict[str, dict[str, int]] = field(default_factory=dict, repr=False)

    def __call__(self, column: Column, cells: Sequence[str], empty: frozenset[str]) -> np.ndarray:
        """The code of each cell, ``(n,)`` float64; ``HOLE`` for what is not counted.

        Args:
            column: what they are cells of.
            cells: without blanks around them.
            empty: what stands for an empty cell.

        Guarantees:
            No cell is refused. Which name a cell counts for depends on that cell alone.
        """
        if column.kind == "category":
            known = self.names.setdefault(column.name, {})
            return np.array(
                [
                    HOLE if cell in empty or not may_be_named(cell) else known.setdefault(cell, len(known))
                    for cell in cells
                ],
                dtype=np.float64,
            )
        parse = as_days if column.kind == "date" else as_number
        numbers = [None if cell in empty else parse(cell) for cell in cells]
        values = np.array([math.nan if number is None else number for number in numbers], dtype=np.float64)
        places = np.searchsorted(_EDGES[column.kind], values, side="right").astype(np.float64)
        places[np.isnan(values)] = HOLE
        return places


def may_be_named(cell: str) -> bool:
    """Whether a value may be released: a short text that a terminal shows as it is."""
    return cell.isprintable() and len(cell.encode()) <= LONGEST_NAME


@dataclass(frozen=True)
class ColumnQuery:
    """Histograms of columns, as one query.

    Attributes:
        columns: of which bounds or values are wanted, 1 or more.
        adjacency: the neighbouring relation.
    """

    columns: tuple[Column, ...]
    adjacency: Adjacency = "add-remove"

    @property
    def sensitivity(self) -> float:
        """L2 bound of what one record changes: sqrt(m), or sqrt(2m) where it is replaced."""
        return math.nextafter(math.sqrt(len(self.columns) * self._ends), math.inf)

    @property
    def lone_names(self) -> int:
        """Most categories that only one of two neighbours has: k, or 2k where a record is replaced."""
        return sum(column.kind == "category" for column in self.columns) * self._ends

    @property
    def _ends(self) -> int:
        return 2 if self.adjacency == "replace-one" else 1

    def threshold(self, noise_std: float, delta: float) -> float:
        """What the noisy count of a category must reach, so that names that one record alone has come out with chance delta.

        Args:
            noise_std: of each count.
            delta: in (0, 1), of all columns together.
        """
        tail = -float(ndtri(delta / self.lone_names)) * (1 + 1e-9)
        return 1 + tail * noise_std + grid_step(noise_std)  # Q((t - step - 1) / s) = delta / k

    def counts(self, codes: np.ndarray) -> list[np.ndarray]:
        """Histograms of all columns, private: of categories with as many cells as the largest code asks for.

        Args:
            codes: of records, ``(n, columns)`` float64, as a coder makes them.
        """
        found = []
        for column, given in zip(self.columns, codes.T, strict=True):
            there = given[given != HOLE].astype(np.int64)
            size = 0 if column.kind == "category" else len(_EDGES[column.kind]) + 1
            found.append(np.bincount(there, minlength=size).astype(np.float64))
        return found


def find_columns(
    query: ColumnQuery,
    codes: np.ndarray,
    names: Mapping[str, Mapping[str, int]],
    noise_std: float,
    delta: float,
    noise: RandomSource,
) -> tuple[Column, ...]:
    """The columns with bounds and values, where something stands out of the noise; as ignored ones elsewhere.

    Args:
        query: the columns.
        codes: of records, ``(n, columns)``; private.
        names: of their categories; private.
        noise_std: of each count.
        delta: chance that names come out which one record alone has.
        noise: random bits.

    Guarantees:
        The composition of a Gaussian mechanism of that noise over ``query.sensitivity`` and a (0, delta)-DP one (see above).
        A column that is found takes empty cells, and whatever else stands in them: no later refusal depends on its cells.
    """
    counts = query.counts(codes)
    # a category without a record has no count: nothing tells that it was ever met
    there = [np.flatnonzero(count) if column.kind == "category" else np.arange(len(count))
             for column, count in zip(query.columns, counts, strict=True)]  # fmt: skip
    plain = np.concatenate([count[some] for count, some in zip(counts, there, strict=True)])
    noisy = np.split(gaussian_mechanism(plain, noise_std, noise), np.cumsum([len(some) for some in there])[:-1])
    threshold = query.threshold(noise_std, delta) if query.lone_names else math.inf
    kept = _largest(query.columns, noisy, threshold)
    found = []
    for column, values, some in zip(query.columns, noisy, there, strict=True):
        if column.kind == "category":
            spelled = list(names.get(column.name, {}))
            chosen = sorted(spelled[code] for code in some[values >= kept])
            found.append(_finished(column, values=tuple((name,) for name in chosen)) if chosen else _nothing(column))
        else:
            bounds = _bounds(values, noise_std, _EDGES[column.kind])
            found.append(_nothing(column) if bounds is None else _finished(column, bounds=bounds))
    return tuple(found)


def _finished(
    column: Column, *, bounds: tuple[float, float] = (0.0, 1.0), values: tuple[tuple[str, ...], ...] = ()
) -> Column:
    return replace(column, bounds=bounds, values=values, missing=True, other=True, wanted=False)


def _nothing(column: Column) -> Column:
    """Of a column in which nothing stands out, nothing is known: it is no feature."""
    return Column(column.name, "ignored")


def _largest(columns: tuple[Column, ...], noisy: list[np.ndarray], threshold: float) -> float:
    """The threshold, or a higher one where more than ``MOST_NAMES`` reach it: of noisy counts, so it costs nothing."""
    counts = [values for column, values in zip(columns, noisy, strict=True) if column.kind == "category"]
    every = np.sort(np.concatenate([np.empty(0), *counts]))[::-1]
    return max(threshold, every[MOST_NAMES - 1]) if len(every) > MOST_NAMES else threshold


def _bounds(noisy: np.ndarray, noise_std: float, edges: np.ndarray) -> tuple[float, float] | None:
    """From the first to the last interval that stands out, alone or with neighbours; None where none does.

    Windows of 1, 2, 4 up to ``WIDEST`` intervals are looked at in turn, each without what stands out already. So bounds are
    fine where many records are, and thin tails are found by wider windows, or are beyond the bounds.
    """
    size = -(-len(noisy) // WIDEST) * WIDEST
    values, still = np.zeros(size), np.zeros(size, dtype=bool)
    values[: len(noisy)], still[: len(noisy)] = noisy, True
    width = 1
    while width <= WIDEST:
        total = np.where(still, values, 0.0).reshape(-1, width).sum(1)
        count = still.reshape(-1, width).sum(1)
        stands = (count > 0) & (total >= STANDS_OUT * noise_std * np.sqrt(count))
        still &= ~np.repeat(stands, width)
        width *= 2
    out = np.flatnonzero(~still[: len(noisy)])
    if not len(out):
        return None
    low, high = max(int(out[0]) - 1, 0), min(int(out[-1]), len(edges) - 1)
    if low == high:  # everything lies beyond one end
        low, high = (low, high + 1) if low == 0 else (low - 1, high)
    return float(edges[low]), float(edges[high])


@dataclass(frozen=True)
class Unfinished:
    """A table and what is known of it.

    Attributes:
        dataset: its records, one a person where persons are protected; what identifies them is the same under any schema.
        codes: of the columns of which something is to be found, ``(n, columns)`` float64; private.
        schema: with those columns.
    """

    dataset: Dataset
    codes: np.ndarray
    schema: Schema


def load_unfinished(
    path: Path,
    schema: Schema,
    coder: Coder,
    *,
    units: str | None = None,
    subset: str | None = None,
    records: int | None = None,
    test: str | None = None,
) -> Unfinished:
    """Reads a table, checked by what its schema says already.

    Args:
        path: a ``.csv``, ``.parquet`` or ``.arrow`` file.
        schema: a draft.
        coder: of columns of which something is to be found.
        units: the column that says whose each record is: of each person one row counts, that of the lowest public hash.
        subset, records: as :func:`dpltm.records.load`.
        test: the part that is held out of the training as well, such as 0.2.

    Raises:
        DataError: nothing is to be found, or the file does not fit what the schema says already.
    """
    with reading(path, "") as kind:
        if kind not in TABLES:
            raise DataError(f"{path}: is no table; give a file that ends in {', '.join(TABLES)}")
        if not schema.wanted:
            raise DataError(
                '`private`: nothing in this schema is private; write bounds = "private" or values = "private"'
            )
        hold_out = parse_fraction(test)
        if test is not None and hold_out is None:
            raise DataError(
                f"`test` {test}: is the fraction that the training holds out, such as 0.2; leave a file out"
            )
        records = declared_facts(None, None, records)[2]
        raw = read_by_schema(path, schema, units, coder=coder)
    facts = (0.0, 1.0), len(schema.label.values)
    whole = settle(path.stem, raw, None, None, facts, (), hold_out=hold_out)
    dataset = at_unit(take_part(whole, subset, records, False), "record", None if units is None else 1, 1)
    x = dataset.train.x.reshape(len(dataset.train), -1)
    return Unfinished(dataset, x[:, _places(schema)], schema)


def _places(schema: Schema) -> list[int]:
    """Where the codes of wanted columns stand among the features: counted, since columns may be named as features are."""
    places, at = list[int](), 0
    for column in schema.columns:
        places += [at] if column.wanted else []
        at += len(column.features)
    return places
