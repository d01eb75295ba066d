"""Averages of weights and schedules of step sizes, against their formulas and against a loop of training written out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpltm.averaging import AVERAGES, WeightAverage
from dpltm.errors import InputError
from dpltm.filters import Clip
from dpltm.gradients import RecordGradients
from dpltm.masks import Mask
from dpltm.models import ModelSpec, build
from dpltm.noise import FastSource
from dpltm.sampling import Records
from dpltm.training import SCHEDULES, TrainingConfig, train

STEPS = 60


def walk() -> Tensor:
    """Parameters before the first step and after every one, ``(1 + STEPS, 2, 3)``."""
    return torch.randn(1 + STEPS, 2, 3, generator=torch.Generator().manual_seed(0)).cumsum(0)


def exponential(values: Tensor) -> Tensor:
    """De et al. 2022: old average times d plus new weights times 1 - d, with d = min(0.98, (1 + t) / (10 + t))."""
    found = values[0].double()
    for t in range(1, len(values)):
        decay = min(0.98, (1 + t) / (10 + t))
        found = decay * found + (1 - decay) * values[t].double()
    return found


def polynomial(values: Tensor) -> Tensor:
    """Shamir and Zhang 2013, section 4, as a sum: step t of T weighs 9 / (t + 8) times what later steps leave of it."""
    steps = len(values) - 1
    shares = [
        9 / (t + 8) * math.prod(1 - 9 / (later + 8) for later in range(t + 1, steps + 1)) for t in range(1, steps + 1)
    ]
    assert sum(shares) == pytest.approx(1)
    return sum((share * value.double() for share, value in zip(shares, values[1:], strict=True)), torch.zeros(2, 3))


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda values: values[-1].double(),
    "ema": exponential,
    "poly": polynomial,
}


def test_every_average_is_tested():
    assert set(FORMULAS) == set(AVERAGES)


def averaged(kind: str, values: Tensor) -> Tensor:
    parameter = nn.Parameter(values[0].clone())
    average = WeightAverage(kind, [parameter])
    for value in values[1:]:
        parameter.data.copy_(value)
        average.update()
    average.settle()
    return parameter.detach()


@pytest.mark.parametrize("kind", AVERAGES)
@pytest.mark.parametrize("steps", [1, 2, 9, STEPS])
def test_formulas(kind: str, steps: int):
    values = walk()[: steps + 1]
    torch.testing.assert_close(averaged(kind, values), FORMULAS[kind](values).float(), rtol=1e-5, atol=1e-5)


def test_averages_differ_from_the_last_weights_and_from_each_other():
    found = [averaged(kind, walk()) for kind in AVERAGES]
    assert min(float((a - b).abs().max()) for a in found for b in found if a is not b) > 0.1


@pytest.mark.parametrize("kind", AVERAGES)
def test_what_never_moves_is_its_own_average(kind: str):
    values = walk()[:1].expand(20, 2, 3)
    torch.testing.assert_close(averaged(kind, values), values[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", AVERAGES)
def test_in_place_for_the_length_of_a_block(kind: str):
    values = walk()
    parameter = nn.Parameter(values[0].clone())
    average = WeightAverage(kind, [parameter])
    for t in range(1, 11):
        parameter.data.copy_(values[t])
        average.update()
        with average.in_place():
            torch.testing.assert_close(
                parameter.detach(), FORMULAS[kind](values[: t + 1]).float(), rtol=1e-5, atol=1e-5
            )
        assert torch.equal(parameter.detach(), values[t])


def test_several_parameters_keep_their_places():
    values = walk()
    parameters = [nn.Parameter(values[0].clone()), nn.Parameter(-values[0, 0])]
    average = WeightAverage("poly", parameters)
    for value in values[1:]:
        parameters[0].data.copy_(value)
        parameters[1].data.copy_(-value[0])
        average.update()
    average.settle()
    torch.testing.assert_close(parameters[1].detach(), -parameters[0].detach()[0])


# Training

SPEC = ModelSpec("mlp:6", 5, 3)
MULTIPLIERS: dict[str, Callable[[int], float]] = {
    "constant": lambda _: 1.0,
    "linear": lambda step: (12 - step) / 12,
    "cosine": lambda step: math.cos(math.pi * step / 24) ** 2,
}
"""Of the step size at each of twelve steps."""


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(30, 5, generator=generator), torch.randint(0, 3, (30,), generator=generator)


def settings(**changes) -> TrainingConfig:
    base = TrainingConfig(Clip(1e6), sampling_rate=1.0, steps=12, expected_batch=30.0, noise_std=0.0, lr=0.5)
    return dataclasses.replace(base, **changes)


def some_mask(model: nn.Module) -> Mask:
    generator = torch.Generator().manual_seed(4)
    return Mask(
        {
            name: torch.rand(p.shape, generator=generator) < 0.6
            if p.ndim > 1
            else torch.ones(p.shape, dtype=torch.bool)
            for name, p in model.named_parameters()
        }
    )


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def by_hand(mask: Mask | None, schedule: str, momentum: float) -> Tensor:
    """Parameters before the first step and after each of twelve steps of full-batch descent, ``(13, parameters)``."""
    (x, y), model = data(), build(SPEC, 0)
    keep = [mask[name].float() if mask else 1.0 for name, _ in model.named_parameters()]
    rounding = RecordGradients(model, mask or Mask.dense(model), functional.cross_entropy).rounding
    speed = [torch.zeros_like(p) for p in model.parameters()]
    with torch.no_grad():
        for p, part in zip(model.parameters(), keep, strict=True):
            p *= part
    found = [flat(model)]
    for step in range(12):
        gradients = torch.autograd.grad(functional.cross_entropy(model(x), y), list(model.parameters()))
        with torch.no_grad():
            for p, g, v, part in zip(model.parameters(), gradients, speed, keep, strict=True):
                v.mul_(momentum).add_(g * rounding * part)
                p -= 0.5 * MULTIPLIERS[schedule](step) * v
        found.append(flat(model))
    return torch.stack(found)


def trained(mask: Mask | None = None, progress=None, **changes) -> nn.Module:
    model = build(SPEC, 0)
    sources = {"sampling": FastSource(0), "noise": FastSource(1)}
    train(
        model, mask or Mask.dense(model), Records(*data()), settings(**changes), **sources,
        progress=None if progress is None else lambda done: progress(done, model),
    )  # fmt: skip
    return model


def test_every_schedule_is_tested():
    assert set(MULTIPLIERS) == set(SCHEDULES)


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("momentum", 0.9)])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_against_a_loop(schedule: str, optimizer: str, momentum: float):
    path = by_hand(None, schedule, momentum)
    model = trained(schedule=schedule, optimizer=optimizer)
    torch.testing.assert_close(flat(model), path[-1], rtol=1e-4, atol=1e-5)
    assert (path[-1] - path[0]).abs().max() > 0.1


def expected_average(kind: str, path: Tensor) -> Tensor:
    """The formulas above take pictures of two by three; here one coordinate at a time would do as well."""
    rows = torch.nn.functional.pad(path, (0, -path.shape[1] % 6)).view(len(path), -1, 2, 3)
    parts = [FORMULAS[kind](rows[:, part]) for part in range(rows.shape[1])]
    return torch.cat([part.flatten() for part in parts])[: path.shape[1]].float()


@pytest.mark.parametrize("kind", AVERAGES)
@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_training_ends_with_the_average(kind: str, schedule: str):
    seen: list[Tensor] = []
    path = by_hand(None, schedule, 0.0)
    model = trained(progress=lambda _, model: seen.append(flat(model)), schedule=schedule, average=kind)
    for done, values in enumerate(seen, 1):
        torch.testing.assert_close(values, expected_average(kind, path[: done + 1]), rtol=1e-4, atol=1e-5)
    assert len(seen) == 12
    torch.testing.assert_close(flat(model), seen[-1], rtol=0, atol=0)


@pytest.mark.parametrize("kind", AVERAGES)
def test_looking_on_changes_nothing_and_stopping_leaves_the_average(kind: str):
    plain = trained(average=kind)
    watched = trained(progress=lambda *_: None, average=kind)
    assert torch.equal(flat(plain), flat(watched))
    stopped = trained(progress=lambda done, _: done == 5, average=kind)
    expected = expected_average(kind, by_hand(None, "constant", 0.0)[:6])
    torch.testing.assert_close(flat(stopped), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["none", "ema", "poly"])
def test_pruned_weights_are_zero_in_every_average(kind: str):
    """Also where the network held something there before training."""
    model = build(SPEC, 0)
    mask = some_mask(model)
    assert any((value[~mask[name]] != 0).any() for name, value in model.named_parameters())
    ended = trained(mask, average=kind)
    for name, value in ended.named_parameters():
        assert value[~mask[name]].count_nonzero() == 0, name
    expected = expected_average(kind, by_hand(mask, "constant", 0.0))
    torch.testing.assert_close(flat(ended), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "step"}, "`schedule`: unknown schedule 'step'; known: constant, linear, cosine"),
        ({"average": "swa"}, "`average`: unknown average 'swa'; known: none, ema, poly"),
    ],
)
def test_what_is_not_known(changes, message):
    with pytest.raises(InputError) as error:
        settings(**changes)
    assert str(error.value) == message
