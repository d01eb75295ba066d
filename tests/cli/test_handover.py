"""From a run to whoever uses it: export, predictions with an id, new records, exchanged weights, and what a run is worth."""

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from programs import program

hospital = program("examples/hospital_table.py")


TRAIN = (
    "train --dense --dataset visits.csv --schema known.toml --records 1000 --delta 1e-4 --epsilon 1 --steps 4"
    " --batch-size 100 --model mlp:4"
)


@pytest.fixture
def run(cli: Any, cwd: Path) -> str:
    """A run ``r`` on visits, and ``new.csv``: those of other patients, columns in another order."""
    hospital.write(cwd, 1000)
    assert cli(f"{TRAIN} --test others.csv --out r").code == 0
    with Path("others.csv").open(newline="") as stream:
        rows = [row[::-1] for row in csv.reader(stream)]
    with Path("new.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    return "r"


def test_export(cli: Any, run: str, refused: Any, tree: Any) -> None:
    before = tree()
    body = cli(f"export {run} --out out/model --json").json
    files = ["README.md", "about.json", "model.onnx", "predict.py"]
    assert (body["run"], body["form"], body["written"], body["files"]) == ("r", "onnx", "out/model", files)
    assert 0 <= body["difference"] <= 1e-5
    assert set(tree()) - set(before) == {"out", "out/model", *(f"out/model/{name}" for name in files)}
    result = json.loads(Path("r/result.json").read_text())
    assert body["about"]["weights"] == result["weights"]
    assert body["about"]["certified"] == result["privacy"]["certified"]
    said = "--out: out/model exists already; choose another name or remove it first"
    assert refused(f"export {run} --out out/model") == said


def test_a_program_says_which_package_is_missing(cli: Any, run: str) -> None:
    assert cli(f"export {run} --out e").code == 0
    Path("e/onnxruntime.py").write_text("raise ImportError('not here')")
    done = subprocess.run(
        [sys.executable, "e/predict.py", "new.csv", "o.csv"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        1, "predict.py: needs ONNX Runtime; pip install onnxruntime (not here)\n"
    )  # fmt: skip


def test_predictions_with_an_id(cli: Any, run: str, refused: Any) -> None:
    """A column of the schema, or one beside it, that comes first; the rest is what it is without."""
    cli(f"predict {run} --input new.csv -o plain.csv")
    cli(f"predict {run} --input new.csv --id patient -o with.csv")
    plain, told = ([*csv.reader(Path(name).read_text().splitlines())] for name in ("plain.csv", "with.csv"))
    assert [row[1:] for row in told] == plain
    with Path("new.csv").open(newline="") as stream:
        rows = [*csv.reader(stream)]
    assert [row[0] for row in told] == [row[-1] for row in rows]
    with Path("more.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([[*row, f"=v{place}" if place else "visit"] for place, row in enumerate(rows)])
    notes = cli(f"predict {run} --input more.csv -o beside.csv --json").json["notes"]
    assert notes[0] == "more.csv has columns that the run does not take; they are passed over: 'visit'"
    assert Path("beside.csv").read_text() == Path("plain.csv").read_text()
    cli(f"predict {run} --input more.csv --id visit -o more.out.csv")
    assert Path("more.out.csv").read_text().splitlines()[1].startswith("'=v1,"), "no formula"
    said = "--id nobody: new.csv has no such column; it has 'returned', 'note'"
    assert refused(f"predict {run} --input new.csv --id nobody -o m.csv").startswith(said)


def test_new_records_alone(cli: Any, run: str, refused: Any) -> None:
    as_test = cli(f"evaluate {run} --dataset visits.csv --test others.csv --json").json
    alone = cli(f"evaluate {run} --input new.csv --json").json
    assert (alone["dataset"], alone["records"], alone["accuracy"]) == ("new", 200, as_test["accuracy"])
    assert alone["skill"] == as_test["skill"]
    said = "--dataset: --input holds all records to measure on; leave --dataset out"
    assert refused(f"evaluate {run} --input new.csv --dataset visits.csv") == said
    assert "is protected by a release on record" in refused(f"evaluate {run} --input visits.csv")
    assert refused(f"evaluate {run} --dataset new.csv").endswith("or new records alone by --input")


def test_exchanged_weights(cli: Any, run: str, refused: Any) -> None:
    """Another network with its lineage and settings: no figure of the first is told, and every card and page found out."""
    assert cli(f"{TRAIN} --test others.csv --seed 1 --ledger other.jsonl --out other").code == 0
    for option, name in (("", "page.html"), ("--card", "README.md")):
        assert cli(f"report {run} {option} -o r/{name}").code == 0
    kept = cli("privacy check r --json").json
    assert (kept["ok"], kept["problems"], kept["cards"]) == (True, [], ["r/README.md", "r/page.html"])
    (problem,) = json.loads(cli("privacy check r/README.md --run other --json").out)["problems"]
    assert problem.startswith(f"weights: the statement is of SHA-256 {kept['weights'][:12]}, and")
    for name in ("model.safetensors", "lineage.json", "config.json"):
        shutil.copy(f"other/{name}", f"r/{name}")
    done = cli("privacy check r --json")
    wrong = [line.partition(":")[0].rpartition("/")[2] for line in json.loads(done.out)["problems"]]
    assert (done.code, wrong) == (1, ["result.json", "README.md", "page.html"])
    reported = json.loads(cli("report r -o r.html --json").out)
    assert (reported["state"], reported["verdict"]) == ("damaged", None)
    page = Path("r.html").read_text()
    assert "figures belong to other weights" in page
    assert "95 % interval" not in page
    assert "95 % interval" in Path("r/page.html").read_text()
    assert "r is damaged" in refused("report r --card -o c.md")


# --- a run that is no better than always saying the same says so in its last line ---


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
    always = f'is no better than always saying "no" ({100 * share:.2f} % of test records)'
    assert skill["verdict"].startswith("Accuracy ")
    assert always in skill["verdict"]
    assert last(done.out) == skill["verdict"]
    assert last(cli("evaluate r --dataset visits.csv --test others.csv").out) == skill["verdict"]
    done = cli("report r -o r.html")
    found = last(done.out)
    said = f"By its criteria this should not go out: a{skill['verdict'][1:]}; its chances are not right: "
    assert found.startswith(said)
    assert found.replace('"', "&#34;") in Path("r.html").read_text()
    assert (
        f"<dt>mean chance over share</dt><dd>{skill['chance_over_share']['value']:.2f}<" in Path("r.html").read_text()
    )
    body = cli("report r -o other.html --json").json
    assert (body["verdict"], body["decision"]) == (skill["verdict"], found)
    assert cli("report r --card -o card.md").code == 0
    assert "no better than always saying" in Path("card.md").read_text()
    assert cli("privacy check card.md --json").json["ok"]


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
