"""Networks by name: shapes, initialisation, what they compute, and bad names."""

import dataclasses
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpltm.errors import InputError
from dpltm.models import ModelSpec, build


@settings(max_examples=40)
@given(st.lists(st.integers(1, 9), max_size=4), st.integers(1, 9), st.integers(1, 5))
def test_shapes_are_those_of_the_built_network_in_its_order(hidden, features, classes):
    text = "mlp:" + ",".join(map(str, hidden)) if hidden else "mlp"
    spec = ModelSpec(text, features, classes)
    model = build(spec, 0)
    assert list(spec.shapes().items()) == [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    assert model(torch.zeros(2, features)).shape == (2, classes)


def test_shapes_by_hand():
    assert ModelSpec("mlp:300,100", 784, 10).shapes() == {
        "fc1.weight": (300, 784),
        "fc1.bias": (300,),
        "fc2.weight": (100, 300),
        "fc2.bias": (100,),
        "fc3.weight": (10, 100),
        "fc3.bias": (10,),
    }


def test_computes_linear_layers_with_relu_between_and_none_at_the_end():
    model = build(ModelSpec("mlp:6,5", 4, 3), 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(5))
    value = x.double().numpy()
    weights = [parameter.detach().double().numpy() for parameter in model.parameters()]
    for layer in range(3):
        value = value @ weights[2 * layer].T + weights[2 * layer + 1]
        if layer < 2:
            value = np.maximum(value, 0)
    assert (value < 0).any(), "outputs of both signs are needed to tell that no ReLU follows"
    np.testing.assert_allclose(model(x).detach().numpy(), value, rtol=1e-4, atol=1e-4)


def test_mlp_alone_is_a_linear_classifier():
    assert ModelSpec("mlp", 4, 3).widths() == (4, 3)
    assert len(build(ModelSpec("mlp", 4, 3))) == 1


def test_glorot_normal_weights_and_zero_biases():
    model = build(ModelSpec("mlp:200,50", 300, 10), 3)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert parameter.tolist() == [0.0] * len(parameter)
            continue
        fan_out, fan_in = parameter.shape
        count, std = parameter.numel(), math.sqrt(2 / (fan_in + fan_out))
        # four standard errors of the standard deviation and of the mean of that many normal values
        assert abs(parameter.std().item() - std) < 4 * std / math.sqrt(2 * count)
        assert abs(parameter.mean().item()) < 4 * std / math.sqrt(count)
        if count > 1000:  # a uniform distribution of the same standard deviation would end at 1.73
            assert parameter.abs().max().item() > 2.5 * std


def test_the_seed_decides_everything():
    spec = ModelSpec("mlp:8", 5, 3)
    first, again, other = (list(build(spec, seed).parameters()) for seed in (4, 4, 5))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True) if a.ndim == 2)
    assert not torch.equal(first[0].flatten()[:15], first[2].flatten()[:15]), "layers share their draws"


@pytest.mark.parametrize("seed", [None, 0])
def test_global_random_state_is_neither_read_nor_changed(seed):
    spec = ModelSpec("mlp:8", 5, 3)
    torch.manual_seed(1)
    random.seed(1)
    before, python_before = torch.get_rng_state(), random.getstate()
    numpy_before = np.random.get_state()[1].copy()
    first = build(spec, seed)
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == python_before
    assert np.array_equal(np.random.get_state()[1], numpy_before)
    torch.manual_seed(2)
    if seed is not None:
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), build(spec, seed).parameters(), strict=True))


def test_a_spec_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelSpec("mlp", 4, 3).classes = 4


@pytest.mark.parametrize("text", ["", "cnn", "MLP:3", "mlp3", "mlp 3", "lenet:300,100"])
def test_unknown_networks(text):
    with pytest.raises(InputError) as error:
        ModelSpec(text, 4, 3)
    assert str(error.value) == (f"--model: unknown network {text!r}; known: mlp:WIDTH,WIDTH,... (such as mlp:300,100)")


@pytest.mark.parametrize(
    "text", ["mlp:0", "mlp:-3", "mlp:3,", "mlp:3,,4", "mlp:x", "mlp:3.5", "mlp:100001", "mlp:" + ",".join("1" * 101)]
)
def test_bad_widths(text):
    with pytest.raises(InputError) as error:
        ModelSpec(text, 4, 3)
    assert str(error.value) == (f"--model: {text!r}: widths must be whole numbers from 1 to 100000, as in mlp:300,100")


@pytest.mark.parametrize("size", [0, -1, 100_001, True, 2.0, "3"])
@pytest.mark.parametrize("name", ["features", "classes"])
def test_bad_sizes(name, size):
    with pytest.raises(InputError) as error:
        ModelSpec("mlp:3", **{"features": 4, "classes": 3, name: size})
    assert str(error.value) == f"model mlp:3: {name} {size!r} is not between 1 and 100000"
