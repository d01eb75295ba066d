"""Bounds and categories found under DP, by whole commands: what is spent, where it counts, and what nothing tells."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from dpltm.privacy.accountant import epsilon
from dpltm.privacy.entry import Lineage
from dpltm.privacy.mechanisms import GaussianRelease, Guarantee, NoisySgd
from dpltm.records import private_columns
from dpltm.records.private_columns import load_unfinished
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
FIND = ("datasets", "schema", "d.csv", "--private", "s.toml", "--records", "600")
SHORT = ("--model", "mlp:4", "--steps", "5", "--batch-size", "60", "--records", "600")


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


def test_what_is_found_costs_what_it_says(cli, entries):
    body = cli(*FIND, "--epsilon", "2", "--out", "f.toml", "--ledger", "l.jsonl", "--json").json
    assert body["columns"] == ["age", "ward", "seen"]
    assert body["ignored"] == []
    (entry,) = entries("l.jsonl")
    assert (entry["kind"], entry["words"], entry["unit"]) == (
        "release", "histograms of 3 columns for a schema", "record",
    )  # fmt: skip
    lone, histograms = entry["mechanisms"]
    assert (lone["mechanism"], lone["delta"]) == ("guarantee", pytest.approx(1e-7))
    assert histograms["sensitivity"] == pytest.approx(3**0.5)
    alone = (Guarantee(1e-9, 1e-7), GaussianRelease(histograms["noise_multiplier"]))
    certified = body["privacy"]["certified"]["epsilon"]
    assert certified == pytest.approx(epsilon(alone, 1e-5), rel=1e-6)
    assert 1.99 < certified <= 2
    found = read_schema(Path("f.toml"))
    age, ward, who, seen, ill = found.columns
    assert (
        8 <= age.bounds[0] < age.bounds[1] <= 128
    )  # ages are from 18 to 90; windows of noisy counts may reach a little below
    assert ward.values == (("north",), ("south",)), "of the attic there are too few"
    assert (who.kind, seen.kind, ill.values) == ("ignored", "date", (("no",), ("yes",)))
    assert found.missing == ("?",)
    assert body["schema"] == Path("f.toml").read_text().rstrip("\n")


def test_at_a_terminal_it_shows_what_it_cost(cli):
    done = cli(*FIND, "--epsilon", "2", "--out", "f.toml")
    assert (done.code, done.err) == (0, "")
    assert "wrote f.toml" in done.out
    assert "certified epsilon = " in done.out


@pytest.mark.parametrize("ledger", [(), ("--ledger", "other.jsonl")])
def test_whoever_uses_it_pays_for_it(cli, entries, ledger):
    """In the ledger that holds it already, or beside another one: once."""
    cli(*FIND, "--epsilon", "1", "--out", "f.toml", "--quiet")
    train = ("train", "--dense", "--dataset", "d.csv", "--schema", "f.toml", *SHORT, "--epsilon", "3", *ledger)
    body = cli(*train, "--out", "r", "--json").json
    (found,) = entries("dpltm.ledger.jsonl")[:1]
    (trained,) = (entry for entry in entries(ledger[1] if ledger else "dpltm.ledger.jsonl") if entry != found)
    everything = (
        Guarantee(1e-9, 1e-7), GaussianRelease(found["mechanisms"][1]["noise_multiplier"]),
        NoisySgd(0.1, 5, trained["mechanisms"][0]["noise_multiplier"]),
    )  # fmt: skip
    certified = body["privacy"]["certified"]["epsilon"]
    assert certified == pytest.approx(epsilon(everything, 1e-5), rel=1e-6)
    assert certified <= 3
    assert body["columns"] == ["age", "ward", "seen"]
    carried = json.loads(Path("r/lineage.json").read_text())
    assert found["id"] in json.dumps(carried)


def test_all_stages_carry_it(cli):
    """Tickets by its bounds, winners, runs, and what is carried over to a schema without it: by id."""
    cli(*FIND, "--epsilon", "1", "--out", "f.toml", "--quiet")
    (found,) = read_schema(Path("f.toml")).lineage.entries
    table("public.csv", 200, 5)
    tiny = ("--model", "mlp:4", "--rounds", "2", "--iterations", "9", "--batch-size", "20", "--provenance", "public")
    data = ("--schema", "f.toml")
    cli("generate", "--dataset", "public.csv", *data, *tiny, "--criterion", "inputs", "--out", "t", "--quiet")
    assert found.id in Path("t/lineage.json").read_text(), "the masks go by bounds of private records"
    drawn = cli("select", "t", "--dataset", "d.csv", *data, "--records", "600", "--eps1", "0.5", "--json").json
    assert 1 < drawn["privacy"]["certified"]["epsilon"] <= 1.5
    body = cli("train", "t", "--dataset", "d.csv", *data, *SHORT[2:], "--epsilon", "3", "--out", "r", "--json").json
    assert 2.9 < body["privacy"]["certified"]["epsilon"] <= 3
    text = Path("f.toml").read_text()
    Path("mine.toml").write_text(re.sub("(?m)^lineage = .*\n", "", text))
    assert not read_schema(Path("mine.toml")).lineage
    cli("tickets", "transfer", "t@1", "--dataset", "d.csv", "--schema", "mine.toml", "--out", "t2", "--quiet")
    for name in ("t", "t2"):
        other = ("--schema", "mine.toml", "--ledger", f"{name}.jsonl", "--out", f"{name}.run", "--quiet")
        cli("train", f"{name}@1", "--dataset", "d.csv", *SHORT[2:], "--epsilon", "4", *other)
        assert found.id in Path(f"{name}.run/lineage.json").read_text()


def test_one_row_of_each_person(cli, entries):
    whose = ("--unit-column", "who", "--records", "200", "--json")
    body = cli(*FIND[:-2], *whose, "--epsilon", "4", "--out", "f.toml").json
    assert body["privacy"]["certified"]["unit"] == "who"
    assert [entry["unit"] for entry in entries("dpltm.ledger.jsonl")] == ["who"]
    short = ("--steps", "3", "--batch-size", "20", "--epsilon", "6", "--model", "mlp:4")
    again = cli("train", "--dense", "--dataset", "d.csv", "--schema", "f.toml", *short, *whose)
    assert 4 < again.json["privacy"]["certified"]["epsilon"] <= 6


def test_replace_one(cli, entries):
    cli(*FIND, "--epsilon", "2", "--adjacency", "replace-one", "--out", "f.toml", "--quiet")
    (entry,) = entries("dpltm.ledger.jsonl")
    lone, histograms = entry["mechanisms"]
    assert (lone["adjacency"], histograms["adjacency"]) == ("replace-one", "replace-one")
    assert histograms["sensitivity"] == pytest.approx(6**0.5)


def test_held_out_records_are_left_out(cli, refused):
    """What the schema is found from may not be what accuracy is measured on."""
    cli(*FIND[:-2], "--epsilon", "1", "--out", "all.toml", "--ledger", "all.jsonl", "--quiet")
    cli(*FIND[:-2], "--test", "0.2", "--epsilon", "1", "--out", "f.toml", "--quiet")
    short = (*SHORT[:4], "--batch-size", "40", "--epsilon", "3")
    train = ("train", "--dense", "--dataset", "d.csv", "--test", "0.2", *short)
    said = refused(*train, "--schema", "all.toml", "--ledger", "all.jsonl")
    assert "is protected by a release on record" in said
    body = cli(*train, "--schema", "f.toml", "--out", "r", "--json").json
    assert 0 < body["accuracy"] <= 1
    again = cli("evaluate", "r", "--dataset", "d.csv", "--test", "0.2", "--json").json
    assert again["accuracy"] == body["accuracy"]


def test_without_a_test_split_one_is_offered(cli):
    cli(*FIND, "--epsilon", "1", "--out", "f.toml", "--quiet")
    train = ("train", "--dense", "--dataset", "d.csv", "--schema", "f.toml", *SHORT, "--epsilon", "3", "--json")
    body = cli(*train).json
    assert body["accuracy"] is None
    assert (
        "accuracy is not measured, since there is no test split: name a file with one by --test, or let --test 0.2 hold a"
        " fifth of the records out by a public hash; nothing is promised for those"
    ) in body["privacy"]["notes"]


HOSTILE = [
    '"\x1b[31mred",\u202enorth,p0,never,yes',
    f"{'9' * 400},{'x' * 20_000},p1,9999-99-99,no",
    "nan,,p2,,no",
    "-inf,[column.x],p3,1066-10-14,yes",
]


@pytest.mark.parametrize(
    "names", ["age,ward,who,seen,ill", "age,age#0,ward missing,age=1,ill"], ids=["", "as features"]
)
@pytest.mark.parametrize("row", HOSTILE, ids=range(len(HOSTILE)))
def test_nothing_tells_of_a_record_that_nobody_else_is_like(cli, monkeypatch, row, names):
    """The same noise on both neighbours: the same schema, the same words, and no refusal, here or when it is used."""

    def without_noise(values, noise_std, source):
        del noise_std, source
        return values.copy()

    monkeypatch.setattr(private_columns, "gaussian_mechanism", without_noise)
    told, draft = [], DRAFT
    for old, new in zip(["age", "ward", "who", "seen", "ill"], names.split(","), strict=True):
        draft = draft.replace(f"[column.{old}]", f'[column."{new}"]')
    Path("s.toml").write_text(draft)
    for name, more in (("one", ()), ("other", (row,))):
        table("d.csv", 600, 2, more)
        Path("d.csv").write_text(Path("d.csv").read_text().replace("age,ward,who,seen,ill", names, 1))
        own = ("--ledger", f"{name}.jsonl")
        body = cli(*FIND, "--epsilon", "2", "--out", f"{name}.toml", *own, "--json").json
        said = json.dumps(body) + Path(f"{name}.toml").read_text()
        said = re.sub(r"[0-9a-f]{64}", "", said)
        told.append(said.replace(f"{name}.", "f."))
    assert told[0] == told[1]
    assert told[0].isascii()
    cli("train", "--dense", "--dataset", "d.csv", "--schema", "other.toml", *SHORT, "--epsilon", "4", *own, "--quiet")


LEAK = """
[column.age]
kind = "number"
bounds = [0, 100]
missing = true

[column."age missing"]
kind = "category"
values = "private"

[column.ill]
kind = "label"
classes = ["no", "yes"]
"""


def test_columns_that_are_named_as_features_are_told_apart(tmp_path, monkeypatch):
    """Codes are of the column itself: a lone name behind a full cell of another column does not come out."""
    (tmp_path / "d.csv").write_text("age,age missing,ill\n" + "".join(f"{n},cell {n},no\n" for n in range(40)))
    with monkeypatch.context() as patched:
        patched.setattr("dpltm.records.schema._check_told_apart", lambda *_: None)
        schema = parse_schema(LEAK, "here")
    coder = private_columns.Coder()
    codes = load_unfinished(tmp_path / "d.csv", schema, coder).codes
    assert [list(coder.names["age missing"])[int(code)] for code in codes[:, 0]] == [f"cell {n}" for n in range(40)]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ("kind = 'number'\nbounds = [0, 9]", "city=Rome"),
        ("kind = 'category'\nvalues = 'private'", "city=Rome"),
        ("kind = 'hashed'\nbuckets = 2", "city=a"),
    ],
)
def test_names_that_what_is_found_may_take_are_refused(refused, other, named):
    """Or a finished schema, paid for, would be one that nobody can read."""
    Path("s.toml").write_text(f'[column."{named}"]\n{other}\n[column.city]\nkind = "category"\nvalues = "private"\n'
                              "[column.ill]\nkind = 'label'\nclasses = ['no', 'yes']\n")  # fmt: skip
    feature = f"{named}#0" if "hashed" in other else named
    assert refused(*FIND[:5], "--epsilon", "1", "--out", "f.toml") == (
        f"--private s.toml: columns 'city' and {named!r} could both make a feature {feature!r}; rename one of them, in the"
        " table too"
    )


def test_features_of_one_name_are_refused_before_anything_is_spent(refused):
    Path("leak.toml").write_text(LEAK)
    text = (
        "columns 'age' and 'age missing' could both make a feature 'age missing'; rename one of them, in the table too"
    )
    for private in (LEAK, LEAK.replace("\nmissing = true", "").replace("[0, 100]", '"private"')):
        Path("leak.toml").write_text(private)
        said = refused("datasets", "schema", "d.csv", "--private", "leak.toml", "--epsilon", "1", "--out", "f.toml")
        assert said == f"--private leak.toml: {text}"
    Path("leak.toml").write_text(LEAK.replace('"private"', '["a"]').replace("column.age]", 'column."x=a"]')
                                 .replace('column."age missing"]', "column.x]"))  # fmt: skip
    said = refused("train", "--dense", "--dataset", "d.csv", "--schema", "leak.toml", "--epsilon", "1")
    assert said == (
        "--schema leak.toml: columns 'x=a' and 'x' could both make a feature 'x=a'; rename one of them, in the table too"
    )
    assert not any(Path().glob("*f.toml*"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "--epsilon is missing: what finding bounds and values may spend, such as 0.2"),
        (("--epsilon", "0"), "--epsilon: 0 is not a positive number up to 10000"),
        (("--epsilon", "1", "--delta", "0.5"), "--delta: 0.5 is not between 0 and 1/n = 0.00167 for 600 records"),
        (("--epsilon", "1", "--label", "ill"), "--label: is for a first draft; leave it out, since s.toml says it"),
        (("--epsilon", "1", "--test", "t.csv"), "--test t.csv: is the fraction that the training holds out, such as 0.2"),
        (("--epsilon", "1", "--unit-column", "ward"), "--unit-column ward: is a feature by the schema; give that column"),
        (("--epsilon", "1", "--unit-column", "none"), "--unit-column none: d.csv has no such column; it has 'age', 'ward'"),
        (("--epsilon", "1e-9"), "no noise reaches"),
    ],
)  # fmt: skip
def test_refused(refused, more, message):
    said = refused(*FIND, *more, "--out", "f.toml")
    assert said.startswith(message) or message == "no noise reaches"
    assert not Path("f.toml").exists()
    assert not Path("dpltm.ledger.jsonl").exists()


def test_drafts_that_are_refused(cli, refused):
    assert refused(*FIND, "--epsilon", "1") == (
        "--out is missing: what is found is written once, and finding it again costs again; name a file"
    )
    assert refused("datasets", "schema", "d.csv", "--epsilon", "1") == (
        "--epsilon: goes with --private, the draft whose private parts are to be found; add it"
    )
    assert refused("train", "--dense", "--dataset", "d.csv", "--schema", "s.toml", "--epsilon", "1") == (
        "--schema: bounds or values of 'age', 'ward', 'seen' are still private; write public ones, or find them with dpltm"
        " datasets schema FILE --private SCHEMA"
    )
    out = ("--epsilon", "1", "--out", "f.toml")
    assert refused(*FIND[:3], "--private", "none.toml", *out) == (
        "--private none.toml: no such file; correct the path, or draft one with dpltm datasets schema"
    )
    dates = DRAFT.replace('bounds = "private"', "bounds = [2020-01-01, 2024-12-31]").replace("number", "date")
    Path("s.toml").write_text(dates
                              .replace('values = "private"', 'values = ["north"]'))  # fmt: skip
    assert refused(*FIND, *out) == (
        '--private: nothing in this schema is private; write bounds = "private" or values = "private"'
    )
    Path("s.toml").write_text(DRAFT.replace('["no", "yes"]', '["no", "maybe"]'))
    assert refused(*FIND, *out).startswith("d.csv: does not fit its schema: line ")
    Path("s.toml").write_text(DRAFT)
    cli(*FIND, *out, "--quiet")
    assert refused(*FIND, *out).startswith("--out: f.toml exists already")
    said = refused(*FIND, "--epsilon", "1", "--out", "g.toml", code=1)
    assert said.startswith("budget: ")
    assert not Path("g.toml").exists()


def test_a_dry_run_spends_nothing(cli):
    before = sorted(Path().iterdir())
    body = cli(*FIND, "--epsilon", "2", "--dry-run", "--json").json
    assert body["dry_run"] is True
    assert 1.99 < body["privacy"]["certified"]["epsilon"] <= 2
    assert sorted(Path().iterdir()) == before


def test_releases_that_were_changed_are_refused(cli, refused):
    cli(*FIND, "--epsilon", "2", "--out", "f.toml", "--quiet")
    text = Path("f.toml").read_text()
    assert len(parse_schema(text, "here").lineage.entries) == 1
    train = ("train", "--dense", "--dataset", "d.csv", "--schema", "f.toml", "--epsilon", "3")
    for old, new in (("gaussian", "gauss"), ('"{', '"['), ("sensitivity", "size")):
        Path("f.toml").write_text(text.replace(old, new))
        assert refused(*train).startswith("--schema f.toml: its lineage is damaged")
    Path("f.toml").write_text(re.sub("(?m)^lineage = .*", "found = []", text))
    assert refused(*train) == ("--schema f.toml: written by dpltm before 0.3; find its bounds and values again")


def test_what_was_found_before_stays_with_the_schema(cli):
    """A column that is found later brings a release of its own, beside those of the others."""
    cli(*FIND, "--epsilon", "1", "--out", "f.toml", "--quiet")
    first = read_schema(Path("f.toml")).lineage.entries
    Path("again.toml").write_text(re.sub(r"bounds = \[2.*", 'bounds = "private"', Path("f.toml").read_text()))
    cli(*FIND[:3], "--private", "again.toml", "--records", "600", "--epsilon", "2", "--out", "g.toml", "--quiet")
    found = read_schema(Path("g.toml")).lineage.entries
    assert found[:1] == first
    assert [entry.words for entry in found[1:]] == ["histograms of 1 column for a schema"]


def test_a_schema_without_features_is_found_wanting(cli):
    """It was paid for, so it is written; whoever paid is told at once that nothing can be trained by it."""
    done = cli(*FIND, "--epsilon", "0.0001", "--out", "f.toml", "--json")
    assert done.code == 1
    body = json.loads(done.out)
    assert (body["features"], body["ignored"]) == (0, ["age", "ward", "seen"])
    note = (
        "nothing stands out of the noise in any column, and the draft has no other features, so nothing can be trained by"
        " this schema: raise --epsilon, write public bounds and values, or ask for fewer columns"
    )
    assert body["notes"] == [note]
    shown = cli(*FIND, "--epsilon", "0.0001", "--out", "g.toml", "--ledger", "g.jsonl").out
    assert note in " ".join(shown.split())
    assert cli(*FIND, "--epsilon", "2", "--out", "h.toml", "--ledger", "h.jsonl", "--json").json["features"] == 7


def test_a_draft_that_might_grow_too_large_to_be_read_is_refused(refused):
    """The largest names that may be found fit beside whatever is not refused."""
    street = ", ".join(f'"{"x" * 60}{number}"' for number in range(9_999))
    Path("s.toml").write_text(f'{DRAFT}\n[column.street]\nkind = "category"\nvalues = [{street}]\n')
    Path("d.csv").write_text(re.sub(r"(?m)$(?!\Z)", ",", Path("d.csv").read_text()).replace("ill,", "ill,street", 1))
    text = (
        Path("s.toml")
        .read_text()
        .replace('kind = "category"\nvalues = [', 'kind = "category"\nother = true\nmissing = true\nvalues = [')
    )
    Path("s.toml").write_text(text.replace('missing = ["?"]', 'missing = ["?", ""]'))
    said = refused(*FIND, "--epsilon", "1", "--out", "f.toml")
    assert re.fullmatch(
        r"--private: what is found might make a schema too large to be read \(1,\d{3},\d{3} of 1,048,576 bytes, 12,006 of"
        r" 100,000 features\); list fewer values, or shorter ones, in the draft",
        said,
    )
    assert not any(Path().glob("f.toml*"))
    # as large as names can be, each of their bytes escaped
    names = tuple(
        (f"{number:04d}" + '"' * (private_columns.LONGEST_NAME - 4),) for number in range(private_columns.MOST_NAMES)
    )
    grown = schema_text(read_schema(Path("s.toml"), "it"), [Column("n", "category", values=names)], Lineage())
    bare = schema_text(read_schema(Path("s.toml"), "it"), [Column("n", "ignored")], Lineage())
    assert (
        len(grown.encode()) <= len(bare.encode()) + private_columns.MOST_NAMES * stage.NAME_BYTES + stage.COLUMN_BYTES
    )


def test_a_delta_that_names_have_used_up_is_said(cli, refused):
    cli(*FIND, "--epsilon", "1", "--out", "f.toml", "--quiet")
    train = ("train", "--dense", "--dataset", "d.csv", "--schema", "f.toml", *SHORT, "--delta", "1e-7")
    said = (
        "--delta: 1e-07 is not above 1e-07, the delta of releases on record for these records, such as of names of"
        " categories in a schema; raise it (below 1/n), or find a schema with a smaller one"
    )
    assert refused(*train, "--epsilon", "3") == said
    assert refused(*train, "--epsilon", "3", "--features", "unit", "--centre", "0.2") == said
