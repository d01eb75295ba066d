"""A label that is a number, from its training to its exported network; and what has no use for it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

import dpltm
import dpltm.tickets
from dpltm.records.schema import parse_schema

SCHEMA = """[column.who]
kind = "ignored"
[column.age]
kind = "number"
bounds = [18, 80]
[column.region]
kind = "category"
values = ["north", "south"]
[column.cost]
kind = "label"
bounds = [10, 90]
"""
TABLE = "--dataset costs.csv --schema costs.toml --test new.csv --rows-coincide"
NUMBERS = "--dataset plain.csv --label cost --bounds 0,100"


@pytest.fixture
def table(cwd: Path) -> None:
    del cwd
    draw = np.random.default_rng(0)
    for name, count, first in (("costs.csv", 3000, 0), ("new.csv", 500, 9000)):
        age, region = draw.integers(18, 81, count), draw.choice(["north", "south"], count)
        cost = (10 + age * 0.7 + 9.0 * (region == "south") + draw.normal(0, 4, count)).round(2)
        who = first + draw.integers(0, count // 2, count)
        frame = pd.DataFrame({"who": who, "age": age, "region": region, "cost": cost})
        frame.to_csv(name, index=False)
        frame[["age", "cost"]].assign(few=age // 20).to_csv("plain.csv", index=False)
    Path("costs.toml").write_text(SCHEMA)


@pytest.mark.usefixtures("table")
def test_from_a_training_to_an_exported_network(cli: Any) -> None:
    """Figures by scikit-learn, on what ``predict`` wrote; the exported network predicts the same."""
    trained = cli(f"train --dense {TABLE} --unit-column who --epsilon 3 --delta 1e-4 --out r --json").json
    skill, truth = trained["skill"], pd.read_csv("new.csv")["cost"].clip(10, 90)
    assert (trained["accuracy"], skill["verdict"], trained["r2"]) == (None, None, skill["r2"]["value"])
    assert cli("predict r --input new.csv --id who -o p.csv").code == 0
    told = pd.read_csv("p.csv")
    assert list(told) == ["who", "prediction"]
    figures = {"rmse": root_mean_squared_error, "mae": mean_absolute_error}
    for name, figure in figures.items():
        assert skill[name] == pytest.approx(figure(truth, told["prediction"]), rel=1e-3)
    assert skill["r2"]["value"] == pytest.approx(r2_score(truth, told["prediction"]), abs=1e-3)
    assert skill["mean_rmse"] == pytest.approx(truth.std(ddof=0), rel=1e-3)
    assert skill["r2"]["value"] > 0.85
    run, frame = dpltm.tickets.load("r"), pd.read_csv("new.csv")
    np.testing.assert_allclose(dpltm.predict(run, frame.drop(columns="cost")).values, told["prediction"], rtol=1e-6)
    assert json.loads(json.dumps(dpltm.evaluate(run, frame).skill.to_json())) == skill
    assert cli("evaluate r --dataset costs.csv --test new.csv --rows-coincide --json").json["skill"] == skill

    report = cli("report r -o r.html --json").json
    assert report["decision"] == "By its criteria this may go out: all of them are met."
    page = Path("r.html").read_text()
    assert f"<dt>R2</dt><dd>{skill['r2']['value']:.3f}<" in page
    assert "a number from 10 to 90" in page
    tenths = told["prediction"].groupby(pd.qcut(told["prediction"], 10))
    for row, (records, mean) in zip(skill["bins"], tenths.agg(["size", "mean"]).to_numpy(), strict=True):
        assert (row["records"], row["predicted"]) == (records, pytest.approx(mean, rel=1e-3))
        assert f'<td data-name="mean prediction">{row["predicted"]:.4g}</td>' in page
    norm = json.loads(Path("r/config.json").read_text())["resolved"]["sensitivity"]
    assert re.search(rf"clip norm</th>\s*<td[^>]*>{norm:g}<", page), "that which the head settles"
    assert cli("report r --card -o card.md").code == 0
    assert cli("privacy check card.md --json").json["ok"]

    assert cli("export r --out e").code == 0
    done = subprocess.run([sys.executable, "e/predict.py", "new.csv", "o.csv", "who"], check=False)
    assert done.returncode == 0
    pd.testing.assert_frame_equal(pd.read_csv("o.csv"), told, rtol=1e-5)
    assert json.loads(Path("e/about.json").read_text())["target"] == [10, 90]


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("metric", ["rmse", "mae"])
def test_an_error_on_private_records_has_a_price(cli: Any, metric: str) -> None:
    """Of hardly any noise it is what the definition says."""
    options = f"--noise-multiplier 0.1 --delta 1e-4 --eval-private 200 --metric {metric} --out r"
    body = cli(f"train --dense {TABLE} {options} --json").json
    frame = pd.read_csv("costs.csv")
    values = dpltm.predict(dpltm.tickets.load("r"), frame.drop(columns="cost")).values
    figure = {"rmse": root_mean_squared_error, "mae": mean_absolute_error}[metric]
    assert body[metric] == pytest.approx(figure(frame["cost"].clip(10, 90), values), rel=0.05)
    assert (body["accuracy"], body["skill"]) == (None, None)
    assert body["privacy"]["certified"]["epsilon"] == "inf" or body["privacy"]["certified"]["epsilon"] > 200
    assert cli("report r -o r.html").code == 0


@pytest.mark.usefixtures("table")
def test_a_compressed_file_has_its_bare_name(cli: Any) -> None:
    pd.read_csv("costs.csv").to_csv("costs.csv.gz", index=False)
    compressed = TABLE.replace("costs.csv", "costs.csv.gz")
    assert cli(f"train --dense {compressed} --steps 3 --epsilon 3 --delta 1e-4 --out r").code == 0
    assert json.loads(Path("r/config.json").read_text())["part"]["name"] == "costs"


@pytest.mark.usefixtures("table")
def test_a_label_of_numbers_without_its_range_is_told_how(cli: Any, refused: Any) -> None:
    known = "--label cost --delta 1e-4 --private 0.2 --records 3000 --out o.toml"
    assert "or the range of a number to predict by --target-bounds" in refused(f"datasets schema costs.csv {known}")
    assert "label, with classes = [" in (draft := cli("datasets schema costs.csv --label cost").out)
    assert "or bounds of a number to predict" in draft


@pytest.mark.usefixtures("table")
def test_in_python_a_schema_says_the_range(cwd: Path) -> None:
    del cwd
    frame, other = pd.read_csv("costs.csv"), SCHEMA.replace("bounds = [10, 90]", 'classes = ["a", "b"]')
    public = {"epsilon": 3, "delta": 1e-4, "n_records": 3000}
    made = dpltm.TicketRegressor(schema="costs.toml", ledger=dpltm.Ledger(), **public)
    made.fit(frame.drop(columns="cost"), frame["cost"])
    assert made.run_.target == (10, 90)
    beyond = dpltm.TicketRegressor(schema="costs.toml", target_bounds=(0, 1), **public)
    of_classes = dpltm.TicketRegressor(schema=parse_schema(other, "it"), **public)
    of_numbers = dpltm.TicketClassifier(schema="costs.toml", **public)
    for estimator, said in (
        (beyond, "`target_bounds`: the schema says"),
        (of_classes, "`schema`: its label has classes; use Tick"),
        (of_numbers, "`schema`: its label is a number to predict; use Tick"),
    ):
        with pytest.raises(dpltm.errors.InputError, match=re.escape(said)):
            estimator.fit(frame.drop(columns="cost"), frame["cost"].round().astype(int))


@pytest.mark.usefixtures("table")
def test_a_range_that_leaves_most_targets_outside_is_noted(cli: Any) -> None:
    narrow = f"{NUMBERS} --target-bounds 30,40 --test 0.2 --steps 3 --epsilon 3 --delta 1e-4"
    notes = cli(f"train --dense {narrow} --out r --json").json["privacy"]["notes"]
    assert any("of the test targets are at the ends of their public range" in note for note in notes)


REFUSED = {
    f"train --dense {TABLE} --epsilon 1 --metric accuracy": "--metric: accuracy is of classes",
    f"train --dense {TABLE} --epsilon 1 --eval-private 0.5": "--metric: r2 divides by the variance",
    f"train --dense {TABLE} --epsilon 1 --class-weight balanced": "--class-weight: is for classes",
    f"train --dense {TABLE} --epsilon 1 --by region": "--by: is for classes",
    f"train --dense {TABLE} --epsilon 1 --features unit --head least-squares": "--head: least-squares predicts numbers",
    f"train --dense {TABLE} --epsilon 1 --target-bounds 0,1": "--target-bounds: the schema says",
    f"train --dense {NUMBERS} --epsilon 1": "plain.csv: column 'cost' has label",
    f"train --dense {NUMBERS} --epsilon 1 --target-bounds 0,1 --classes 2": "--classes: --target-bounds says",
    f"train --dense {NUMBERS} --epsilon 1 --target-bounds 9,1": "--target-bounds: (9.0, 1.0) is not a pair",
    f"train --dense {NUMBERS} --epsilon 1 --target-bounds 500,900": "plain has one target in all of its records",
    "train --dense --dataset digits --epsilon 1 --metric rmse": "--metric: rmse is of a target that is a number",
    f"generate {TABLE} --provenance public": "--dataset: the label of costs is a number",
    f"tune {TABLE} --for-records 1000 --epsilon 1": "--dataset: the label of costs is a number",
}


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("command", REFUSED)
def test_what_is_refused_before_anything_is_spent(refused: Any, command: str) -> None:
    assert refused(f"{command} --delta 1e-4" if "train" in command else command).startswith(REFUSED[command])
