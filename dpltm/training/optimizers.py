"""Optimizers of a training, with the bits of ``torch.optim`` where every parameter has a gradient at every step; averages of
the weights and Newton steps. All are post-processing of the noisy gradients, hence free.

Those of ``torch.optim`` import torch's compiler (``torch._dynamo``) with the first, half as long as torch itself takes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from dpltm.randomness.second_moments import edge

DECAY, SQUARE_DECAY = 0.9, 0.999
"""Of the running means of gradients (momentum and Adam) and of their squares (Adam; Kingma and Ba 2015)."""

AVERAGE_DECAY, POWER = 0.98, 8
"""Of the exponential average, of the last fifty steps or so; and of the polynomial one, whose weights grow as t^8."""

ADAM_FLOOR, ADAGRAD_FLOOR = 1e-8, 1e-10  # added to what is divided by; as in `torch.optim`
CURVATURE = 0.03  # usual one, of a loss of clipped residuals; chosen on kmnist-7k, of 0.03 and 0.15

Move = Callable[[Tensor, Tensor, list[Tensor], float, int], None]
"""Moves one parameter along its gradient, by what it remembers of it, step size and step number."""


class PerParameter:
    """An optimizer that treats each parameter by itself, and remembers ``states`` tensors of it, zeros at first."""

    def __init__(self, move: Move, states: int, parameters: Sequence[Tensor]) -> None:
        self._move, self._parameters = move, list(parameters)
        self._states = [[torch.zeros_like(value) for _ in range(states)] for value in self._parameters]

    @torch.no_grad()
    def step(self, lr: float, number: int) -> None:
        """Take the step of that size and ``number``, from 1, along every parameter's gradient."""
        for parameter, state in zip(self._parameters, self._states, strict=True):
            assert parameter.grad is not None
            self._move(parameter, parameter.grad, state, lr, number)

    def state(self) -> dict[str, Tensor]:
        states = enumerate(self._states)
        return {f"{place}/{number}": value for place, values in states for number, value in enumerate(values)}


def _sgd(parameter: Tensor, gradient: Tensor, momentum: list[Tensor], lr: float, _number: int) -> None:
    moved = momentum[0].mul_(DECAY).add_(gradient) if momentum else gradient
    parameter.add_(moved, alpha=-lr)


def _adam(parameter: Tensor, gradient: Tensor, state: list[Tensor], lr: float, number: int) -> None:
    mean, square = state
    mean.lerp_(gradient, 1 - DECAY)
    square.mul_(SQUARE_DECAY).addcmul_(gradient, gradient, value=1 - SQUARE_DECAY)
    root = square.sqrt().div_(math.sqrt(1 - SQUARE_DECAY**number)).add_(ADAM_FLOOR)
    parameter.addcdiv_(mean, root, value=-lr / (1 - DECAY**number))


def _adagrad(parameter: Tensor, gradient: Tensor, state: list[Tensor], lr: float, _number: int) -> None:
    state[0].addcmul_(gradient, gradient)
    parameter.addcdiv_(gradient, state[0].sqrt().add_(ADAGRAD_FLOOR), value=-lr)


OPTIMIZERS: dict[str, Callable[[Sequence[Tensor]], PerParameter]] = {
    "sgd": partial(PerParameter, _sgd, 0),
    "momentum": partial(PerParameter, _sgd, 1),
    "adam": partial(PerParameter, _adam, 2),
    "adagrad": partial(PerParameter, _adagrad, 1),
}
"""By the name that settings have for them."""


class WeightAverage:
    """An average of parameters over the steps so far: ``ema``, with a decay of at most (1 + t) / (10 + t) at step t (De et
    al. 2022); ``poly``, polynomial (Shamir and Zhang 2013); or ``none``, the parameters themselves."""

    def __init__(self, kind: str, parameters: Sequence[nn.Parameter]) -> None:
        self._kind, self._parameters = kind, list(parameters)
        self._values = [value.detach().clone() for value in self._parameters] if kind != "none" else []

    @torch.no_grad()
    def update(self, t: int) -> None:
        """Take in the parameters after step ``t``, from 1."""
        share = (POWER + 1) / (t + POWER) if self._kind == "poly" else 1 - min(AVERAGE_DECAY, (1 + t) / (10 + t))
        for average, value in zip(self._values, self._parameters, strict=bool(self._values)):
            average.lerp_(value, share)

    def state(self) -> dict[str, Tensor]:
        """Return the averages; not copied. None where it is the parameters themselves."""
        return {str(place): value for place, value in enumerate(self._values)}

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """For the length of a block, the parameters are the averages."""
        trained = [value.detach().clone() for value in self._parameters] if self._values else []
        self.settle()
        yield
        self._put(trained)

    def settle(self) -> None:
        """The parameters become the averages for good."""
        self._put(self._values)

    @torch.no_grad()
    def _put(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self._parameters, values, strict=False):
            parameter.copy_(value)


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "linear": lambda passed: 1.0 - passed,
    "cosine": lambda passed: (1.0 + math.cos(math.pi * passed)) / 2,
}
"""By what the step size is multiplied once that part of the steps has passed."""


class NewtonSteps:
    """Steps of one layer along (I + lr c n M)^-1 times its gradient, for second moments M of a share of n records: damped
    by a public 1 / lr. Eigenvalues of M within those of noise count as 0, and one of l above their edge e as
    sqrt(l^2 - e^2) (Gavish and Donoho 2017). Without M it is a step against the gradient.

    Args:
        parameters: weights ``(classes, features)`` and bias ``(classes,)``.
        second: M, released, bias input included, in units of a squared input norm of 1, of the inputs that live; or None.
        scale: squared norm of an input, over the public number of records: takes ``second`` to those of a mean gradient.
        curvature: c, of the loss over the second moments: of each class, ``(classes,)``, or of all.
        live: weights that move, ``(classes, features)`` bool; None for all. Each class goes by the inputs that it has.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        second: Tensor | None,
        noise_std: float = 0.0,
        scale: float = 1.0,
        curvature: Tensor | float = CURVATURE,
        live: Tensor | None = None,
    ) -> None:
        self._parameters = list(parameters)
        self._curvature = torch.as_tensor(curvature, dtype=torch.float64).reshape(-1, 1)
        live = torch.ones_like(self._parameters[0], dtype=torch.bool, device="cpu") if live is None else live
        self._inputs = live.any(0).nonzero()[:, 0]
        self._solved: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        if second is None:
            return
        kinds, kind_of = torch.unique(
            torch.nn.functional.pad(live[:, self._inputs], (0, 1), value=True), dim=0, return_inverse=True
        )
        for number, kind in enumerate(kinds):
            places = kind.nonzero()[:, 0]
            values, vectors = torch.linalg.eigh(second[places][:, places])
            floor = edge(len(places), noise_std)
            values = scale * (values.clamp(min=0).square() - floor**2).clamp(min=0).sqrt()
            self._solved.append(((kind_of == number).nonzero(), places, values, vectors))

    @torch.no_grad()
    def step(self, lr: float, _number: int) -> None:
        weight, bias = self._parameters
        assert weight.grad is not None
        assert bias.grad is not None
        gradient = torch.cat([weight.grad[:, self._inputs], bias.grad[:, None]], dim=1).double().cpu()
        for rows, places, values, vectors in self._solved:
            curvature = self._curvature if len(self._curvature) == 1 else self._curvature[rows[:, 0]]
            gradient[rows, places] = gradient[rows, places] @ vectors / (1 + lr * curvature * values) @ vectors.T
        move = (-lr * gradient).to(weight)
        weight[:, self._inputs] += move[:, :-1]
        bias.add_(move[:, -1])

    def state(self) -> dict[str, Tensor]:
        return {}
