"""Networks of one's own on several arrays, or labels that are no class numbers: what decides, mixes, or is refused."""

import functools
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import dpltm
from dpltm.api import as_dataset
from dpltm.errors import ArtifactError
from dpltm.networks import model_spec
from dpltm.networks.evaluation import OfValues, total_score
from dpltm.networks.own import own_model
from dpltm.networks.own_network import OwnNetwork
from dpltm.records.split import LabelForm
from dpltm.tickets import load, save
from dpltm.tickets.workbench.handover import export_run
from own_networks import (
    CLASSES,
    LABELS,
    PARTS,
    WORDS,
    HandMade,
    OneQuantity,
    Reader,
    Tagger,
    closeness,
    squares,
    tag_entropies,
    tag_hits,
)
from refusals import refused

TRAINING = {"epsilon": 1.0, "delta": 1e-4, "steps": 2}
ONE, SEVERAL = LABELS["one quantity"], LABELS["quantities"]


def trained_on_labels(case=SEVERAL, **more):
    x, y = case.records(60, 0)
    return dpltm.train(case.model, x, y, ledger=dpltm.Ledger(), **case.settings, **TRAINING, **case.facts, **more)


@functools.cache
def spec_of_several() -> OwnNetwork:
    """Of one training, for tests that change its JSON."""
    return trained_on_labels().spec


def tickets(case=SEVERAL, **more):
    x, y = case.records(60, 1)
    few = {"rounds": 1, "iterations": 2, "batch_size": 20, "provenance": "public", "ledger": dpltm.Ledger()}
    return dpltm.generate(x, y, model=case.model, **few, **case.settings, **case.facts, **more)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("one quantity", LabelForm("float32", ())),
        ("quantities", LabelForm("float32", (3,))),
        ("several labels", LabelForm("int64", (3,))),
        ("labels of steps", LabelForm("int64", (5,))),
    ],
)
def test_type_and_shape_decide_and_no_value_does(name, form):
    case = LABELS[name]
    x, y = case.records(30, 0)
    for labels in (y, np.zeros_like(y), torch.from_numpy(y)):
        made = as_dataset(x, labels, case.facts, own_model(case.model, **case.settings))
        assert (made.classes, made.labels, made.of_persons) == (0, form, False)
    spec = model_spec(own_model(case.model, **case.settings), made)
    assert spec.labels == form


def test_whole_numbers_in_one_dimension_are_classes_and_so_are_floats_where_classes_are_declared():
    x, y = HandMade, np.arange(30) % 3
    x = np.zeros((30, 6), np.uint8)
    own = own_model(HandMade, loss=nn.CrossEntropyLoss(reduction="none"))
    assert as_dataset(x, y, {}, own).classes == 3
    assert as_dataset(x, y.astype(float), {"classes": 3}, own).classes == 3
    assert as_dataset(x, y.astype(float), {}, own).classes == 0
    assert as_dataset(x, y.astype(float), {}, own_model(HandMade)).classes == 3  # nothing says what else they are
    assert as_dataset(x, y, {"classes": 0}, own).labels == LabelForm("int64", ())


X, Y = SEVERAL.records(60, 0)
ROWS = np.arange(60, dtype=float)[:, None]
LOSS = "`loss=` is missing: float32 labels of shape (3,) are no class numbers; give, in Python, a function"
SCORE = "`score=` is missing: float32 labels of shape (3,) are no class numbers, so "


@pytest.mark.parametrize(
    ("model", "y", "given", "said"),
    [
        (HandMade, Y, {}, LOSS),
        (HandMade, Y, {"score": closeness}, LOSS),
        (HandMade, Y, {"loss": squares, "test": SEVERAL.records(9, 3)}, f"{SCORE}accuracy needs"),
        (HandMade, Y, {"loss": squares, "eval_private": 0.1}, f"{SCORE}accuracy"),
        (
            HandMade,
            Y,
            {"loss": lambda outputs, y: squares(outputs, y).mean()},
            "`loss`: gives () for outputs (8, 3) and labels (8, 3) of 8 records; give one value a record",
        ),
        ("mlp:8", Y, {}, "give one number a record; declare the public range of a number to be predicted"),
        (OneQuantity, ONE.records(60, 0)[1], {}, "number classes 0 to K-1"),
        ("mlp:8", Y, SEVERAL.settings, "`ticket`: mlp:8 has one output a class, not float32 labels of shape (3,)"),
        (HandMade, Y, {**SEVERAL.settings, "class_weight": "1,1,1"}, "`class_weight`: is for classes"),
        (HandMade, Y, {**SEVERAL.settings, "metric": "auc"}, "`metric`: the `score` of the network"),
        (HandMade, Y, {**SEVERAL.settings, "units": np.arange(60)}, "`units`: a person's labels"),
        *(
            (
                HandMade,
                np.where(ROWS == 7, bad, Y),
                SEVERAL.settings,
                "a label must be finite in float32",
            )
            for bad in np.array([np.nan, 1e300])
        ),
    ],
)
def test_what_a_training_refuses_before_anything_is_spent(model, y, given, said):
    ledger = dpltm.Ledger()
    assert said in refused(dpltm.train, model, X, y, ledger=ledger, **given, **TRAINING, **SEVERAL.facts)
    assert ledger.entries == ()


def test_other_stages_miss_a_score_as_well():
    make = {"model": HandMade, "provenance": "public", "loss": squares, "ledger": dpltm.Ledger(), **SEVERAL.facts}
    assert refused(dpltm.generate, X, Y, **make).startswith(f"{SCORE}the accuracy of each ticket needs")
    run = dpltm.train(HandMade, X, Y, loss=squares, ledger=dpltm.Ledger(), **TRAINING, **SEVERAL.facts)
    assert refused(dpltm.evaluate, run, *SEVERAL.records(9, 3)).startswith(f"{SCORE}evaluate needs")


def test_labels_of_another_form_are_refused():
    made, ledger = tickets(), dpltm.Ledger()
    x, y = X, Y
    asked = {"round": 1, "ledger": ledger, **TRAINING, **SEVERAL.facts}
    assert "its network is for float32 labels of shape (3,), but records has float32 labels of shape (2,)" in refused(
        dpltm.train, made, x, y[:, :2], **asked
    )
    assert "has int64 labels of shape (3,)" in refused(dpltm.train, made, x, y.astype(int), **asked)
    assert "x has 60 records but y has 59 labels" in refused(dpltm.train, made, x, y[1:], **asked)
    assert "give float32 labels of shape (3,)" in refused(dpltm.train, made, x, y, test=(x[:9], y[:9, :2]), **asked)
    classes = tickets(replace(SEVERAL, labels=None, settings={}))
    assert "its network is for classes, but records has float32 labels" in refused(
        dpltm.train, classes, x, y, **{**asked, "classes": 0}
    )


def test_a_run_gives_outputs_and_no_classes(tmp_path):
    run = trained_on_labels(test=SEVERAL.records(20, 5))
    x, _ = SEVERAL.records(5, 6)
    found = dpltm.predict(run, x)
    with torch.no_grad():
        expected = run.model.eval()(torch.from_numpy(x.astype(np.float32)) / 255)
    np.testing.assert_allclose(found.outputs, expected.numpy(), rtol=1e-5, atol=1e-6)
    for name in ("probabilities", "labels"):
        assert "the run gives no classes and no probabilities" in refused(getattr, found, name)
    assert run.skill is None
    assert 0 < run.metrics[-1]["accuracy"] < 1
    save(run, tmp_path / "run")
    said = refused(export_run, load(tmp_path / "run", model=HandMade), tmp_path / "out")
    assert "this one was trained on float32 labels of shape (3,)" in said


def test_a_record_more_moves_a_score_by_at_most_one_in_whole_steps():
    """Of labels of steps, with scores that are no numbers from 0 to 1."""
    model = Tagger()
    x, y = torch.rand(9, 5, 4), torch.from_numpy(LABELS["labels of steps"].records(9, 0)[1])
    for score in (
        tag_hits,
        lambda outputs, y: 7 * tag_hits(outputs, y) - 3,
        lambda outputs, y: tag_hits(outputs, y) * torch.nan,
    ):
        score = OfValues(score)
        whole = total_score(model, x, y, score=score)
        assert (whole * 2**20).is_integer()
        assert whole == pytest.approx(
            sum(total_score(model, x[row, None], y[row, None], score=score) for row in range(9))
        )
        for record in range(9):
            rest = torch.arange(9) != record
            assert 0 <= whole - total_score(model, x[rest], y[rest], score=score) <= 1


def test_tickets_with_such_labels_are_not_attacked_and_carry_over_to_others():
    made = tickets()
    x, y = X, Y

    class Two(HandMade):
        def __init__(self) -> None:
            super().__init__()
            self.fc2 = nn.Linear(8, 2)

    moved = dpltm.transfer(made, x, y[:, :2], model=Two, **SEVERAL.settings, **SEVERAL.facts)
    assert moved.body.spec.labels == LabelForm("float32", (2,))
    assert torch.equal(moved.body.theta0["fc1.weight"], made.body.theta0["fc1.weight"])
    said = "name the same with a last layer for float32 labels of shape (3,)"
    assert refused(dpltm.transfer, made, x, y, **SEVERAL.facts).endswith(said)


def test_a_loop_with_such_labels_is_a_run():
    x, y = X / np.float32(255), Y
    model = HandMade()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    terms = {"batch_size": 20, "steps": 2, "noise_multiplier": 1.0, "delta": 1e-4, "ledger": dpltm.Ledger()}
    loop = dpltm.PrivateLoop(model, squares, x, y, **terms)
    for step in loop:
        step.backward()
        optimizer.step()
    run = loop.finish()
    assert (run.config["classes"], run.spec.labels) == (0, LabelForm("float32", (3,)))
    assert dpltm.predict(run, x[:4]).outputs.shape == (4, 3)


@pytest.mark.parametrize(
    ("labels", "classes"), [(["float16", [3]], 0), (["int64", [-1]], 0), (["int64", [3]], 3), (None, 0)]
)
def test_a_layout_that_contradicts_itself_is_refused(labels, classes):
    spec = spec_of_several()
    body = {**spec.to_json(), "labels": labels}
    if labels is None:
        del body["labels"]
    told = partial(refused, OwnNetwork.from_json, kind=ArtifactError)
    assert told("here", {"model": "m:N", "features": 6, "classes": classes}, body).startswith("here: own: ")


def test_labels_that_the_loss_does_not_take_are_refused_before_they_are_paid_for():
    case = LABELS["labels of steps"]
    x, y = case.records(60, 0)
    made, ledger = tickets(case), dpltm.Ledger()
    y[41, 2] = 7  # of three
    said = "fails on a label of records (IndexError); give it labels that all are as it takes them"
    given = {**TRAINING, **case.facts, "ledger": ledger}
    assert f"`loss`: {said}" in refused(dpltm.train, made, x, y, round=1, **given)
    dp = {"criterion": "dp-train", "epsilon": 1.0, "rounds": 1, "iterations": 2, "batch_size": 20, "ledger": ledger}
    assert f"`loss`: {said}" in refused(dpltm.generate, x, y, model=case.model, **dp, **case.settings, **case.facts)
    strict = {"loss": tag_entropies, "score": lambda outputs, y: tag_hits(outputs, y) + 0 * outputs[0, 0, y.max()]}
    y[y < 0] = 0
    drawn = tickets(replace(case, settings=strict, labels=lambda _, count: np.resize(y[:9], (count, 5))))
    assert "fails on a label of records (IndexError)" in refused(
        dpltm.select, drawn, x, y, eps1=1.0, score="additive", ledger=ledger, **case.facts
    )
    assert len(ledger.entries) == 0


CASE = PARTS["mapping"]


def trained(case=CASE, **more):
    return dpltm.train(case.model, *case.records(60, 0), ledger=dpltm.Ledger(), **TRAINING, **case.facts, **more)


@functools.cache
def spec_of_parts() -> OwnNetwork:
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
    assert "records of records have nothing in 'attention_mask' in the place of whole numbers below 2" in train(
        less, y
    )
    assert "in 'token_type_ids' in the place of nothing; give it records of the same parts" in train(more, y)
    assert "have whole numbers below 2 of shape (4,) in 'attention_mask' in the place of" in train(short, y)
    assert "; have nothing in 'input_ids' in the place of" in train(x["input_ids"] / WORDS, y, bounds=(0, 1))
    assert "whole numbers below 13" in train(x, y, words={"input_ids": 13, "attention_mask": 2})
    for given, said in ((less, "have nothing in 'attention_mask'"), (more, "in 'token_type_ids'"), (short, "(4,)")):
        assert said in refused(dpltm.predict, run, given)
        assert said in refused(dpltm.evaluate, run, given, y)
    given = {"ledger": ledger, **TRAINING, **CASE.facts}
    assert "mlp:8 takes one array" in refused(dpltm.train, "mlp:8", x, y, **given)
    assert "takes records of one array" in refused(dpltm.train, Reader, x, y, features="unit", **given)
    assert "go through an" in refused(dpltm.train, Reader, x, y, units=np.arange(60) // 2, **given)
    assert len(ledger.entries) == 0


def test_the_layout_is_on_disk(tmp_path):
    x, y = CASE.records(60, 0)
    x = {**x, "attention_mask": x["attention_mask"] > 0}
    words = {"input_ids": WORDS}
    run = dpltm.train(Reader, x, y, words=words, classes=CLASSES, ledger=dpltm.Ledger(), **TRAINING)
    save(run, tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    length = x["input_ids"].shape[1]
    mask, ids = ["attention_mask", [length], 2, "bool", False], ["input_ids", [length], WORDS, "int64", False]
    assert stored["own"]["parts"] == [mask, ids]
    loaded = load(tmp_path / "run", model=Reader)
    assert loaded.spec.parts == run.spec.parts
    assert np.array_equal(dpltm.predict(loaded, x).outputs, dpltm.predict(run, x).outputs)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [["a", [10], 5, "int64", False]] * 2,
        [["1", [10], 5, "int64", False]],
        [["a", [10], 2**22 + 1, "int64", False]],
        [["a", [10], 5, "object", False]],
        [["a", [10], 5, "int64", True]],
        [["a", [10], 5, "int64", 1]],
    ],
)
def test_layouts_that_are_none(parts):
    document = {"model": "m:N", "features": 10, "classes": CLASSES}
    body = {**spec_of_parts().to_json(), "parts": parts}
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
