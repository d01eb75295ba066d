"""Bounds and categories found under DP, by whole commands: what is spent, where it counts, and what nothing tells."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from commands import certified
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.entry import Lineage
from dpltm.privacy.mechanisms import GaussianRelease, Guarantee, NoisySgd
from dpltm.records.schema import Column, parse_schema, read_schema, schema_text
from dpltm.verbs import schema as stage

DRAFT = """
missing = ["?"]
[column.age]
kind = "number"
bounds = "private"
[column.ward]
kind = "category"
values = "private"
[column.who]
kind = "ignored"
[column.seen]
kind = "date"
bounds = "private"
[column.ill]
kind = "label"
classes = ["no", "yes"]
"""
LEDGER = "dpltm.ledger.jsonl"
FIND = "datasets schema d.csv --schema s.toml --records 600 --out f.toml --private"
TRAIN = (
    "train --dense --dataset d.csv --schema f.toml --model mlp:4 --steps 5 --batch-size 60 --records 600 --epsilon 3"
)


def table(path, count, seed, more=()):
    """Records of three wards, of which one has few, and rows that are as they are given."""
    draw, rows = np.random.default_rng(seed), ["age,ward,who,seen,ill"]
    for _ in range(count):
        age, ward = int(draw.integers(18, 91)), draw.choice(["north", "south", "attic"], p=[0.6, 0.39, 0.01])
        ill = draw.random() < 0.1 + 0.7 * (age > 60)
        day = f"202{draw.integers(5)}-0{draw.integers(1, 10)}-1{draw.integers(10)}"
        shown = "?" if draw.random() < 0.05 else age
        rows.append(f"{shown},{ward},p{draw.integers(count // 3)},{day},{'yes' if ill else 'no'}")
    Path(path).write_text("\n".join([*rows, *more]) + "\n")


@pytest.fixture(autouse=True)
def files(cwd):
    del cwd
    Path("s.toml").write_text(DRAFT)
    table("d.csv", 600, 2)


@pytest.mark.parametrize(("adjacency", "squared"), [("add-remove", 3), ("replace-one", 6)])
def test_what_is_found_costs_what_it_says(cli, entries, adjacency, squared):
    planned = cli(f"{FIND} 2 --ledger l.jsonl --adjacency {adjacency} --dry-run --json").json
    assert (planned["dry_run"], Path("f.toml").exists(), Path("l.jsonl").exists()) == (True, False, False)
    body = cli(f"{FIND} 2 --ledger l.jsonl --adjacency {adjacency} --json").json
    assert (body["columns"], body["ignored"]) == (["age", "ward", "seen"], [])
    (entry,) = entries("l.jsonl")
    assert (entry["kind"], entry["unit"]) == ("release", "record")
    lone, histograms = entry["mechanisms"]
    assert (lone["mechanism"], lone["delta"]) == ("guarantee", pytest.approx(1e-7))
    assert (lone["adjacency"], histograms["adjacency"]) == (adjacency, adjacency)
    assert histograms["sensitivity"] == pytest.approx(squared**0.5)
    assert 1.99 < certified(body) == certified(planned) <= 2
    if adjacency == "add-remove":
        alone = (Guarantee(1e-9, 1e-7), GaussianRelease(histograms["noise_multiplier"]))
        assert certified(body) == pytest.approx(epsilon(alone, 1e-5), rel=1e-6)
    found = read_schema(Path("f.toml"))
    age, ward, who, seen, ill = found.columns
    assert 8 <= age.bounds[0] < age.bounds[1] <= 128  # ages are from 18 to 90; noisy windows may reach a little below
    assert ward.values == (("north",), ("south",)), "of the attic there are too few"
    assert (who.kind, seen.kind, ill.values) == ("ignored", "date", (("no",), ("yes",)))
    assert found.missing == ("?",)
    assert body["schema"] == Path("f.toml").read_text().rstrip("\n")


@pytest.mark.long
def test_one_round_without_a_draft(cli, refused, entries):
    """Kinds, bounds, categories and classes; nothing is read off private cells for nothing."""
    asked = "datasets schema d.csv --label ill --unit-column who"
    before = cli(asked).out
    assert not any(word in before for word in ("north", "yes", "202"))
    assert refused(f"{asked} --private 3").startswith("--out is missing:")
    body = cli(f"{asked} --private 9 --out f.toml --json").json
    (entry,) = entries(LEDGER)
    assert (entry["unit"], len(body["columns"])) == ("who", 4)
    kinds = {column.name: column.kind for column in read_schema(Path("f.toml")).columns}
    assert kinds == {"age": "number", "ward": "category", "who": "ignored", "seen": "date", "ill": "label"}
    assert body["classes"] == ["no", "yes"]
    shares = next(column.shares for column in read_schema(Path("f.toml")).columns if column.kind == "label")
    assert sum(shares) == pytest.approx(1, abs=1e-3)
    assert shares == pytest.approx((0.6, 0.4), abs=0.1)  # of what the release counted: one row of each of 60
    balanced = f"{TRAIN.replace('--epsilon 3', '--epsilon 12')} --class-weight balanced --out b --dry-run --json"
    weight = shares[1] / shares[0]
    assert (
        f"times class weights {weight:.3g},1"
        in cli(balanced.replace("--records 600", "--unit-column who")).json["filter"]
    )
    short = TRAIN.replace("--records 600 --epsilon 3", "--epsilon 12 --unit-column who --batch-size 20")
    assert cli(f"{short} --out r").code == 0
    assert cli("datasets schema d.csv --schema f.toml").out.startswith("d.csv fits f.toml")


@pytest.mark.parametrize("ledger", [LEDGER, "other.jsonl"])
def test_whoever_uses_it_pays_for_it(cli, entries, ledger):
    assert cli(f"{FIND} 1").code == 0
    body = cli(f"{TRAIN} --ledger {ledger} --out r --json").json
    found = entries(LEDGER)[0]
    (trained,) = (entry for entry in entries(ledger) if entry != found)
    everything = (
        Guarantee(1e-9, 1e-7), GaussianRelease(found["mechanisms"][1]["noise_multiplier"]),
        NoisySgd(0.1, 5, trained["mechanisms"][0]["noise_multiplier"]),
    )  # fmt: skip
    assert certified(body) == pytest.approx(epsilon(everything, 1e-5), rel=1e-6)
    assert certified(body) <= 3
    assert (body["columns"], body["accuracy"]) == (["age", "ward", "seen"], None)
    assert any("let --test 0.2 hold a fifth of the records out" in note for note in body["privacy"]["notes"])
    assert found["id"] in Path("r/lineage.json").read_text()


def test_one_row_of_each_person(cli, entries):
    whose = "--unit-column who --records 200 --json"
    body = cli(f"{FIND} 4 {whose}").json
    assert body["privacy"]["certified"]["unit"] == "who"
    assert [entry["unit"] for entry in entries(LEDGER)] == ["who"]
    assert 4 < certified(cli(f"{TRAIN} --batch-size 20 --epsilon 6 {whose}").json) <= 6


def test_held_out_records_are_left_out(cli, refused):
    """What the schema is found from may not be what accuracy is measured on."""
    find = FIND.replace("--records 600 ", "")
    assert cli(f"{find} 1 --ledger all.jsonl").code == 0
    train = f"{TRAIN.replace('--records 600 ', '')} --test 0.2"
    assert "is protected by a release on record" in refused(f"{train} --ledger all.jsonl")
    Path("f.toml").unlink()
    assert cli(f"{find} 1 --test 0.2").code == 0
    body = cli(f"{train} --out r --json").json
    assert 0 < body["accuracy"] <= 1
    assert cli("evaluate r --dataset d.csv --test 0.2 --json").json["accuracy"] == body["accuracy"]


HOSTILE = [
    '"\x1b[31mred",\u202enorth,p0,never,yes',
    f"{'9' * 400},{'x' * 20_000},p1,9999-99-99,no",
    "nan,,p2,,no",
    "-inf,[column.x],p3,1066-10-14,yes",
]


@pytest.mark.one_of(3)
@pytest.mark.parametrize(
    "names", ["age,ward,who,seen,ill", "age,age#0,ward missing,age=1,ill"], ids=["", "as features"]
)
@pytest.mark.parametrize("row", HOSTILE, ids=range(len(HOSTILE)))
def test_nothing_tells_of_a_record_that_nobody_else_is_like(cli, monkeypatch, row, names):
    """The same noise on both neighbours: the same schema, the same words, and no refusal, here or when it is used."""
    monkeypatch.setattr(stage, "gaussian_mechanism", lambda values, *_: values.copy())
    told, draft = [], DRAFT
    for old, new in zip(["age", "ward", "who", "seen", "ill"], names.split(","), strict=True):
        draft = draft.replace(f"[column.{old}]", f'[column."{new}"]')
    Path("s.toml").write_text(draft)
    for name, more in (("one", ()), ("other", (row,))):
        table("d.csv", 600, 2, more)
        Path("d.csv").write_text(Path("d.csv").read_text().replace("age,ward,who,seen,ill", names, 1))
        body = cli(f"{FIND.replace('f.toml', f'{name}.toml')} 2 --ledger {name}.jsonl --json").json
        said = re.sub(r"[0-9a-f]{64}", "", json.dumps(body) + Path(f"{name}.toml").read_text())
        told.append(said.replace(f"{name}.", "f."))
    assert told[0] == told[1]
    assert told[0].isascii()
    assert cli(f"{TRAIN.replace('f.toml', 'other.toml')} --ledger other.jsonl").code == 0


def test_releases_that_were_changed_are_refused(cli, refused):
    assert cli(f"{FIND} 2").code == 0
    text = Path("f.toml").read_text()
    assert len(parse_schema(text, "here").lineage.entries) == 1
    for old, new in (("gaussian", "gauss"), ('"{', '"['), ("sensitivity", "size")):
        Path("f.toml").write_text(text.replace(old, new))
        assert refused(TRAIN).startswith("--schema f.toml: its lineage is damaged")
    Path("f.toml").write_text(re.sub("(?m)^lineage = .*", "found = []", text))
    assert refused(TRAIN).startswith("--schema f.toml: written by dpltm before 0.3")


def test_what_was_found_before_stays_with_the_schema_and_finding_again_costs_again(cli, refused):
    """A column that is found later brings a release of its own, beside those of the others."""
    assert cli(f"{FIND} 1").code == 0
    first = read_schema(Path("f.toml")).lineage.entries
    assert refused(f"{FIND} 1").startswith("--out: f.toml exists already")
    assert refused(f"{FIND.replace('f.toml', 'g.toml')} 1", code=1).startswith("budget: ")
    again, count = re.subn(r"bounds = \[2.*", 'bounds = "private"', Path("f.toml").read_text())
    assert count == 1
    Path("s.toml").write_text(again)
    assert cli(f"{FIND.replace('f.toml', 'g.toml')} 2").code == 0
    found = read_schema(Path("g.toml")).lineage.entries
    assert found[:1] == first
    assert [entry.words for entry in found[1:]] == ["histograms of 1 column for a schema"]


def test_a_draft_that_might_grow_too_large_to_be_read_is_refused(refused):
    """The largest names that may be found fit beside whatever is not refused."""
    street = ", ".join(f'"{"x" * 60}{number}"' for number in range(9_999))
    Path("d.csv").write_text(re.sub(r"(?m)$(?!\Z)", ",", Path("d.csv").read_text()).replace("ill,", "ill,street", 1))
    column = f'\n[column.street]\nkind = "category"\nother = true\nmissing = true\nvalues = [{street}]\n'
    text = DRAFT.replace('missing = ["?"]', 'missing = ["?", ""]') + column
    text = text.replace(
        '"category"\nvalues = "private"', '"category"\nother = true\nmissing = true\nvalues = "private"'
    )
    Path("s.toml").write_text(text)
    assert refused(f"{FIND} 1").startswith("--private: what is found might make a schema too large to be read (1,")
    # as large as names can be, each of their bytes escaped
    names = tuple((f"{number:04d}" + '"' * (stage.LONGEST_NAME - 4),) for number in range(stage.MOST_NAMES))
    schema = read_schema(Path("s.toml"))
    grown = schema_text(schema, [Column("n", "category", values=names)], Lineage(), "")
    bare = schema_text(schema, [Column("n", "ignored")], Lineage(), "")
    most = stage.MOST_NAMES * stage.NAME_BYTES + stage.COLUMN_BYTES
    assert len(grown.encode()) <= len(bare.encode()) + most


def test_a_delta_that_names_have_used_up_is_said(cli, refused):
    assert cli(f"{FIND} 1").code == 0
    for more in ("", "--features unit --centre 0.2"):
        assert refused(f"{TRAIN} --delta 1e-7 {more}").startswith("--delta: 1e-07 is not above 1e-07")
