"""Tables with words, dates and holes, by whole commands: all three stages, and what a run remembers."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from commands import certified

SCHEMA = """
missing = ["?"]
[column.age]
kind = "number"
bounds = [18, 90]
missing = true
[column.ward]
kind = "category"
values = ["north", "south", "east"]
[column.who]
kind = "ignored"
[column.seen]
kind = "date"
bounds = [2020-01-01, 2024-12-31]
[column.ill]
kind = "label"
classes = ["no", "yes"]
"""
TINY = "--model mlp:8 --rounds 2 --prune 0.3 --iterations 20 --batch-size 32"
DATA = "--dataset d.csv --schema s.toml"
SHORT = "--model mlp:4 --steps 3 --noise-multiplier 2 --batch-size 20 --delta 1e-3"
TRAIN = f"train --dense {DATA} {SHORT}"
LEDGER = "dpltm.ledger.jsonl"


def table(path, count, seed):
    """Records of which the old, and those of the north, are ill more often."""
    draw, rows = np.random.default_rng(seed), ["age,ward,who,seen,ill"]
    for _ in range(count):
        age, ward = int(draw.integers(18, 91)), ["north", "south", "east"][draw.integers(3)]
        ill = draw.random() < 0.1 + 0.5 * (age > 60) + 0.3 * (ward == "north")
        shown = "?" if draw.random() < 0.05 else age
        day = f"202{draw.integers(5)}-0{draw.integers(1, 10)}-1{draw.integers(10)}"
        rows.append(f"{shown},{ward},p{draw.integers(count // 3)},{day},{'yes' if ill else 'no'}")
    Path(path).write_text("\n".join(rows) + "\n")


@pytest.fixture(autouse=True)
def tables(cwd):
    del cwd
    Path("s.toml").write_text(SCHEMA)
    for name, count, seed in (("public.csv", 200, 1), ("d.csv", 400, 2), ("t.csv", 150, 4)):
        table(name, count, seed)
    Path("t.csv").write_text(Path("t.csv").read_text().replace(",p", ",q"))  # other persons


def test_three_stages_on_a_mixed_table(cli):
    """Nothing is said twice; and the columns that a network does not read change no answer."""
    tickets = (
        f"generate --dataset public.csv --schema s.toml {TINY} --provenance public --criterion inputs --prune 0.6"
    )
    assert cli(f"{tickets} --out set").code == 0
    rows = cli("tickets show set --json").json["tickets"]
    assert rows[0]["columns"] == ["age", "ward", "seen"]
    assert "columns read" in cli("tickets show set").out
    assert cli(f"select set {DATA} --records 400 --eps1 0.5").code == 0
    more = "--records 400 --epsilon 3 --steps 20 --test t.csv --json"
    drawn = cli(f"train set {DATA} {more} --out drawn").json
    assert 2.9 < certified(drawn) <= 3
    run = cli(f"train set@2 {DATA} {more} --ledger l.jsonl --out r").json
    assert run["columns"] == rows[-1]["columns"]
    assert cli("evaluate r --dataset d.csv --test t.csv --json").json["accuracy"] == run["accuracy"]
    left_out = {"age", "ward", "seen"} - set(run["columns"])
    assert left_out
    other = {"age": "18", "ward": "east", "seen": "2020-01-01"}
    header, *lines = Path("t.csv").read_text().splitlines()
    names, cells = header.split(","), [line.split(",") for line in lines]
    changed = [[other[n] if n in left_out else cell for n, cell in zip(names, row, strict=True)] for row in cells]
    for name, table in (("bare", [row[:-1] for row in [names, *cells]]), ("u", [names, *changed])):
        Path(f"{name}.csv").write_text("".join(",".join(row) + "\n" for row in table))
    for name in ("t", "bare", "u"):
        assert cli(f"predict r --input {name}.csv --out {name}.out.csv").code == 0
        assert Path(f"{name}.out.csv").read_bytes() == Path("t.out.csv").read_bytes()
    behind = "--features unit --epsilon 3 --steps 5 --out s --ledger l.jsonl --json"
    assert "columns" not in cli(f"train --dense {DATA} --records 400 {behind}").json, "a map reads all of them"


@pytest.mark.one_of(2)
@pytest.mark.parametrize("label", ["ill", "ward"])
@pytest.mark.parametrize("whose", ["", "--unit-column who"])
def test_records_that_a_schema_was_read_off_cannot_be_private(cli, refused, entries, label, whose):
    """Whichever column is the label, whose the records are, and whatever schema they are read by."""
    read = f"datasets schema d.csv --label {label} {whose} --from-public"
    assert cli(f"{read} --out public.toml").code == 0
    for schema in ("public.toml", "s.toml"):
        said = refused(f"{TRAIN} {whose} --schema {schema}")
        assert said.startswith("--dataset: d was declared public, and d shares records with it")
    assert cli(f"{read} --out again.toml").code == 0
    (entry,) = entries(LEDGER)
    assert (entry["kind"], entry["part"]["name"]) == ("public", "d"), "declared once"
    table("other.csv", 200, 9)
    body = cli(f"{TRAIN} {whose} --dataset other.csv --schema public.toml --json").json
    assert not [note for note in body["privacy"]["notes"] if "found under DP" in note]


def test_nobody_is_told_how_much_bounds_clip(cli):
    """Silence: the words are the same whether all ages are beyond the bounds, or none."""
    said = []
    for number, bounds in enumerate(("[18, 90]", "[200, 300]")):
        Path("s.toml").write_text(SCHEMA.replace("[18, 90]", bounds))
        body = cli(f"{TRAIN} --records 400 --out r{number} --ledger {number}.jsonl --json").json
        said.append({key: value for key, value in body.items() if key not in ("run", "seconds")})
        said[-1]["privacy"]["notes"] = [note for note in body["privacy"]["notes"] if "best of them" not in note]
    assert said[0] == said[1]


def test_what_does_not_fit_is_said_before_torch_is_imported():
    Path("d.csv").write_text(Path("d.csv").read_text().replace("south", "west"))
    script = (
        "import sys; from dpltm.cli.main import run\n"
        "for command in ('train --dense --epsilon 1', 'generate --provenance public', 'select set --eps1 1'):\n"
        f"    print(run([*command.split(), *'{DATA} --quiet'.split()]), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "2 False\n" * 3, done.stderr
    assert done.stderr.count("does not fit its schema") == 3


def test_predictions_name_classes_and_need_no_ignored_columns(cli, refused):
    Path("s.toml").write_text(SCHEMA.replace('["no", "yes"]', '[["no", "No"], "yes"]'))
    assert cli(f"{TRAIN} --out r").code == 0
    lines = [line.split(",") for line in Path("t.csv").read_text().splitlines()]
    Path("x.csv").write_text("\n".join(",".join([*cells[:2], cells[3]]) for cells in lines) + "\n")
    assert cli("predict r --input x.csv --out p.csv").code == 0
    header, *rows = Path("p.csv").read_text().splitlines()
    assert header == "label,p no,p yes"
    assert {row.split(",")[0] for row in rows} <= {"no", "yes"}
    assert cli("predict r --input t.csv --out p.npz").code == 0
    with np.load("p.npz") as archive:
        assert archive["classes"].tolist() == ["no", "yes"]
        assert [["no", "yes"][label] for label in archive["label"]] == [row.split(",")[0] for row in rows]
        figures = [f"{one:.9g},{two:.9g}" for one, two in archive["probabilities"]]
        assert figures == [row.partition(",")[2] for row in rows]
    Path("x.csv").write_text("\n".join(",".join(cells[:2]) for cells in lines) + "\n")
    assert refused("predict r --input x.csv --out q.csv").startswith("x.csv: lacks the columns 'seen'")
