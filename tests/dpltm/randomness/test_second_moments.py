"""Second moments of norm-bounded rows: sensitivity on hostile values, the noise, and the steps that divide by them."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor, nn

from dpltm.randomness.noise import FastSource
from dpltm.randomness.second_moments import SENSITIVITY, edge, release_second_moments, whole_rows
from dpltm.training.optimizers import CURVATURE, OPTIMIZERS, NewtonSteps

FEATURES = 3
ANY = npst.arrays(np.float32, (4, FEATURES), elements=st.floats(width=32, allow_nan=True, allow_infinity=True))


def moments(x: Tensor, std: float = 0.0, seed: int = 0) -> Tensor:
    return release_second_moments(iter([x]), x.shape[1], std, FastSource(seed))


def distance(one: Tensor, other: Tensor) -> Fraction:
    """Squared, of svec, without any rounding; both triangles together stand for the sqrt 2."""
    pairs = zip(one.flatten().tolist(), other.flatten().tolist(), strict=True)
    return sum(((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs), Fraction(0))


@given(ANY)
def test_a_record_more_moves_the_moments_by_at_most_the_sensitivity(rows: np.ndarray):
    """Whatever it and the others are; and a record replaced by at most twice that."""
    x = torch.from_numpy(rows)
    assert distance(moments(x), moments(x[:-1])) <= Fraction(SENSITIVITY) ** 2
    assert distance(moments(x[1:]), moments(x[:-1])) <= 4 * Fraction(SENSITIVITY) ** 2


def test_the_bound_is_reached_by_records_of_norm_1_and_above():
    others = torch.randn(50, FEATURES, generator=torch.Generator().manual_seed(1))
    for row in ([1.0, 0.0, 0.0], [0.6, 0.0, -0.8], [3e38, 3e38, -3e38], [0.0, 1e30, 1e-30]):
        moved = distance(moments(torch.cat([others, torch.tensor([row])])), moments(others))
        assert Fraction(0.999) < moved <= 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_adds_nothing(value: float):
    others = torch.randn(5, FEATURES, generator=torch.Generator().manual_seed(2))
    odd = torch.tensor([[0.5, value, 0.0]])
    assert torch.equal(moments(torch.cat([others, odd])), moments(others))


def test_short_rows_are_kept_as_they_are_and_long_ones_in_direction():
    x = torch.tensor([[0.25, -0.5, 0.125], [3.0, 0.0, 4.0], [0.0, 0.0, 0.0]])
    plain = torch.tensor([[0.25, -0.5, 0.125], [0.6, 0.0, 0.8], [0.0, 0.0, 0.0]]).double()
    assert ((whole_rows(x) / 2**16 - plain).abs() <= 2 * 2.0**-16).all()


def test_sums_are_those_of_the_naive_loop_in_any_order():
    x = torch.randn(5000, 4, generator=torch.Generator().manual_seed(3)) * 0.2
    naive = sum((torch.outer(row, row) for row in x.double()), torch.zeros(4, 4, dtype=torch.float64))
    assert (moments(x) - naive).abs().max() < 5000 * 2.0**-15
    assert torch.equal(moments(x), release_second_moments(iter([x[3000:], x[:3000]]), 4, 0.0, FastSource(0)))


def test_the_noise_is_that_of_svec_and_symmetric():
    noise, std = moments(torch.zeros(1, 300), 5.0), 5.0
    assert torch.equal(noise, noise.T)
    first, other = torch.triu_indices(300, 300, 1)
    # 44,850 and 300 draws: five standard errors of a deviation are 2 % and 20 % of it
    assert noise[first, other].std() == pytest.approx(std / math.sqrt(2), rel=0.02)
    assert noise.diagonal().std() == pytest.approx(std, rel=0.2)
    assert torch.linalg.eigvalsh(noise).max() == pytest.approx(edge(300, std), rel=0.1)


def layer(gradient: Tensor) -> nn.Linear:
    """Weights of zero, whose gradient is that, with the bias last."""
    made = nn.Linear(gradient.shape[1] - 1, len(gradient))
    for parameter, part in zip(made.parameters(), (gradient[:, :-1], gradient[:, -1]), strict=True):
        nn.init.zeros_(parameter)
        parameter.grad = part.clone()
    return made


def test_a_step_solves_the_damped_least_squares_problem():
    """(I + lr c M) step = -lr gradient, for the exact moments, which have no noise to be shrunk for."""
    generator = torch.Generator().manual_seed(4)
    gradient, second = torch.randn(2, 4, generator=generator), moments(torch.rand(90, 4, generator=generator))
    made = layer(gradient)
    NewtonSteps(list(made.parameters()), second, 0.0, 0.5).step(7.0, 1)
    found = torch.cat([made.weight, made.bias[:, None]], dim=1).double()
    curved = torch.eye(4, dtype=torch.float64) + 7.0 * CURVATURE * 0.5 * second
    assert torch.allclose(found @ curved, -7.0 * gradient.double(), atol=1e-5)


def test_classes_go_by_the_weights_that_each_has():
    """A class with two weights and its bias takes the step of a layer of those alone; the second input has none anywhere."""
    generator = torch.Generator().manual_seed(4)
    gradient, second = torch.randn(2, 5, generator=generator), moments(torch.rand(90, 4, generator=generator))
    live = torch.tensor([[True, False, True, False], [False, False, True, True]])
    made = layer(gradient * torch.cat([live, torch.ones(2, 1)], 1))
    NewtonSteps(list(made.parameters()), second, 1.0, 0.5, live=live).step(7.0, 1)
    assert not made.weight[~live].any()
    for number, places in enumerate(([0, 1, 3], [1, 2, 3])):  # of inputs 0, 2, 3 and the bias
        alone = layer(gradient[number : number + 1, [*live[number].nonzero()[:, 0].tolist(), 4]])
        NewtonSteps(list(alone.parameters()), second[places][:, places], 1.0, 0.5).step(7.0, 1)
        assert torch.allclose(made.weight[number, live[number]], alone.weight[0], atol=1e-6)
        assert torch.allclose(made.bias[number], alone.bias, atol=1e-6)


@pytest.mark.parametrize("second", [None, moments(torch.zeros(1, 4), 3.0)])
def test_without_moments_above_their_noise_a_step_is_one_of_sgd(second: Tensor | None):
    """The second has eigenvalues of noise alone; one that rises a little above the edge is told by its size."""
    gradient = torch.randn(2, 4, generator=torch.Generator().manual_seed(5))
    newton, sgd = layer(gradient), layer(gradient)
    NewtonSteps(list(newton.parameters()), second, 3.0).step(0.5, 1)
    OPTIMIZERS["sgd"](list(sgd.parameters())).step(0.5, 1)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(newton.parameters(), sgd.parameters(), strict=True))
