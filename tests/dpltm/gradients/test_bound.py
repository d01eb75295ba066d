"""The certified bound, under attack: what one record contributes in float32, whatever the record and the network hold."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor, nn

from dpltm.filters import Automatic, Clip, Filter, Tanh
from dpltm.gradients import RecordGradients
from dpltm.gradients.engine import NARROW
from dpltm.networks.masks import Mask
from gradient_cases import dot, norm, random_mask


@functools.cache
def single_layer(inputs: int, outputs: int, bias: bool = True) -> tuple[RecordGradients, int]:
    """Made once, since the plan rests on shapes alone and nothing changes the weights."""
    model = nn.Sequential(nn.Linear(inputs, outputs, bias=bias))
    nn.init.zeros_(model[0].weight)
    mask = Mask.dense(model)
    return RecordGradients(model, mask, dot), mask.live


@pytest.fixture(scope="module", autouse=True)
def _own_plans(_products: None) -> None:
    """Plans hold what the products fixture chose, so they are made anew where it changes."""
    single_layer.cache_clear()


@pytest.mark.one_of(4)
@pytest.mark.parametrize("shape", [(1, 4096), (4096, 1), (1000, 100)])
@pytest.mark.parametrize("size", [2.0**-59, 1 / 3, 2.0**19.9, 2.0**20.1, 2.0**59])
def test_many_equal_coordinates(shape, size):
    """Equal coordinates are the worst case of clip-then-tanh, and sums of equal squares round all in one direction.

    Activations and output gradients are as far apart as float32 allows: one is ``size``, the other its inverse.
    """
    gradients, live = single_layer(*shape, bias=False)
    x, y = torch.full((1, shape[0]), size), torch.full((1, shape[1]), 1 / size)
    root = math.sqrt(live)  # the norm of the gradient; every coordinate is 1
    for clip_norm in (1e-6, 1.0, root * (1 - 1e-6), root, root * (1 + 1e-6), 1e6):
        contribution = norm(gradients.filtered_sum(x, y, Clip(clip_norm)).values)
        assert contribution <= clip_norm
        assert contribution >= min(clip_norm, root) * (1 - 2e-3)
    for scale, range_, clip_norm in ((1.0, 1.0, 1.0), (3.0, 1e-3, 1.0), (0.1, 10.0, 1e4), (1e-6, 1e6, 1e-6)):
        filter = Tanh(scale, range_, Clip(clip_norm))
        contribution = norm(gradients.filtered_sum(x, y, filter).values)
        assert contribution <= filter.certified_bound(live)
        if clip_norm <= root:
            assert contribution >= filter.certified_bound(live) * (1 - 2e-3)
    printed = Tanh(2.0, 0.01, None)
    contribution = norm(gradients.filtered_sum(x, y, printed).values)
    assert printed.certified_bound(live) * (1 - 1e-5) <= contribution <= printed.certified_bound(live)


@pytest.mark.one_of(3)
@pytest.mark.parametrize("count", [1000, 30000])
@pytest.mark.parametrize("as_inputs", [True, False])
@pytest.mark.parametrize("first", [1.0, 2.0**19])
def test_squares_that_float32_loses_are_covered(count, as_inputs, first):
    """One large coordinate, then many whose squares lie below half a unit in the last place of the running sum."""
    many = torch.full((1, count), first * 2.0**-12.6)
    many[0, 0] = first
    one = torch.ones(1, 1)
    shape = (count, 1) if as_inputs else (1, count)
    gradients, live = single_layer(*shape, bias=False)
    x, y = (many, one) if as_inputs else (one, many)
    assert norm(gradients.filtered_sum(x, y, Clip(0.5)).values) <= 0.5
    filter = Tanh(1.0, 1.0, Clip(1e-3))
    assert norm(gradients.filtered_sum(x, y, filter).values) <= filter.certified_bound(live)


@pytest.mark.one_of(2)
@pytest.mark.parametrize("size", [1e-25, 1.0, 2.0**58])
def test_norms_of_gradients_that_are_written_out(size):
    """Their squares under- or overflow float32, or are lost beside that of the first."""
    model = nn.Conv1d(1, 1, 30000, bias=False)
    nn.init.zeros_(model.weight)
    x = torch.full((1, 1, 30000), size * 2.0**-12.6)
    x[0, 0, 0] = size
    gradients = RecordGradients(model, Mask.dense(model), dot)
    result = gradients.filtered_sum(x, torch.ones(1, 1), Automatic(1.0, 0.0))
    assert result.skipped == 0
    assert 1 - 1e-4 <= norm(result.values) <= 1


@pytest.mark.one_of(5)
@pytest.mark.parametrize("density", [0.3, 2.0])
@pytest.mark.parametrize("least", [NARROW * 0.99, NARROW * 1.01, 1e-8])
@pytest.mark.parametrize("x_size", [2.0**19.9, 1.0, 2.0**-10, 2.0**-29])
def test_small_norms_of_which_squares_underflow(x_size, least, density):
    """Norms at the edge of what float32 computes, of factors as far apart as may be: a filter that normalises shows it."""
    inputs, outputs = 40, 30
    model = nn.Sequential(nn.Linear(inputs, outputs, bias=False))
    mask = random_mask(model, density, torch.Generator().manual_seed(0))
    gradients = RecordGradients(model, mask, dot)
    generator = torch.Generator().manual_seed(1)
    x = x_size / math.sqrt(inputs) * torch.rand(3, inputs, generator=generator)
    y = 2.0 ** torch.linspace(0.0, -40.0, outputs) * torch.rand(3, outputs, generator=generator)
    live = mask["0.weight"].double()
    for row in range(3):
        y[row] *= least / norm(torch.outer(y[row].double(), x[row].double()) * live)
        found = norm(gradients.filtered_sum(x[row : row + 1], y[row : row + 1], Automatic(1.0, 0.0)).values)
        assert 1 - 1e-4 <= found <= 1


def test_a_record_within_reach_is_not_skipped_and_one_beyond_is():
    """The largest usable record: its products reach 2^120, its norm must not overflow."""
    gradients, _ = single_layer(4, 4, bias=False)
    x = torch.full((1, 4), 2.0**60)
    result = gradients.filtered_sum(x, x, Clip(1.0))
    assert result.skipped == 0
    torch.testing.assert_close(result.values.double(), torch.full((16,), 0.25).double(), rtol=2e-5, atol=0.0)
    for feature, label in ((3e38, 1.0), (2.0**61, 2.0**-61), (2.0**-61, -(2.0**61))):
        result = gradients.filtered_sum(torch.full((1, 4), feature), torch.full((1, 4), label), Clip(1.0))
        assert (result.skipped, result.values.any().item()) == (1, False)


def moved_by_the_first(gradients: RecordGradients, x: Tensor, y: Tensor, filter: Filter) -> float:
    """What the sum of a batch changes by when its first record is left out, as released: before any noise."""
    everything = gradients.filtered_sum(x, y, filter).values.double()
    return norm(everything - gradients.filtered_sum(x[1:], y[1:], filter).values.double())


def test_rounding_of_the_sum_does_not_add_up():
    """Repeated rounding (Casacuberta et al. 2022): one record lifts the sum over 512, where float32 is half as fine.

    Thousands of tiny contributions that counted before are then rounded away, all in one sense.
    """
    gradients, live = single_layer(1, 1, bias=False)
    moved = []
    for large in range(514, 522):
        x = torch.cat([torch.ones(1), torch.full((large,), 0.99), torch.full((4000,), -512 * 2.0**-24)])[:, None]
        moved.append(moved_by_the_first(gradients, x, torch.ones_like(x), Clip(1.0)))
    assert max(moved) <= Clip(1.0).certified_bound(live)


def test_one_record_does_not_change_what_the_others_contribute():
    """All records are alike, so what float32 adds to the norm of one is added to all; a wide one takes it away."""
    gradients, live = single_layer(300, 100, bias=False)
    moved = []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        record = 0.1 + 0.9 * torch.rand(1, 300, generator=generator)
        label = 0.1 + 0.9 * torch.rand(1, 100, generator=generator)
        for sign in (1, -1):
            x = torch.cat([sign * 2.0**22 * record, record.expand(800, 300)])
            moved.append(moved_by_the_first(gradients, x, label.repeat(801, 1), Clip(1.0)))
    assert max(moved) <= Clip(1.0).certified_bound(live)
