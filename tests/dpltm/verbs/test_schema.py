"""Bounds and categories under DP: sensitivity under hostile cells, the chance of lone names, and what is found."""

import datetime
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from dpltm.privacy.accountant import epsilon
from dpltm.privacy.mechanisms import GaussianRelease, Guarantee
from dpltm.randomness.gaussian_mechanism import grid_step
from dpltm.randomness.noise import FastSource
from dpltm.records.schema import Column, parse_schema
from dpltm.records.tables import Cells, as_texts
from dpltm.verbs import schema as private_columns
from dpltm.verbs.schema import LONGEST_NAME, MOST_NAMES, Coder, ColumnQuery, find_columns, may_be_named
from opened import arrays_of

NUMBER, DATE = Column("n", "number", wanted=True), Column("d", "date", wanted=True)
WORD, OTHER = Column("w", "category", wanted=True), Column("v", "category", wanted=True)
COLUMNS = (NUMBER, DATE, WORD, OTHER)
ANY, LABEL = Column("a", "?", wanted=True), Column("l", "label", wanted=True)
ALL = (*COLUMNS, ANY, LABEL)

HOSTILE = [
    *("", "?", "0", "-0.0", "1e-300", "-1e300", "inf", "-inf", "nan", "1_0", "0x10", "9" * 400, "1,5", "2020-02-30"),
    *("2020-01-01", "0001-01-01", "9999-12-31", "1899-12-31T00:00", "a", "A", "a\x1b[31m", "\u202eb", "x" * 5000),
    *("\x7f", "[column.x]", '"', "'", "\\", "é", "e\u0301", "=1+1", "private", "\U0001f600"),
]
cells = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=6))
rows = st.lists(st.tuples(*[cells] * len(ALL)), max_size=6)


def cells_of(texts):
    return Cells.of(as_texts(texts))


def counted(table, columns=ALL):
    """Histograms by column and cell of the histogram; of categories by name."""
    coder, query = Coder(), ColumnQuery(columns)
    cells = list(zip(*table, strict=True)) or [()] * len(columns)
    codes = np.stack(
        [coder(each, cells_of(list(some)), frozenset({"", "?"})) for each, some in zip(columns, cells, strict=True)], 1
    )
    found = {}
    for column, (cells, named, groups) in zip(columns, query.counts(codes), strict=True):
        names = list(coder.names.get(column.name, {}))
        public, grouped = {"number": (2564, 164), "date": (802, 52), "?": (3366, 216)}.get(column.kind, (0, 0))
        assert (len(cells), len(groups)) == (public, grouped)
        assert len(named) <= len(names)
        found |= {(column.name, key): value for key, value in enumerate(cells)}
        found |= {(column.name, key): value for key, value in zip(names, named, strict=False)}
        found |= {(column.name, -1 - key): value for key, value in enumerate(groups)}
    return found


def moved(one, other):
    return math.sqrt(sum((one.get(key, 0) - other.get(key, 0)) ** 2 for key in {*one, *other}))


@given(rows, st.tuples(*[cells] * len(ALL)), st.tuples(*[cells] * len(ALL)), st.integers(0, 6))
def test_one_record_moves_the_histograms_by_no_more_than_their_sensitivity(table, row, instead, place):
    place = min(place, len(table))
    with_it, with_other = ([*table[:place], each, *table[place:]] for each in (row, instead))
    assert moved(counted(table), counted(with_it)) <= ColumnQuery(ALL).sensitivity
    assert moved(counted(with_it), counted(with_other)) <= ColumnQuery(ALL, "replace-one").sensitivity
    # nor are there more names that one of the two alone has
    one, other = counted(table), counted(with_it)
    assert lone(one, other) <= ColumnQuery(ALL).lone_names == 4
    assert lone(counted(with_it), counted(with_other)) <= ColumnQuery(ALL, "replace-one").lone_names


def lone(one, other):
    """How many names one of the two alone has."""
    names = (key for key in {*one, *other} if isinstance(key[1], str))
    return sum((one.get(key, 0) == 0) != (other.get(key, 0) == 0) for key in names)


def test_the_sensitivity_is_reached():
    row, instead = ("1", "2020-01-01", "a", "a", "7", "no"), ("9", "1921-01-01", "b", "b", "x", "yes")
    reached = moved(counted([]), counted([row])), moved(counted([row]), counted([instead]))
    assert reached == pytest.approx((math.sqrt(6), ColumnQuery(ALL, "replace-one").sensitivity), rel=1e-4)
    for cell in ("7", "2020-01-01", "a word"):  # each kind of cell of a column whose kind nobody knows
        assert 0.999 < moved(counted([], (ANY,)), counted([(cell,)], (ANY,))) <= 1
        assert 1.41 < moved(counted([(cell,)], (ANY,)), counted([("x",)], (ANY,))) <= math.sqrt(2)
    assert (ColumnQuery(COLUMNS).lone_names, ColumnQuery(COLUMNS, "replace-one").lone_names) == (2, 4)
    assert ColumnQuery((NUMBER, DATE)).lone_names == 0


def chance_of_a_lone_name(threshold, std):
    """P(rounded(1 + std X) >= threshold), by the values that are released: whole multiples of the grid's step."""
    step = grid_step(std)
    first = math.ceil(threshold / step)  # of those that reach it; rounding takes half a step below to it
    return float(norm.sf(((first - 0.5) * step - 1) / std))


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("std", [0.3, 1.0, 7.7, 58.88, 4096.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-7, 1e-12])
def test_lone_names_come_out_with_chance_delta_at_most(std, delta, adjacency):
    query = ColumnQuery((NUMBER, WORD, OTHER, Column("u", "category", wanted=True)), adjacency)
    total = query.lone_names * chance_of_a_lone_name(query.threshold(std, delta), std)
    assert 0.97 * delta < total <= delta


@pytest.mark.parametrize("std", [3.0, 8.0])
def test_what_is_certified_holds_for_every_pair_of_neighbours(std):
    """Brute force: j of k categories are new, all other columns move. One Gaussian beside j coins, in either direction."""
    delta, columns = 1e-4, ALL
    query = ColumnQuery(columns)
    names = 0.01 * delta
    lone = chance_of_a_lone_name(query.threshold(std, names), std)
    stated = (GaussianRelease(std / query.sensitivity, query.sensitivity), Guarantee(1e-9, names))
    certified = epsilon(stated, delta)
    for new in range(query.lone_names + 1):
        shift, coin = math.sqrt(len(columns) - new) / std, 1 - (1 - lone) ** new
        x = np.linspace(-14, 14, 400_001)
        here, there = norm.pdf(x), norm.pdf(x - shift)
        width = x[1] - x[0]
        grown = math.exp(certified)
        # from D to D' nothing new is released with chance 1 - coin; whatever is, was impossible under D
        add = np.maximum(there * (1 - coin) - grown * here, 0).sum() * width + coin
        remove = np.maximum(here - grown * there * (1 - coin), 0).sum() * width
        assert max(add, remove) <= delta
        if new == 0:
            assert add > 0.9 * delta, "the bound is nearly reached"


def found_in(columns, table, std=1.0, delta=1e-7, seed=0):
    coder = Coder()
    codes = np.stack(
        [coder(each, cells_of([row[at] for row in table]), frozenset({"", "?"})) for at, each in enumerate(columns)], 1
    )
    found = find_columns(ColumnQuery(columns), codes, coder.names, std, delta, FastSource(seed))
    return tuple(column for column, _ in found)


def test_bounds_hold_nearly_all_and_leave_stray_values_out():
    draw = np.random.default_rng(0)
    ages = [str(age) for age in draw.integers(18, 91, 4000)]
    years = [str(1950 + age) for age in draw.integers(0, 70, 4000)]
    days = [
        (datetime.date(2020, 1, 1) + datetime.timedelta(int(day))).isoformat() for day in draw.integers(0, 700, 4000)
    ]
    table = [*zip(ages, years, days, strict=True), *[("1e9", "-7", "1066-10-14")] * 3, *[("", "?", "no day")] * 500]
    columns = (Column("age", "number", wanted=True), Column("born", "number", wanted=True, log=True), DATE)
    age, born, day = found_in(columns, table, std=3.0)
    assert 16 <= age.bounds[0] <= 21
    assert 88 <= age.bounds[1] <= 96
    assert 1900 <= born.bounds[0] <= 1952
    assert 2018 <= born.bounds[1] <= 2048
    first, last = (datetime.date.fromordinal(int(end)) for end in day.bounds)
    assert (first, last) == (datetime.date(2020, 1, 1), datetime.date(2022, 1, 1))
    for column in (age, born, day):
        assert (column.missing, column.other, column.wanted) == (True, True, False)
    assert born.log


@pytest.mark.parametrize(
    ("cell", "bounds"),
    [
        ("0", (0.0, 2.0**-20)),
        ("-1e-9", (-(2.0**-20), 0.0)),
        ("1", (1.0, 1 + 1 / 16)),
        ("-1", (-1.0, -(1 - 1 / 32))),
        ("inf", (2.0**60 * (1 - 1 / 32), 2.0**60)),
        ("-1e300", (-(2.0**60), -(2.0**60) * (1 - 1 / 32))),
    ],
)
def test_bounds_of_a_single_value(cell, bounds):
    (column,) = found_in((NUMBER,), [(cell,)] * 900)
    low, high = column.bounds
    assert (low, high) == pytest.approx(bounds)
    assert low <= float(cell) <= high or math.isinf(float(cell)) or abs(float(cell)) > 2**60


LAWS = {
    "age": lambda draw: draw.integers(18, 91, 10_000),
    "born": lambda draw: draw.integers(1950, 2006, 10_000),
    "normal": lambda draw: draw.normal(0, 1, 10_000),
    "acid": lambda draw: draw.normal(7.4, 0.05, 10_000),
    "income": lambda draw: np.exp(draw.normal(10, 0.8, 10_000)),
    "wide": lambda draw: np.exp(draw.normal(3, 2, 10_000)),
    "visits": lambda draw: draw.poisson(1.2, 10_000),
    "ill": lambda draw: draw.random(10_000) < 0.3,
    "often none": lambda draw: np.where(draw.random(10_000) < 0.7, 0, np.exp(draw.normal(4, 1, 10_000))),
    "tails": lambda draw: draw.standard_t(3, 10_000) * 100,
}


@pytest.mark.parametrize(("std", "most", "mean"), [(64.0, 0.1, 0.04), (4.0, 0.065, 0.04)])
def test_few_values_are_outside_and_it_is_told_how_many(std, most, mean):
    """The noise is that of 15 columns at epsilon 0.2, and at 3; bounds are narrow as well."""
    draw = np.random.default_rng(5)
    values = {name: law(draw).astype(float) for name, law in LAWS.items()}
    columns = tuple(Column(name, "?", wanted=True) for name in values)
    codes = np.stack(
        [np.searchsorted(private_columns.HISTOGRAMS["number"].edges, each, side="right") for each in values.values()],
        1,
    )
    found = find_columns(ColumnQuery(columns), codes, {}, std, 1e-7, FastSource(1))
    outside = [
        np.mean((v < c.bounds[0]) | (v > c.bounds[1])) for v, (c, _) in zip(values.values(), found, strict=True)
    ]
    assert max(outside) <= most
    assert np.mean(outside) <= mean
    told = [share for _, share in found]
    assert all(share < told_share + 3 * std * 1.5 / 10_000 for share, told_share in zip(outside, told, strict=True))
    bounds = {column.name: column.bounds for column, _ in found}
    assert bounds["born"][0] >= 1800
    assert bounds["income"][1] < 200_000


def test_an_empty_group_beside_others_is_hardly_ever_taken_for_theirs():
    """Years from 1950 on then would begin at 512 or before, which leaves a tenth of the range to them; once in 40 at 2."""
    years = np.random.default_rng(5).integers(1950, 2006, 10_000).astype(float)
    columns = tuple(Column(str(place), "number", wanted=True) for place in range(40))
    codes = np.repeat(
        np.searchsorted(private_columns.HISTOGRAMS["number"].edges, years, side="right")[:, None], 40, axis=1
    )
    found = [
        column.bounds[0]
        for seed in range(10)
        for column, _ in find_columns(ColumnQuery(columns), codes, {}, 64.0, 1e-7, FastSource(seed))
    ]
    assert sum(low < 1024 for low in found) <= 3, "of 400, where 0.4 are expected"


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_what_is_surely_found_follows_from_the_noise(adjacency):
    """19 of 20 categories of so many records come out, and groups of numbers: exactly, and in draws of 400 columns."""
    std, delta, numbers = 20.0, 1e-7, tuple(Column(str(place), "number", wanted=True) for place in range(400))
    words, ranges = ColumnQuery((WORD,), adjacency), ColumnQuery(numbers, adjacency)
    (rarest, most, _), (none, densest, told) = words.sure(std, delta), ranges.sure(std, delta)
    assert (most, none, f"bounds of a column where {densest} rows" in told) == (rarest, None, True)
    assert 0.95 <= norm.sf((words.threshold(std, delta) - rarest) / std) < 0.953
    assert 0.95 <= norm.sf((5 * std - densest * 181 / 256) / std) < 0.953, (
        "numbers weigh less, and must have 5 deviations"
    )
    assert ColumnQuery((*numbers, WORD), adjacency).sure(std, delta)[:2] == (rarest, densest)
    codes = np.full((densest, 400), np.searchsorted(private_columns.HISTOGRAMS["number"].edges, 37.0, side="right"))
    found = sum(column.kind == "number" for column, _ in find_columns(ranges, codes, {}, std, delta, FastSource(3)))
    assert 1e-3 < binom.cdf(found, 400, 0.95) < 0.999
    names = [f"w{place}" for place in range(400)]
    codes = np.repeat(np.arange(400.0), rarest)[:, None]
    coded = {WORD.name: {name: place for place, name in enumerate(names)}}
    ((found_words, _),) = find_columns(words, codes, coded, std, delta, FastSource(4))
    assert 1e-3 < binom.cdf(len(found_words.values), 400, 0.95) < 0.999


def test_the_kind_is_what_most_cells_are_and_nothing_where_each_is_rare():
    columns = tuple(Column(name, "?", wanted=True) for name in ("age", "day", "ward", "id", "mixed", "empty"))
    draw = np.random.default_rng(0)
    table = [
        (
            str(draw.integers(18, 91)), f"2024-0{draw.integers(1, 10)}-11", str(draw.choice(["north", "south"])),
            f"p{number}", str(draw.choice(["unknown", "7", "9"])), "",
        )
        for number in range(4000)
    ]  # fmt: skip
    found = dict(zip([column.name for column in columns], found_in(columns, table, std=20.0), strict=True))
    kinds = {name: column.kind for name, column in found.items()}
    assert kinds == {
        "age": "number", "day": "date", "ward": "category", "id": "ignored", "mixed": "number", "empty": "ignored",
    }  # fmt: skip
    assert found["ward"].values == (("north",), ("south",))
    assert 16 <= found["age"].bounds[0] < 24 < 80 < found["age"].bounds[1] <= 96
    assert found["mixed"].other, "other words are holes"


def test_classes_of_a_label_are_found_and_stay_unknown_where_there_is_but_one():
    table = [("yes",)] * 300 + [("no",)] * 2000 + [("perhaps",)]
    (label,) = found_in((LABEL,), table, std=5.0)
    assert (label.kind, label.values, label.wanted) == ("label", (("no",), ("yes",)), False)
    assert found_in((LABEL,), [("yes",)] * 300, std=5.0) == (LABEL,)


def test_nothing_is_known_where_nothing_stands_out():
    table = [(str(3**place), "2020-01-01", f"name {place}", "") for place in range(30)]
    found = found_in(COLUMNS, table, std=20.0)
    assert found == tuple(Column(column.name, "ignored") for column in COLUMNS)
    assert found_in((NUMBER, WORD), [("nan", "\x07")] * 500) == (Column("n", "ignored"), Column("w", "ignored"))


def test_names_are_those_of_many_and_no_terminal_stumbles_over_them():
    hostile = [cell for cell in HOSTILE if not may_be_named(cell)]
    assert {"a\x1b[31m", "\u202eb", "x" * 5000, "\x7f"} <= set(hostile)
    table = [*[(cell,) for cell in hostile] * 400, *[("north",), ("é",), ("'",)] * 300, *[("rare",)] * 2]
    (column,) = found_in((WORD,), table)
    assert column.values == (("'",), ("north",), ("é",))
    assert (column.missing, column.other) == (True, True)
    assert may_be_named("x" * LONGEST_NAME)
    assert not may_be_named("x" * (LONGEST_NAME + 1))
    assert may_be_named("漢" * (LONGEST_NAME // 3))
    assert not may_be_named("漢" * (LONGEST_NAME // 3 + 1))


def test_so_many_names_are_kept_those_of_the_largest_counts():
    few = 1500
    table = [(f"a{place}", f"b{place}") for place in range(few) for _ in range(60 if place < 900 else 40)]
    one, other = found_in((WORD, OTHER), table)
    assert MOST_NAMES - 20 <= len(one.values) + len(other.values) <= MOST_NAMES
    assert {(f"a{place}",) for place in range(900)} <= set(one.values)


def test_one_query_holds_every_count_and_no_name_without_a_record(monkeypatch):
    asked = []

    def plain(values, noise_std, source):
        del source
        asked.append((values, noise_std))
        return values

    monkeypatch.setattr(private_columns, "gaussian_mechanism", plain)
    coder = Coder()
    coder(WORD, cells_of(["elsewhere"]), frozenset())  # of a record that is held out, and no part of this query
    codes = np.stack(
        [coder(WORD, cells_of(["a", "b", "b"]), frozenset()), coder(NUMBER, cells_of(["1", "1", "x"]), frozenset())], 1
    )
    find_columns(ColumnQuery((WORD, NUMBER)), codes, coder.names, 0.1, 1e-7, FastSource(0))
    ((values, std),) = asked
    assert std == 0.1
    assert values[:2].tolist() == [1, 2]
    # powers of two from 2^-20 to 2^60 on either side and intervals of each, their ends, and zero
    assert len(values) == 2 + 2 * 80 * (16 + 1) + 4 + 4
    assert sorted(values[2:])[-3:] == [0, 2 * 181 / 256, 2 * 181 / 256]


DRAFT = """
column.age = { kind = "number", bounds = [0, 100], missing = true }
column."age missing" = { kind = "category", values = "private" }
column.ill = { kind = "label", classes = ["no", "yes"] }
"""


def test_codes_are_of_the_column_itself_whatever_features_are_called(tmp_path):
    """A lone name behind a full cell of another column does not come out."""
    (tmp_path / "d.csv").write_text("age,age missing,ill\n" + "".join(f"{n},cell {n},no\n" for n in range(40)))
    table = private_columns.load_unfinished(tmp_path / "d.csv", parse_schema(DRAFT, "here"))
    codes = arrays_of(table.dataset.train).x[:, -1]  # behind age, and whether there is one
    assert [list(table.names["age missing"])[int(code)] for code in codes] == [f"cell {place}" for place in range(40)]
