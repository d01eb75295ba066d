"""The network for ratings, the loss of a user, and the error in stars: names, shapes, what they compute."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpltm.networks import ModelSpec, build, resolve
from dpltm.networks.evaluation import root_mean_squared_error
from dpltm.records.units import ABSENT
from dpltm.training.descent import cross_entropy, user_cross_entropy
from refusals import refused


def test_the_parameters_of_users_have_a_row_for_each():
    spec = ModelSpec(resolve("ncf", (2,), (6040, 3952)), 2, 5)
    assert (spec.text, spec.tables, spec.record_shape) == ("ncf:6040x3952", (6040, 3952), (2,))
    assert set(spec.user_parameters) == {name for name, shape in spec.shapes().items() if shape[0] == 6040}


def test_computes_products_and_what_stands_beside_them():
    model = build(ModelSpec("ncf:4x3:2,1", 2, 5), 0)
    value = dict(model.named_parameters())
    for seed, parameter in enumerate(value.values()):
        parameter.data = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
    product = value["factors.user_product.weight"][3] * value["factors.item_product.weight"][1]
    beside = value["factors.user_beside.weight"][3], value["factors.item_beside.weight"][1]
    expected = value["fc1.weight"] @ torch.cat([product, *beside]) + value["fc1.bias"]
    torch.testing.assert_close(model(torch.tensor([[3.0, 1.0]])), expected[None])
    torch.testing.assert_close(model(torch.tensor([[[3.0, 1.0]]])), expected[None, None])


@pytest.mark.parametrize("place", [-1.0, 4.0, 1e30, math.nan, math.inf])
def test_whoever_is_in_no_table_is_at_position_0(place):
    model = build(ModelSpec("ncf:4x4", 2, 5), 0)
    x, zero = torch.tensor([[place, place]]), torch.zeros(1, 2)
    assert torch.equal(model(x), model(zero))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelSpec("ncf:3x4", 3, 5), "`model`: ncf:3x4: such ratings have 2 features, not 3"),
        (lambda: ModelSpec("ncf-tanh:3x4", 2, 5), "`model`: 'ncf-tanh:3x4': ncf has no ReLU to stand in for; leave"),
        (lambda: resolve("ncf", (256,), (10000,)), "`model` ncf: records with tables of 10000 positions are no ratings, "),
    ],
)  # fmt: skip
def test_what_is_no_network_for_ratings(make, message):
    assert refused(make).startswith(message)


def test_the_loss_of_a_user_is_the_mean_over_what_is_there():
    outputs = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([[0, 4, 2], [ABSENT, 3, ABSENT], [ABSENT] * 3, [1, 1, ABSENT]])
    expected = torch.zeros(4)
    for user, (rows, given_) in enumerate(zip(outputs, labels, strict=True)):
        if (there := given_ != ABSENT).any():
            expected[user] = cross_entropy(rows[there], given_[there]).mean()
    torch.testing.assert_close(user_cross_entropy(outputs, labels), expected)


@settings(max_examples=20)
@given(st.integers(1, 20), st.integers(1, 7), st.integers(0, 2**32))
def test_error_in_stars(records, chunk, seed):
    generator = np.random.default_rng(seed)
    x, y = 3 * generator.standard_normal((records, 5)), generator.integers(0, 5, records)
    chances = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    expected = math.sqrt(
        np.mean([(p @ [1, 2, 3, 4, 5] - (label + 1)) ** 2 for p, label in zip(chances, y, strict=True)])
    )
    found = root_mean_squared_error(nn.Identity(), torch.from_numpy(x), torch.from_numpy(y), chunk)
    assert found == pytest.approx(expected, rel=1e-9)


def test_error_of_a_network_out_of_the_numbers():
    assert root_mean_squared_error(nn.Identity(), torch.tensor([[math.nan] * 5]), torch.tensor([1])) == math.inf
