"""Masks: counts, nesting, immutability, fit, and zeroing, checked against plain loops over positions."""

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpltm.filters import Clip
from dpltm.gradients import RecordGradients
from dpltm.networks import ModelSpec, build
from dpltm.networks.compaction import compact
from dpltm.networks.masks import Mask
from dpltm.networks.state import weights_of
from dpltm.training.descent import cross_entropy
from refusals import refused
from tensors import same_tensors


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
    assert same_tensors(first, second) == all(bits == others for _, _, bits, others in pairs)
    both = Mask({name: first[name] & second[name] for name in first})
    assert both.nested_in(first)
    assert both.nested_in(second)
    assert first.nested_in(both) == same_tensors(first, both)


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


# --- compaction: what the masked network computes, by units that are all of use ---


def random_mask(model: nn.Module, density: float, seed: int, biases: float = 2.0) -> Mask:
    generator = torch.Generator().manual_seed(seed)
    densities = {name: density if value.ndim > 1 else biases for name, value in model.named_parameters()}
    return Mask(
        {name: torch.rand(p.shape, generator=generator) < densities[name] for name, p in model.named_parameters()}
    )


def without(model: nn.Module, *places: tuple[str, object]) -> Mask:
    """Everything is live but these places of these parameters."""
    keep = dict(Mask.dense(model))
    for name, place in places:
        keep[name][place] = False
    return Mask(keep)


SPECS = {
    "mlp": ModelSpec("mlp:9,7", 6, 3),
    "mlp-tanh": ModelSpec("mlp-tanh:9,7,5", 6, 3),
    "project": ModelSpec("mlp:project5,4", 6, 3),
    "cnn": ModelSpec("cnn:14x15x2", 420, 3),
    "small cnn": ModelSpec("cnn-tanh:16x14x1:4,5,6", 224, 3),
    "latent, grey": ModelSpec("latent:8x9x1:4,5,6", 72, 3),
    "latent": ModelSpec("latent:10x11x2:3,4,4,3,5", 220, 3),
    "embed": ModelSpec("embed:9:4,5,3", 6, 3),
}
specs = st.sampled_from(list(SPECS)).map(SPECS.__getitem__)
EXAMPLES = settings.default.max_examples  # of the profile: fifty, or a thousand


def records(spec: ModelSpec, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if spec.tables:
        return torch.randint(9, (5, spec.features), generator=generator).double()
    x = torch.randn(5, spec.features, generator=generator, dtype=torch.float64)
    return x * torch.tensor([0.01, 1.0, 3.0, 1.0, 0.0], dtype=torch.float64)[:, None]


def trained_like(spec: ModelSpec, seed: int) -> nn.Module:
    """A network with weights and biases of the order of those of trained ones, biases of both signs."""
    model, generator = build(spec), torch.Generator().manual_seed(seed)
    for value in model.parameters():
        spread = value[0].numel() ** -0.5 if value.ndim > 1 else 0.3
        value.data.copy_(torch.randn(value.shape, generator=generator) * spread)
    return model


@settings(max_examples=EXAMPLES // 4, deadline=None)
@given(specs, st.sampled_from([0.0, 0.05, 0.1, 0.3, 1.0]), st.integers(0, 10**6), st.booleans())
def test_outputs_and_gradients_are_those_of_the_masked_network(spec, density, seed, some_biases):
    model, x = trained_like(spec, seed), records(spec, seed)
    mask = random_mask(model, density, seed, 0.5 if some_biases else 2.0)
    found = compact(spec, weights_of(model), mask)
    mask.apply(model)
    model, smaller = model.double(), copy.deepcopy(found.model).double()
    torch.testing.assert_close(smaller(x), model(x), rtol=1e-9, atol=1e-9)
    if spec.tables:
        x = x.float()
    y = torch.arange(len(x)) % 3
    sums = []
    for network, live in ((model, mask), (smaller, found.mask)):
        gradients = RecordGradients(network, live, cross_entropy)
        values = gradients.filtered_sum(x, y, Clip(0.1)).values / gradients.rounding  # which follows the widest layer
        dense = {}
        for name, _ in network.named_parameters():
            part, values = values[: int(live[name].sum())], values[int(live[name].sum()) :]
            dense[name] = torch.zeros(live[name].shape, dtype=torch.float64).masked_scatter_(live[name], part)
        sums.append(dense)
    full, less = sums
    for name, places in found.places.items():
        torch.testing.assert_close(less[name].flatten(), full[name].flatten()[places], rtol=1e-6, atol=1e-9)
        gone = torch.ones(full[name].numel(), dtype=torch.bool)
        gone[places] = False
        assert full[name].flatten()[gone].abs().max() < 1e-12 if bool(gone.any()) else True


def test_by_hand():
    """Unit 1 feeds nobody; what it took from unit 0 of the layer before was that unit's only use."""
    spec = ModelSpec("mlp:2,3", 2, 1)
    mask = without(build(spec), ("fc3.weight", (0, 1)), ("fc2.weight", ([0, 2], 0)))
    found = compact(spec, weights_of(build(spec, 0)), mask)
    assert found.spec == ModelSpec("mlp:1,2", 2, 1)
    assert found.places["fc1.weight"].tolist() == [2, 3]
    assert found.places["fc2.weight"].tolist() == [1, 5]
    assert found.places["fc3.weight"].tolist() == [0, 2]
    assert found.mask.live == 2 + 1 + 2 + 2 + 2 + 1
