"""Whole commands on records that are the same people: other parts, other columns, other files, other machines.

One file is public or private in one ledger, whatever names it. Other files are what their owner declares (DESIGN, rule 7):
rows are compared within one command alone.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from commands import PRIVATE, TINY
from commands import certified as epsilon
from dpltm.records import load

QUICK = "--dense --model mlp:4 --steps 3 --noise-multiplier 9 --delta 1e-3"
SCALED = "--bounds 0,1 --classes 2 --label ill"
ON_A = f"--dataset a.csv {SCALED}"
TRAIN = f"train {QUICK} {SCALED} --quiet"
PUBLIC = f"generate {ON_A} --model mlp:4 --rounds 1 --iterations 2 --batch-size 20 --provenance public --quiet --out s"
OTHERS = np.random.default_rng(6).random((60, 3)).round(4)


def table(path: str, rows: np.ndarray) -> None:
    lines = (",".join([*(f"{value:.4f}" for value in row), str(int(row[0] > 0.5))]) for row in rows)
    Path(path).write_text("\n".join(["a,b,c,ill", *lines]) + "\n")


@pytest.fixture
def rows(cwd: Path) -> np.ndarray:
    """Sixty people, who are in ``a.csv`` and ``p.csv`` of the working folder."""
    found = np.random.default_rng(5).random((60, 3)).round(4)
    for name in "ap":
        table(f"{cwd}/{name}.csv", found)
    return found


@pytest.mark.one_of(2)
@pytest.mark.parametrize("change", ["a record more", "a column renamed", "another order"])
def test_parts_of_a_file_that_changed_are_not_apart(cli, refused, rows, change):
    """A hash looks at cells and names of columns, so a record of this half may be in the other half now."""
    assert cli(f"generate {ON_A} --subset 0.0:0.5 --provenance public {TINY} --batch-size 20 --out s").code == 0
    before = Path("a.csv").read_text()
    match change:
        case "a record more":
            table("a.csv", np.vstack([rows, rows[:1] / 2]))
        case "a column renamed":
            Path("a.csv").write_text(before.replace("a,b", "years,b", 1))
        case "another order":
            table("a.csv", rows[::-1])
    training = f"train {QUICK} {ON_A} --out r --subset 0.5:1.0"
    assert "was declared public" in refused(training)
    Path("a.csv").write_text(before)
    assert cli(training).code == 0


@pytest.mark.usefixtures("rows")
def test_a_held_out_part_that_something_was_scored_on_cannot_be_private(cli, refused):
    """What is left of the file is public, or spent; on the rest, accuracies were measured that stand in the set."""
    assert cli(f"generate {ON_A} --test 0.4 --provenance public {TINY} --out s").code == 0
    training = f"train s@1 {ON_A} --steps 3 --noise-multiplier 9 --delta 1e-3 --out r"
    assert "was declared public" in refused(f"{training} --subset 0.0:0.4")
    options = f"--dataset p.csv {SCALED} --delta 1e-3 --ledger l.jsonl"
    assert cli(f"generate {options} --test 0.4 --criterion dp-train --epsilon 1 {TINY} --out t").code == 0
    told = refused(f"train {options} {QUICK} --out r")
    said = "--dataset: p[0.0:0.4] was declared apart from the people that are protected (a test split)"
    assert told.startswith(said)
    assert cli(f"train {options} {QUICK} --test 0.4 --out r").code == 0


@pytest.mark.parametrize("subset", ["", "--subset 0.2:0.9", "digits"])
def test_a_declared_number_hides_the_true_one(cli, refused, subset):
    """Of a file, or of a part that is cut out by hashes: in no artifact, and in no message."""
    if subset == "digits":
        options, hidden = PRIVATE, {len(load("digits", subset="0.5:1.0").train)}
    else:
        x = (np.random.default_rng(0).random((1237, 4)) * 200).astype(np.uint8)
        np.savez("own.npz", x_train=x, y_train=(x[:, 0] > 100).astype(int))
        options = f"--dataset own.npz --classes 2 --records 1000 {subset}"
        hidden = {1237, len(load("own.npz", subset=subset.partition(" ")[2] or None).train)}
    assert not hidden & {1000, 719, 1438}
    for command in (
        f"generate {options} {TINY} --provenance private --out made",
        f"select made {options} --eps1 1 --sensitivity paper",
        f"train made@1 {options} --steps 3 --noise-multiplier 9 --out run",
        "tickets export made --out shared --yes",
    ):
        assert cli(command).code == 0
    too_many = f"generate {options} --model mlp:8 --provenance private --batch-size {max(hidden) + 1} --out x"
    told = [refused(too_many).partition(": ")[2].partition(" ")[2]]
    texts = (
        path for folder in ("made", "run", "shared") for path in Path(folder).rglob("*.*") if "safe" not in path.name
    )
    for text in (*told, *(path.read_text() for path in texts)):
        # without times, ids and measured figures, whose digits may be any
        text = re.sub(r"[0-9a-f]{8,}|\d{4}-\d\d-\d\dT[0-9:.]+Z|\d+\.\d+(e-?\d+)?", "", text)
        assert not any(str(number) in text for number in hidden), text


def test_everything_in_one_folder_adds_up(cli, rows):
    """Who lie side by side are likely the same; other people have another ledger."""
    table("q.csv", 1 - rows)
    train = f"train {SCALED} {QUICK} --json --dataset"
    one, both = (cli(f"{train} {name}.csv --out {name}").json for name in "pq")
    assert epsilon(both) > 1.2 * epsilon(one)
    assert epsilon(cli(f"{train} q.csv --ledger others.jsonl --out r").json) == epsilon(one)
    Path("apart").mkdir()
    table("apart/q.csv", 1 - rows)
    assert epsilon(cli(f"{train} apart/q.csv --out s").json) == epsilon(one)
    assert Path("apart/dpltm.ledger.jsonl").exists()


VISITS = "--dataset mnist.npz --bounds 0,16 --records 300 --classes 10"


@pytest.mark.parametrize(
    ("command", "times"),
    [
        (f"train pub@1 {VISITS} --steps 2 --epsilon 1 --out r", 1),
        (f"select pub {VISITS} --eps1 0.5", 1),
        (f"generate {VISITS} {TINY} --provenance private --out s", 1),
        (f"generate {VISITS} {TINY} --criterion dp-train --epsilon 1 --dry-run", 1),
        (f"latent encode s.scheme {VISITS} --out m", 1),
        (f"generate {VISITS} {TINY} --provenance public --out s", 0),  # nothing is guaranteed
        (f"train pub@1 {PRIVATE} --steps 2 --epsilon 1 --out r", 0),
    ],
)
def test_that_a_person_may_have_several_rows_is_said_once(cli, command, times):
    """Of a file of one's own, even one with the name of a known dataset, a guarantee for single records says so."""
    x = np.random.default_rng(3).integers(0, 17, (300, 8, 8), dtype=np.uint8)
    np.savez("mnist.npz", x_train=x, y_train=np.arange(300) % 10)
    if "s.scheme" in command:
        assert cli("latent scheme --public digits --features unit --epsilon 4 --out s.scheme").code == 0
    notes = cli(f"{command} --json").json["privacy"]["notes"]
    assert sum("a person with k rows has up to k times the epsilon" in note for note in notes) == times


# --- one file is public or private ---


def copied() -> str:
    """The file under another name, with columns in another order and another label."""
    lines = (line.split(",") for line in Path("a.csv").read_text().splitlines())
    Path("b.csv").write_text("\n".join(",".join((c, ill, b, a)) for a, b, c, ill in lines) + "\n")
    return "--dataset b.csv"


def renamed() -> str:
    """The ledger under another name, with its key."""
    for suffix in (".jsonl", ".key"):
        Path(f"dpltm.ledger{suffix}").rename(f"moved{suffix}")
    return "--dataset a.csv --ledger moved.jsonl"


def linked() -> str:
    Path("elsewhere").mkdir()
    Path("elsewhere/l.csv").symlink_to(Path("a.csv").resolve())
    return "--dataset elsewhere/l.csv"


def old() -> str:
    """Beside a ledger of a version that kept digests of rows, whatever they hold."""
    Path("dpltm.ledger.rows").write_bytes(b"none")
    return "--dataset a.csv"


@pytest.mark.one_of(2)
@pytest.mark.parametrize("way", [copied, renamed, linked, old])
@pytest.mark.usefixtures("rows")
def test_a_file_is_public_or_private_whatever_names_it(cli, refused, way):
    assert cli(PUBLIC).code == 0
    where = way()
    assert "declared public" in refused(f"{TRAIN} {where} --out r")
    assert cli(f"{TRAIN} --dataset a.csv --ledger private.jsonl --out r").code == 0
    assert "is protected by a release on record" in refused(f"{PUBLIC}2 --ledger private.jsonl")


def test_another_file_with_the_same_rows_is_what_it_is_declared(cli, rows, tree):
    """Rule 7; and no digest of a row is kept anywhere."""
    assert cli(PUBLIC).code == 0
    table("b.csv", rows[::-1])
    assert cli(f"{TRAIN} --dataset b.csv --test 0.4 --out r").code == 0
    assert {Path(name).suffix for name in tree() if name.startswith("dpltm.ledger")} == {".jsonl", ".key"}


def test_within_one_command_rows_are_compared(cli, rows, refused):
    """Whatever their labels and the order of columns; how many are private is for the eyes of their owner."""
    table("t.csv", np.vstack([OTHERS, rows[:2]]))
    told = refused(f"{TRAIN} --dataset a.csv --test t.csv --out r")
    assert told.startswith("--test: a: 2 of the 62 records of t.csv are training records of a.csv")
    assert cli(f"{TRAIN} --dataset a.csv --test t.csv --rows-coincide --out r").code == 0


def test_a_known_dataset_that_was_trained_on_is_not_measured_as_new_records(cli, refused):
    assert cli("train --dense --dataset digits --model mlp:4 --steps 2 --epsilon 3 --ledger l.jsonl --out r").code == 0
    assert "--input: digits is protected by a release on record" in refused(
        "evaluate r --input digits --ledger l.jsonl"
    )
