"""Compaction: the compact network computes what the masked one does, and every unit that is left is of use."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.filters import Clip
from dpltm.gradients import RecordGradients
from dpltm.networks import ModelSpec, build
from dpltm.networks.compaction import compact, compact_spec
from dpltm.networks.masks import Mask
from dpltm.networks.unit_groups import positions, unit_groups
from dpltm.training.descent import cross_entropy
from gradient_cases import Applied
from refusals import refused


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


def small(kind: str) -> tuple[nn.Module, Tensor]:
    match kind:
        case "mlp":
            return build(ModelSpec("mlp:9,7", 6, 3)), torch.randn(11, 6)
        case "cnn":
            return build(ModelSpec("cnn:14x15x2", 420, 3)), torch.randn(5, 420)
        case "conv1d":
            layers = (nn.Conv1d(2, 5, 3), nn.ReLU(), nn.Conv1d(5, 4, 2, padding=1), nn.Tanh(), nn.Flatten())
            return nn.Sequential(*layers, nn.Linear(32, 3)), torch.randn(5, 2, 9)
        case "residual":
            model = Applied(
                lambda self, x: self.out(self.first(x).relu() + self.second(self.first(x).relu()).relu()),
                **{"first": nn.Linear(6, 5), "second": nn.Linear(5, 5), "out": nn.Linear(5, 3)},
            )
            return model, torch.randn(5, 6)
    grouped = (nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 3, 2))
    return nn.Sequential(*grouped, nn.Flatten()), torch.randn(5, 2, 6, 6)


KINDS = ["mlp", "cnn", "conv1d", "residual", "grouped"]
EXAMPLES = settings.default.max_examples  # of the profile: fifty, or a thousand


@settings(max_examples=EXAMPLES // 4)
@given(st.sampled_from(KINDS), st.sampled_from([0.0, 0.05, 0.1, 0.3, 1.0]), st.integers(0, 10**6), st.booleans())
def test_outputs_and_gradients_are_those_of_the_masked_network(kind, density, seed, some_biases):
    torch.manual_seed(seed)
    model, x = small(kind)
    model, x = trained_like(model, seed).double(), x.double()
    mask = random_mask(model, density, seed, 0.5 if some_biases else 2.0)
    before = copy.deepcopy(model.state_dict())
    found = compact(model, mask, x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    mask.apply(model)
    torch.testing.assert_close(found.model(x), model(x), rtol=1e-9, atol=1e-9)
    y = torch.randint(model(x).shape[1], (len(x),))
    sums = []
    for network, live in ((model, mask), (found.model, found.mask)):
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
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    mask = without(model, ("4.weight", (0, 1)), ("2.weight", ([0, 2], 0)))
    found = compact(model, mask, torch.zeros(1, 2))
    assert {name: tuple(value.shape) for name, value in found.model.named_parameters()} == {
        "0.weight": (1, 2), "0.bias": (1,), "2.weight": (2, 1), "2.bias": (2,), "4.weight": (1, 2), "4.bias": (1,),
    }  # fmt: skip
    assert found.places["0.weight"].tolist() == [2, 3]
    assert found.places["2.weight"].tolist() == [1, 5]
    assert found.places["4.weight"].tolist() == [0, 2]
    assert found.mask.live == 2 + 1 + 2 + 2 + 2 + 1


def test_something_is_left_where_everything_is_pruned_and_what_is_frozen_stays_so():
    model = build(ModelSpec("mlp:4", 3, 2), 0)
    model.fc1.weight.requires_grad_(False)
    found = compact(model, random_mask(model, 0.0, 0), torch.zeros(1, 3))
    assert tuple(found.model.fc1.weight.shape) == (1, 3)
    assert [value.requires_grad for value in found.model.parameters()] == [False, True, True, True]
    torch.testing.assert_close(found.model(torch.ones(1, 3)), model.fc2.bias[None])


NORMS = [nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.RMSNorm(4), nn.InstanceNorm1d(4), nn.BatchNorm1d(4)]


@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: type(norm).__name__)
def test_normalisation_layers_are_refused(norm):
    model = nn.Sequential(nn.Linear(3, 4), norm, nn.Linear(4, 2))
    assert refused(compact, model, Mask.dense(model), torch.zeros(2, 3)) == (
        "model: 1 is a normalisation layer; with units removed its statistics would change, so it cannot be compacted"
    )


def test_a_mask_of_another_network_is_refused():
    model = build(ModelSpec("mlp:4", 3, 2), 0)
    with pytest.raises(InputError, match=r"^mask fc1.weight: shape \(5, 3\) in the mask, \(4, 3\) in the network"):
        compact(model, Mask.dense(build(ModelSpec("mlp:5", 3, 2))), torch.zeros(2, 3))


@pytest.mark.parametrize(
    "between", [lambda z: z.softmax(1), lambda z: z / z.shape[1] ** 0.5], ids=["softmax", "width"]
)
def test_what_looks_at_all_units_at_once_is_refused(between):
    model = Applied(lambda self, x: self.second(between(self.first(x))), first=nn.Linear(3, 8), second=nn.Linear(8, 2))
    with pytest.raises(InputError, match=r"^model: cannot be compacted: "):
        compact(model, without(model, ("second.weight", (slice(None), slice(3)))), torch.zeros(2, 3))


def test_weights_that_layers_share_are_refused():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    with pytest.raises(InputError, match=r"^model: cannot be compacted: "):
        compact(model, without(model, ("0.weight", (slice(None), 0))), torch.zeros(2, 4))


# Folding


def without_inputs(mask: Mask, share: float, seed: int) -> Mask:
    """The mask with the incoming weights of a share of all units pruned."""
    generator = torch.Generator().manual_seed(seed)
    kept = dict(mask)
    for name in list(kept)[:-2]:
        if kept[name].ndim > 1:
            kept[name][torch.rand(len(kept[name]), generator=generator) < share] = False
    return Mask(kept)


def trained_like(model: nn.Module, seed: int) -> nn.Module:
    """Weights and biases of the order of those of trained networks, biases of both signs."""
    generator = torch.Generator().manual_seed(seed)
    for value in model.parameters():
        spread = value[0].numel() ** -0.5 if value.ndim > 1 else 0.3
        value.data.copy_(torch.randn(value.shape, generator=generator) * spread)
    return model


@settings(max_examples=EXAMPLES // 3)
@given(
    st.sampled_from(KINDS),
    st.sampled_from([0.05, 0.3, 1.0]),
    st.sampled_from([0.0, 0.4, 0.9, 1.0]),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_folded_outputs_are_those_of_the_masked_network(kind, density, share, seed, some_biases):
    torch.manual_seed(seed)
    model, x = small(kind)
    model = trained_like(model, seed)
    mask = without_inputs(random_mask(model, density, seed, 0.5 if some_biases else 2.0), share, seed)
    before = copy.deepcopy(model.state_dict())
    found = compact(model, mask, x, fold=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    mask.apply(model)
    x = x * torch.tensor([0.01, 1.0, 3.0, 1.0, 0.0]).repeat(3)[: len(x)].view(-1, *[1] * (x.ndim - 1))
    wanted = model(x)
    torch.testing.assert_close(found.model(x), wanted, rtol=1e-6, atol=1e-6)
    double = compact(model.double(), mask, x, fold=True)
    torch.testing.assert_close(double.model(x.double()), model(x.double()), rtol=1e-9, atol=1e-9)
    assert all(torch.equal(value, double.mask[name]) for name, value in found.mask.items())
    for name, value in found.model.named_parameters():
        assert not bool(value[~found.mask[name]].any()), "what is not live must be zero"
        if value.ndim > 1:
            assert torch.equal(
                value.flatten(), before[name].flatten()[found.places[name]] * found.mask[name].flatten()
            )


@settings(max_examples=EXAMPLES // 4)
@given(st.sampled_from(["mlp", "cnn"]), st.sampled_from([0.05, 0.3, 1.0]), st.integers(0, 10**6))
def test_no_constant_is_left_but_the_one_unit_that_stays(kind, density, seed):
    model, x = small(kind)
    mask = without_inputs(random_mask(model, density, seed), 0.5, seed)
    found = compact(trained_like(model, seed), mask, x, fold=True)
    for group in unit_groups(positions(found.model), x):
        weight = found.mask[f"{group.layer}.weight"]
        assert bool(weight.flatten(1).any(1).all())
        for places in group.outgoing.values():
            used = torch.zeros(group.count, dtype=torch.bool)
            live = next(found.mask[name] for name in group.outgoing).flatten()[places.positions]
            used[places.units[live]] = True
            assert bool(used.all())


def test_folding_by_hand():
    """Unit 1 gives relu(3) = 3 whatever comes in, and unit 2 relu(-1) = 0; biases behind become 10 + 2 * 3 and 20 - 3."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([0.5, 3.0, -1.0]))
        model[2].weight.copy_(torch.tensor([[1.0, 2.0, 7.0], [1.0, -1.0, 7.0]]))
        model[2].bias.copy_(torch.tensor([10.0, 20.0]))
    mask = without(model, ("0.weight", slice(1, None)), ("2.bias", 0))
    found = compact(model, mask, torch.zeros(1, 2), fold=True)
    assert tuple(found.model[0].weight.shape) == (1, 2)
    assert found.model[2].bias.tolist() == [6.0, 17.0]
    assert found.mask["2.bias"].tolist() == [True, True]
    assert found.places["2.weight"].tolist() == [0, 3]
    assert len(compact(model, mask, torch.zeros(1, 2)).model[0].weight) == 3, "constant units stay while a bias lives"


def conv_pair(between: list[nn.Module], **options: object) -> tuple[nn.Module, Mask, Tensor]:
    """Two convolutions; the first channel of the first one is a constant."""
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), *between, nn.Conv2d(3, 2, 3, **options), nn.Flatten())
    trained_like(model, 4)
    with torch.no_grad():
        model[0].bias.fill_(1.5)
    return model, without(model, ("0.weight", 0)), torch.randn(4, 1, 8, 8)


@pytest.mark.parametrize(
    ("between", "options", "left"),
    [
        ([nn.Sigmoid(), nn.MaxPool2d(2, padding=1)], {}, 2),
        ([nn.ReLU()], {"padding": 1}, 3),
        ([nn.ReLU()], {"bias": False}, 3),
        ([nn.AvgPool2d(2, stride=1, padding=1)], {}, 3),  # zeros at the borders are averaged in
        ([nn.ZeroPad2d(1)], {}, 3),
    ],
    ids=str,
)
def test_a_channel_is_folded_only_where_it_is_constant_up_to_the_borders(between, options, left):
    model, mask, x = conv_pair(between, **options)
    found = compact(model, mask, x[:1], fold=True)
    mask.apply(model)
    torch.testing.assert_close(found.model(x), model(x), rtol=1e-6, atol=1e-6)
    assert len(found.model[0].weight) == left


@pytest.mark.parametrize(
    "scale",
    [lambda z: z.mean(1, keepdim=True), lambda z: 1 + (z.amax(1, keepdim=True) > 20)],  # only large records show it
    ids=["mean", "threshold"],
)
def test_what_is_no_constant_behind_the_activation_stays(scale):
    """Between its layers the units are scaled by something of all of them."""

    def forward(self: Applied, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.second(hidden * scale(hidden))

    model = trained_like(Applied(forward, first=nn.Linear(3, 4), second=nn.Linear(4, 2)), 3)
    model.first.bias.data.fill_(1.0)
    found = compact(model, without(model, ("first.weight", 0)), torch.zeros(1, 3), fold=True)
    assert len(found.model.first.weight) == 4
    assert torch.equal(found.model.second.bias, model.second.bias)


@pytest.mark.parametrize(
    ("name", "place", "value"), [("fc1.bias", 0, float("nan")), ("fc2.weight", (0, 2), float("inf"))]
)
def test_where_a_bias_or_outputs_are_not_finite_nothing_is_folded(name, place, value):
    """A try-out shows nothing there; what is of no use goes all the same."""
    model = trained_like(build(ModelSpec("mlp:4", 3, 2)), 3)
    dict(model.named_parameters())[name].data[place] = value
    mask = without(model, ("fc1.weight", 0), ("fc2.weight", (slice(None), 1)))
    found = compact(model, mask, torch.zeros(1, 3), fold=True)
    assert found.places["fc1.bias"].tolist() == [0, 2, 3]
    assert torch.equal(found.model.fc2.bias, model.fc2.bias)


# Names of compact networks


@settings(max_examples=EXAMPLES // 4)
@given(
    st.sampled_from(
        [("mlp:9,7", 6), ("mlp:project5,4", 6), ("mlp", 6), ("cnn:14x15x2", 420), ("cnn:16x14x1:4,5,6", 224)]
    ),
    st.sampled_from([0.03, 0.1, 0.3, 1.0]),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_what_is_left_has_a_name(named, density, fold, seed):
    spec = ModelSpec(*named, 3)
    model = trained_like(build(spec), seed)
    found = compact(model, random_mask(model, density, seed), torch.zeros(1, spec.features), fold)
    smaller = compact_spec(spec, found)
    shapes = [(name, tuple(value.shape)) for name, value in found.model.named_parameters()]
    assert list(smaller.shapes().items()) == shapes
    rebuilt = build(smaller)
    rebuilt.load_state_dict(found.model.state_dict())
    x = torch.randn(3, spec.features)
    assert torch.equal(rebuilt(x), found.model(x))
    if density == 1.0:
        assert smaller == spec


def test_a_compact_network_of_another_spec_has_no_name():
    spec = ModelSpec("mlp:9,7", 196, 3)
    found = compact(build(spec), Mask.dense(build(spec)), torch.zeros(1, 196))
    assert refused(compact_spec, ModelSpec("mlp:project9,7", 196, 3), found) == (
        "model: no widths of mlp:project9,7 give parameters of these names and shapes; it is another network"
    )
