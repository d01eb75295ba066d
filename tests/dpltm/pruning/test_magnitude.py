"""Magnitude pruning: exact counts, ties, NaN, schedules, against a naive sort of (magnitude, position)."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpltm.errors import InputError
from dpltm.masks import Mask
from dpltm.pruning.magnitude import prune_by_input, prune_by_magnitude
from dpltm.pruning.schedule import layer_rates, live_schedule, prune_count

rates = st.floats(0.01, 0.99)
# Few distinct values, of both signs: ties are the rule.
tied = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, math.inf, -math.inf, math.nan])


def prune(weights, mask, rate):
    """Drops the fraction ``rate`` of the live weights of each named parameter."""
    live = {name: int(mask[name].sum()) for name in weights}
    return prune_by_magnitude(weights, mask, {name: count - prune_count(count, rate) for name, count in live.items()})


def naive_prune(weights: list[float], kept: list[bool], count: int) -> list[bool]:
    """Drops the ``count`` live positions that come first when sorted by magnitude, then position; NaN last."""

    def key(position: int) -> tuple[bool, float, int]:
        size = abs(weights[position])
        return (math.isnan(size), 0.0 if math.isnan(size) else size, position)

    live = sorted((position for position, keep in enumerate(kept) if keep), key=key)
    dropped = set(live[:count])
    return [keep and position not in dropped for position, keep in enumerate(kept)]


@given(
    st.data(),
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=6),
    rates,
    st.one_of(st.just(tied), st.just(st.floats(width=32))),
)
def test_drops_the_smallest_live_weights_ties_by_position(data, shape, rate, values):
    weights = torch.from_numpy(data.draw(hnp.arrays(np.float32, shape, elements=values)))
    kept = torch.from_numpy(data.draw(hnp.arrays(bool, shape)))
    mask = Mask({"w": kept, "b": torch.ones(shape[0], dtype=torch.bool)})
    after = prune({"w": weights}, mask, rate)
    count = prune_count(int(kept.sum()), rate)
    assert after["w"].flatten().tolist() == naive_prune(weights.flatten().tolist(), kept.flatten().tolist(), count)
    assert after.nested_in(mask)
    assert int(kept.sum()) - int(after["w"].sum()) == count
    assert bool(after["b"].all())
    assert torch.equal(mask["w"], kept), "the mask that was given has changed"


@pytest.mark.parametrize("value", [0.0, -0.3, 1.0])
def test_exactly_k_of_equal_weights_go_the_first_ones(value):
    """A threshold comparison would drop all of them, or none (a peer dropped n + 1 instead of n)."""
    mask = Mask({"w": torch.ones(4, 5, dtype=torch.bool)})
    after = prune({"w": torch.full((4, 5), value)}, mask, 0.3)
    assert after["w"].flatten().tolist() == [False] * 6 + [True] * 14


def test_many_ties_are_stable_too():
    """Sorting algorithms that are stable by accident on short inputs show on long ones."""
    size = 10_000
    weights = torch.ones(100, 100)
    weights.view(-1)[::2] = -1.0
    after = prune({"w": weights}, Mask({"w": torch.ones(100, 100, dtype=torch.bool)}), 0.25)
    assert after["w"].flatten().tolist() == [False] * (size // 4) + [True] * (size - size // 4)


def test_large_negative_weights_survive():
    after = prune({"w": torch.tensor([[-9.0, 0.1, 0.2, -8.0]])}, Mask({"w": torch.ones(1, 4, dtype=torch.bool)}), 0.5)
    assert after["w"].tolist() == [[True, False, False, True]]


def test_pruned_positions_never_return_however_large():
    mask = Mask({"w": torch.tensor([[False, True, True, True, True]])})
    after = prune({"w": torch.tensor([[9.0, 1.0, 2.0, 3.0, 4.0]])}, mask, 0.5)
    assert after["w"].tolist() == [[False, False, False, True, True]]


def test_nan_goes_last_and_is_dropped_when_nothing_else_is_left():
    mask = Mask({"w": torch.ones(1, 4, dtype=torch.bool)})
    weights = {"w": torch.tensor([[math.nan, math.inf, math.nan, 1.0]])}
    assert prune(weights, mask, 0.5)["w"].tolist() == [[True, False, True, False]]
    assert prune(weights, mask, 0.75)["w"].tolist() == [[False, False, True, False]]


def test_gradients_do_not_follow_and_weights_stay():
    weight = torch.nn.Parameter(torch.tensor([[3.0, 1.0, 2.0]]))
    after = prune({"w": weight}, Mask({"w": torch.ones(1, 3, dtype=torch.bool)}), 0.34)
    assert after["w"].tolist() == [[True, False, True]]
    assert weight.tolist() == [[3.0, 1.0, 2.0]]


@pytest.mark.parametrize(
    ("live", "rate", "expected"),
    [(10, 0.3, 3), (1, 0.5, 0), (3, 0.5, 2), (5, 0.5, 2), (7, 0.5, 4), (1, 0.51, 1), (26010, 0.2, 5202), (0, 0.5, 0)],
)
def test_counts_round_to_nearest_halves_to_even(live, rate, expected):
    assert prune_count(live, rate) == expected


@given(st.integers(0, 10**6), rates)
def test_counts_are_within_one_half_of_the_exact_product(live, rate):
    assert abs(prune_count(live, rate) - live * Fraction(rate)) <= Fraction(1, 2) + Fraction(1, 10**6)


@pytest.mark.parametrize(
    ("given_rates", "layers", "expected"),
    [
        ((0.3, 0.3, 0.2), 3, (0.3, 0.3, 0.2)),
        ((0.3, 0.2), 4, (0.3, 0.2, 0.2, 0.2)),
        ((0.5,), 1, (0.5,)),
        ((0.5,), 3, (0.5, 0.5, 0.5)),
    ],
)
def test_the_last_rate_repeats(given_rates, layers, expected):
    assert layer_rates(given_rates, layers) == expected


@pytest.mark.parametrize(
    ("given_rates", "message"),
    [
        ((), "`prune`: no rate given; give one per layer, such as 0.3,0.3,0.2"),
        ((0.3, 0.0), "`prune`: 0 is not between 0 and 1; a rate is the fraction of live weights dropped"),
        ((1.0,), "`prune`: 1 is not between 0 and 1; a rate is the fraction of live weights dropped"),
        ((-0.2,), "`prune`: -0.2 is not between 0 and 1; a rate is the fraction of live weights dropped"),
        ((math.nan,), "`prune`: nan is not between 0 and 1; a rate is the fraction of live weights dropped"),
        ((0.3, 0.3, 0.3), "`prune`: 3 rates for a network of 2 layers; give at most 2"),
    ],
)
def test_bad_rates(given_rates, message):
    with pytest.raises(InputError) as error:
        layer_rates(given_rates, 2)
    assert str(error.value) == message


def test_schedule_by_hand():
    assert live_schedule((100, 10), (0.3, 0.2), 3) == [(100, 10), (70, 8), (49, 6), (34, 5)]


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=3),
    st.lists(rates, min_size=1, max_size=3),
    st.integers(0, 2**32),
)
def test_schedule_is_what_pruning_does_whatever_the_weights(shapes, some_rates, seed):
    all_rates = layer_rates(tuple(some_rates[: len(shapes)]), len(shapes))
    sizes = tuple(rows * columns for rows, columns in shapes)
    rounds = 0
    while True:  # as many rounds as the schedule allows
        try:
            schedule = live_schedule(sizes, all_rates, rounds + 1)
        except InputError:
            break
        rounds += 1
        assert len(schedule) == rounds + 1
    names = [f"w{number}" for number in range(len(shapes))]
    mask = Mask({name: torch.ones(shape, dtype=torch.bool) for name, shape in zip(names, shapes, strict=True)})
    generator = torch.Generator().manual_seed(seed)
    for live in live_schedule(sizes, all_rates, rounds)[1:]:
        weights, before = {name: torch.randn(mask[name].shape, generator=generator) for name in names}, mask
        naive = [prune({name: weights[name]}, mask, rate)[name] for name, rate in zip(names, all_rates, strict=True)]
        mask = prune_by_magnitude(weights, mask, dict(zip(names, live, strict=True)))
        assert tuple(int(mask[name].sum()) for name in names) == live
        assert all(torch.equal(mask[name], alone) for name, alone in zip(names, naive, strict=True))
        assert mask.nested_in(before)


def test_a_round_that_would_empty_a_layer_is_refused():
    with pytest.raises(InputError) as error:
        live_schedule((100, 4), (0.3, 0.6), 5)
    assert str(error.value) == (
        "`rounds`: round 3 of 5 would empty layer 2 (of 4 weights); ask for at most 2 rounds or prune less"
    )
    assert live_schedule((100, 4), (0.3, 0.6), 2) == [(100, 4), (70, 2), (49, 1)]


def test_a_round_that_would_drop_nothing_is_refused():
    with pytest.raises(InputError) as error:
        live_schedule((10, 10), (0.2, 0.01), 7)
    assert str(error.value) == "`prune`: the rates are too small: round 7 would drop no weight of any layer"


# Whole inputs of the first layer


def columns(mask: Mask, name: str = "fc1.weight") -> list[int]:
    """Live weights of every input."""
    return mask[name].sum(0).tolist()


def test_inputs_go_whole_the_weakest_first():
    weights = {
        "fc1.weight": torch.tensor([[3.0, 0.1, 1.0, 5.0], [0.0, 0.1, 2.0, 0.0]]),
        "fc2.weight": torch.tensor([[1.0, -4.0], [2.0, 3.0]]),
    }
    dense = Mask({name: torch.ones_like(value, dtype=torch.bool) for name, value in weights.items()})
    found = prune_by_input(weights, dense, {"fc1.weight": 4, "fc2.weight": 3})
    assert columns(found) == [2, 0, 0, 2]  # norms 3, 0.14, 2.24, 5: nought within a column saves no weight of it
    assert found["fc2.weight"].tolist() == [[False, True], [True, True]]
    further = prune_by_input(weights, found, {"fc1.weight": 3, "fc2.weight": 3})
    assert columns(further) == [1, 0, 0, 2]
    assert further.nested_in(found)
    last = prune_by_input(weights, further, {"fc1.weight": 2, "fc2.weight": 3})
    assert sum(columns(last)) == 2


def test_inputs_of_a_table_are_its_rows():
    weights = {"table.weight": torch.tensor([[0.1, 5.0], [2.0, 2.0], [0.0, 9.0], [1.0, -1.0]])}
    dense = Mask({"table.weight": torch.ones(4, 2, dtype=torch.bool)})
    for live, rows in ((6, [2, 2, 2, 0]), (5, [2, 1, 2, 0]), (4, [2, 0, 2, 0]), (1, [0, 0, 1, 0])):
        found = prune_by_input(weights, dense, {"table.weight": live}, inputs=0)
        assert found["table.weight"].sum(1).tolist() == rows


@pytest.mark.parametrize("live", [1, 7, 40, 99, 150])
def test_inputs_in_part_are_at_most_one(live):
    weights = {"fc1.weight": torch.randn(5, 30, generator=torch.Generator().manual_seed(live))}
    dense = Mask({"fc1.weight": torch.ones(5, 30, dtype=torch.bool)})
    found = columns(prune_by_input(weights, dense, {"fc1.weight": live}))
    assert sum(found) == live
    assert sum(0 < count < 5 for count in found) <= 1
    norms = weights["fc1.weight"].norm(dim=0)
    kept = [k for k, count in enumerate(found) if count == 5]
    gone = [k for k, count in enumerate(found) if count == 0]
    assert not kept or not gone or float(norms[kept].min()) > float(norms[gone].max())
