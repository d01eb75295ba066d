"""load: golden facts of the known datasets, public inputs and where they come from, OpenML, and each refusal."""

import hashlib
import json
from functools import partial
from urllib.error import URLError

import numpy as np
import pytest
from sklearn.utils import Bunch

from dpltm.cli.main import run
from dpltm.privacy.entry import HASHES, Part
from dpltm.privacy.ledger import Ledger
from dpltm.records import Description, Public, catalogue, from_arrays, load
from dpltm.records import data_home as default_home
from dpltm.records.load import convert
from dpltm.records.notes import bounds_notes, public_input_notes
from dpltm.records.schema import parse_schema
from opened import arrays_of, load_from
from refusals import refused

X = np.arange(24, dtype=np.uint8).reshape(6, 2, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


@pytest.fixture
def write(tmp_path):
    """Writes t.npz, with X and Y where nothing else is given, and returns its path as text."""

    def write_npz(name="t", **arrays):
        path = tmp_path / f"{name}.npz"
        np.savez(path, **{"x_train": X, "y_train": Y} | arrays)
        return str(path)

    return write_npz


def test_digits():
    """Every fifth record is held out. Parts are named by hashes, in ledgers and in what people write down: golden."""
    from sklearn.datasets import load_digits

    everything, digits = load_digits(), load("digits")
    assert np.array_equal(arrays_of(digits.test).x, everything.images[4::5])
    assert np.array_equal(arrays_of(digits.test).y, everything.target[4::5])
    assert np.array_equal(arrays_of(digits.train).x[:5], everything.images[[0, 1, 2, 3, 5]])
    assert (arrays_of(digits.train).x.shape, arrays_of(digits.test).x.shape) == ((1438, 8, 8), (359, 8, 8))
    assert digits.train.dtype == np.uint8
    assert np.bincount(arrays_of(digits.train).y).tolist() == [151, 161, 143, 131, 147, 154, 150, 136, 127, 138]
    assert (digits.name, digits.classes, digits.bounds, digits.records) == ("digits", 10, (0, 16), 1438)
    assert (digits.classes_origin, digits.records_origin, digits.features) == ("described", "described", 64)
    assert (digits.part, digits.published_id() is None) == (Part("digits"), False)
    assert digits.rows.public_hashes()[:4].tolist() == [825122987, 345804538, 840601051, 43289652]


@pytest.mark.parametrize(
    ("name", "train", "test", "dtype"),
    [
        ("mnist", (60000, 28, 28), 10000, np.uint8),
        ("cifar10-12k", (10000, 32, 32, 3), 2000, np.uint8),
        ("isolet", (6238, 617), 1559, np.float32),
        ("imdb", (25000, 256), 25000, np.int32),
    ],
)
def test_files_of_the_data_home(data_home, name, train, test, dtype):
    if not (data_home / f"{name}.npz").is_file():
        pytest.skip(f"{name}.npz is not in the data home")
    found, known = load_from(data_home, name), catalogue()[name]
    assert (arrays_of(found.train).x.shape, arrays_of(found.test).x.shape) == (train, (test, *train[1:]))
    assert found.train.dtype == found.test.dtype == dtype
    assert (found.bounds, found.classes, found.records) == (known.bounds, known.classes, known.records)
    assert (found.classes_origin, found.records_origin) == ("described", "described")
    assert len(np.unique(arrays_of(found.train).y)) == known.classes
    if name == "mnist":  # as published
        counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        assert np.bincount(arrays_of(found.train).y).tolist() == counts
        assert arrays_of(found.train).y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
        assert arrays_of(found.train).x.mean() / 255 == pytest.approx(0.1307, abs=5e-5)


def test_data_home(tmp_path, monkeypatch, write):
    monkeypatch.setenv("DPLTM_DATA", str(tmp_path))
    write("mine")
    assert default_home() == tmp_path
    assert load("mine").name == "mine"
    monkeypatch.delenv("DPLTM_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert default_home() == tmp_path / "c" / "dpltm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "h"))
    assert default_home() == tmp_path / "h" / ".cache" / "dpltm"


def test_known_name_without_its_file(tmp_path, write):
    """Or with one that is not the published one, whose size is not described."""
    path = write("kmnist-7k", x_train=np.zeros((20, 2), dtype=np.uint8), y_train=np.arange(20) % 10)
    ds = load_from(tmp_path, "kmnist-7k")
    assert (ds.records, ds.records_origin, ds.classes, ds.classes_origin) == (20, "counted", 10, "described")
    assert (load(path).name, load(path).classes_origin) == ("kmnist-7k", "counted")  # by a path it is any file
    assert refused(load_from, tmp_path, "a9a") == (
        f"a9a: no a9a.npz (Adult income, 123 binary features) in {tmp_path}; put it there, or export DPLTM_DATA=FOLDER"
    )


def test_inputs_of_an_unknown_file(write):
    """Bytes and truths have a public range; other types need one."""
    assert load(write(x_train=X > 3)).bounds == (0, 1)
    ds = load(write())
    assert (ds.bounds, ds.classes, ds.records) == ((0, 255), 3, 6)
    assert (ds.classes_origin, ds.records_origin) == ("counted", "counted")
    assert ds.test is None
    for dtype in (np.float32, np.int8, np.uint16, ">f4"):
        path = write(x_train=X.astype(dtype))
        assert refused(load, path) == (
            f"{path}: x_train is {np.dtype(dtype)}, which has no public range; pass `bounds` LO,HI"
        )
        ds = load(path, bounds=(-3, 30))
        assert ds.bounds == (-3, 30)
        assert ds.train.dtype == np.dtype(dtype).newbyteorder("=")
        assert np.array_equal(arrays_of(ds.train).x, X)


def test_declared_inputs_win():
    ds = load("digits", bounds=(0, 20), classes=12, records=1400)
    assert (ds.bounds, ds.classes, ds.records) == ((0, 20), 12, 1400)
    assert (ds.classes_origin, ds.records_origin) == ("declared", "declared")
    assert len(ds.train) == 1438
    part = load("digits", subset="0.5", records=700)
    assert (len(part.train), part.records, part.records_origin) == (734, 700, "declared")
    assert refused(load, "digits", classes=1) == "`classes` 1: must be 2 or more; pass the public number of classes"
    said = "`records` 0: must be 1 or more; pass the public number of records"
    assert refused(load, "digits", records=0) == said


@pytest.mark.parametrize(
    ("subset", "part", "records"),
    [
        ("100:400", Part("digits", None, (), "place", 100, 400), 300),
        ("0.25:0.75", Part("digits", None, (), "record", HASHES // 4, 3 * HASHES // 4), 719),
        (":", Part("digits", None, (), "place", 0, 1438), 1438),
        ("0.825122987:", Part("digits", None, (), "record", 825122987, HASHES), 251),  # the hash of the first record
        (":0.345804538", Part("digits", None, (), "record", 0, 345804538), 497),  # the second
    ],
)
def test_subset(subset, part, records):
    """Of what the publication has, the share is public; how many hashes fall into it is not."""
    whole, found = load("digits"), load("digits", subset=subset)
    numbers = np.arange(1438) if part.cut == "place" else whole.rows.public_hashes()
    inside = (numbers >= part.start) & (numbers < part.stop)
    assert found.part == part
    assert whole.part.cut == "whole" != found.part.cut
    assert np.array_equal(arrays_of(found.train).x, arrays_of(whole.train).x[inside])
    assert np.array_equal(arrays_of(found.train).y, arrays_of(whole.train).y[inside])
    assert (found.records, found.records_origin) == (records, "described")
    assert (len(found.train) == records) == (part.cut == "place")
    assert np.array_equal(arrays_of(found.test).x, arrays_of(whole.test).x)
    assert found.content_digest() == whole.content_digest(), "known by the whole"
    assert found.published_id() == whole.published_id()
    assert (found.bounds, found.classes) == (whole.bounds, whole.classes)


def test_subset_errors(write):
    said = "`subset` 0:1439: digits has records 0 to 1438; give a range inside that is not empty"
    assert refused(load, "digits", subset="0:1439") == said
    path = write(y_train=np.array([0, 0, 1, 0, 1, 0]))  # hashes 0.85, 0.86, 0.64, 0.98, 0.79 and 0.42
    assert refused(load, path, subset="0.85:1.0") == (
        "`subset` 0.85:1.0: t has one label in all of its records; give records of two classes or more, or a wider `subset`"
    )
    said = "`subset` 0.5: t has fewer records than its 2 classes; give as many or more"
    assert refused(load, path, subset="0.5") == said
    assert refused(load, path, subset="0.4") == "`subset`: no record of t falls into that part; take a wider one"
    assert len(load(path, subset="0.4:0.8").train) == 3


SHARED = (
    "so accuracy there would show private records; take them out, measure with `eval_private`, or say `rows_coincide` where"
    " records of different people may well be equal"
)


@pytest.mark.parametrize(("shared", "extra"), [(1, 0), (1, 5), (6, 5)])
def test_training_records_are_in_no_test_split(write, shared, extra):
    """Some of them are enough, among whatever else: accuracy there would be a look at them."""
    x, y = np.concatenate([X[:shared], X[:extra] + 100]), np.concatenate([Y[:shared], Y[:extra]])
    held_out, path = write("held-out", x_train=x, y_train=y), write(x_test=x, y_test=y)
    found = f"`test`: t: {shared} of the {len(x)} records of"
    assert refused(load, path) == f"{found} {path} are training records of {path}, {SHARED}"
    assert refused(load, path, subset="0.8") == refused(load, path, subset="0.8:1.0") == refused(load, path)
    if len(set(y)) == 3:
        path = write()
        assert refused(load, path, test=held_out) == f"{found} {held_out} are training records of {path}, {SHARED}"


def test_a_publication_says_that_its_splits_are_separate(tmp_path, write):
    """Who is in both was published so; a test split of the user's own is looked at, and has an entry."""
    x = np.arange(7011 * 2).reshape(-1, 2)
    write("kmnist-7k", x_train=x, y_train=np.arange(7011) % 10, x_test=x[:4], y_test=np.arange(4))
    assert len(load_from(tmp_path, "kmnist-7k").test) == 4
    write("kmnist-7k", x_train=x[1:], y_train=np.arange(1, 7011) % 10, x_test=x[:4], y_test=np.arange(4))
    assert "`test`: kmnist-7k: 3 of the 4 records" in refused(load_from, tmp_path, "kmnist-7k")
    write("kmnist-7k", x_train=x, y_train=np.arange(7011) % 10)
    mine = write("mine", x_train=x[:4], y_train=np.arange(4))
    assert "`test`: kmnist-7k: 4 of the 4 records" in refused(load_from, tmp_path, "kmnist-7k", test=mine)
    snapshots = set()
    for others in (-x[:4], -x[1:5]):
        mine = write("mine", x_train=others, y_train=np.arange(4))
        (entry,) = Ledger().apart(load_from(tmp_path, "kmnist-7k", test=mine, bounds=(-20_000, 20_000)))
        snapshots.add((entry.kind, entry.part.snapshot))
    assert len(snapshots) == 2, "each file has its own"


FINITE = "(counted from 0); features must be finite"


def test_declared_classes_and_bounds_decide(write, tmp_path):
    assert load(write(), classes=4).classes == 4
    path = write(x_test=X / np.float32(255), y_test=Y)
    assert arrays_of(load(path, bounds=(0, 255)).test).x.dtype == np.float32
    known = parse_schema(
        '[column.a]\nkind = "number"\nbounds = [0, 1]\n[column.y]\nkind = "label"\nclasses = ["no", "yes"]', ""
    )
    (tmp_path / "n.csv").write_text("a,y\n" + "0.5,no\n" * 9)
    said = "n has one label in all of its records; give records of two classes or more, or a wider `subset`"
    assert refused(load, str(tmp_path / "n.csv"), schema=known) == said


def csv(folder, name, content):
    (folder / f"{name}.csv").write_text(content)
    return str(folder / f"{name}.csv")


def test_csv_with_test_split(tmp_path):
    train, test = csv(tmp_path, "train", "a,b,y\n1,2,0\n3,4,1\n"), csv(tmp_path, "test", "a,y,b\n5,1,6\n")
    ds = load(train, label="y", test=test, bounds=(0, 10))
    assert ds.name == "train"
    assert arrays_of(ds.train).x.tolist() == [[1, 2], [3, 4]]
    assert (arrays_of(ds.test).x.tolist(), arrays_of(ds.test).y.tolist()) == ([[5, 6]], [1])
    swapped = load(train, label="y", test=csv(tmp_path, "other", "b,a,y\n6,5,1\n"), bounds=(0, 10))
    assert arrays_of(swapped.test).x.tolist() == [[5, 6]]
    assert swapped.columns == ("a", "b")
    for header, fault in (
        ("a,c,y", "lacks 'b'; it has, beside those, 'c'"),
        ("a,y", "lacks 'b'"),
        ("a,b,c,y", "has, beside those, 'c'"),
    ):
        path = csv(tmp_path, "other", f"{header}\n{','.join('1' for _ in header.split(','))}\n")
        said = f"{path}: its columns are not those of {train}: it {fault}; give the same"
        assert refused(load, train, label="y", test=path, bounds=(0, 9)) == said
    twice = csv(tmp_path, "twice", "a,b,b,y\n1,1,1,1\n")
    for call in (partial(load, twice), partial(load, train, test=twice)):
        assert refused(call, label="y", bounds=(0, 9)) == f"{twice}: has twice the columns 'b'; rename one of them"
    path = csv(tmp_path, "nan", "a,y,b\n1,0,2\n3,1,nan\n")
    fault = f"{path}: the feature table has nan at record 1, column 'b' {FINITE}"
    assert refused(load, path, label="y", bounds=(0, 1)) == fault


def test_npz_with_test_option(write):
    path, test = write(), write("held-out", x_train=X[:2] + 100, y_train=Y[:2])
    assert len(load(path, test=test).test) == 2
    both = write("both", x_test=X, y_test=Y)
    assert refused(load, both, test=test) == f"`test` {test}: {both} has a test split of its own; drop `test`"
    assert refused(load, "digits", test=test) == f"`test` {test}: digits has a test split of its own; drop `test`"
    for text in ("held-out.csv", "1.5", "0"):
        said = f"`test` {text}: is no .npz file, as {path} is, and no fraction such as 0.2"
        assert refused(load, path, test=text) == said
    assert refused(load, path, test="none.npz") == "`test` none.npz: no such file; correct the path"


NOTE = (
    "nobody gave the bounds of mine, so 0 to 255 is assumed, all that a byte can hold; if their values have another range,"
    " declare them with `bounds` LO,HI"
)


@pytest.mark.parametrize("values", [np.zeros(20), np.arange(20) % 16, np.arange(20) + 230], ids=["0", "15", "249"])
def test_bytes_of_any_value(values):
    dataset = from_arrays(values.astype(np.uint8)[:, None], np.arange(20) % 4, classes=4, records=20, name="mine")
    assert (dataset.bounds, dataset.bounds_origin) == ((0.0, 255.0), "assumed")
    assert bounds_notes(dataset) == public_input_notes(dataset) == [NOTE]


PLAIN = Description("plain", "", "vector", (2,), (-1.0, 1.0), 3, 4, openml_test=2, first_label=1)
COLOUR = Description("colour", "", "image", (2, 2, 3), (0.0, 255.0), 2, 1, openml_test=1)


def table(**changes):
    data = np.linspace(-1, 1, 12).reshape(6, 2)
    target = np.array(["1", "2", "3", "1", "2", "3"], dtype=object)
    return Bunch(**{"data": data, "target": target} | changes)


def test_trailing_rows_are_the_test_split():
    bunch = table()
    train, test = convert(bunch, PLAIN)
    assert np.array_equal(train.x, bunch.data[:4].astype(np.float32))
    assert np.array_equal(test.x, bunch.data[4:].astype(np.float32))
    assert train.x.dtype == np.float32
    assert train.y.tolist() == [0, 1, 2, 0]
    assert test.y.tolist() == [1, 2]
    assert (test.x_name, test.y_name) == ("x_test", "y_test")


def test_bytes_become_bytes_and_colours_go_last():
    planes = np.arange(24, dtype=np.float64).reshape(2, 12)
    train, test = convert(Bunch(data=planes, target=np.array(["0", "1"])), COLOUR)
    assert train.x.dtype == np.uint8
    assert train.x[0].tolist() == [[[0, 4, 8], [1, 5, 9]], [[2, 6, 10], [3, 7, 11]]]
    assert test.x[0, 0, 0].tolist() == [12, 16, 20]
    for odd in (0.5, -1.0, 256.0, np.nan):
        train, _ = convert(Bunch(data=np.full((2, 12), odd), target=np.array(["0", "1"])), COLOUR)
        assert train.x.dtype == np.float32
        assert np.array_equal(train.x, np.full((1, 2, 2, 3), odd), equal_nan=True)


def test_a_table_of_another_name_is_refused(tmp_path, monkeypatch):
    """An id alone says little; names are compared without case."""
    for name, said in (
        ("mnist_784", "expected Kuzushiji-MNIST;"),
        ("kuzushiji-mnist", "OpenML kmnist: the table has changed"),
    ):
        monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda name=name, **_: table(details={"name": name}))
        assert said in refused(load_from, tmp_path, "kmnist")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"data": np.zeros((6, 3))}, "cannot reshape array of size 18 into shape (6,2)"),
        ({"target": ["1", "2", "3", "1", "2", "cat"]}, "could not convert string to float: 'cat'"),
        ({"data": np.full((6, 2), "cat", dtype=object)}, "could not convert string to float: 'cat'"),
    ],
)
def test_tables_that_have_changed(changes, fault):
    said = f"OpenML plain: the table has changed ({fault}); put plain.npz into the data home instead"
    assert refused(convert, table(**changes), PLAIN) == said


def test_without_network_it_says_where_to_put_the_file(tmp_path, monkeypatch):
    def unreachable(**_):
        raise URLError("no network")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", unreachable)
    assert refused(load_from, tmp_path, "fashion-mnist") == (
        "fashion-mnist: OpenML dataset 40996 could not be fetched (<urlopen error no network>);"
        f" put fashion-mnist.npz (x_train, y_train, x_test, y_test) into {tmp_path}"
    )


def test_fetch_keeps_a_file_that_later_commands_read(tmp_path, monkeypatch, capsys):
    """Without OpenML, which tests cannot reach, from then on."""
    draw, calls = np.random.default_rng(0), list[int]()
    data = (draw.integers(-1000, 1001, (7797, 617)) / 1000).astype(np.float32)
    whole = Bunch(data=data, target=np.arange(7797) % 26 + 1, details={"name": "isolet"})

    def once(data_id, **_):
        calls.append(data_id)
        return whole

    monkeypatch.setattr("sklearn.datasets.fetch_openml", once)
    monkeypatch.setenv("DPLTM_DATA", str(tmp_path / "home"))
    told = []
    for _ in range(2):
        assert run(["datasets", "fetch", "isolet", "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert calls == [300]
    assert [one["fetched"] for one in told] == [True, False]
    assert (
        told[0]["sha256"]
        == told[1]["sha256"]
        == hashlib.sha256((tmp_path / "home" / "isolet.npz").read_bytes()).hexdigest()
    )
    x, y = load("isolet").train.open(Public("a test"))
    assert np.array_equal(x, data[:6238])
    assert np.array_equal(y, np.arange(6238) % 26)
    assert run(["datasets", "fetch", "isolt"]) == 2
    assert "did you mean isolet?" in capsys.readouterr().err
