"""The three stages on files of the user's: .npz, .csv and .parquet."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands import certified

N, FEATURES, CLASSES = 120, 5, 3
COLUMNS = [f"f{number}" for number in range(FEATURES)] + ["kind"]


@pytest.fixture
def file(cwd):
    """Writes the same records as a file of the kind that is asked for, with a test file beside it; returns options."""
    rng = np.random.default_rng(0)
    y = np.arange(N) % CLASSES
    x = np.round(rng.normal(size=(N, FEATURES)) + y[:, None], 3)

    def write(kind):
        for name, part in (("d", slice(0, 90)), ("t", slice(90, N))):
            table = np.column_stack([x[part], y[part]])
            if kind == "npz":
                np.savez(cwd / f"{name}.npz", x_train=x[part], y_train=y[part])
            elif kind == "csv":
                rows = [",".join(COLUMNS), *(",".join(f"{v:g}" for v in row) for row in table)]
                (cwd / f"{name}.csv").write_text("\n".join(rows) + "\n")
            else:
                pq.write_table(pa.table(list(table.T), names=COLUMNS), cwd / f"{name}.parquet")
        return f"d.{kind} --test t.{kind} --bounds -3,5" + ("" if kind == "npz" else " --label kind")

    return write


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
def test_three_stages(cli, entries, file, kind):
    options = file(kind)
    tiny = "--model mlp:4 --rounds 1 --prune 0.5 --iterations 5 --batch-size 10 --provenance public"
    public, private = (f"{options} --subset {part}" for part in ("0.0:0.5", "0.5:1.0"))
    halves = [cli(f"datasets info {half} --json").json["records"] for half in (public, private)]
    # a hash of the features alone, or of all columns of a table with names; a .csv and a .parquet file agree
    assert halves == ([45, 45] if kind == "npz" else [46, 44])
    made = cli(f"generate --dataset {public} {tiny} --out s --json").json
    assert [row["live"] for row in made["tickets"]] == [5 * 4 + 4 + 4 * 3 + 3, 10 + 4 + 6 + 3]
    drawn = cli(f"select s --dataset {private} --eps1 0.5 --json").json
    counted = [note for note in drawn["privacy"]["notes"] if "is treated as public" in note]
    assert [note.partition(" was ")[0] for note in counted] == [
        *(f"the number of records ({halves[1]})", "the number of classes (3)"),
    ]
    budget = "--records 45 --classes 3 --epsilon 2 --steps 2 --batch-size 9 --out r"
    trained = cli(f"train s --dataset {private} {budget} --json").json
    assert certified(trained) <= 2
    assert trained["sampling_rate"] == 0.2
    assert not [note for note in trained["privacy"]["notes"] if "treated as public" in note]
    kinds = [entry["kind"] for entry in entries("dpltm.ledger.jsonl")]
    assert kinds == ["public", "public", "release", "excluded", "release"]
    judged = cli(f"evaluate r --dataset {options} --json").json
    assert (judged["records"], judged["accuracy"]) == (30, trained["accuracy"])
