"""Pruning by units: against a naive one that keeps sets of coordinates, by hand, and over rounds down to the fewest."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch_pruning
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpltm.compaction import compact, compact_spec
from dpltm.errors import InputError
from dpltm.masks import Mask
from dpltm.models import ModelSpec, build
from dpltm.pruning.structured import fewest_live, prune_units
from dpltm.pruning.unit_groups import positions, unit_groups

MLP, CNN = ModelSpec("mlp:6,5", 4, 3), ModelSpec("cnn:17x20x2:5,7,6", 680, 3)
SPECS = [MLP, CNN, ModelSpec("mlp:9", 5, 2)]


def network(spec: ModelSpec, seed: int) -> nn.Module:
    model = build(spec, seed)
    generator = torch.Generator().manual_seed(seed)
    for value in model.parameters():
        value.data.copy_(torch.randn(value.shape, generator=generator))
    return model


def live_weights(mask: Mask) -> int:
    return sum(int(value.sum()) for value in mask.values() if value.ndim > 1)


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
        everything = {
            (layer, row, column)
            for layer, rows in enumerate(self.weights)
            for row, values in enumerate(rows)
            for column in range(len(values))
        }
        absent = set(self.units) - set(present)
        single = [
            place
            for place in everything - self.alive
            if place[:2] not in absent and (place[0] - 1, place[2]) not in absent
            if self.last > 0
        ]
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
    weights = [value.double().tolist() for value in model.parameters() if value.ndim > 1]
    kept = [value for value in mask.values() if value.ndim > 1]
    return Naive(weights, {(n, *map(int, place)) for n, value in enumerate(kept) for place in value.nonzero()})


def coordinates(mask: Mask) -> set[Coordinate]:
    kept = [value for value in mask.values() if value.ndim > 1]
    return {(n, *map(int, place)) for n, value in enumerate(kept) for place in value.nonzero()}


few = st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5, -3.0, math.inf, math.nan])


@settings(max_examples=60, deadline=None)
@given(st.data(), st.lists(st.integers(1, 5), min_size=4, max_size=5), st.integers(0, 10**6), st.booleans())
def test_round_after_round_as_the_naive_one(data, widths, seed, ties):
    """From the dense mask, retrained every round: exactly what sets of coordinates give, to the fewest and no further."""
    spec = ModelSpec("mlp:" + ",".join(map(str, widths[1:-1])), widths[0], widths[-1])
    model, mask = network(spec, seed), None
    mask = Mask.dense(model)
    fewest = fewest_live(model, example(spec))
    while live_weights(mask) > fewest:
        model = network(spec, data.draw(st.integers(0, 10**6)))
        if ties:
            for value in model.parameters():
                value.data.copy_(
                    torch.tensor(data.draw(st.lists(few, min_size=value.numel(), max_size=value.numel()))).view(
                        value.shape
                    )
                )
        live = data.draw(st.integers(fewest, live_weights(mask) - 1))
        naive = naive_of(model, mask)
        assert naive.prune(live)
        after = prune_units(model, mask, live, example(spec))
        assert coordinates(after) == naive.alive
        assert live_weights(after) == live
        assert after.nested_in(mask)
        mask = after
    with pytest.raises(InputError):
        prune_units(model, mask, fewest - 1, example(spec))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 10**6), st.sampled_from([0.3, 0.5, 0.8]))
def test_any_mask_as_the_naive_one(data, seed, density):
    """Masks of other criteria, with weights that lead nowhere: either both get there or it is refused."""
    spec = ModelSpec("mlp:4,3", 3, 2)
    model = network(spec, seed)
    generator = torch.Generator().manual_seed(seed)
    mask = Mask(
        {
            n: torch.rand(v.shape, generator=generator) < (density if v.ndim > 1 else 2)
            for n, v in model.named_parameters()
        }
    )
    live = data.draw(st.integers(0, live_weights(mask)))
    naive = naive_of(model, mask)
    start = Naive(naive.weights, naive.alive)
    start.remove(start.useless(), 0)
    possible = len(naive.alive) == live or (start.works() and naive.prune(live))
    if not possible:
        with pytest.raises(InputError):
            prune_units(model, mask, live, example(spec))
        return
    after = prune_units(model, mask, live, example(spec))
    assert coordinates(after) == naive.alive
    assert after.nested_in(mask)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.text)
def test_nested_and_exact_from_round_to_round_and_small_for_good(spec):
    """Down to one unit a layer: counts are exact, and all but one unit at most are whole or gone."""
    model = network(spec, 0)
    mask = Mask.dense(model)
    fewest, total = fewest_live(model, example(spec)), live_weights(mask)
    for number in range(12):
        live = max(fewest, round(total * 0.7 ** (number + 1)))
        model = network(spec, number)
        before, state = mask, copy.deepcopy(model.state_dict())
        mask = prune_units(model, before, live, example(spec))
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert mask.nested_in(before)
        assert live_weights(mask) == live
        assert all(bool(value.all()) for value in mask.values() if value.ndim == 1)
        smaller = compact(model, mask, example(spec))
        dead = {(n, p) for n, value in smaller.mask.items() for p in (~value).flatten().nonzero().flatten().tolist()}
        units = [dying for group in unit_groups(positions(smaller.model), example(spec)) for dying in group.dying()]
        assert not dead or any(dead <= {(n, p) for n in unit for p in unit[n].tolist()} for unit in units)
        masked = copy.deepcopy(model)
        mask.apply(masked)
        x = torch.randn(6, spec.features, generator=torch.Generator().manual_seed(number))
        torch.testing.assert_close(smaller.model(x), masked(x), rtol=1e-4, atol=1e-4)
    assert live_weights(mask) == fewest
    assert compact_spec(spec, smaller).text == spec.text.rpartition(":")[0] + ":" + ",".join(
        "1" for _ in spec.text.rpartition(":")[2].split(",")
    )


@pytest.mark.parametrize(
    ("text", "features", "fewest"),
    [
        ("mlp:300,100", 784, 784 + 1 + 10),
        ("mlp:7", 5, 5 + 10),
        ("mlp", 784, 7840),
        ("mlp:1,1", 3, 3 + 1 + 10),
        ("cnn:28x28x1", 784, 64 + 16 + 16 + 10),  # 4 x 4 pixels are left of a channel
        ("cnn:28x28x3", 2352, 3 * 64 + 16 + 16 + 10),
        ("mlp:project64,300,100", 784, 64 + 1 + 10),
        ("mlp:project64", 784, 640),
    ],
)
def test_the_fewest_by_hand(text, features, fewest):
    assert fewest_live(build(ModelSpec(text, features, 10)), torch.zeros(1, features)) == fewest


def tiny() -> nn.Module:
    """Two inputs, three units, two outputs; norms of the units are 5, 1 and 2."""
    model = build(ModelSpec("mlp:3", 2, 2))
    with torch.no_grad():
        model.fc1.weight.copy_(torch.tensor([[3.0, 0.0], [0.5, -0.5], [1.0, -1.0]]))
        model.fc2.weight.copy_(torch.tensor([[4.0, 0.5, 1.0], [0.0, 0.5, 1.0]]))
        model.fc1.bias.copy_(torch.tensor([0.0, 100.0, 0.0]))  # counts for nothing
    return model


def test_the_least_important_by_hand():
    model, x = tiny(), torch.zeros(1, 2)
    first = prune_units(model, Mask.dense(model), 8, x)
    assert first["fc1.weight"].tolist() == [[True, True], [False, False], [True, True]]
    assert first["fc2.weight"].tolist() == [[True, False, True], [True, False, True]]
    assert first["fc1.bias"].tolist() == [True, True, True]
    second = prune_units(model, first, 4, x)
    assert second["fc1.weight"].tolist() == [[True, True], [False, False], [False, False]]
    with pytest.raises(InputError) as error:
        prune_units(model, first, 3, x)
    assert str(error.value) == (
        "`prune`: 3 live weights cannot be reached by removing units: with one left in every layer, 4 stay; prune less"
    )


def test_the_last_unit_loses_its_smallest_weights_and_goes_first_in_the_next_round():
    model, x = tiny(), torch.zeros(1, 2)
    first = prune_units(model, Mask.dense(model), 6, x)  # unit 1 is gone, and two of the four weights of 1 of unit 2
    assert first["fc1.weight"].tolist() == [[True, True], [False, False], [False, False]]
    assert first["fc2.weight"].tolist() == [[True, False, True], [True, False, True]]
    with torch.no_grad():
        model.fc1.weight[2], model.fc2.weight[:, 2] = 50.0, 50.0  # now it is the most important
    second = prune_units(model, first, 5, x)
    assert second["fc2.weight"].tolist() == [[True, False, False], [True, False, True]]
    assert prune_units(model, second, 4, x)["fc2.weight"].tolist() == [[True, False, False], [True, False, False]]


def test_importance_is_relative_to_the_layer():
    """The second layer's weights are a hundredth, but its units are alike; the first layer has one that is half the mean."""
    model = build(ModelSpec("mlp:3,3", 2, 2))
    with torch.no_grad():
        model.fc1.weight.copy_(torch.tensor([[3.0, 0.0], [3.0, 0.0], [1.0, 0.0]]))
        model.fc2.weight.fill_(0.01)
        model.fc3.weight.fill_(0.01)
    mask = prune_units(model, Mask.dense(model), 21 - 5, torch.zeros(1, 2))
    assert mask["fc1.weight"].tolist() == [[True, True], [True, True], [False, False]]
    assert mask["fc2.weight"].all(0).tolist() == [True, True, False]


def test_units_that_are_gone_do_not_lower_the_mean():
    """Norms are 1 and 1.2 in the first layer, where two are gone, and alike in the second: the 1 goes, not one of those."""
    model = build(ModelSpec("mlp:4,3", 1, 1))
    with torch.no_grad():
        for value in model.parameters():
            value.fill_(0.001)
        model.fc1.weight.copy_(torch.tensor([[9.0], [9.0], [1.2], [1.0]]))
        model.fc3.weight.fill_(0.5)
    keep = dict(Mask.dense(model))
    keep["fc1.weight"][:2] = False
    keep["fc2.weight"][:, :2] = False
    mask = prune_units(model, Mask(keep), 2 + 6 + 3 - 4, torch.zeros(1, 1))
    assert mask["fc1.weight"].flatten().tolist() == [False, False, True, False]
    assert bool(mask["fc3.weight"].all())


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.text)
def test_within_a_layer_the_order_is_that_of_torch_pruning(spec):
    """Its group magnitude, summed: the square of the norm."""
    model = network(spec, 5)
    graph = torch_pruning.DependencyGraph().build_dependency(model, example_inputs=example(spec))
    for name, module in list(model.named_children()):
        if not isinstance(module, (nn.Linear, nn.Conv2d)) or name == list(model._modules)[-1]:
            continue
        kind = "linear" if isinstance(module, nn.Linear) else "conv"
        group = graph.get_pruning_group(
            module, getattr(torch_pruning, f"prune_{kind}_out_channels"), idxs=list(range(len(module.weight)))
        )
        scores = torch_pruning.importance.GroupMagnitudeImportance(group_reduction="sum", normalizer=None)(group)
        dense, fewest = Mask.dense(model), fewest_live(model, example(spec))
        order, gone = scores.argsort().tolist(), []
        for live in range(live_weights(dense), fewest - 1, -max(1, live_weights(dense) // 100)):
            left = prune_units(model, dense, live, example(spec))[f"{name}.weight"].flatten(1).any(1)
            gone = (~left).nonzero().flatten().tolist()
            assert gone == sorted(order[: len(gone)])
        assert len(gone) >= len(module.weight) / 2


def test_equal_units_go_layer_by_layer_in_order():
    model = build(ModelSpec("mlp:4,4", 4, 4))
    with torch.no_grad():
        for value in model.parameters():
            value.fill_(-1.0)
    mask = prune_units(model, Mask.dense(model), 48 - 2 * 8 - 3, torch.zeros(1, 4))
    assert mask["fc1.weight"].any(1).tolist() == [False, False, True, True]
    assert mask["fc1.weight"][2].tolist() == [False, False, False, True]
    assert mask["fc2.weight"].all(0).tolist() == [False, False, True, True]
    assert bool(mask["fc3.weight"].all())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_units_that_are_not_finite_go_last(value):
    """And the others of their layer do not become unimportant beside them: the first layer has no unit but that to lose."""
    model = build(ModelSpec("mlp:3,3", 2, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
        model.fc1.weight[0, 0] = value
        model.fc3.weight[:, 2] = 0.1
    one = prune_units(model, Mask.dense(model), 21 - 5, torch.zeros(1, 2))
    assert one["fc3.weight"].all(0).tolist() == [True, True, False]
    least = prune_units(model, Mask.dense(model), 2 + 1 + 2, torch.zeros(1, 2))
    assert least["fc1.weight"].any(1).tolist() == [True, False, False]


def test_pruned_weights_count_as_zero_whatever_they_hold():
    model, x = tiny(), torch.zeros(1, 2)
    keep = dict(Mask.dense(model))
    keep["fc1.weight"][0, 1] = keep["fc1.weight"][1, 1] = False
    plain = prune_units(model, Mask(keep), 5, x)
    with torch.no_grad():
        model.fc1.weight[:2, 1] = torch.tensor([math.nan, 1e30])
    assert prune_units(model, Mask(keep), 5, x).same_as(plain)


def test_a_channel_takes_its_pixels_along():
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    with torch.no_grad():
        model[0].weight[1] *= 1e-3
        model[3].weight[:, 4:8] *= 1e-3
    mask = prune_units(model, Mask.dense(model), 36 - 4 - 8, torch.zeros(1, 1, 3, 3))
    assert (
        mask["0.weight"].flatten(1).all(1).tolist()
        == mask["0.weight"].flatten(1).any(1).tolist()
        == [True, False, True]
    )
    assert mask["3.weight"].tolist() == [[True] * 4 + [False] * 4 + [True] * 4] * 2


def test_what_only_a_removed_unit_touched_dies_with_it():
    """Unit 0 of the first layer feeds but unit 0 of the second, by far the least; its inputs count."""
    model = build(ModelSpec("mlp:2,2", 2, 2))
    with torch.no_grad():
        for value in model.parameters():
            value.fill_(1.0)
        model.fc2.weight[0] = model.fc3.weight[:, 0] = 1e-3
    keep = dict(Mask.dense(model))
    keep["fc2.weight"][1, 0] = keep["fc2.weight"][0, 1] = False
    mask = prune_units(model, Mask(keep), 2 + 1 + 2, torch.zeros(1, 2))
    assert mask["fc1.weight"].any(1).tolist() == [False, True]
    assert mask["fc3.weight"].any(0).tolist() == [False, True]


def test_a_projection_is_neither_counted_nor_pruned():
    spec = ModelSpec("mlp:project4,5,3", 6, 2)
    model = network(spec, 1)
    mask = prune_units(model, Mask.dense(model), fewest_live(model, example(spec)), example(spec))
    assert bool(mask["project.weight"].all())
    assert live_weights(mask) == 6 * 4 + 4 + 1 + 2
    assert mask["fc1.weight"].all(1).sum() == 1


def test_all_that_is_there_stays_as_it_is():
    model = tiny()
    assert prune_units(model, Mask.dense(model), 12, torch.zeros(1, 2)).same_as(Mask.dense(model))


def test_more_than_is_there_is_refused():
    model = tiny()
    with pytest.raises(InputError) as error:
        prune_units(model, Mask.dense(model), 13, torch.zeros(1, 2))
    assert str(error.value) == "`prune`: 13 live weights are asked for, but only 12 are live now; ask for fewer"


def test_a_network_without_units_is_refused():
    model = build(ModelSpec("mlp", 3, 2), 0)
    with pytest.raises(InputError, match=r"^`prune`: 5 live weights cannot be reached .* 6 stay; prune less$"):
        prune_units(model, Mask.dense(model), 5, torch.zeros(1, 3))


def test_a_mask_that_leads_nowhere_is_refused():
    model = tiny()
    keep = dict(Mask.dense(model))
    keep["fc1.weight"][:2] = False
    keep["fc2.weight"][:, 2] = False
    with pytest.raises(InputError) as error:
        prune_units(model, Mask(keep), 3, torch.zeros(1, 2))
    assert str(error.value) == (
        "mask: no live weights lead from the inputs through every layer to the outputs; prune less before"
    )


def test_a_mask_of_another_network_is_refused():
    with pytest.raises(InputError, match=r"^mask fc1.weight: shape"):
        prune_units(tiny(), Mask.dense(build(ModelSpec("mlp:4", 2, 2))), 3, torch.zeros(1, 2))


def test_normalisation_layers_and_tied_weights_are_refused():
    normed = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    with pytest.raises(InputError) as error:
        fewest_live(normed, torch.zeros(1, 3))
    assert str(error.value) == (
        "model: 1 is a normalisation layer; with units removed its statistics would change, so its units cannot be removed"
    )
    tied = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    tied[2].weight = tied[0].weight
    with pytest.raises(InputError) as error:
        prune_units(tied, Mask.dense(tied), 3, torch.zeros(1, 3))
    assert str(error.value) == (
        "model: 0.weight and 2.weight are one and the same; units of tied layers cannot be removed"
    )
