"""Schemas of tables: what each kind of column becomes, what does not fit, and that a row depends on its record alone."""

import datetime
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.records import load, load_records
from dpltm.records.schema import parse_schema
from dpltm.records.tables import draft, public_records
from opened import arrays_of, units_of
from refusals import refused

TEXT = """
missing = ["", "?"]

[column.age]
kind = "number"
bounds = [20, 60]
missing = true

[column.paid]
kind = "number"
bounds = [0, 999]
log = true

[column.ward]
kind = "category"
values = ["north", ["south", "SOUTH"]]
missing = true
other = true

[column.seen]
kind = "date"
bounds = [2020-01-01, 2020-12-31]

[column.street]
kind = "hashed"
buckets = 4

[column.note]
kind = "ignored"

[column.ill]
kind = "label"
classes = [["no", "no."], "yes"]
"""

ROWS = [
    "age,paid,ward,seen,street,note,ill",
    "40, 0, north, 2020-01-01, Elm Road, x, no",
    '70,999,SOUTH,2020-12-31,"Oak, the long one",,yes',
    "?,9,,2019-05-05,Elm Road,y,no.",
    "20,99,west,2020-07-01,Ash Way,z,yes",
]

NAMES = [
    *("age", "age missing", "paid", "ward=north", "ward=south", "ward missing", "seen"),
    *(f"street#{number}" for number in range(4)),
]


@pytest.fixture
def table(tmp_path):
    """Writes a schema and a table, and loads them."""

    def write(rows=ROWS, text=TEXT, **options):
        (tmp_path / "s.toml").write_text(text)
        (tmp_path / "d.csv").write_text("\n".join(rows) + "\n")
        return load(str(tmp_path / "d.csv"), schema=str(tmp_path / "s.toml"), for_training=False, **options)

    return write


def test_what_columns_become(table):
    dataset = table()
    assert (dataset.classes, dataset.bounds, dataset.bounds_origin) == (2, (0.0, 1.0), "declared")
    assert (dataset.rows.label, arrays_of(dataset.train).y.tolist()) == ("ill", [0, 1, 0, 1])
    rows = [dict(zip(NAMES, row.tolist(), strict=True)) for row in arrays_of(dataset.train).x]
    assert [row["age"] for row in rows] == [0.5, 1.0, 0.0, 0.0], "outside the bounds is at the nearest"
    assert [row["age missing"] for row in rows] == [0, 0, 1, 0]
    assert [row["paid"] for row in rows] == pytest.approx([0, 1, 1 / 3, 2 / 3])
    assert [[row[f"ward={name}"] for name in ("north", "south")] for row in rows] == [[1, 0], [0, 1], [0, 0], [0, 0]]
    assert [row["ward missing"] for row in rows] == [0, 0, 1, 0], "another ward is no hole"
    assert [row["seen"] for row in rows] == pytest.approx([0, 1, 0, 182 / 365])
    streets = [[row[f"street#{number}"] for number in range(4)] for row in rows]
    assert streets[0] == streets[2]
    assert all(sum(street) == 1 for street in streets)


cell = st.sampled_from(["40", "?", "", "1e999", "-5", "33.3"])


@given(st.lists(cell, min_size=1, max_size=8), st.integers(0, 7), cell)
def test_a_row_depends_on_its_record_alone(tmp_path_factory, ages, place, other):
    """Whatever others hold, and wherever they stand."""
    folder = tmp_path_factory.mktemp("rows")
    (folder / "s.toml").write_text(TEXT)

    def rows_of(ages):
        lines = [f"{age},5,north,2020-03-01,Elm Road,x,no" for age in ages]
        (folder / "d.csv").write_text("\n".join([ROWS[0], *lines]) + "\n")
        dataset = load(str(folder / "d.csv"), schema=str(folder / "s.toml"), for_training=False)
        return arrays_of(dataset.train).x, dataset.rows.public_hashes()

    place = min(place, len(ages))
    (x, hashes), (more, more_hashes) = rows_of(ages), rows_of([*ages[:place], other, *ages[place:]])
    assert np.array_equal(np.delete(more, place, axis=0), x)
    assert np.array_equal(np.delete(more_hashes, place), hashes)
    assert ((x >= 0) & (x <= 1)).all()


def test_the_same_records_under_another_schema_are_known_again(table):
    """Else a second schema would be a second budget."""
    one = table()
    changed = TEXT.replace("[20, 60]", "[0, 99]").replace("buckets = 4", "buckets = 9")
    other = table(text=changed.replace('[["no", "no."], "yes"]', '["yes", "no", "no."]'))
    assert arrays_of(one.train).y.tolist() != arrays_of(other.train).y.tolist()
    assert one.content_digest() == other.content_digest()
    assert one.rows.public_hashes().tolist() == other.rows.public_hashes().tolist()


def test_a_table_of_numbers_is_the_same_with_and_without_a_schema(tmp_path):
    (tmp_path / "d.csv").write_text("a,b,y\n0.5,1,0\n0.25,0,1\n0.125,1,1\n")
    schema = '[column.a]\nkind = "number"\nbounds = [0, 1]\n[column.b]\nkind = "number"\nbounds = [0, 1]\n'
    (tmp_path / "s.toml").write_text(schema + '[column.y]\nkind = "label"\nclasses = [0, 1]\n')
    one = load(str(tmp_path / "d.csv"), label="y", bounds=(0, 1))
    other = load(str(tmp_path / "d.csv"), schema=str(tmp_path / "s.toml"))
    assert np.array_equal(arrays_of(one.train).x, arrays_of(other.train).x)
    assert one.content_digest() == other.content_digest()


def test_files_of_columns_and_files_without_a_header(tmp_path, table):
    csv = table()
    days = [datetime.date.fromisoformat(line) for line in ("2020-01-01", "2020-12-31", "2019-05-05", "2020-07-01")]
    columns = {
        "ill": pa.array(["no", "yes", "no.", "yes"]).dictionary_encode(),  # another order
        "age": pa.array([40, 70, None, 20]),
        "paid": [0, 999, 9, 99],
        "ward": ["north", "SOUTH", None, "west"],
        "seen": days,
        "street": ["Elm Road", "Oak, the long one", "Elm Road", "Ash Way"],
        "note": ["x", None, "y", "z"],
    }
    pq.write_table(pa.table(columns), tmp_path / "d.parquet")
    parquet = load(str(tmp_path / "d.parquet"), schema=str(tmp_path / "s.toml"), for_training=False)
    assert np.array_equal(arrays_of(parquet.train).x, arrays_of(csv.train).x)
    assert np.array_equal(arrays_of(parquet.train).y, arrays_of(csv.train).y)
    bare = table(["|a line to skip", *ROWS[1:], ""], text=f'header = false\nskip = "|"\n{TEXT}')
    assert np.array_equal(arrays_of(bare.train).x, arrays_of(csv.train).x)
    assert bare.rows.columns == csv.rows.columns


def test_records_without_labels(tmp_path, table):
    whole = table()
    lines = [line.rpartition(",")[0] for line in ROWS]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
    schema = parse_schema(TEXT, "it")
    assert np.array_equal(load_records(str(tmp_path / "x.csv"), schema=schema), arrays_of(whole.train).x)
    assert np.array_equal(load_records(str(tmp_path / "d.csv"), schema=schema), arrays_of(whole.train).x)


def test_whose_records_are(table):
    dataset = table(units="note", rows=[*ROWS[:2], ROWS[2].replace(",,", ",q,"), *ROWS[3:]])
    assert len(set(units_of(dataset).tolist())) == 4
    assert dataset.features == len(NAMES)


def test_all_faults_are_said_at_once(table):
    rows = [*ROWS[:2], "forty,1,north,2020-13-01,,x,maybe", "20,1,north"]
    said = refused(table, rows)
    assert said.partition("d.csv: ")[2] == (
        "does not fit its schema: line 4 has 3 cells in place of 7; line 3, column 'age': 'forty' is no number; line 3,"
        " column 'seen': '2020-13-01' is no date (YYYY-MM-DD); line 3, column 'street' is empty (missing = true allows"
        " that); line 3, column 'ill': 'maybe' is none of its classes; correct one of them"
    )
    short = refused(table, [ROWS[0], "20,1,north"])  # not one whole row
    assert short.partition("d.csv: ")[2].startswith("does not fit its schema: line 2 has 3 cells in place of 7")
    many = refused(table, [ROWS[0], *[line.replace("2020", "then") for line in ROWS[1:] * 5]])
    assert many.endswith("; and 9 more; correct one of them")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [ROWS[0].replace("ward", "station"), *ROWS[1:]],
            "d.csv: lacks the columns 'ward'; correct the schema, or the file",
        ),
        ([ROWS[0] + ",more", *(row + ",1" for row in ROWS[1:])], "d.csv: has, beside its schema, the columns 'more'"),
        ([ROWS[0] + ",age", *(row + ",1" for row in ROWS[1:])], "d.csv: has twice the columns 'age'"),
        ([ROWS[0]], "d.csv: holds no records"),
    ],
)
def test_files_that_do_not_fit(table, rows, message):
    assert message in refused(table, rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("[20, 60]", "[60, 20]"),
            "column 'age': bounds are public numbers, the lowest and the highest, and the first below",
        ),
        (("[20, 60]", "[20, inf]"), "column 'age': bounds are public numbers"),
        (
            ("[20, 60]", '["?", "?"]'),
            "column 'age': bounds are public numbers, the lowest and the highest: bounds = [LO, HI]",
        ),
        (("2020-12-31", "9"), "column 'seen': bounds are public dates, the first and the last: bounds = [LO, HI]"),
        (("buckets = 4", "buckets = true"), "column 'street': buckets is not a whole number from 2 to 10,000"),
        (('"north"', '"SOUTH"'), "column 'ward': 'SOUTH' is among its values twice; leave one out"),
        (('[["no", "no."], "yes"]', '["no"]'), "column 'ill': classes are public texts, 2 or more"),
        (
            ('kind = "label"', 'kind = "category"'),
            "column 'ill': 'classes' does not go with kind 'category'; leave it out",
        ),
        (
            ('classes = [["no", "no."], "yes"]', 'values = ["no", "yes"]'),
            'column \'ill\': a label has classes in place of values; write classes = ["A", "B"]',
        ),
        (
            ('kind = "ignored"', 'kind = "label"\nclasses = [1, 2]'),
            'has 2 columns of kind "label"; give one, with its classes',
        ),
        (
            ('kind = "ignored"', 'kind = "?"'),
            "column 'note': kind is not one of number, category, hashed, date, label, ignored",
        ),
        (("log = true", 'log = "yes"'), "column 'paid': missing, other and log are true or false"),
        (("missing = [", "absent = ["), "has unknown keys 'absent'; dpltm datasets schema drafts one"),
        (("[column.age]", "[column"), "is no TOML"),
    ],
)
def test_bad_schemas(change, message):
    assert TEXT.count(change[0]) == 1
    assert refused(parse_schema, TEXT.replace(*change), "`schema` s.toml").startswith(f"`schema` s.toml: {message}")


def test_a_schema_goes_with_a_table_alone(tmp_path, table):
    table()
    schema = str(tmp_path / "s.toml")
    assert refused(load, "digits", schema=schema) == (
        "`schema`: is for tables (.csv, .parquet, .arrow), and digits is none; drop `schema`"
    )
    said = refused(load, str(tmp_path / "d.csv"), schema=schema, label="ill")
    assert said == "`label`: the schema says what the columns hold; drop `label`"
    assert refused(load, str(tmp_path / "d.csv"), schema="none.toml").startswith("`schema` none.toml: no such file")


def test_drafts(tmp_path, table):
    """Without values but from records declared public; what is drafted from those fits them."""
    table()
    path = tmp_path / "d.csv"
    blind = draft(path, "ill", header=True, from_public=False)
    assert not any(word in blind for word in ("north", "Elm", "40", "2020"))
    assert "column 'age': kind is not one of" in refused(parse_schema, blind, "it")
    schema = parse_schema(draft(path, "ill", header=True, from_public=True), "it")
    kinds = {column.name: column.kind for column in schema.columns}
    assert kinds == {"age": "number", "paid": "number", "ward": "category", "seen": "date", "street": "category",
                     "note": "category", "ill": "label"}  # fmt: skip
    assert schema.columns[0].bounds == (20, 70)
    assert len(load(str(path), schema=schema, for_training=False).train) == 4
    assert "has no such column" in refused(draft, path, "sick", header=True, from_public=False)
    days = pa.array([1], pa.date32())
    pq.write_table(pa.table({"n": [1.5], "d": days, "t": ["x"]}), tmp_path / "d.parquet")
    typed = draft(tmp_path / "d.parquet", None, header=True, from_public=False)
    assert [typed.count(f'kind = "{kind}"') for kind in ("number", "date", "category")] == [1, 1, 1]


def test_files_that_are_no_text(tmp_path, table):
    table()
    (tmp_path / "d.csv").write_bytes(b"a\xff,b\n1,2\n")
    for from_public in (True, False):
        said = refused(draft, tmp_path / "d.csv", None, header=True, from_public=from_public)
        assert "d.csv: is not comma-separated text in UTF-8" in said
    assert "d.csv: is not comma-separated text in UTF-8" in refused(public_records, tmp_path / "d.csv", None, True)
    assert "is not comma-separated text in UTF-8" in refused(
        load, str(tmp_path / "d.csv"), schema=str(tmp_path / "s.toml")
    )
    for columns in ({}, {"names": ["a", "a"]}):
        pq.write_table(
            pa.table([pa.array([1])] * (2 * len(columns)), **(columns or {"names": []})), tmp_path / "d.parquet"
        )
        for reader in (lambda path: public_records(path, None, True), lambda path: draft(path, None, True, False)):
            assert refused(reader, tmp_path / "d.parquet").endswith(
                "d.parquet: has no name of its own for each column"
            )
    (tmp_path / "one.csv").write_text("a\n1\n2\n")
    for reader in (lambda path: public_records(path, None, True), lambda path: draft(path, None, True, False)):
        said = "one.csv: has one column alone; records have a label, and something that it is learned from"
        assert refused(reader, tmp_path / "one.csv").endswith(said)
    os.mkfifo(tmp_path / "pipe.toml")
    assert "pipe.toml: no such file" in refused(load, str(tmp_path / "d.csv"), schema=str(tmp_path / "pipe.toml"))
    (tmp_path / "deep.toml").write_text("a = " + "[" * 5000)
    assert "deep.toml: is no TOML" in refused(load, str(tmp_path / "d.csv"), schema=str(tmp_path / "deep.toml"))


@pytest.mark.parametrize("name", ["d.arrow", "d.parquet"])
def test_names_of_columns_that_are_no_text(tmp_path, name):
    columns = pa.table({"abcdefgh": [1.0, 2.0], "y": [0, 1]})
    if name == "d.parquet":
        pq.write_table(columns, tmp_path / name)
    else:
        with pa.OSFile(str(tmp_path / name), "wb") as sink, pa.ipc.new_file(sink, columns.schema) as writer:
            writer.write_table(columns)
    path = tmp_path / name
    path.write_bytes(path.read_bytes().replace(b"abcdefgh", b"\xffbcdefgh"))
    assert f"{name}: is not a {path.suffix[1:]} file that can be read" in refused(
        load, str(path), label="y", bounds=(0, 9)
    )
    (tmp_path / "s.toml").write_text(TEXT)
    assert f"{name}: is not a {path.suffix[1:]} file that can be read" in refused(
        load, str(path), schema=str(tmp_path / "s.toml")
    )
