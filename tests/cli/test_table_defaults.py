"""Tables: one set of defaults at the terminal, in Python and in the estimators; and labels that are numbers."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pandas as pd
import pytest
import torch
from scipy.stats import binom
from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score, root_mean_squared_error

import dpltm
import dpltm.tickets
from dpltm.features.feature_map import SplineMap
from dpltm.privacy.mechanisms import GaussianRelease
from dpltm.progress import Silent
from dpltm.randomness.noise import FastSource
from dpltm.records.schema import parse_schema
from dpltm.records.split import Arrays
from dpltm.training import least_squares as head

SHORT = {"delta": 1e-3, "epsilon": 2.0, "batch_size": 100, "epochs": 2, "noise": "fast"}
TRAIN = "train --dense --dataset t.csv --label y --bounds 0,1 --classes 2 --records 400 --delta 1e-3 --epsilon 2"
TRAIN += " --batch-size 100 --epochs 2 --noise fast"


@pytest.fixture
def frame(cwd: Path) -> pandas.DataFrame:
    draw = np.random.default_rng(0)
    made = pandas.DataFrame(draw.random((400, 16)).round(6), columns=list("abcdefghijklmnop"))
    made["y"] = (made["a"] > 0.5).astype(int)
    made.to_csv(cwd / "t.csv", index=False)
    return made


def said(config: Any) -> tuple[Any, ...]:
    options = config["options"]
    return config["model"], options["schedule"], options.get("centre"), options["optimizer"]


def test_three_faces_train_alike(cli: Any, frame: pandas.DataFrame) -> None:
    body = cli(f"{TRAIN} --out r --json").json
    assert body["features"] == "splines:6"
    config = json.loads(Path("r/config.json").read_text())
    assert said(config) == ("mlp", "linear", 0.05, "sgd")
    facts = {"bounds": (0, 1), "ledger": dpltm.Ledger(), **SHORT}
    x, y = frame.drop(columns="y"), frame["y"]
    run = dpltm.train("mlp", x, y, classes=2, records=400, **facts)
    made = dpltm.TicketClassifier(classes=2, n_records=400, **facts).fit(x, y)
    for one in (run, made.run_):
        assert one.feature_map.text == "splines:6"
        assert said(one.config) == said(config)
        assert one.lineage.paid[-1].mechanisms[-1].noise_multiplier == pytest.approx(body["noise_multiplier"])
    assert run.config["options"].get("features") == config["options"].get("features")  # as they were given


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("more", "features", "told"),
    [
        ("--model mlp:4", None, ("mlp:4", "constant", None, "sgd")),
        ("--features none", None, ("mlp:300,100", "constant", None, "sgd")),
        ("--features unit --centre 0 --schedule constant", "unit:1", ("mlp", "constant", None, "sgd")),
        ("--features unit", "unit:1", ("mlp", "linear", 0.05, "sgd")),
        ("--optimizer adam", "splines:6", ("mlp", "constant", None, "adam")),
    ],
)
def test_defaults_give_way_to_what_is_named(
    cli: Any, frame: pandas.DataFrame, more: str, features: str | None, told: tuple[Any, ...]
) -> None:
    del frame
    assert cli(f"{TRAIN} {more} --out r --json").json["features"] == features
    assert said(json.loads(Path("r/config.json").read_text())) == told


RARE = {"classes": 2, "bounds": (0, 1), "delta": 1e-4}


def test_a_ticket_has_what_a_table_has_and_a_draw_that_tells_nothing_says_so(cwd: Path, cli: Any) -> None:
    """Of public records: which columns go together, and ranks where one class has most records."""
    del cwd
    draw = np.random.default_rng(1)
    x = pandas.DataFrame(draw.random((3000, 5)).round(6), columns=list("abcde"))
    y = ((x["a"] - 0.5) * (x["b"] - 0.5) + draw.normal(0, 0.02, 3000) > 0.12).astype(int)
    public, private = (x[:1500], y[:1500]), (x[1500:], y[1500:])
    ledger, facts = dpltm.Ledger(), {**RARE, "name": "private"}
    tickets = dpltm.generate(*public, provenance="public", rounds=3, name="pub", ledger=ledger, **RARE)
    front = tickets.feature_map
    assert isinstance(front, SplineMap)
    assert (0, 1) in (front.pairs or ())
    assert tickets.config["metric"] == "auc"
    assert tickets.privacy is not None
    assert any("auc stands where accuracies do" in note for note in tickets.privacy.notes)
    assert min(ticket.accuracy or 0 for ticket in tickets.body.tickets) > 0.9, "always saying no has 0.5"
    dpltm.tickets.save(tickets, "t")
    shown = cli("tickets show t").out
    assert re.search(r"live *┃ AUC ", shown)
    assert f"{tickets.body.tickets[3].accuracy:.3f}" in shown
    winner = dpltm.select(tickets, *private, eps1=0.1, records=1500, ledger=ledger, **facts)
    assert winner.privacy is not None
    assert any("hardly tells the accuracies" in note for note in winner.privacy.notes)
    run = dpltm.train(
        tickets, *private, round=3, epsilon=6, noise="fast", records=1500, ledger=dpltm.Ledger(), **facts
    )
    assert run.config["resolved"]["head"] == "least-squares"
    assert run.config["resolved"]["pairs"] is None, "they are known"
    assert run.feature_map.pairs == front.pairs
    assert not (run.model[-1].weight[~run.mask["fc1.weight"]]).any()
    assert roc_auc_score(y[1500:], dpltm.predict(run, x[1500:]).probabilities[:, 1]) > 0.85


def test_a_ticket_of_private_records_keeps_to_dp_sgd(frame: pandas.DataFrame) -> None:
    """What else a table has takes a part of a certified budget, and there is none."""
    x, y, ledger = frame.drop(columns="y"), frame["y"], dpltm.Ledger()
    tickets = dpltm.generate(
        x, y, provenance="private", rounds=1, ledger=ledger, batch_size=50, unprotected=True, **RARE
    )
    run = dpltm.train(tickets, x, y, round=1, epsilon=2, records=400, ledger=ledger, noise="fast", **RARE)
    assert run.config["resolved"].get("head") is None
    assert run.config["options"].get("centre") is None


def noted(frame: pandas.DataFrame, schema: str = "", **given: Any) -> tuple[tuple[str, ...], Any]:
    """What a training says of itself, and its steps."""
    known = parse_schema(BOUNDS.format(schema), "it")
    run = dpltm.train("mlp", frame, schema=known, **{"delta": 1e-4, "noise": "fast", "epsilon": 1.0, **given})
    return run.privacy.notes, run.lineage.paid[-1].mechanisms


BOUNDS = '[column.a]\nkind = "number"\nbounds = [0, 1]\n[column.y]\nkind = "label"\nclasses = ["no", "yes"]\n{}\n'


def of_two(count: int) -> pandas.DataFrame:
    a = np.random.default_rng(0).random(count)
    return pandas.DataFrame({"a": a, "y": np.where(np.arange(count) % 2, "yes", "no")})


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_that_noise_hides_all_there_is_is_said_of_few_records(adjacency: str) -> None:
    """Two deviations of the noise of all steps, in gradients as long as one may be: no class has so many records."""
    given = {"adjacency": adjacency, "records": 6, "ledger": dpltm.Ledger()}
    notes, (*_, steps) = noted(of_two(6), **given)
    longest = steps.sensitivity / (2 if adjacency == "replace-one" else 1)
    hidden = 2 * math.sqrt(steps.steps) * steps.noise_std / (steps.steps * longest)
    said = f"nothing can be learned: noise hides what under {math.ceil(hidden)} records have in common, and there are 6 in"
    assert sum(note.startswith(said) for note in notes) == 1
    assert not any("nothing can be learned" in note for note in noted(of_two(60), ledger=dpltm.Ledger())[0])


@pytest.mark.parametrize("share", [0.02, 0.45])
def test_how_far_off_noise_alone_leaves_a_small_class_is_said(share: float) -> None:
    """By shares that a schema has; of two classes, the deviation of an excess is that of a release over rows of sqrt 2, over
    sqrt 2. Two of them are over 15 % of 20 rows, and not of 450."""
    notes, mechanisms = noted(of_two(1000), f"shares = [{1 - share}, {share}]", ledger=dpltm.Ledger())
    off = 2 * mechanisms[-2].noise_std / (1000 * share)
    said = [note for note in notes if note.startswith("noise alone moves the mean chance of a class: ")]
    told = f": of 'yes', up to about {1000 * share:.0f} records, by {100 * off:.0f} % or more (two deviations)"
    assert [note.partition(":")[1] + note.partition(":")[2] for note in said] == ([told] if off > 0.15 else [])
    assert (off > 0.15) == (share == 0.02)


@pytest.mark.parametrize("schema", ["", "shares = [0.98, 0.02]"])
def test_it_is_said_before_payment_by_known_shares_and_else_by_what_is_released(schema: str) -> None:
    frame = of_two(1000).assign(y=np.where(np.arange(1000) % 50, "no", "yes"))
    ledger = dpltm.Ledger()
    watcher = Unpaid(ledger)
    notes, _ = noted(frame, schema, ledger=ledger, progress=watcher, epsilon=4.0)
    (said,) = (note for note in notes if note.startswith("noise alone moves the mean chance of a class: of "))
    assert (said in watcher.said) == bool(schema)
    assert re.search(r"'yes', up to about \d+ \w+, by \d+ % or more \(two deviations\)", said)
    assert "'no'" not in said


@pytest.mark.parametrize("counts", [(455, 45), (300, 110, 90)])
def test_noise_of_chances_is_as_large_as_is_said(counts: tuple[int, ...]) -> None:
    """Of draws with fixed noise, hardly more than one in 20 are farther off: of chances that begin at released shares."""
    total, classes = sum(counts), len(counts)
    labels, chances = (
        GaussianRelease(3.73 / math.sqrt(head.TABLE_SHARES[name]), 1.0) for name in ("labels", "chances")
    )
    records = Arrays(np.zeros((total, 1), np.float32), np.repeat(np.arange(classes), counts))
    plain = head.Labels(False, False, torch.full((classes,), 1 / classes).double())
    off = []
    for seed in range(60):
        noise, model = FastSource(seed), torch.nn.Linear(1, classes)
        sums = torch.from_numpy(np.array(counts) + labels.noise_std * np.random.default_rng(seed).normal(size=classes))
        begun = plain.counted(sums, labels.noise_std, total)
        with torch.no_grad():
            model.bias.copy_(begun.shares.log())
        drawn = head.Prepared(Uncentred(), None, begun)
        head.calibrate(model, drawn, chances, lambda: records, noise, lambda _, draw: draw(), total)
        off.append((torch.softmax(model.bias, 0).detach().numpy() * total - counts)[-1])
    most = 2 * head.excess_noise(chances, classes, of_persons=False)
    assert binom.sf(sum(abs(value) > most for value in off) - 1, 60, 0.05) > 1e-3
    assert np.std(off) > most / 6, "and it is no idle bound"


class Uncentred:
    """A map that leaves rows as they are."""

    def centred(self, values: torch.Tensor) -> torch.Tensor:
        return values


class Unpaid(Silent):
    """Hears what is said before anything is paid for."""

    def __init__(self, ledger: dpltm.Ledger) -> None:
        self.ledger, self.said = ledger, list[str]()

    def say(self, text: str) -> None:
        self.said += [] if self.ledger.book.entries else [text]


# --- a label that is a number, from its training to its exported network ---

SCHEMA = """column.who = { kind = "ignored" }
column.age = { kind = "number", bounds = [18, 80] }
column.region = { kind = "category", values = ["north", "south"] }
column.cost = { kind = "label", bounds = [10, 90] }
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
def test_a_label_of_numbers_without_its_range_is_told_how(cli: Any, refused: Any) -> None:
    known = "--label cost --delta 1e-4 --private 0.2 --records 3000 --out o.toml"
    assert "give --target-bounds of a number" in refused(f"datasets schema costs.csv {known}")
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
    of_classes = dpltm.TicketRegressor(schema=parse_schema(other, "it"), ledger=dpltm.Ledger(), **public)
    of_numbers = dpltm.TicketClassifier(schema="costs.toml", **public)
    for estimator, said in (
        (beyond, "`target_bounds`: the schema says"),
        (of_classes, "`target_bounds` is missing: the public range"),
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
    f"train --dense {TABLE} --epsilon 1 --metric accuracy": "--metric: accuracy is not one of r2, rmse, mae;",
    f"train --dense {TABLE} --epsilon 1 --eval-private 0.5": "--metric: r2 compares every record",
    f"train --dense {TABLE} --epsilon 1 --class-weight balanced": "--class-weight: is for classes",
    f"train --dense {TABLE} --epsilon 1 --by region": "--by: is for classes",
    f"train --dense {TABLE} --epsilon 1 --features unit --head least-squares": "--head: least-squares predicts numbers",
    f"train --dense {TABLE} --epsilon 1 --target-bounds 0,1": "--target-bounds: the schema says",
    f"train --dense {NUMBERS} --epsilon 1": "plain.csv: column 'cost' has label",
    f"train --dense {NUMBERS} --epsilon 1 --target-bounds 0,1 --classes 2": "--classes: --target-bounds says",
    f"train --dense {NUMBERS} --epsilon 1 --target-bounds 9,1": "--target-bounds: (9.0, 1.0) is not a pair",
    f"train --dense {NUMBERS} --epsilon 1 --target-bounds 500,900": "plain has one label in all of its records",
    "train --dense --dataset digits --epsilon 1 --metric rmse": "--metric: rmse is not one of accuracy, ",
    f"generate {TABLE} --provenance public": "--dataset: the label of costs is a number",
    f"tune {TABLE} --for-records 1000 --epsilon 1": "--dataset: the label of costs is a number",
}


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("command", REFUSED)
def test_what_is_refused_before_anything_is_spent(refused: Any, command: str) -> None:
    assert refused(f"{command} --delta 1e-4" if "train" in command else command).startswith(REFUSED[command])
