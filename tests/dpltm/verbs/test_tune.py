"""The search for settings: every one is tried under the noise that the private run will have, on public records alone."""

import json
import math
from typing import Any

import joblib
import numpy as np
import pandas
import pytest
import torch

from dpltm.errors import ArtifactError
from dpltm.features.inputs import Services
from dpltm.networks import ModelSpec, build
from dpltm.options.train import TrainOptions
from dpltm.options.tune import TuneOptions
from dpltm.privacy.entry import lineage_from_json
from dpltm.privacy.ledger import Ledger
from dpltm.records import from_arrays
from dpltm.records.schema import parse_schema
from dpltm.training.artifacts import fresh
from dpltm.verbs import tune as stage
from dpltm.verbs.train import train_start
from refusals import refused
from stage_cases import SPEC, body, kinds, planned, private_set, public_set, records, ticket_set

QUICK = {"for_records": 700, "epsilon": 2.0, "epochs": "1", "batch_size": "100", "lr": "1"}
"""Seven steps at a sampling rate of a seventh."""


def search(
    target: Any = "mlp", dataset: Any = None, ledger: Ledger | None = None, **options: Any
) -> stage.SearchResult:
    ledger = Ledger() if ledger is None else ledger
    target = ticket_set() if target == "tickets" else target
    dataset = records(1) if dataset is None else dataset
    return stage.tune(target, dataset, TuneOptions(**{**QUICK, **options}), ledger, Services())


@pytest.fixture
def untried(monkeypatch):
    """Every training is skipped, and scores a half."""
    monkeypatch.setattr(stage, "train", lambda *_, **__: None)
    monkeypatch.setattr(stage, "accuracy", lambda *_, **__: 0.5)


@pytest.fixture
def trained(monkeypatch):
    """The networks that are scored, in order: a list that fills."""
    networks, judge = [], stage.accuracy

    def listening(model, x, y, **more):
        networks.append({name: value.detach().clone() for name, value in model.named_parameters()})
        return judge(model, x, y, **more)

    monkeypatch.setattr(stage, "accuracy", listening)
    return networks


@pytest.fixture
def scores(monkeypatch):
    """Makes the search see these scores, one a training, and train nothing."""
    left: list[float] = []
    monkeypatch.setattr(stage, "accuracy", lambda *_, **__: left.pop(0))
    monkeypatch.setattr(stage, "train", lambda *_, **__: None)
    return left


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(("records", "batch"), [(3, 1), (6400, 1600), (60_000, 1600)])
def test_the_batch_that_nobody_gave_is_that_of_a_training(records, batch):
    assert search(for_records=records, batch_size=None, epochs="0.1").best.batch_size == batch


@pytest.mark.usefixtures("untried")
def test_it_is_what_a_training_calibrates():
    """Of as many private records as ``for_records`` says."""
    trial = search("mlp:8", for_records=200, batch_size="50").best
    private = planned(start=fresh(SPEC, 0), epsilon=2.0, epochs=1.0, batch_size=50.0)
    assert (trial.noise_multiplier, trial.steps) == (private.resolved["noise_multiplier"], private.resolved["steps"])


@pytest.mark.parametrize(("public", "optimizer"), [(60, "momentum"), (4000, "sgd")])
def test_mean_gradients_are_as_noisy_as_the_private_ones(trained, public, optimizer):
    """One step on records of zeros: no gradient but that of the biases, so the weights move by noise alone.

    The private batch is of 1,000 records: more than the smaller public set has, whose mean gradient is full all the same.
    """
    inputs, classes, batch, lr, clip = 700, 10, 1000, 3.0, 0.95
    labels = np.arange(public) % classes
    labels[: public // 2] = 0
    test = (np.ones((10, inputs), np.uint8), np.arange(10))
    zeros = from_arrays(np.zeros((public, inputs), np.uint8), labels, test=test, name="zeros")
    budget = {"for_records": 5000, "epsilon": 1.0, "epochs": "0.2", "batch_size": str(batch)}
    best = search("mlp", zeros, **budget, lr=str(lr), clip_norm=str(clip), optimizer=optimizer, seed=3).best
    assert best.steps == 1
    start = dict(build(ModelSpec("mlp", inputs, classes), 3).named_parameters())
    (end,) = trained
    (weight,) = (name for name in start if name.endswith("weight"))
    (bias,) = (name for name in start if name.endswith("bias"))
    expected = best.noise_multiplier * clip / batch
    moves = ((end[weight] - start[weight]) / lr).detach().double().flatten().numpy()
    count = len(moves)
    assert abs(moves.mean()) < 5 * expected / math.sqrt(count)
    assert abs((moves**2).mean() / expected**2 - 1) < 5 * math.sqrt(2 / count)  # 6 % for 7,000 weights
    # the gradient of the biases: a tenth less how frequent the class is; no record's norm, sqrt(0.9), is clipped
    gradient = 0.1 - np.bincount(labels, minlength=classes) / public
    spread = 0 if public < batch else 0.95 / math.sqrt(batch)  # who was drawn
    moved = -(end[bias] - start[bias]).detach().numpy() / lr
    np.testing.assert_allclose(moved, gradient, atol=6 * math.hypot(expected, spread))
    assert abs(gradient[0]) > 0.4


def test_all_combinations_the_best_first_by_the_mean_of_repeats(scores):
    scores += [0.9, 0.1, 0.3, 0.6, 0.4, 0.5, 0.2, 0.2, 0.2, 0.3, 0.3, 0.3]
    found = search(lr="1,2", clip_norm="0.5,1", repeats=3)
    assert [(trial.lr, trial.clip_norm, trial.accuracies) for trial in found.trials] == [
        (1, 1, (0.6, 0.4, 0.5)), (1, 0.5, (0.9, 0.1, 0.3)), (2, 1, (0.3,) * 3), (2, 0.5, (0.2,) * 3),
    ]  # fmt: skip
    assert [trial.accuracy for trial in found.trials] == pytest.approx([0.5, 1.3 / 3, 0.3, 0.2])
    assert found.best is found.trials[0]
    assert all((trial.round, trial.density) == (None, 1) for trial in found.trials)


def test_repeats_start_from_other_weights(trained):
    """Of a fresh network; a step size of next to nothing leaves them as they were drawn."""
    search("mlp:8", lr="1e-9", repeats=2, seed=5)
    for seed, end in zip((5, 6), trained, strict=True):
        for name, value in build(SPEC, seed).named_parameters():
            torch.testing.assert_close(end[name], value.detach(), rtol=0, atol=1e-6)


@pytest.mark.usefixtures("untried")
def test_some_combinations_by_seed():
    """As many as asked for, none twice, the same for the same seed; all of them where there are fewer."""
    tried = []
    for seed in (1, 1, 2, 3, 4):
        found = search(lr="1,2,3,4,5,6", clip_norm="1,2", trials=3, seed=seed).trials
        tried.append({(trial.lr, trial.clip_norm) for trial in found})
        assert len(found) == len(tried[-1]) == 3
    assert tried[0] == tried[1]
    assert len({frozenset(some) for some in tried}) > 1
    assert len(search(lr="1,2", trials=9).trials) == 2


@pytest.mark.parametrize(("rounds", "expected"), [(None, {1, 2}), ("2,0", {0, 2})])
def test_rounds_of_a_set(trained, rounds, expected):
    """Every ticket starts from the weights of the set, and what its mask prunes stays zero."""
    found, made = search("tickets", records(3), rounds=rounds, lr="1e-9"), body()
    assert {trial.round for trial in found.trials} == expected
    for trial in found.trials:
        assert trial.density == made.tickets[trial.round].mask.density
    in_order = [made.tickets[number] for number in ((1, 2) if rounds is None else (2, 0))]
    for end, ticket in zip(trained, in_order, strict=True):
        for name, value in end.items():
            torch.testing.assert_close(value, made.theta0[name] * ticket.mask[name], rtol=0, atol=1e-6)


def test_without_a_test_split_a_fifth_of_the_records_is_held_out(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (53, 6), dtype=np.uint8), rng.integers(0, 3, 53)
    seen = {}

    def train(*given, **_):
        seen["train"] = given[2].take(np.arange(len(given[2])))

    monkeypatch.setattr(stage, "train", train)
    monkeypatch.setattr(stage, "accuracy", lambda _, *test, **__: (seen.update(test=test), 0.5)[1])
    assert search("mlp", from_arrays(x, y, classes=3)).best.accuracy == 0.5
    # which fifth is drawn; no record is on both sides, and none is missing
    parts = {name: (found_x.numpy(), found_y.numpy()) for name, (found_x, found_y) in seen.items()}
    assert {name: len(part[1]) for name, part in parts.items()} == {"test": 10, "train": 43}
    found, wanted = np.vstack([np.column_stack(part) for part in parts.values()]), np.column_stack([x / 255, y])
    np.testing.assert_allclose(found[np.lexsort(found.T)], wanted[np.lexsort(wanted.T)], atol=1e-6)


def test_threads_of_joblib_find_the_same(monkeypatch):
    """Whoever allows several at a time gets the figures of one after the other, for the same key."""
    monkeypatch.setattr(stage.noise, "fresh_key", lambda: b"k" * 32)
    alone = search("mlp:8", lr="0.5,1", repeats=2)
    with joblib.parallel_config("threading", n_jobs=3):
        together = search("mlp:8", lr="0.5,1", repeats=2)
    assert together.trials == alone.trials
    assert len({*alone.trials[0].scores, *alone.trials[1].scores}) > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 0.002}, "`delta`: 0.002 is not below 1/n for 700 records; take a smaller one"),
        ({"clip_norm": "1,nan"}, "`clip_norm`: nan is not a positive number up to 1e+30"),
        ({"lr": "1,,2"}, "`lr`: '1,,2' is not a list of numbers separated by commas"),
        ({"batch_size": "100,701"}, "`batch_size`: 701 is not a positive number up to 700"),
        (
            {"lr": ",".join(["1"] * 101), "clip_norm": ",".join(["1"] * 100)},
            "`lr`, `clip_norm`, `epochs`, `batch_size`: more than 10,000 combinations; name fewer",
        ),
        ({"rounds": "1"}, "`rounds`: '1': give rounds of SET, such as 0,3,6; without SET leave it out"),
    ],
)
def test_options(options, message):
    assert refused(search, **options) == message


def test_more_steps_than_a_training_takes(monkeypatch):
    monkeypatch.setattr(stage, "calibrate_noise", lambda *_: pytest.fail("calibrates for minutes"))
    assert refused(search, epochs="1e12").startswith("`epochs`: 1e+12 are ")


def test_rounds_that_are_none_and_too_few_records_to_hold_some_out():
    said = "`rounds`: '1,x': give rounds of SET, such as 0,3,6; without SET leave it out"
    assert refused(search, "tickets", records(3), rounds="1,x") == said
    with pytest.raises(ArtifactError, match=r"^tickets@7: no such round; it has rounds 0 to 2$"):
        search("tickets", records(3), rounds="1,7")
    four = from_arrays(np.zeros((4, 3), np.uint8), np.array([0, 1, 0, 1]), name="four")
    message = "`dataset`: four has no test split and 4 records, too few to hold some out"
    assert refused(search, "mlp", four).startswith(message)


def test_an_auc_needs_both_classes_among_the_records_to_score_on():
    """Else every setting would score 0, and the first be called the best."""
    x, y = np.zeros((20, 3), np.uint8), np.arange(20) % 2
    dataset = from_arrays(x, y, test=(x[:9] + 1, y[:9] * 0), classes=2, name="twenty")
    assert refused(search, "mlp", dataset, metric="auc", for_records=700).startswith(
        "`metric`: the records to score on"
    )


@pytest.mark.usefixtures("untried")
def test_records_that_a_release_protects_are_not_public():
    """By the ledger, whichever way the release came about."""
    ledger = Ledger()
    train_start(fresh(SPEC, 0), records(0), TrainOptions(noise_multiplier=5.0, steps=1), ledger)
    private_set(ledger, 2)
    for seed in (0, 2):
        message = refused(search, "mlp", records(seed), ledger)
        assert message.startswith(f"`dataset`: records{seed} is protected by a release on record"), message
    assert kinds(ledger) == ["NoisySgd", "Unprotected"]
    assert search("mlp", records(3), ledger).trials


def test_a_table_that_has_nothing_to_tune_is_told_so(scores):
    """A file of settings would train it by DP-SGD, whose chances of a rare class are too small."""
    scores += [0.5, 0.5]
    columns = '[column.a]\nkind = "number"\nbounds = [0, 1]\n[column.y]\nkind = "label"\nclasses = ["0", "1"]\n'
    frame = pandas.DataFrame({"a": np.linspace(0, 1, 40)})
    table = from_arrays(frame, np.arange(40) % 2, schema=parse_schema(columns, "it"))
    notes = [search(None, dataset).privacy.notes for dataset in (table, records(1))]
    assert [any("fits this table with nothing to tune" in note for note in some) for some in notes] == [True, False]


def test_settings_carry_what_they_were_found_by(scores):
    """The public records, those of the ticket set, and, of a set that protects nobody, that it exposes."""
    scores += [0.5, 0.5]
    ledger = Ledger()
    found = search(public_set(ledger), records(2), ledger)
    held = lineage_from_json(json.loads(found.settings["lineage"]))
    assert held == found.lineage
    assert kinds(held) == ["public", "public"]
    scores += [0.5, 0.5]
    found = search(private_set(ledger, 4), records(2), ledger)
    assert kinds(found.lineage) == ["public", "Unprotected", "Unprotected"]
