"""Schemas of tables: what each kind of column becomes, what does not fit, and that a row depends on its record alone."""

import codecs
import csv
import datetime
import gzip
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpltm.errors import DataError
from dpltm.privacy.entry import NO_LINEAGE
from dpltm.records import Dataset, encode, load, scale
from dpltm.records.encode import as_days
from dpltm.records.load import from_arrays
from dpltm.records.schema import parse_schema, schema_text
from dpltm.records.subgroups import check_column, subgroups_of
from dpltm.records.tables import draft, read_off
from opened import arrays_of
from refusals import refused

TEXT = """
missing = ["", "?"]
column.age = { kind = "number", bounds = [20, 60], missing = true }
column.paid = { kind = "number", bounds = [0, 999], log = true }
column.ward = { kind = "category", values = ["north", ["south", "SOUTH"]], missing = true, other = true }
column.seen = { kind = "date", bounds = [2020-01-01, 2020-12-31] }
column.street = { kind = "hashed", buckets = 4 }
column.note = { kind = "ignored" }
column.ill = { kind = "label", classes = [["no", "no."], "yes"] }
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
    assert [row["age"] for row in rows] == [0.5, 2.0, 0.0, 0.0], "beyond the bounds, until it is scaled"
    assert [row["age missing"] for row in rows] == [0, 0, 1, 0]
    assert [row["paid"] for row in rows] == pytest.approx([0, 1, 1 / 3, 2 / 3])
    assert [[row[f"ward={name}"] for name in ("north", "south")] for row in rows] == [[1, 0], [0, 1], [0, 0], [0, 0]]
    assert [row["ward missing"] for row in rows] == [0, 0, 1, 0], "another ward is no hole"
    assert [row["seen"] for row in rows] == pytest.approx([0, 1, -1, 182 / 365])
    assert np.array_equal(scale(arrays_of(dataset.train).x, dataset.bounds), arrays_of(dataset.train).x.clip(0, 1))
    streets = [[row[f"street#{number}"] for number in range(4)] for row in rows]
    assert streets[0] == streets[2]
    assert all(sum(street) == 1 for street in streets)


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


def test_all_faults_are_said_at_once(table):
    rows = [*ROWS[:2], "forty,1,north,2020-13-01,,x,maybe"]
    said = refused(table, rows)
    assert said.partition("d.csv: ")[2] == (
        "does not fit its schema: age: 'forty' is no number (record 1 from 0); seen: '2020-13-01' is no date (YYYY-MM-DD)"
        " (record 1 from 0); street: '' is empty (record 1 from 0); ill: 'maybe' is none of its classes (record 1 from 0);"
        " correct those cells, or say in the schema what they are: numbers are 1234.5, but for its decimal, and dates"
        " 2024-12-31; add values and classes; missing = true takes holes, other = true other values, and holes too of"
        " numbers and dates"
    )
    short = refused(table, [*ROWS, "20,1,north"])
    assert short.partition("d.csv: ")[2] == "record 4 (from 0) has 3 cells for 7 columns; mend it"
    often = refused(table, [ROWS[0], *[line.replace("2020", "then") for line in ROWS[1:] * 5]])
    assert often == refused(table, [ROWS[0], *[line.replace("2020", "then") for line in ROWS[1:] * 9]]), "no counts"
    assert often.count("then-01-01") == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [ROWS[0].replace("ward", "station"), *ROWS[1:]],
            "d.csv: its columns are not those of its schema: it lacks 'ward'; it has, beside those, 'station'",
        ),
        (
            [ROWS[0] + ",more", *(row + ",1" for row in ROWS[1:])],
            "schema: it has, beside those, 'more'; give the same",
        ),
        ([ROWS[0] + ",age", *(row + ",1" for row in ROWS[1:])], "schema: it has twice 'age'; give the same"),
        ([row.replace(",", ";") for row in ROWS], "not those of its schema, whose separator is ',': it lacks 'age'"),
        ([ROWS[0]], "d.csv: holds no records"),
    ],
)
def test_files_that_do_not_fit(table, rows, message):
    assert message in refused(table, rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[20, 60]", "[60, 20]"), "column 'age': bounds are two public numbers, the first below the second"),
        (("2020-12-31", "9"), "column 'seen': bounds are two public dates, the first below the second"),
        (
            ('[["no", "no."], "yes"]', "[1, 2], bounds = [0, 1]"),
            "column 'ill': 'bounds' does not go with what else is",
        ),
        (("log = true", 'suffix = "%"'), "column 'paid': 'suffix' does not go with what else is said of it"),
        (("buckets = 4", "buckets = true"), "column 'street': buckets is not a whole number from 2 to 10,000"),
        (('"north"', '"SOUTH"'), "column 'ward': 'SOUTH' is among its values twice; leave one out"),
        (('[["no", "no."], "yes"]', '["no"]'), "column 'ill': classes are public texts, 2 or more"),
        (
            ('classes = [["no", "no."], "yes"]', 'classes = ["no", "yes"], shares = [0.9, 0.2]'),
            "column 'ill': shares are those of the classes, in their order: positive numbers of sum 1",
        ),
        (
            ('kind = "ignored"', 'kind = "label", classes = [1, 2]'),
            'has several columns of kind "label"; give one, with its classes',
        ),
        (
            ('kind = "ignored"', 'kind = "words"'),
            "column 'note': kind is not one of number, category, hashed, date, label, ignored",
        ),
        (('missing = ["", "?"]', 'separator = "and"'), "separator and decimal are one character each"),
        (("missing = [", "absent = ["), "has unknown keys 'absent'; dpltm datasets schema drafts one"),
        (("column.age", "[column"), "is no TOML"),
    ],
)
def test_bad_schemas(change, message):
    assert TEXT.count(change[0]) == 1
    assert refused(parse_schema, TEXT.replace(*change), "`schema` s.toml").startswith(f"`schema` s.toml: {message}")


def test_a_schema_goes_with_a_table_alone(tmp_path, table):
    table()
    schema = str(tmp_path / "s.toml")
    message = "`schema`: is for tables (.csv, .parquet, .arrow), and digits is none; drop `schema`"
    assert refused(load, "digits", schema=schema) == message
    said = refused(load, str(tmp_path / "d.csv"), schema=schema, label="ill")
    assert said == "`label`: the schema says what the columns hold; drop `label`"
    assert refused(load, str(tmp_path / "d.csv"), schema="none.toml").startswith("`schema` none.toml: no such file")


def test_drafts(tmp_path, table):
    """Without values but from records declared public; what is drafted from those fits them."""
    table()
    path = tmp_path / "d.csv"
    blind = draft(path, None, "ill")
    text = schema_text(blind, blind.columns, NO_LINEAGE, "a draft")
    assert not any(word in text for word in ("north", "Elm", "40", "2020"))
    assert parse_schema(text, "it").columns == blind.columns
    assert "kind, bounds or values of 'age'" in refused(load, str(path), schema=parse_schema(text, "it"))
    known = parse_schema('[column.paid]\nkind = "number"\nbounds = [0, 9]', "it", part=True)
    schema = read_off(path, draft(path, known, "ill"))
    kinds = {column.name: column.kind for column in schema.columns}
    assert kinds == {"age": "number", "paid": "number", "ward": "category", "seen": "date", "street": "category",
                     "note": "category", "ill": "label"}  # fmt: skip
    assert schema.columns[0].bounds == (20, 70)
    assert schema.columns[1].bounds == (0, 9), "what is known stays"
    assert len(load(str(path), schema=schema, for_training=False).train) == 4
    assert "has no such column" in refused(draft, path, None, "sick")
    fee = parse_schema('[column.fee]\nkind = "ignored"', "it", part=True)
    assert "lacks the columns 'fee' of the schema" in refused(draft, path, fee, "ill")
    days = pa.array([1], pa.date32())
    pq.write_table(pa.table({"n": [1.5], "d": days, "t": ["x"]}), tmp_path / "d.parquet")
    typed = draft(tmp_path / "d.parquet", None, None)
    assert [column.kind for column in typed.columns] == ["number", "date", "category"]


def test_files_that_are_no_text(tmp_path, table):
    table()
    (tmp_path / "d.csv").write_bytes(b"a\xff,b\n1,2\n")
    said = "d.csv: is not text in UTF-8 separated by ','"
    assert said in refused(draft, tmp_path / "d.csv", None, None)
    assert said in refused(load, str(tmp_path / "d.csv"), schema=str(tmp_path / "s.toml"))
    pq.write_table(pa.table([pa.array([1])] * 2, names=["a", "a"]), tmp_path / "d.parquet")
    said = refused(draft, tmp_path / "d.parquet", None, None)
    assert said.endswith("d.parquet: has twice the columns 'a'; rename one of them")
    (tmp_path / "one.csv").write_text("a\n1\n2\n")
    said = "one.csv: has 'a' for a header; name each of two columns or more, or say separator in a `schema`"
    assert refused(draft, tmp_path / "one.csv", None, None).endswith(said)
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
    (tmp_path / "s.toml").write_text(TEXT)
    for facts in ({"label": "y", "bounds": (0, 9)}, {"schema": str(tmp_path / "s.toml")}):
        assert f"{name}: is not a {path.suffix[1:]} file that can be read" in refused(load, str(path), **facts)


@pytest.mark.parametrize(
    "cell", ["2020-01-01abc", "20200101", "2020-W01-1", "2020-1-1", "2020-02-30", "2020-01-01 noon"]
)
def test_what_is_no_date(cell):
    assert as_days(cell) is None


def test_dates_with_times():
    day = datetime.date(2020, 1, 1).toordinal()
    for time in ("", "T10:30", " 10:30:00.5", "T10:30:00Z", "T10:30+02:00"):
        assert as_days(f"2020-01-01{time}") == day


ABROAD = """
separator = ";"
encoding = "latin-1"
decimal = ","
column."Größe" = { kind = "number", bounds = [0, 2000] }
column.Anteil = { kind = "number", bounds = [0, 100] }
column.krank = { kind = "label", classes = ["nein", "ja"] }
"""


def test_marks_are_of_texts_and_numbers_are_numbers(tmp_path):
    """A frame, or a .parquet file, holds 1.5 whatever a .csv file of the same table writes."""
    frame = pandas.DataFrame(
        {"Größe": [1.5, 1234.125, 7.5], "Anteil": [12.5, 0.25, 100], "krank": ["ja", "nein", "ja"]}
    )
    written = frame.assign(Größe=["1,5", "1234,125", "7,5"], Anteil=["12,5", "0,25", "100"])
    (tmp_path / "t.toml").write_text(ABROAD)
    frame.to_parquet(tmp_path / "t.parquet")
    written.to_csv(tmp_path / "t.csv", sep=";", encoding="latin-1", index=False)
    text, typed = (
        arrays_of(load(str(tmp_path / name), schema=str(tmp_path / "t.toml")).train).x
        for name in ("t.csv", "t.parquet")
    )
    np.testing.assert_array_equal(text, typed)
    np.testing.assert_allclose(typed[:, 0] * 2000, frame["Größe"], rtol=1e-6)


def test_fractions_of_a_frame_are_no_texts_with_another_mark():
    """Labels beside a frame are numbers; among objects, where a word may stand beside them, they would be holes."""
    above = ABROAD.split("column.krank")[0].replace("100] }", "100], missing = true, other = true }")
    schema = parse_schema(above + 'column.kosten = { kind = "label", bounds = [0, 10] }', "it")
    frame, costs = pandas.DataFrame({"Größe": [1.5, 2.5, 7.5], "Anteil": [12.5, 0.25, 100]}), [0.5, 1.25, 10.0]
    whole = from_arrays(frame.assign(kosten=costs), None, schema=schema).train
    assert arrays_of(from_arrays(frame, costs, schema=schema).train).y.tolist() == arrays_of(whole).y.tolist()
    with pytest.raises(
        DataError, match=r"Anteil: is of objects, among them 12\.5; `decimal` is of texts: take type float"
    ):
        from_arrays(frame.astype({"Anteil": object}), costs, schema=schema)


def test_one_column_without_a_name_is_row_numbers_and_two_are_not(tmp_path):
    (tmp_path / "f.csv").write_text(",a,,y\n0,1,5,no\n1,2,6,yes\n")
    schema = parse_schema(
        'column.a = { kind = "number", bounds = [0, 9] }\ncolumn.y = { kind = "label", classes = ["no", "yes"] }', "it"
    )
    assert "has, beside those, ''" in refused(load, str(tmp_path / "f.csv"), schema=schema)


PAGE = "\n".join(ROWS) + "\n"
TABBED = "\n".join(map("\t".join, csv.reader(ROWS, skipinitialspace=True)))
FORMS = {
    "remarks above": ("f.csv", 'skip = "#"', b"# exported\n# by a station\n" + PAGE.encode()),
    "what Excel says": ("f.csv", 'skip = "sep="', b"sep=,\n" + PAGE.encode()),
    "blank lines above": ("f.csv", "", codecs.BOM_UTF8 + b" \n\n" + PAGE.encode()),
    "a long text": ("f.csv", "", PAGE.replace("Elm Road, x", f"Elm Road, {'x' * 200_000}").encode()),
    "tabs": ("d.tsv", "", TABBED.encode()),
    "compressed": ("d.csv.gz", "", gzip.compress(PAGE.encode())),
    "compressed tabs": ("D.TSV.GZ", 'separator = ","', gzip.compress(TABBED.encode())),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_a_table_is_what_it_is_however_its_file_is_written(tmp_path, table, name):
    """Here, and by the program that goes with an exported network."""
    file, above, body = FORMS[name]
    (tmp_path / file).write_bytes(body)
    schema = parse_schema(f"{above}\n{TEXT}", "it")
    read, plain = load(str(tmp_path / file), schema=schema, for_training=False), table()
    assert np.array_equal(arrays_of(read.train).x, arrays_of(plain.train).x)
    assert arrays_of(read.train).y.tolist() == arrays_of(plain.train).y.tolist()
    rows = {"skip": schema.skip, "separator": schema.separator, "encoding": "utf-8-sig", "names": None}
    cells = encode.table(tmp_path / file, {"table": rows})[0]
    assert (list(cells), cells["age"]) == (ROWS[0].split(","), ["40", "70", "?", "20"])
    assert [column.name for column in draft(tmp_path / file, schema, None).columns] == list(cells)


def test_what_was_cut_off_is_no_table(tmp_path):
    path = tmp_path / "d.csv.gz"
    for body in (gzip.compress(PAGE.encode())[:-9], b"none", b""):
        path.write_bytes(body)
        assert "d.csv.gz: " in refused(load, str(path), schema=parse_schema(TEXT, "it"))


@pytest.mark.parametrize(
    ("header", "mark"),
    [
        ('"age";"job";"y"', ";"),
        ("age\tjob\ty", "\t"),
        ('"one, and more";"y"', ";"),
        ('id,"a;b;c"', ","),
        ("a|b;c|d", "|"),
    ],
)
def test_what_stands_between_names_is_found(tmp_path, header, mark):
    (tmp_path / "d.csv").write_text(f"{header}\n")
    assert draft(tmp_path / "d.csv", None, None).separator == mark


def test_numbers_and_files_as_they_are_written_elsewhere(tmp_path):
    """Decimal commas, semicolons and Latin-1, where the schema says so; and only there."""
    path = tmp_path / "d.csv"
    path.write_bytes("Größe;Anteil;krank\n1234,5;12,5;ja\n200;50;nein\n1e3;7;ja\n".encode("latin-1"))
    schema = parse_schema(ABROAD, "it")
    assert parse_schema(schema_text(schema, schema.columns, NO_LINEAGE, ""), "it").columns == schema.columns
    x = arrays_of(load(str(path), schema=schema).train).x
    assert x.tolist() == pytest.approx(np.array([[0.61725, 0.125], [0.1, 0.5], [0.5, 0.07]]))
    path.write_bytes("Größe;Anteil;krank\n1.5;12 EUR;ja\n200;50%;nein\n".encode("latin-1"))
    said = refused(load, str(path), schema=schema)
    assert "Größe: '1.5' is no number (record 0 from 0)" in said, "a point may stand between groups of digits"
    assert "Anteil: '12 EUR' is no number (record 0 from 0)" in said
    assert 'encoding = "latin-1" or separator = ";"' in refused(draft, path, None, None)
    path.write_text("a;b;y\n1,5;2;0\n")
    assert [column.name for column in draft(path, None, "y").columns] == ["a", "b", "y"], "by the names alone"


# --- subgroups by a column: found again from what a schema made of the cells ---

SCHEMA = """
column.sex = { kind = "category", values = ["f", "m"], missing = true, other = true }
column.age = { kind = "number", bounds = [0, 100], missing = true }
column.income = { kind = "number", bounds = [1000, 100000], log = true }
column.seen = { kind = "date", bounds = [2020-01-01, 2029-12-31] }
column.word = { kind = "hashed", buckets = 4 }
column.y = { kind = "label", classes = [0, 1] }
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
    message = "`by`: subgroups are those of a test split; give `test`"
    assert refused(check_column, replace(dataset, test=None), "sex").startswith(message)
