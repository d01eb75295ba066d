"""Persons in slots, and weights behind the filter: sums against the naive loop, and the bound whatever they are."""

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpltm.filters import Clip, Filter, PerLayerClip, Sigmoid, Tanh
from dpltm.gradients import RecordGradients
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.randomness.sampling import ROUNDING
from dpltm.records.units import ABSENT
from dpltm.training.descent import user_cross_entropy, weights_of
from dpltm.training.plan import NoisySteps, class_weights
from gradient_cases import (
    cross_entropy,
    filters,
    filters_for,
    gradients_of,
    naive_gradients,
    naive_sum,
    norm,
    numbers,
    own_layers,
    prepared,
    steps_of,
)
from refusals import refused

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


TABLE = torch.tensor([0.2, 1.0, 0.05], dtype=torch.float64)


def networks() -> dict[str, tuple[nn.Module, torch.Tensor, torch.Tensor]]:
    """A linear one, one whose gradients are written out, and one with a table of tokens."""
    labels = torch.arange(12) % 3
    dense = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    wide = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(6, 3))
    return {
        "linear": (dense, numbers(1, 12, 5), labels),
        "convolution": (wide, numbers(2, 12, 1, 5), labels),
        "tokens": (nn.Sequential(nn.Embedding(6, 3), nn.Tanh(), nn.Linear(3, 3)), torch.arange(12) % 6, labels),
    }


@pytest.mark.parametrize("name", ["linear", "convolution", "tokens"])
def test_weighted_sums_are_those_of_the_naive_loop(name: str) -> None:
    """Every filtered gradient by itself, times its weight, added up."""
    model, x, y = networks()[name]
    mask = prepared(model, 3)
    rows = naive_gradients(model, mask, cross_entropy, x, y)
    engine = RecordGradients(model, mask, cross_entropy)
    size = norm(torch.cat(list(rows.values()), 1)) / math.sqrt(len(x))
    for filter in filters_for(size):
        single = [{key: value[at : at + 1] for key, value in rows.items()} for at in range(len(x))]
        each = [naive_sum(row, filter, engine.rounding, own_layers(model)) for row in single]
        expected = (torch.stack(each) * TABLE[y][:, None]).sum(0)
        found = engine.filtered_sum(x, y, filter, weights=TABLE[y]).values
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6 * norm(expected)), str(filter)
        if filter.kind != "element-wise":
            found = engine.filtered_sum(x, y, filter, chunks=[slice(0, 12)], weights=TABLE[y]).values
            assert torch.allclose(found, expected * ROUNDING, rtol=1e-4, atol=1e-5 * norm(expected)), str(filter)


FILTERS = [Clip(0.7), PerLayerClip(0.7), Tanh(0.5, 0.2), Sigmoid(0.5, 0.2), Tanh(1.0, 0.3, None, Clip(0.4))]


@given(
    st.integers(0, 10**6),
    st.sampled_from(FILTERS),
    st.integers(0, 5),
    st.floats(allow_nan=True, allow_infinity=True, width=32),
    st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_a_record_moves_sums_by_the_bound(seed: int, filter: Filter, place: int, weight: float, size: float) -> None:
    """Whatever its weight: what lies outside [0, 1] counts as the nearest end, and NaN as 0."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    mask = Mask.dense(model)
    x, y = (numbers(seed, 6, 4) * size).float(), torch.arange(6) % 3
    weights = TABLE[y].clone()
    weights[place] = weight
    others = torch.arange(6) != place
    engine = RecordGradients(model, mask, cross_entropy)
    with_it = engine.filtered_sum(x, y, filter, weights=weights).values
    without = engine.filtered_sum(x[others], y[others], filter, weights=weights[others]).values
    bound = filter.certified_bound(mask.live)
    assert norm(with_it - without) <= bound * (1 + 1e-6)
    expected = 0.0 if math.isnan(weight) else min(max(weight, 0.0), 1.0)
    alone = engine.filtered_sum(x[place : place + 1], y[place : place + 1], filter).values
    assert norm(with_it - without - expected * alone) <= bound * 1e-5


# --- which weights ---------------------------------------------------------------------------------------------------------


def test_weights_from_numbers_and_from_shares() -> None:
    assert class_weights(None, None, 2) is None
    assert class_weights("1,4", None, 2) == (0.25, 1.0)
    assert class_weights("balanced", "0.8,0.2", 2) == pytest.approx((0.25, 1.0))
    assert class_weights("balanced", "0.5,0.3,0.2", 3) == pytest.approx((0.4, 2 / 3, 1.0))


@pytest.mark.parametrize(
    ("given", "shares", "said"),
    [
        ("balanced", None, "`class_weight`: balanced needs public shares of the classes, such as `class_shares` 0.83"),
        ("1,2", "0.5,0.5", "`class_shares`: only with `class_weight` balanced"),
        ("1,2,3", None, "`class_weight`: 3 numbers for 2 classes; give one for each, in their order"),
        ("balanced", "1", "`class_shares`: 1 numbers for 2 classes"),
        ("0,1", None, "`class_weight`: 0,1 holds what is not a positive number"),
        ("nan,1", None, "`class_weight`: nan,1 holds what is not a positive number"),
        ("a,b", None, "`class_weight`: 'a,b' is not a list of numbers separated by commas"),
        ("balanced", "0.9,0.2", "`class_shares`: 0.9,0.2 add up to 1.1, not to 1"),
    ],
)
def test_weights_that_are_refused(given: str | None, shares: str | None, said: str) -> None:
    assert refused(class_weights, given, shares, 2).startswith(said)


def config(**settings: Any) -> NoisySteps:
    return steps_of(Clip(1.0), 0.1, 10, 5.0, 1.0, 1.0, **settings)


def test_a_training_says_them() -> None:
    assert config(class_weight=(0.2048, 1.0)).filtered == "clip(C=1) times class weights 0.205,1"
    assert "would exceed the bound" in refused(config, class_weight=(2.0, 1.0))
    said = refused(config, class_weight=(0.5, 1.0), microbatch=2)
    assert "`class_weight`: is for gradients of single records" in said


def test_weights_of_records_and_of_persons() -> None:
    assert weights_of(torch.tensor([2, 0], dtype=torch.uint8), TABLE).tolist() == [0.05, 0.2]
    slots = torch.tensor([[0, 1, ABSENT], [ABSENT, ABSENT, ABSENT], [2, 2, 2]])
    assert weights_of(slots, TABLE).tolist() == pytest.approx([0.6, 0.0, 0.05])


def test_the_weight_of_a_person_has_the_same_bits_beside_any_others() -> None:
    """It is the exact mean of weights in steps of 2^-40, rounded once, in slots and in groups alike."""
    weights = torch.rand(7, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    sizes = [1 + person * 5 % 64 for person in range(33)]
    people = [torch.randint(7, (size,), generator=torch.Generator().manual_seed(size)) for size in sizes]
    steps = [int(weight * 2**40) for weight in weights.tolist()]
    slots = torch.full((len(people), 64), ABSENT)
    for row, labels in zip(slots, people, strict=True):
        row[: len(labels)] = labels
    means = [float(Fraction(sum(steps[label] for label in y.tolist()), len(y) * 2**40)) for y in people]
    exact = torch.tensor(means, dtype=torch.float64)
    for count in range(1, len(people) + 1):
        assert torch.equal(weights_of(slots[:count], weights), exact[:count])
        assert torch.equal(weights_of(torch.cat(people[:count]), weights, sizes[:count]), exact[:count])
