"""Phase 1 on a toy network, against an independent loop with torch.optim and masks by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.evaluation import accuracy, count_correct
from dpltm.generation import (
    GenerationConfig,
    Tickets,
    generate,
    make_schedule,
    prune_once,
    pruning_rates,
    scheduled_densities,
    train_dense,
    without_data,
)
from dpltm.masks import Mask
from dpltm.models import ModelSpec, build
from dpltm.plain_training import batches_of, dropping
from dpltm.pruning import DATA_FREE, PLAIN_CRITERIA

SPEC = ModelSpec("mlp:8,6", 5, 3)
CONFIG = GenerationConfig(rounds=3, prune=(0.3, 0.3, 0.2), iterations=30, batch_size=12, lr=0.2, seed=11)
# 40, 48 and 18 weights; round(40 * 0.3) = 12 go, then round(28 * 0.3) = 8, then round(20 * 0.3) = 6, and so on.
LIVE = {"fc1.weight": [40, 28, 20, 14], "fc2.weight": [48, 34, 24, 17], "fc3.weight": [18, 14, 11, 9]}
BIASES = 8 + 6 + 3


def toy_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(40, 5, generator=generator)
    return x, (x @ torch.randn(5, 3, generator=generator)).argmax(1)


@pytest.fixture(scope="module")
def tickets() -> Tickets:
    return generate(SPEC, *toy_data(), CONFIG)


def prunable(mask: Mask) -> dict[str, Tensor]:
    return {name: keep for name, keep in mask.items() if keep.ndim == 2}


def same_bits(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_one_ticket_per_round_and_the_dense_one(tickets):
    assert [ticket.round for ticket in tickets.tickets] == [0, 1, 2, 3]
    assert tickets.tickets[0].mask.density == 1.0
    assert tickets.spec == SPEC
    assert [ticket.accuracy for ticket in tickets.tickets] == [None] * 4


def test_counts_are_those_of_the_schedule_and_masks_are_nested(tickets):
    for number, ticket in enumerate(tickets.tickets):
        assert {name: int(keep.sum()) for name, keep in prunable(ticket.mask).items()} == {
            name: live[number] for name, live in LIVE.items()
        }
        assert ticket.mask.live == sum(live[number] for live in LIVE.values()) + BIASES
    for sparser, denser in zip(tickets.tickets[1:], tickets.tickets[:-1], strict=True):
        assert sparser.mask.nested_in(denser.mask)
        assert not denser.mask.nested_in(sparser.mask)


def test_theta0_is_the_initialisation_of_the_seed(tickets):
    assert same_bits(tickets.theta0, dict(build(SPEC, CONFIG.seed).named_parameters()))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_dense_network_alone_is_that_of_the_first_round(dropout):
    whole = generate(SPEC, *toy_data(), CONFIG, dropout=dropout).tickets[0]
    alone = train_dense(SPEC, *toy_data(), CONFIG, dropout=dropout)
    assert same_bits(alone.predictor, whole.predictor)
    assert (alone.round, alone.mask.density) == (0, 1.0)


def test_pruned_weights_of_the_predictors_are_exactly_zero(tickets):
    for ticket in tickets.tickets[1:]:
        for name, keep in prunable(ticket.mask).items():
            assert ticket.predictor[name][~keep].count_nonzero() == 0
            assert (ticket.predictor[name][keep] != 0).all()


def independent_rounds(tickets: Tickets, rewind: bool = True) -> list[dict[str, Tensor]]:
    """Predictors by plain PyTorch: torch.optim.SGD, weights and gradients masked by multiplication."""
    x, y = toy_data()
    batches = batches_of(40, CONFIG.batch_size, torch.Generator().manual_seed(CONFIG.seed + 2**32))
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    predictors = []
    for number, ticket in enumerate(tickets.tickets):
        masks = list(ticket.mask.values())
        for parameter, start, keep in zip(model.parameters(), tickets.theta0.values(), masks, strict=True):
            parameter.data = (start if rewind or number == 0 else parameter.detach()).clone() * keep
        optimizer = torch.optim.SGD(model.parameters(), lr=CONFIG.lr)
        for index in itertools.islice(batches, CONFIG.iterations):
            optimizer.zero_grad()
            functional.nll_loss(model(x[index]).log_softmax(1), y[index]).backward()
            for parameter, keep in zip(model.parameters(), masks, strict=True):
                parameter.grad *= keep
            optimizer.step()
        values = [parameter.detach().clone() for parameter in model.parameters()]
        predictors.append(dict(zip(ticket.predictor, values, strict=True)))
    return predictors


def test_predictors_are_those_of_an_independent_loop_that_rewinds_to_theta0(tickets):
    expected, no_rewind = independent_rounds(tickets), independent_rounds(tickets, rewind=False)
    for ticket, values in zip(tickets.tickets, expected, strict=True):
        for name, value in values.items():
            torch.testing.assert_close(ticket.predictor[name], value, rtol=1e-4, atol=1e-5)
    # the comparison above would notice a peer's bug, a rewind that did not happen
    assert (tickets.tickets[2].predictor["fc1.weight"] - no_rewind[2]["fc1.weight"]).abs().max() > 0.01


def test_masks_are_those_of_the_predictors_smallest_weights(tickets):
    """Each mask drops what is smallest in the round before, found by sorting Python numbers."""
    for before, after in itertools.pairwise(tickets.tickets):
        for name, keep in prunable(before.mask).items():
            sizes = before.predictor[name].abs().flatten().tolist()
            alive = [position for position, flag in enumerate(keep.flatten().tolist()) if flag]
            count = int(after.mask[name].sum())
            largest = sorted(alive, key=lambda position, sizes=sizes: -sizes[position])[:count]
            assert sorted(largest) == after.mask[name].flatten().nonzero().squeeze(1).tolist()


def test_training_starts_at_theta0_times_the_mask_bit_for_bit():
    """With a step size too small to change any weight, the predictor is where the round started."""
    still = GenerationConfig(rounds=3, prune=(0.3,), iterations=2, batch_size=12, lr=1e-30, seed=11)
    result = generate(SPEC, *toy_data(), still)
    for ticket in result.tickets:
        for name, keep in prunable(ticket.mask).items():
            assert torch.equal(ticket.predictor[name], torch.where(keep, result.theta0[name], 0.0))


def test_negative_weights_train_as_positive_ones_do(tickets):
    """Regression of a peer: it froze weights by ``weight < threshold`` instead of by mask, so all negative ones."""
    for ticket in tickets.tickets:
        for name, keep in prunable(ticket.mask).items():
            start = tickets.theta0[name][keep]
            moved = (ticket.predictor[name][keep] - start).abs() > 1e-6
            for sign in (start < 0, start > 0):
                assert moved[sign].float().mean() > 0.6


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tickets):
    again = generate(SPEC, *toy_data(), CONFIG)
    other = generate(
        SPEC,
        *toy_data(),
        GenerationConfig(rounds=3, prune=(0.3, 0.3, 0.2), iterations=30, batch_size=12, lr=0.2, seed=12),
    )
    for first, second, third in zip(tickets.tickets, again.tickets, other.tickets, strict=True):
        assert first.mask.same_as(second.mask)
        assert same_bits(first.predictor, second.predictor)
        assert not same_bits(first.predictor, third.predictor)
    assert not same_bits(tickets.theta0, other.theta0)
    assert not tickets.tickets[1].mask.same_as(other.tickets[1].mask)


def test_global_random_state_is_neither_read_nor_changed(tickets):
    torch.manual_seed(99)
    before = torch.get_rng_state()
    again = generate(SPEC, *toy_data(), CONFIG)
    assert torch.equal(torch.get_rng_state(), before)
    assert same_bits(again.tickets[3].predictor, tickets.tickets[3].predictor)


def test_the_records_stay_as_they_were():
    x, y = toy_data()
    generate(SPEC, x, y, GenerationConfig(rounds=1, prune=(0.3,), iterations=3, batch_size=12))
    assert torch.equal(x, toy_data()[0])
    assert torch.equal(y, toy_data()[1])


def test_training_learns_something_and_accuracies_are_of_the_predictors():
    x, y = toy_data()
    config = GenerationConfig(rounds=1, prune=(0.3,), iterations=100, batch_size=20, lr=0.2, seed=0)
    held_out = (x[:7].flip(0), y[:7].flip(0))
    result = generate(SPEC, x, y, config, held_out)
    model = build(SPEC)
    for ticket in result.tickets:
        model.load_state_dict(ticket.predictor)
        predicted = [row.index(max(row)) for row in model(held_out[0]).tolist()]
        assert ticket.accuracy == sum(p == label for p, label in zip(predicted, held_out[1].tolist(), strict=True)) / 7
    model.load_state_dict(result.tickets[0].predictor)
    assert accuracy(model, x, y) > 0.9
    model.load_state_dict(result.theta0)
    assert accuracy(model, x, y) < 0.8


@pytest.mark.parametrize("chunk", [1, 7, 40, 4096])
def test_counting_in_chunks(chunk):
    x, y = toy_data()
    model = build(SPEC, 0)
    assert count_correct(model, x, y, chunk) == sum(
        int(model(row[None]).argmax()) == label for row, label in zip(x, y, strict=True)
    )


def test_batches_go_through_shuffled_epochs_and_leave_a_short_rest_out():
    batches = batches_of(10, 4, torch.Generator().manual_seed(0))
    epochs = [[next(batches), next(batches)] for _ in range(50)]
    seen = set()
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [4, 4]
        records = torch.cat(epoch).tolist()
        assert len(set(records)) == 8
        seen.add(tuple(records))
    assert len(seen) == 50, "epochs are not shuffled anew"
    assert {record for epoch in seen for record in epoch} == set(range(10))


def test_progress_ends_at_all_steps_of_all_rounds():
    seen: list[tuple[int, int]] = []
    config = GenerationConfig(rounds=2, prune=(0.3,), iterations=30, batch_size=12)
    generate(SPEC, *toy_data(), config, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(25, 90), (30, 90), (55, 90), (60, 90), (85, 90), (90, 90)]


def test_rates_by_parameter():
    assert pruning_rates(SPEC, CONFIG) == {"fc1.weight": 0.3, "fc2.weight": 0.3, "fc3.weight": 0.2}
    one_rate = GenerationConfig(rounds=1, prune=(0.5,))
    assert pruning_rates(SPEC, one_rate) == {"fc1.weight": 0.5, "fc2.weight": 0.5, "fc3.weight": 0.5}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"rounds": 9, "prune": (0.6,)},
            "`rounds`: round 4 of 9 would empty layer 3 (of 18 weights); ask for at most 3 rounds or prune less",
        ),
        ({"batch_size": 41}, "`batch_size`: 41 is more than the 40 records; give at most 40"),
        ({"prune": (0.3,) * 4}, "`prune`: 4 rates for a network of 3 layers; give at most 3"),
        ({"prune": (0.001,)}, "`prune`: the rates are too small: round 1 would drop no weight of any layer"),
    ],
)
def test_impossible_schedules_are_refused_before_any_training(options, message):
    steps: list[int] = []
    with pytest.raises(InputError) as error:
        generate(
            SPEC,
            *toy_data(),
            GenerationConfig(**{"rounds": 3, "iterations": 30, "batch_size": 12, **options}),
            progress=lambda done, _: steps.append(done),
        )
    assert str(error.value) == message
    assert steps == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "`rounds`: 0 is not a positive whole number"),
        ({"rounds": 10_000}, "`rounds`: 10000 is more than the 9999 that a ticket set may have"),
        ({"rounds": 10**18}, f"`rounds`: {10**18} is more than the 9999 that a ticket set may have"),
        ({"iterations": -1}, "`iterations`: -1 is not a positive whole number"),
        ({"batch_size": 0}, "`batch_size`: 0 is not a positive whole number"),
        ({"lr": 0.0}, "`lr`: 0.0 is not a positive number"),
        ({"lr": math.nan}, "`lr`: nan is not a positive number"),
        ({"lr": math.inf}, "`lr`: inf is not a positive number"),
        ({"seed": -1}, "`seed`: -1 is not between 0 and 2^63 - 1"),
        ({"seed": 2**63}, "`seed`: 9223372036854775808 is not between 0 and 2^63 - 1"),
        ({"rewind": -1}, "`rewind`: -1 is not a step from 0 to 4999, before the last of the first round"),
        ({"rewind": 5000}, "`rewind`: 5000 is not a step from 0 to 4999, before the last of the first round"),
        (
            {"rewind": 1, "iterations": 1},
            "`rewind`: 1 is not a step from 0 to 0, before the last of the first round",
        ),
        ({"scope": "net"}, "`scope`: unknown scope 'net'; known: layer, global"),
        (
            {"criterion": "grasp"},
            "`criterion`: unknown criterion 'grasp'; known: magnitude, inputs, random, init-magnitude, synflow, structured",
        ),
    ],
)
def test_bad_configurations(options, message):
    with pytest.raises(InputError) as error:
        GenerationConfig(**options)
    assert str(error.value) == message


def test_the_most_rounds_are_as_many_as_a_set_may_have():
    """With the dense one, no more than are read back."""
    from dpltm.tickets.ticket_set import MAX_ROUND

    assert GenerationConfig(rounds=9_999).rounds + 1 == MAX_ROUND


@pytest.mark.parametrize("criterion", ["magnitude", "random"])
def test_late_rewinding_into_a_training_that_diverged(criterion):
    """Every ticket would start from NaN: refused when it is seen, before any round."""
    seen: list[int] = []
    config = GenerationConfig(
        rounds=2, prune=(0.3,), iterations=30, batch_size=12, lr=1e30, rewind=20, criterion=criterion
    )
    with pytest.raises(InputError) as error:
        generate(SPEC, *toy_data(), config, progress=lambda done, _total: seen.append(done))
    assert str(error.value) == "`lr`: training diverged within the 20 steps of `rewind`; take a smaller one"
    assert max(seen, default=0) <= 20


def test_the_largest_seed_works():
    config = GenerationConfig(rounds=1, prune=(0.3,), iterations=1, batch_size=12, seed=2**63 - 1)
    assert len(generate(SPEC, *toy_data(), config).tickets) == 2


# --- global scope ---


def live_counts(mask: Mask) -> dict[str, int]:
    return {name: int(keep.sum()) for name, keep in prunable(mask).items()}


def test_global_scope_drops_the_smallest_of_the_network_and_as_many_in_all(tickets):
    made = generate(SPEC, *toy_data(), replace(CONFIG, scope="global"))
    for number, ticket in enumerate(made.tickets):
        counts = live_counts(ticket.mask)
        assert sum(counts.values()) == sum(live[number] for live in LIVE.values())
        assert ticket.mask.density == tickets.tickets[number].mask.density
        assert ticket.mask.live == tickets.tickets[number].mask.live
        assert (number == 0) == (counts == {name: live[number] for name, live in LIVE.items()})
    for before, after in itertools.pairwise(made.tickets):
        size = {
            (name, place): abs(value)
            for name, keep in prunable(before.mask).items()
            for place, value in enumerate(before.predictor[name].flatten().tolist())
            if keep.flatten()[place]
        }
        kept = {at for at in size if after.mask[at[0]].flatten()[at[1]]}
        assert kept == set(sorted(size, key=lambda at, size=size: -size[at])[: len(kept)])


# --- late rewinding ---

LATE = replace(CONFIG, rounds=2, rewind=7)


def test_late_rewinding_by_an_independent_loop():
    """theta0 is the dense network after 7 of its 30 steps; later rounds take 23 steps on the batches that follow."""
    made, (x, y) = generate(SPEC, *toy_data(), LATE), toy_data()
    batches = batches_of(40, LATE.batch_size, torch.Generator().manual_seed(LATE.seed + 2**32))
    start = [value.detach() for value in build(SPEC, LATE.seed).parameters()]
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))

    def train(values: list[Tensor], masks: list[Tensor], steps: int) -> list[Tensor]:
        for parameter, value, keep in zip(model.parameters(), values, masks, strict=True):
            parameter.data = value.clone() * keep
        optimizer = torch.optim.SGD(model.parameters(), lr=LATE.lr)
        for index in itertools.islice(batches, steps):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[index]), y[index]).backward()
            for parameter, keep in zip(model.parameters(), masks, strict=True):
                parameter.grad *= keep
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    def close(found: dict[str, Tensor], expected: list[Tensor]) -> None:
        for value, wanted in zip(found.values(), expected, strict=True):
            torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-5)

    dense = list(made.tickets[0].mask.values())
    theta0 = train(start, dense, 7)
    close(made.theta0, theta0)
    assert max(float((a - b).abs().max()) for a, b in zip(theta0, start, strict=True)) > 0.01
    close(made.tickets[0].predictor, train(theta0, dense, 23))
    for ticket in made.tickets[1:]:
        close(ticket.predictor, train(theta0, list(ticket.mask.values()), 23))


def test_late_rewinding_leaves_the_first_round_as_it_was(tickets):
    made = generate(SPEC, *toy_data(), LATE)
    assert same_bits(made.tickets[0].predictor, tickets.tickets[0].predictor)
    assert made.tickets[1].mask.same_as(tickets.tickets[1].mask)
    assert not same_bits(made.theta0, tickets.theta0)


def test_late_rewinding_starts_rounds_at_theta0_bit_for_bit():
    """The last round takes one step, too small to change anything."""
    made = generate(SPEC, *toy_data(), replace(LATE, rewind=29, lr=1e-30))
    for ticket in made.tickets:
        for name, keep in prunable(ticket.mask).items():
            assert torch.equal(ticket.predictor[name], torch.where(keep, made.theta0[name], 0.0))


def test_late_rewinding_looks_at_the_initialisation_for_init_magnitude():
    config = replace(LATE, criterion="init-magnitude")
    early = without_data(SPEC, replace(config, rewind=0))
    late = generate(SPEC, *toy_data(), config)
    assert [a.mask.same_as(b.mask) for a, b in zip(early.tickets, late.tickets, strict=True)] == [True] * 3


def test_progress_with_late_rewinding():
    seen: list[tuple[int, int]] = []
    generate(SPEC, *toy_data(), LATE, progress=lambda done, total: seen.append((done, total)))
    assert LATE.steps == 30 + 2 * 23
    assert seen == [(7, 76), (30, 76), (53, 76), (76, 76)]


# --- without data ---


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("criterion", DATA_FREE)
def test_without_data_gives_what_any_data_would(criterion, scope):
    """Masks and theta0 of a data-free criterion are the same on every record there may be."""
    config = replace(CONFIG, rounds=2, criterion=criterion, scope=scope)
    free, (x, y) = without_data(SPEC, config), toy_data()
    assert same_bits(free.theta0, dict(build(SPEC, CONFIG.seed).named_parameters()))
    assert [(ticket.predictor, ticket.accuracy) for ticket in free.tickets] == [(None, None)] * 3
    for records in ((x, y), (-9 * x[:20], 2 - y[:20]), (torch.zeros(12, 5), torch.zeros(12, dtype=torch.int64))):
        made = generate(SPEC, *records, config)
        assert same_bits(made.theta0, free.theta0)
        for ticket, other in zip(made.tickets, free.tickets, strict=True):
            assert ticket.mask.same_as(other.mask)
    for before, after in itertools.pairwise(free.tickets):
        assert after.mask.nested_in(before.mask)


@pytest.mark.parametrize("criterion", DATA_FREE)
def test_without_data_depends_on_the_seed_and_on_nothing_else(criterion):
    config = replace(CONFIG, criterion=criterion)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = without_data(SPEC, config)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    # neither the training's settings nor more records than there are make a difference
    again = without_data(SPEC, replace(config, iterations=1, batch_size=10**6, lr=5.0))
    other = without_data(SPEC, replace(config, seed=12))
    assert same_bits(first.theta0, again.theta0)
    for one, two, three in zip(first.tickets[1:], again.tickets[1:], other.tickets[1:], strict=True):
        assert one.mask.same_as(two.mask)
        assert not one.mask.same_as(three.mask)


def test_without_data_by_the_smallest_initial_weights():
    made = without_data(SPEC, replace(CONFIG, criterion="init-magnitude"))
    for number, ticket in enumerate(made.tickets):
        for name, keep in prunable(ticket.mask).items():
            sizes = made.theta0[name].abs().flatten().tolist()
            largest = sorted(range(len(sizes)), key=lambda place, sizes=sizes: -sizes[place])[: LIVE[name][number]]
            assert sorted(largest) == keep.flatten().nonzero().squeeze(1).tolist()


@pytest.mark.parametrize("criterion", [name for name in PLAIN_CRITERIA if name not in DATA_FREE])
def test_without_data_refuses_what_needs_some(criterion):
    with pytest.raises(InputError) as error:
        without_data(SPEC, replace(CONFIG, criterion=criterion))
    assert str(error.value) == (
        f"`criterion`: {criterion} looks at trained weights; without data take random, init-magnitude, synflow"
    )


def test_without_data_refuses_late_rewinding_and_impossible_schedules():
    with pytest.raises(InputError) as error:
        without_data(SPEC, replace(CONFIG, criterion="random", rewind=1))
    assert (
        str(error.value) == "`rewind`: needs a training to rewind into, and data-free tickets have none; leave it out"
    )
    with pytest.raises(InputError) as error:
        without_data(SPEC, replace(CONFIG, criterion="random", rounds=9, prune=(0.6,)))
    assert str(error.value).startswith("`rounds`: round 4 of 9 would empty layer 3")


# --- random ---


def test_random_keeps_one_order_over_all_rounds():
    """Two rounds of 30 % end where one of 50 % does: 40 to 28 to 20, 48 to 34 to 24, 18 to 13 to 9."""
    twice = without_data(SPEC, replace(CONFIG, criterion="random", rounds=2, prune=(0.3,)))
    once = without_data(SPEC, replace(CONFIG, criterion="random", rounds=1, prune=(0.5,)))
    assert live_counts(once.tickets[1].mask) == {"fc1.weight": 20, "fc2.weight": 24, "fc3.weight": 9}
    assert twice.tickets[2].mask.same_as(once.tickets[1].mask)


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_random_is_even_over_layers_and_within_them(scope):
    """30 % of 100,000 weights at random: any part of them loses as many as a hypergeometric draw, within 5 sigma."""
    spec = ModelSpec("mlp:200,200", 200, 100)
    made = without_data(spec, replace(CONFIG, rounds=1, prune=(0.3,), criterion="random", scope=scope))
    total, dropped = 100_000, 30_000
    for keep in prunable(made.tickets[1].mask).values():
        size = keep.numel()
        for part in (keep, keep[: len(keep) // 2], keep[:, ::2], keep[::7], keep[:, :20]):
            n = part.numel()
            lost, (pool, gone) = n - int(part.sum()), (size, 0.3 * size) if scope == "layer" else (total, dropped)
            variance = n * (gone / pool) * (1 - gone / pool) * (pool - n) / (pool - 1)
            assert abs(lost - n * gone / pool) <= 5 * math.sqrt(variance) + 0.5
    first, second = (made.tickets[1].mask[f"fc{number}.weight"] for number in (1, 2))
    assert 0.5 < (first == second).float().mean() < 0.66  # 0.7^2 + 0.3^2 = 0.58: layers have orders of their own


# --- from one trained network ---


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_pruning_one_network_in_turn(tickets, scope):
    theta0, trained = tickets.theta0, {name: value.clone() for name, value in tickets.tickets[0].predictor.items()}
    trained["fc1.weight"][0, 0] = -99.0  # negative, and the largest
    before = [{name: value.clone() for name, value in given.items()} for given in (theta0, trained)]
    made = prune_once(SPEC, theta0, trained, replace(CONFIG, scope=scope))
    assert same_bits(theta0, before[0])
    assert same_bits(trained, before[1])
    assert same_bits(made.theta0, before[0])
    assert [ticket.round for ticket in made.tickets] == [0, 1, 2, 3]
    sizes = {
        (name, place): value for name in LIVE for place, value in enumerate(trained[name].abs().flatten().tolist())
    }
    for number, ticket in enumerate(made.tickets):
        assert ticket.accuracy is None
        for name, keep in ticket.mask.items():
            assert torch.equal(ticket.predictor[name], torch.where(keep, trained[name], 0.0))
        groups = [list(LIVE)] if scope == "global" else [[name] for name in LIVE]
        for names in groups:
            ours = sorted((at for at in sizes if at[0] in names), key=lambda at: -sizes[at])
            live = sum(LIVE[name][number] for name in names)
            kept = {at for at in ours if ticket.mask[at[0]].flatten()[at[1]]}
            assert kept == set(ours[:live])
    assert made.tickets[3].mask["fc1.weight"][0, 0]


def test_pruning_one_network_gives_copies(tickets):
    """Whoever changes the result does not change what it was made of."""
    trained = tickets.tickets[0].predictor
    kept = {name: value.clone() for name, value in trained.items()}
    made = prune_once(SPEC, tickets.theta0, trained, CONFIG)
    for ticket in made.tickets:
        for value in ticket.predictor.values():
            value.fill_(5.0)
    assert same_bits(trained, kept)


# --- densities, and a projection in front ---


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("criterion", ["magnitude", *DATA_FREE])
@pytest.mark.parametrize("text", ["mlp:8,6", "mlp:project4,8,6"])
def test_densities_are_known_before(text, criterion, scope):
    spec = ModelSpec(text, 5, 3)
    config = replace(CONFIG, rounds=2, iterations=3, criterion=criterion, scope=scope)
    made = generate(spec, *toy_data(), config)
    assert scheduled_densities(spec, config) == tuple(ticket.mask.density for ticket in made.tickets)


@pytest.mark.parametrize("scope", ["layer", "global"])
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
    assert scheduled_densities(spec, config) == (1.0, (192 + 388) / 742, (192 + 274) / 742)
    generator = torch.Generator().manual_seed(0)
    records = torch.randn(40, 12, generator=generator), torch.arange(40) % 3
    sets = [generate(spec, *records, config)]
    if criterion in DATA_FREE:
        sets.append(without_data(spec, config))
    for made in sets:
        for ticket, live in zip(made.tickets, (550, 388, 274), strict=True):
            assert bool(ticket.mask["project.weight"].all())
            assert sum(live_counts(ticket.mask).values()) == 192 + live
    in_turn = prune_once(spec, sets[0].theta0, sets[0].theta0, replace(config, criterion="magnitude"))
    assert all(bool(ticket.mask["project.weight"].all()) for ticket in in_turn.tickets)
    assert [sum(live_counts(ticket.mask).values()) for ticket in in_turn.tickets] == [742, 580, 466]
    with pytest.raises(InputError) as error:
        pruning_rates(spec, replace(config, prune=(0.3,) * 4))
    assert str(error.value) == "`prune`: 4 rates for a network of 3 layers; give at most 3"


# --- dropout, and records that are made ready as they are read ---


class Recorded(nn.Sequential):
    """A network whose last layer gives back what it got."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 4000), nn.Identity())


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_inputs_of_the_last_layer_are_left_out_and_the_others_made_up_for_it(share):
    model, x = Recorded(), torch.randn(3, 5)
    whole = model(x)
    with dropping(model, share, torch.Generator().manual_seed(0)):
        first, second = model(x), model(x)
    kept = first != 0
    torch.testing.assert_close(first[kept], whole[kept] / (1 - share))
    assert abs(float((~kept).float().mean()) - share) < 6 * math.sqrt(share * (1 - share) / 12_000)
    assert not torch.equal(first != 0, second != 0), "others are left out at each step"
    assert all(not torch.equal(kept[0], row) for row in kept[1:]), "and for each record"
    assert torch.equal(model(x), whole), "nothing is left out behind the block"


def test_what_is_left_out_is_the_generators_to_say():
    model, x = Recorded(), torch.randn(3, 5)
    found = []
    for seed in (0, 0, 1):
        with dropping(model, 0.5, torch.Generator().manual_seed(seed)):
            found.append(model(x))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_block_that_fails_leaves_nothing_dropped():
    model, x = Recorded(), torch.randn(3, 5)
    whole = model(x)
    with pytest.raises(KeyboardInterrupt), dropping(model, 0.5, torch.Generator()):
        raise KeyboardInterrupt
    assert torch.equal(model(x), whole)


def test_dropping_nothing_draws_nothing():
    model, x, generator = Recorded(), torch.randn(3, 5), torch.Generator().manual_seed(4)
    before = generator.get_state()
    with dropping(model, 0.0, generator):
        assert torch.equal(model(x), model[0](x))
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("share", [-0.1, 1, 1.5, math.inf, math.nan])
def test_shares_that_cannot_be_left_out(share):
    for call in (
        lambda: dropping(build(SPEC), share, torch.Generator()).__enter__(),
        lambda: generate(SPEC, *toy_data(), CONFIG, dropout=share),
    ):
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value) == f"`dropout`: {share:g} is not at least 0 and below 1"


def test_tickets_under_dropout_are_those_of_an_independent_loop(tickets):
    """Hidden units multiplied by hand; masks follow from what was trained so, and theta0 from the seed alone."""
    made = generate(SPEC, *toy_data(), CONFIG, dropout=0.4)
    assert same_bits(made.theta0, tickets.theta0)
    assert not same_bits(made.tickets[0].predictor, tickets.tickets[0].predictor)
    x, y = toy_data()
    batches = batches_of(40, CONFIG.batch_size, torch.Generator().manual_seed(CONFIG.seed + 2**32))
    coins = torch.Generator().manual_seed(CONFIG.seed + 2**33)
    for ticket in made.tickets:
        masks = list(ticket.mask.values())
        values = [(start * keep).requires_grad_() for start, keep in zip(made.theta0.values(), masks, strict=True)]
        for index in itertools.islice(batches, CONFIG.iterations):
            first, first_bias, second, second_bias, last, last_bias = values
            hidden = functional.linear(
                functional.linear(x[index], first, first_bias).relu(), second, second_bias
            ).relu()
            stays = torch.rand(hidden.shape, generator=coins) >= 0.4
            loss = functional.cross_entropy(functional.linear(hidden * stays / 0.6, last, last_bias), y[index])
            gradients = torch.autograd.grad(loss, values)
            with torch.no_grad():
                for value, gradient, keep in zip(values, gradients, masks, strict=True):
                    value -= CONFIG.lr * gradient * keep
        for value, found in zip(values, ticket.predictor.values(), strict=True):
            torch.testing.assert_close(found, value.detach(), rtol=1e-4, atol=1e-5)


def test_dropout_is_for_training_and_not_for_accuracies():
    x, y = toy_data()
    made, again = (generate(SPEC, x, y, CONFIG, (x, y), dropout=0.5) for _ in range(2))
    model = build(SPEC)
    for ticket, same in zip(made.tickets, again.tickets, strict=True):
        assert same_bits(ticket.predictor, same.predictor)
        model.load_state_dict(ticket.predictor)
        assert ticket.accuracy == accuracy(model, x, y)


def test_no_dropout_is_the_default(tickets):
    made = generate(SPEC, *toy_data(), CONFIG, dropout=0.0)
    for ticket, same in zip(made.tickets, tickets.tickets, strict=True):
        assert same_bits(ticket.predictor, same.predictor)


class Lazy:
    """Rows as a protocol asks for them, and no tensor; how many were read at once is kept."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.most = x, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        found = self.x[index].clone()
        self.most = max(self.most, len(found))
        return found


@pytest.mark.parametrize("criterion", PLAIN_CRITERIA)
def test_rows_that_are_made_ready_as_they_are_read(criterion):
    config = replace(CONFIG, rounds=2, prune=(0.2,), criterion=criterion)
    (x, y), lazy = toy_data(), Lazy(toy_data()[0])
    made, same = generate(SPEC, lazy, y, config), generate(SPEC, x, y, config)
    assert lazy.most == CONFIG.batch_size, "never more than a batch"
    for ticket, other in zip(made.tickets, same.tickets, strict=True):
        assert ticket.mask.same_as(other.mask)
        assert same_bits(ticket.predictor, other.predictor)
    model = build(SPEC)
    model.load_state_dict(made.tickets[-1].predictor)
    assert accuracy(model, lazy, y) == accuracy(model, x, y)
    with pytest.raises(InputError, match="`batch_size`: 41 is more than the 40 records"):
        generate(SPEC, lazy, y, replace(config, batch_size=41))
