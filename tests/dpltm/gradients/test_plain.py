"""The tanh filter on ordinary gradients."""

import math

import pytest
import torch
from torch import nn

from dpltm.errors import InputError
from dpltm.gradients import tanh_grad_


def with_gradients(*values):
    parameters = [nn.Parameter(torch.zeros(len(value))) for value in values]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.grad = torch.tensor(value)
    return parameters


def test_by_hand():
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
    with pytest.raises(InputError):
        tanh_grad_(with_gradients([1.0]), **options)
