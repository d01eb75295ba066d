"""Averages of the weights along a training: post-processing of its noisy gradients, hence free."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

Average = Literal["none", "ema", "poly"]
AVERAGES: tuple[Average, ...] = ("none", "ema", "poly")

DECAY = 0.98
"""Of the exponential average: it covers the last fifty steps or so."""

POWER = 8
"""Of the polynomial average: the weight of step t grows as t^8, so that it covers the last ninth of them or so."""


class WeightAverage:
    """An average of parameters over the steps so far.

    ``ema`` is exponential, with a decay of at most (1 + t) / (10 + t) at step t, so that the first steps soon fade (De et
    al. 2022); ``poly`` weighs steps polynomially (Shamir and Zhang 2013); ``none`` is the parameters themselves.

    Args:
        kind: of the average.
        parameters: as they are before the first step.
    """

    def __init__(self, kind: Average, parameters: Sequence[nn.Parameter]) -> None:
        self._kind, self._parameters, self._steps = kind, list(parameters), 0
        self._values = [value.detach().clone() for value in self._parameters] if kind != "none" else []

    @torch.no_grad()
    def update(self) -> None:
        """Takes the parameters of another step in."""
        self._steps += 1
        t = self._steps
        share = (POWER + 1) / (t + POWER) if self._kind == "poly" else 1 - min(DECAY, (1 + t) / (10 + t))
        for average, value in zip(self._values, self._parameters, strict=bool(self._values)):
            average.lerp_(value, share)

    def state(self) -> dict[str, Tensor]:
        """The averages, beside the number of steps; not copied. None where it is the parameters themselves."""
        return {str(place): value for place, value in enumerate(self._values)}

    def resume(self, steps: int, state: Mapping[str, Tensor]) -> None:
        """Takes over the averages of another one after so many steps."""
        self._steps, self._values = steps, [state[str(place)] for place in range(len(state))]

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """For the length of a block, the parameters are the averages."""
        held = [value.detach().clone() for value in self._parameters] if self._values else []
        self.settle()
        yield
        self._put(held)

    def settle(self) -> None:
        """The parameters become the averages for good."""
        self._put(self._values)

    @torch.no_grad()
    def _put(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self._parameters, values, strict=False):
            parameter.copy_(value)
