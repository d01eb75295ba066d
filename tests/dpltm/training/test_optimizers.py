"""Optimizers against those of torch, bit by bit; averages and schedules against a training written out."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpltm.filters import Clip
from dpltm.gradients import RecordGradients
from dpltm.networks import ModelSpec, build
from dpltm.randomness.noise import FastSource
from dpltm.randomness.sampling import ROUNDING
from dpltm.records.batches import Records
from dpltm.training.descent import SCHEDULES, train
from dpltm.training.optimizers import OPTIMIZERS
from gradient_cases import flat, some_mask, steps_of, toy_data

PEERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
}


def moved(step: Callable[[float, int], None], parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """The parameters after 30 steps of changing size; of one of them the gradient is always 0."""
    generator = torch.Generator().manual_seed(0)
    for count in range(30):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        parameters[1].grad *= 0
        step(0.5 / (count + 1), count + 1)
    return parameters


def made() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in ((300, 40), (3,), (7,))]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bits_are_those_of_torch(name: str) -> None:
    start, ours, theirs = made(), made(), made()
    own, peer = OPTIMIZERS[name](ours), PEERS[name](theirs, lr=1.0)

    def by_peer(lr: float, number: int) -> None:
        del number
        for group in peer.param_groups:
            group["lr"] = lr
        peer.step()

    moved(own.step, ours)
    moved(by_peer, theirs)
    assert not torch.equal(ours[0], start[0])
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


def exponential(values: Tensor) -> Tensor:
    """De et al. 2022: old average times d plus new weights times 1 - d, with d = min(0.98, (1 + t) / (10 + t))."""
    found = values[0].double()
    for t in range(1, len(values)):
        decay = min(0.98, (1 + t) / (10 + t))
        found = decay * found + (1 - decay) * values[t].double()
    return found


def polynomial(values: Tensor) -> Tensor:
    """Shamir and Zhang 2013, section 4, as a sum: step t of T weighs 9 / (t + 8) times what later steps leave of it."""
    steps = range(1, len(values))
    shares = [9 / (t + 8) * math.prod(1 - 9 / (later + 8) for later in steps if later > t) for t in steps]
    assert sum(shares) == pytest.approx(1)
    return sum(
        (share * value.double() for share, value in zip(shares, values[1:], strict=True)), torch.zeros_like(values[0])
    )


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda values: values[-1].double(),
    "ema": exponential,
    "poly": polynomial,
}
"""Of parameters before the first step and after every one, ``(1 + steps, ...)``."""
every_average = pytest.mark.parametrize("kind", ["none", "ema", "poly"])


SPEC = ModelSpec("mlp:6", 5, 3)
MULTIPLIERS: dict[str, Callable[[int], float]] = {
    "constant": lambda _: 1.0,
    "linear": lambda step: (12 - step) / 12,
    "cosine": lambda step: math.cos(math.pi * step / 24) ** 2,
}
"""Of the step size at each of twelve steps."""


def by_hand(schedule: str = "constant", momentum: float = 0.0) -> Tensor:
    """Parameters before the first step and after each of twelve steps of full-batch descent, ``(13, parameters)``."""
    (x, y), model = toy_data(30), build(SPEC, 0)
    mask = some_mask(model)
    rounding = RecordGradients(model, mask, functional.cross_entropy).rounding * ROUNDING
    mask.apply(model)
    speed, found = [torch.zeros_like(p) for p in model.parameters()], [flat(model)]
    for step in range(12):
        gradients = torch.autograd.grad(functional.cross_entropy(model(x), y), list(model.parameters()))
        with torch.no_grad():
            for (name, p), g, v in zip(model.named_parameters(), gradients, speed, strict=True):
                v.mul_(momentum).add_(g * rounding * mask[name])
                p -= 0.5 * MULTIPLIERS[schedule](step) * v
        found.append(flat(model))
    return torch.stack(found)


def trained(progress=None, **changes) -> nn.Module:
    """Under a mask whose pruned weights the network holds something at before."""
    model, sources = build(SPEC, 0), {"sampling": FastSource(0), "noise": FastSource(1)}
    config = steps_of(Clip(1e6), 1.0, steps=12, expected_batch=30.0, noise_std=0.0, lr=0.5, **changes)
    watch = None if progress is None else lambda done: progress(done, model)
    train(model, some_mask(model), Records(*toy_data(30)), config, **sources, progress=watch)
    return model


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("momentum", 0.9)])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_against_a_loop(schedule, optimizer, momentum):
    path = by_hand(schedule, momentum)
    torch.testing.assert_close(flat(trained(schedule=schedule, optimizer=optimizer)), path[-1], rtol=1e-4, atol=1e-5)
    assert (path[-1] - path[0]).abs().max() > 0.1


@every_average
def test_training_ends_with_the_average_and_shows_it_on_the_way(kind):
    """Looking on changes nothing; pruned weights are zero in each."""
    seen: list[Tensor] = []
    path = by_hand("linear")
    model = trained(lambda _, model: seen.append(flat(model)), schedule="linear", average=kind)
    assert len(seen) == 12
    for done, values in enumerate(seen, 1):
        torch.testing.assert_close(values, FORMULAS[kind](path[: done + 1]).float(), rtol=1e-4, atol=1e-5)
    assert torch.equal(flat(model), seen[-1])
    assert torch.equal(flat(model), flat(trained(schedule="linear", average=kind)))
    for name, keep in some_mask(model).items():
        assert model.get_parameter(name)[~keep].count_nonzero() == 0
