"""Phase 1 on a toy network, against an independent loop with gradients, masks and dropout by hand."""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dpltm.criteria import CRITERIA, DATA_FREE, DP_CRITERIA
from dpltm.errors import Interrupted
from dpltm.networks import ModelSpec, build
from dpltm.networks.evaluation import accuracy
from dpltm.networks.masks import Mask
from dpltm.options.generate import GenerateOptions
from dpltm.privacy.checkpoint import Checkpoint
from dpltm.pruning.generation import (
    Tickets,
    generate,
    make_schedule,
    prune_once,
    pruning_rates,
    shuffled_batches,
    without_data,
)
from refusals import refused
from tensors import same_tensors

SPEC = ModelSpec("mlp:8,6", 5, 3)
CONFIG = GenerateOptions(rounds=3, prune=(0.3, 0.3, 0.2), iterations=30, batch_size=12, lr=0.2, seed=11, scope="layer")
LATE = replace(CONFIG, rounds=2, rewind=7)
# 40, 48 and 18 weights; round(40 * 0.3) = 12 go, then round(28 * 0.3) = 8, then round(20 * 0.3) = 6, and so on.
LIVE = {"fc1.weight": [40, 28, 20, 14], "fc2.weight": [48, 34, 24, 17], "fc3.weight": [18, 14, 11, 9]}
BIASES = 8 + 6 + 3
both_scopes = pytest.mark.parametrize("scope", ["layer", "global"])


def toy_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(40, 5, generator=generator)
    return x, (x @ torch.randn(5, 3, generator=generator)).argmax(1)


def made(config: GenerateOptions = CONFIG, **options: object) -> Tickets:
    return generate(SPEC, toy_data(), config, **options)


@pytest.fixture(scope="module")
def tickets() -> Tickets:
    return made()


def prunable(mask: Mask) -> dict[str, Tensor]:
    return {name: keep for name, keep in mask.items() if keep.ndim == 2}


def live_counts(mask: Mask) -> dict[str, int]:
    return {name: int(keep.sum()) for name, keep in prunable(mask).items()}


def same_masks(first: Tickets, second: Tickets) -> list[bool]:
    return [same_tensors(one.mask, two.mask) for one, two in zip(first.tickets, second.tickets, strict=True)]


def same_predictors(first: Tickets, second: Tickets) -> list[bool]:
    return [same_tensors(one.predictor, two.predictor) for one, two in zip(first.tickets, second.tickets, strict=True)]


def are_the_largest(mask: Mask, values: Mapping[str, Tensor], among: Mask, scope: str) -> bool:
    """Whether live weights are the largest by size of those that ``among`` has, by sorting Python numbers."""
    size = {
        (name, place): abs(value)
        for name, keep in prunable(among).items()
        for place, value in enumerate(values[name].flatten().tolist())
        if keep.flatten()[place]
    }
    live = {(name, at) for name, keep in prunable(mask).items() for at in keep.flatten().nonzero()[:, 0].tolist()}
    for names in [list(LIVE)] if scope == "global" else [[name] for name in LIVE]:
        ours = {at for at in live if at[0] in names}
        if ours != set(sorted((at for at in size if at[0] in names), key=lambda at: -size[at])[: len(ours)]):
            return False
    return True


# --- rounds ---


def by_hand(config: GenerateOptions, masks: Iterable[Mask], rewinds: bool) -> list[list[Tensor]]:
    """theta0, and the weights at the end of every round."""
    x, y = toy_data()
    batches = shuffled_batches(40, config.batch_size, torch.Generator().manual_seed(config.seed + 2**32))

    def train(start: list[Tensor], mask: list[Tensor], steps: int) -> list[Tensor]:
        values = [(value * keep).detach().requires_grad_() for value, keep in zip(start, mask, strict=True)]
        for index in itertools.islice(batches, steps):
            first, first_bias, second, second_bias, last, last_bias = values
            hidden = functional.linear(functional.linear(x[index], first, first_bias).relu(), second, second_bias)
            hidden = hidden.relu()
            loss = functional.nll_loss(functional.linear(hidden, last, last_bias).log_softmax(1), y[index])
            with torch.no_grad():
                for value, gradient, keep in zip(values, torch.autograd.grad(loss, values), mask, strict=True):
                    value -= config.lr * gradient * keep
        return [value.detach() for value in values]

    drawn = list(build(SPEC, config.seed).parameters())
    found = [train(drawn, [torch.ones_like(value) for value in drawn], config.rewind)]
    for mask in masks:
        found.append(train(found[0 if rewinds else -1], list(mask.values()), config.iterations - config.rewind))
    return found


def farthest(given: Mapping[str, Tensor], expected: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(given.values(), expected, strict=True))


@pytest.mark.parametrize("config", [CONFIG, LATE], ids=str)
def test_every_round_is_that_of_an_independent_loop(config):
    """Of weights of both signs: a peer froze by ``weight < threshold`` instead of by mask, so all negative ones."""
    found = made(config)
    masks = [ticket.mask for ticket in found.tickets]
    theta0, *predictors = by_hand(config, masks, rewinds=True)
    assert farthest(found.theta0, theta0) < 1e-5
    if not config.rewind:
        assert same_tensors(found.theta0, dict(build(SPEC, CONFIG.seed).named_parameters()))
    for ticket, expected in zip(found.tickets, predictors, strict=True):
        assert farthest(ticket.predictor, expected) < 1e-4
        assert all((ticket.predictor[name][keep] != 0).all() for name, keep in prunable(ticket.mask).items())
    # the comparison would notice a peer's bug, a rewind that did not happen
    assert farthest(found.tickets[2].predictor, by_hand(config, masks, rewinds=False)[3]) > 0.01


@both_scopes
def test_each_mask_drops_what_is_smallest_in_the_round_before_by_the_schedule(scope):
    found = made(replace(CONFIG, scope=scope))
    assert [ticket.round for ticket in found.tickets] == [0, 1, 2, 3]
    assert [ticket.accuracy for ticket in found.tickets] == [None] * 4
    assert found.tickets[0].mask.density == 1.0
    for number, ticket in enumerate(found.tickets):
        expected = {name: live[number] for name, live in LIVE.items()}
        assert ticket.mask.live == sum(expected.values()) + BIASES
        assert (live_counts(ticket.mask) == expected) == (scope == "layer" or number == 0)
    for before, after in itertools.pairwise(found.tickets):
        assert after.mask.nested_in(before.mask)
        assert are_the_largest(after.mask, before.predictor, before.mask, scope)


def test_the_seed_decides_every_bit_and_no_record_or_random_state_changes(tickets):
    x, y = toy_data()
    torch.manual_seed(99)
    before = torch.get_rng_state()
    again = generate(SPEC, (x, y), CONFIG)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(x, toy_data()[0])
    assert torch.equal(y, toy_data()[1])
    other = made(replace(CONFIG, seed=2**62 - 1))  # the largest
    assert same_predictors(tickets, again) == same_masks(tickets, again) == [True] * 4
    assert same_predictors(tickets, other) == [False] * 4
    assert not same_tensors(tickets.theta0, other.theta0)
    assert not any(same_masks(tickets, other)[1:])


def test_training_learns_something_and_accuracies_are_of_the_predictors():
    x, y = toy_data()
    held_out = (x[:7].flip(0), y[:7].flip(0))
    config = GenerateOptions(rounds=1, prune=(0.3,), iterations=100, batch_size=20, lr=0.2, seed=0).for_records(1000)
    found = generate(SPEC, (x, y), config, held_out)
    model = build(SPEC)
    for ticket in found.tickets:
        model.load_state_dict(ticket.predictor)
        predicted = [row.index(max(row)) for row in model(held_out[0]).tolist()]
        assert ticket.accuracy == sum(p == label for p, label in zip(predicted, held_out[1].tolist(), strict=True)) / 7
    model.load_state_dict(found.tickets[0].predictor)
    assert accuracy(model, x, y) > 0.9
    model.load_state_dict(found.theta0)
    assert accuracy(model, x, y) < 0.8


def test_batches_go_through_shuffled_epochs_and_leave_a_short_rest_out():
    batches = shuffled_batches(10, 4, torch.Generator().manual_seed(0))
    seen = set()
    for _ in range(50):
        epoch = [next(batches), next(batches)]
        assert [len(batch) for batch in epoch] == [4, 4]
        records = torch.cat(epoch).tolist()
        assert len(set(records)) == 8
        seen.add(tuple(records))
    assert len(seen) == 50, "epochs are not shuffled anew"
    assert {record for epoch in seen for record in epoch} == set(range(10))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"rounds": 9, "prune": (0.6,)},
            "`rounds`: round 4 of 9 would empty layer 3 (of 18 weights); ask for fewer",
        ),
        ({"batch_size": 41}, "`batch_size`: 41 "),
    ],
)
def test_impossible_schedules_are_refused_before_any_training(options, message):
    steps: list[int] = []
    told = refused(made, replace(CONFIG, **options), progress=lambda done, _: steps.append(done))
    assert told.startswith(message)
    assert steps == []


@pytest.mark.parametrize(("field", "value"), [("rounds", 10_000), ("rewind", 30)])
def test_bad_configurations(field, value):
    assert refused(replace, CONFIG, **{field: value}).startswith(f"`{field}`: ")


@pytest.mark.parametrize("rewind", [0, 20])
def test_a_training_that_diverged_gives_no_tickets(rewind):
    """Magnitudes that are no numbers order nothing."""
    assert refused(made, replace(CONFIG, lr=1e30, rewind=rewind)).startswith("`lr`: the training diverged")
    theta0 = dict(build(SPEC, CONFIG.seed).named_parameters())
    trained = {name: value.detach() * math.inf for name, value in theta0.items()}
    assert refused(prune_once, SPEC, theta0, trained, CONFIG).startswith("`lr`: the training diverged")


@pytest.mark.one_of(2)
@both_scopes
@pytest.mark.parametrize("criterion", DATA_FREE)
def test_without_data_gives_what_any_data_would(criterion, scope):
    """Masks and theta0 of a data-free criterion are the same on every record there may be; late rewinding looks at
    weights before training."""
    config = replace(CONFIG, rounds=2, criterion=criterion, scope=scope)
    free, (x, y) = without_data(SPEC, config), toy_data()
    assert same_tensors(free.theta0, dict(build(SPEC, CONFIG.seed).named_parameters()))
    assert [(ticket.predictor, ticket.accuracy) for ticket in free.tickets] == [(None, None)] * 3
    for records in ((x, y), (-9 * x[:20], 2 - y[:20]), (torch.zeros(12, 5), torch.zeros(12, dtype=torch.int64))):
        found = generate(SPEC, records, config)
        assert same_tensors(found.theta0, free.theta0)
        assert same_masks(found, free) == [True] * 3
    for before, after in itertools.pairwise(free.tickets):
        assert after.mask.nested_in(before.mask)
    assert all(same_masks(free, without_data(SPEC, replace(config, iterations=1, batch_size=10**6, lr=5.0))))
    assert not any(same_masks(free, without_data(SPEC, replace(config, seed=12)))[1:])
    if criterion == "init-magnitude":
        assert same_masks(made(replace(config, rewind=7)), free) == [True] * 3
        assert all(are_the_largest(t.mask, free.theta0, free.tickets[0].mask, scope) for t in free.tickets)


@both_scopes
def test_random_is_even_over_layers_and_within_them(scope):
    """30 % of 100,000 weights at random: any part of them loses as many as a hypergeometric draw, within 5 sigma."""
    spec = ModelSpec("mlp:200,200", 200, 100)
    found = without_data(spec, replace(CONFIG, rounds=1, prune=(0.3,), criterion="random", scope=scope))
    total, dropped = 100_000, 30_000
    for keep in prunable(found.tickets[1].mask).values():
        size = keep.numel()
        for part in (keep, keep[: len(keep) // 2], keep[:, ::2], keep[::7], keep[:, :20]):
            n = part.numel()
            lost, (pool, gone) = n - int(part.sum()), (size, 0.3 * size) if scope == "layer" else (total, dropped)
            variance = n * (gone / pool) * (1 - gone / pool) * (pool - n) / (pool - 1)
            assert abs(lost - n * gone / pool) <= 5 * math.sqrt(variance) + 0.5
    first, second = (found.tickets[1].mask[f"fc{number}.weight"] for number in (1, 2))
    assert 0.5 < (first == second).float().mean() < 0.66  # 0.7^2 + 0.3^2 = 0.58: layers have orders of their own


@both_scopes
def test_pruning_one_network_in_turn_gives_copies_of_what_is_largest(tickets, scope):
    theta0, trained = tickets.theta0, {name: value.clone() for name, value in tickets.tickets[0].predictor.items()}
    trained["fc1.weight"][0, 0] = -99.0  # negative, and the largest
    before = [{name: value.clone() for name, value in given.items()} for given in (theta0, trained)]
    found = prune_once(SPEC, theta0, trained, replace(CONFIG, scope=scope))
    assert same_tensors(found.theta0, before[0])
    assert [(ticket.round, ticket.accuracy) for ticket in found.tickets] == [(number, None) for number in range(4)]
    for number, ticket in enumerate(found.tickets):
        assert ticket.mask.live == sum(live[number] for live in LIVE.values()) + BIASES
        assert are_the_largest(ticket.mask, trained, found.tickets[0].mask, scope)
        for name, keep in ticket.mask.items():
            assert torch.equal(ticket.predictor[name], torch.where(keep, trained[name], 0.0))
            ticket.predictor[name].fill_(5.0)
    assert found.tickets[3].mask["fc1.weight"][0, 0]
    assert same_tensors(theta0, before[0])
    assert same_tensors(trained, before[1])


@both_scopes
@pytest.mark.parametrize("criterion", ["magnitude", *DATA_FREE])
def test_a_projection_is_never_pruned_and_counts(criterion, scope):
    """mlp:project16,20,10 on 12 features: 192 weights in front, 320, 200 and 30 behind, of which 30, 30 and 20 % go."""
    spec = ModelSpec("mlp:project16,20,10", 12, 3)
    config = replace(CONFIG, rounds=2, prune=None, iterations=3, criterion=criterion, scope=scope)
    assert pruning_rates(spec, config) == {"fc1.weight": 0.3, "fc2.weight": 0.3, "fc3.weight": 0.2}
    assert make_schedule(spec, config) == (
        {"fc1.weight": 320, "fc2.weight": 200, "fc3.weight": 30},
        {"fc1.weight": 224, "fc2.weight": 140, "fc3.weight": 24},
        {"fc1.weight": 157, "fc2.weight": 98, "fc3.weight": 19},  # 67.2, 42 and 4.8 go
    )
    densities = (1.0, (192 + 388) / 742, (192 + 274) / 742)
    records = torch.randn(40, 12, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
    sets = [generate(spec, records, config)]
    if criterion in DATA_FREE:
        sets.append(without_data(spec, config))
    sets.append(prune_once(spec, sets[0].theta0, sets[0].theta0, replace(config, criterion="magnitude")))
    for found in sets:
        for ticket, live, density in zip(found.tickets, (550, 388, 274), densities, strict=True):
            assert bool(ticket.mask["project.weight"].all())
            assert sum(live_counts(ticket.mask).values()) == 192 + live
            assert ticket.mask.density == density


class Lazy:
    """Rows as a protocol asks for them, and no tensor; how many were read at once is kept."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.most = x, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        self.most = max(self.most, len(self.x[index]))
        return self.x[index].clone()


@pytest.mark.parametrize("criterion", sorted({*CRITERIA} - {*DP_CRITERIA}))
def test_rows_that_are_made_ready_as_they_are_read(criterion):
    config = replace(CONFIG, rounds=2, prune=(0.2,), criterion=criterion)
    (x, y), lazy = toy_data(), Lazy(toy_data()[0])
    found, same = generate(SPEC, (lazy, y), config), generate(SPEC, (x, y), config)
    assert lazy.most == CONFIG.batch_size, "never more than a batch"
    assert same_masks(found, same) == same_predictors(found, same) == [True] * 3
    model = build(SPEC)
    model.load_state_dict(found.tickets[-1].predictor)
    assert accuracy(model, lazy, y) == accuracy(model, x, y)


class Kept:
    """Checkpoints in memory: ends the work at the nth offer, with what is held then."""

    def __init__(self, stop: int, latest: Checkpoint | None = None) -> None:
        self.latest, self._left = latest, stop

    def keep(self, _: Checkpoint) -> None:
        raise AssertionError

    def offer(self, make, **_) -> bool:
        self._left -= 1
        if self._left == 0:
            made = make()
            self.latest = replace(made, tensors={name: value.copy() for name, value in made.tensors.items()})
            raise Interrupted
        return False

    def forget(self) -> None:
        raise AssertionError


@pytest.mark.parametrize("config", [CONFIG, LATE], ids=str)
def test_rounds_go_on_to_the_same_bits(config):
    """Interrupted at every place where they may be; rounds that were done are not trained again."""
    x, y = toy_data()
    whole = generate(SPEC, (x, y), config, (x, y))
    places, steps = [], []
    for stop in itertools.count(1):
        checkpoints = Kept(stop)
        try:
            generate(SPEC, (x, y), config, (x, y), checkpoints=checkpoints)
            break
        except Interrupted:
            places.append(checkpoints.latest.place)
        first, told = len(checkpoints.latest.state["scores"]), list[int]()
        again = Kept(0, checkpoints.latest)
        last = generate(SPEC, (x, y), config, (x, y), lambda done, _, told=told: told.append(done), again)
        steps.append((first, told[0] > config.steps_of(first)))
        assert same_tensors(last.theta0, whole.theta0)
        assert same_predictors(last, whole) == same_masks(last, whole) == [True] * (config.rounds + 1)
        assert [ticket.accuracy for ticket in last.tickets] == [ticket.accuracy for ticket in whole.tickets]
    assert set(places) == {f"round {number}" for number in range(config.rounds + 1)}
    assert set(steps) == {(number, True) for number in range(config.rounds + 1)}
