"""Layers whose per-record gradients are written out, at live coordinates alone: norm and sum see the same numbers.

A coordinate of such a gradient is a sum, over positions or time steps, whose terms may cancel: computed twice in float32,
once for the norm and once for the sum, it could come out as two numbers, and the bound would not hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from dpltm.gradients import rules
from dpltm.gradients.calls import Call
from dpltm.gradients.layer import Map
from dpltm.gradients.workspace import CHUNK


class ExplicitLayer:
    """Modules that share parameters with nobody else, called any number of times. See ``Layer``.

    Args:
        modules: name and module; several where they share parameters.
        keep: live coordinates of every parameter of the model, none of frozen ones.
        names: by id of a parameter, its name in the model.
    """

    def __init__(self, modules: Mapping[str, nn.Module], keep: Mapping[str, Tensor], names: Mapping[int, str]) -> None:
        parameters = {
            names[id(value)]: value
            for module in modules.values()
            for value in module.parameters()
            if value.requires_grad
        }
        order = {name: place for place, name in enumerate(keep)}
        self.names = tuple(sorted(parameters, key=order.__getitem__))
        live = {name: keep[name].flatten().nonzero().squeeze(1) for name in self.names}
        self.sizes = tuple(len(live[name]) for name in self.names)
        self._all = {name: len(live[name]) == keep[name].numel() for name in self.names}
        self._live = live
        self._parts: dict[tuple[int, int], tuple[str, Tensor | None]] = {}
        for module in modules.values():
            for value in module.parameters():
                if value.requires_grad:
                    name, places = names[id(value)], rules.layout(module, value)
                    index = None if places is None and self._all[name] else live[name]
                    self._parts[id(module), id(value)] = (name, index if places is None else places[live[name]])
        self._starts = dict(zip(self.names, itertools.accumulate(self.sizes, initial=0), strict=False))
        self._kind = next(iter(parameters.values()))
        self.forget()

    def forget(self) -> None:
        self._values = torch.empty(0)
        self._squares = torch.empty(0)

    def take(self, calls: Sequence[Call], records: int) -> None:
        """Adds up each record's gradients over the calls; zero where the loss depends on none."""
        self._values = self._kind.new_zeros(records, sum(self.sizes))
        for call in (call for call in calls if call.outputs):  # there are none under torch.no_grad
            for parameter, first, gradient in rules.rule_of(call.module)(call, records):
                part = self._parts.get((id(call.module), id(parameter)))
                if part is not None:  # else it is frozen
                    self._add(part[0], part[1], first, gradient.flatten(1))
        self._squares = torch.linalg.vector_norm(self._values, dim=1, dtype=torch.float64).square_()

    def hold(self, records: int, gradients: Iterator[tuple[str, Tensor]]) -> None:
        """Takes per-record gradients ``(batch, *shape)`` of parameters by name."""
        self._values = self._kind.new_zeros(records, sum(self.sizes))
        for name, gradient in gradients:
            self._add(name, None if self._all[name] else self._live[name], 0, gradient.flatten(1))
        self._squares = torch.linalg.vector_norm(self._values, dim=1, dtype=torch.float64).square_()

    def _add(self, name: str, index: Tensor | None, first: int, gradient: Tensor) -> None:
        start = self._starts[name]
        place = self._values[first : first + len(gradient), start : start + len(self._live[name])]
        place += gradient if index is None else gradient.index_select(1, index)

    def extremes(self) -> list[Tensor]:
        norms = self._squares.sqrt().to(self._values.dtype)  # infinite where float32 cannot hold it
        return [norms.max()]

    def reach(self) -> Tensor:
        return self._squares.sqrt().to(self._values.dtype)

    def blank(self, bad: Tensor) -> None:
        self._values = self._values.masked_fill(bad[:, None], 0.0)
        self._squares = self._squares.masked_fill(bad, 0.0)

    def squared_norms(self) -> Tensor:
        return self._squares

    def wide_squared_norms(self, rows: Tensor) -> Tensor:
        return self._squares[rows]

    def weighted_sum(self, factor: Tensor) -> Tensor:
        total = torch.zeros(sum(self.sizes), dtype=torch.float64, device=factor.device)
        for rows in self._pieces():
            total += factor[rows] @ self._values[rows].double()
        return total

    def mapped_squares(self, factor: Tensor, map: Map) -> Tensor:
        parts = [part.square_().sum(1, dtype=torch.float64) for _, part in self._mapped(factor, map)]
        return torch.cat(parts)

    def mapped_sum(self, factor: Tensor, map: Map, weight: Tensor | None) -> Tensor:
        total = torch.zeros(sum(self.sizes), dtype=torch.float64, device=factor.device)
        for rows, part in self._mapped(factor, map):
            weighted = part if weight is None else part.mul_(weight[rows, None].to(part.dtype))
            total += weighted.sum(0, dtype=torch.float64)
        return total

    def _mapped(self, factor: Tensor, map: Map) -> Iterator[tuple[slice, Tensor]]:
        for rows in self._pieces():
            yield rows, map((self._values[rows] * factor[rows, None]).to(self._values.dtype))

    def _pieces(self) -> Iterator[slice]:
        """Some records at a time, so that what is made from them fits a cache."""
        count = max(1, CHUNK // max(1, sum(self.sizes)))
        return (slice(start, start + count) for start in range(0, len(self._values), count))
