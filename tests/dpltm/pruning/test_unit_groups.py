"""Units and what dies with them, against gradients: those of the weights that a unit feeds change when it gives zero."""

import pytest
import torch
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.networks import ModelSpec, build
from dpltm.pruning.structured import unit_groups
from units import dying


class Joined(nn.Module):
    """One layer's units come in twice, around another's."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(4, 3), nn.Linear(4, 2), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x).relu()
        return self.out(torch.cat([a, self.b(x), a], 1))


class Fork(nn.Module):
    """Channels that a convolution uses and, flattened, a Linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 2)
        self.side, self.out = nn.Linear(48, 4), nn.Linear(18, 4)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x).relu()
        return self.out(self.b(a).flatten(1)) + self.side(a.flatten(1))


NETWORKS = {
    "mlp": (lambda: build(ModelSpec("mlp:5,4", 6, 3)), (6,), {"fc1": {"fc2"}, "fc2": {"fc3"}}),
    "project": (lambda: build(ModelSpec("mlp:project5,4", 6, 3)), (6,), {"project": {"fc1"}, "fc1": {"fc2"}}),
    "cnn": (
        lambda: build(ModelSpec("cnn:20x23x2:3,5,4", 920, 3)),
        (920,),
        {"conv1": {"conv2"}, "conv2": {"fc1"}, "fc1": {"fc2"}},
    ),
    "joined": (Joined, (4,), {"a": {"out"}, "b": {"out"}}),
    "fork": (Fork, (2, 6, 6), {"a": {"b", "side"}, "b": {"out"}}),
}


def gradients(model: nn.Module, x: Tensor, layer: str, units: list[int]) -> dict[str, Tensor]:
    """Of the sum of all outputs, when of a layer's units only these give anything."""

    def others_zero(_, __, output: Tensor) -> Tensor:
        keep = torch.zeros_like(output)
        keep[:, units] = 1.0
        return output * keep

    hook = model.get_submodule(layer).register_forward_hook(others_zero)
    model.zero_grad()
    model(x).sum().backward()
    hook.remove()
    return {name: value.grad for name, value in model.named_parameters()}


@pytest.mark.parametrize("name", NETWORKS)
def test_what_dies_with_a_unit_is_what_only_it_feeds_and_what_makes_it(name):
    make, shape, users = NETWORKS[name]
    model = make().double()
    with torch.no_grad():
        for number, value in enumerate(model.parameters()):
            generator = torch.Generator().manual_seed(number)
            value.copy_(0.1 + torch.rand(value.shape, generator=generator)) if value.ndim > 1 else value.zero_()
    x = 0.1 + torch.rand(2, *shape, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    groups = {group.layer: group for group in unit_groups(model, x)}
    assert groups.keys() == users.keys()
    sizes = {name: value.shape for name, value in model.named_parameters()}
    for layer, group in groups.items():
        assert group.count == len(model.get_submodule(layer).weight)
        for unit, gone in enumerate(dying(group)):
            alone, without = (gradients(model, x, layer, units) for units in ([unit], []))
            direct = {f"{user}.weight" for user in users[layer]}
            assert gone.keys() == {f"{layer}.weight", f"{layer}.bias"} | direct
            for parameter, places in gone.items():
                found = torch.zeros(sizes[parameter].numel(), dtype=torch.bool)
                found[places] = True
                if parameter.startswith(f"{layer}."):
                    rows = torch.zeros(sizes[parameter], dtype=torch.bool)
                    rows[unit] = True
                    assert torch.equal(found, rows.flatten())
                else:
                    assert torch.equal(found, (alone[parameter] != without[parameter]).flatten()), (
                        layer,
                        unit,
                        parameter,
                    )


def test_units_that_go_with_others_are_left_out():
    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.scaled, self.out = (nn.Linear(4, 4) for _ in range(4))
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.scaled(self.a(x).relu() + self.b(x)) * self.scale)

    assert list(unit_groups(Added(), torch.zeros(1, 4))) == []


def test_units_that_go_into_their_own_layer_are_left_out_and_others_count_once():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.a, self.out = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            a = self.a(self.own(self.own(x).relu()))
            return self.out(a.relu()) + self.out(a.tanh())

    (group,) = unit_groups(Twice(), torch.zeros(1, 4))
    assert group.layer == "a"
    assert {name: places.tolist() for name, places in dying(group)[1].items()} == {
        "a.weight": [4, 5, 6, 7], "a.bias": [1], "out.weight": [1, 4],
    }  # fmt: skip


def test_a_graph_is_found_where_gradients_are_switched_off():
    with torch.no_grad():
        assert [group.layer for group in unit_groups(build(ModelSpec("mlp:3", 2, 2)), torch.zeros(1, 2))]


def test_what_cannot_be_traced_is_refused():
    with pytest.raises(InputError, match=r"^model: cannot be traced to find its units: mat1 and mat2 shapes"):
        list(unit_groups(nn.Sequential(nn.Linear(3, 2), nn.Linear(4, 2)), torch.zeros(1, 3)))


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ([nn.BatchNorm2d(6).eval()], [[0], [1], [2], [3], [4], [5]]),
        ([nn.InstanceNorm2d(6, affine=True)], [[0], [1], [2], [3], [4], [5]]),
        ([nn.GroupNorm(3, 6)], [[0, 1], [2, 3], [4, 5]]),
        ([nn.GroupNorm(3, 6), nn.ReLU(), nn.GroupNorm(2, 6)], None),
        ([nn.GroupNorm(3, 6), nn.GroupNorm(6, 6)], [[0, 1], [2, 3], [4, 5]]),
        ([nn.GroupNorm(1, 6)], None),
        ([nn.LayerNorm([6, 3, 3])], None),
    ],
)
def test_channels_that_are_normalised_together_are_one_unit(norms, expected):
    model = nn.Sequential(nn.Conv2d(2, 6, 3), *norms, nn.Conv2d(6, 2, 2))
    groups = list(unit_groups(model, torch.zeros(2, 2, 5, 5)))
    assert len(groups) == (expected is not None)
    for group in groups:
        bias, last = "0.bias", f"{len(norms) + 1}.weight"
        assert [gone[bias].tolist() for gone in dying(group)] == expected
        used = torch.arange(2 * 6 * 4).view(2, 6, 4)
        assert [d[last].tolist() for d in dying(group)] == [used[:, unit].flatten().tolist() for unit in expected]


class Beside(nn.Module):
    """Channels of two convolutions, side by side in one GroupNorm."""

    def __init__(self, first: int, second: int, groups: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(2, first, 1), nn.Conv1d(2, second, 1)
        self.norm, self.out = nn.GroupNorm(groups, first + second), nn.Conv1d(first + second, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(torch.cat([self.a(x), self.b(x)], 1)))


@pytest.mark.parametrize(("groups", "expected"), [(4, [[0, 1], [2, 3]]), (8, [[0], [1], [2], [3]])])
def test_norm_groups_of_one_layer_are_its_units(groups, expected):
    found = {group.layer: group for group in unit_groups(Beside(4, 4, groups), torch.zeros(2, 2, 3))}
    assert [one["a.bias"].tolist() for one in dying(found["a"])] == expected
    outgoing = dying(found["b"])[0]["out.weight"].tolist()
    assert outgoing == [4 + unit + row for row in (0, 8) for unit in expected[0]]


@pytest.mark.parametrize("network", [Beside(4, 4, 2), Beside(3, 5, 4)], ids=["all of a layer", "across layers"])
def test_norm_groups_that_hold_their_units_back(network):
    assert list(unit_groups(network, torch.zeros(2, 2, 3))) == []
