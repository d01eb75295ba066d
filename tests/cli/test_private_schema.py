"""Tables with words, dates and holes, by whole commands: bounds found under DP, and those that are public."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from commands import certified
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.entry import Lineage
from dpltm.privacy.mechanisms import GaussianRelease, Guarantee, NoisySgd
from dpltm.records.schema import MAX_BYTES, Column, parse_schema, read_schema, schema_text
from dpltm.verbs import schema as stage

DRAFT = """
missing = ["?"]
column.age = { kind = "number", bounds = "private" }
column.ward = { kind = "category", values = "private" }
column.who = { kind = "ignored" }
column.seen = { kind = "date", bounds = "private" }
column.ill = { kind = "label", classes = ["no", "yes"] }
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


def test_classes_are_named_or_found_for_sure(cli, refused):
    """Those that are named cost nothing; those that noise may hide are refused before payment."""
    asked = "datasets schema d.csv --label ill --records 600"
    said = refused(f"{asked} --private 1 --out f.toml")
    assert said.startswith("--classes is missing: at this epsilon a class with under ")
    assert refused(f"{asked} --private 1 --dry-run") == said
    assert not Path(LEDGER).exists()
    free = cli(f"{asked} --classes no,yes --private 2 --out f.toml --json").json
    planned = cli(f"{asked} --private 60 --dry-run --json").json
    assert (free["columns"], free["classes"]) == (["age", "ward", "who", "seen"], ["no", "yes"])
    assert (planned["columns"], planned["rarest"] <= 10) == ([*free["columns"], "ill"], True)
    assert 20 < free["rarest"] < 40
    assert set(free["outside"]) == {"age", "seen"}
    assert all(share < 0.2 for share in free["outside"].values())


def test_a_target_is_drafted_by_its_bounds(cli):
    Path("d.csv").write_text(Path("d.csv").read_text().replace("?", "40"))
    body = cli("datasets schema d.csv --label age --target-bounds 0,120 --private 3 --out f.toml --json").json
    assert (body["features"] > 0, body["classes"]) == (True, None)
    assert read_schema(Path("f.toml")).target == (0, 120)


def european(path, decimal=","):
    draw = np.random.default_rng(2)
    cells = [[f"{value:.1f}".replace(".", decimal) for value in draw.normal(30, 9, 2)] for _ in range(600)]
    rows = [["dose", "temp", "high"], *[[*pair, "no" if place % 2 else "yes"] for place, pair in enumerate(cells)]]
    Path(path).write_text("".join(";".join(f'"{cell}"' for cell in row) + "\n" for row in rows))


def test_separator_and_decimal_mark_go_together(cli, refused):
    european("d.csv")
    asked = "datasets schema d.csv --label high --classes no,yes --private 4 --out"
    assert cli(f"{asked} f.toml").code == 0
    dose, temp, _ = read_schema(Path("f.toml")).columns
    assert (dose.kind, temp.kind, dose.decimal) == ("number", "number", ",")
    european("d.csv", ".")
    assert "in a form that is not read; write 1,5 and 2024-12-31, or say separator and decimal" in refused(
        f"{asked} g.toml"
    )
    Path("s.toml").write_text('separator = ";"\n')
    assert cli(f"{asked} g.toml --schema s.toml --ledger l.jsonl").code == 0
    assert [column.kind for column in read_schema(Path("g.toml")).columns] == ["number", "number", "label"]


SPELLED = {
    "{:.0f} %": ('kind = "ignored"', "ignored"),
    '"{:,.2f}"': ('kind = "ignored"', "ignored"),
    "${:.2f}": ('kind = "ignored"', "ignored"),
    "{:.0f}.12.2024": ('kind = "category"\nvalues = "private"', "category"),
}
"""How cells are spelled, what a schema says of their column then, and the kind that is found."""


@pytest.mark.parametrize("spelled", SPELLED)
def test_a_column_that_is_spelled_in_another_way_is_refused_with_what_to_write(cli, refused, spelled):
    """Before payment, and for public records too: its numbers would be words, of which each is rare."""
    schema, kind = SPELLED[spelled]
    of = (lambda place: place % 28 + 1) if kind == "category" else (lambda place: 1000 + place)
    rows = [f"{spelled.format(of(place))},{place % 7}.5,{'no' if place % 3 else 'yes'}" for place in range(600)]
    Path("d.csv").write_text("fee,dose,ill\n" + "\n".join(rows) + "\n")
    asked = "datasets schema d.csv --label ill --classes no,yes --out f.toml"
    assert "column 'fee' holds numbers or dates in a form that is not read; " in (
        told := refused(f"{asked} --private 8")
    )
    assert refused(f"{asked} --from-public") == told
    assert not Path(LEDGER).exists()
    Path("s.toml").write_text(f"[column.fee]\n{schema}\n")
    assert cli(f"{asked} --private 8 --schema s.toml").code == 0
    assert read_schema(Path("f.toml")).columns[0].kind == kind


def test_columns_of_one_name_are_named(refused):
    Path("d.csv").write_text("fee,fee,ill\n1,2,no\n")
    assert refused("datasets schema d.csv --label ill --private 4 --out f.toml").startswith(
        "d.csv: has twice the columns 'fee'; rename one of them"
    )


def test_what_is_read_off_public_records(cli, refused):
    """Identifiers are no features, classes have shares, and a label without a choice is refused."""
    rows = [
        f"{7919 * place % 10**6},{place},{place % 70},{place / 7:.3f},{'no' if place % 4 else 'yes'},1"
        for place in range(400)
    ]
    Path("d.csv").write_text("customer_id,seat,patient,fee,ill,only\n" + "\n".join(rows) + "\n")
    asked = "datasets schema d.csv --from-public --label"
    body = cli(f"{asked} ill --out f.toml --json").json
    kinds = {column.name: column.kind for column in read_schema(Path("f.toml")).columns}
    assert kinds == {"customer_id": "ignored", "seat": "ignored", "patient": "ignored", "fee": "number", "ill": "label",
                     "only": "number"}  # fmt: skip
    assert read_schema(Path("f.toml")).label.shares == (0.75, 0.25)
    assert "look like identifiers: 'customer_id', 'seat', 'patient'" in body["notes"][0]
    Path("s.toml").write_text('[column.seat]\nkind = "number"\nbounds = "private"\n')
    assert cli(f"{asked} ill --schema s.toml --out g.toml").code == 0
    assert read_schema(Path("g.toml")).columns[1].kind == "number"
    assert "has no record of a second class" in refused(f"{asked} only")
    assert "holds 400 numbers" in refused(f"{asked} fee")
    assert "has no record of 'perhaps'" in refused(f"{asked} ill --classes no,yes,perhaps")
    assert refused(f"{asked} ill --classes yes").startswith("--classes:")


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
    done = cli(f"{find} 1 --ledger all.jsonl")
    assert "no later command can measure on one exactly; --test 0.2 leaves a fifth out" in done.out
    train = f"{TRAIN.replace('--records 600 ', '')} --test 0.2"
    assert "is protected by a release on record" in refused(f"{train} --ledger all.jsonl")
    Path("f.toml").unlink()
    assert cli(f"{find} 1 --test 0.2").code == 0
    body = cli(f"{train} --out r --json").json
    assert 0 < body["accuracy"] <= 1
    assert cli("evaluate r --dataset d.csv --test 0.2 --json").json["accuracy"] == body["accuracy"]


def test_what_can_hardly_find_anything_is_refused_before_it_is_paid(cli, refused):
    """Where half of the rows, all alike, would not be found 19 times of 20; above that it is said what would be."""
    said = refused(f"{FIND.replace('--records 600', '--records 200')} 0.2")
    told, rows = re.fullmatch(
        r"--private: (found .* a category that \d+ rows have; .* where (\d+) rows lie .*); 200 rows count, so .*", said
    ).groups()
    assert 200 < int(rows) <= 300
    assert not Path(LEDGER).exists()
    just = FIND.replace("--records 600", f"--records {2 * int(rows)}")
    assert told in cli(f"{just} 0.2 --dry-run --json").json["privacy"]["notes"]
    fewer = f"{FIND.replace('--records 600', f'--records {2 * int(rows) - 1}')} 0.2"
    assert refused(fewer).startswith(f"--private: {told}")
    assert told in cli(f"{just} 0.2 --json").json["privacy"]["notes"]


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
        draft = draft.replace(f"column.{old} =", f'column."{new}" =')
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
    column = f'column.street = {{ kind = "category", other = true, missing = true, values = [{street}] }}\n'
    text = DRAFT.replace('missing = ["?"]', 'missing = ["?", ""]') + column
    text = text.replace('"category", values', '"category", other = true, missing = true, values')
    Path("s.toml").write_text(text)
    assert refused(f"{FIND} 1").startswith("--private: what is found might make a schema too large to be read")
    # as large as names can be, each of their bytes escaped
    names = tuple((f"{number:04d}" + '"' * (stage.LONGEST_NAME - 4),) for number in range(stage.MOST_NAMES))
    grown = schema_text(read_schema(Path("s.toml")), [Column("n", "category", values=names)], Lineage(), "")
    assert 4 * stage.MOST_TEXT + len(grown.encode()) + 200 * stage.MOST_COLUMNS < MAX_BYTES


def test_a_delta_that_names_have_used_up_is_said(cli, refused):
    assert cli(f"{FIND} 1").code == 0
    for more in ("", "--features unit --centre 0.2"):
        assert refused(f"{TRAIN} --delta 1e-7 {more}").startswith("--delta: 1e-07 is not above 1e-07")


# --- bounds that are public: all three stages, and what a run remembers ---

PUBLIC = DRAFT.replace('values = "private"', 'values = ["north", "south", "attic"]')
PUBLIC = PUBLIC.replace('"private"', "[18, 90], missing = true", 1).replace('"private"', "[2020-01-01, 2024-12-31]")
TICKETS = "--model mlp:8 --rounds 2 --prune 0.3 --iterations 20 --batch-size 32"
DATA = "--dataset d.csv --schema s.toml"
PUBLIC_TRAIN = f"train --dense {DATA} --model mlp:4 --steps 3 --noise-multiplier 2 --batch-size 20 --delta 1e-3"


@pytest.fixture
def public():
    Path("s.toml").write_text(PUBLIC)
    for name, count, seed in (("public.csv", 200, 1), ("d.csv", 400, 2), ("t.csv", 150, 4)):
        table(name, count, seed)
    Path("t.csv").write_text(Path("t.csv").read_text().replace(",p", ",q"))  # other persons


@pytest.mark.usefixtures("public")
def test_three_stages_on_a_mixed_table(cli):
    """Nothing is said twice; and the columns that a network does not read change no answer."""
    tickets = (
        f"generate --dataset public.csv --schema s.toml {TICKETS} --provenance public --criterion inputs --prune 0.6"
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
    other = {"age": "18", "ward": "attic", "seen": "2020-01-01"}
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


@pytest.mark.usefixtures("public")
@pytest.mark.one_of(2)
@pytest.mark.parametrize("label", ["ill", "ward"])
@pytest.mark.parametrize("whose", ["", "--unit-column who"])
def test_records_that_a_schema_was_read_off_cannot_be_private(cli, refused, entries, label, whose):
    """Whichever column is the label, whose the records are, and whatever schema they are read by."""
    read = f"datasets schema d.csv --label {label} {whose} --from-public"
    assert cli(f"{read} --out public.toml").code == 0
    for schema in ("public.toml", "s.toml"):
        said = refused(f"{PUBLIC_TRAIN} {whose} --schema {schema}")
        assert said.startswith("--dataset: d was declared public, and d shares records with it")
    assert cli(f"{read} --out again.toml").code == 0
    (entry,) = entries(LEDGER)
    assert (entry["kind"], entry["part"]["name"]) == ("public", "d"), "declared once"
    table("other.csv", 200, 9)
    body = cli(f"{PUBLIC_TRAIN} {whose} --dataset other.csv --schema public.toml --json").json
    assert not [note for note in body["privacy"]["notes"] if "found under DP" in note]


@pytest.mark.usefixtures("public")
def test_nobody_is_told_how_much_bounds_clip_but_of_test_records(cli):
    """Silence: the words are the same whether all ages are beyond the bounds, or none; only test records may tell."""
    said, told = [], []
    for number, bounds in enumerate(("[18, 90]", "[200, 300]")):
        Path("s.toml").write_text(PUBLIC.replace("[18, 90]", bounds))
        body = cli(f"{PUBLIC_TRAIN} --records 400 --out r{number} --ledger {number}.jsonl --json").json
        said.append({key: value for key, value in body.items() if key not in ("run", "seconds")})
        said[-1]["privacy"]["notes"] = [note for note in body["privacy"]["notes"] if "best of them" not in note]
        tested = cli(f"{PUBLIC_TRAIN} --records 400 --test t.csv --out t{number} --json").json["privacy"]["notes"]
        tested += cli(f"evaluate t{number} --dataset d.csv --test t.csv --json").json["notes"]
        told.append([note for note in tested if note.startswith("most values of 'age' in the test split are outside")])
    assert said[0] == said[1]
    assert list(map(len, told)) == [0, 2]


@pytest.mark.usefixtures("public")
def test_predictions_name_classes_and_need_no_ignored_columns(cli, refused):
    Path("s.toml").write_text(PUBLIC.replace('["no", "yes"]', '[["no", "No"], "yes"]'))
    assert cli(f"{PUBLIC_TRAIN} --out r").code == 0
    lines = [line.split(",") for line in Path("t.csv").read_text().splitlines()]
    Path("x.csv").write_text("\n".join(",".join([*cells[:2], cells[3]]) for cells in lines) + "\n")
    assert cli("predict r --input x.csv --out p.csv").code == 0
    header, *rows = Path("p.csv").read_text().splitlines()
    assert header == "label,p no,p yes"
    assert {row.split(",")[0] for row in rows} <= {"no", "yes"}
    assert cli("predict r --input t.csv --out whole.csv").code == 0
    assert Path("whole.csv").read_text() == Path("p.csv").read_text()
    Path("x.csv").write_text("\n".join(",".join(cells[:2]) for cells in lines) + "\n")
    assert refused("predict r --input x.csv --out q.csv").endswith("schema: it lacks 'seen'; give the same")


def test_a_column_of_identifiers_by_its_name_is_ignored_and_told(cli):
    Path("d.csv").write_text(Path("d.csv").read_text().replace("who", "ID", 1))
    body = cli("datasets schema d.csv --label ill --classes no,yes --private 1 --out f.toml --json").json
    assert "ID" not in body["columns"]
    assert next(column.kind for column in read_schema(Path("f.toml")).columns if column.name == "ID") == "ignored"
    assert any(
        note.startswith('columns left out, since they are row numbers by their names: "ID"') for note in body["notes"]
    )
