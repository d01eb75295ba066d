"""Cells of tables: whatever a .csv file holds, Arrow and Python's reader give the same records."""

import csv
import datetime
import decimal
import hashlib
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpltm.errors import DataError
from dpltm.records import load, tables
from dpltm.records.encode import as_number
from dpltm.records.schema import parse_schema
from dpltm.records.tables import Cells, as_texts
from opened import arrays_of
from refusals import refused

SCHEMA = parse_schema(
    """
missing = ["", "?", "NA"]
column.a = { kind = "number", bounds = [-5, 100], missing = true, other = true }
column.b = { kind = "category", values = ["1", ["x", "X x"]], missing = true, other = true }
column.c = { kind = "hashed", buckets = 5, missing = true }
column.y = { kind = "label", classes = ["0", "1"] }
""",
    "it",
)
OTHER = parse_schema(
    """
column.a = { kind = "ignored" }
column.b = { kind = "hashed", buckets = 3, missing = true }
column.c = { kind = "ignored" }
column.y = { kind = "label", classes = ["1", "0"] }
""",
    "it",
)

NUMBERS = [
    *("1", "2.5", "-3", "+4", "1e2", "1E-2", ".5", "5.", "-0", "0", "1e999", "9" * 30, "9007199254740993", "5e-324"),
    *("nan", "NaN", "-nan", "inf", "-Infinity", "nan(1)", "1_0", "0x1", "\uff11\uff12", "+-1", "1,5", "12 %"),
]
WORDS = [
    *("x", "X x", "", "?", "NA", " ", "  x", "\u2003x", "é", "ß\u00a0", 'a"b', '"', "\x00", "a\x00b", "\ufeff", "id1")
]
LONG = ["a,b", "a\nb", "a\r\nb", ', "x"', '""']
CELLS = st.one_of(st.sampled_from(NUMBERS), st.sampled_from(WORDS), st.sampled_from(LONG), st.text(max_size=4))


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A .csv file as programs and people write them: quoted well or badly, with blanks, empty lines and lost cells."""
    slips = draw(st.booleans())

    def written(cell: str) -> str:
        style = draw(st.sampled_from(["bare", "quoted", "blank"]))
        if style == "quoted" or any(mark in cell for mark in ',\r\n"'):
            cell = '"' + cell.replace('"', '""') + '"'
            return draw(st.sampled_from([cell, " " + cell, cell + " ", cell + "z", cell[:-1]])) if slips else cell
        return f" {cell} " if style == "blank" else cell

    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    lines = draw(st.sampled_from([[], [], [""], ["  "]]))
    lines = [*lines, ",".join("abcy" if draw(st.integers(0, 9)) else draw(st.permutations("abcy")))]
    for _ in range(draw(st.integers(0, 4))):
        cells = [*map(written, draw(st.lists(CELLS, min_size=3, max_size=3))), draw(st.sampled_from("01"))]
        cells = cells[: draw(st.integers(1, 4))] if slips and not draw(st.integers(0, 9)) else cells
        lines += [",".join(cells), *draw(st.sampled_from([[], [], [], [""], ["  "]]))]
    text = draw(st.sampled_from(["", "", "\ufeff"])) + end.join(lines) + draw(st.sampled_from(["", end]))
    return text.encode() + (b"\xff" if slips and not draw(st.integers(0, 19)) else b"")


def naive(body: bytes) -> list[dict[str, str]] | None:
    """The records of a file, cell by cell; None where it is none."""
    try:
        text = io.TextIOWrapper(io.BytesIO(body), encoding="utf-8-sig", newline="")
        rows = [[cell.strip() for cell in row] for row in csv.reader(text, strict=True, skipinitialspace=True)]
    except (UnicodeDecodeError, csv.Error):
        return None
    head, *rows = [row for row in rows if row and row != [""]]
    fits = sorted(head) == list("abcy") and all(len(row) == 4 for row in rows)
    fits = fits and all(row[head.index("y")] in ("0", "1") for row in rows)
    return [dict(zip(head, row, strict=True)) for row in rows] if fits and rows else None


def number_of(cell: str) -> float:
    """What a cell is hashed as: a number, or one made of the word."""
    try:
        if "_" not in cell:
            return float(cell)
    except ValueError:
        pass
    return float(int.from_bytes(hashlib.blake2b(cell.encode(), digest_size=6).digest()))


def features(row: dict[str, str]) -> list[float]:
    """What SCHEMA makes of a record."""
    a, b, c = row["a"], row["b"], row["c"]
    empty = SCHEMA.missing
    try:
        value = math.nan if a in empty or "_" in a else float(a)
    except ValueError:
        value = math.nan
    number = [0.0, 1.0] if math.isnan(value) else [-1 if value < -5 else 2 if value > 100 else (value + 5) / 105, 0.0]
    bucket = int.from_bytes(hashlib.blake2b(c.encode(), digest_size=8).digest()) % 5
    category = [float(b == "1"), float(b in ("x", "X x")), float(b in empty)]
    return [*number, *category, *(float(c not in empty and bucket == at) for at in range(5)), float(c in empty)]


def row_hash(row: dict[str, str]) -> int:
    """The public hash of a record: of its numbers in the order of their columns' names, as float32."""
    with np.errstate(over="ignore"):
        values = np.array([number_of(row[name]) for name in sorted(row)]).astype("<f4") + np.float32(0)
    return int.from_bytes(hashlib.blake2b(values.tobytes(), digest_size=8).digest(), "little") % 10**9


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cells") / "d.csv"


@given(files())
@example(b'a,b,c,y\n1,"x,",2,0\n1,x, "x",0\n')
@example(b'a,b,c,y\n1,"x"z,2,0\n')
@example(b'a,b,c,y\n1,2,"x,0\n3,4,x",1\n')
@example(b'a,b,c,y\n1,2,"x\n3,4,5,1\n')
@example(b"\n \r\na,b,c,y\n1,x,y,0\n")
@example(b"a,b,c,y\n  \n-nan,nan,nan(1),1\n")
def test_records_are_those_that_python_reads(path: Path, body: bytes) -> None:
    path.write_bytes(body)
    expected = naive(body)
    if expected is None:
        refused(load, str(path), schema=SCHEMA, for_training=False, kind=DataError)
        return
    dataset = load(str(path), schema=SCHEMA, for_training=False)
    x, y = arrays_of(dataset.train)
    assert np.array_equal(x, np.array([features(row) for row in expected], dtype=np.float32))
    assert y.tolist() == [int(row["y"]) for row in expected]
    hashes = [row_hash(row) for row in expected]
    assert dataset.rows.public_hashes().tolist() == hashes
    other = load(str(path), schema=OTHER, for_training=False)
    assert other.rows.public_hashes().tolist() == hashes, "whatever the schema"
    assert other.content_digest() == dataset.content_digest()


@given(st.lists(st.lists(st.sampled_from(NUMBERS[:14]), min_size=2, max_size=2), min_size=1, max_size=5))
def test_a_table_of_numbers_is_what_python_reads(path: Path, rows: list[list[str]]) -> None:
    path.write_text("a,y\n" + "".join(f"{a},{y}\n" for a, y in rows))
    split = tables.read_table(tables.Table(path), "y")
    assert split.x.tolist() == [[float(a)] for a, _ in rows]
    assert split.y.tolist() == [float(y) for _, y in rows]


def test_python_goes_on_where_arrow_stops(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow gives up on a cell that no block of its holds; no record is lost, and none comes twice."""
    monkeypatch.setattr(tables, "BLOCK_BYTES", 600)
    starts, by_line = list[int](), tables._by_line

    def noted(*table: Any) -> Any:
        starts.append(table[-1])
        return by_line(*table)

    monkeypatch.setattr(tables, "_by_line", noted)
    rows = [[str(at), "x", f"word {at}", str(at % 2)] for at in range(300)]
    rows[200][2] = "long" * 1000
    path.write_text("\n".join(map(",".join, [["a", "b", "c", "y"], *rows])) + "\n")
    expected = naive(path.read_bytes())
    dataset = load(str(path), schema=SCHEMA)
    assert dataset.rows.public_hashes().tolist() == list(map(row_hash, expected))
    assert len(starts) == 1
    assert 0 < starts[0] <= 200
    rows[100][3], rows[270][1] = "maybe", "3"
    path.write_text("\n".join(map(",".join, [["a", "b", "c", "y"], *rows])) + "\n")
    strict = replace(SCHEMA, columns=tuple(replace(column, other=False) for column in SCHEMA.columns))
    said = refused(load, str(path), schema=strict)
    assert "y: 'maybe' is none of its classes (record 100 from 0)" in said
    assert "b: '3' is none of its values (record 270 from 0)" in said
    rows[250] = ["1", "x"]
    path.write_text("\n".join(map(",".join, [["a", "b", "c", "y"], *rows])) + "\n")
    assert refused(load, str(path), schema=strict) == f"{path}: record 250 (from 0) has 2 cells for 4 columns; mend it"


@given(st.lists(CELLS, min_size=1, max_size=8))
def test_numbers_of_cells_by_hand(cells: list[str]) -> None:
    stripped = [cell.strip() for cell in cells]
    read = Cells.of(as_texts(cells))
    numbers = read.numbers
    assert numbers.tobytes() == np.array([number_of(cell) for cell in stripped]).tobytes()
    words = read.words[read.codes]
    assert words.tolist() == [as_number(cell) is None for cell in stripped]


OBJECTS: list[Any] = [
    True, False, np.True_, 0, 1, -1, 2**53 + 1, 2**63, 10**30, np.int8(3), np.uint64(2**63 + 5), 0.5, 1.0, -0.0, 0.1, 1e22,
    np.float32(0.1), np.float16(0.1), np.float64(0.1), math.inf, math.nan, None, "True", " 1", "1.0", "", "nan", b"a",
    decimal.Decimal("1.10"), datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3), datetime.timedelta(1),
    np.datetime64("2020-01-02"), np.timedelta64(1, "D"), [1, 2], 1 + 2j,
]  # fmt: skip
"""Values that a column of objects of a data frame may hold."""


@pytest.mark.parametrize("place", range(len(OBJECTS)))
def test_a_cell_of_a_frame_means_what_it_means_alone(place: int) -> None:
    """So that one record, a fraction among truth values, changes no other record of its block."""

    def read(cells: list[Any]) -> list[object]:
        made = Cells.of(as_texts(cells))
        code = made.codes[0]
        return [made.texts[code], made.numbers[:1].tobytes(), made.words[code], made.nulls[code]]

    for other in OBJECTS:
        assert read([OBJECTS[place], other]) == read([OBJECTS[place]]), other


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    """Arrow's own error is none of ours."""
    assert refused(as_texts, ["a", "\ud800"]).startswith("a cell holds half of a surrogate pair")


@pytest.mark.parametrize("kept", [pa.array([1.5, None, 2.0, None]), pa.array(["u", None, "v", "?"])])
def test_a_cell_that_is_not_there_is_an_empty_one_whatever_counts_as_missing(kept: pa.Array) -> None:
    """Records are told apart before any schema."""
    cells = Cells.of(kept)
    assert cells.numbers[1] == number_of("")
    assert cells.records()[1] == ""
    assert cells.among(frozenset({"x"}))[cells.codes].tolist() == [cell is None for cell in kept.to_pylist()]
