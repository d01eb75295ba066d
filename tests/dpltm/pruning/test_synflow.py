"""SynFlow: scores by adding up paths one by one, the paper's conservation law, and no layer that is cut off."""

import itertools

import pytest
import torch
from torch import nn

from dpltm.criteria import PruningRound
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.options.generate import GenerateOptions
from dpltm.pruning.generation import make_schedule, weights_of, without_data
from dpltm.pruning.unstructured import by_flow, keep_topk, synflow_scores
from tensors import same_tensors

SPEC = ModelSpec("mlp:4,3", 5, 2)
EXAMPLE = torch.full((1, 5), 7.0)  # its values must not matter


def network(spec: ModelSpec, seed: int, part: float = 1.0) -> tuple[nn.Module, dict[str, torch.Tensor], Mask]:
    """A network with biases of any size, its weights, and a mask with that part of the weights."""
    model, generator = build(spec, seed), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim == 1:
                value.normal_(generator=generator)
    parts = {name: (value.shape, part if value.ndim > 1 else 1) for name, value in model.named_parameters()}
    mask = Mask({name: torch.rand(shape, generator=generator) < kept for name, (shape, kept) in parts.items()})
    return model, weights_of(model), mask


def by_paths(weights: dict[str, torch.Tensor], mask: Mask) -> dict[str, torch.Tensor]:
    """For each weight the sum over all paths through it of the product of absolute live weights along the path."""
    layers = [name for name, value in weights.items() if value.ndim == 2]
    live = [(weights[name].double().abs() * mask[name]).tolist() for name in layers]
    scores = {name: torch.zeros_like(weights[name], dtype=torch.float64) for name in layers}
    sizes = [len(live[0][0]), *(len(layer) for layer in live)]
    for path in itertools.product(*(range(size) for size in sizes)):
        product = 1.0
        for layer, (source, target) in zip(live, itertools.pairwise(path), strict=True):
            product *= layer[target][source]
        for name, (source, target) in zip(layers, itertools.pairwise(path), strict=True):
            scores[name][target, source] += product
    return scores


@pytest.mark.parametrize(("seed", "part"), [(0, 1.0), (1, 0.6), (2, 0.3)])
def test_scores_are_sums_over_paths(seed, part):
    model, weights, mask = network(SPEC, seed, part)
    scores = synflow_scores(model, weights, mask, EXAMPLE)
    expected = by_paths(weights, mask)
    assert scores.keys() == expected.keys()
    for name, value in expected.items():
        assert scores[name].dtype == torch.float64
        torch.testing.assert_close(scores[name], value, rtol=1e-12, atol=0)
        assert (scores[name][~mask[name]] == 0).all()


def test_the_network_and_its_weights_stay():
    model, weights, mask = network(SPEC, 5)
    other = {name: value * 2 for name, value in weights.items()}
    before = weights_of(model)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    scores = synflow_scores(model, other, mask, EXAMPLE)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    assert all(value.grad is None and value.dtype == torch.float32 for value in model.parameters())
    assert all(torch.equal(other[name], weights[name] * 2) for name in weights)
    # of the weights that are given, not of the model's: three layers twice as strong carry eight times the flow
    once = synflow_scores(model, weights, mask, EXAMPLE)
    for name in scores:
        torch.testing.assert_close(scores[name], 8 * once[name], rtol=1e-12, atol=0)


def steps_by_hand(weights, mask, live, scope):
    """Ten times: paths are added up anew, and the lowest go, towards ``live`` in equal ratios, by layer or in sum."""
    start = {name: int(mask[name].sum()) for name in live}
    before, after = sum(start.values()), sum(live.values())
    for step in range(1, 11):
        now = {name: round(start[name] * (count / start[name]) ** (step / 10)) for name, count in live.items()}
        if scope == "global":
            now = dict.fromkeys(live, 1) | {"fc1.weight": round(before * (after / before) ** (step / 10)) - 2}
        mask = keep_topk(by_paths(weights, mask), mask, now, scope)
    return mask


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_ten_steps_with_fresh_scores(scope):
    differ = 0
    for seed in range(2):
        model, weights, mask = network(SPEC, seed)
        live = {"fc1.weight": 6, "fc2.weight": 5, "fc3.weight": 3}
        after = by_flow(PruningRound(model, weights, mask, live, scope, EXAMPLE, 0))
        assert same_tensors(after, steps_by_hand(weights, mask, live, scope))
        assert after.nested_in(mask)
        differ += not same_tensors(after, keep_topk(by_paths(weights, mask), mask, live, scope))
    assert differ > 0, "one step would do the same on these networks: the comparison shows nothing"


def test_convolutions():
    """R is homogeneous in the weights of each layer, maxima included: scores of any layer add up to it."""
    spec = ModelSpec("cnn:14x14x2", 14 * 14 * 2, 3)
    model, weights, mask = network(spec, 1, 0.8)
    scores = synflow_scores(model, weights, mask, torch.zeros(1, spec.features))
    totals = [float(value.sum()) for value in scores.values()]
    assert len(totals) == 4
    assert totals == pytest.approx([totals[0]] * 4, rel=1e-10)
    plain = build(spec).double()
    with torch.no_grad():
        for name, value in plain.named_parameters():
            value.copy_(weights[name].abs() * mask[name] if value.ndim > 1 else torch.zeros_like(value))
        assert totals[0] == pytest.approx(float(plain(torch.ones(1, spec.features).double()).sum()), rel=1e-10)
    live = {name: int(mask[name].sum()) // 4 for name in scores}
    after = by_flow(PruningRound(model, weights, mask, live, "global", torch.zeros(1, spec.features), 0))
    assert sum(int(after[name].sum()) for name in scores) == sum(live.values())
    assert after.nested_in(mask)


@pytest.mark.parametrize(("text", "prune", "rounds"), [("mlp:16", (0.05, 0.6), 3), ("mlp:12,9", (0.1, 0.5, 0.3), 4)])
def test_global_scope_keeps_to_the_schedule_where_layers_have_left_it(text, prune, rounds):
    """Flow soon sits elsewhere than the schedule of layers has it: the numbers still count in sum, as documented."""
    spec = ModelSpec(text, 64, 10)
    config = GenerateOptions(criterion="synflow", scope="global", rounds=rounds, prune=prune).for_records(1000)
    made = without_data(spec, config)
    found = [sum(int(keep.sum()) for keep in ticket.mask.values() if keep.ndim > 1) for ticket in made.tickets]
    assert found == [sum(live.values()) for live in make_schedule(spec, config)]


@pytest.mark.parametrize("text", ["embed:6:3,4", "embed-pad:6:3,4", "embed-pad-tanh:6:3,4"])
def test_a_table_is_a_layer_of_as_many_inputs_as_it_has_rows(text):
    """For ones at all of them it gives the sum of its rows, at every position: paths lead through it as through an mlp."""
    model, weights, mask = network(ModelSpec(text, 5, 2), 2, 0.7)
    table = next(iter(weights))
    scores = synflow_scores(model, weights, mask, torch.zeros(1, 5))
    rows = {"fc1.weight": weights[table].T, "fc2.weight": weights["fc1.weight"], "fc3.weight": weights["fc2.weight"]}
    keep = {"fc1.weight": mask[table].T, "fc2.weight": mask["fc1.weight"], "fc3.weight": mask["fc2.weight"]}
    expected = by_paths(rows, Mask(keep))
    assert bool(scores[table].any())
    torch.testing.assert_close(scores[table], expected["fc1.weight"].T)
    torch.testing.assert_close(scores["fc1.weight"], expected["fc2.weight"])
    torch.testing.assert_close(scores["fc2.weight"], expected["fc3.weight"])
