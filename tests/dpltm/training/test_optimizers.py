"""Optimizers of our own against those of torch, bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dpltm.training.optimizers import OPTIMIZERS

PEERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
}


def moved(step: Callable[[list[torch.Tensor], float], None], parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """The parameters after 30 steps of changing size; of one of them the gradient is always 0."""
    generator = torch.Generator().manual_seed(0)
    for count in range(30):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        parameters[1].grad *= 0
        step(parameters, 0.5 / (count + 1))
    return parameters


def made() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in ((300, 40), (3,), (7,))]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bits_are_those_of_torch(name: str) -> None:
    start, ours, theirs = made(), made(), made()
    own, peer = OPTIMIZERS[name](ours), PEERS[name](theirs, lr=1.0)

    def by_peer(parameters: list[torch.Tensor], lr: float) -> None:
        del parameters
        for group in peer.param_groups:
            group["lr"] = lr
        peer.step()

    moved(lambda _, lr: own.step(lr), ours)
    moved(by_peer, theirs)
    assert not torch.equal(ours[0], start[0])
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_without_a_gradient_stays(name: str) -> None:
    parameters = made()
    before = parameters[2].detach().clone()
    for parameter in parameters[:2]:
        parameter.grad = torch.ones_like(parameter)
    OPTIMIZERS[name](parameters).step(0.1)
    assert torch.equal(parameters[2], before)
