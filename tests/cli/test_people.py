"""A person as the unit, as whole commands: tables and archives that say whose each record is."""

import re
from pathlib import Path

import numpy as np
import pytest

from dpltm.privacy.accountant import epsilon
from dpltm.privacy.mechanisms import NoisySgd

TABLE = ("--dataset", "d.csv", "--label", "ill", "--bounds", "-2,2", "--classes", "2", "--unit-column", "who")
SHORT = ("--model", "mlp:4", "--steps", "4", "--batch-size", "10", "--noise-multiplier", "2", "--delta", "1e-3")
TRAIN = ("train", "--dense", *TABLE, *SHORT)


def table(path, persons, seed=0, word="p"):
    """Rows of persons, one in two with a word before its number; who is ill shows in a."""
    draw, rows = np.random.default_rng(seed), ["a,who,b,ward,ill"]
    for person in persons:
        for _ in range(draw.integers(1, 6)):
            ill = int(draw.random() < 0.5)
            name = f"{word if person % 2 else ''}{person}"
            rows.append(f"{draw.normal(2 * ill - 1, 0.4):.4f},{name},{draw.normal():.4f},{person % 7},{ill}")
    Path(path).write_text("\n".join(rows) + "\n")


@pytest.fixture(autouse=True)
def people(cwd):
    del cwd
    table("d.csv", range(40))
    table("t.csv", range(40, 60), seed=1)


def test_persons_are_protected(cli, entries):
    body = cli(*TRAIN, "--test", "t.csv", "--per-unit", "3", "--out", "r", "--json").json
    apart, trained = entries("dpltm.ledger.jsonl")
    assert (apart["kind"], trained["unit"]) == ("excluded", "who")
    (steps,) = trained["mechanisms"]
    assert steps["sampling_rate"] == 10 / 40
    certified = body["privacy"]["certified"]
    assert certified["unit"] == "who"
    assert certified["epsilon"] == pytest.approx(epsilon((NoisySgd(10 / 40, 4, 2.0, 1.0),), 1e-3), rel=1e-6)
    notes = body["privacy"]["notes"]
    assert (
        "a person is all records that share a value of 'who'; at most 3 of each count, those of the lowest public hashes"
        " where"
        " there are more"
    ) in notes
    assert any(note.startswith("the number of persons (40) was counted and is treated as public") for note in notes)
    assert not any("one row a person" in note for note in notes)


def test_nothing_is_said_twice(cli):
    """The run knows columns and bounds; what says whose records are is no feature, and of records to predict it may lack."""
    trained = cli(*TRAIN, "--test", "t.csv", "--out", "r", "--json").json
    again = cli("evaluate", "r", "--dataset", "d.csv", "--test", "t.csv", "--json").json
    assert again["accuracy"] == trained["accuracy"]
    cli("predict", "r", "--input", "t.csv", "--out", "p.csv", "--quiet")
    rows = [line.split(",") for line in Path("t.csv").read_text().splitlines()]
    for name, dropped in (("bare.csv", ("who", "ill")), ("half.csv", ("ill",))):
        kept = [at for at, column in enumerate(rows[0]) if column not in dropped]
        Path(name).write_text("".join(",".join(row[at] for at in kept) + "\n" for row in rows))
        cli("predict", "r", "--input", name, "--out", f"p-{name}", "--quiet")
        assert Path(f"p-{name}").read_bytes() == Path("p.csv").read_bytes()


def test_an_archive_says_whose_its_records_are(cli):
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (60, 4, 4), dtype=np.uint8), np.arange(60) % 2
    np.savez("d.npz", x_train=x, y_train=y, who_train=np.arange(60) % 12, x_test=x[:5] ^ 255, y_test=y[:5])
    data = ("--dataset", "d.npz", "--classes", "2", "--unit-column", "who", "--bounds", "0,255")
    for more in ((), ("--features", "scatter:1,2"), ("--features", "unit", "--centre", "0.2", "--epsilon", "3")):
        noise = SHORT if "--epsilon" not in more else ("--steps", "3", "--delta", "1e-3", "--batch-size", "4")
        name = f"r{len(more)}"
        body = cli("train", "--dense", *data, *noise, *more, "--out", name, "--ledger", f"{name}.jsonl", "--json").json
        assert body["privacy"]["certified"]["unit"] == "who"
        assert cli("evaluate", name, "--dataset", "d.npz", "--json").json["accuracy"] == body["accuracy"]


def test_features_of_other_persons_are_not_taken_for_theirs(cli):
    """The same records by another column: what is kept of their features is kept by person."""
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (60, 4, 4), dtype=np.uint8), np.arange(60) % 2
    command = ("train", "--dense", "--classes", "2", "--features", "scatter:1,2", "--noise", "fast", *SHORT[2:])
    lives = []
    for turn, persons in enumerate((np.arange(60) % 12, np.arange(60) // 5)):
        np.savez(f"{turn}.npz", x_train=x, y_train=y, who_train=persons)
        data = ("--dataset", f"{turn}.npz", "--unit-column", "who", "--bounds", "0,255")
        lives.append(cli(*command, *data, "--ledger", f"{turn}.jsonl", "--out", f"r{turn}", "--json").json["live"])
    assert lives[0] == lives[1]  # both were trained, and what the second took was no cache of another shape


def test_a_ledger_protects_persons_of_one_kind(cli, refused):
    """A ward is no person: one ward has many of them, and a person may have been in many wards."""
    cli(*TRAIN, "--out", "a", "--quiet")
    by_ward = tuple("ward" if part == "who" else part for part in TRAIN)
    plain = tuple(part for part in TRAIN if part not in ("--unit-column", "who"))
    Path("d.csv").write_text(re.sub(",p", ",", Path("d.csv").read_text()))  # numbers, so that they pass as a feature
    for other in (by_ward, plain):
        said = refused(*other, "--delta", "1e-4", "--out", "b")
        assert "who" in said
        assert "--ledger" in said


def test_a_budget_for_persons(cli, refused):
    cli("privacy", "budget", "dpltm.ledger.jsonl", "--unit", "who", "--epsilon", "2", "--delta", "1e-3", "--quiet")
    less = tuple("0.5" if part == "2" else part for part in SHORT)
    said = refused("train", "--dense", *TABLE, *less, "--out", "b", code=1)
    assert said.startswith("budget: this would bring the population to epsilon ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("--unit-column", "nobody"),
            "--unit-column nobody: d.csv has no such column; it has 'a', 'who', 'b', 'ward', 'ill'",
        ),
        (("--unit-column", "ill"), "--unit-column ill: d.csv has its labels in that column"),
        (
            ("--eval-private", "1"),
            "--eval-private: counts right answers one a record, and a user has many; leave it out",
        ),
        (("--model", "cnn:14x14x1"), "--model: cnn:14x14x1: such images have 196 features, but the records have 3"),
        (("--model", "lstm:3x1"), "--unit-column: a person's records go through an mlp"),
        (("--per-unit", "5000"), "--per-unit 5000: is not between 1 and 4,096"),
        (("--test", "d.csv"), "d.csv: 40 of the 40 values of 'who' are in the training split too, so accuracy there"),
        (("--delta", "0.1"), "--delta: 0.1 is not between 0 and 1/n = 0.025 for 40 whos; take one well below it"),
        (("--dataset", "digits"), "--label ill: digits is a name, not a table; drop --label"),
    ],
)
def test_refused(refused, change, message):
    assert refused(*TRAIN, *change).startswith(message)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (lambda line: line.replace(",p1,", ", ,"), "d.csv: 'who' says nobody at record "),
        (lambda line: re.sub(r"^([^,]+),[^,]+", r"\1,ann", line), "--unit-column: all records of d are one person's"),
    ],
)
def test_holes_and_a_single_person(refused, cells, message):
    header, *lines = Path("d.csv").read_text().splitlines()
    Path("d.csv").write_text("\n".join([header, *map(cells, lines)]) + "\n")
    assert refused(*TRAIN).startswith(message)


def test_single_records_need_no_number_of_them(refused):
    plain = tuple(part for part in TRAIN if part not in ("--unit-column", "who"))
    assert refused(*plain, "--per-unit", "3") == (
        "--per-unit: bounds what one person gives, so it goes with --unit-column, or with --unit user of ratings; leave it"
        " out, or add one of them"
    )


def test_persons_in_two_files_are_added_up(cli):
    """Half of everybody's rows in one file, half in another."""
    table("d.csv", range(40))
    header, *rows = Path("d.csv").read_text().splitlines()
    for name, some in (("even.csv", rows[::2]), ("odd.csv", rows[1::2])):
        Path(name).write_text("\n".join([header, *some]) + "\n")
    found = []
    for name in ("even.csv", "odd.csv"):
        data = tuple(name if part == "d.csv" else part for part in TABLE)
        command = (
            "train",
            "--dense",
            *data,
            *SHORT,
            "--records",
            "40",
            "--out",
            name[:3],
            "--json",
        )
        found.append(cli(*command).json["privacy"]["certified"]["epsilon"])
    both = (NoisySgd(10 / 40, 4, 2.0, 1.0),) * 2
    assert found[1] == pytest.approx(epsilon(both, 1e-3), rel=1e-6)
    assert found[1] > found[0]


def test_parts_of_persons_compose_in_parallel(cli):
    """By a public hash of the person: two halves of one file cost what the costlier one does."""
    found = [
        cli(*TRAIN, "--subset", part, "--records", "20", "--out", f"r{turn}", "--json").json["privacy"]["certified"]
        for turn, part in enumerate(("0.0:0.5", "0.5:1.0", "0.4:0.6"))
    ]
    alone = epsilon((NoisySgd(10 / 20, 4, 2.0, 1.0),), 1e-3)
    assert found[0]["epsilon"] == found[1]["epsilon"] == pytest.approx(alone, rel=1e-6)
    assert found[2]["epsilon"] > 1.2 * alone
