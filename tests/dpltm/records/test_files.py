"""Reading files: what round-trips, texts against a plain loop, and one row for each way a file or a fact does not fit."""

import io
import pickle
import zipfile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.records import Layout, load, load_records, tables
from dpltm.records.files import POSITIONS, TABLES, padded, read_arrays, reading
from dpltm.records.tables import Table, read_table
from opened import arrays_of
from refusals import refused

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0, 1, 0, 1])


def read_file(path, label, units=None):
    """Both splits of a file."""
    with reading(path, "`dataset`") as kind:
        if kind in TABLES:
            return read_table(Table(path), label, units=units), None
        return read_arrays(path, label, Layout(), units)


def npz(tmp_path, **arrays):
    path = tmp_path / "t.npz"
    np.savez(path, **arrays)
    return path


def test_missing_folder_and_kind(tmp_path):
    (tmp_path / "folder").mkdir()
    kind = "unknown kind of file; give one that ends in .npz, .csv (or .tsv, .csv.gz), .parquet or .arrow"
    faults = {"no.npz": "no such file; correct the path", "folder": kind, "t.txt": kind, "bare": kind}
    for name, fault in faults.items():
        assert refused(read_file, tmp_path / name, None) == f"`dataset` {tmp_path / name}: {fault}"


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32, np.float16, np.float64, ">f4"])
def test_npz_keeps_arrays_as_stored(tmp_path, dtype):
    path = npz(tmp_path, x_train=X.astype(dtype), y_train=Y, x_test=X[:2], y_test=Y[:2])
    train, test = read_file(path, None)
    assert train.x.dtype == dtype
    assert np.array_equal(train.x, X.astype(dtype))
    assert np.array_equal(train.y, Y)
    assert np.array_equal(test.x, X[:2])
    path = npz(tmp_path, x_train=X, y_train=Y)
    assert read_file(path, None)[1] is None
    found = load_records(str(npz(tmp_path, x=X.astype(dtype))))
    assert np.array_equal(found, X.astype(dtype))
    assert found.dtype == np.dtype(dtype).newbyteorder("=")


def test_npz_that_claims_more_than_it_holds(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (2**40, 2**10)})
    path = tmp_path / "t.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train.npy", header.getvalue())
    message = refused(read_file, path, None)
    assert message.startswith(f"{path}: x_train cannot be read (")
    assert message.endswith("); save it as numbers")


@pytest.fixture
def parquet(tmp_path):
    def write(**columns):
        pq.write_table(pa.table(columns), tmp_path / "t.parquet")
        return tmp_path / "t.parquet"

    return write


def test_bad_parquet(parquet):
    path = parquet(a=["x", "z"], y=[0, 1])
    assert refused(read_file, path, "y") == (
        f"{path}: record 0 (from 0), column 'a' holds 'x', which is no number; say by `schema` what the columns hold"
        " (dpltm datasets schema drafts one)"
    )
    assert refused(read_file, path, "z") == f"`label` z: {path} has no such column; it has 'a', 'y'"


def test_a_member_that_is_damaged_is_refused(tmp_path):
    x = np.arange(600, dtype="f4").reshape(60, 10)
    path = npz(tmp_path, x_train=x, y_train=np.arange(60) % 2)
    content = path.read_bytes()
    for place in (content.index(x.tobytes()[4:]) + 900, content.index(b"NUMPY")):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        said = f"{path}: x_train cannot be read (Bad CRC-32 for file 'x_train.npy'); save it as numbers"
        assert refused(read_file, path, None) == said


@pytest.mark.parametrize("kind", ["parquet", "file"])
def test_tables_are_read_some_rows_at_a_time(tmp_path, kind, monkeypatch):
    """64 bytes at once are two rows and a half of three columns."""
    monkeypatch.setattr(tables, "AT_ONCE", 64)

    def write(**columns):
        table, path = pa.table(columns), tmp_path / ("t.parquet" if kind == "parquet" else "t.arrow")
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=7)
            return path
        with pa.ipc.new_file(str(path), table.schema) as sink:
            sink.write_table(table, max_chunksize=7)
        return path

    a, b, y = np.arange(50, dtype="i2"), np.linspace(0, 1, 50, dtype="f4"), np.arange(50) % 3
    train, test = read_file(write(a=a, y=y, b=b), "y")
    assert test is None
    assert train.x.dtype == np.column_stack([a, b]).dtype
    assert np.array_equal(train.x, np.column_stack([a, b]))
    assert np.array_equal(train.y, y)
    assert train.columns == ("a", "b")
    assert load_records(str(tmp_path / train.source), "y").shape == (50, 2)
    missing = [None if place in (3, 30, 31) else 0.5 for place in range(50)]
    path = write(a=a, y=y, b=missing)
    assert refused(read_file, path, "y") == f"{path}: column 'b' has nulls; fill them or drop the column"
    path.write_bytes(path.read_bytes()[:200])
    message = refused(read_file, path, "y")
    assert message.startswith(f"{path}: is not a {path.suffix[1:]} file that can be read (")


RANKS = [[1, 2, 3], [], [7, 0, 6, 5, 1, 1], [4], [9_996, 9_997, 2**31]]
VALUES = np.array([word for text in RANKS for word in text], dtype=np.uint32)
OFFSETS = np.cumsum([0, *map(len, RANKS)])
ANSWERS = np.array([0, 1, 0, 1, 1])


@pytest.fixture
def write(tmp_path):
    """Writes t.npz, the texts above where nothing else is given (None: left out), and returns its path as text."""

    def write_npz(name="t.npz", **arrays):
        held = {"values_train": VALUES, "offsets_train": OFFSETS, "y_train": ANSWERS} | arrays
        np.savez(tmp_path / name, **{key: value for key, value in held.items() if value is not None})
        return str(tmp_path / name)

    return write_npz


def one_by_one(texts: list[list[int]], words: int, length: int) -> list[list[int]]:
    """As keras: a start, then each word three further on, the last ones kept, padded in front."""
    found = []
    for text in texts:
        whole = [1, *(word + 3 if word and word + 3 < words else 2 for word in text)][-length:]
        found.append([0] * (length - len(whole)) + whole)
    return found


def test_by_hand(write):
    found = load(write(), words=10, length=5)
    assert arrays_of(found.train).x.tolist() == [
        [0, 1, 4, 5, 6],
        [0, 0, 0, 0, 1],
        [2, 9, 8, 4, 4],
        [0, 0, 0, 1, 7],
        [0, 1, 2, 2, 2],
    ]
    assert found.train.dtype == np.int32
    assert (found.tables, found.bounds, found.classes) == ((10,), (0, 9), 2)
    usual = load(write())
    assert (arrays_of(usual.train).x.shape, usual.tables) == ((5, 256), (10_000,))
    assert arrays_of(usual.train).x[4, -3:].tolist() == [9_999, 2, 2]


@given(
    st.lists(st.lists(st.integers(0, 14), max_size=9), min_size=1, max_size=6),
    st.integers(5, 20),
    st.integers(1, 12),
    st.sampled_from(["u1", "i2", "<u4", ">i4", "u8"]),
)
def test_as_one_by_one(texts, words, length, dtype):
    values = np.array([word for text in texts for word in text], dtype=dtype)
    offsets = np.cumsum([0, *map(len, texts)])
    found = padded(values, offsets, Layout(words, length), "t")
    assert found.tolist() == one_by_one(texts, words, length)


def test_more_than_are_made_at_a_time():
    generator = np.random.default_rng(0)
    texts = [generator.integers(0, 9, generator.integers(0, 12)).tolist() for _ in range(70)]
    values, offsets = np.concatenate(texts).astype(np.int64), np.cumsum([0, *map(len, texts)])
    length = POSITIONS // 32
    assert np.array_equal(padded(values, offsets, Layout(8, length), "t")[:, -12:], one_by_one(texts, 8, 12))


def test_other_words_or_lengths_are_the_same_records(write):
    """Else what a ledger holds for them would not add up; and they fall into the same parts."""
    other = {"values_test": np.array([3, 3, 3, 5]), "offsets_test": np.array([0, 3, 4]), "y_test": np.array([1, 0])}
    path = write(**other)
    found = [load(path), load(path, words=9), load(path, length=2)]
    assert len({each.content_digest() for each in found}) == 1
    for rows in ([each.rows for each in found], [each.test.rows for each in found]):
        assert len({each.digest for each in rows}) == 1
        assert len({tuple(each.public_hashes()) for each in rows}) == 1
    assert found[0].rows.digest != found[0].test.rows.digest
    half = arrays_of(load(path, subset="0.5", words=8, length=2).train)
    kept = np.flatnonzero(found[0].rows.public_hashes() < 5 * 10**8)
    assert half.x.tolist() == one_by_one([RANKS[place] for place in kept], 8, 2)
    assert half.y.tolist() == ANSWERS[kept].tolist()
    for labels in (ANSWERS, 1 - ANSWERS):  # whoever wrote a text is known by it
        path = write(values_test=VALUES, offsets_test=OFFSETS, y_test=labels)
        assert f"5 of the 5 records of {path} are training records of {path}" in refused(load, path)


def test_nothing_is_allocated_by_numbers_in_a_file(write):
    """A hundred kilobytes of offsets that all are 0 would become gigabytes."""
    labels = np.arange(20_000) % 2
    path = write(offsets_train=np.zeros(20_001, dtype=np.int64), values_train=VALUES[:0], y_train=labels)
    assert refused(load, path, length=100_000) == (
        f"{path}: 20,000 texts of 100,000 words are too many; lower `length`"
    )
    assert arrays_of(load(path, length=2).train).x.tolist() == [[0, 1]] * 20_000


def test_features_that_are_positions(write):
    x = np.array([[0, 4], [9, 1], [3, 3]])

    def features(x):
        return write(values_train=None, offsets_train=None, x_train=x, y_train=[0, 1, 0])

    found = load(features(x.astype(">f4")), words=10)
    assert np.array_equal(arrays_of(found.train).x, x)
    assert (found.tables, found.bounds) == ((10,), (0, 9))


@pytest.mark.parametrize("names", [("values", "offsets"), ("values_test", "offsets_test")])
def test_records_alone(tmp_path, names):
    path = tmp_path / "r.npz"
    np.savez(path, **dict(zip(names, (VALUES, OFFSETS), strict=True)))
    assert load_records(str(path), layout=Layout(10, 4)).tolist() == one_by_one(RANKS, 10, 4)
    said = f"{path}: holds texts ({names[0]}), where records of quantities belong; give those, as x"
    assert refused(load_records, str(path)) == said
    np.savez(path, x=ANSWERS[:, None], values=VALUES, offsets=OFFSETS)
    said = f"{path}: has the arrays 'x', 'values', 'offsets'; save the records as x, and no others"
    assert refused(load_records, str(path)) == said


PICTURES, KINDS = np.arange(24, dtype=np.uint8).reshape(6, 2, 2), np.array([0, 1, 2, 0, 1, 2])
HOLES = np.zeros((6, 2, 2), dtype=np.float32)
HOLES[3, 1, 0] = HOLES[4, 0, 0] = np.nan
BARE, FLOATS = io.BytesIO(), PICTURES.astype(np.float32)
np.save(BARE, PICTURES)

TEXTS: dict[str, Any] = {
    "x_train": None, "y_train": [0, 1], "values_train": np.array([1, 2, 3]), "offsets_train": np.array([0, 2, 3]),
}  # fmt: skip
PLACES = {"x_train": np.array([[0, 4], [9, 1], [3, 3]]), "y_train": [0, 1, 0]}

OTHER = (
    "; declare the public range of a number to be predicted by `target_bounds` LO,HI; in Python, a network of your own takes"
    " other labels with `loss=`, one value each (integers: `classes=0`)"
)
SAVE = "save it under that name"
FINITE = "(counted from 0); features must be finite"
NUMBER = "which is no number; say by `schema` what the columns hold (dpltm datasets schema drafts one)"
IN_UTF8 = 'save it as that, or let its schema say encoding = "latin-1" or separator = ";"'
TO = (
    "values_train must be one row of ranks of words, whole numbers from 0 up, and offsets_train rise from 0 to their number,"
    " one entry more than records"
)

ARCHIVES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"y_train": KINDS + 0.5}, {},
     f"PATH: y_train has label 0.5 at record 0 (counted from 0); number classes 0 to K-1{OTHER}"),
    ({"y_train": KINDS.astype(str)}, {},
     f"PATH: y_train has dtype <U21 and shape (6,); give one number a record{OTHER}"),
    ({"y_train": KINDS[:, None]}, {},
     f"PATH: y_train has dtype int64 and shape (6, 1); give one number a record{OTHER}"),
    ({"y_train": [0, 1, 3, 0, 1, 3]}, {},
     "PATH: y_train goes up to 3, but no record has label 2; number the classes without gaps or pass `classes`"
     f" 4{OTHER}"),
    ({"y_train": KINDS[:5]}, {}, "PATH: x_train has 6 records but y_train has 5 labels; give one label a record"),
    ({"y_train": KINDS * 0}, {},
     "t has one label in all of its records; give records of two classes or more, or a wider `subset`"),
    ({}, {"classes": 2},
     "PATH: y_train has label 2 at record 2, but there are 2 classes, numbered from 0; correct it or `classes`"),
    ({"x_train": PICTURES.astype(str)}, {},
     "PATH: x_train has dtype <U3; give numbers of 64 bits or fewer, and rows of one length"),
    ({"x_train": PICTURES[:0], "y_train": KINDS[:0]}, {},
     "PATH: x_train has shape (0, 2, 2); expected (records, features...), of both at least one"),
    ({"x_test": PICTURES.reshape(6, 4), "y_test": KINDS}, {},
     "PATH: x_test has records of shape (4,); give records of shape (2, 2), as in training"),
    # bytes 0..255 beside floats 0..1: the bounds of one would squash the other without a word
    ({"x_test": FLOATS / 255, "y_test": KINDS}, {},
     "PATH: x_test is float32; store it as uint8, or pass `bounds`"),
    ({"x_train": HOLES}, {"bounds": (0, 1)}, f"PATH: x_train has nan at record 3, feature 2 {FINITE}"),
    ({"x_train": FLOATS, "x_test": HOLES - np.inf, "y_test": KINDS}, {"bounds": (0, 1)},
     f"PATH: x_test has -inf at record 0, feature 0 {FINITE}"),
    ({"x_train": None, "y_train": None, "data": PICTURES}, {}, f"PATH: has no array x_train, only 'data'; {SAVE}"),
    ({"y_test": KINDS}, {}, f"PATH: has no array x_test, only 'x_train', 'y_train', 'y_test'; {SAVE}"),
    ({"x_train": np.array([[1], ["a"]], dtype=object)}, {},  # never unpickled
     "PATH: x_train cannot be read (Object arrays cannot be loaded when allow_pickle=False); save it as numbers"),
    ({}, {"label": "y"}, "`label` y: PATH is an archive and has no columns; drop `label`"),
    # texts
    ({**TEXTS, "values_train": np.ones(3)}, {}, f"PATH: {TO}"),
    ({**TEXTS, "y_train": KINDS}, {}, "PATH: values_train has 2 records but y_train has 6 labels; give one label a record"),
    ({**TEXTS, "offsets_train": [0], "y_train": KINDS[:0]}, {}, f"PATH: {TO}"),
    ({**TEXTS, "offsets_train": [0, 1, 2**62]}, {}, f"PATH: {TO}"),
    ({**TEXTS, "values_train": np.array([1, -1, 3])}, {}, f"PATH: {TO}"),
    ({**TEXTS, "x_train": PICTURES}, {}, "PATH: has both x_train and values_train; keep the one with the records"),
    ({**TEXTS, "x_test": PICTURES, "y_test": KINDS}, {},
     "PATH: x_test or values_train holds texts; give both splits the same"),
    (TEXTS, {"words": 4}, "`words` 4: must be 5 to 10,000,000"),
    (TEXTS, {"length": 10**6}, "`length` 1000000: must be 1 to 100,000"),
    (TEXTS, {"bounds": (0, 1)},
     "`bounds`: is for quantities, and these records hold positions in a table; drop `bounds`"),
    (PLACES, {"length": 2}, "`length`: PATH holds no texts (values_train, offsets_train); drop `length`"),
    (PLACES, {"words": 9},
     "PATH: x_train has 9 at record 1, place 0 (counted from 0); with `words` 9 give whole numbers"
     " from 0 to 8"),
]  # fmt: skip

WRITTEN: list[tuple[str, bytes, str | None, str]] = [
    ("t.npz", BARE.getvalue(), None, "PATH: holds a single array; save it with numpy.savez(x_train=..., y_train=...)"),
    *(("t.npz", body, None, "PATH: is not a NumPy archive that can be read; save it with numpy.savez")
      for body in (b"", b"hello", pickle.dumps([1]))),
    ("t.csv", b"a,y,a\n1,0,2\n", None,
     "PATH: needs `label` COLUMN to name the label column; it has 'a', 'y', 'a'"),
    ("t.csv", b"a,y,a\n1,0,2\n", "a", "`label` a: PATH has that column more than once; it has 'a', 'y', 'a'"),
    ("t.csv", b"a,y\n1,0\n2,cat\n", "y", f"PATH: record 1 (from 0), column 'y' holds 'cat', {NUMBER}"),
    ("t.csv", b"a,y\n1,0\n\n1,0\n0x1,0\n", "y", f"PATH: record 2 (from 0), column 'a' holds '0x1', {NUMBER}"),
    ("t.csv", b'a,y\n1,0\n"two\nlines",1\n', "y",
     f"PATH: record 1 (from 0), column 'a' holds 'two\\nlines', {NUMBER}"),
    ("t.csv", b"", "y", "`label` y: PATH has no such column; it has none"),
    ("t.csv", b'a,y\n"1,0\n', "y",
     f"PATH: is not text in UTF-8 separated by ',' (unexpected end of data); {IN_UTF8}"),
]  # fmt: skip


@pytest.mark.parametrize(("arrays", "options", "message"), ARCHIVES)
def test_archives(tmp_path, arrays, options, message):
    path, held = tmp_path / "t.npz", {"x_train": PICTURES, "y_train": KINDS} | arrays
    np.savez(path, **{name: value for name, value in held.items() if value is not None})
    assert refused(load, str(path), **options) == message.replace("PATH", str(path))


@pytest.mark.parametrize(("name", "body", "label", "message"), WRITTEN)
def test_files(tmp_path, name, body, label, message):
    path = tmp_path / name
    path.write_bytes(body)
    assert refused(load, str(path), label=label) == message.replace("PATH", str(path))
