"""Phase 1 on a toy network, against an independent loop with torch.optim and masks by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.generation import GenerationConfig, Tickets, _batches, accuracy, check_schedule, count_correct, generate
from dpltm.masks import Mask
from dpltm.models import ModelSpec, build

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


def test_pruned_weights_of_the_predictors_are_exactly_zero(tickets):
    for ticket in tickets.tickets[1:]:
        for name, keep in prunable(ticket.mask).items():
            assert ticket.predictor[name][~keep].count_nonzero() == 0
            assert (ticket.predictor[name][keep] != 0).all()


def independent_rounds(tickets: Tickets, rewind: bool = True) -> list[dict[str, Tensor]]:
    """Predictors by plain PyTorch: torch.optim.SGD, weights and gradients masked by multiplication."""
    x, y = toy_data()
    batches = _batches(40, CONFIG.batch_size, torch.Generator().manual_seed(CONFIG.seed + 2**32))
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
    batches = _batches(10, 4, torch.Generator().manual_seed(0))
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
    assert check_schedule(SPEC, CONFIG) == {"fc1.weight": 0.3, "fc2.weight": 0.3, "fc3.weight": 0.2}
    one_rate = GenerationConfig(rounds=1, prune=(0.5,))
    assert check_schedule(SPEC, one_rate) == {"fc1.weight": 0.5, "fc2.weight": 0.5, "fc3.weight": 0.5}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"rounds": 9, "prune": (0.6,)},
            "--rounds: round 4 of 9 would empty layer 3 (of 18 weights); ask for at most 3 rounds or prune less",
        ),
        ({"batch_size": 41}, "--batch-size: 41 is more than the 40 records; give at most 40"),
        ({"prune": (0.3,) * 4}, "--prune: 4 rates for a network of 3 layers; give at most 3"),
        ({"prune": (0.001,)}, "--prune: the rates are too small: round 1 would drop no weight of any layer"),
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
        ({"rounds": 0}, "--rounds: 0 is not a positive whole number"),
        ({"iterations": -1}, "--iterations: -1 is not a positive whole number"),
        ({"batch_size": 0}, "--batch-size: 0 is not a positive whole number"),
        ({"lr": 0.0}, "--lr: 0.0 is not a positive number"),
        ({"lr": math.nan}, "--lr: nan is not a positive number"),
        ({"lr": math.inf}, "--lr: inf is not a positive number"),
        ({"seed": -1}, "--seed: -1 is not between 0 and 2^63 - 1"),
        ({"seed": 2**63}, "--seed: 9223372036854775808 is not between 0 and 2^63 - 1"),
    ],
)
def test_bad_configurations(options, message):
    with pytest.raises(InputError) as error:
        GenerationConfig(**options)
    assert str(error.value) == message


def test_the_largest_seed_works():
    config = GenerationConfig(rounds=1, prune=(0.3,), iterations=1, batch_size=12, seed=2**63 - 1)
    assert len(generate(SPEC, *toy_data(), config).tickets) == 2
