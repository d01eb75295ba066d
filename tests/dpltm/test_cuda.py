"""Filtered sums on a GPU: those of the processor, and within the bound whatever a record holds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpltm.filters import Clip, Filter, Sigmoid, Tanh
from dpltm.gradients import RecordGradients, linear_layer
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.randomness.noise import FastSource
from dpltm.records.batches import Records
from dpltm.training.descent import cross_entropy, train
from dpltm.verbs.private_loop import PrivateLoop
from gradient_cases import filters, norm, prepared, random_mask, steps_of
from gradient_networks import EVERY_FILTER, KINDS, attacks, network

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

EXAMPLES = settings.default.max_examples  # of the profile: fifty, or a thousand


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "masked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_the_sum_is_that_of_the_processor(name: str, dtype: torch.dtype, sparse: bool) -> None:
    """Every kind of layer under every filter, in float64 to a millionth of the bound, and nearly so in float32."""
    here, there = network(name, dtype, sparse), network(name, dtype, sparse, "cuda")
    for victim in (here, there):
        victim.fill(5)
        random_mask(victim.model, 0.6 if sparse else 2, torch.Generator().manual_seed(0)).apply(victim.model)
    batch = here.batch(40, 6)
    for filter in EVERY_FILTER:
        expected = here.gradients.filtered_sum(*batch, filter)
        found = there.gradients.filtered_sum(*(part.cuda() for part in batch), filter)
        assert found.skipped == expected.skipped == 0
        assert norm(expected.values) > 0
        off = norm(found.values.cpu() - expected.values) / filter.certified_bound(here.gradients.live)
        assert off <= (1e-6 if dtype == torch.float64 else 1e-6 * len(batch[0]))


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=EXAMPLES // 4, deadline=None)
@given(attack=attacks, filter=filters, dtype=st.sampled_from([torch.float32, torch.float64]), sparse=st.booleans())
def test_no_record_contributes_more_than_the_bound(name: str, attack, filter: Filter, dtype, sparse: bool) -> None:
    """Weights, record and label are all the attacker's."""
    victim = network(name, dtype, sparse, "cuda")
    result = victim.gradients.filtered_sum(*victim.attacked(attack), filter)
    assert norm(result.values) <= filter.certified_bound(victim.gradients.live)  # false for NaN as well
    assert result.skipped in (0, 1)
    if result.skipped:
        assert result.values.count_nonzero() == 0


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("size", [1e-20, 1.0, 1e6, 1e12, 1e25, math.nan])
def test_leaving_one_record_out_moves_the_sum_by_at_most_the_bound(name: str, size: float) -> None:
    """As far as rounding of float64 where its row stays, not present; and of float32 where the batch is shorter."""
    victim = network(name, device="cuda")
    victim.fill(8)
    x, y = victim.batch(7, 9)
    y[3] *= size
    if not victim.kind.tokens:
        x[3] *= size
    for filter in EVERY_FILTER:
        bound = filter.certified_bound(victim.gradients.live)
        everything = victim.gradients.filtered_sum(x, y, filter).values
        for left_out in (0, 3, 6):
            rest = torch.arange(7, device="cuda") != left_out
            marked = victim.gradients.filtered_sum(x, y, filter, rest).values
            assert norm(everything - marked) <= bound * (1 + 1e-12)
            shorter = victim.gradients.filtered_sum(x[rest], y[rest], filter).values
            assert norm(everything - shorter) <= bound * (1 + 1e-3)  # other kernels, other last bits


@pytest.mark.parametrize("size", [1.0, 1e7])
def test_equal_coordinates_and_wide_layers_stay_within_the_bound(size: float) -> None:
    """Sums of equal squares round all in one direction."""
    for inputs, outputs in ((1, 4096), (4096, 1), (1000, 100)):
        model = nn.Sequential(nn.Linear(inputs, outputs, bias=False)).cuda()
        gradients = RecordGradients(model, Mask.dense(model), lambda outputs, labels: (outputs * labels).sum(1))
        x = torch.full((1, inputs), size, device="cuda")
        y = torch.full((1, outputs), 1 / size, device="cuda")
        for clip_norm in (1e-6, 1.0, 1e6):
            found = norm(gradients.filtered_sum(x, y, Clip(clip_norm)).values)
            assert min(clip_norm, math.sqrt(inputs * outputs)) * (1 - 2e-3) <= found <= clip_norm


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method")  # torch's own, when it loads its compiler
@pytest.mark.parametrize("filter", [Tanh(2.0, 0.5, Clip(1.0)), Sigmoid(1.0, 2.0)], ids=str)
def test_a_compiled_filter_gives_what_it_gives_uncompiled(monkeypatch: pytest.MonkeyPatch, filter: Filter) -> None:
    monkeypatch.setattr(linear_layer, "WORTH_COMPILING", 1)
    model = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 5))
    mask = prepared(model, 0, (0.4,))
    model = model.float().cuda()
    x, y = torch.randn(33, 30, device="cuda"), torch.arange(33, device="cuda") % 5
    plain, compiled = (RecordGradients(model, mask, cross_entropy, compile=compile) for compile in (False, True))
    expected = plain.filtered_sum(x, y, filter).values
    torch.testing.assert_close(compiled.filtered_sum(x, y, filter).values, expected, rtol=1e-5, atol=1e-5)
    assert all(layer._compile for layer in compiled._plan.layers)


def test_a_wide_network_is_not_taken_for_one_that_mixes_records() -> None:
    """Of thousands of units some are so near zero that another order of summation switches them on."""
    model = build(ModelSpec("mlp:4096,4096", 784, 10), 0).cuda()
    RecordGradients(model, Mask.dense(model), cross_entropy).check(
        torch.zeros(1, 784, device="cuda"), torch.zeros(1, dtype=torch.long, device="cuda")
    )


def trained(device: str, **options: object) -> list[Tensor]:
    """The weights after ten steps with replayed coins and noise."""
    model = build(ModelSpec("mlp:20", 12, 3), 0)
    mask = random_mask(model, 0.5, torch.Generator().manual_seed(1))
    x = torch.rand(300, 12, generator=torch.Generator().manual_seed(2))
    y = torch.arange(300) % 3
    config = steps_of(Clip(0.5), 0.2, 10, 60.0, 0.5, 0.3, **options)
    sources = {"sampling": FastSource(3), "noise": FastSource(4)}
    train(model.to(device), mask, Records(x, y, device=device), config, **sources)
    return [value.detach().cpu() for value in model.parameters()]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "adam", "average": "ema"},
        {"optimizer": "momentum", "schedule": "cosine"},
        {"microbatch": 4},
        {"physical_batch": 16},
        {"precision": "bfloat16"},
    ],
    ids=str,
)
def test_a_training_ends_where_that_of_the_processor_does(options: dict[str, object]) -> None:
    """The same coins, and the same noise on sums that are the same but for rounding."""
    narrow = "precision" in options
    for here, there in zip(trained("cpu", **options), trained("cuda", **options), strict=True):
        torch.testing.assert_close(there, here, rtol=0, atol=1e-1 if narrow else 2e-3)


def test_a_loop_of_ones_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).cuda()
    x, y = torch.rand(90, 1, 8, 8), torch.arange(90) % 3
    before = [value.detach().clone() for value in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loss = nn.CrossEntropyLoss(reduction="none")
    private = PrivateLoop(model, loss, x, y, batch_size=30, steps=12, epsilon=2.0, delta=1e-3)
    for step in private:
        step.backward()
        optimizer.step()
    assert all(value.is_cuda and bool(value.isfinite().all()) for value in model.parameters())
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert 0 < private.report().certified.epsilon <= 2.0
