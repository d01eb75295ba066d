"""Filtered gradient sums of Linear layers, and the tanh filter on ordinary gradients: golden values that fit in the head."""

import math

import pytest
import torch
from torch import Tensor, nn

from dpltm.filters import Clip, Tanh
from dpltm.gradients import RecordGradients, tanh_grad_
from dpltm.networks.masks import Mask
from gradient_cases import dot
from refusals import refused


def by_hand() -> tuple[nn.Sequential, Mask, Tensor, Tensor]:
    """Two records through one 2 x 2 layer; the gradients are outer products that fit in the head."""
    model = nn.Sequential(nn.Linear(2, 2))
    keep = torch.tensor([[True, False], [True, True]])
    mask = Mask({"0.weight": keep, "0.bias": torch.tensor([False, True])})
    return model, mask, torch.tensor([[1.0, 2.0], [0.0, 4.0]]), torch.tensor([[3.0, 5.0], [1.0, 0.0]])


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        # record 1: weight [[3, 6], [5, 10]], bias [3, 5], live (3, 5, 10, 5) of norm sqrt(159); record 2: live all 0
        (Clip(100.0), [3.0, 5.0, 10.0, 5.0]),
        (Clip(1.0), [value / math.sqrt(159) for value in (3, 5, 10, 5)]),
        (Tanh(2.0, 5.0, None), [2 * math.tanh(value / 5) for value in (3, 5, 10, 5)]),
        (Tanh(1.0, 0.1, Clip(1.0)), [math.tanh(value / math.sqrt(159) / 0.1) for value in (3, 5, 10, 5)]),
    ],
)
def test_golden(filter, expected):
    """Also under the caller's no_grad, with the network left as it was; gradients of zero stay zero."""
    model, mask, x, y = by_hand()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = RecordGradients(model, mask, dot)
    with torch.no_grad():
        values = gradients.filtered_sum(x, y, filter).values
    torch.testing.assert_close(values, torch.tensor(expected).double(), rtol=2e-5, atol=0.0)
    assert not values.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not model[0]._forward_hooks
    assert not gradients.filtered_sum(x, torch.zeros_like(y), filter).values.any()
    assert gradients.filtered_sum(x[:0], y[:0], filter).values.tolist() == [0.0] * 4


@pytest.mark.parametrize("width", [1, 300, 5000])
def test_outward_rounding_is_slight(width):
    model = nn.Sequential(nn.Linear(1, width))
    rounding = RecordGradients(model, Mask.dense(model), dot).rounding
    assert 1 - 1e-3 < rounding < 1 - width * 2.0**-24


def test_works_again_after_a_batch_that_failed():
    """The first batch decides how gradients are had, on made-up records: their number is what the message names."""
    model, mask, x, y = by_hand()
    gradients = RecordGradients(model, mask, dot)
    assert refused(gradients.filtered_sum, x, torch.ones(2, 3), Clip(100.0)) == (  # three labels for two outputs
        "model or loss: fails on 11 made-up records of shape (2,): The size of tensor a (2) must match the size of tensor b"
        " (3) at non-singleton dimension 1"
    )
    fresh = gradients.filtered_sum(x, y, Clip(100.0)).values
    assert fresh.count_nonzero() == 4
    with pytest.raises(RuntimeError):
        gradients.filtered_sum(x, torch.ones(2, 3), Clip(100.0))
    assert not model[0]._forward_hooks
    assert torch.equal(gradients.filtered_sum(x, y, Clip(100.0)).values, fresh)


def with_gradients(*values):
    parameters = [nn.Parameter(torch.zeros(len(value))) for value in values]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.grad = torch.tensor(value)
    return parameters


def test_tanh_on_gradients_by_hand():
    first, second = with_gradients([3.0, -4.0], [0.0, 12.0])
    unused = nn.Parameter(torch.zeros(2))
    norm = tanh_grad_([first, second, unused], scale=2.0, range=4.0)
    assert norm.item() == pytest.approx(13.0)
    assert first.grad.tolist() == pytest.approx([2 * math.tanh(0.75), -2 * math.tanh(1.0)])
    assert second.grad.tolist() == pytest.approx([0.0, 2 * math.tanh(3.0)])
    assert unused.grad is None
    assert tanh_grad_([]).item() == 0.0


def test_whatever_explodes_comes_out_bounded():
    """Of one tensor, not in a list."""
    (parameter,) = with_gradients([math.inf, -math.inf, math.nan, 1e38, -1e-30])
    assert not math.isfinite(tanh_grad_(parameter, scale=0.5).item())
    assert parameter.grad.tolist() == pytest.approx([0.5, -0.5, 0.0, 0.5, -0.5e-30])


@pytest.mark.parametrize("options", [{"scale": 0.0}, {"range": -1.0}, {"range": math.nan}])
def test_parameters_out_of_range(options):
    refused(tanh_grad_, with_gradients([1.0]), **options)
