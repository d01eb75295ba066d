"""Reading files: what round-trips, and one line for each way a file can be wrong."""

import builtins
import io
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.data.files import read_file, read_test
from dpltm.errors import DataError

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0, 1, 0, 1])


def refused(path, label=None):
    with pytest.raises(DataError) as caught:
        read_file(path, label)
    message = str(caught.value)
    assert "\n" not in message
    return message


def text(tmp_path, content, name="t.csv"):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    return path


def npz(tmp_path, **arrays):
    path = tmp_path / "t.npz"
    np.savez(path, **arrays)
    return path


# --- any file ---


def test_missing_folder_and_kind(tmp_path):
    missing, folder, kind = tmp_path / "no.npz", tmp_path / "folder", tmp_path / "t.txt"
    folder.mkdir()
    assert refused(missing) == f"`dataset` {missing}: no such file; correct the path"
    assert refused(folder, "y") == (
        f"`dataset` {folder}: is a folder; give a file in it that ends in .npz, .csv or .parquet"
    )
    assert refused(kind) == (f"`dataset` {kind}: unknown kind of file; give one that ends in .npz, .csv or .parquet")


# --- npz ---


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32, np.float16, np.float64])
def test_npz_keeps_arrays_as_stored(tmp_path, dtype):
    train, test = read_file(npz(tmp_path, x_train=X.astype(dtype), y_train=Y, x_test=X[:2], y_test=Y[:2]), None)
    assert train.x.dtype == dtype
    assert np.array_equal(train.x, X.astype(dtype))
    assert np.array_equal(train.y, Y)
    assert np.array_equal(test.x, X[:2])


def test_npz_without_test_split(tmp_path):
    assert read_file(npz(tmp_path, x_train=X, y_train=Y), None)[1] is None


def test_npz_of_test_option(tmp_path):
    assert len(read_test(npz(tmp_path, x_train=X, y_train=Y), None).x) == 4
    assert len(read_test(npz(tmp_path, x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2]), None).x) == 2


@pytest.mark.parametrize(
    ("arrays", "missing", "only"),
    [
        ({"x_train": X}, "y_train", "'x_train'"),
        ({"data": X, "target": Y}, "x_train", "'data', 'target'"),
        ({"x_train": X, "y_train": Y, "x_test": X}, "y_test", "'x_train', 'y_train', 'x_test'"),
        ({"x_train": X, "y_train": Y, "y_test": Y}, "x_test", "'x_train', 'y_train', 'y_test'"),
    ],
)
def test_npz_missing_array(tmp_path, arrays, missing, only):
    path = npz(tmp_path, **arrays)
    assert refused(path) == f"{path}: has no array {missing}, only {only}; save it under that name"


def test_npz_is_never_unpickled(tmp_path):
    path = npz(tmp_path, x_train=np.array([[1], ["a"]], dtype=object), y_train=Y)
    assert refused(path) == f"{path}: x_train holds Python objects; save it again as an array of numbers"


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 no", pickle.dumps([1])])
def test_npz_that_is_none(tmp_path, content):
    path = tmp_path / "t.npz"
    path.write_bytes(content)
    assert refused(path) == f"{path}: is not a NumPy archive that can be read; save it with numpy.savez"


def test_npz_that_is_a_single_array(tmp_path):
    path = tmp_path / "t.npz"
    with path.open("wb") as stream:
        np.save(stream, X)
    assert refused(path) == f"{path}: holds a single array; save it with numpy.savez(x_train=..., y_train=...)"


def test_npz_with_label_option(tmp_path):
    path = npz(tmp_path, x_train=X, y_train=Y)
    assert refused(path, "y") == f"`label` y: {path} is .npz and names its labels y_train; drop `label`"


def test_npz_damaged_inside(tmp_path):
    path = npz(tmp_path, x_train=X, y_train=Y)
    content = bytearray(path.read_bytes())
    content[content.index(X.tobytes()[4:]) + 4] ^= 1
    path.write_bytes(content)
    assert refused(path) == (
        f"{path}: x_train is damaged (Bad CRC-32 for file 'x_train.npy'); save it again as an array of numbers"
    )


def test_npz_that_claims_more_than_it_holds(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (2**40, 2**10)})
    path = tmp_path / "t.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train.npy", header.getvalue())
    message = refused(path)
    assert message.startswith(f"{path}: x_train is damaged (")
    assert message.endswith("); save it again as an array of numbers")


# --- csv ---


def test_csv(tmp_path):
    path = text(tmp_path, "\ufeffa,y,b\r\n1,0, 2.5\r\n\r\n-3e2,1,4\r\n")
    train, test = read_file(path, "y")
    assert train.x.tolist() == [[1, 2.5], [-300, 4]]
    assert train.y.tolist() == [0, 1]
    assert train.columns == ("a", "b")
    assert test is None


@given(st.lists(st.tuples(st.floats(allow_nan=False), st.integers(0, 9)), min_size=1, max_size=20))
def test_csv_gives_back_what_was_written(tmp_path_factory, rows):
    path = text(tmp_path_factory.mktemp("csv"), "y,a\n" + "".join(f"{y},{a!r}\n" for a, y in rows))
    train, _ = read_file(path, "y")
    assert train.x[:, 0].tolist() == [a for a, _ in rows]
    assert train.y.tolist() == [y for _, y in rows]


def test_csv_label(tmp_path):
    path = text(tmp_path, "a,y,a\n1,0,2\n")
    assert refused(path) == f"{path}: needs `label` COLUMN to name the label column; it has 'a', 'y', 'a'"
    assert refused(path, "z") == f"`label` z: {path} has no such column; it has 'a', 'y', 'a'"
    assert refused(path, "a") == f"`label` a: {path} has that column more than once; it has 'a', 'y', 'a'"


def test_csv_lists_only_some_columns(tmp_path):
    path = text(tmp_path, ",".join(f"c{i}" for i in range(100)) + "\n")
    assert refused(path, "z") == (
        f"`label` z: {path} has no such column; it has 'c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7' and 92 more"
    )


@pytest.mark.parametrize(
    ("body", "line", "column", "cell"),
    [
        ("1,0\n2,cat\n", 3, "y", "'cat'"),
        ("1,0\n,1\n", 3, "a", "''"),
        ("1,0\n\n1,0\n0x1,0\n", 5, "a", "'0x1'"),
        ('1,0\n"two\nlines",1\n', 4, "a", "'two\\nlines'"),
    ],
)
def test_csv_cell_that_is_no_number(tmp_path, body, line, column, cell):
    path = text(tmp_path, "a,y\n" + body)
    assert refused(path, "y") == (
        f"{path}: line {line}, column {column!r} holds {cell}; every cell must be a number; encode or drop it"
    )


def test_csv_ragged(tmp_path):
    path = text(tmp_path, "a,y\n1,0\n1,0,3\n")
    assert refused(path, "y") == (
        f"{path}: line 3 has 3 cells but the header has 2; give every line one cell a column"
    )


def test_csv_empty(tmp_path):
    path = text(tmp_path, "")
    assert refused(path, "y") == f"{path}: is empty; expected a header line and records"


def test_csv_that_is_no_text(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,y\n\xff\xfe,1\n")
    message = refused(path, "y")
    assert message.startswith(f"{path}: is not comma-separated text in UTF-8 ('utf-8' codec can't decode byte 0xff")
    path.write_text('a,y\n"1,0\n')
    assert refused(path, "y") == (
        f"{path}: is not comma-separated text in UTF-8 (unexpected end of data); save it as that"
    )


# --- parquet ---


def parquet(tmp_path, **columns):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'dpltm[parquet]'")
    import pyarrow.parquet as pq

    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet(tmp_path):
    path = parquet(tmp_path, a=np.array([1, 2], dtype=np.uint8), y=[0, 1], b=np.array([3, 4], dtype=np.uint8))
    train, test = read_file(path, "y")
    assert train.x.dtype == np.uint8
    assert train.x.tolist() == [[1, 3], [2, 4]]
    assert train.y.tolist() == [0, 1]
    assert train.columns == ("a", "b")
    assert test is None


def test_parquet_mixed_numbers(tmp_path):
    train, _ = read_file(parquet(tmp_path, a=[True, False], b=[0.5, 1.5], y=[0, 1]), "y")
    assert train.x.tolist() == [[1, 0.5], [0, 1.5]]


def test_parquet_columns(tmp_path):
    path = parquet(tmp_path, a=["x", "z"], y=[0, 1])
    assert refused(path, "y") == (
        f"{path}: column 'a' has type string; every column must be numeric; encode or drop it"
    )
    path = parquet(tmp_path, a=[1.0, None], y=[0, 1])
    assert refused(path, "y") == f"{path}: column 'a' has 1 nulls; fill them or drop the column"
    assert refused(path, "z") == f"`label` z: {path} has no such column; it has 'a', 'y'"


def test_parquet_that_is_none(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'dpltm[parquet]'")
    path = text(tmp_path, "hello", "t.parquet")
    message = refused(path, "y")
    assert message.startswith(f"{path}: is not a parquet file that can be read (")
    assert message.endswith("); write it again")


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    true_import = builtins.__import__

    def without_pyarrow(name, *args, **kwargs):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return true_import(name, *args, **kwargs)

    path = text(tmp_path, "", "t.parquet")
    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    assert refused(path, "y") == f"{path}: reading .parquet needs pyarrow; pip install 'dpltm[parquet]'"
