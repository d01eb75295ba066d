"""From a run to whoever uses it: ``export``, ``predict --id``, ``evaluate --input``; and weights that were exchanged."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    files = ["README.md", "about.json", "encode.py", "model.onnx", "predict.py"]
    assert (body["run"], body["form"], body["written"], body["files"]) == ("r", "onnx", "out/model", files)
    assert 0 <= body["difference"] <= 1e-5
    assert set(tree()) - set(before) == {"out", "out/model", *(f"out/model/{name}" for name in files)}
    result = json.loads(Path("r/result.json").read_text())
    assert body["about"]["weights"] == result["weights"]
    assert body["about"]["certified"] == result["privacy"]["certified"]
    assert refused(f"export {run} --out out/model") == (
        "--out: out/model exists already; choose another name or remove it first"
    )


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


@pytest.mark.long
def test_exchanged_weights(cli: Any, run: str, refused: Any) -> None:
    """Another network in the folder: figures of the first are told nowhere, and every card and page is found out."""
    assert cli(f"{TRAIN} --test others.csv --seed 1 --ledger other.jsonl --out other").code == 0
    for option, name in (("", "page.html"), ("--card", "README.md")):
        assert cli(f"report {run} {option} -o r/{name}").code == 0
    kept = cli(f"privacy check {run} --json").json
    assert (kept["ok"], kept["problems"], kept["cards"]) == (True, [], ["r/README.md", "r/page.html"])
    assert kept["weights"] == json.loads(Path("r/result.json").read_text())["weights"]
    assert kept["weights"] in Path("r/page.html").read_text()
    assert kept["weights"] in Path("r/README.md").read_text()
    assert cli("privacy check r/README.md --run r").code == 0
    done = cli("privacy check r/README.md --run other --json")
    (problem,) = json.loads(done.out)["problems"]
    assert (done.code, problem.startswith(f"weights: the statement is of SHA-256 {kept['weights'][:12]}, and")) == (
        1,
        True,
    )

    for count, names in enumerate([("model.safetensors",), ("model.safetensors", "lineage.json", "config.json")]):
        folder = f"exchanged{count}"
        shutil.copytree("r", folder)
        for name in names:
            shutil.copy(f"other/{name}", f"{folder}/{name}")
        done = cli(f"privacy check {folder} --json")
        body = json.loads(done.out)
        assert (done.code, body["ok"]) == (1, False)
        wrong = [line.partition(":")[0].rpartition("/")[2] for line in body["problems"]]
        assert wrong == [*([] if count else ["lineage.json"]), "result.json", "README.md", "page.html"]
        reported = json.loads(cli(f"report {folder} -o {folder}.html --json").out)
        assert (reported["state"], reported["verdict"]) == ("damaged", None)
        page = Path(f"{folder}.html").read_text()
        assert "figures belong to other weights" in page
        assert "95 % interval" not in page
        assert "95 % interval" in Path("r/page.html").read_text()
        assert f"{folder} is damaged" in refused(f"report {folder} --card -o c.md")
    assert "belongs to another artifact; its weights" in refused("evaluate exchanged0 --input new.csv")
