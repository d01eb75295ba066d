"""Runs: what is written loads again, and into plain PyTorch."""

import json
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import binomtest
from torch import nn

from dpltm.networks import build
from dpltm.networks.masks import network_id
from dpltm.privacy.account import Account
from dpltm.privacy.entry import Entry, Lineage, Part
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.tickets.files import new_folder, write_lineage
from dpltm.tickets.run import AUDIT, FoundRun, load_run, read_observations, write_observations, write_run
from dpltm.tickets.workbench.compare import compare, unlike
from dpltm.training.canaries import Observations
from refusals import refused, told

METRICS = [{"step": 1, "epsilon": 0.5, "accuracy": None}, {"step": 2, "epsilon": "inf", "accuracy": 0.25}]
R = Path("r")


SEEN = Observations(np.array([0.5, -3.0, 1e9]), np.array([True, False, True]), np.array([1.0, 1.0, 0.5]))
"""By an audit."""


@pytest.fixture(autouse=True)
def written(tmp_path, tickets, monkeypatch):
    """The ticket of round 2 as a run named r in the working folder, and what an audit saw; returns its model."""
    monkeypatch.chdir(tmp_path)
    model = build(tickets.spec)
    model.load_state_dict(tickets.tickets[2].predictor)
    config = {"model": "mlp:8", "features": 64, "classes": 10, "bounds": [0.0, 16.0], "more": {"a": 1}}
    with new_folder(R) as folder:
        write_run(folder, config, model, tickets.tickets[2].mask, METRICS)
        write_lineage(folder, Lineage(), network_id(model, tickets.tickets[2].mask))
    write_observations(Path(), SEEN)
    return model


def test_files(raw, tickets):
    tensors, documents = ("mask.safetensors", "model.safetensors"), ("config.json", "environment.json", "lineage.json")
    assert {path.name for path in R.iterdir()} == {*tensors, *documents, "metrics.jsonl"}
    assert [json.loads(line) for line in (R / "metrics.jsonl").read_text().splitlines()] == METRICS
    environment = json.loads((R / "environment.json").read_text())
    assert set(environment) == {"python", "platform", "dpltm", "torch", "numpy", "safetensors"}
    assert environment["torch"] in (torch.__version__, torch.__version__.partition("+")[0])
    packed, mask = raw.read(R / "mask.safetensors"), tickets.tickets[2].mask
    assert packed.keys() == mask.keys()
    for name, value in mask.items():
        assert np.array_equal(raw.unpack(packed[name], tuple(value.shape)), value.numpy())


def test_plain_pytorch(written, tickets):
    """No code of this package is needed to use a run."""
    plain = nn.Sequential(OrderedDict([("fc1", nn.Linear(64, 8)), ("relu1", nn.ReLU()), ("fc2", nn.Linear(8, 10))]))
    plain.load_state_dict(load_file(R / "model.safetensors"))
    x = torch.rand(5, 64)
    assert torch.equal(plain(x), written(x))
    for name, value in plain.named_parameters():
        assert (value[~tickets.tickets[2].mask[name]] == 0).all()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("model", ...), ("model", "vgg"), ("features", True), ("classes", 0)),
        *(("bounds", value) for value in ([16, 0], [0], ["a", "b"])),
    ],
)
def test_damaged_settings(raw, key, value):
    raw.edit(R / "config.json", signed=False, **{key: value})
    assert told(load_run, R) == "r/config.json: model, features, classes or bounds are missing or wrong"


def test_other_documents(raw):
    raw.edit(R / "config.json", signed=False, format="dpltm-ticket-set")
    assert told(load_run, R) == "r/config.json: not a document of format 'dpltm-run'"
    (R / "config.json").unlink()
    assert told(load_run, R) == "r: not a run (no config.json in it); name a folder made by dpltm train"


def test_a_pruned_weight_that_is_not_zero(raw, tickets):
    tensors = raw.read(R / "model.safetensors")
    place = (~tickets.tickets[2].mask["fc1.weight"]).nonzero()[0].tolist()
    tensors["fc1.weight"][tuple(place)] = 1.0
    raw.write(R / "model.safetensors", tensors)
    assert told(load_run, R) == "r/model.safetensors: a pruned weight is not zero; model and mask do not fit"


# --- What an audit saw, on disk: it reads as it was written, or is refused ---


def test_of_a_training_without_an_audit_there_is_nothing(tmp_path):
    assert read_observations(Path(), None) is None
    (tmp_path / "other").mkdir()
    write_observations(Path("other"), None)
    assert read_observations(Path("other"), 3) is None


@pytest.mark.parametrize("count", [0, -1, True, 2.0, "3"])
def test_a_number_that_is_none(count):
    assert told(read_observations, Path(), count) == "config.json: audit is not a number of canaries"


@pytest.mark.parametrize(
    ("name", "value"), [("included", 0.5), ("included", np.nan), ("scores", np.nan), ("norms", 0.0), ("norms", np.nan)]
)
def test_values_that_no_audit_leaves(raw, name, value):
    tensors = raw.read(Path(AUDIT))
    tensors[name] = np.array([value, *tensors[name][1:]])
    raw.write(Path(AUDIT), tensors)
    assert told(read_observations, Path(), 3) == f"{AUDIT}: scores, coins or norms that no audit leaves"


# --- comparisons: which runs stand beside each other, and why others do not ---

PART = Part("d", "1" * 64, (), "record", 0, 5 * 10**8)
RESOLVED = {"density": 0.5, "round": 2, "live": 7}
CONFIG: dict[str, Any] = {"model": "mlp:4", "classes": 10, "test_records": 100, "resolved": RESOLVED}


def run(
    label: str, part: Part = PART, *, steps: int = 5, accuracy: float = 0.9, unit: str = "record", **config: Any
) -> FoundRun:
    given = {"id": label.encode().hex().zfill(64), "home": "f" * 64, "sequence": 1}
    entry = Entry("release", part, (NoisySgd(0.1, steps, 2.0),), "a training", unit=unit, **given)  # type: ignore[arg-type]
    result, lineage = {"accuracy": accuracy}, Lineage((entry,))
    return FoundRun(Path(label), "finished", (), label, CONFIG | config, result, lineage=lineage, entry=entry)


def test_runs_on_the_same_records() -> None:
    one, two = run("one"), run("two", steps=9, accuracy=0.8, resolved={"density": 1.0})
    body = compare([one, two])
    assert [row["compared"] for row in body["rows"]] == [True, True]
    assert [row["trained"] for row in body["rows"]] == ["ticket, round 2", "dense"]
    expected = binomtest(90, 100).proportion_ci(0.95, method="wilson")
    assert [body["rows"][0][key] for key in ("low", "high")] == pytest.approx([expected.low, expected.high])
    together = Account.of((), one.lineage | two.lineage).epsilon(1e-5)
    assert body["together"] == {"runs": 2, "epsilon": together, "delta": 1e-5}
    assert together > max(row["certified"] for row in body["rows"])


OTHERS = {
    "other data: e[0.0:0.5], not d[0.0:0.5]": run("x", replace(PART, name="e", snapshot="2" * 64)),
    "another part of the data: d[0.5:1.0], not d[0.0:0.5]": run("x", replace(PART, start=5 * 10**8, stop=10**9)),
    "other test records: 90, not 100": run("x", test_records=90),
    "other classes: 3, not 10": run("x", classes=3),
    "accuracy on training records, with noise, beside that on the test split": run("x", options={"eval_private": 0.1}),
}


@pytest.mark.parametrize(("why", "other"), OTHERS.items(), ids=list(OTHERS))
def test_others_are_shown_with_the_reason(why: str, other: FoundRun) -> None:
    assert unlike(run("one"), other) == why
    body = compare([run("one"), run("two"), other])
    assert [row["compared"] for row in body["rows"]] == [True, True, False]
    assert body["notes"][0] == f"x: not compared: {why}"
    assert body["together"]["runs"] == 2
    said = f"RUN: nothing can be compared: x: {why}; name runs on the same records"
    assert refused(compare, [run("one"), other]) == said


def test_where_records_cannot_be_told_apart_names_count() -> None:
    """A snapshot has another id in every ledger."""
    there = replace(PART, snapshot="2" * 64)
    assert unlike(run("one"), run("two", there)) is None
    assert unlike(run("one"), run("two", replace(there, name="e"))) == "other data: e[0.0:0.5], not d[0.0:0.5]"
    said = "records are taken for the same by their name: their ledgers cannot tell whether they are"
    assert said in compare([run("one"), run("two", there)])["notes"]
    assert said not in compare([run("one"), run("two")])["notes"]


def test_runs_that_go_on_or_are_broken_are_rows() -> None:
    going = FoundRun(Path("going"), "unfinished", ("going is still going: another process is at work on it",), "going")
    broken = FoundRun(Path("broken"), "damaged", ("broken/config.json: not valid JSON",), "broken")
    body = compare([run("one"), going, broken])
    states = [("finished", True), ("unfinished", False), ("damaged", False)]
    assert [(row["state"], row["compared"]) for row in body["rows"]] == states
    assert body["notes"][:2] == [
        "going: not compared: going is still going: another process is at work on it",
        "broken: not compared: broken/config.json: not valid JSON",
    ]
    assert body["together"] is None
    said = "RUN: nothing can be compared: broken/config.json: not valid JSON"
    assert refused(compare, [broken, broken]) == said


def test_another_relation_or_unit_is_named_in_its_row() -> None:
    body = compare([run("one"), run("two"), run("three", unit="user")])
    assert [(row["adjacency"], row["unit"]) for row in body["rows"]] == [
        *[("add-remove", "record")] * 2, ("add-remove", "user")
    ]  # fmt: skip
