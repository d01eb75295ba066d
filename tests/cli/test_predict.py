"""``dpltm predict``: classes and probabilities for records without labels, against the same network computed by hand."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

from commands import PRIVATE, made_by
from dpltm.records.encode import no_formula

NAMES = [f"pixel{number}" for number in range(64)]
X = load_digits().images[4::5][:37].astype(np.uint8)  # held out; the bounds of digits are 0 and 16


@pytest.fixture(scope="module")
def run(made, tmp_path_factory):
    """A run of pub@1 (mlp:8 on 64 features), trained for a few steps without noise, so that it tells classes apart."""
    options = f"--steps 60 --noise-multiplier 0 --lr 2 --ledger l --out {tmp_path_factory.mktemp('run') / 'r'}"
    folder = tmp_path_factory.mktemp("trained")
    made_by(folder, f"train {made / 'pub@1'} {PRIVATE} {options}")
    return Path(options.split()[-1])


@pytest.fixture
def x(cwd):
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


def test_csv(cli, run, x, tree):
    """The header, whole labels, and every bit of the probabilities; one file more and nothing else."""
    expected, before = by_hand(run, X), tree()
    kept = {path.name: path.read_bytes() for path in run.iterdir()}
    body = cli(f"predict {run} --input {x} -o new/folder/p.csv --json").json
    facts = {"run": str(run), "input": x, "records": 37, "output": "new/folder/p.csv", "saturated": 0, "notes": []}
    assert body == facts
    header, *rows = Path("new/folder/p.csv").read_text(encoding="utf-8").splitlines()
    cells = [row.split(",") for row in rows]
    labels, probabilities = [cell[0] for cell in cells], np.array([list(map(np.float32, cell[1:])) for cell in cells])
    assert header == "label,p0,p1,p2,p3,p4,p5,p6,p7,p8,p9"
    assert labels == [str(label) for label in expected.argmax(1)]
    np.testing.assert_allclose(probabilities, expected, rtol=1e-4, atol=1e-7)
    assert len(set(labels)) > 3, "a network that always answers alike would show nothing"
    after = tree()
    assert set(after) - set(before) == {"new", "new/folder", "new/folder/p.csv"}
    assert {name: after[name] for name in before} == before
    assert {path.name: path.read_bytes() for path in run.iterdir()} == kept


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
        label = "--label kind" if name.startswith("kind") else "--quiet"
        assert cli(f"predict {run} --input {name} -o {name}.csv", label).code == 0
        assert Path(f"{name}.csv").read_bytes() == Path(f"{x}.csv").read_bytes()


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        *((cell, f"'{cell}") for cell in ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1")),
        *((cell, cell) for cell in ("-1.5", "+49", "-inf", "+", "-", "a=b", "", "2-3")),
    ],
)
def test_no_cell_is_a_formula(cell: str, written: str) -> None:
    """Numbers, and signs as names of classes, stay what they are."""
    assert no_formula(cell) == written
