"""Filtered gradient sums of Linear layers against the naive loop, and golden values that fit in the head."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.filters import Automatic, Clip, Filter, PerLayerClip, RadialTanh, Sigmoid, Tanh
from dpltm.gradients import RecordGradients, linear_layer
from dpltm.masks import Mask
from gradient_cases import cross_entropy, dot, naive_gradients, naive_sum, own_layers, random_mask

EXAMPLES = settings.default.max_examples  # of the profile: fifty, or a thousand
clips, ranges = st.floats(1e-3, 10), st.floats(0.1, 10)
filters = st.one_of(
    st.builds(Clip, clips),
    st.builds(PerLayerClip, clips),
    st.builds(RadialTanh, clips, ranges),
    st.builds(Automatic, clips, st.sampled_from([0.0, 0.01])),
    st.builds(Tanh, ranges, ranges, st.builds(Clip, st.floats(1e-2, 10))),
    st.builds(Tanh, ranges, ranges, st.none()),
    st.builds(Tanh, ranges, ranges, st.none(), st.builds(Clip, st.floats(1e-2, 10))),
    st.builds(Sigmoid, ranges, ranges),
)


@dataclass
class Case:
    model: nn.Sequential
    mask: Mask
    x: Tensor
    y: Tensor
    filter: Filter

    def naive(self, rounding: float) -> tuple[Tensor, Tensor]:
        """The filtered sum, and the norm of each record's gradient."""
        rows = naive_gradients(self.model, self.mask, cross_entropy, self.x, self.y)
        return naive_sum(rows, self.filter, rounding, own_layers(self.model)), torch.cat(list(rows.values()), 1).norm(
            dim=1
        )

    @property
    def bound(self) -> float:
        return self.filter.certified_bound(max(1, self.mask.live))


@st.composite
def cases(draw):
    """A network of drawn widths, with or without biases, under a mask that prunes all sorts of things."""
    widths = draw(st.lists(st.integers(1, 6), min_size=2, max_size=4))
    records = draw(st.sampled_from([0, 1, 1, 2, 9]))
    scale = draw(st.sampled_from([0.01, 1.0, 30.0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(itertools.pairwise(widths)):
        if number:
            layers.append(draw(st.sampled_from([nn.ReLU(), nn.Tanh(), nn.Identity()])))
        layers.append(nn.Linear(before, after, bias=draw(st.booleans()), dtype=torch.float64))
    model = nn.Sequential(*layers)
    tensors = {}
    for name, parameter in model.named_parameters():
        parameter.data.copy_(normal(*parameter.shape))
        density = draw(st.sampled_from([0.3, 0.7, 1.0]))
        keep = torch.rand(parameter.shape, generator=generator) < density
        if parameter.ndim == 2:
            match draw(st.sampled_from(["row", "column", "all", "none"])):
                case "row":  # no incoming weight is live while the bias may be
                    keep[draw(st.integers(0, len(keep) - 1))] = False
                case "column":
                    keep[:, draw(st.integers(0, keep.shape[1] - 1))] = False
                case "all":
                    keep[:] = False
        tensors[name] = keep
    mask = Mask(tensors)
    mask.apply(model)
    x = scale * normal(records, widths[0])
    y = torch.randint(0, widths[-1], (records,), generator=generator)
    return Case(model, mask, x, y, draw(filters))


@settings(max_examples=EXAMPLES * 3 // 5)
@given(cases())
def test_equals_the_naive_loop_in_float64_and_is_bounded(case):
    """Values come parameter by parameter, row by row; leaving one record out is the definition of sensitivity."""
    gradients = RecordGradients(case.model, case.mask, cross_entropy)
    expected, norms = case.naive(gradients.rounding)
    if isinstance(case.filter, Automatic) and case.filter.gamma == 0:
        assume(bool((norms > 1e-3).all()))  # has a direction
    result = gradients.filtered_sum(case.x, case.y, case.filter)
    assert result.skipped == 0
    assert result.values.shape == (case.mask.live,)
    torch.testing.assert_close(result.values, expected, rtol=1e-10, atol=1e-10 * case.bound)
    for left_out in range(len(case.x)):
        rest = torch.arange(len(case.x)) != left_out
        without = gradients.filtered_sum(case.x[rest], case.y[rest], case.filter).values
        assert (result.values - without).norm() <= case.bound * (1 + 1e-12)


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


@pytest.mark.parametrize("width", [1, 300, 5000])
def test_outward_rounding_is_slight(width):
    model = nn.Sequential(nn.Linear(1, width))
    rounding = RecordGradients(model, Mask.dense(model), dot).rounding
    assert 1 - 1e-3 < rounding < 1 - width * 2.0**-24


class CountingTanh(Tanh):
    """The filter itself; it notes how many values it was given at a time."""

    def map(self, values: Tensor) -> Tensor:
        shapes.append(tuple(values.shape))
        return super().map(values)


shapes: list[tuple[int, ...]] = []


def test_chunks_change_nothing(monkeypatch):
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    mask = random_mask(model, 0.7, generator)
    mask.apply(model)
    gradients = RecordGradients(model, mask, cross_entropy)
    x = torch.randn(11, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (11,), generator=generator)
    whole = gradients.filtered_sum(x, y, Tanh(1.0, 0.1, Clip(0.5))).values
    most = max(int(mask[name].sum()) for name in ("0.weight", "2.weight"))
    for chunk, coordinates in ((1, 1), (33, 3), (10**9, most)):
        monkeypatch.setattr(linear_layer, "CHUNK", chunk)
        shapes.clear()
        chunked = gradients.filtered_sum(x, y, CountingTanh(1.0, 0.1, Clip(0.5))).values
        assert {batch for _, batch in shapes} == {11}
        assert max(count for count, _ in shapes) == coordinates, "not the size that was asked for"
        torch.testing.assert_close(chunked, whole, rtol=1e-14, atol=1e-14)


def test_works_again_after_a_batch_that_failed():
    """The first batch decides how gradients are had, on made-up records: their number is what the message names."""
    model, mask, x, y = by_hand()
    gradients = RecordGradients(model, mask, dot)
    with pytest.raises(InputError) as error:  # three labels for two outputs
        gradients.filtered_sum(x, torch.ones(2, 3), Clip(100.0))
    assert str(error.value) == (
        "model or loss: fails on 11 made-up records of shape (2,): The size of tensor a (2) must match the size of tensor b"
        " (3) at non-singleton dimension 1"
    )
    fresh = gradients.filtered_sum(x, y, Clip(100.0)).values
    assert fresh.count_nonzero() == 4
    with pytest.raises(RuntimeError):
        gradients.filtered_sum(x, torch.ones(2, 3), Clip(100.0))
    assert not model[0]._forward_hooks
    assert torch.equal(gradients.filtered_sum(x, y, Clip(100.0)).values, fresh)
