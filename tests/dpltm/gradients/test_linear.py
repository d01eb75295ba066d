"""Filtered gradient sums against the naive loop: one record at a time, plain autograd, the filter written out anew."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.filters import Automatic, Clip, Filter, PerLayerClip, RadialTanh, Sigmoid, Tanh
from dpltm.gradients import RecordGradients, linear_layer
from dpltm.masks import Mask


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def dot(outputs: Tensor, labels: Tensor) -> Tensor:
    """A loss whose output gradient is the label itself, so that tests decide every gradient."""
    return (outputs * labels).sum(1)


def record_gradient(model: nn.Module, mask: Mask, loss, x: Tensor, y: Tensor) -> Tensor:
    """Float64 gradient of one record at the live coordinates, parameters in their order."""
    gradients = torch.autograd.grad(loss(model(x[None]), y[None]).sum(), list(model.parameters()))
    named = zip(model.named_parameters(), gradients, strict=True)
    return torch.cat([gradient.flatten()[mask[name].flatten()].double() for (name, _), gradient in named])


def naive_filter(gradient: Tensor, filter: Filter, rounding: float, layers: list[int]) -> Tensor:
    """The table of docs/privacy-model.md section 4.2, radial factors rounded outward as RecordGradients states.

    ``layers`` are the numbers of live coordinates of each layer, in order.
    """

    def norm_of(values: Tensor) -> float:
        return math.sqrt(sum(value * value for value in values.tolist()))

    def clip(values: Tensor, to: float) -> Tensor:
        norm = norm_of(values)
        return values * (min(1.0, to / norm) if norm > 0 else 1.0) * rounding

    norm = norm_of(gradient)
    match filter:
        case Clip():
            return clip(gradient, filter.clip_norm)
        case PerLayerClip():
            return torch.cat(
                [clip(part, filter.clip_norm / math.sqrt(len(layers))) for part in gradient.split(layers)]
            )
        case RadialTanh():
            return gradient * (filter.clip_norm * math.tanh(norm / filter.range) / norm if norm else 0.0) * rounding
        case Automatic():
            return gradient * (filter.clip_norm / (norm + filter.gamma) if norm + filter.gamma else 0.0) * rounding
        case Sigmoid():
            mapped = [filter.scale / (1 + math.exp(-value / filter.range)) for value in gradient.tolist()]
            return torch.tensor(mapped, dtype=torch.float64)
    if filter.before is not None:
        gradient = clip(gradient, filter.before.clip_norm)
    mapped = torch.tensor(
        [filter.scale * math.tanh(value / filter.range) for value in gradient.tolist()], dtype=torch.float64
    )
    return mapped if filter.after is None else clip(mapped, filter.after.clip_norm)


@dataclass
class Case:
    model: nn.Sequential
    mask: Mask
    x: Tensor
    y: Tensor
    filter: Filter

    def gradients(self) -> list[Tensor]:
        return [
            record_gradient(self.model, self.mask, cross_entropy, *pair) for pair in zip(self.x, self.y, strict=True)
        ]

    def naive_sum(self, rounding: float) -> Tensor:
        layers = [
            int(sum(self.mask[f"{name}.{part}"].sum() for part, _ in module.named_parameters()))
            for name, module in self.model.named_modules()
            if isinstance(module, nn.Linear)
        ]
        filtered = [naive_filter(gradient, self.filter, rounding, layers) for gradient in self.gradients()]
        return sum(filtered, torch.zeros(self.mask.live, dtype=torch.float64))


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


@st.composite
def cases(draw, dtype: torch.dtype):
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
    return Case(model.to(dtype), mask, x.to(dtype), y, draw(filters))


def live_bound(case: Case) -> float:
    if isinstance(case.filter, (Tanh, Sigmoid)):
        return math.sqrt(case.mask.live) * case.filter.scale
    return case.filter.clip_norm


@given(cases(torch.float64))
def test_equals_the_naive_loop_in_float64(case):
    if isinstance(case.filter, Automatic) and case.filter.gamma == 0:
        assume(all(torch.linalg.vector_norm(gradient) > 1e-3 for gradient in case.gradients()))  # has a direction
    gradients = RecordGradients(case.model, case.mask, cross_entropy)
    result = gradients.filtered_sum(case.x, case.y, case.filter)
    assert result.skipped == 0
    assert result.values.shape == (case.mask.live,)
    torch.testing.assert_close(
        result.values.double(), case.naive_sum(gradients.rounding), rtol=1e-10, atol=1e-10 * live_bound(case)
    )


@settings(max_examples=EXAMPLES // 2)
@given(cases(torch.float32))
def test_equals_the_naive_loop_in_float32(case):
    gradients = RecordGradients(case.model, case.mask, cross_entropy)
    result = gradients.filtered_sum(case.x, case.y, case.filter)
    expected = case.naive_sum(gradients.rounding)
    # A float32 gradient is off by about 1e-6 of its norm. A filter moves that error by at most its Lipschitz constant.
    match case.filter:
        case Tanh() | Sigmoid():
            slope = case.filter.scale / case.filter.range
        case RadialTanh():
            slope = case.filter.clip_norm / case.filter.range
        case Automatic(gamma=gamma):
            assume(gamma > 0)  # to normalise is not Lipschitz: float32 decides the direction of what has hardly any
            slope = case.filter.clip_norm / gamma
        case _:
            slope = 1.0
    size = sum(float(torch.linalg.vector_norm(gradient)) for gradient in case.gradients())
    tolerance = 1e-5 * (slope * size + live_bound(case))
    if isinstance(case.filter, Clip):
        tolerance = 1e-5 * len(case.x) * live_bound(case)
    torch.testing.assert_close(result.values.double(), expected, rtol=1e-5, atol=tolerance)


@settings(max_examples=EXAMPLES // 2)
@given(cases(torch.float64))
def test_order_is_that_of_the_parameters_row_by_row(case):
    """With nothing clipped the values are the plain gradient of the batch at the live coordinates."""
    if len(case.x) == 0:
        return
    gradients = RecordGradients(case.model, case.mask, cross_entropy)
    values = gradients.filtered_sum(case.x, case.y, Clip(1e6)).values
    summed = torch.autograd.grad(cross_entropy(case.model(case.x), case.y).sum(), list(case.model.parameters()))
    for (name, _), gradient in zip(case.model.named_parameters(), summed, strict=True):
        part, values = values[: int(case.mask[name].sum())], values[int(case.mask[name].sum()) :]
        expected = (gradient * gradients.rounding)[case.mask[name]]
        torch.testing.assert_close(part, expected, rtol=1e-10, atol=1e-10)
    assert len(values) == 0


@settings(max_examples=EXAMPLES // 2)
@given(cases(torch.float64))
def test_one_record_moves_the_sum_by_at_most_the_bound(case):
    """Leave one out: the definition of add/remove sensitivity, in float64 where summation error is out of sight."""
    gradients = RecordGradients(case.model, case.mask, cross_entropy)
    everything = gradients.filtered_sum(case.x, case.y, case.filter).values
    for left_out in range(len(case.x)):
        rest = torch.arange(len(case.x)) != left_out
        without = gradients.filtered_sum(case.x[rest], case.y[rest], case.filter).values
        moved = torch.linalg.vector_norm(everything - without).item()
        assert moved <= case.filter.certified_bound(max(1, case.mask.live)) * (1 + 1e-12)


UNCLIPPED = Clip(1e6)


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
    model, mask, x, y = by_hand()
    values = RecordGradients(model, mask, dot).filtered_sum(x, y, filter).values
    torch.testing.assert_close(values.double(), torch.tensor(expected).double(), rtol=2e-5, atol=0.0)


def test_pruned_coordinates_do_not_enter_the_norm():
    """A norm over all coordinates would be sqrt(204) here, and would clip more than the definition says."""
    model, mask, x, y = by_hand()
    values = RecordGradients(model, mask, dot).filtered_sum(x, y, Clip(1.0)).values
    assert torch.linalg.vector_norm(values).item() == pytest.approx(1.0, abs=1e-4)


def test_a_live_bias_behind_a_pruned_row_has_a_gradient():
    model = nn.Sequential(nn.Linear(3, 2))
    mask = Mask({"0.weight": torch.zeros(2, 3, dtype=torch.bool), "0.bias": torch.tensor([True, True])})
    values = RecordGradients(model, mask, dot).filtered_sum(torch.ones(1, 3), torch.tensor([[3.0, 4.0]]), Clip(1e3))
    assert values.values.tolist() == pytest.approx([3.0, 4.0], rel=1e-4)


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


@pytest.mark.parametrize("before", [None, Clip(0.5)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_chunks_change_nothing(monkeypatch, before, dtype):
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).to(dtype)
    mask = Mask({name: torch.rand(p.shape, generator=generator) < 0.7 for name, p in model.named_parameters()})
    mask.apply(model)
    gradients = RecordGradients(model, mask, cross_entropy)
    x = torch.randn(11, 5, generator=generator).to(dtype)
    y = torch.randint(0, 3, (11,), generator=generator)
    whole = gradients.filtered_sum(x, y, Tanh(1.0, 0.1, before)).values
    weights = [int(mask[name].sum()) for name in ("0.weight", "2.weight")]
    for chunk, coordinates in ((1, 1), (33, 3), (10**9, 10**9)):
        monkeypatch.setattr(linear_layer, "CHUNK", chunk)
        shapes.clear()
        chunked = gradients.filtered_sum(x, y, CountingTanh(1.0, 0.1, before)).values
        assert {batch for _, batch in shapes} == {11}
        assert max(count for count, _ in shapes) == min(coordinates, max(weights)), "not the size that was asked for"
        tolerance = 1e-14 if dtype == torch.float64 else 1e-6
        torch.testing.assert_close(chunked, whole, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("filter", [Clip(1.0), Tanh(1.0, 1.0, Clip(1.0)), Tanh(1.0, 1.0, None)])
def test_an_empty_batch_is_zero_everywhere(filter):
    model, mask, x, y = by_hand()
    result = RecordGradients(model, mask, dot).filtered_sum(x[:0], y[:0], filter)
    assert result.values.tolist() == [0.0] * mask.live
    assert result.skipped == 0


def test_zero_gradients_stay_zero():
    model, mask, x, y = by_hand()
    for filter in (Clip(1.0), Tanh(1.0, 1.0, Clip(1.0)), Tanh(1.0, 1.0, None)):
        values = RecordGradients(model, mask, dot).filtered_sum(x, torch.zeros_like(y), filter).values
        assert values.tolist() == [0.0] * mask.live


def test_leaves_the_network_as_it_was():
    model, mask, x, y = by_hand()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    values = RecordGradients(model, mask, dot).filtered_sum(x, y, Clip(100.0)).values
    assert values.count_nonzero() == 4
    assert not values.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not model[0]._forward_hooks


def test_a_mask_that_does_not_fit_is_refused():
    model = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(InputError) as error:
        RecordGradients(model, Mask.dense(nn.Sequential(nn.Linear(2, 3))), dot)
    assert str(error.value) == ("mask 0.weight: shape (3, 2) in the mask, (2, 3) in the network; they must match")


class Twice(nn.Module):
    """One layer that each record goes through two times: its gradient is a sum of two outer products."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x))


def test_layers_used_twice_or_on_many_rows_are_summed_before_they_are_clipped():
    """Clipped use by use or row by row, a record could contribute more than the bound, or less than it should."""
    x = torch.tensor([[3.0, 1.0, 2.0], [0.5, 0.0, -1.0]])
    for model, batch in ((Twice(), x), (nn.Sequential(nn.Linear(3, 3), nn.Flatten()), x[:, None].repeat(1, 2, 1))):
        for parameter in model.parameters():
            parameter.data.copy_(torch.linspace(-0.5, 0.5, parameter.numel()).view_as(parameter))
        mask, y = Mask.dense(model), torch.tensor([1, 0])
        gradients = RecordGradients(model, mask, cross_entropy)
        for filter in (Clip(0.3), UNCLIPPED):
            rows = [record_gradient(model, mask, cross_entropy, *pair) for pair in zip(batch, y, strict=True)]
            expected = sum(naive_filter(row, filter, gradients.rounding, []) for row in rows)
            values = gradients.filtered_sum(batch, y, filter).values
            torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-5)


def test_a_loss_that_mixes_records_by_its_shape_is_refused():
    model, mask, x, y = by_hand()
    with pytest.raises(InputError) as error:
        RecordGradients(model, mask, lambda out, label: dot(out, label).mean()).filtered_sum(x, y, Clip(1.0))
    assert str(error.value) == "loss: shape (), expected one value for each of 11 records; use reduction='none'"


def test_a_loss_of_another_shape_than_it_promised_is_refused():
    """Even where it happens to fit the batch: what counts is how many made-up records there are."""
    model, mask, _, _ = by_hand()
    gradients = RecordGradients(model, mask, lambda out, label: dot(out, label)[:3])
    for records in (5, 3):
        with pytest.raises(InputError) as error:
            gradients.filtered_sum(torch.ones(records, 2), torch.ones(records, 2), Clip(1.0))
        assert str(error.value) == "loss: shape (3,), expected one value for each of 11 records; use reduction='none'"


def test_a_callers_no_grad_does_not_switch_gradients_off():
    model, mask, x, y = by_hand()
    with torch.no_grad():
        values = RecordGradients(model, mask, dot).filtered_sum(x, y, Clip(100.0)).values
    assert values.count_nonzero() == 4


def test_works_again_after_a_batch_that_failed():
    model, mask, x, y = by_hand()
    gradients = RecordGradients(model, mask, dot)
    fresh = gradients.filtered_sum(x, y, Clip(100.0)).values
    with pytest.raises(RuntimeError):  # three labels for two outputs
        gradients.filtered_sum(x, torch.ones(2, 3), Clip(100.0))
    assert not model[0]._forward_hooks
    assert torch.equal(gradients.filtered_sum(x, y, Clip(100.0)).values, fresh)


def test_works_after_a_first_batch_that_failed():
    """The first batch decides how gradients are had, on made-up records: their number is what the message names."""
    model, mask, x, y = by_hand()
    gradients = RecordGradients(model, mask, dot)
    with pytest.raises(InputError) as error:
        gradients.filtered_sum(x, torch.ones(2, 3), Clip(100.0))
    assert str(error.value) == (
        "model or loss: fails on 11 made-up records of shape (2,): The size of tensor a (2) must match the size of tensor b"
        " (3) at non-singleton dimension 1"
    )
    assert not model[0]._forward_hooks
    assert gradients.filtered_sum(x, y, Clip(100.0)).values.count_nonzero() == 4


def test_in_place_activations_are_right():
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    mask, x = Mask.dense(model), torch.randn(6, 5, generator=generator)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    values = RecordGradients(model, mask, cross_entropy).filtered_sum(x, y, UNCLIPPED).values
    expected = sum(record_gradient(model, mask, cross_entropy, *pair) for pair in zip(x, y, strict=True))
    torch.testing.assert_close(values.double(), expected, rtol=1e-4, atol=1e-4)


def test_modules_that_mix_records_are_refused():
    """BatchNorm1d(affine=False) has no parameter and needs no rule, and one record would move all the others."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 3))
    with pytest.raises(InputError) as error:
        RecordGradients(model, Mask.dense(model), cross_entropy)
    assert str(error.value) == (
        "model: 1 is a batch normalisation: it mixes records, and no bound would hold; use nn.GroupNorm or nn.LayerNorm"
    )


def test_a_dtype_that_the_rounding_does_not_cover_is_refused():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, dtype=torch.bfloat16))
    with pytest.raises(InputError) as error:
        RecordGradients(model, Mask.dense(model), cross_entropy)
    assert str(error.value) == (
        "model parameter 2.weight: dtype torch.bfloat16; the bound is proven for float32 and float64 only"
    )


def test_a_bare_linear_layer():
    model = nn.Linear(2, 2)
    values = RecordGradients(model, Mask.dense(model), dot).filtered_sum(torch.ones(1, 2), torch.ones(1, 2), UNCLIPPED)
    assert values.values.count_nonzero() == 6
