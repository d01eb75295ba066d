"""Keeping the highest scores, by layer and over the network: against a naive sort of (score, layer, position)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpltm.networks.masks import Mask
from dpltm.pruning.topk import keep_topk

shapes = hnp.array_shapes(min_dims=2, max_dims=4, max_side=3)
# Few distinct values, so that ties are the rule, or any; with and without NaN.
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
