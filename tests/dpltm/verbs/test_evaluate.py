"""Accuracy, classes and probabilities on records that were held out, against the network computed by hand."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import dpltm
from dpltm.features.inputs import FeatureStore, Services
from dpltm.networks import ModelSpec, build, evaluation
from dpltm.networks.masks import Mask
from dpltm.privacy.entry import Entry
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.records import Dataset, from_arrays
from dpltm.tickets.feature_files import FeatureCache
from dpltm.training.artifacts import Run
from dpltm.verbs.evaluate import YOUR_WORD, evaluate, predict
from maps import make_feature_map
from opened import arrays_of
from refusals import refused

X, Y = load_digits().images.astype(np.uint8), load_digits().target


def digits(start: int, stop: int, test: tuple[int, int] | None, name: str = "mine", **facts: Any) -> Dataset:
    held_out = None if test is None else (X[slice(*test)], Y[slice(*test)])
    return from_arrays(X[start:stop], Y[start:stop], **{"test": held_out, "name": name, "bounds": (0, 255), **facts})


TRAINED = digits(0, 600, (600, 700))


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def release(ledger: Ledger, dataset: Dataset, words: str = "weights") -> Entry:
    draft = Entry("release", ledger.part(dataset), (NoisySgd(0.5, 10, 3.0),), words, unit=ledger.unit)
    return ledger.declare(draft)[0]


@pytest.fixture
def run(ledger: Ledger) -> Run:
    """A network that was trained on ``TRAINED``, or so its ledger says, whose test split was declared apart."""
    spec = ModelSpec("mlp:8", 64, 10)
    model = build(spec, 0)
    ledger.declare_once(*ledger.apart(TRAINED))
    config = {"model": "mlp:8", "features": 64, "classes": 10, "bounds": [0.0, 255.0]}
    lineage = ledger.lineage(release(ledger, TRAINED))
    return Run(config, model, Mask.dense(model), ledger=ledger, lineage=lineage)


def by_hand(run: Run, x: np.ndarray, y: np.ndarray) -> float:
    inputs = torch.from_numpy(x.reshape(len(x), -1).astype("f4") / 255)
    with torch.no_grad():
        return float((run.model(inputs).argmax(1).numpy() == y).mean())


def test_accuracy_is_that_of_the_network_on_a_dataset_or_arrays(run: Run) -> None:
    done = evaluate(run, TRAINED)
    assert (done.dataset, done.records, done.notes) == ("mine", 100, ())
    assert done.accuracy == by_hand(run, X[600:700], Y[600:700])
    done = dpltm.evaluate(run, X[700:900], Y[700:900])
    assert (done.records, done.notes) == (200, (YOUR_WORD,))
    assert dpltm.evaluate(run, X[700:900], Y[700:900]).notes == (), "declared by the first"
    assert done.accuracy == by_hand(run, X[700:900], Y[700:900])
    assert dpltm.evaluate(run, TRAINED).records == 100
    assert refused(dpltm.evaluate, run, X[700:900]).startswith("`y` is missing")


def test_bounds_that_nobody_gave(run: Run) -> None:
    """Of arrays they are those of the run."""
    assert evaluate(run, digits(0, 600, (600, 700), bounds=None)).notes == (
        "nobody gave the bounds of mine, so 0 to 255 is assumed, all that a byte can hold; if their values have another"
        " range, declare them with `bounds` LO,HI",
    )
    trained = replace(run, config={**run.config, "bounds_origin": "assumed"})
    theirs = (
        "nobody gave the bounds of the records that the run was trained on, so 0 to 255 is assumed, all that a byte can"
        " hold; if their values have another range, train with `bounds` LO,HI",
    )
    assert dpltm.evaluate(trained, X[700:900], Y[700:900]).notes == (YOUR_WORD, *theirs)
    assert dpltm.predict(trained, X[700:900]).notes == theirs
    assert dpltm.predict(run, X[700:900]).notes == ()


PROTECTED = "`dataset`: {} is protected by a release on record ({},"


def test_records_that_were_trained_on_are_refused(run: Run) -> None:
    """Those of one snapshot, as a file's split, as arrays and under another name."""
    told = PROTECTED.format("mine", "weights")
    assert refused(evaluate, run, digits(700, 900, (0, 600), "other")).startswith(told)
    assert refused(dpltm.evaluate, run, X[:600], Y[:600]).startswith(told.replace("dataset", "x"))


def test_records_of_another_file_are_declared_and_the_ledger_of_the_training_is_asked(run: Run) -> None:
    """Rows are not compared across commands, and snapshots have other names under the key of another ledger."""
    some, same = digits(700, 900, (590, 690), "other"), digits(700, 900, (0, 600), "other")
    assert evaluate(run, some).notes == (YOUR_WORD,)
    assert evaluate(run, some).notes == (), "it is on record now"
    copied = replace(run, ledger=None)
    assert evaluate(copied, same, Ledger()).notes == (YOUR_WORD,)


def test_records_that_the_network_does_not_take(run: Run) -> None:
    few = from_arrays(X[:400], Y[:400] % 5, test=(X[600:700], Y[600:700] % 5), name="few")
    said = "the run: its network has 10 classes, but few has 5; use records with the same classes"
    assert refused(evaluate, run, few) == said
    words = refused(evaluate, run, replace(TRAINED, tables=(300,)))
    assert "takes quantities, but records of mine hold positions in tables of 300" in words


@pytest.mark.parametrize("store", [FeatureStore, FeatureCache])
def test_what_stands_in_front_makes_the_features(
    run: Run, store: type[FeatureStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bits, the numbers that ``predict`` gives: an accuracy is that of what is handed on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    front = make_feature_map("scatter:1,4", (8, 8), (0.0, 255.0))
    front = front.centred_at(torch.full((front.features,), 0.1))
    spec = ModelSpec("mlp:8", front.features, 10)
    model = build(spec, 0)
    behind = replace(
        run, config=run.config | {"features": front.features}, model=model, mask=Mask.dense(model), feature_map=front
    )
    seen: list[torch.Tensor] = []
    plain = evaluation.outputs

    def noted(*given: Any, **said: Any) -> Iterator[torch.Tensor]:
        seen.append(torch.cat(list(plain(*given, **said))))
        return iter(seen[-1:])

    monkeypatch.setattr(evaluation, "outputs", noted)
    made = evaluate(behind, TRAINED, services=Services(features=store()))
    found = predict(behind, X[600:700])
    np.testing.assert_allclose(seen[-1].numpy(), found.outputs, rtol=0, atol=1e-6)
    assert np.abs(found.outputs).max() > 0.1
    assert made.accuracy == (found.labels == Y[600:700]).mean()


def test_records_of_a_publication_are_known_by_its_name() -> None:
    """It vouches for its own test split, and not for arrays."""
    ledger, digits = Ledger(), dpltm.records.load("digits")
    trained = dpltm.train("mlp:4", digits, noise_multiplier=9.0, steps=1, ledger=ledger)
    assert dpltm.evaluate(trained, *arrays_of(digits.test), ledger=ledger).notes == (YOUR_WORD,)
    assert dpltm.evaluate(trained, digits, ledger=ledger).notes == ()


SOME = load_digits().images[4::5][:37].astype(np.uint8)


def network(text: str = "mlp:8", features: int = 64, **changes: Any) -> Run:
    model = build(ModelSpec(text, features, 10), 0)
    for value in model.parameters():
        value.data *= 4  # so that it tells classes apart
    config = {"model": text, "features": features, "classes": 10, "bounds": [0.0, 16.0]}
    return Run(config, model, Mask.dense(model), label="r", **changes)


RUN = network()


def chances_by_hand(x: np.ndarray) -> np.ndarray:
    """Softmax of the two layers, in double precision, with no code of ours."""
    values = [value.detach().double().numpy() for value in RUN.model.parameters()]
    hidden = np.clip(x.reshape(len(x), -1).astype(np.float64), 0, 16) / 16
    hidden = np.maximum(hidden @ values[0].T + values[1], 0)
    outputs = hidden @ values[2].T + values[3]
    powers = np.exp(outputs - outputs.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def test_probabilities_and_labels() -> None:
    found = predict(RUN, SOME)
    many = np.random.default_rng(0).integers(0, 17, (1300, 8, 8), dtype=np.uint8)  # more than go through at once
    np.testing.assert_allclose(predict(RUN, many).probabilities, chances_by_hand(many), rtol=1e-4, atol=1e-7)
    assert (found.probabilities.dtype, found.labels.dtype, found.saturated) == (np.float32, np.int64, 0)
    np.testing.assert_allclose(found.probabilities, chances_by_hand(SOME), rtol=1e-4, atol=1e-7)
    assert found.labels.tolist() == chances_by_hand(SOME).argmax(1).tolist()
    assert len(set(found.labels.tolist())) > 3, "a network that always answers alike would show nothing"
    for same in (torch.from_numpy(SOME), SOME.reshape(37, 64).astype(np.float16), SOME[..., None], SOME.astype(">f8")):
        assert np.array_equal(dpltm.predict(RUN, same).probabilities, found.probabilities)


def test_values_outside_the_bounds_saturate_and_are_counted() -> None:
    wild = SOME.astype(np.float32)
    wild[3, 0, 0], wild[3, 7, 7], wild[9, 2, 2], wild[20, 1, 1] = -0.5, 16.25, 1e30, 16.0
    found = predict(RUN, wild)
    assert found.saturated == 3
    np.testing.assert_allclose(found.probabilities, chances_by_hand(wild), rtol=1e-4, atol=1e-7)


def test_behind_a_feature_map() -> None:
    """The map of the run, called directly; of values in a row as well."""
    front = make_feature_map("scatter:1,4", (8, 8), (0.0, 16.0))
    run = network("mlp:8", front.features, feature_map=front)
    with torch.no_grad():
        expected = run.model(front(SOME)).softmax(1).numpy()
    assert np.ptp(expected[:, 0]) > 1e-3
    for x in (SOME, SOME.reshape(37, 64)):
        np.testing.assert_allclose(predict(run, x).probabilities, expected, rtol=1e-4)


def test_a_convolutional_network_knows_its_images() -> None:
    """Records of as many values but with channels first are no such images; flattened ones cannot be told apart."""
    x = np.random.default_rng(1).integers(0, 16, (30, 14, 16, 3), dtype=np.uint8)
    run = network("cnn:14x16x3", 672)
    assert refused(predict, run, x.transpose(0, 3, 1, 2), source="first.npz") == (
        "`input`: first.npz has records of shape (3, 14, 16), but r takes (14, 16, 3); use records of the same shape, or"
        " their 672 values in a row"
    )
    assert "`input`: x has records of shape (7, 8), but r takes (64,)" in refused(predict, RUN, SOME[:, :7])
    assert np.array_equal(predict(run, x).probabilities, predict(run, x.reshape(30, -1)).probabilities)


def test_a_network_that_diverged() -> None:
    """Its classes would all be 0, as if it had decided so."""
    run = network()
    with torch.no_grad():
        run.model[-1].bias[:] = np.nan  # type: ignore[operator, index]
    said = "r: its network gives no finite numbers; train it with a smaller `lr`"
    assert refused(predict, run, SOME) == said
