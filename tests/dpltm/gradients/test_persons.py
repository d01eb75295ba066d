"""Persons as records, with several in slots: filtered sums against the naive loop, and the bound whatever they gave."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpltm.filters import Clip
from dpltm.gradients import RecordGradients
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.records.units import ABSENT
from dpltm.training.descent import cross_entropy, user_cross_entropy
from gradient_cases import filters, filters_for, gradients_of, naive_sum, own_layers, prepared

FEATURES, SLOTS, CLASSES = 6, 4, 5
EXAMPLES = settings.default.max_examples
seeds = st.integers(0, 2**32)


def network(seed: int) -> tuple[nn.Module, Mask]:
    model = build(ModelSpec("mlp:5", FEATURES, CLASSES), 0)
    return model, prepared(model, seed)


def people(seed: int, batch: int) -> tuple[Tensor, Tensor]:
    """Records in slots, and labels; some slots are empty, in whatever place."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, SLOTS, FEATURES, generator=generator, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (batch, SLOTS), generator=generator)
    y[torch.rand(y.shape, generator=generator) < 0.4] = ABSENT
    return x, y


def naive_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Of one person: the mean loss of what is there."""
    there = y[0] != ABSENT
    if not there.any():
        return sum(value.sum() for value in model.parameters()) * 0
    return cross_entropy(model(x[0][there]), y[0][there]).mean()


@settings(max_examples=EXAMPLES // 2)
@given(st.integers(1, 5), seeds)
def test_every_filtered_sum_is_the_naive_one(batch, seed):
    model, mask = network(seed)
    x, y = people(seed + 1, batch)
    gradients = RecordGradients(model, mask, user_cross_entropy)
    rows = gradients_of(lambda x, y: naive_loss(model, x, y), model, mask, x, y)
    for filter in filters_for(float(torch.cat(list(rows.values()), 1)[0].norm())):
        result = gradients.filtered_sum(x, y, filter)
        assert result.skipped == 0
        expected = naive_sum(rows, filter, gradients.rounding, own_layers(model))
        torch.testing.assert_close(result.values, expected, rtol=1e-10, atol=1e-10)


def test_the_loss_is_the_mean_over_what_is_there():
    outputs = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([[0, 4, 2], [ABSENT, 3, ABSENT], [ABSENT] * 3, [1, 1, ABSENT]])
    expected = torch.zeros(4)
    for person, (rows, theirs) in enumerate(zip(outputs, labels, strict=True)):
        if (there := theirs != ABSENT).any():
            expected[person] = cross_entropy(rows[there], theirs[there]).mean()
    torch.testing.assert_close(user_cross_entropy(outputs, labels), expected)


def test_an_empty_slot_says_nothing_whatever_is_in_it_nor_does_a_person_without_records():
    model, mask = network(3)
    gradients = RecordGradients(model, mask, user_cross_entropy)
    x, y = people(4, 3)
    other = torch.where((y == ABSENT)[..., None], torch.full((FEATURES,), 5.0, dtype=x.dtype), x)
    assert not torch.equal(x, other)
    first, second = (gradients.filtered_sum(values, y, Clip(1.0)).values for values in (x, other))
    torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)
    assert first.any()
    assert not gradients.filtered_sum(x, torch.full_like(y, ABSENT), Clip(1.0)).values.any()


@settings(max_examples=EXAMPLES // 2)
@given(filters, st.integers(1, 4), st.floats(1e-3, 1e12), st.data())
def test_a_person_more_moves_the_sum_by_at_most_the_bound(filter, others, size, data):
    """Hostile records: many, or the same over and over, of weights so large that each of them is far beyond the bound."""
    seed = data.draw(seeds)
    model, mask = network(seed)
    model.float()
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(size)
    x, y = people(seed + 1, others + 1)
    if data.draw(st.booleans()):
        x[0], y[0] = x[0, 0], data.draw(st.integers(0, CLASSES - 1))
    gradients = RecordGradients(model, mask, user_cross_entropy)
    x = x.float()
    moved = gradients.filtered_sum(x, y, filter).values - gradients.filtered_sum(x[1:], y[1:], filter).values
    # what others contribute is rounded anew in a sum of another length
    assert float(moved.norm()) <= filter.certified_bound(gradients.live) * (1 + 1e-5)
