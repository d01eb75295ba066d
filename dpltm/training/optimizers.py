"""Optimizers of a training: SGD, with momentum or without, Adam and Adagrad, the same bits as those of ``torch.optim``
where every parameter has a gradient at every step.

Those of ``torch.optim`` import torch's compiler (``torch._dynamo``) when the first one is made, which takes more than half
as long as torch itself, and is of no use to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

DECAY, SQUARE_DECAY = 0.9, 0.999
"""Of the running means of gradients (momentum and Adam) and of their squares (Adam; Kingma and Ba 2015)."""

ADAM_FLOOR, ADAGRAD_FLOOR = 1e-8, 1e-10
"""Added to what is divided by; as in ``torch.optim``."""


class Optimizer(Protocol):
    """Moves parameters along their gradients."""

    def step(self, lr: float) -> None:
        """One step of that size; parameters without a gradient stay."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What it remembers of the steps so far, beside their number; not copied."""
        ...

    def resume(self, steps: int, state: Mapping[str, Tensor]) -> None:
        """Takes over what another one remembered after so many steps."""
        ...


class _PerParameter:
    """An optimizer that treats each parameter by itself."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = list(parameters)
        self._states: dict[int, list[Tensor]] = {}
        self._steps = 0

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """See :meth:`Optimizer.step`."""
        self._steps += 1
        for place, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                self._move(parameter, parameter.grad, self._states.setdefault(place, []), lr)

    def state(self) -> dict[str, Tensor]:
        """See :meth:`Optimizer.state`."""
        return {
            f"{place}/{number}": value for place, values in self._states.items() for number, value in enumerate(values)
        }

    def resume(self, steps: int, state: Mapping[str, Tensor]) -> None:
        """See :meth:`Optimizer.resume`."""
        self._steps, self._states = steps, {}
        for name in sorted(state, key=lambda name: int(name.partition("/")[2])):
            self._states.setdefault(int(name.partition("/")[0]), []).append(state[name])

    def _move(self, parameter: Tensor, gradient: Tensor, state: list[Tensor], lr: float) -> None:
        """Moves one parameter; ``state`` is empty the first time, and holds whatever was put into it."""
        raise NotImplementedError


class Sgd(_PerParameter):
    """Against the gradient."""

    def _move(self, parameter: Tensor, gradient: Tensor, state: list[Tensor], lr: float) -> None:
        del state
        parameter.add_(gradient, alpha=-lr)


class Momentum(_PerParameter):
    """Against a sum of all gradients, older ones counted less."""

    def _move(self, parameter: Tensor, gradient: Tensor, state: list[Tensor], lr: float) -> None:
        if state:
            state[0].mul_(DECAY).add_(gradient)
        else:
            state.append(gradient.clone())
        parameter.add_(state[0], alpha=-lr)


class Adam(_PerParameter):
    """Against the mean gradient over the root of the mean square, both corrected for starting at 0."""

    def _move(self, parameter: Tensor, gradient: Tensor, state: list[Tensor], lr: float) -> None:
        if not state:
            state += [torch.zeros_like(parameter), torch.zeros_like(parameter)]
        mean, square = state
        mean.lerp_(gradient, 1 - DECAY)
        square.mul_(SQUARE_DECAY).addcmul_(gradient, gradient, value=1 - SQUARE_DECAY)
        root = square.sqrt().div_(math.sqrt(1 - SQUARE_DECAY**self._steps)).add_(ADAM_FLOOR)
        parameter.addcdiv_(mean, root, value=-lr / (1 - DECAY**self._steps))


class Adagrad(_PerParameter):
    """Against the gradient over the root of the sum of all squares (Duchi, Hazan, Singer 2011)."""

    def _move(self, parameter: Tensor, gradient: Tensor, state: list[Tensor], lr: float) -> None:
        if not state:
            state.append(torch.zeros_like(parameter))
        state[0].addcmul_(gradient, gradient)
        parameter.addcdiv_(gradient, state[0].sqrt().add_(ADAGRAD_FLOOR), value=-lr)


OPTIMIZERS: dict[str, Callable[[Sequence[Tensor]], Optimizer]] = {
    "sgd": Sgd,
    "momentum": Momentum,
    "adam": Adam,
    "adagrad": Adagrad,
}
"""By the name that settings have for them."""
