"""Subgroups of records by a column: found again from what a schema made of the cells."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpltm.records import Dataset, load
from dpltm.records.subgroups import check_column, subgroups_of
from opened import arrays_of
from refusals import refused

SCHEMA = """
[column.sex]
kind = "category"
values = ["f", "m"]
missing = true
other = true

[column.age]
kind = "number"
bounds = [0, 100]
missing = true

[column.income]
kind = "number"
bounds = [1000, 100000]
log = true

[column.seen]
kind = "date"
bounds = [2020-01-01, 2029-12-31]

[column.word]
kind = "hashed"
buckets = 4

[column.y]
kind = "label"
classes = [0, 1]
"""
SEX = ["f", "m", "", "x", "m", "f", "f", "m", "f", "m", "f", "m"]
AGE = ["10", "20", "30", "40", "", "60", "70", "80", "90", "100", "15", "25"]
INCOME = [1000, 2000, 5000, 5000, 2000, 1000, 2000, 2000, 5000, 5000, 1000, 1000]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    rows = [
        f"{sex},{age},{income},202{place % 3}-01-01,w{place},{place % 2}"
        for place, (sex, age, income) in enumerate(zip(SEX, AGE, INCOME, strict=True))
    ]
    for name, some in (("d.csv", rows), ("t.csv", [row.replace("2020-01-01", "2029-12-31") for row in rows])):
        (tmp_path / name).write_text("sex,age,income,seen,word,y\n" + "\n".join(some) + "\n")
    (tmp_path / "s.toml").write_text(SCHEMA)
    return load(
        str(tmp_path / "d.csv"), schema=str(tmp_path / "s.toml"), test=str(tmp_path / "t.csv"), rows_coincide=True
    )


def told(dataset: Dataset, column: str) -> dict[str, list[int]]:
    """The records of each subgroup, by its name."""
    found = subgroups_of(dataset, arrays_of(dataset.test).x, column)
    return {name: np.flatnonzero(found.codes == place).tolist() for place, name in enumerate(found.names)}


def test_categories_others_and_holes(dataset: Dataset) -> None:
    groups = {"sex f": "f", "sex m": "m", "sex other": "x", "sex empty": ""}
    assert told(dataset, "sex") == {
        name: [place for place, cell in enumerate(SEX) if cell == value] for name, value in groups.items()
    }


def test_numbers_fall_into_quarters_and_holes_apart(dataset: Dataset) -> None:
    found = told(dataset, "age")
    assert list(found) == ["age up to 20", "age 25 to 30", "age 40 to 70", "age from 80", "age empty"]
    assert found["age 25 to 30"] == [2, 11]
    assert found["age empty"] == [4]


def test_few_values_are_told_one_by_one_whatever_scale_they_were_on(dataset: Dataset) -> None:
    assert {name: len(rows) for name, rows in told(dataset, "income").items()} == {
        "income 1000": 4, "income 2000": 4, "income 5000": 4,
    }  # fmt: skip
    assert list(told(dataset, "seen")) == ["seen 2021-01-01", "seen 2022-01-01", "seen 2029-12-31"]


def test_a_table_without_a_schema(tmp_path: Path) -> None:
    rows = "".join(f"{place},{place % 2},{place % 2}\n" for place in range(12))
    for name in ("d.csv", "t.csv"):
        (tmp_path / name).write_text("a,b,y\n" + rows)
    given = {"bounds": (0, 20), "classes": 2, "label": "y", "rows_coincide": True}
    dataset = load(str(tmp_path / "d.csv"), test=str(tmp_path / "t.csv"), **given)
    assert list(told(dataset, "b")) == ["b 0", "b 1"]
    assert list(told(dataset, "a")) == ["a up to 2", "a 3 to 5", "a 6 to 8", "a from 9"]


@pytest.mark.parametrize("column", ["word", "y", "nobody"])
def test_columns_that_tell_none(dataset: Dataset, column: str) -> None:
    said = f"`by` {column}: no column that tells subgroups; there is 'sex', 'age', 'income', 'seen'"
    assert refused(check_column, dataset, column) == said
    assert refused(check_column, replace(dataset, test=None), "sex").startswith(
        "`by`: subgroups are those of a test split; give `test`"
    )
