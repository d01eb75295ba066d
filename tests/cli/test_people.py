"""Records that are no images, as whole commands: tables and archives that say whose each record is, and texts."""

from pathlib import Path

import numpy as np
import pytest

from commands import certified
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.records import Layout, load_records

TABLE = "--label ill --bounds -2,2 --classes 2 --unit-column who"
SHORT = "--model mlp:4 --steps 4 --batch-size 10 --noise-multiplier 2 --delta 1e-3 --json"
TRAIN = f"train --dense --dataset d.csv {TABLE} {SHORT}"
LEDGER = "dpltm.ledger.jsonl"


def table(path, persons, seed=0):
    """Rows of persons, one in two with a word before its number; who is ill shows in a."""
    draw, rows = np.random.default_rng(seed), ["a,who,b,ward,ill"]
    for person in persons:
        for _ in range(draw.integers(1, 6)):
            ill, name = int(draw.random() < 0.5), f"{'p' if person % 2 else ''}{person}"
            rows.append(f"{draw.normal(2 * ill - 1, 0.4):.4f},{name},{draw.normal():.4f},{person % 7},{ill}")
    Path(path).write_text("\n".join(rows) + "\n")


@pytest.fixture(autouse=True)
def people(cwd):
    del cwd
    table("d.csv", range(40))
    table("t.csv", range(40, 60), seed=1)


def test_persons_are_protected(cli, entries):
    """The run knows columns and bounds; what says whose records are is no feature, and of records to predict it may lack."""
    body = cli(f"{TRAIN} --test t.csv --per-unit 3 --out r").json
    apart, trained = entries(LEDGER)
    assert (apart["kind"], trained["unit"]) == ("excluded", "who")
    (steps,) = trained["mechanisms"]
    assert steps["sampling_rate"] == 10 / 40
    assert body["privacy"]["certified"]["unit"] == "who"
    assert certified(body) == pytest.approx(epsilon([NoisySgd(10 / 40, 4, 2.0, 1.0)], 1e-3), rel=1e-6)
    assert "declared not to be of the population" in cli(f"privacy ledger {LEDGER}").out
    notes = body["privacy"]["notes"]
    assert any("at most 3 of each count" in note for note in notes)
    assert any("the number of persons (40) was counted" in note for note in notes)
    assert not any("one row a person" in note for note in notes)
    assert cli("evaluate r --dataset d.csv --test t.csv --json").json["accuracy"] == body["accuracy"]
    rows = [line.split(",") for line in Path("t.csv").read_text().splitlines()]
    for name, dropped in (("t.csv", ()), ("bare.csv", ("who", "ill")), ("half.csv", ("ill",))):
        kept = [at for at, column in enumerate(rows[0]) if column not in dropped]
        Path(name).write_text("".join(",".join(row[at] for at in kept) + "\n" for row in rows))
        assert cli(f"predict r --input {name} --out p-{name}").code == 0
        assert Path(f"p-{name}").read_bytes() == Path("p-t.csv").read_bytes()


MADE = f"--dataset d.csv {TABLE} --model mlp:4 --rounds 2 --prune 0.4 --delta 1e-3 --json"


def test_all_stages_protect_persons(cli, entries):
    """Tickets under DP, a draw, a training and a search on one ledger: one person is worth what each entry says."""
    few = "--iterations 3 --batch-size 10 --per-unit 3"
    cli(f"generate {MADE} {few} --criterion dp-train --epsilon 2 --out t")
    drawn = cli(f"select t --dataset d.csv {TABLE} --per-unit 3 --score additive --eps1 0.5 --delta 1e-3 --json").json
    assert drawn["sensitivity"] == {"rule": "exact", "value": 1 / 40}  # of forty persons
    steps = "--steps 3 --batch-size 10 --per-unit 3 --epsilon 4 --eval-private 0.3 --delta 1e-3 --out r --json"
    found = cli(f"train t --dataset d.csv {TABLE} {steps}").json
    assert [entry["unit"] for entry in entries(LEDGER)] == ["who"] * 3
    assert found["privacy"]["certified"]["unit"] == "who"
    assert certified(found) <= 6
    assert any("at most 3 of each count" in note for note in found["privacy"]["notes"])
    public = f"--dataset t.csv {TABLE} --ledger {LEDGER} --json"
    cli(f"tune {public} --model mlp:4 --steps 2 --batch-size 5 --lr 1 --epsilon 1 --for-records 40 --delta 1e-3")
    assert {entry["unit"] for entry in entries(LEDGER)} == {"who"}
    cli(f"generate {MADE} --iterations 3 --batch-size 10 --provenance private --unprotected --out exact")
    audited = cli(f"audit exact --dataset d.csv {TABLE} --unprotected --ledger {LEDGER}")
    # it is the ledger's own people
    assert "on records whose smallest value is 0" in audited.err


def test_three_stages_are_priced_and_paid_for_persons(cli, entries):
    data = 'label = "ill"\nbounds = "-2,2"\nclasses = 2\nbatch-size = 10\nunit-column = "who"\n'
    made = f'[generate]\ndataset = "t.csv"\nmodel = "mlp:4"\nprovenance = "public"\nrounds = 1\niterations = 3\n{data}'
    trained = f'[train]\ndataset = "d.csv"\nper-unit = 3\nsteps = 2\n{data}'
    Path("r.toml").write_text(f'{made}[select]\nscore = "additive"\n{trained}')
    # delta is below one over their number, not that of rows
    run = "run --config r.toml --epsilon 4 --delta 0.01 --out o --json"
    planned = cli(f"{run} --dry-run").json["privacy"]["certified"]
    assert cli(run).json["privacy"]["certified"] == pytest.approx(planned)
    assert planned["unit"] == "who"
    assert [entry["unit"] for entry in entries(LEDGER) if entry["kind"] == "release"] == ["who"] * 2


# --- texts ---


TEXTS, OTHER = (f"--dataset {name}.npz --words 30 --classes 2" for name in ("texts", "other"))
TAKEN_AS_PUBLIC = "which word is at which position is taken as public: no record of other may have decided it"


def ragged(count: int, seed: int, part: str = "") -> dict[str, np.ndarray]:
    """Texts of 3 to 19 words out of 40: no two are equal."""
    generator = np.random.default_rng(seed)
    offsets = np.cumsum([0, *generator.integers(3, 20, count)])
    values = generator.integers(0, 40, offsets[-1]).astype(np.uint32)
    arrays = {"values": values, "offsets": offsets, "y": generator.integers(0, 2, count)}
    return {f"{name}{part}": array for name, array in arrays.items()}


def test_select_train_use(cli):
    np.savez("texts.npz", **ragged(150, 0, "_train"), **ragged(60, 1, "_test"))
    np.savez("other.npz", **ragged(150, 2, "_train"))
    little = "--rounds 2 --prune 0.3 --iterations 5 --batch-size 30 --provenance public"
    assert cli(f"generate {TEXTS} {little} --model embed:30:4,3 --out embed").code == 0
    drawn = cli(f"select embed {OTHER} --eps1 0.5 --delta 1e-3 --json").json
    assert TAKEN_AS_PUBLIC in drawn["privacy"]["notes"]
    noise = "--noise-multiplier 1 --delta 1e-3 --batch-size 50 --steps 2"
    trained = cli(f"train embed {OTHER} {noise} --test texts.npz --out run --json").json
    assert TAKEN_AS_PUBLIC in trained["privacy"]["notes"]
    assert certified(trained) > 0.5
    found = cli(f"evaluate run {TEXTS} --json").json
    assert (found["records"], found["accuracy"]) == (60, trained["accuracy"])
    np.savez("in.npz", **{name: values for name, values in ragged(5, 3).items() if name != "y"})
    np.savez("x.npz", x=load_records("in.npz", layout=Layout(30)))  # taken as in training
    for given in ("in", "x"):
        assert cli(f"predict run --input {given}.npz -o {given}.csv --json").json["saturated"] == 0
    assert Path("in.csv").read_bytes() == Path("x.csv").read_bytes()
