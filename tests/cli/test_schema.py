"""Tables with words, dates and holes, by whole commands: all three stages, and what a run remembers."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpltm.records import load

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
TINY = ("--model", "mlp:8", "--rounds", "2", "--prune", "0.3", "--iterations", "20", "--batch-size", "32")


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
    data = ("--schema", "s.toml", "--records", "400")
    made = cli(
        "generate", "--dataset", "public.csv", *data[:2], *TINY, "--provenance", "public", "--out", "set", "--json"
    ).json
    assert [ticket["round"] for ticket in made["tickets"]] == [0, 1, 2]
    cli("select", "set", "--dataset", "d.csv", *data, "--eps1", "0.5", "--quiet")
    more = ("--epsilon", "3", "--steps", "20", "--test", "t.csv", "--out", "r", "--json")
    run = cli("train", "set", "--dataset", "d.csv", *data, *more).json
    assert 2.9 < run["privacy"]["certified"]["epsilon"] <= 3
    # nothing is said twice
    again = cli("evaluate", "r", "--dataset", "d.csv", "--test", "t.csv", "--json").json
    assert again["accuracy"] == run["accuracy"]
    cli("predict", "r", "--input", "t.csv", "--out", "p.csv", "--quiet")
    bare = [line.rpartition(",")[0] for line in Path("t.csv").read_text().splitlines()]
    Path("bare.csv").write_text("\n".join(bare) + "\n")
    cli("predict", "r", "--input", "bare.csv", "--out", "q.csv", "--quiet")
    assert Path("p.csv").read_bytes() == Path("q.csv").read_bytes()


def test_persons_of_a_mixed_table(cli, entries):
    short = ("--model", "mlp:4", "--steps", "3", "--batch-size", "20", "--noise-multiplier", "2", "--delta", "1e-3")
    data = ("--dataset", "d.csv", "--schema", "s.toml", "--test", "t.csv", "--unit-column", "who", "--per-unit", "4")
    body = cli("train", "--dense", *data, *short, "--out", "r", "--json").json
    assert (body["privacy"]["certified"]["unit"], body["live"]) == ("who", 6 * 4 + 4 + 4 * 2 + 2)
    assert [(entry["kind"], entry["unit"]) for entry in entries("dpltm.ledger.jsonl")] == [
        ("excluded", "who"), ("release", "who"),
    ]  # fmt: skip
    again = cli("evaluate", "r", "--dataset", "d.csv", "--test", "t.csv", "--json").json
    assert again["accuracy"] == body["accuracy"]


def test_a_draft_is_refused_until_it_is_filled_in(cli, refused):
    printed = cli("datasets", "schema", "d.csv", "--label", "ill").out
    assert "north" not in printed
    assert cli("datasets", "schema", "d.csv", "--label", "ill", "--json").json == {
        "file": "d.csv", "schema": printed.rstrip("\n"), "out": None,
    }  # fmt: skip
    Path("draft.toml").write_text(printed)
    train = ("train", "--dense", "--dataset", "d.csv", "--epsilon", "1", "--schema")
    assert refused(*train, "draft.toml").startswith(
        "--schema draft.toml: column 'age': kind is not one of number, category"
    )
    cli("datasets", "schema", "public.csv", "--label", "ill", "--from-public", "--out", "public.toml", "--quiet")
    assert load("public.csv", schema="public.toml").classes == 2
    assert refused("datasets", "schema", "public.csv", "--out", "public.toml").startswith(
        "--out: public.toml exists already"
    )
    assert refused("datasets", "schema", "none.csv") == "none.csv: no such file; correct the path"
    assert refused("datasets", "schema", "s.toml").startswith("s.toml: unknown kind of file")


@pytest.mark.parametrize("label", [("--label", "ill"), ()])
@pytest.mark.parametrize("whose", [(), ("--unit-column", "who")])
def test_records_that_a_schema_was_read_off_cannot_be_private(cli, refused, entries, label, whose):
    """Whichever column is the label, whose the records are, and whatever schema they are read by."""
    read = ("datasets", "schema", "d.csv", *label, *whose, "--from-public")
    cli(*read, "--out", "public.toml", "--quiet")
    text = Path("public.toml").read_text()
    assert text.startswith(
        "# The schema of d.csv, read off its records. They were declared public, and cannot be private"
    )
    if not label:
        head, _, rest = text.partition('[column."ill"]\nkind = "category"\nother = true\nvalues')
        Path("public.toml").write_text(f'{head}[column."ill"]\nkind = "label"\nclasses{rest}')
    who = Path("public.toml").read_text().replace('[column."who"]\nkind = "hashed"\nbuckets = 64',
                                                  '[column."who"]\nkind = "ignored"')  # fmt: skip
    Path("public.toml").write_text(who)
    short = ("--model", "mlp:4", "--steps", "3", "--noise-multiplier", "2", "--batch-size", "20", "--delta", "1e-3")
    train = ("train", "--dense", "--dataset", "d.csv", *whose, *short)
    said = "--dataset: d was declared public, and d shares records with it; the same records cannot be private here"
    for schema in ("public.toml", "s.toml"):
        assert refused(*train, "--schema", schema).startswith(said)
    cli(*read, "--out", "again.toml", "--quiet")
    (entry,) = entries("dpltm.ledger.jsonl")
    assert (entry["kind"], entry["part"]["name"]) == ("public", "d"), "declared once"
    table("other.csv", 200, 9)
    body = cli("train", "--dense", "--dataset", "other.csv", *train[4:], "--schema", "public.toml", "--json").json
    assert not [note for note in body["privacy"]["notes"] if "found under DP" in note]


def test_what_does_not_fit_is_refused_before_anything_is_spent(refused):
    train = ("train", "--dense", "--dataset", "d.csv", "--schema", "s.toml", "--epsilon", "1", "--out", "r")
    Path("d.csv").write_text(Path("d.csv").read_text().replace("south", "south-west", 1).replace("yes", "perhaps", 1))
    said = refused(*train)
    assert said.startswith("d.csv: does not fit its schema: line ")
    assert said.count("column") == 2
    assert not Path("r").exists()
    assert refused(*train, "--label", "ill") == "--label: the schema says what the columns hold; drop --label"
    assert refused(*train[:3], "digits", *train[4:]) == (
        "--schema: is for tables (.csv, .parquet, .arrow), and digits is none; drop --schema"
    )


def test_which_columns_a_network_reads(cli):
    """By whole commands: those of the rows of tickets show are those of the run, and others change no answer."""
    data = ("--schema", "s.toml", "--records", "400")
    cli("generate", "--dataset", "public.csv", *data[:2], *TINY, "--provenance", "public", "--criterion", "inputs",
        "--prune", "0.6", "--out", "set", "--quiet")  # fmt: skip
    rows = cli("tickets", "show", "set", "--json").json["tickets"]
    assert rows[0]["columns"] == ["age", "ward", "seen"]
    assert "columns read" in cli("tickets", "show", "set").out
    run = cli(
        "train", "set@2", "--dataset", "d.csv", *data, "--epsilon", "3", "--steps", "5", "--out", "r", "--json"
    ).json
    assert run["columns"] == rows[-1]["columns"]
    left_out = {"age", "ward", "seen"} - set(run["columns"])
    assert left_out
    other = {"age": "18", "ward": "east", "seen": "2020-01-01"}
    header, *lines = Path("t.csv").read_text().splitlines()
    names = header.split(",")
    cells = [zip(names, line.split(","), strict=True) for line in lines]
    changed = [",".join(other[name] if name in left_out else cell for name, cell in line) for line in cells]
    Path("u.csv").write_text("\n".join([header, *changed]) + "\n")
    for name in ("t", "u"):
        cli("predict", "r", "--input", f"{name}.csv", "--out", f"{name}.out.csv", "--quiet")
    assert Path("t.out.csv").read_bytes() == Path("u.out.csv").read_bytes()
    behind = ("--features", "unit", "--epsilon", "3", "--steps", "5", "--out", "s", "--ledger", "l.jsonl", "--json")
    assert "columns" not in cli("train", "--dense", "--dataset", "d.csv", *data, *behind).json, (
        "a map reads all of them"
    )


@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        (lambda text: text.replace(",p7,", ",,"), ("--unit-column", "who"), "d.csv: 'who' says nobody at record "),
        (lambda text: re.sub(",p[0-9]+,", ",ann,", text), ("--unit-column", "who"),
         "--unit-column: all records of d are one person's, so nothing can be learned of many"),
        (lambda text: text.replace("who,", "whose,", 1), (), "d.csv: lacks the columns 'who'; correct the schema"),
        (lambda text: text.replace("south", "west"), (), "d.csv: does not fit its schema: line "),
        (lambda text: text.replace(",yes", ",YES"), (), "d.csv: does not fit its schema: line "),
        (lambda text: text.replace(",2020-0", ",20-0"), (), "d.csv: does not fit its schema: line "),
    ],
)  # fmt: skip
def test_one_line_before_anything_is_spent(refused, change, more, message):
    Path("d.csv").write_text(change(Path("d.csv").read_text()))
    train = ("train", "--dense", "--dataset", "d.csv", "--schema", "s.toml", "--epsilon", "1", "--out", "r", *more)
    assert refused(*train).startswith(message)
    assert not Path("r").exists()
    assert not Path("dpltm.ledger.jsonl").exists()


def test_nobody_is_told_how_much_bounds_clip(cli):
    """Silence: the words are the same whether all ages are beyond the bounds, or none."""
    said = []
    for number, bounds in enumerate(("[18, 90]", "[200, 300]")):
        Path("s.toml").write_text(SCHEMA.replace("[18, 90]", bounds))
        train = (
            "train",
            "--dense",
            "--dataset",
            "d.csv",
            "--schema",
            "s.toml",
            "--records",
            "400",
            "--noise-multiplier",
            "2",
        )
        body = cli(
            *train,
            "--noise-multiplier",
            "2",
            "--model",
            "mlp:4",
            "--steps",
            "3",
            "--out",
            f"r{number}",
            "--ledger",
            f"{number}.jsonl",
            "--json",
        ).json
        said.append({key: value for key, value in body.items() if key not in ("run", "seconds")})
        said[-1]["privacy"]["notes"] = [note for note in body["privacy"]["notes"] if "best of them" not in note]
    assert said[0] == said[1]


def test_more_rows_a_person_than_count_are_said(cli):
    data = ("--dataset", "d.csv", "--schema", "s.toml", "--unit-column", "who", "--per-unit", "1", "--delta", "1e-3")
    body = cli("train", "--dense", *data, "--model", "mlp:4", "--steps", "3", "--noise-multiplier", "2", "--json").json
    assert (
        "a person is all records that share a value of 'who'; at most 1 of each count, those of the lowest public hashes"
        " where"
        " there are more"
    ) in body["privacy"]["notes"]


def test_what_does_not_fit_is_said_before_torch_is_imported():
    Path("d.csv").write_text(Path("d.csv").read_text().replace("south", "west"))
    for command in ("train --dense --epsilon 1", "generate --provenance public", "select set --eps1 1"):
        script = (
            "import sys; from dpltm.cli.main import run;"
            f"code = run('{command} --dataset d.csv --schema s.toml --quiet'.split());"
            "print(code, 'torch' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.stdout == "2 False\n", done.stderr
        assert "does not fit its schema" in done.stderr


@pytest.mark.parametrize("whose", [(), ("--unit-column", "who", "--delta", "1e-3")], ids=["records", "persons"])
def test_records_that_accuracy_was_measured_on_cannot_be_private_later(cli, refused, entries, whose):
    """Whatever part of them: what was said of held-out records was said without noise."""
    short = ("--model", "mlp:4", "--steps", "3", "--noise-multiplier", "2", "--batch-size", "20")
    train = ("train", "--dense", "--dataset", "d.csv", "--schema", "s.toml", *short, *whose)
    cli(*train, "--test", "0.2", "--out", "one", "--quiet")
    cli(*train, "--test", "0.2", "--out", "two", "--quiet")
    kinds = [entry["kind"] for entry in entries("dpltm.ledger.jsonl")]
    assert kinds == ["excluded", "release", "release"], "it is said once"
    said = "was declared apart from the people that are protected (a test split)"
    for other in ((), ("--test", "0.1"), ("--subset", "0.1:0.4")):
        assert said in refused(*train, *other)
    assert "is protected by a release on record" in refused(*train, "--test", "0.3")
    cli(*train, "--subset", "0.2:0.6", "--out", "three", "--quiet")
    shown = " ".join(cli("privacy", "ledger", "dpltm.ledger.jsonl").out.split())
    assert "declared apart from these people: d[0.0:0.2]" in shown


def test_accuracy_that_is_paid_for_leaves_held_out_records_private(cli, entries):
    short = ("--model", "mlp:4", "--steps", "3", "--epsilon", "4", "--batch-size", "20")
    train = ("train", "--dense", "--dataset", "d.csv", "--schema", "s.toml", *short)
    cli(*train, "--test", "0.2", "--eval-private", "1", "--quiet")
    assert {entry["kind"] for entry in entries("dpltm.ledger.jsonl")} == {"release"}


def test_predictions_name_classes_and_need_no_ignored_columns(cli, refused):
    Path("s.toml").write_text(SCHEMA.replace('["no", "yes"]', '[["no", "No"], "yes"]'))
    short = ("--model", "mlp:4", "--steps", "3", "--noise-multiplier", "2", "--batch-size", "20")
    cli("train", "--dense", "--dataset", "d.csv", "--schema", "s.toml", *short, "--out", "r", "--quiet")
    lines = [line.split(",") for line in Path("t.csv").read_text().splitlines()]
    Path("x.csv").write_text("\n".join(",".join([*cells[:2], cells[3]]) for cells in lines) + "\n")
    cli("predict", "r", "--input", "x.csv", "--out", "p.csv", "--quiet")
    header, *rows = Path("p.csv").read_text().splitlines()
    assert header == "label,p no,p yes"
    assert {row.split(",")[0] for row in rows} <= {"no", "yes"}
    cli("predict", "r", "--input", "t.csv", "--out", "p.npz", "--quiet")
    with np.load("p.npz") as archive:
        assert archive["classes"].tolist() == ["no", "yes"]
        assert [["no", "yes"][label] for label in archive["label"]] == [row.split(",")[0] for row in rows]
        assert [f"{one:.9g},{two:.9g}" for one, two in archive["probabilities"]] == [
            row.partition(",")[2] for row in rows
        ]
    Path("x.csv").write_text("\n".join(",".join(cells[:2]) for cells in lines) + "\n")
    assert refused("predict", "r", "--input", "x.csv", "--out", "q.csv") == (
        "x.csv: lacks the columns 'seen'; correct the schema, or the file"
    )


def test_generation_measures_on_held_out_records_as_well(cli, refused, entries):
    data = ("--dataset", "d.csv", "--schema", "s.toml")
    cli("generate", *data, *TINY, "--test", "0.2", "--provenance", "public", "--out", "set", "--quiet")
    assert [entry["kind"] for entry in entries("dpltm.ledger.jsonl")] == ["public", "public"]
    short = ("--model", "mlp:4", "--steps", "3", "--noise-multiplier", "2", "--batch-size", "20")
    for part in ("0.2:1.0", "0.0:0.2"):
        assert "declared public" in refused("train", "--dense", *data, *short, "--subset", part)
