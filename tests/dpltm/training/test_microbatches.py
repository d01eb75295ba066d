"""Microbatches: means of groups against the naive loop, the bound on hostile neighbours, and what follows for the noise."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from dpltm import PrivateLoop
from dpltm.filters import Automatic, Clip, Tanh
from dpltm.gradients import RecordGradients
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.options.train import TrainOptions
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.randomness.noise import FastSource
from dpltm.randomness.sampling import in_chunks, poisson_sample
from dpltm.training.descent import cross_entropy
from dpltm.training.plan import FACTOR, NoisySteps, nominal_sensitivity, sensitivity
from dpltm.verbs.train import stated
from gradient_cases import (
    dot,
    filters,
    filters_for,
    naive_gradients,
    naive_sum,
    noisy,
    norm,
    numbers,
    own_layers,
    prepared,
    squared_error,
    steps_of,
    tied,
)
from refusals import refused
from stage_cases import planned


def of_groups(rows: Tensor, sizes: list[int]) -> Tensor:
    """The mean of each group of consecutive rows, by hand."""
    return torch.stack([part.mean(0) for part in rows.split(sizes)])


NETWORKS = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)), (6,), 0),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 4)),
        (1, 5, 5),
        0,
    ),
    "normalised": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Linear(8, 4)), (6,), 0),
    "tied embedding": (tied, (3,), 6),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_sums_are_those_of_the_naive_loop(name):
    make, shape, tokens = NETWORKS[name]
    torch.manual_seed(0)
    model, sizes = make(), [3, 1, 4, 2]
    mask = prepared(model, 3)
    x = torch.randint(0, tokens, (10, *shape)) if tokens else numbers(1, 10, *shape)
    y = numbers(2, 10)
    rows = naive_gradients(model, mask, squared_error, x, y)
    means = {part: of_groups(values, sizes) for part, values in rows.items()}
    gradients = RecordGradients(model, mask, squared_error, grouped=True)
    layers = [own for own in ([name for name in group if name in rows] for group in own_layers(model)) if own]
    typical = float(torch.cat(list(means.values()), 1).norm(dim=1).median())
    for filter in filters_for(typical):
        found = gradients.filtered_sum(x, y, filter, groups=sizes)
        expected = naive_sum(means, filter, gradients.rounding, layers)
        torch.testing.assert_close(found.values, expected, rtol=1e-6, atol=1e-7)
        alone = gradients.filtered_sum(x, y, filter, groups=[1] * 10)
        torch.testing.assert_close(
            alone.values, naive_sum(rows, filter, gradients.rounding, layers), rtol=1e-6, atol=1e-7
        )


sizes_of_others = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@given(
    filter=filters,
    others=sizes_of_others,
    seed=st.integers(0, 2**32),
    scales=st.tuples(*[st.sampled_from([0.0, 1e-30, 1e-12, 1.0, 1e6, 1e17, 1e25, 3e38, math.inf, math.nan])] * 2),
    alike=st.booleans(),
)
def test_one_record_moves_the_sum_by_at_most_twice_the_bound(filter, others, seed, scales, alike):
    """Whatever the record and the others hold, and whichever group the record is in; alone in it, by the bound."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 2))
    gradients = RecordGradients(model, Mask.dense(model), dot, grouped=True)
    count, bound = sum(others), filter.certified_bound(gradients.live)
    x = scales[0] * torch.randn(count, 3, generator=generator)
    y = torch.randn(count, 2, generator=generator)
    if alike and count:
        x, y = x[:1].expand_as(x), y[:1].expand_as(y)
    odd, label = scales[1] * torch.randn(1, 3, generator=generator), torch.randn(1, 2, generator=generator)
    if alike and count:
        odd, label = -scales[1] * x[:1], y[:1]

    def total(x: Tensor, y: Tensor, sizes: list[int]) -> Tensor:
        present = [size for size in sizes if size]
        return gradients.filtered_sum(x, y, filter, groups=present).values

    without = total(x, y, others)
    for place, size in enumerate(others):
        at = sum(others[: place + 1])
        joined = [*others[:place], size + 1, *others[place + 1 :]]
        both = torch.cat([x[:at], odd, x[at:]]), torch.cat([y[:at], label, y[at:]])
        change = norm(total(*both, joined) - without)
        assert change <= (1 if size == 0 else FACTOR) * bound * (1 + 1e-12)  # float64 rounding of the sum


@pytest.mark.parametrize("filter", [Clip(1.0), Automatic(1.0, 0.0), Tanh(1.0, 1e-3)], ids=str)
def test_twice_the_bound_is_reached(filter):
    """The others agree, and the record is long and points the other way."""
    model = nn.Sequential(nn.Linear(1, 4, bias=False))
    gradients = RecordGradients(model, Mask.dense(model), dot, grouped=True)
    x, y = torch.tensor([[1.0], [1.0], [1.0], [-1e6]]), torch.ones(4, 4)
    both = gradients.filtered_sum(x, y, filter, groups=[4]).values
    without = gradients.filtered_sum(x[:3], y[:3], filter, groups=[3]).values
    assert norm(both - without) == pytest.approx(FACTOR * filter.certified_bound(4), rel=1e-4)


def test_a_record_that_is_not_finite_leaves_its_group_out_and_no_other():
    model = nn.Sequential(nn.Linear(2, 2))
    gradients = RecordGradients(model, Mask.dense(model), dot, grouped=True)
    x, y = torch.ones(5, 2), torch.ones(5, 2)
    x[1, 0] = math.nan
    found = gradients.filtered_sum(x, y, Clip(0.5), groups=[2, 3])
    assert found.skipped == 1
    assert torch.equal(found.values, gradients.filtered_sum(x[2:], y[2:], Clip(0.5), groups=[3]).values)


def test_every_record_goes_where_its_own_coin_says():
    """A neighbour's extra record is in one group, and the others hold what they held; all groups are equally likely."""
    index = np.arange(3000)
    coins = FastSource(3).random_bytes(4 * 3001)

    class Served:
        def random_bytes(self, count: int) -> bytes:
            return coins[:count]

    order, sizes = in_chunks(Served(), index, 7)
    more, joined = in_chunks(Served(), np.arange(3001), 7)
    ours, theirs = (
        [set(part.tolist()) for part in np.split(values, np.cumsum(counts)[:-1])]
        for values, counts in ((order, sizes), (more, joined))
    )
    changed = [mine ^ other for mine, other in zip(ours, theirs, strict=True) if mine != other]
    assert changed == [{3000}]
    assert min(sizes) > 3000 / 7 - 4 * math.sqrt(3000 / 7)


@pytest.mark.parametrize("physical", [None, 1, 5])
def test_a_step_is_the_naive_one(physical):
    """Sample and groups by the same coins, means and clipping written out, the sum over the public number of groups."""
    model = build(ModelSpec("mlp:4", 5, 3), 0)
    mask, rate, batch, count = Mask.dense(model), 0.25, 20.0, 7
    x, y = torch.randn(40, 5, generator=torch.Generator().manual_seed(2)), torch.arange(40) % 3
    config = NoisySteps(
        Clip(0.05), NoisySgd(rate, 1, 0.0), batch, 0.5, options=TrainOptions(physical_batch=physical, microbatch=3)
    )
    assert config.groups == count == config.divisor
    gradients = noisy(model, x, y, config, sources=(FastSource(5), FastSource(6)))
    gradients.backward()
    source = FastSource(5)
    index = poisson_sample(source, 40, rate)
    groups = np.frombuffer(source.random_bytes(4 * len(index)), dtype=np.uint32) % count
    rows = torch.cat(list(naive_gradients(model, mask, cross_entropy, x, y).values()), 1)
    means = [rows[index[groups == group]].mean(0) for group in range(count) if (groups == group).any()]
    assert len(means) < count, "one group is empty, and the sum is divided by all the same"
    total = sum(mean * min(1.0, 0.05 / norm(mean)) for mean in means) / count
    found = torch.cat([part.grad.flatten() for part in gradients.parameters])
    torch.testing.assert_close(found.double(), total.double(), rtol=2e-4, atol=1e-7)


def test_sensitivity_is_the_bound_twice_with_groups_and_twice_for_replace_one():
    for filter in (Clip(1.5), Tanh(1.0, 0.5, Clip(1.5)), Tanh(2.0, 1.0)):
        bound = filter.certified_bound(100)
        assert sensitivity(filter, 100, "add-remove") == bound
        assert sensitivity(filter, 100, "replace-one") == 2 * bound
        assert sensitivity(filter, 100, "add-remove", 8) == 2 * bound
        assert sensitivity(filter, 100, "replace-one", 8) == 4 * bound
    assert nominal_sensitivity(Clip(1.5), 100, "add-remove") is None
    assert nominal_sensitivity(Clip(1.5), 100, "add-remove", microbatch=8) == 1.5
    assert nominal_sensitivity(Clip(1.5), 100, "replace-one", microbatch=8) == 3.0
    assert nominal_sensitivity(Tanh(2.0, 1.0), 100, "add-remove", microbatch=8) == 1.0


def test_nominal_noise_is_that_of_the_papers_for_any_filter():
    plan = planned(noise_multiplier=2.0, batch_size=30, microbatch=8, noise="nominal")
    assert plan.mechanism.noise_std == 2.0
    assert plan.mechanism == NoisySgd(
        plan.mechanism.sampling_rate, plan.mechanism.steps, 1.0, 2.0, 1.0, "tanh paper's sensitivity for microbatches"
    )
    assert stated(plan).certified.epsilon > 2 * stated(plan).nominal.epsilon  # type: ignore[union-attr]


def test_canaries_have_groups_of_their_own_and_stay_below_what_is_certified():
    """Alone in its group a record adds C, half of what is certified: the attack sees that half, and claims no more."""
    torch.manual_seed(0)
    model = nn.Linear(200, 50)
    x, y = torch.randn(60, 200), torch.randint(0, 50, (60,))
    settings = {
        "batch_size": 30,
        "steps": 30,
        "delta": 1e-5,
        "noise_multiplier": 3.0,
        "microbatch": 5,
        "audit": 10_000,
    }
    sources = {"sampling": FastSource(2), "noise": FastSource(3)}
    loop = PrivateLoop(model, nn.CrossEntropyLoss(reduction="none"), x, y, **settings, **sources)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in loop:
        step.backward()
        optimizer.step()
    found = loop.audit()
    assert found.certified.epsilon > 4
    assert 0.5 < found.lower_bound < found.certified.epsilon / 2


def grouped(size: Any, batch: float, **options: Any) -> NoisySteps:
    return steps_of(Tanh(1.0, 1.0), 0.5, 1, batch, 1.0, 0.1, microbatch=size, **options)


@pytest.mark.parametrize("size", [1, -3, 11])
def test_sizes_that_are_refused(size):
    assert [grouped(8, batch).groups for batch in (8, 8.5, 64, 250)] == [1, 2, 8, 32]
    said = f"`microbatch`: {size} is not a whole number from 2 to the 10 records that a step has on average"
    assert refused(grouped, size, 10.0).startswith(said)


def test_what_is_for_single_records_is_refused():
    said = "`compile`: is for gradients of single records; leave it out, or `microbatch`"
    assert refused(grouped, 3, 9.0, compile=True) == said
