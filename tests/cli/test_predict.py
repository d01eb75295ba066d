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


def test_csv_and_npz(cli, run, x, tree):
    """The header, whole labels, and every bit of the probabilities in both; one file more and nothing else."""
    expected, before = by_hand(run, X), tree()
    kept = {path.name: path.read_bytes() for path in run.iterdir()}
    body = cli("predict", run, "--input", x, "-o", "new/folder/p.csv", "--json").json
    facts = {"run": str(run), "input": x, "records": 37, "output": "new/folder/p.csv", "saturated": 0, "notes": []}
    assert body == facts
    header, labels, probabilities = read_csv("new/folder/p.csv")
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
    after = tree()
    assert set(after) - set(before) == {"new", "new/folder", "new/folder/p.csv", "p.npz"}
    assert {name: after[name] for name in before} == before
    assert {path.name: path.read_bytes() for path in run.iterdir()} == kept


def test_values_that_saturate_are_told_on_a_terminal(cli, run, x, monkeypatch):
    np.savez("wild.npz", x=X.astype(np.int16) - 1)
    monkeypatch.setattr("dpltm.cli.console.Console._talks", property(lambda self: not self._quiet))
    done = cli("predict", run, "--input", "wild.npz", "-o", "p.csv")
    assert f"{int((X == 0).sum())} values of wild.npz saturate: the run's bounds are 0,16\n" in done.err
    assert "saturate" not in cli("predict", run, "--input", x, "-o", "q.csv").err
    quiet = cli("predict", run, "--input", "wild.npz", "-o", "r.csv", "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


# --- what goes in ---


def write_csv(path, header, rows):
    Path(path).write_text("\n".join(",".join(map(str, row)) for row in [header, *rows]) + "\n")


def test_kinds_of_input(cli, run, x):
    """The same records in every form give the same bits. A column that is left out may hold anything."""
    flat, labels = X.reshape(37, 64), [f"class {number}" for number in range(37)]
    np.savez("test.npz", x_test=X, y_test=np.zeros(3), x_train=np.zeros(2))
    np.savez("flat.npz", x=flat.astype(np.float16))
    write_csv("named.csv", NAMES, flat.tolist())
    write_csv("numbered.csv", range(64), flat.tolist())  # as a table without names is often saved
    labelled = [*NAMES[:5], "kind", *NAMES[5:]]
    write_csv("kind.csv", labelled, [[*row[:5], y, *row[5:]] for row, y in zip(flat.tolist(), labels, strict=True)])
    pq.write_table(pa.table([*flat.T[:5], pa.array(labels), *flat.T[5:]], names=labelled), "kind.parquet")
    for name in (x, "test.npz", "flat.npz", "named.csv", "numbered.csv", "kind.csv", "kind.parquet"):
        options = ("--label", "kind") if name.startswith("kind") else ()
        assert cli("predict", run, "--input", name, *options, "-o", f"{name}.csv", "--json").json["records"] == 37
        assert Path(f"{name}.csv").read_bytes() == Path(f"{x}.csv").read_bytes()


# --- refusals ---


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (
            {"x": X[:, :7]},
            (),
            "--input: bad.npz has records of shape (7, 8), but RUN takes (64,); use records of the same shape, or their 64"
            " values in a row",
        ),
        (
            {"x": X[0, 0]},
            (),
            "bad.npz: x has shape (8,); expected (records, features...); reshape it, one record a row",
        ),
        (
            "1,1\n1,1\n",
            (),
            "bad.csv: its first line holds numbers where names of columns belong; add a header line",
        ),
        ("a\n1\n", ("--label", "a"), "--label a: bad.csv has no other column; give one that has the features"),
    ],
)
def test_what_is_no_records(refused, run, content, options, message):
    name = "bad.csv" if isinstance(content, str) else "bad.npz"
    if isinstance(content, str):
        Path(name).write_text(content)
    else:
        np.savez(name, **content)
    assert refused("predict", run, "--input", name, *options, "-o", "p.csv") == message.replace("RUN", str(run))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-o", "p.csv"), "--out: p.csv exists already; choose another name or remove it first"),
        (("--label", "y", "-o", "q.csv"), "--label y: x.npz is .npz and has no columns; drop --label"),
        (
            ("--input", "digits", "-o", "q.csv"),
            "--input digits: unknown kind of file; give one that ends in .npz, .csv, .parquet or .arrow",
        ),
    ],
)
def test_files_and_names(cwd, refused, run, x, options, message):
    (cwd / "p.csv").write_text("precious")
    assert refused("predict", run, "--input", x, *options) == message
    assert refused("predict", "pub", "--input", x, "-o", "q.csv") == (
        "pub: not a run (no config.json in it); name a folder made by dpltm train --out pub"
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
        f"{name}: cannot be written: No space left on device; make room, or choose another place"
    )
