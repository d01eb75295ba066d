"""Masks: counts, nesting, immutability, fit, and zeroing, checked against plain loops over positions."""

import copy
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dpltm.networks.masks import Mask
from refusals import refused


def network(*widths: int) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(before, after) for before, after in itertools.pairwise(widths)])


@st.composite
def nested_masks(draw):
    """Two masks of the same shapes as nested lists of booleans, and as Mask; each entry drawn on its own."""
    shapes = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=3))
    pairs = []
    for number, (rows, columns) in enumerate(shapes):
        for name, shape in ((f"w{number}", (rows, columns)), (f"b{number}", (rows,))):
            size = rows * columns if len(shape) == 2 else rows
            bits = st.lists(st.booleans(), min_size=size, max_size=size)
            pairs.append((name, shape, draw(bits), draw(bits)))
    return pairs


def as_mask(pairs, which: int) -> Mask:
    return Mask({name: torch.tensor(bits[which]).view(shape) for name, shape, *bits in pairs})


@given(nested_masks())
def test_live_counts_every_true_and_density_only_those_of_weights(pairs):
    mask = as_mask(pairs, 0)
    assert mask.live == sum(sum(bits) for _, _, bits, _ in pairs)
    weights = [bits for _, shape, bits, _ in pairs if len(shape) == 2]
    assert mask.density == sum(map(sum, weights)) / sum(map(len, weights))


@given(nested_masks())
def test_nested_and_same_agree_with_a_loop_over_positions(pairs):
    first, second = as_mask(pairs, 0), as_mask(pairs, 1)
    implied = all(b or not a for _, _, bits, others in pairs for a, b in zip(bits, others, strict=True))
    assert first.nested_in(second) == implied
    assert first.same_as(second) == all(bits == others for _, _, bits, others in pairs)
    both = Mask({name: first[name] & second[name] for name in first})
    assert both.nested_in(first)
    assert both.nested_in(second)
    assert first.nested_in(both) == first.same_as(both)


def test_a_mask_cannot_be_changed():
    tensor = torch.ones(3, 2, dtype=torch.bool)
    tensors = {"w": tensor}
    mask = Mask(tensors)
    tensor[0, 0] = False
    tensors["v"] = tensor
    mask["w"][0, 1] = False
    assert mask.live == 6
    assert list(mask) == ["w"]
    assert refused(Mask, {"w": tensor.to(torch.uint8)}) == "mask w: dtype is torch.uint8, expected torch.bool"


def test_apply_zeroes_pruned_values_whatever_they_were_and_no_other():
    model = network(4, 3)
    with torch.no_grad():
        model[0].weight[0] = torch.tensor([torch.nan, torch.inf, -torch.inf, -1e30])
        model[0].bias[1] = torch.nan
    weight = torch.tensor([[False] * 4, [True] * 4, [True, False, True, False]])
    bias = torch.tensor([True, False, True])
    before = copy.deepcopy(model)
    Mask({"0.weight": weight, "0.bias": bias}).apply(model)
    for now, was, keep in ((model[0].weight, before[0].weight, weight), (model[0].bias, before[0].bias, bias)):
        assert now[~keep].tolist() == [0.0] * int((~keep).sum())
        assert torch.equal(now[keep], was[keep])


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"0.weight": (4, 3), "0.bias": (3,)}, "mask 0.weight: shape (4, 3) in the mask, (3, 4) in the network"),
        ({"0.weight": (3, 4)}, "mask 0.bias: shape None in the mask, (3,) in the network"),
        (
            {"0.weight": (3, 4), "0.bias": (3,), "1.bias": (1,)},
            "mask 1.bias: shape (1,) in the mask, None in the network",
        ),
    ],
)
def test_misfits_are_named(shapes, message):
    mask = Mask({name: torch.zeros(shape, dtype=torch.bool) for name, shape in shapes.items()})
    model = network(4, 3)
    before = copy.deepcopy(model.state_dict())
    assert refused(mask.apply, model) == message
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items()), "changed before"
