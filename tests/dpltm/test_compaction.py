"""Compaction: the compact network computes what the masked one does, and every unit that is left is of use."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpltm.compaction import compact
from dpltm.errors import InputError
from dpltm.filters import Clip
from dpltm.gradients import RecordGradients
from dpltm.masks import Mask
from dpltm.models import ModelSpec, build
from dpltm.training import cross_entropy


def random_mask(model: nn.Module, density: float, seed: int, biases: float = 2.0) -> Mask:
    generator = torch.Generator().manual_seed(seed)
    return Mask(
        {
            name: torch.rand(value.shape, generator=generator) < (density if value.ndim > 1 else biases)
            for name, value in model.named_parameters()
        }
    )


def random_weights(model: nn.Module, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for value in model.parameters():
        value.data.copy_(torch.randn(value.shape, generator=generator, dtype=torch.float64))
    return model.double()


class Residual(nn.Module):
    """Two layers added up, so that their units belong together; and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        return self.out(hidden + self.second(hidden).relu())


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
            return Residual(), torch.randn(5, 6)
    grouped = (nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 3, 2))
    return nn.Sequential(*grouped, nn.Flatten()), torch.randn(5, 2, 6, 6)


KINDS = ["mlp", "cnn", "conv1d", "residual", "grouped"]


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(KINDS), st.sampled_from([0.0, 0.05, 0.1, 0.3, 1.0]), st.integers(0, 10**6), st.booleans())
def test_outputs_and_gradients_are_those_of_the_masked_network(kind, density, seed, some_biases):
    torch.manual_seed(seed)
    model, x = small(kind)
    model, x = random_weights(model, seed), x.double()
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
    keep = {name: torch.ones_like(value, dtype=torch.bool) for name, value in model.named_parameters()}
    keep["4.weight"][0, 1] = False
    keep["2.weight"][0, 0] = keep["2.weight"][2, 0] = False
    found = compact(model, Mask(keep), torch.zeros(1, 2))
    assert {name: tuple(value.shape) for name, value in found.model.named_parameters()} == {
        "0.weight": (1, 2), "0.bias": (1,), "2.weight": (2, 1), "2.bias": (2,), "4.weight": (1, 2), "4.bias": (1,),
    }  # fmt: skip
    assert found.places["0.weight"].tolist() == [2, 3]
    assert found.places["2.weight"].tolist() == [1, 5]
    assert found.places["4.weight"].tolist() == [0, 2]
    assert found.mask.live == 2 + 1 + 2 + 2 + 2 + 1


def test_a_constant_unit_stays_while_its_bias_lives():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    keep = {name: torch.ones_like(value, dtype=torch.bool) for name, value in model.named_parameters()}
    keep["0.weight"][0] = False
    found = compact(model, Mask(keep), torch.zeros(1, 2))
    assert len(found.model[0].weight) == 2


def test_something_is_left_where_everything_is_pruned():
    model = build(ModelSpec("mlp:4", 3, 2), 0)
    found = compact(model, random_mask(model, 0.0, 0), torch.zeros(1, 3))
    assert tuple(found.model.fc1.weight.shape) == (1, 3)
    torch.testing.assert_close(found.model(torch.ones(1, 3)), model.fc2.bias[None])


@pytest.mark.parametrize("norm", [nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.RMSNorm(4), nn.InstanceNorm1d(4)])
def test_normalisation_layers_are_refused(norm):
    model = nn.Sequential(nn.Linear(3, 4), norm, nn.Linear(4, 2))
    with pytest.raises(InputError) as error:
        compact(model, Mask.dense(model), torch.zeros(2, 3))
    assert str(error.value) == (
        "model: 1 is a normalisation layer; with units removed its statistics would change, so it cannot be compacted"
    )


def test_a_mask_of_another_network_is_refused():
    model = build(ModelSpec("mlp:4", 3, 2), 0)
    with pytest.raises(InputError) as error:
        compact(model, Mask.dense(build(ModelSpec("mlp:5", 3, 2))), torch.zeros(2, 3))
    assert str(error.value) == "mask fc1.weight: shape (5, 3) in the mask, (4, 3) in the network; they must match"


def test_frozen_parameters_stay_frozen():
    model = build(ModelSpec("mlp:4", 3, 2), 0)
    model.fc1.weight.requires_grad_(False)
    found = compact(model, random_mask(model, 0.4, 1), torch.zeros(2, 3))
    assert [value.requires_grad for value in found.model.parameters()] == [False, True, True, True]


@pytest.mark.parametrize(
    "between",
    [
        lambda z: z.softmax(1),
        lambda z: z.log_softmax(1),
        nn.functional.normalize,
        lambda z: z - z.mean(1, keepdim=True),
        lambda z: nn.functional.layer_norm(z, z.shape[1:]),
        lambda z: z / z.shape[1] ** 0.5,
    ],
    ids=["softmax", "log_softmax", "normalize", "mean", "layer_norm", "width"],
)
def test_what_looks_at_all_units_at_once_is_refused(between):
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(between(self.first(x)))

    model = Looks()
    keep = {name: torch.ones_like(value, dtype=torch.bool) for name, value in model.named_parameters()}
    keep["second.weight"][:, :3] = False
    with pytest.raises(InputError, match=r"^model: cannot be compacted: "):
        compact(model, Mask(keep), torch.zeros(2, 3))


def test_what_cannot_be_traced_is_refused():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).relu())

    model = Tied()
    keep = torch.ones(4, 4, dtype=torch.bool)
    keep[:, 0] = False
    with pytest.raises(InputError, match=r"^model: cannot be compacted: "):
        compact(model, Mask({"a.weight": keep}), torch.zeros(2, 4))
