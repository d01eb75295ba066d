"""Columns go by name: in any order, missing and additional ones named; row numbers and lost first lines are noticed."""

from __future__ import annotations

import csv
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

FACTS = "--label y --bounds 0,1 --classes 2 --records 400"
TRAIN = (
    f"train --dense --dataset train.csv {FACTS} --delta 1e-4 --epsilon 50 --model mlp:8 --steps 60 --batch-size 100"
)


def table(name: str, header: str, rows: Any) -> None:
    with Path(name).open("w", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([header.split(","), *rows])


def made(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Two columns, of which the first decides."""
    x = np.random.default_rng(seed).random((count, 2)).round(9)
    return x, (x[:, 0] > 0.5).astype(int)


@pytest.fixture
def run(cli: Any) -> str:
    x, y = made(0, 400)
    table("train.csv", "a,b,y", np.column_stack([x, y]).tolist())
    x, y = made(1, 100)
    table("same.csv", "a,b,y", np.column_stack([x, y]).tolist())
    table("swapped.csv", "y,b,a", np.column_stack([y, x[:, ::-1]]).tolist())
    table("renamed.csv", "weight,height,y", np.column_stack([x, y]).tolist())
    table("more.csv", "a,b,c,y", np.column_stack([x, x[:, 0], y]).tolist())
    assert cli(f"{TRAIN} --out r").code == 0
    return "r"


def test_an_evaluation_on_a_table_in_another_order(cli: Any, run: str) -> None:
    """Once it was 42 % in place of 98, and exit code 0."""
    found = [
        cli(f"evaluate {run} --dataset train.csv --test {name}.csv --ledger {name}.jsonl --json").json["accuracy"]
        for name in ("same", "swapped")
    ]
    assert found[0] == found[1] > 0.9


@pytest.mark.parametrize("order", ["same", "swapped"])
def test_an_evaluation_of_a_file_whose_training_split_is_swapped_too(cli: Any, run: str, order: str) -> None:
    """The columns are the run's, not those of the file that is named first."""
    found = cli(f"evaluate {run} --dataset {order}.csv --test 0.5 --ledger other.jsonl --json").json
    assert found["accuracy"] > 0.9


def test_predictions_for_a_table_in_another_order(cli: Any, run: str) -> None:
    for name in ("same", "swapped"):
        assert cli(f"predict {run} --input {name}.csv -o {name}.out.csv").code == 0
    assert Path("same.out.csv").read_text() == Path("swapped.out.csv").read_text()


@pytest.mark.long
def test_predictions_pass_over_further_columns(
    cli: Any, refused: Any, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``predict.py`` of an export does; whatever they hold, and with a note."""
    x, y = made(1, 100)
    table(
        "wordy.csv",
        "b,note,a,y,",
        [[*row, place] for place, row in enumerate(zip(x[:, 1], ["word"] * 100, x[:, 0], y, strict=True))],
    )
    cli(f"predict {run} --input same.csv -o same.out.csv")
    notes = cli(f"predict {run} --input wordy.csv -o wordy.out.csv --json").json["notes"]
    assert Path("same.out.csv").read_text() == Path("wordy.out.csv").read_text()
    assert notes[0] == "wordy.csv has columns that the run does not take; they are passed over: 'note', ''"
    assert cli(f"export {run} --out e").code == 0
    monkeypatch.syspath_prepend("e")
    monkeypatch.setattr(sys, "argv", ["predict.py", "wordy.csv", "e.csv"])
    runpy.run_path("e/predict.py", run_name="__main__")
    monkeypatch.delitem(sys.modules, "encode")
    labels = [
        [line.split(",")[0] for line in Path(name).read_text().splitlines()] for name in ("wordy.out.csv", "e.csv")
    ]
    assert labels[0] == labels[1]
    assert refused(f"predict {run} --input renamed.csv -o out.csv") == (
        "renamed.csv: its columns are not those of the run: it lacks 'a', 'b'; it has, beside those, 'height', 'weight';"
        " give it the same columns"
    )


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("renamed", "it lacks 'a', 'b'; it has, beside those, 'height', 'weight'"),
        ("more", "it has, beside those, 'c'"),
    ],
)
def test_columns_that_are_not_those_of_the_run(refused: Any, run: str, name: str, fault: str) -> None:
    assert refused(f"evaluate {run} --dataset {name}.csv --test 0.5 --ledger other.jsonl") == (
        f"{name}: its columns are not those of {run}: {fault}; give it the same columns"
    )


def test_tickets_meet_a_table_by_name(cli: Any, refused: Any, run: str) -> None:
    del run
    x, y = made(2, 300)
    table("pub.csv", "a,b,y", np.column_stack([x, y]).tolist())
    options = "--provenance public --model mlp:4 --rounds 1 --iterations 200 --batch-size 50 --threads 1"
    assert cli(f"generate --dataset pub.csv {FACTS} {options} --ledger p.jsonl --out t").code == 0
    given = (
        "--label y --bounds 0,1 --classes 2 --records 100 --delta 1e-3 --noise-multiplier 0 --steps 40 --batch-size 50"
    )
    for name in ("same", "swapped"):
        assert cli(f"train t@1 --dataset {name}.csv {given} --ledger {name}.jsonl --out {name}.run").code == 0
    x = cli("evaluate swapped.run --dataset swapped.csv --test same.csv --rows-coincide --ledger o.jsonl --json").json
    assert x["accuracy"] > 0.9
    assert refused(f"train t@1 --dataset renamed.csv {given} --out renamed.run").startswith(
        "renamed: its columns are not those of t: it lacks 'a', 'b'; it has, beside those, 'height', 'weight'"
    )


def test_a_first_line_that_is_a_record(refused: Any) -> None:
    rows = [[0.1 * (i % 9 + 1), 0.01 * (i * 7 % 10), (i + 1) % 2] for i in range(60)]
    table("t.csv", ",".join(map(str, rows[0])), rows[1:])
    said = (
        "t.csv: its first line holds '0.1', '0.0' and 1 more where names of columns belong; add a line of names, or rename"
        " those columns"
    )
    assert refused("train --dense --dataset t.csv --label 1 --bounds 0,1 --classes 2 --epsilon 1 --out r") == said


@pytest.mark.parametrize("kind", ["csv", "again", "parquet"])
def test_row_numbers_are_left_out(cli: Any, kind: str) -> None:
    """By their names, which pandas gives them; with a note."""
    x, y = made(0, 400)
    numbers = range(400)
    if kind == "parquet":
        pq.write_table(pa.table({"a": x[:, 0], "y": y, "__index_level_0__": list(numbers)}), "d.parquet")
        name, file = "__index_level_0__", "d.parquet"
    else:
        name, file = {"csv": "", "again": "Unnamed: 0"}[kind], "d.csv"
        table(file, f"{name},a,y", zip(numbers, x[:, 0], y, strict=True))
    done = cli(
        f"train --dense --dataset {file} {FACTS} --delta 1e-4 --epsilon 5 --steps 2 --model mlp:4 --out r --json"
    )
    said = f'columns left out, since they are row numbers by their names: "{name}"; rename what is a feature'
    assert said in done.json["privacy"]["notes"]
    assert done.json["live"] == 4 * 1 + 4 + 2 * 4 + 2  # one feature
    assert cli(f"predict r --input {file} -o out.csv").code == 0
    assert said in cli(f"datasets info {file} {FACTS} --json").json["notes"]
    assert cli(f"datasets schema {file} --label y --out draft.toml --json").json["notes"] == [said]
    Path("known.toml").write_text(
        '[column.a]\nkind = "number"\nbounds = [0, 1]\n[column.y]\nkind = "label"\nclasses = ["0", "1"]\n'
    )
    assert cli(f"datasets schema {file} --schema known.toml --json").json["notes"] == [said]
    assert cli(f"datasets schema {file} --schema draft.toml --json").json["notes"] == [
        "still to be found: 'a', 'y'; write them, or add --private 0.2"
    ], "which says itself that it is ignored"


def test_a_table_of_row_numbers_alone(refused: Any) -> None:
    table("d.csv", "Unnamed: 0,y", [[i, i % 2] for i in range(50)])
    assert refused("train --dense --dataset d.csv --label y --bounds 0,1 --classes 2 --epsilon 1 --out r") == (
        "d.csv: has no column of features but a row number; it has 'Unnamed: 0', 'y'"
    )
