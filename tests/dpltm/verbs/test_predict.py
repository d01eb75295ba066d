"""Classes and probabilities, against the same network computed by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import dpltm
from dpltm.errors import InputError
from dpltm.features.feature_map import make_feature_map
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.training.artifacts import Run
from dpltm.verbs.evaluate import predict
from refusals import refused

X = load_digits().images[4::5][:37].astype(np.uint8)


def network(text: str = "mlp:8", features: int = 64, **changes: Any) -> Run:
    model = build(ModelSpec(text, features, 10), 0)
    for value in model.parameters():
        value.data *= 4  # so that it tells classes apart
    config = {"model": text, "features": features, "classes": 10, "bounds": [0.0, 16.0]}
    return Run(config, model, Mask.dense(model), label="r", **changes)


RUN = network()


def by_hand(x: np.ndarray) -> np.ndarray:
    """Softmax of the two layers, in double precision, with no code of ours."""
    values = [value.detach().double().numpy() for value in RUN.model.parameters()]
    hidden = np.clip(x.reshape(len(x), -1).astype(np.float64), 0, 16) / 16
    hidden = np.maximum(hidden @ values[0].T + values[1], 0)
    outputs = hidden @ values[2].T + values[3]
    powers = np.exp(outputs - outputs.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def test_probabilities_and_labels() -> None:
    found = predict(RUN, X)
    many = np.random.default_rng(0).integers(0, 17, (1300, 8, 8), dtype=np.uint8)  # more than go through at once
    np.testing.assert_allclose(predict(RUN, many).probabilities, by_hand(many), rtol=1e-4, atol=1e-7)
    assert (found.probabilities.dtype, found.labels.dtype, found.saturated) == (np.float32, np.int64, 0)
    np.testing.assert_allclose(found.probabilities, by_hand(X), rtol=1e-4, atol=1e-7)
    assert found.labels.tolist() == by_hand(X).argmax(1).tolist()
    assert len(set(found.labels.tolist())) > 3, "a network that always answers alike would show nothing"
    for same in (torch.from_numpy(X), X.reshape(37, 64).astype(np.float16), X[..., None], X.astype(">f8")):
        assert np.array_equal(dpltm.predict(RUN, same).probabilities, found.probabilities)


def test_values_outside_the_bounds_saturate_and_are_counted() -> None:
    wild = X.astype(np.float32)
    wild[3, 0, 0], wild[3, 7, 7], wild[9, 2, 2], wild[20, 1, 1] = -0.5, 16.25, 1e30, 16.0
    found = predict(RUN, wild)
    assert found.saturated == 3
    np.testing.assert_allclose(found.probabilities, by_hand(wild), rtol=1e-4, atol=1e-7)


def test_behind_a_feature_map() -> None:
    """The map of the run, called directly; of values in a row as well."""
    front = make_feature_map("scatter:1,4", (8, 8), (0.0, 16.0))
    run = network("mlp:8", front.features, feature_map=front)
    with torch.no_grad():
        expected = run.model(front(X)).softmax(1).numpy()
    assert np.ptp(expected[:, 0]) > 1e-3
    for x in (X, X.reshape(37, 64)):
        np.testing.assert_allclose(predict(run, x).probabilities, expected, rtol=1e-4)


def test_a_convolutional_network_knows_its_images() -> None:
    """Records of as many values but with channels first are no such images; flattened ones cannot be told apart."""
    x = np.random.default_rng(1).integers(0, 16, (30, 14, 16, 3), dtype=np.uint8)
    run = network("cnn:14x16x3", 672)
    assert refused(predict, run, x.transpose(0, 3, 1, 2), source="first.npz") == (
        "`input`: first.npz has records of shape (3, 14, 16), but r takes (14, 16, 3); use records of the same shape, or"
        " their 672 values in a row"
    )
    with pytest.raises(InputError, match=r"`input`: x has records of shape \(7, 8\), but r takes \(64,\)"):
        predict(RUN, X[:, :7])
    assert np.array_equal(predict(run, x).probabilities, predict(run, x.reshape(30, -1)).probabilities)


def test_a_network_that_diverged() -> None:
    """Its classes would all be 0, as if it had decided so."""
    run = network()
    with torch.no_grad():
        run.model[-1].bias[:] = np.nan  # type: ignore[operator, index]
    assert refused(predict, run, X) == (
        "r: its network gives no finite numbers, since training diverged; train it with a smaller `lr`"
    )
