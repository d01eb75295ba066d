"""Sums in float32 chunks: the bound under attack, which chunks a record is in, and that no other one changes by a bit."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from dpltm.filters import Automatic, Clip, Filter, PerLayerClip, RadialTanh
from dpltm.gradients import RecordGradients
from dpltm.gradients.linear_layer import LinearLayer
from dpltm.networks.masks import Mask
from dpltm.randomness import sampling
from dpltm.randomness.sampling import LIMIT, ROUNDING, scale_of
from dpltm.training.descent import NoisyGradients
from gradient_cases import cross_entropy, dot, noisy, norm, random_mask, steps_of
from refusals import refused

RADIAL = (Clip(1.0), PerLayerClip(1.0), RadialTanh(1.0, 0.5), Automatic(1.0, 0.0), Clip(1e-6), Clip(1e6))


def linear(inputs: int, outputs: int, density: float = 2.0) -> RecordGradients:
    model = nn.Sequential(nn.Linear(inputs, outputs))
    return RecordGradients(model, random_mask(model, density, torch.Generator().manual_seed(0)), dot)


def in_two(gradients: RecordGradients, x: Tensor, y: Tensor, first: int, filter: Filter) -> Tensor:
    """The sum of a batch whose first records are one chunk, and the others one."""
    return gradients.filtered_sum(x, y, filter, chunks=[slice(0, first), slice(first, len(x))]).values


def moved(gradients: RecordGradients, x: Tensor, y: Tensor, first: int, record: int, filter: Filter) -> float:
    """What the sum changes by when a record of the first chunk is left out."""
    keep = torch.arange(len(x)) != record
    return norm(in_two(gradients, x, y, first, filter) - in_two(gradients, x[keep], y[keep], first - 1, filter))


@given(
    st.sampled_from(RADIAL),
    st.integers(0, 2**32),
    st.sampled_from([1e-30, 1e-18, 1e-6, 1.0, 1e6, 1e17]),
    st.sampled_from([1e-30, 1e-6, 1.0, 1e17]),
    st.sampled_from([(1, 1), (3, 17), (40, 5)]),
)
def test_one_record_moves_a_sum_by_at_most_its_bound(filter, seed, x_size, y_size, shape):
    generator = torch.Generator().manual_seed(seed)
    gradients = linear(*shape, density=0.6 if seed % 2 else 2.0)
    size = LIMIT + 30
    x = x_size * torch.randn(size, shape[0], generator=generator).expand(size, -1)
    y = y_size * torch.randn(size, shape[1], generator=generator)
    if seed % 3 == 0:  # all alike: partial sums grow as far as they can
        x, y = x[:1].expand_as(x), y[:1].expand_as(y)
    record = seed % LIMIT
    assert moved(gradients, x, y, LIMIT, record, filter) <= filter.certified_bound(gradients.live)
    with_nan = x.clone()
    with_nan[record] = math.nan
    bound = filter.certified_bound(gradients.live)
    assert moved(gradients, with_nan, y, LIMIT, record, filter) <= (1 / ROUNDING - 1) * bound, "nothing but rounding"


def test_the_margin_covers_what_rounding_does():
    """Sums of equal numbers, whose roundings all go one way: a record moves them by more than what it contributes."""
    gradients, most = linear(1, 1), 0.0
    for value in torch.linspace(0.5, 1.0, 301).tolist():
        x = torch.full((LIMIT, 1), value)
        x[0] = 1e6
        most = max(most, moved(gradients, x, torch.ones(LIMIT, 1), LIMIT, 0, Clip(1.0)))
    assert gradients.rounding * ROUNDING * (1 + 1e-6) < most <= 1.0


@pytest.mark.parametrize("bound", [5e-324, 1e-300, 0.3, 1.0, 1.0 + 2.0**-52, 3.0, 1e300])
def test_a_scale_is_a_power_of_two_next_above(bound):
    scale = scale_of(bound)
    assert math.frexp(scale)[0] == 0.5
    assert bound <= scale
    assert scale / 2 < bound
    assert scale_of(math.inf) == scale_of(0.0) == 1.0


def test_sums_are_those_in_float64_times_the_margin():
    generator = torch.Generator().manual_seed(1)
    gradients = linear(30, 20, 0.6)
    x, y = torch.randn(90, 30, generator=generator), torch.randn(90, 20, generator=generator)
    for filter in RADIAL:
        exact = gradients.filtered_sum(x, y, filter).values
        pieces = [slice(2, 40), slice(40, 41), slice(60, 88)]  # some rows are in none
        for given_chunks in (pieces, []):
            found = gradients.filtered_sum(x, y, filter, chunks=given_chunks).values
            torch.testing.assert_close(found / ROUNDING, exact, rtol=1e-4, atol=1e-6 * float(exact.abs().max()))
        assert torch.equal(found, gradients.filtered_sum(x, y, filter, chunks=()).values)


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 3), (16, 16), (300, 33)])
@pytest.mark.parametrize("name", ["dense", "sparse"])
def test_a_chunk_has_the_same_bits_wherever_it_lies(name, inputs, outputs):
    generator = torch.Generator().manual_seed(2)
    module = nn.Linear(inputs, outputs)
    live = torch.rand(outputs, inputs, generator=generator) < 0.5
    live[0, 0] = True
    x, y = torch.randn(90, inputs, generator=generator), torch.randn(90, outputs, generator=generator)
    factor, found = torch.rand(90, generator=generator, dtype=torch.float64), []
    for before in (0, 1, 2, 5, 16, 33):
        layer = LinearLayer("", module, {"weight": live, "bias": torch.ones(outputs, dtype=torch.bool)})
        layer.kernel, operands = name, layer.operands
        operands.input, operands.gradient = torch.cat([x[:before], x]), torch.cat([y[:before], y])
        weights = torch.cat([torch.zeros(before, dtype=torch.float64), factor])
        whole = slice(before, before + len(x))
        total = torch.zeros(sum(layer.sizes), dtype=torch.float64)
        layer.add_weighted_sum(total, weights, [slice(0, before), whole][before == 0 :])
        found.append(total)
    assert all(torch.equal(each, found[0]) for each in found[1:])


@pytest.mark.parametrize("features", [0.0, 1.0])
def test_another_chunk_that_came_out_large_changes_nothing_for_a_record(features):
    """Weights and biases of many like records, whose roundings all go one way: only the chunk with the extra record may
    change, whether it is summed in float32 or not."""
    size, others = LIMIT, 2000
    gradients = linear(2, 2)
    generator = torch.Generator().manual_seed(7)
    y = torch.rand(1, 2, generator=generator).expand(size * (others + 1) + 1, -1)
    x, sums = torch.full((len(y), 2), features), []
    for last in (size, size + 1):
        count = size * others + last
        small = [slice(start, start + size) for start in range(0, size * others, size)]
        whole = [*small, slice(size * others, count)] if last <= LIMIT else small
        sums.append(gradients.filtered_sum(x[:count], y[:count], Clip(0.1), chunks=whole).values)
    assert norm(sums[1] - sums[0]) <= 0.1


def test_no_product_overflows_however_small_the_inputs():
    """A filter that normalises would scale output gradients beyond float32."""
    gradients = linear(2, 2)
    for x_size in (1e-38, 1e-42):
        x, y = torch.full((4, 2), x_size), torch.full((4, 2), 1e-7)
        mask_of_weight = gradients.filtered_sum(x, y, Automatic(1e6, 0.0), chunks=[slice(0, 4)]).values
        assert mask_of_weight.isfinite().all()
        assert norm(mask_of_weight) <= 4e6


def step_of(
    model: nn.Module, x: Tensor, y: Tensor, filter: Filter, batch: float, loss: Any = dot, **options: Any
) -> NoisyGradients:
    """A step without noise that takes all records."""
    engine = noisy(model, x, y, steps_of(filter, 1.0, 1, batch, 0.0, 1.0, **options), loss=loss)
    engine.backward()
    return engine


@pytest.mark.one_of(10)
@pytest.mark.parametrize("rows", [None, 1, 32])
@pytest.mark.parametrize("batch", [60.0, 100.0, 400.0])
def test_a_step_on_neighbouring_datasets(rows, batch):
    """All are sampled, and the neighbour's extra record is the last, so the others' coins are what they were."""
    generator = torch.Generator().manual_seed(3)
    for count in (LIMIT - 1, LIMIT, LIMIT + 1, 390):
        model = nn.Sequential(nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 3))
        x = 1e3 * torch.randn(count + 1, 9, generator=generator)
        y = 1e3 * torch.randn(count + 1, 3, generator=generator)
        sums = []
        for there in (count, count + 1):
            step_of(model, x[:there], y[:there], Clip(1.0), batch, physical_batch=rows)
            sums.append(torch.cat([value.grad.flatten() for value in model.parameters()]).double() * batch)
        assert 0.5 < norm(sums[1] - sums[0]) <= 1 + 1e-6 * math.sqrt(count)  # gradients are float32 by now


def test_a_chunk_that_came_out_large_is_summed_in_float64(monkeypatch):
    """And scaled like any other: the scale may not depend on who was sampled."""
    seen = []
    original = sampling.others
    monkeypatch.setattr("dpltm.gradients.linear_layer.others", lambda *a: seen.append(original(*a)) or seen[-1])
    x = torch.eye(LIMIT + 1)
    for count in (LIMIT, LIMIT + 1):
        model = nn.Sequential(nn.Linear(LIMIT + 1, 1, bias=False))
        engine = step_of(model, x[:count], torch.full((count, 1), 5.0), Clip(1.0), 60.0)
        assert seen[-1] == ([] if count == LIMIT else [slice(0, LIMIT + 1)])
        expected = torch.full((count,), engine.gradients.rounding * ROUNDING / 60)
        torch.testing.assert_close(model[0].weight.grad[0, :count], expected, rtol=1e-6, atol=0.0)


TINY = {
    "norm": lambda: (nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 3)), 1.0),
    "conv": lambda: (nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(12, 3)), 1.0),
    "linear": lambda: (nn.Sequential(nn.Linear(8, 3, bias=False)), 1e-20),
}


@pytest.mark.one_of(2)
@pytest.mark.parametrize("name", TINY)
def test_who_is_in_a_chunk_that_came_out_large_contributes_as_before(name):
    """Gradients so small that a filter which normalises takes them to the edge of float32: one more record in the chunk,
    and all of them are summed in float64."""
    torch.manual_seed(0)
    (model, size), y = TINY[name](), torch.zeros(LIMIT + 1, dtype=torch.long)
    if model[-1].bias is not None:
        model[-1].bias.data.copy_(
            torch.tensor([50.0, 0.0, 0.0])
        )  # sure of the label: the loss has next to no gradient
    x, sums = size * torch.rand(LIMIT + 1, 8), []
    x = x[:, None] if name == "conv" else x
    for count in (LIMIT, LIMIT + 1):
        step_of(model, x[:count], y[:count], Automatic(1.0, 0.0), 60.0, loss=cross_entropy)
        sums.append(60 * torch.cat([value.grad.flatten() for value in model.parameters()]).double())
    assert norm(sums[1] - sums[0]) <= 1 + 1e-5


class EachLayerAlone:
    """A filter that divides by the norm of every layer."""

    kind, nominal_bound = "layer-wise", None

    def certified_bound(self, _: int) -> float:
        return math.sqrt(2)

    def factor(self, norms: Tensor) -> Tensor:
        return torch.where(norms > 0, 1 / norms, 0.0)


def test_the_norm_of_a_small_layer_beside_a_large_one_is_exact():
    """Nearly all of its squares are lost in float32, and one is not."""
    model = nn.Sequential(nn.Linear(1, 4096, bias=False), nn.Linear(4096, 1, bias=False))
    model[0].weight.data.fill_(1.0)
    model[1].weight.data.fill_(2.6e-23)
    model[1].weight.data[0, 0] = 3.8e-23
    gradients = RecordGradients(model, Mask.dense(model), dot)
    assert norm(gradients.filtered_sum(torch.ones(1, 1), torch.ones(1, 1), EachLayerAlone()).values) <= math.sqrt(2)


@pytest.mark.parametrize(
    "rows", [[slice(0, 101)], [slice(0, 6), slice(3, 10)], [slice(5, 9), slice(0, 5)], [slice(90, 200)]]
)
def test_chunks_that_are_none(rows):
    x = torch.ones(120, 3)
    assert refused(linear(3, 2).filtered_sum, x, torch.ones(120, 2), Clip(1.0), chunks=rows).startswith(
        "`chunks`: rows "
    )


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_record_that_is_not_finite_beside_a_layer_of_no_size():
    model = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 0)])

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([part(x) for part in self.parts], 1)

    both = Both()
    x = torch.tensor([[1.0, 2.0, 3.0], [math.nan, 0.0, 0.0], [1e30, 0.0, 0.0]])
    result = RecordGradients(both, Mask.dense(both), dot).filtered_sum(x, torch.ones(3, 2), Clip(1.0))
    assert result.skipped == 2
    assert 0.9 < norm(result.values) <= 1
