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
from dpltm.gradients.chunks import HIGHEST, others
from dpltm.gradients.layer import ExplicitGradients, Map
from dpltm.gradients.workspace import CHUNK

_Part = tuple[str, Tensor | None, int, Tensor]
"""A parameter, where its live coordinates stand in what follows (None: all, in order), the first record, and gradients."""


class ExplicitLayer(ExplicitGradients):
    """Modules that share parameters with nobody else, called any number of times. See ``Layer``.

    Args:
        modules: name and module; several where they share parameters.
        live_mask: live coordinates of every parameter of the model, none of frozen ones.
        names: by id of a parameter, its name in the model.
    """

    def __init__(
        self, modules: Mapping[str, nn.Module], live_mask: Mapping[str, Tensor], names: Mapping[int, str]
    ) -> None:
        parameters = {
            names[id(value)]: value
            for module in modules.values()
            for value in module.parameters()
            if value.requires_grad
        }
        order = {name: place for place, name in enumerate(live_mask)}
        self.names = tuple(sorted(parameters, key=order.__getitem__))
        live = {name: live_mask[name].flatten().nonzero().squeeze(1) for name in self.names}
        self.sizes = tuple(len(live[name]) for name in self.names)
        stops = itertools.accumulate(self.sizes)
        self._columns = {
            name: slice(stop - size, stop) for name, size, stop in zip(self.names, self.sizes, stops, strict=True)
        }
        self._index = {name: None if len(index) == live_mask[name].numel() else index for name, index in live.items()}
        self._parts: dict[tuple[int, int], tuple[str, Tensor | None]] = {}
        for module in modules.values():
            for value in module.parameters():
                if value.requires_grad:
                    name, places = names[id(value)], rules.layout(module, value)
                    index = self._index[name] if places is None else places[live[name]]
                    self._parts[id(module), id(value)] = (name, index)
        self._kind = next(iter(parameters.values()))
        self._dtype = self._kind.dtype
        self.release()

    def release(self) -> None:
        self._values = torch.empty(0)
        self._squares = torch.empty(0)

    def take(self, calls: Sequence[Call], records: int) -> None:
        """Adds up each record's gradients over the calls; zero where the loss depends on none."""
        self._add_up(records, self._parts_of(calls, records))

    def hold(self, records: int, gradients: Iterator[tuple[str, Tensor]]) -> None:
        """Takes per-record gradients ``(batch, *shape)`` of parameters by name."""
        self._add_up(records, ((name, self._index[name], 0, gradient) for name, gradient in gradients))

    def _parts_of(self, calls: Sequence[Call], records: int) -> Iterator[_Part]:
        for call in (call for call in calls if call.outputs):  # there are none under torch.no_grad
            for parameter, first, gradient in rules.rule_of(call.module)(call, records):
                part = self._parts.get((id(call.module), id(parameter)))
                if part is not None:  # else it is frozen
                    yield *part, first, gradient

    def _add_up(self, records: int, parts: Iterator[_Part]) -> None:
        self._values = self._kind.new_zeros(records, sum(self.sizes))
        for name, index, first, gradient in parts:
            flat = gradient.flatten(1)
            place = self._values[first : first + len(flat), self._columns[name]]
            place += flat if index is None else flat.index_select(1, index)
        self._squares = torch.linalg.vector_norm(self._values, dim=1, dtype=torch.float64).square_()

    def zero_records(self, bad: Tensor) -> None:
        self._values = self._values.masked_fill(bad[:, None], 0.0)
        self._squares = self._squares.masked_fill(bad, 0.0)

    def weighted_sum(self, factor: Tensor, chunks: Sequence[slice] = ()) -> Tensor:
        """See :meth:`Layer.weighted_sum`."""
        values, total = self._values, torch.zeros(sum(self.sizes), dtype=torch.float64, device=factor.device)
        chunks = chunks if values.dtype == torch.float32 and not values.is_cuda else ()
        for rows in chunks:
            total += factor[rows].clamp(max=HIGHEST).float() @ values[rows]
        for rest in others(chunks, len(values)):
            for rows in self._pieces(rest):
                total += factor[rows] @ values[rows].double()
        return total

    def mapped_squares(self, factor: Tensor, map: Map) -> Tensor:
        parts = [part.square_().sum(1, dtype=torch.float64) for _, part in self._mapped(factor, map)]
        return torch.cat(parts)

    def mapped_sum(self, factor: Tensor, map: Map, weight: Tensor | None) -> Tensor:
        """See :meth:`Layer.mapped_sum`."""
        total = torch.zeros(sum(self.sizes), dtype=torch.float64, device=factor.device)
        for rows, part in self._mapped(factor, map):
            weighted = part if weight is None else part.mul_(weight[rows, None].to(part.dtype))
            total += weighted.sum(0, dtype=torch.float64)
        return total

    def _mapped(self, factor: Tensor, map: Map) -> Iterator[tuple[slice, Tensor]]:
        for rows in self._pieces(slice(0, len(self._values))):
            yield rows, map((self._values[rows] * factor[rows, None]).to(self._values.dtype))

    def _pieces(self, rows: slice) -> Iterator[slice]:
        """Some records at a time, so that what is made from them fits a cache."""
        count = max(1, CHUNK // max(1, sum(self.sizes)))
        return (slice(start, min(start + count, rows.stop)) for start in range(rows.start, rows.stop, count))
