"""Reading files: what round-trips, and one line for each way a file can be wrong."""

import io
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpltm.records import load, load_records, tables
from dpltm.records.files import TABLES, Layout, read_arrays, reading
from dpltm.records.tables import Table, read_table
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
    missing, folder, kind = tmp_path / "no.npz", tmp_path / "folder", tmp_path / "t.txt"
    folder.mkdir()
    for path, fault in (
        (missing, "no such file; correct the path"),
        (
            folder,
            "is a folder without x_train.npy;"
            " give one that has it, or a file in it that ends in .npz, .csv (or .tsv, .csv.gz), .parquet or .arrow",
        ),
        (kind, "unknown kind of file; give one that ends in .npz, .csv (or .tsv, .csv.gz), .parquet or .arrow"),
        (
            tmp_path / "bare",
            "unknown kind of file; give one that ends in .npz, .csv (or .tsv, .csv.gz), .parquet or .arrow",
        ),
    ):
        assert refused(read_file, path, None) == f"`dataset` {path}: {fault}"


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
    assert message.startswith(f"{path}: x_train is damaged (")
    assert message.endswith("); save it again as an array of numbers")


@pytest.fixture
def parquet(tmp_path):
    def write(**columns):
        pq.write_table(pa.table(columns), tmp_path / "t.parquet")
        return tmp_path / "t.parquet"

    return write


def test_bad_parquet(parquet):
    path = parquet(a=["x", "z"], y=[0, 1])
    assert refused(read_file, path, "y") == (
        f"{path}: column 'a' has type string and holds no numbers; drop it, or say by `schema` what the columns hold"
        " (dpltm datasets schema drafts one)"
    )
    assert refused(read_file, path, "z") == f"`label` z: {path} has no such column; it has 'a', 'y'"


def test_a_member_that_is_damaged_is_refused(tmp_path):
    x = np.arange(600, dtype="f4").reshape(60, 10)
    path = npz(tmp_path, x_train=x, y_train=np.arange(60) % 2)
    content = path.read_bytes()
    for place in (content.index(x.tobytes()[4:]) + 900, content.index(b"NUMPY")):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert refused(read_file, path, None) == (
            f"{path}: x_train is damaged (Bad CRC-32 for file 'x_train.npy'); save it again as an array of numbers"
        )


def test_a_folder_of_npy_files(tmp_path):
    x, y = np.arange(600, dtype="u1").reshape(60, 10), np.arange(60) % 2
    for name, values in (("x_train", x), ("y_train", y), ("x_test", 255 - x[:4]), ("y_test", y[:4])):
        np.save(tmp_path / f"{name}.npy", values)
    train, test = read_file(tmp_path, None)
    assert np.array_equal(train.x, x)
    assert np.array_equal(test.y, y[:4])
    assert load(f"{tmp_path}/", classes=2).rows.digest == load(str(npz(tmp_path, x_train=x, y_train=y))).rows.digest
    assert refused(read_file, tmp_path, "y") == (
        f"`label` y: {tmp_path} is a folder and names its labels y_train; drop `label`"
    )
    (tmp_path / "x_train.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr'")
    assert refused(read_file, tmp_path, None).startswith(f"{tmp_path}: x_train is damaged (")
    (tmp_path / "x_train.npy").unlink()
    (tmp_path / "y_train.npy").unlink()
    assert refused(read_file, tmp_path, None).startswith(f"{tmp_path}: has no array x_train, only 'x_test', 'y_test'")
    np.save(tmp_path / "x.npy", x)
    assert refused(load_records, str(tmp_path)) == f"{tmp_path}: has both x and x_test; keep the one with the records"


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_tables_are_read_some_rows_at_a_time(tmp_path, kind, monkeypatch):
    """64 bytes at once are two rows and a half of three columns."""
    monkeypatch.setattr(tables, "AT_ONCE", 64)

    def write(**columns):
        table, path = pa.table(columns), tmp_path / ("t.parquet" if kind == "parquet" else "t.arrow")
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=7)
            return path
        with (pa.ipc.new_file if kind == "file" else pa.ipc.new_stream)(str(path), table.schema) as sink:
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
