"""A person as the unit, as whole commands: tables and archives that say whose each record is."""

import json
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


def test_persons_are_protected(cli, events):
    body = cli(*TRAIN, "--test", "t.csv", "--per-unit", "3", "--out", "r", "--json").json
    (event,) = events("r/ledger.jsonl")
    assert (event["unit"], event["dataset"]["units"], event["sampling_rate"]) == ("user", "who", 10 / 40)
    certified = body["privacy"]["certified"]
    assert certified["unit"] == "user"
    alone = NoisySgd(10 / 40, 4, 2.0, 1.0, unit="user")
    assert certified["epsilon"] == pytest.approx(epsilon((alone,), 1e-3), rel=1e-6)
    notes = body["privacy"]["notes"]
    assert (
        "a person is all records that share a value of the column that says so; at most 3 of each count, those of the lowest"
        " public hashes where there are more"
    ) in notes
    assert (
        "the number of users (40) was counted and is treated as public; declare a figure with --records to keep it"
        in (notes[1].partition(" private")[0])
    )
    figure = re.search(r"for a single record epsilon ([0-9.]+) is certified", notes[0])
    assert float(figure[1]) > certified["epsilon"], "two steps: without its person, and with what else that one gave"
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
        body = cli("train", "--dense", *data, *noise, *more, "--out", name, "--json").json
        assert body["privacy"]["certified"]["unit"] == "user"
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
        lives.append(cli(*command, *data, "--out", f"r{turn}", "--json").json["live"])
    assert lives[0] == lives[1]  # both were trained, and what the second took was no cache of another shape


def test_releases_for_other_users_certify_nothing_for_these(cli, refused):
    """A ward is no person: one ward has many of them, and a person may have been in many wards."""
    table("d.csv", range(40), word="")
    shared = ("--ledger", "l.jsonl", "--json")
    by_ward = tuple("ward" if part == "who" else part for part in TABLE)
    cli("train", "--dense", *TABLE, *SHORT, *shared, "--out", "a")
    wards = tuple("2" if part == "10" else part for part in SHORT)
    body = cli("train", "--dense", *by_ward, *wards, *shared, "--out", "b").json["privacy"]
    assert (body["certified"]["epsilon"], body["certified"]["unit"]) == ("inf", "user")
    said = r"releases protect users of several kinds \(by ward, who\), .*; for one record .* at epsilon ([0-9.]+)"
    alone = [NoisySgd(rate, 4, 2.0, 1.0, unit="user") for rate in (10 / 40, 2 / 7)]
    figure = re.fullmatch(said, body["notes"][0])
    assert float(figure[1]) == pytest.approx(epsilon(alone, 1e-3, unit="record"), rel=1e-3)
    again = (
        "--epsilon",
        "9",
        "--steps",
        "2",
        "--delta",
        "1e-3",
        "--batch-size",
        "2",
        "--ledger",
        "l.jsonl",
        "--dry-run",
    )
    assert refused("train", "--dense", *by_ward, *again) == (
        "--unit-column: the ledger holds a release for other users of these records, by who, which certifies nothing for"
        " those by ward; take the same column, or other records"
    )
    # nor does a budget for persons hold where wards are protected
    cli("privacy", "budget", "other.jsonl", *TABLE, "--epsilon", "50", "--delta", "1e-3", "--quiet")
    assert refused("train", "--dense", *by_ward, *wards, "--out", "c", code=1).startswith(
        "budget: this would bring d to"
    )


def test_a_budget_for_persons(cli, refused):
    cli("privacy", "budget", "l.jsonl", *TABLE, "--epsilon", "2", "--delta", "1e-3", "--quiet")
    line = json.loads(Path("l.jsonl").read_text().splitlines()[-1])
    event = line.get("event", line)
    assert (event["unit"], event["dataset"]["units"]) == ("user", "who")
    less = tuple("0.5" if part == "2" else part for part in SHORT)
    said = refused("train", "--dense", *TABLE, *less, "--out", "b", code=1)
    assert said.startswith("budget: this would bring d to epsilon ")
    plain = tuple(part for part in TABLE if part not in ("--unit-column", "who"))
    Path("d.csv").write_text(re.sub(",p", ",", Path("d.csv").read_text()))  # numbers, so that they pass as a feature
    assert "no finite guarantee" in refused("train", "--dense", *plain, *SHORT, "--out", "c", code=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("--unit-column", "nobody"),
            "--unit-column nobody: d.csv has no such column; it has 'a', 'who', 'b', 'ward', 'ill'",
        ),
        (("--unit-column", "ill"), "--unit-column ill: d.csv has its labels in that column"),
        (("--subset", "0.5"), "--unit-column: takes every record of a person; leave --subset out, which parts them"),
        (
            ("--eval-private", "1"),
            "--eval-private: counts right answers one a record, and a user has many; leave it out",
        ),
        (("--model", "cnn:14x14x1"), "--model: cnn:14x14x1: such images have 196 features, but the records have 3"),
        (("--model", "lstm:3x1"), "--unit-column: a person's records go through an mlp"),
        (("--per-unit", "5000"), "--per-unit 5000: is not between 1 and 4,096"),
        (("--test", "d.csv"), "d.csv: 40 of the 40 values of 'who' are in the training split too, so accuracy there"),
        (("--delta", "0.1"), "--delta: 0.1 is not between 0 and 1/n = 0.025 for 40 users; take one well below it"),
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
            "--ledger",
            "l.jsonl",
            "--out",
            name[:3],
            "--json",
        )
        found.append(cli(*command).json["privacy"]["certified"]["epsilon"])
    both = (NoisySgd(10 / 40, 4, 2.0, 1.0, unit="user"),) * 2
    assert found[1] == pytest.approx(epsilon(both, 1e-3), rel=1e-6)
    assert found[1] > found[0]


def test_another_form_is_no_way_around_a_budget(cli, refused):
    """The file as it is, as an archive, with other names of persons, without the column: one budget, one population."""
    table("d.csv", range(40), word="")
    rows = [line.split(",") for line in Path("d.csv").read_text().splitlines()[1:]]
    values = np.array([[float(a), float(b), float(ward)] for a, _, b, ward, _ in rows])
    who, ill = np.array([int(row[1]) for row in rows]), np.array([int(row[4]) for row in rows])
    np.savez("same.npz", x_train=values, y_train=ill, who_train=who)
    np.savez("finer.npz", x_train=values, y_train=ill, who_train=np.arange(len(who)))
    renamed = [",".join([a, f"p{who}", *rest]) for a, who, *rest in rows]
    Path("renamed.csv").write_text("\n".join(["a,who,b,ward,ill", *renamed]) + "\n")
    bare = [",".join([a, *rest]) for a, _, *rest in rows]
    Path("bare.csv").write_text("\n".join(["a,b,ward,ill", *bare]) + "\n")
    spent = (
        "--epsilon",
        "1",
        "--steps",
        "3",
        "--batch-size",
        "10",
        "--delta",
        "1e-3",
        "--model",
        "mlp:4",
        "--records",
        "40",
    )
    cli("privacy", "budget", "b.jsonl", *TABLE, "--epsilon", "1.1", "--delta", "1e-3", "--quiet")
    cli("train", "--dense", *TABLE, *spent, "--out", "first", "--quiet")
    archive = (*TABLE[4:],)
    for data in (
        TABLE,
        ("--dataset", "same.npz", *archive),
        ("--dataset", "finer.npz", *archive),
        ("--dataset", "renamed.csv", *TABLE[2:]),
        ("--dataset", "bare.csv", *TABLE[2:-2]),
    ):
        said = refused("train", "--dense", *data, *spent, "--out", "second", code=1)
        assert said.startswith("budget: this would bring d to epsilon "), data


def test_rows_of_those_who_were_trained_on_are_not_evaluated_on(cli, refused):
    """Whatever file they stand in, and though nobody has trained on these rows."""
    cli(*TRAIN, "--test", "t.csv", "--out", "r", "--quiet")
    table("later.csv", range(38, 60), seed=8)
    table("nobody.csv", range(90, 99), seed=9)
    assert refused("evaluate", "r", "--dataset", "nobody.csv", "--test", "later.csv") == (
        "--dataset: 2 of those whose records are in the test split of nobody were trained on by r, so its accuracy there"
        " would show what is protected; use records of others"
    )
