"""Whole units: rounds against a naive pruning of units, what dies with a unit, and networks that cannot be followed."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.networks import ModelSpec, build
from dpltm.networks.compaction import compact
from dpltm.networks.masks import Mask
from dpltm.networks.state import weights_of
from dpltm.pruning.structured import Coordinates, Units, prune_units, unit_groups
from refusals import refused


def layer_of(group: tuple[Coordinates, list[Coordinates]]) -> str:
    return group[0].name.removesuffix(".weight")


def dying(group: tuple[Coordinates, list[Coordinates]]) -> list[dict[str, Tensor]]:
    """For every unit the flat positions that die with it, each once."""
    incoming, outgoing = group
    found: list[dict[str, Tensor]] = [{} for _ in range(int(incoming.units.max()) + 1)]
    for part in (incoming, *outgoing):
        for unit, places in enumerate(found):
            own = part.positions[part.units == unit].flatten()
            places[part.name] = torch.cat([places.get(part.name, own[:0]), own]).unique()
    return found


def network(spec: ModelSpec, seed: int) -> nn.Module:
    model = build(spec, seed)
    generator = torch.Generator().manual_seed(seed)
    for value in model.parameters():
        value.data.copy_(torch.randn(value.shape, generator=generator))
    return model


def live_weights(mask: Mask) -> int:
    return sum(int(value.sum()) for value in mask.values() if value.ndim > 1)


def fewest_live(model: nn.Module, x: Tensor) -> int:
    return Units(model, x, Mask.dense(model).prunable).fewest_live()


def example(spec: ModelSpec) -> Tensor:
    return torch.zeros(2, spec.features)


# The naive one, for fully connected networks: coordinates (layer, output, input), units (layer, output).

Coordinate = tuple[int, int, int]
Unit = tuple[int, int]


class Naive:
    def __init__(self, weights: list[list[list[float]]], alive: set[Coordinate]) -> None:
        self.weights, self.alive = weights, set(alive)
        self.last = len(weights) - 1
        self.units = [(layer, row) for layer in range(self.last) for row in range(len(weights[layer]))]

    def size(self, place: Coordinate) -> tuple[bool, float]:
        value = abs(self.weights[place[0]][place[1]][place[2]])
        return math.isnan(value), 0.0 if math.isnan(value) else value

    def incoming(self, unit: Unit) -> list[Coordinate]:
        return sorted(place for place in self.alive if place[:2] == unit)

    def outgoing(self, unit: Unit) -> list[Coordinate]:
        return sorted(place for place in self.alive if (place[0] - 1, place[2]) == unit)

    def own(self, unit: Unit) -> list[Coordinate]:
        return self.incoming(unit) + self.outgoing(unit)

    def useless(self) -> list[Coordinate]:
        """Incoming weights of units that feed nobody."""
        return [place for unit in self.units if not self.outgoing(unit) for place in self.incoming(unit)]

    def works(self) -> bool:
        layers_used = {unit[0] for unit in self.units if self.outgoing(unit)}
        return layers_used == set(range(self.last)) and {place[0] for place in self.alive} == set(range(self.last + 1))

    def remove(self, places: list[Coordinate], live: int) -> None:
        while places and len(self.alive) > live:
            for place in sorted(places, key=lambda place: (self.size(place), place))[: len(self.alive) - live]:
                self.alive.discard(place)
            places = self.useless()

    def order(self) -> list[Unit]:
        present = [unit for unit in self.units if self.own(unit)]
        norms = {unit: math.sqrt(sum(self.weights[a][b][c] ** 2 for a, b, c in self.own(unit))) for unit in present}
        keys = {}
        for unit in present:
            finite = [norms[other] for other in present if other[0] == unit[0] and math.isfinite(norms[other])]
            mean = sum(finite) / len(finite) if finite else 0.0
            keys[unit] = norms[unit] / (mean or 1.0)
        absent = set(self.units) - set(present)
        sizes = [(len(rows), len(rows[0])) for rows in self.weights]
        everything = {
            (n, a, b) for n, (rows, columns) in enumerate(sizes) for a in range(rows) for b in range(columns)
        }
        single = [p for p in everything - self.alive if not absent & {p[:2], (p[0] - 1, p[2])}]
        in_part = [unit for unit in present if single and all(unit in (p[:2], (p[0] - 1, p[2])) for p in single)]
        return sorted(present, key=lambda unit: (unit not in in_part, math.isnan(keys[unit]), keys[unit], unit))

    def prune(self, live: int) -> bool:
        """Whether ``live`` was reached."""
        if len(self.alive) == live:
            return True
        self.remove(self.useless(), live)
        for unit in self.order():
            full = Naive(self.weights, self.alive)
            full.remove(full.own(unit), 0)
            if len(self.alive) > live and full.works():
                self.remove(self.own(unit), live)
        return len(self.alive) == live


def naive_of(model: nn.Module, mask: Mask) -> Naive:
    return Naive([value.double().tolist() for value in model.parameters() if value.ndim > 1], coordinates(mask))


def coordinates(mask: Mask) -> set[Coordinate]:
    kept = [value for value in mask.values() if value.ndim > 1]
    return {(n, *map(int, place)) for n, value in enumerate(kept) for place in value.nonzero()}


FEW = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, -3.0, math.inf, math.nan])


@settings(max_examples=25)
@given(
    st.data(), st.lists(st.integers(1, 5), min_size=4, max_size=5), st.integers(0, 10**6), st.sampled_from([8, 6, 0])
)
def test_round_after_round_as_the_naive_one(data, widths, seed, values):
    """From the dense mask, retrained every round: exactly what sets of coordinates give, to the fewest and no further.

    With ties, and with weights that are not finite. The masked weights hold anything, too.
    """
    spec = ModelSpec("mlp:" + ",".join(map(str, widths[1:-1])), widths[0], widths[-1])
    model = network(spec, seed)
    mask, fewest = Mask.dense(model), fewest_live(model, example(spec))
    while live_weights(mask) > fewest:
        seed = data.draw(st.integers(0, 10**6))
        model, generator = network(spec, seed), torch.Generator().manual_seed(seed)
        for value in model.parameters() if values else ():
            value.data.copy_(FEW[torch.randint(values, value.shape, generator=generator)])
        live = data.draw(st.integers(fewest, live_weights(mask) - 1))
        naive = naive_of(model, mask)
        assert naive.prune(live)
        after = prune_units(model, mask, live, example(spec))
        assert coordinates(after) == naive.alive
        assert live_weights(after) == live
        assert after.nested_in(mask)
        mask = after
    refused(prune_units, model, mask, fewest - 1, example(spec))


@settings(max_examples=40)
@given(st.data(), st.integers(0, 10**6), st.sampled_from([0.3, 0.5, 0.8]))
def test_any_mask_as_the_naive_one(data, seed, density):
    """Masks of other criteria, with weights that lead nowhere: either both get there or it is refused."""
    spec = ModelSpec("mlp:4,3", 3, 2)
    model, generator = network(spec, seed), torch.Generator().manual_seed(seed)
    chances = {name: (value.shape, density if value.ndim > 1 else 2) for name, value in model.named_parameters()}
    mask = Mask({name: torch.rand(shape, generator=generator) < chance for name, (shape, chance) in chances.items()})
    live = data.draw(st.integers(0, live_weights(mask)))
    naive = naive_of(model, mask)
    start = Naive(naive.weights, naive.alive)
    start.remove(start.useless(), 0)
    if len(naive.alive) == live or (start.works() and naive.prune(live)):
        after = prune_units(model, mask, live, example(spec))
        assert coordinates(after) == naive.alive
        assert after.nested_in(mask)
    else:
        refused(prune_units, model, mask, live, example(spec))


def test_nested_and_exact_from_round_to_round_and_small_for_good():
    """Down to one unit a layer: counts are exact, and all but one unit at most are whole or gone."""
    spec = ModelSpec("cnn:17x20x2:5,7,6", 680, 3)
    model = network(spec, 0)
    mask = Mask.dense(model)
    fewest, total = fewest_live(model, example(spec)), live_weights(mask)
    for number in range(6):
        live = max(fewest, round(total * 0.45 ** (number + 1)))
        model = network(spec, number)
        before, state = mask, copy.deepcopy(model.state_dict())
        mask = prune_units(model, before, live, example(spec))
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert mask.nested_in(before)
        assert live_weights(mask) == live
        assert all(bool(value.all()) for value in mask.values() if value.ndim == 1)
        smaller = compact(spec, weights_of(model), mask)
        dead = {(n, p) for n, value in smaller.mask.items() for p in (~value).flatten().nonzero().flatten().tolist()}
        units = [gone for group in unit_groups(smaller.model, example(spec)) for gone in dying(group)]
        assert not dead or any(dead <= {(n, p) for n in unit for p in unit[n].tolist()} for unit in units)
        masked = copy.deepcopy(model)
        mask.apply(masked)
        x = torch.randn(6, spec.features, generator=torch.Generator().manual_seed(number))
        torch.testing.assert_close(smaller.model(x), masked(x), rtol=1e-4, atol=1e-4)
    assert live_weights(mask) == fewest
    kind, _, sizes = spec.text.rpartition(":")
    assert smaller.spec.text == f"{kind}:{','.join('1' for _ in sizes.split(','))}"


@pytest.mark.parametrize(
    ("text", "features", "fewest"),
    [
        ("mlp:300,100", 784, 784 + 1 + 10),
        ("cnn:28x28x1", 784, 64 + 16 + 16 + 10),  # 4 x 4 pixels are left of a channel
        ("mlp:project64,300,100", 784, 64 + 1 + 10),
    ],
)
def test_the_fewest_by_hand(text, features, fewest):
    assert fewest_live(build(ModelSpec(text, features, 10)), torch.zeros(1, features)) == fewest


TINY = build(ModelSpec("mlp:3", 2, 2), 0)


def nowhere() -> Mask:
    keep = dict(Mask.dense(TINY))
    keep["fc1.weight"][:2] = False
    keep["fc2.weight"][:, 2] = False
    return Mask(keep)


@pytest.mark.parametrize(
    ("mask", "live", "message"),
    [
        (Mask.dense(TINY), 3, "`prune`: 3 live weights cannot be reached by removing units: with one left in every"),
        (nowhere(), 3, "mask: no live weights lead from the inputs to the outputs; prune less"),
        (Mask.dense(build(ModelSpec("mlp:4", 2, 2))), 3, "mask fc1.weight: shape"),
    ],
)
def test_masks_and_counts_that_are_refused(mask, live, message):
    assert refused(prune_units, TINY, mask, live, torch.zeros(1, 2)).startswith(message)


def test_networks_that_are_refused():
    """Without units, with all of them normalised together, and with tied weights."""
    plain = build(ModelSpec("mlp", 3, 2), 0)
    assert refused(prune_units, plain, Mask.dense(plain), 5, torch.zeros(1, 3)).endswith("6 stay; prune less")
    normed = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    assert fewest_live(normed, torch.zeros(1, 3)) == 3 * 4 + 4 * 2
    tied = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    tied[2].weight = tied[0].weight
    said = "model: some of its parameters are one; units of tied layers cannot be removed"
    assert refused(prune_units, tied, Mask.dense(tied), 3, torch.zeros(1, 3)) == said


class Normed(nn.Module):
    """Channels that two convolutions use, behind a GroupNorm."""

    def __init__(self, channels: int = 6, groups: int = 3) -> None:
        super().__init__()
        self.enter, self.norm = nn.Conv2d(2, channels, 3), nn.GroupNorm(groups, channels)
        self.one, self.other = nn.Conv2d(channels, 3, 2), nn.Conv2d(channels, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.enter(x)).relu()
        return (self.one(x) + self.other(x)).mean((2, 3))


def test_whole_norm_groups_go_so_that_the_others_are_scaled_as_before():
    """Against a network that never had the group, with a GroupNorm of one group fewer."""
    model, smaller, generator = Normed(), Normed(4, 2), torch.Generator().manual_seed(0)
    for value in model.parameters():
        value.data.copy_(torch.randn(value.shape, generator=generator))
    model.enter.weight.data[2:4] /= 100  # the group that goes
    for layer in (model.one, model.other):
        layer.weight.data[:, 2:4] /= 100
    each = model.enter.weight[:2].numel() + 2 * model.one.weight[:, :2].numel()
    total = sum(layer.weight.numel() for layer in (model.enter, model.one, model.other))
    mask = prune_units(model, Mask.dense(model), total - each, torch.zeros(1, 2, 5, 5))
    assert [bool(one.any()) for one in mask["enter.weight"]] == [True, True, False, False, True, True]
    kept = [0, 1, 4, 5]
    state = {name: value[kept] for name, value in model.state_dict().items() if name.startswith(("enter", "norm"))}
    for name in ("one", "other"):
        state |= {f"{name}.weight": getattr(model, name).weight[:, kept], f"{name}.bias": getattr(model, name).bias}
    smaller.load_state_dict(state)
    mask.apply(model)
    x = torch.randn(4, 2, 5, 5, generator=generator)
    assert torch.allclose(model(x), smaller(x), rtol=1e-5, atol=1e-5)


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
    groups = {layer_of(group): group for group in unit_groups(model, x)}
    assert groups.keys() == users.keys()
    sizes = {name: value.shape for name, value in model.named_parameters()}
    for layer, group in groups.items():
        assert len(dying(group)) == len(model.get_submodule(layer).weight)
        for unit, gone in enumerate(dying(group)):
            alone, without = (gradients(model, x, layer, units) for units in ([unit], []))
            direct = {f"{user}.weight" for user in users[layer]}
            assert gone.keys() == {f"{layer}.weight"} | direct
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
    assert layer_of(group) == "a"
    assert {name: places.tolist() for name, places in dying(group)[1].items()} == {
        "a.weight": [4, 5, 6, 7],
        "out.weight": [1, 4],
    }


def test_a_graph_is_found_where_gradients_are_switched_off():
    with torch.no_grad():
        assert [layer_of(group) for group in unit_groups(build(ModelSpec("mlp:3", 2, 2)), torch.zeros(1, 2))]


def test_what_cannot_be_traced_is_refused():
    with pytest.raises(InputError, match=r"^model: cannot be traced to find its units: mat1 and mat2 shapes"):
        Units(nn.Sequential(nn.Linear(3, 2), nn.Linear(4, 2)), torch.zeros(1, 3), ())


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
        last = f"{len(norms) + 1}.weight"
        assert [(gone["0.weight"][::18] // 18).tolist() for gone in dying(group)] == expected
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
    found = {layer_of(group): group for group in unit_groups(Beside(4, 4, groups), torch.zeros(2, 2, 3))}
    assert [(gone["a.weight"][::2] // 2).tolist() for gone in dying(found["a"])] == expected
    outgoing = dying(found["b"])[0]["out.weight"].tolist()
    assert outgoing == [4 + unit + row for row in (0, 8) for unit in expected[0]]


@pytest.mark.parametrize("network", [Beside(4, 4, 2), Beside(3, 5, 4)], ids=["all of a layer", "across layers"])
def test_norm_groups_that_hold_their_units_back(network):
    assert list(unit_groups(network, torch.zeros(2, 2, 3))) == []
