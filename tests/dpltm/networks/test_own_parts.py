"""Networks that take several arrays: what they are known by, what mixes records, and what is refused."""

import functools
import json
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import dpltm
from dpltm.errors import ArtifactError
from dpltm.networks.own_network import OwnNetwork
from dpltm.tickets import load, save
from dpltm.tickets.workbench.handover import export_run
from own_networks import BY_NAME, CLASSES, PARTS, WORDS, Reader
from refusals import refused

TRAINING = {"epsilon": 1.0, "delta": 1e-4, "steps": 2}
CASE = PARTS["mapping"]


def trained(case=CASE, **more):
    return dpltm.train(case.model, *case.records(60, 0), ledger=dpltm.Ledger(), **TRAINING, **case.facts, **more)


@functools.cache
def spec() -> OwnNetwork:
    """Of one training, for tests that change its JSON."""
    return trained().spec


@pytest.mark.parametrize("name", ["mapping", "pictures"])
def test_predictions_are_those_of_the_module_on_the_arrays(name):
    case = PARTS[name]
    run = trained(case)
    module = case.model()
    module.load_state_dict(run.model.state_dict())
    x = case.records(7, 4)[0]
    if name == "pictures":
        given = [torch.from_numpy(x["picture"]).float() / 255, torch.from_numpy(x["words"])]
    else:
        given = [torch.from_numpy(x[part]) for part in ("input_ids", "attention_mask")]
    with torch.no_grad():
        expected = module.eval()(*given)
    np.testing.assert_allclose(dpltm.predict(run, x).outputs, expected.numpy(), rtol=1e-4, atol=1e-5)


def test_the_order_of_names_and_the_types_of_numbers_do_not_count():
    run = trained()
    x = CASE.records(7, 4)[0]
    turned = {name: x[name].astype(np.int16) for name in reversed(x)}
    assert np.array_equal(dpltm.predict(run, turned).outputs, dpltm.predict(run, x).outputs)
    columns = np.concatenate([x["attention_mask"], x["input_ids"]], 1)  # as a table holds them, side by side
    assert np.array_equal(dpltm.predict(run, columns).outputs, dpltm.predict(run, x).outputs)


class Longest(Reader):
    """Cuts a batch to its longest row."""

    def forward(self, input_ids, attention_mask):
        most = int(attention_mask.sum(1).max().clamp_min(1))
        return self.head((self.table(input_ids)[:, :most]).mean(1))


class OverRecords(Reader):
    """Compares the words of all records."""

    def forward(self, input_ids, attention_mask):
        return super().forward((input_ids + input_ids.max()) % WORDS, attention_mask)


@pytest.mark.parametrize(
    ("model", "why"),
    [(Longest, "decides by values of the batch"), (OverRecords, "depends on the others in the batch")],
)
def test_what_mixes_records_is_refused(model, why):
    ledger = dpltm.Ledger()
    said = refused(dpltm.train, model, *CASE.records(60, 0), ledger=ledger, **TRAINING, **CASE.facts)
    assert why in said
    assert len(ledger.entries) == 0


def test_what_does_not_fit_is_named(tmp_path):
    run, (x, y), ledger = trained(), CASE.records(60, 1), dpltm.Ledger()
    save(
        dpltm.generate(x, y, model=Reader, criterion="random", rounds=1, ledger=ledger, **CASE.facts), tmp_path / "set"
    )
    tickets = load(tmp_path / "set", model=Reader)
    assert (
        dpltm.train(tickets, x, y, round=1, classes=CLASSES, ledger=dpltm.Ledger(), **TRAINING).spec.parts
        == run.spec.parts
    )
    train = partial(refused, dpltm.train, tickets, round=1, classes=CLASSES, ledger=ledger, **TRAINING)
    short = {name: part[:, :4] for name, part in x.items()}
    less, more = {"input_ids": x["input_ids"]}, {**x, "token_type_ids": x["attention_mask"] > 0}
    assert "records of records lack 'attention_mask'; give it records of the same parts" in train(less, y)
    assert "records of records have unknown 'token_type_ids'" in train(more, y)
    assert "have whole numbers below 2 of shape (4,) in 'attention_mask' in the place of" in train(short, y)
    assert "records of records lack 'attention_mask', 'input_ids'" in train(x["input_ids"] / WORDS, y, bounds=(0, 1))
    assert "whole numbers below 13" in train(x, y, words={"input_ids": 13, "attention_mask": 2})
    for given, said in ((less, "lack 'attention_mask'"), (more, "have unknown 'token_type_ids'"), (short, "(4,)")):
        assert said in refused(dpltm.predict, run, given)
        assert said in refused(dpltm.evaluate, run, given, y)
    given = {"ledger": ledger, **TRAINING, **CASE.facts}
    assert "mlp:8 takes one array" in refused(dpltm.train, "mlp:8", x, y, **given)
    assert "takes records of one array" in refused(dpltm.train, Reader, x, y, features="unit", **given)
    assert "go through an" in refused(dpltm.train, Reader, x, y, units=np.arange(60) // 2, **given)
    assert len(ledger.entries) == 0


def test_the_layout_is_on_disk(tmp_path):
    """Networks that took parts by place, and rows that dpltm padded, are read."""
    x, y = CASE.records(60, 0)
    by_place = {"0": x["input_ids"], "1": x["attention_mask"] > 0}
    run = dpltm.train(Reader, by_place, y, words=WORDS, classes=CLASSES, ledger=dpltm.Ledger(), **TRAINING)
    save(run, tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    length = x["input_ids"].shape[1]
    assert stored["own"]["parts"] == [["0", [length], WORDS, "int64", False], ["1", [length], 2, "bool", False]]
    loaded = load(tmp_path / "run", model=Reader)
    assert loaded.spec.parts == run.spec.parts
    assert np.array_equal(dpltm.predict(loaded, by_place).outputs, dpltm.predict(run, by_place).outputs)
    padded = {**spec().to_json(), "parts": [["a", [10], 5, "int64", True]]}
    assert OwnNetwork.from_json("here", {"model": "m:N", "features": 10, "classes": CLASSES}, padded).parts[0].padded


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [["a", [10], 5, "int64", False]] * 2,
        [["1", [10], 5, "int64", False]],
        [["a", [10], 2**22 + 1, "int64", False]],
        [["a", [10], 5, "object", False]],
        [["a", [2, 5], 5, "int64", True]],
        [["a", [10], 5, "int64", 1]],
    ],
)
def test_layouts_that_are_none(parts):
    document = {"model": "m:N", "features": 10, "classes": CLASSES}
    body = {**spec().to_json(), "parts": parts}
    told = refused(OwnNetwork.from_json, "here", document, body, kind=ArtifactError)
    assert told.startswith("here: own: ")


@pytest.mark.long
@pytest.mark.one_of(2)
@pytest.mark.parametrize("name", ["mapping", "pictures"])
def test_it_leaves_as_one_network_of_columns_side_by_side(name, tmp_path):
    run = trained(PARTS[name])
    made = export_run(run, tmp_path / "out")
    (inputs,) = made.about["inputs"]
    assert inputs["shape"] == [run.spec.features]
    assert inputs["parts"] == [[part.name, list(part.shape), part.words] for part in run.spec.parts]
    assert made.difference < 1e-5


def test_a_transfer_goes_to_records_of_the_same_parts():
    x, y = CASE.records(60, 1)

    class Five(Reader):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 5)

    made = dpltm.generate(x, y, model=Reader, criterion="random", rounds=1, ledger=dpltm.Ledger(), **CASE.facts)
    moved = dpltm.transfer(made, x, np.arange(60) % 5, model=Five, classes=5, **BY_NAME)
    assert moved.body.spec.parts == made.body.spec.parts
