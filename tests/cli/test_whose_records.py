"""Whole commands on records that are the same people: other parts, other columns, other files, other machines."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from dpltm.records import load

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
TINY = ("--model", "mlp:8", "--rounds", "2", "--prune", "0.3", "--iterations", "5", "--batch-size", "32")
QUICK = ("--dense", "--model", "mlp:4", "--steps", "3", "--noise-multiplier", "9")
SCALED = ("--bounds", "0,1", "--classes", "2")
SHARED = (*SCALED, "--ledger", "l.jsonl", "--json", *QUICK)


def table(path, x, labels, order=None):
    """A table with columns a, b, ... and one for each label, in some order of columns."""
    columns = {chr(ord("a") + place): [f"{value:.4f}" for value in x[:, place]] for place in range(x.shape[1])}
    columns |= {name: [str(value) for value in y] for name, y in labels.items()}
    names = order or list(columns)
    rows = zip(*(columns[name] for name in names), strict=True)
    Path(path).write_text("\n".join([",".join(names), *(",".join(row) for row in rows)]) + "\n")


@pytest.fixture
def people(cwd):
    """Values and labels of 60 people, who are in p.csv."""
    x = np.random.default_rng(5).random((60, 3)).round(4)
    labels = {"ill": (x[:, 0] > 0.5).astype(int), "old": (x[:, 1] > 0.5).astype(int)}
    table(cwd / "p.csv", x, labels)
    return x, labels


def epsilon(body):
    return float(body["privacy"]["certified"]["epsilon"])


def backwards(labels):
    return {name: y[::-1] for name, y in labels.items()}


@pytest.mark.parametrize("change", ["a record more", "a column renamed", "another order"])
def test_parts_of_a_file_that_changed_are_not_apart(cli, refused, people, change):
    """A hash looks at cells and names of columns, so a record of this half may be in the other half now."""
    x, labels = people
    table("a.csv", x, {"ill": labels["ill"]})
    options = ("--dataset", "a.csv", "--label", "ill", *SCALED)
    public = ("--subset", "0.0:0.5", "--provenance", "public", *TINY, "--batch-size", "20", "--out", "s", "--quiet")
    assert cli("generate", *options, *public).code == 0
    before = Path("a.csv").read_text()
    match change:
        case "a record more":
            table("a.csv", np.vstack([x, x[:1] / 2]), {"ill": [*labels["ill"], 0]})
        case "a column renamed":
            Path("a.csv").write_text(before.replace("a,b", "years,b", 1))
        case "another order":
            table("a.csv", x[::-1], {"ill": labels["ill"][::-1]})
    training = ("train", "s@1", *options, "--steps", "3", "--noise-multiplier", "9", "--delta", "1e-3", "--out", "r")
    assert "was declared public" in refused(*training, "--subset", "0.5:1.0")
    Path("a.csv").write_text(before)
    assert cli(*training, "--subset", "0.5:1.0", "--quiet").code == 0


def test_a_held_out_part_that_scored_public_tickets_cannot_be_private(cli, refused, people):
    """What is left of the file is public; on the rest, accuracies were measured that stand in the set."""
    x, labels = people
    table("a.csv", x, {"ill": labels["ill"]})
    options = ("--dataset", "a.csv", "--label", "ill", *SCALED, "--quiet")
    made = ("--test", "0.4", "--provenance", "public", *TINY, "--out", "s")
    assert cli("generate", *options, *made).code == 0
    training = ("train", "s@1", *options, "--steps", "3", "--noise-multiplier", "9", "--delta", "1e-3", "--out", "r")
    assert "was declared public" in refused(*training, "--subset", "0.0:0.4")


@pytest.mark.usefixtures("people")
def test_a_held_out_part_that_scored_synthetic_records_cannot_be_private(cli, refused):
    options = ("--dataset", "p.csv", "--label", "ill", *SCALED, "--delta", "1e-3", "--ledger", "l.jsonl")
    made = cli(
        "synthesize", *options, "--test", "0.4", "--epsilon", "1", "--records-out", "50", "--out", "s.npz", "--quiet"
    )
    assert made.code == 0
    told = refused("train", *options, *QUICK, "--out", "r")
    assert told.startswith(
        "--dataset: p[0.0:0.4] was declared apart from the people that are protected (a test split), and p"
    )
    assert cli("train", *options, *QUICK, "--test", "0.4", "--out", "r", "--quiet").code == 0


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.usefixtures("people")
def test_parts_by_hash_compose_in_parallel(cli, adjacency):
    """Two halves cost what the costlier one does; a replaced record is in both. Another label is the same file."""
    train = ("train", "--dataset", "p.csv", *SHARED, "--adjacency", adjacency)
    one = cli(*train, "--label", "ill", "--subset", "0.0:0.5", "--out", "one").json
    other = cli(*train, "--label", "old", "--subset", "0.5:1.0", "--out", "other").json
    if adjacency == "replace-one":
        assert epsilon(other) > 1.2 * epsilon(one)
        return
    alone = [epsilon(cli(*train, "--label", "ill", "--ledger", f"{part[:3]}.jsonl", "--subset", part, "--out",
                         part[:3]).json) for part in ("0.0:0.5", "0.5:1.0")]  # fmt: skip
    assert epsilon(other) == max(alone)
    assert epsilon(cli(*train, "--label", "ill", "--subset", "0.4:0.6", "--out", "again").json) > max(alone)


@pytest.mark.parametrize("subset", [None, "0.2:0.9", "digits"])
def test_a_declared_number_hides_the_true_one(cli, refused, subset):
    """Of a file, or of a part that is cut out by hashes: in no artifact, and in no message."""
    if subset == "digits":
        options, hidden = PRIVATE, {len(load("digits", subset="0.5:1.0").train)}
    else:
        x = (np.random.default_rng(0).random((1237, 4)) * 200).astype(np.uint8)
        np.savez("own.npz", x_train=x, y_train=(x[:, 0] > 100).astype(int))
        options = ("--dataset", "own.npz", "--classes", "2", "--records", "1000")
        options += () if subset is None else ("--subset", subset)
        hidden = {1237, len(load("own.npz", subset=subset).train)}
    assert not hidden & {1000, 719, 1438}
    commands = (
        ("generate", *options, *TINY, "--provenance", "private", "--out", "made"),
        ("select", "made", *options, "--eps1", "1", "--sensitivity", "paper"),
        ("train", "made@1", *options, "--steps", "3", "--noise-multiplier", "9", "--out", "run"),
        ("tickets", "export", "made", "--out", "shared", "--yes"),
    )
    for command in commands:
        assert cli(*command, "--quiet").code == 0
    too_many = ("--provenance", "private", "--batch-size", max(hidden) + 1, "--out", "x")
    told = [refused("generate", *options, "--model", "mlp:8", *too_many).partition(": ")[2].partition(" ")[2]]
    texts = (
        path for folder in ("made", "run", "shared") for path in Path(folder).rglob("*.*") if "safe" not in path.name
    )
    for text in (*told, *(path.read_text() for path in texts)):
        # without times, ids and measured figures, whose digits may be any
        text = re.sub(r"[0-9a-f]{8,}|\d{4}-\d\d-\d\dT[0-9:.]+Z|\d+\.\d+(e-?\d+)?", "", text)
        assert not any(str(number) in text for number in hidden), text


def test_everything_in_one_folder_adds_up(cli, people):
    """Who lie side by side are likely the same; other people have another ledger."""
    x, labels = people
    table("q.csv", 1 - x, labels)
    train = ("train", "--label", "ill", *SCALED, "--json", *QUICK)
    one, both = (cli(*train, "--dataset", f"{name}.csv", "--out", name).json for name in "pq")
    assert epsilon(both) > 1.2 * epsilon(one)
    other = cli(*train, "--dataset", "q.csv", "--ledger", "others.jsonl", "--out", "r").json
    assert epsilon(other) == epsilon(one)
    Path("apart").mkdir()
    table("apart/q.csv", 1 - x, labels)
    assert epsilon(cli(*train, "--dataset", "apart/q.csv", "--out", "s").json) == epsilon(one)
    assert Path("apart/dpltm.ledger.jsonl").exists()


def test_shared_rows_are_shown_to_their_owner(cli, people, tree):
    x, labels = people
    theirs = {name: [*y[:5], *y[7:9]] for name, y in labels.items()}
    table("q.csv", np.vstack([1 - x[:5], x[7:9]]), theirs, ["c", "ill", "b", "old", "a"])
    before = tree()
    body = cli("datasets", "overlap", "p.csv", "q.csv", "--label", "ill", "--json").json
    (pair,) = body["splits"]
    assert (pair["records"], pair["shared"]) == ([60, 7], 2)
    assert (pair["first_rows"], pair["second_rows"]) == ([7, 8], [5, 6])
    assert any("keep it to yourself" in note for note in body["notes"])
    assert tree() == before, "nothing is written anywhere"


# Of a file of one's own, a guarantee for single records says that a person may have several

NOTE = (
    "the guarantee is for one record (row): a person with k rows has up to k times the epsilon, at a larger delta; give one"
    " row a person where people are to be protected, or train with --unit-column, the column that says whose a row is"
)


@pytest.mark.parametrize(
    ("command", "times"),
    [
        ("train pub@1 VISITS --steps 2 --epsilon 1 --out r", 1),
        ("select pub VISITS --eps1 0.5", 1),
        ("generate VISITS TINY --provenance private --out s", 1),
        ("generate VISITS TINY --criterion dp-train --epsilon 1 --dry-run", 1),
        ("latent encode s.scheme VISITS --out m", 1),
        ("generate VISITS TINY --provenance public --out s", 0),  # nothing is guaranteed
        ("train pub@1 --dataset digits --subset 0.5:1.0 --steps 2 --epsilon 1 --out r", 0),
        ("train --dense --dataset movielens-small --model ncf --steps 2 --noise-multiplier 1 --out r", 0),
    ],
)
def test_that_a_person_may_have_several_rows_is_said_once(cli, command, times):
    """A file with the name of a known dataset is a file all the same."""
    x = np.random.default_rng(3).integers(0, 17, (300, 8, 8), dtype=np.uint8)
    np.savez("mnist.npz", x_train=x, y_train=np.arange(300) % 10)
    if "s.scheme" in command:
        scheme = ("--public", "digits", "--features", "unit", "--epsilon", "4", "--out", "s.scheme")
        assert cli("latent", "scheme", *scheme).code == 0
    visits = "--dataset mnist.npz --bounds 0,16 --records 300 --classes 10"
    given = command.replace("VISITS", visits).replace("TINY", " ".join(TINY)).split()
    assert cli(*given, "--json").json["privacy"]["notes"].count(NOTE) == times
