"""``dpltm predict``: classes and probabilities for records without labels, against the same network computed by hand."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
NAMES = [f"pixel{number}" for number in range(64)]
RNG = np.random.default_rng(0)
X = load_digits().images[4::5][:37].astype(np.uint8)  # held out; the bounds of digits are 0 and 16


@pytest.fixture(scope="module")
def run(made, tmp_path_factory):
    """A run of pub@1 (mlp:8 on 64 features), trained for a few steps without noise, so that it tells classes apart."""
    from dpltm.cli.main import run as call

    folder = tmp_path_factory.mktemp("run") / "r"
    options = ("--steps", "60", "--noise-multiplier", "0", "--lr", "2", "--ledger", folder.parent / "l", "--quiet")
    assert call([str(part) for part in ("train", made / "pub@1", *PRIVATE, *options, "--out", folder)]) == 0
    return folder


@pytest.fixture
def x(cwd):
    """``x.npz``, the records to predict."""
    np.savez(cwd / "x.npz", x=X)
    return "x.npz"


def by_hand(run, x):
    """Softmax of the two layers, in double precision, with no code of ours."""
    values = {name: value.astype(np.float64) for name, value in load_file(run / "model.safetensors").items()}
    weights = [values[name] for name in sorted(values) if name.endswith("weight")]
    biases = [values[name] for name in sorted(values) if name.endswith("bias")]
    hidden = np.clip(x.reshape(len(x), -1).astype(np.float64), 0, 16) / 16
    hidden = np.maximum(hidden @ weights[0].T + biases[0], 0)
    outputs = hidden @ weights[1].T + biases[1]
    powers = np.exp(outputs - outputs.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def read_csv(path):
    header, *rows = Path(path).read_text(encoding="utf-8").splitlines()
    cells = [row.split(",") for row in rows]
    return header, [cell[0] for cell in cells], np.array([[np.float32(text) for text in cell[1:]] for cell in cells])


# --- what comes out ---


def test_csv_and_npz(cli, run, x):
    """The header, whole labels, and every bit of the probabilities in both."""
    expected = by_hand(run, X)
    body = cli("predict", run, "--input", x, "-o", "p.csv", "--json").json
    assert body == {"run": str(run), "input": x, "records": 37, "output": "p.csv", "saturated": 0}
    header, labels, probabilities = read_csv("p.csv")
    assert header == "label,p0,p1,p2,p3,p4,p5,p6,p7,p8,p9"
    assert labels == [str(label) for label in expected.argmax(1)]
    np.testing.assert_allclose(probabilities, expected, rtol=1e-4, atol=1e-7)
    assert len(set(labels)) > 3, "a network that always answers alike would show nothing"
    assert cli("predict", run, "--input", x, "--out", "p.npz", "--json").json == body | {"output": "p.npz"}
    with np.load("p.npz") as archive:
        assert sorted(archive.files) == ["label", "probabilities"]
        found, label = archive["probabilities"], archive["label"]
    assert (label.dtype, found.dtype, found.shape) == (np.int64, np.float32, (37, 10))
    assert np.array_equal(found, probabilities)
    assert [str(value) for value in label] == labels


def test_agrees_with_evaluate(cli, run):
    from dpltm.data import load

    held_out = load("digits").test
    np.savez("held.npz", x_test=held_out.x, y_test=held_out.y)
    cli("predict", run, "--input", "held.npz", "-o", "p.npz", "--quiet")
    judged = cli("evaluate", run, "--dataset", "digits", "--json").json
    with np.load("p.npz") as archive:
        assert (archive["label"] == held_out.y).mean() == judged["accuracy"]


def test_words_for_people(cli, run, x, monkeypatch):
    """A message on a terminal; the table; nothing of either with --quiet."""
    np.savez("wild.npz", x=X.astype(np.int16) - 1)
    below = int((X == 0).sum())
    monkeypatch.setattr("dpltm.cli.console.Console._talks", property(lambda self: not self._quiet))
    done = cli("predict", run, "--input", "wild.npz", "-o", "p.csv")
    assert f"{below} values of wild.npz saturate: the run's bounds are 0,16\n" in done.err
    for name, value in (("records", "37"), ("output", "p.csv"), ("saturated", str(below))):
        assert any(line.replace("│", " ").split() == [name, value] for line in done.out.splitlines())
    assert "saturate" not in cli("predict", run, "--input", x, "-o", "q.csv").err
    quiet = cli("predict", run, "--input", "wild.npz", "-o", "r.csv", "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


def test_one_file_more_and_nothing_else(cli, run, x, tree):
    """No ledger grows, no key is made, nothing hidden is left behind; missing folders are made."""
    before = tree()
    kept = {path.name: path.read_bytes() for path in run.iterdir()}
    assert cli("predict", run, "--input", x, "-o", "new/folder/p.csv", "--quiet").code == 0
    after = tree()
    assert set(after) - set(before) == {"new", "new/folder", "new/folder/p.csv"}
    assert {name: after[name] for name in before} == before
    assert {path.name: path.read_bytes() for path in run.iterdir()} == kept


def test_a_configuration_file_fills_the_options(cli, cwd, run, x):
    (cwd / "c.toml").write_text(f'[predict]\ninput = "{x}"\nout = "p.csv"\n')
    assert cli("predict", run, "--config", "c.toml", "--json").json["output"] == "p.csv"
    assert cli("predict", run, "--config", "c.toml", "-o", "q.csv", "--json").json["output"] == "q.csv"


def test_help_says_what_it_costs(cli):
    done = cli("predict", "--help")
    words = " ".join(done.out.split())
    assert "predictions are post-processing of the run and cost nothing" in words
    assert "as sensitive as they are" in words
    assert "-o" in done.out


# --- what goes in ---


@pytest.mark.parametrize("kind", ["x_test", "flat", "csv", "csv with labels", "parquet"])
def test_kinds_of_input(cli, cwd, run, x, kind):
    """The same records in every form give the same bits. A column that is left out may hold anything."""
    flat, labels, options = X.reshape(37, 64), [f"class {number}" for number in range(37)], ()
    name = "again.npz"
    if kind == "x_test":
        np.savez(name, x_test=X, y_test=np.zeros(3), x_train=np.zeros(2))
    elif kind == "flat":
        np.savez(name, x=flat.astype(np.float16))
    elif kind == "parquet":
        name, options = "again.parquet", ("--label", "kind")
        columns = [*flat.T[:5], pa.array(labels), *flat.T[5:]]
        pq.write_table(pa.table(columns, names=[*NAMES[:5], "kind", *NAMES[5:]]), cwd / name)
    else:
        name, labelled = "again.csv", kind == "csv with labels"
        options = ("--label", "kind") if labelled else ()
        rows = [NAMES, *flat.tolist()]
        if labelled:
            rows = [[*row[:5], label, *row[5:]] for row, label in zip(rows, ["kind", *labels], strict=True)]
        (cwd / name).write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
    for file, out, more in ((x, "p.csv", ()), (name, "q.csv", options)):
        assert cli("predict", run, "--input", file, *more, "-o", out, "--json").json["records"] == 37
    assert Path("q.csv").read_bytes() == Path("p.csv").read_bytes()


def test_columns_named_by_numbers(cli, cwd, run):
    """As a table without names is often saved: 0,1,2,...; a record in their place is refused, for it would be lost."""
    rows = "\n".join(",".join(map(str, row)) for row in X.reshape(37, 64).tolist())
    (cwd / "numbered.csv").write_text(",".join(map(str, range(64))) + "\n" + rows + "\n")
    assert cli("predict", run, "--input", "numbered.csv", "-o", "p.csv", "--json").json["records"] == 37


def test_a_run_behind_scattering(cli, cwd, tmp_path, monkeypatch):
    """The map of the run, called directly, for images and for rows of a table; nothing of the records is cached."""
    import torch

    from dpltm.tickets.run import load_run

    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    fixed = ("--dense", "--model", "mlp", "--features", "scatter:1,4", "--steps", "8", "--noise-multiplier", "1")
    cli("train", *fixed, *PRIVATE, "--out", "s", "--quiet")
    cached = sorted(cache.rglob("*"))
    assert cached, "training keeps its features there"
    np.savez("x.npz", x=X)
    np.savez("channel.npz", x=X[..., None])
    rows = [NAMES, *X.reshape(37, 64).tolist()]
    (cwd / "x.csv").write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
    names = ("x.npz", "channel.npz", "x.csv")
    for name in names:
        cli("predict", "s", "--input", name, "-o", f"{name}.out.npz", "--quiet")
    assert sorted(cache.rglob("*")) == cached
    run = load_run(Path("s"))
    assert run.feature_map is not None
    with torch.no_grad():
        expected = run.model(run.feature_map(X)).softmax(1).numpy()
    assert np.ptp(expected[:, 0]) > 1e-3
    for name in names:
        with np.load(f"{name}.out.npz") as archive:
            np.testing.assert_allclose(archive["probabilities"], expected, rtol=1e-4)


# --- refusals ---

ARRAYS = {
    "both": ({"x": X, "x_test": X}, "bad.npz: has both x and x_test; keep the one with the records"),
    "neither": (
        {"x_train": X, "y_train": X[:, 0, 0]},
        "bad.npz: has neither array x nor x_test, only 'x_train', 'y_train'; save the records as x",
    ),
    "another width": (
        {"x": X[:, :7]},
        "--input: bad.npz has records of shape (7, 8), but RUN takes (64,); use records of the same shape, or their 64"
        " values in a row",
    ),
    "nan": (
        {"x": np.where(np.arange(64).reshape(8, 8) == 9, np.nan, X)},
        "bad.npz: x has nan at record 0, feature 9 (counted from 0); features must be finite; replace the value or drop the"
        " record",
    ),
    "one record without its axis": (
        {"x": X[0, 0]},
        "bad.npz: x has shape (8,); expected (records, features...); reshape it, one record a row",
    ),
    "no records": (
        {"x_test": X[:0]},
        "bad.npz: x_test has shape (0, 8, 8) and holds no data; give a file with records and features",
    ),
    "texts": (
        {"x": X.astype(str)},
        "bad.npz: x has dtype <U3; expected bool, integers or floats of 64 bits or fewer; convert it",
    ),
    "objects": (
        {"x": np.array([[1], ["a"]], dtype=object)},
        "bad.npz: x holds Python objects; save it again as an array of numbers",
    ),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_are_no_records(cwd, refused, run, case):
    arrays, message = ARRAYS[case]
    np.savez(cwd / "bad.npz", **arrays)
    assert refused("predict", run, "--input", "bad.npz", "-o", "p.csv") == message.replace("RUN", str(run))


ROW = ",".join(["1"] * 64)
TABLES = {
    "a text": (
        ",".join(NAMES) + "\n" + ROW.replace("1", "high", 1) + "\n",
        (),
        "bad.csv: line 2, column 'pixel0' holds 'high'; every cell must be a number; encode or drop it",
    ),
    "a short line": (
        ",".join(NAMES) + "\n" + ROW + "\n1,2\n",
        (),
        "bad.csv: line 3 has 2 cells but the header has 64; give every line one cell a column",
    ),
    "no header": (
        ROW + "\n" + ROW + "\n",
        (),
        "bad.csv: its first line holds numbers where names of columns belong; add a header line",
    ),
    "no header over fractions": (
        "0.5,1\n0.25,2\n",
        (),
        "bad.csv: its first line holds numbers where names of columns belong; add a header line",
    ),
    "nothing": ("", (), "bad.csv: is empty; expected a header line and records"),
    "no such column": ("a,b\n1,2\n", ("--label", "c"), "--label c: bad.csv has no such column; it has 'a', 'b'"),
    "only that column": (
        "a\n1\n",
        ("--label", "a"),
        "--label a: bad.csv has no other column; give one that has the features",
    ),
    "a label among the features": (
        ",".join([*NAMES, "kind"]) + "\n" + ROW + ",3\n",
        (),
        "--input: bad.csv has records of shape (65,), but RUN takes (64,); use records of the same shape, or their 64"
        " values in a row",
    ),
    "infinity": (
        ",".join(NAMES) + "\n" + ROW + "\n" + ROW.replace("1", "inf", 1) + "\n",
        (),
        "bad.csv: the feature table has inf at record 1, column 'pixel0' (counted from 0); features must be finite; replace"
        " the value or drop the record",
    ),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_that_are_no_records(cwd, refused, run, case):
    text, options, message = TABLES[case]
    (cwd / "bad.csv").write_text(text)
    assert refused("predict", run, "--input", "bad.csv", *options, "-o", "p.csv") == message.replace("RUN", str(run))


def test_parquet_that_is_no_records(cwd, refused, run):
    pq.write_table(pa.table({"a": ["x"], "b": [1.0]}), cwd / "bad.parquet")
    assert refused("predict", run, "--input", "bad.parquet", "-o", "p.csv") == (
        "bad.parquet: column 'a' has type string; every column must be numeric; encode or drop it"
    )
    assert refused("predict", run, "--input", "bad.parquet", "--label", "b", "-o", "p.csv") == (
        "bad.parquet: column 'a' has type string; every column must be numeric; encode or drop it"
    )


def test_files_and_names(cwd, refused, run, x):
    (cwd / "p.csv").write_text("precious")
    predict = ("predict", run, "--input", x)
    ready = "name a folder made by dpltm train --out pub"
    assert refused("predict", "--input", x, "-o", "q.csv") == "RUN is missing: Folder of the run."
    assert refused("predict", "pub", "--input", x, "-o", "q.csv") == f"pub: not a run (no config.json in it); {ready}"
    assert refused("predict", run, "-o", "q.csv").startswith("--input is missing: ")
    assert refused(*predict).startswith("--out is missing: ")
    assert refused(*predict, "-o", "p.csv") == "--out: p.csv exists already; choose another name or remove it first"
    assert refused(*predict, "-o", "p.json") == "--out: p.json is neither .csv nor .npz; name it p.csv or p.npz"
    assert refused(*predict, "-o", "p") == "--out: p is neither .csv nor .npz; name it p.csv or p.npz"
    assert refused(*predict, "-o", "p.csv/q.csv").startswith("p.csv/q.csv: cannot be written: ")
    assert (
        refused(*predict, "--label", "y", "-o", "q.csv") == "--label y: x.npz is .npz and has no columns; drop --label"
    )
    assert refused("predict", run, "--input", "no.npz", "-o", "q.csv") == (
        "--input no.npz: no such file; correct the path"
    )
    assert refused("predict", run, "--input", "pub", "-o", "q.csv") == (
        "--input pub: is a folder; give a file in it that ends in .npz, .csv or .parquet"
    )
    assert refused("predict", run, "--input", "digits", "-o", "q.csv") == (
        "--input digits: unknown kind of file; give one that ends in .npz, .csv or .parquet"
    )
    np.save(cwd / "one.npy", X)
    (cwd / "one.npy").rename(cwd / "one.npz")
    assert refused("predict", run, "--input", "one.npz", "-o", "q.csv") == (
        "one.npz: holds a single array; save it with numpy.savez(x=...)"
    )


@pytest.mark.parametrize(("name", "writer"), [("new/p.csv", "savetxt"), ("new/p.npz", "savez")])
def test_a_full_disk_leaves_nothing(refused, run, x, monkeypatch, name, writer):
    """Half is written when the disk is full; the file goes again, and so does the folder that was made for it."""

    def fail(stream, *arguments, **options):
        del arguments, options
        stream.write(b"label,")
        stream.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, writer, fail)
    assert refused("predict", run, "--input", x, "-o", name) == (
        "No space left on device; check the path and the disk"
    )
