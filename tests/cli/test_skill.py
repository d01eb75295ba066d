"""A run that is no better than always saying the same says so in its last line, everywhere; one that is, does not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dpltm
import dpltm.tickets
from dpltm.privacy.describe import percent
from programs import program

hospital = program("examples/hospital_table.py")


TABLE = "--dataset visits.csv --schema known.toml --test others.csv --records 1000"
BRIEFLY = "--delta 1e-4 --epsilon 1 --steps 4 --batch-size 100 --model mlp:4"


@pytest.fixture
def table(cwd: Path) -> None:
    hospital.write(cwd, 1000)


def last(text: str) -> str:
    return text.splitlines()[-1]


@pytest.mark.usefixtures("table")
def test_without_skill(cli: Any) -> None:
    """Barely trained under much noise, on a table whose outcome about one in six has."""
    done = cli(f"train --dense {TABLE} {BRIEFLY} --lr 0.01 --out r")
    skill = json.loads(Path("r/result.json").read_text())["skill"]
    labels = [line.rsplit(",", 1)[1] for line in Path("others.csv").read_text().splitlines()[1:]]
    share = labels.count("no") / len(labels)
    assert (skill["majority"], skill["majority_accuracy"], skill["records"]) == ("no", share, len(labels))
    said = f'No better than always saying "no", which is right in {100 * share:.2f} % of test records: accuracy '
    assert skill["verdict"].startswith(said)
    assert last(done.out) == skill["verdict"]
    assert last(cli("evaluate r --dataset visits.csv --test others.csv").out) == skill["verdict"]
    done = cli("report r -o r.html")
    found = f"By its criteria this should not go out: n{skill['verdict'][1:]}."
    assert last(done.out) == found
    assert found.replace('"', "&#34;") in Path("r.html").read_text()
    body = cli("report r -o other.html --json").json
    assert (body["verdict"], body["decision"]) == (skill["verdict"], found)
    assert cli("report r --card -o card.md").code == 0
    assert "no better than always saying" in Path("card.md").read_text()
    assert cli("privacy check card.md --json").json["ok"]


def test_with_skill(cli: Any) -> None:
    """A label that one column decides."""
    draw = np.random.default_rng(0)
    for name, count in (("d", 600), ("t", 200)):
        x = draw.random(count).round(6)
        lines = [f"{value},{int(value > 0.5)}" for value in x]
        Path(f"{name}.csv").write_text("\n".join(["a,y", *lines]) + "\n")
    where = "--dataset d.csv --label y --bounds 0,1 --classes 2 --records 600 --test t.csv"
    done = cli(f"train --dense {where} --delta 1e-4 --epsilon 20 --steps 80 --batch-size 200 --model mlp:8 --out r")
    skill = json.loads(Path("r/result.json").read_text())["skill"]
    assert skill["verdict"] is None
    assert skill["auc"]["low"] > 0.9
    assert "No better" not in done.out
    assert "No better" not in cli("report r -o r.html").out
    shown = cli("evaluate r --dataset d.csv --test t.csv").out
    assert f"{skill['auc']['value']:.3f} (95 %: " in shown


@pytest.mark.usefixtures("table")
def test_nothing_of_it_is_computed_where_accuracy_is_paid_for(cli: Any) -> None:
    """A test split is there, and is left alone; the records themselves are counted, and no more."""
    assert cli(f"train --dense {TABLE} {BRIEFLY} --eval-private 0.5 --out r").code == 0
    result = json.loads(Path("r/result.json").read_text())
    assert result["accuracy"] is not None
    assert result["skill"] is None
    assert cli("report r -o r.html").code == 0
    assert "AUC" not in Path("r.html").read_text()


@pytest.mark.usefixtures("table")
def test_by_auc(cli: Any) -> None:
    """Metrics hold it, and the last line is about it, of an evaluation too."""
    options = f"{TABLE} {BRIEFLY.replace('--epsilon 1', '--noise-multiplier 0.5')} --metric auc --out r"
    assert cli(f"train --dense {options}").code == 0
    lines = [json.loads(line) for line in Path("r/metrics.jsonl").read_text().splitlines()]
    skill = json.loads(Path("r/result.json").read_text())["skill"]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[-1]["auc"] == skill["auc"]["value"] > 0
    assert skill["metric"] == "auc"
    said = cli("evaluate r --dataset visits.csv --test others.csv --json").json["skill"]
    assert said == skill


@pytest.mark.usefixtures("table")
def test_tuning_by_auc(cli: Any) -> None:
    where = "--dataset visits.csv --schema known.toml --test others.csv"
    options = "--for-records 1000 --epsilon 20 --delta 1e-4 --model mlp --batch-size 200 --epochs 1 --lr 0.01,1,4"
    body = cli(f"tune {where} {options} --metric auc --out best.toml --json").json
    scores = [trial["score"] for trial in body["trials"]]
    assert scores == sorted(scores, reverse=True)
    assert body["best"]["accuracy"] is None
    assert len(set(scores)) > 1
    text = Path("best.toml").read_text()
    assert text.startswith(f"# best of dpltm tune, auc {scores[0]:.4f} on public records")
    assert 'metric = "auc"' in text


SHARES = "--metric balanced-accuracy --class-shares 0.83,0.17"


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (
            "auc",
            "--metric: auc compares every record with all others, so on private records it has no price here; take",
        ),
        (
            "balanced-accuracy",
            "--metric: balanced-accuracy needs public shares of the classes, such as --class-shares",
        ),
    ],
)
def test_what_has_no_price(refused: Any, metric: str, said: str) -> None:
    for command in (
        f"train --dense {TABLE} {BRIEFLY} --eval-private 0.5 --out r",
        "select pub --dataset digits --subset 0.5:1.0 --eps1 0.1",
    ):
        assert refused(f"{command} --metric {metric}").startswith(said)


@pytest.mark.usefixtures("table")
def test_balanced_accuracy_on_private_records_has_a_price(cli: Any) -> None:
    """Of hardly any noise it is what the definition says, by the stated shares."""
    options = (
        "--delta 1e-4 --noise-multiplier 0.2 --steps 40 --batch-size 200 --features unit --lr 2 --eval-private 200"
    )
    body = cli(f"train --dense {TABLE} {options} {SHARES} --class-weight balanced --out r --json").json
    visits = pd.read_csv("visits.csv")
    named = dpltm.predict(dpltm.tickets.load("r"), visits.drop(columns="returned")).labels
    truth = (visits["returned"] == "yes").to_numpy().astype(int)
    right = [float(((named == one) & (truth == one)).sum()) for one in (0, 1)]
    records = 200 / body["sampling_rate"]
    assert body["balanced_accuracy"] == pytest.approx((right[0] / 0.83 + right[1] / 0.17) / 2 / records, abs=1e-3)
    assert body["accuracy"] is None
    assert any(
        note.startswith("balanced-accuracy is that on the training records") for note in body["privacy"]["notes"]
    )
    assert cli("report r -o r.html").code == 0
    assert f"balanced accuracy {percent(body['balanced_accuracy'])}" in Path("r.html").read_text()


def test_no_auc_of_one_class(cli: Any, refused: Any) -> None:
    draw = np.random.default_rng(0)
    for name, classes in (("d", 2), ("t", 1)):
        rows = [f"{value:.9f},{place % classes}" for place, value in enumerate(draw.random(300))]
        Path(f"{name}.csv").write_text("\n".join(["a,y", *rows]) + "\n")
    where = "--dataset d.csv --label y --bounds 0,1 --classes 2 --records 300 --test t.csv"
    options = "--for-records 1000 --epsilon 20 --delta 1e-4 --model mlp --batch-size 200 --epochs 1 --lr 1"
    assert refused(f"tune {where} {options} --metric auc --out best.toml") == (
        "--metric: the records to score on are of one class, so there is no AUC; take accuracy"
    )
    done = cli(
        f"train --dense {where} --delta 1e-4 --epsilon 1 --steps 2 --batch-size 50 --model mlp --metric auc --out r"
    )
    assert last(done.out).endswith(
        'test records are of one class ("0"), so nothing tells whether the model has any skill: no AUC'
    )


@pytest.mark.usefixtures("table")
def test_class_weights_find_more_of_the_rare_class(cli: Any) -> None:
    """With them recall rises, at the same noise and the same certified epsilon; the ledger names them."""
    much = "--delta 1e-4 --noise-multiplier 0.2 --steps 60 --batch-size 200 --features unit --lr 2"
    recall, certified = {}, {}
    for name, weights in (("alike", ""), ("balanced", "--class-weight balanced --class-shares 0.83,0.17")):
        assert cli(f"train --dense {TABLE} {much} {weights} --ledger {name}.jsonl --out {name}").code == 0
        result = json.loads(Path(f"{name}/result.json").read_text())
        recall[name] = result["skill"]["classes"][1]["recall"]
        certified[name] = result["privacy"]["certified"]
        told = [note for note in result["privacy"]["notes"] if "shares of classes" in note]
        assert len(told) == (name == "balanced")
    assert recall["balanced"] > recall["alike"] + 0.2
    assert certified["balanced"] == certified["alike"]
    assert "training, clip(C=1) times class weights 0.205,1, " in Path("balanced.jsonl").read_text()


@pytest.mark.usefixtures("table")
def test_shares_are_not_counted_in_private_records(refused: Any) -> None:
    assert refused(f"train --dense {TABLE} {BRIEFLY} --class-weight balanced --out r") == (
        "--class-weight: balanced needs public shares of the classes, such as --class-shares 0.83,0.17, or a schema with"
        " them, as dpltm datasets schema --private finds; counting them in private records is a release that nothing pays"
        " for"
    )
    assert refused(f"train --dense {TABLE} {BRIEFLY} --class-weight 1,2,3 --out r") == (
        "--class-weight: 3 numbers for 2 classes; give one for each, in their order"
    )
    assert refused(f"train --dense {TABLE} {BRIEFLY} --class-weight 1,2 --microbatch 2 --out r").startswith(
        "--class-weight: a group of --microbatch has records of several classes"
    )


@pytest.mark.usefixtures("table")
def test_skill_of_subgroups(cli: Any, refused: Any) -> None:
    """Each as if there were no other records; in the answer, at the terminal and on the page."""
    lasting = BRIEFLY.replace("--epsilon 1", "--noise-multiplier 0.5")
    body = cli(f"train --dense {TABLE} {lasting} --by sex --out r --json").json
    groups = {group["name"]: group for group in body["skill"]["groups"]}
    others = pd.read_csv("others.csv")
    assert list(groups) == ["sex f", "sex m", "sex empty"]
    assert sum(group["records"] for group in groups.values()) == len(others)
    women = others[others["sex"] == "f"]
    women.to_csv("women.csv", index=False)
    alone = cli("evaluate r --input women.csv --json").json["skill"]
    for name in ("records", "accuracy", "majority_accuracy", "auc"):
        assert groups["sex f"][name] == alone[name]
    done = cli("evaluate r --dataset visits.csv --test others.csv --by age")
    assert len(re.findall(r"age (up to \d+|\d+ to \d+|from \d+)", done.out)) == 4
    assert cli("report r -o r.html").code == 0
    page = Path("r.html").read_text()
    assert "Subgroups of the test split" in page
    assert "age, sex, admitted, code, creatinine, note" in page
    said = refused(f"train --dense {TABLE} {lasting} --by note --out q")
    assert said.startswith("--by note: no column that tells subgroups; there is 'age', 'sex', 'admitted', 'code'")


@pytest.mark.usefixtures("table")
def test_numbers_outside_the_bounds_of_a_schema_are_counted_where_they_saturate(cli: Any) -> None:
    """Ages of 300 and -5 and a day of 1999 count as the ends of their columns; at the terminal and of a data frame."""
    cli(f"train --dense {TABLE} {BRIEFLY} --out r")
    new = pd.read_csv("others.csv").drop(columns="returned").head(5).astype({"age": "Int64"})
    new["age"] = [300, -5, 50, 110, 0]
    new.loc[2, "admitted"] = "1999-01-01"
    new.to_csv("new.csv", index=False)
    assert cli("predict r --input new.csv --out p.csv --json").json["saturated"] == 3
    found, run = pd.read_csv("p.csv"), dpltm.tickets.load("r")
    assert dpltm.predict(run, new).saturated == 3
    new["age"], new["admitted"] = new["age"].clip(0, 110), new["admitted"].replace("1999-01-01", "2020-01-01")
    assert dpltm.predict(run, new).saturated == 0
    assert np.allclose(dpltm.predict(run, new).probabilities[:, 1], found["p yes"])
