"""Weights one by one: the highest scores against a naive sort, exact counts of equal weights, schedule, whole inputs."""

import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from dpltm.criteria import PruningRound
from dpltm.errors import InputError
from dpltm.networks.masks import Mask
from dpltm.pruning.unstructured import by_trained_inputs, by_trained_weights, keep_topk, layer_rates, live_schedule
from refusals import refused

rates = st.floats(0.01, 0.99)


def step(weights, mask, live, scope="layer", groups=()):
    """The round of a network of linear layers, or of a table, with these weights."""
    layers = OrderedDict()
    for name, value in weights.items():
        kind, _, _ = name.partition(".")
        layers[kind] = nn.Embedding(*value.shape) if kind == "table" else nn.Linear(*reversed(value.shape), bias=False)
        layers[kind].weight = nn.Parameter(value)
    return PruningRound(nn.Sequential(layers), weights, mask, live, scope, torch.zeros(1, 1), 0, groups)


def dense(weights):
    return Mask({name: torch.ones(value.shape, dtype=torch.bool) for name, value in weights.items()})


def prune(weights, mask, rate):
    """Drops the fraction ``rate`` of the live weights of each named parameter."""
    live = {name: int(mask[name].sum()) for name in weights}
    return by_trained_weights(step(weights, mask, {name: count - round(count * rate) for name, count in live.items()}))


@pytest.mark.parametrize("given_rates", [(), (0.3, 0.0), (math.nan,), (0.3, 0.3, 0.3)])
def test_bad_rates(given_rates):
    told = refused(layer_rates, given_rates, 2)
    assert told.startswith(
        f"`prune`: {','.join(f'{rate:g}' for rate in given_rates)} is not a list of 1 to 2 fractions"
    )


def test_schedule_by_hand():
    assert live_schedule((100, 10), (0.3, 0.2), 3) == [(100, 10), (70, 8), (49, 6), (34, 5)]
    assert live_schedule((100, 4), (0.3, 0.6), 2) == [(100, 4), (70, 2), (49, 1)]
    assert live_schedule((10, 3, 5, 7), (0.3, 0.5, 0.5, 0.5), 1)[1] == (7, 1, 3, 3), "halves to even"
    said = "`rounds`: round 3 of 5 would empty layer 2 (of 4 weights); ask for fewer, or prune less"
    assert refused(live_schedule, (100, 4), (0.3, 0.6), 5) == said
    said = "`prune`: the rates are too small: round 7 would drop no weight of any layer"
    assert refused(live_schedule, (10, 10), (0.2, 0.01), 7) == said


@given(st.tuples(st.integers(1, 6), st.integers(1, 6)), rates, st.integers(1, 3), st.integers(0, 2**32))
def test_schedule_is_what_pruning_does_whatever_the_weights(shape, rate, rounds, seed):
    try:
        schedule = live_schedule((shape[0] * shape[1],), (rate,), rounds)
    except InputError:
        return
    mask, generator = dense({"w.weight": torch.empty(shape)}), torch.Generator().manual_seed(seed)
    for (live,) in schedule[1:]:
        weights, before = {"w.weight": torch.randn(shape, generator=generator)}, mask
        mask = prune(weights, mask, rate)
        assert int(mask["w.weight"].sum()) == live
        assert mask.nested_in(before)


def test_inputs_go_whole_the_weakest_first():
    weights = {
        "fc1.weight": torch.tensor([[3.0, 0.1, 1.0, 5.0], [0.0, 0.1, 2.0, 0.0]]),
        "fc2.weight": torch.tensor([[1.0, -4.0], [2.0, 3.0]]),
    }
    mask = dense(weights)
    # norms 3, 0.14, 2.24, 5: nought within a column saves no weight of it
    for live, columns in ((4, [2, 0, 0, 2]), (3, [1, 0, 0, 2]), (2, [0, 0, 0, 2])):
        if live == 2:
            weights["fc1.weight"][0, 0] = 9.0  # is pruned by now, and counts for nothing
        before, mask = mask, by_trained_inputs(step(weights, mask, {"fc1.weight": live, "fc2.weight": 3}))
        assert mask["fc1.weight"].sum(0).tolist() == columns
        assert mask["fc2.weight"].tolist() == [[False, True], [True, True]]
        assert mask.nested_in(before)


def test_inputs_of_a_table_are_its_rows():
    weights = {"table.weight": torch.tensor([[0.1, 5.0], [2.0, 2.0], [0.0, 9.0], [1.0, -1.0]])}
    for live, rows in ((6, [2, 2, 2, 0]), (5, [2, 1, 2, 0]), (4, [2, 0, 2, 0]), (1, [0, 0, 1, 0])):
        found = by_trained_inputs(step(weights, dense(weights), {"table.weight": live}))
        assert found["table.weight"].sum(1).tolist() == rows


def test_columns_of_a_table_live_or_die_together():
    """Inputs 0 and 1 are one column, 2 stands alone, 3 to 5 are one: scores by hand from norms and variances."""
    weights = {"fc1.weight": torch.tensor([[3.0, 0.1, 2.0, 1.0, 1.0, 2.0], [0.0, 0.0, 0.0, 2.0, 0.0, 0.0]])}
    groups = ((0.25, 0.25), (1 / 12,), (2 / 9,) * 3)
    scores = [math.sqrt(0.25 * (9 + 0.01)), math.sqrt(4 / 12), math.sqrt(2 / 9 * (5 + 1 + 4))]
    assert scores[1] < scores[2] < scores[0]
    mask = dense(weights)
    order = sorted(range(3), key=scores.__getitem__)
    members, left = [(0, 1), (2,), (3, 4, 5)], 12
    for column in order[:2]:
        left -= 2 * len(members[column])
        before, mask = mask, by_trained_inputs(step(weights, mask, {"fc1.weight": left}, groups=groups))
        assert mask.nested_in(before)
        dead = [at for at in range(6) if not mask["fc1.weight"][:, at].any()]
        assert set(members[column]) <= set(dead)
        assert int(mask["fc1.weight"].sum()) == left
        assert len(dead) == 6 - left // 2, "whole columns alone"


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 2**31), st.data())
def test_at_most_one_column_is_left_in_part(sizes, seed, data):
    generator = torch.Generator().manual_seed(seed)
    weights = {"w.weight": torch.randn(3, sum(sizes), generator=generator)}
    groups = tuple((0.1 * (place + 1),) * size for place, size in enumerate(sizes))
    live = data.draw(st.integers(1, 3 * sum(sizes)))
    found = by_trained_inputs(step(weights, dense(weights), {"w.weight": live}, groups=groups))["w.weight"]
    parts = [part for part in found.split(list(sizes), dim=1) if part.any() and not part.all()]
    assert int(found.sum()) == live
    assert len(parts) <= 1


# The highest scores, by layer and over the network: against a naive sort of (score, layer, position).

shapes = hnp.array_shapes(min_dims=2, max_dims=4, max_side=3)
# Few distinct values, so that ties are the rule, or any; with and without NaN. A threshold comparison would drop all equal
# ones, or none (a peer dropped n + 1 instead of n).
tied = st.sampled_from([-1.0, -0.0, 0.0, 0.5, 1.0, math.inf, -math.inf])
values = st.sampled_from([tied, tied | st.just(math.nan), st.floats()])


def key(score: float) -> tuple[bool, float]:
    """NaN is the highest, and no NaN is above another."""
    return (math.isnan(score), 0.0 if math.isnan(score) else score)


def naive_layer(scores: list[float], kept: list[bool], count: int) -> list[bool]:
    alive = sorted((key(score), place) for place, score in enumerate(scores) if kept[place])
    stay = {place for _, place in alive[len(alive) - count :]}
    return [place in stay for place in range(len(scores))]


def naive_global(scores: list[list[float]], kept: list[list[bool]], count: int) -> list[list[bool]]:
    """One weight after another is dropped, lowest first, but never the last and highest of a layer."""
    alive = {(layer, place) for layer, row in enumerate(kept) for place, flag in enumerate(row) if flag}
    order = sorted(alive, key=lambda at: (key(scores[at[0]][at[1]]), at))
    safe = {
        max((at for at in alive if at[0] == layer), key=lambda at: (key(scores[at[0]][at[1]]), at))
        for layer in {at[0] for at in alive}
    }
    for at in order:
        if len(alive) == count:
            break
        if at not in safe:
            alive.remove(at)
    return [[(layer, place) in alive for place in range(len(row))] for layer, row in enumerate(kept)]


@st.composite
def networks(draw):
    """Scores, a mask with at least one live weight in each layer and a bias, and names in no special order."""
    names = draw(st.permutations(["a", "b", "c"]))[: draw(st.integers(1, 3))]
    kind = draw(values)
    scores, kept = {}, {}
    for name in names:
        shape = draw(shapes)
        scores[name] = torch.from_numpy(draw(hnp.arrays(np.float64, shape, elements=kind)))
        kept[name] = torch.from_numpy(draw(hnp.arrays(bool, shape)))
        kept[name].view(-1)[draw(st.integers(0, kept[name].numel() - 1))] = True
    return scores, Mask({**kept, "bias": torch.tensor([True, False])})


def counts(mask: Mask, names) -> dict[str, int]:
    return {name: int(mask[name].sum()) for name in names}


@given(st.data(), networks())
def test_by_layer(data, network):
    scores, mask = network
    live = {name: data.draw(st.integers(1, count)) for name, count in counts(mask, scores).items()}
    after = keep_topk(scores, mask, live)
    assert counts(after, live) == live
    for name in live:
        assert after[name].flatten().tolist() == naive_layer(
            scores[name].flatten().tolist(), mask[name].flatten().tolist(), live[name]
        )
    assert after.nested_in(mask)
    assert list(after) == list(mask)
    assert torch.equal(after["bias"], mask["bias"])


def split(data, names, total: int) -> dict[str, int]:
    """``total`` in parts of at least 1: in global scope only the sum counts, whatever the parts."""
    parts, rest = {}, total - len(names)
    for name in names[:-1]:
        part = data.draw(st.integers(0, rest))
        parts[name], rest = 1 + part, rest - part
    return {**parts, names[-1]: 1 + rest}


@given(st.data(), networks())
def test_overall(data, network):
    scores, mask = network
    names = list(scores)
    total = data.draw(st.integers(len(names), sum(counts(mask, names).values())))
    after = keep_topk(scores, mask, split(data, names, total), "global")
    found = counts(after, names)
    assert sum(found.values()) == total
    assert min(found.values()) >= 1
    expected = naive_global(
        [scores[name].flatten().tolist() for name in names], [mask[name].flatten().tolist() for name in names], total
    )
    assert [after[name].flatten().tolist() for name in names] == expected
    assert after.nested_in(mask)
    assert torch.equal(after["bias"], mask["bias"])


@pytest.mark.parametrize(
    ("live", "scope", "message"),
    [
        ({"a": 4, "b": 1}, "layer", "Expected 0 <= count=4 <= 3 live weights"),
        ({"a": 1, "b": -1}, "layer", "Expected 0 <= count=-1 <= 2 live weights"),
        ({"a": 3, "b": 3}, "global", "Expected 0 <= count=4 <= 3 live weights"),  # one of each is kept as it is
        ({"a": 1, "b": 0}, "global", "Expected 0 <= count=-1 <= 3 live weights"),
    ],
)
def test_counts_that_cannot_be(live, scope, message):
    """More than live, or fewer than none: never quietly another number."""
    scores = {"a": torch.arange(4.0).view(2, 2), "b": torch.arange(2.0).view(1, 2)}
    mask = Mask({"a": torch.tensor([[True, True], [False, True]]), "b": torch.ones(1, 2, dtype=torch.bool)})
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        keep_topk(scores, mask, live, scope)
    assert str(caught.value) == message
