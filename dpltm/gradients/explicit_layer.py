"""Layers whose per-record gradients are written out, at live coordinates alone: norm and sum see the same numbers.

A coordinate of such a gradient is a sum, over positions or time steps, whose terms may cancel: computed twice in float32,
it could come out as two numbers, and the bound would not hold. Of an embedding table only rows of tokens that a record holds
are written out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from dpltm.gradients import rules
from dpltm.gradients.layer import CHUNK, Call, ExplicitGradients, Map, Workspace, only_call
from dpltm.randomness.sampling import held_in_float32, others

BLOCK = 64
"""Coordinates whose squares are added in the gradients' own precision; blocks are added in float64. Float32 is off by
a factor of 1 + (64 + 2) 2^-24 at most, half of it in the norm: far less than the engine's ``rounding`` allows for."""

_Part = tuple[str, Tensor | None, int, Tensor]
"""A parameter, where its live coordinates stand in what follows (None: all, in order), the first record, and gradients."""


class ExplicitLayer(ExplicitGradients):
    """Modules that share parameters with no others, called any number of times. See ``Layer``."""

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
        self.sizes = tuple(int(live_mask[name].sum()) for name in self.names)
        stops = itertools.accumulate(self.sizes)
        self._columns = {
            name: slice(stop - size, stop) for name, size, stop in zip(self.names, self.sizes, stops, strict=True)
        }
        self._index: dict[str, Tensor] = {}  # what values are of, in the order of a first rule's gradients
        self._parts: dict[tuple[int, int], tuple[str, Tensor | None]] = {}
        for module in modules.values():
            for value in module.parameters():
                if value.requires_grad:
                    name, places = names[id(value)], rules.layout(module, value)
                    if name not in self._index:
                        live = live_mask[name].flatten().nonzero().squeeze(1)
                        self._index[name] = live if places is None else live[places[live].argsort()]
                    index = self._index[name] if places is None else places[self._index[name]]
                    self._parts[id(module), id(value)] = (name, None if _whole(index, value) else index)
        self._order = torch.cat([self._index[name].argsort() + self._columns[name].start for name in self.names])
        self._kind = next(iter(parameters.values()))
        self._dtype = self._kind.dtype
        self._space = Workspace()
        self.release()

    def release(self) -> None:
        self._values = torch.empty(0)
        self._squares = torch.empty(0)

    def take(self, calls: Sequence[Call], records: int) -> None:
        """Add up each record's gradients over the calls; zero where the loss depends on none."""
        self._add_up(records, self._parts_of(calls, records))

    def hold(self, records: int, gradients: Iterator[tuple[str, Tensor]]) -> None:
        """Take per-record gradients ``(batch, *shape)`` of parameters by name."""
        self._add_up(records, ((name, self._index[name], 0, gradient) for name, gradient in gradients))

    def _parts_of(self, calls: Sequence[Call], records: int) -> Iterator[_Part]:
        for call in (call for call in calls if call.outputs):  # there are none under torch.no_grad
            for parameter, first, gradient in rules.rule_of(call.module)(call, records):
                part = self._parts.get((id(call.module), id(parameter)))
                if part is not None:  # else it is frozen
                    yield *part, first, gradient

    def _add_up(self, records: int, parts: Iterator[_Part]) -> None:
        self._values = self._space.rows("values", records, sum(self.sizes), self._dtype, self._kind.device)
        filled = dict.fromkeys(self.names, 0)
        for name, index, first, gradient in parts:
            flat = gradient.reshape(len(gradient), -1)  # of one number a record, too
            if index is not None:
                flat = flat.index_select(1, index)
            place = self._values[first : first + len(flat), self._columns[name]]
            if first < filled[name]:
                place += flat
            else:  # the first gradients of these records
                place.copy_(flat)
                filled[name] = first + len(flat)
        for name, count in filled.items():
            self._values[count:, self._columns[name]] = 0.0
        self._squares = _squared_norms(self._values)

    def average(self, sizes: Tensor) -> None:
        """Put the mean gradient of each group of consecutive records in place of theirs; ``sizes`` ``(groups,)`` may hold 0.

        Norm and sum see the same numbers afterwards as well. What is not finite in one record is not in its group.
        """
        owner = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)
        means = self._space.rows("means", len(sizes), self._values.shape[1], self._dtype, self._kind.device)
        means.zero_().index_add_(0, owner, self._values)
        self._values = means.div_(sizes[:, None])
        self._squares = _squared_norms(self._values)

    def wide_squared_norms(self, rows: Tensor) -> Tensor:
        return torch.linalg.vector_norm(self._values[rows], dim=1, dtype=torch.float64).square_()

    def zero_records(self, bad: Tensor) -> None:
        self._values.masked_fill_(bad[:, None], 0.0)
        self._squares = self._squares.masked_fill(bad, 0.0)

    def add_weighted_sum(self, total: Tensor, factor: Tensor, chunks: Sequence[slice] | None = None) -> None:
        values, found = self._values, torch.zeros_like(total)
        if chunks is not None:
            factor = held_in_float32(factor)  # in a chunk or not: what a record contributes may not depend on that
        chunks = chunks if chunks is not None and values.dtype == torch.float32 and not values.is_cuda else ()
        for rows in chunks:
            found += factor[rows].float() @ values[rows]
        for rest in others(chunks, len(values)):
            for rows in self._pieces(rest):
                found += factor[rows] @ values[rows].double()
        total += found[self._order]

    def mapped_squares(self, factor: Tensor, map: Map) -> Tensor:
        parts = [part.square_().sum(1, dtype=torch.float64) for _, part in self._mapped(factor, map)]
        return torch.cat(parts)

    def mapped_sum(self, factor: Tensor, map: Map, weight: Tensor | None) -> Tensor:
        total = torch.zeros(sum(self.sizes), dtype=torch.float64, device=factor.device)
        for rows, part in self._mapped(factor, map):
            weighted = part if weight is None else part.mul_(weight[rows, None].to(part.dtype))
            total += weighted.sum(0, dtype=torch.float64)
        return total[self._order]

    def _mapped(self, factor: Tensor, map: Map) -> Iterator[tuple[slice, Tensor]]:
        for rows in self._pieces(slice(0, len(self._values))):
            yield rows, map((self._values[rows] * factor[rows, None]).to(self._values.dtype))

    def _pieces(self, rows: slice) -> Iterator[slice]:
        count = max(1, CHUNK // max(1, sum(self.sizes)))
        return (slice(start, min(start + count, rows.stop)) for start in range(rows.start, rows.stop, count))


def _squared_norms(values: Tensor) -> Tensor:
    """Squared norm of each row, float64, by blocks: a float64 copy of all would cost more than the norms."""
    whole = values.shape[1] // BLOCK * BLOCK
    blocks = values[:, :whole].unflatten(1, (whole // BLOCK, BLOCK))
    squares = torch.linalg.vector_norm(blocks, dim=2).double().square_().sum(1)
    return squares + torch.linalg.vector_norm(values[:, whole:], dim=1).double().square_()


def _whole(index: Tensor, parameter: Tensor) -> bool:
    return torch.equal(index, torch.arange(parameter.numel(), device=index.device))


class EmbeddingLayer(ExplicitGradients):
    """One ``nn.Embedding`` called once a pass, and what the last pass left. See ``Layer``.

    ``values`` ``(pairs, dimension)`` has one gradient for each token that a record holds, however often; pruned coordinates
    are zero. ``record`` and ``token`` ``(pairs,)`` say whose it is, and of which row of the table.
    """

    def __init__(self, name: str, module: nn.Embedding, live_mask: Mapping[str, Tensor]) -> None:
        self.module = module
        self.names: tuple[str, ...] = (f"{name}.weight" if name else "weight",)
        self._mask = live_mask[self.names[0]]
        self._index = self._mask.flatten().nonzero().squeeze(1)
        self.sizes: tuple[int, ...] = (len(self._index),)
        self._dtype = module.weight.dtype
        self.release()

    def release(self) -> None:
        self.values = self._squares = torch.empty(0)
        self.record = self.token = torch.empty(0, dtype=torch.long)

    def take(self, calls: Sequence[Call], records: int) -> None:
        """Add up, for each record, the gradients of each token it holds; the padding token has none."""
        seen, gradient = only_call(calls, self.names[0], records)
        tokens = seen.reshape(records, -1).long()
        size = len(self.module.weight)
        keys = (torch.arange(records, device=tokens.device)[:, None] * size + tokens).flatten()
        pairs, place = torch.unique(keys, return_inverse=True)
        self.record, self.token = pairs // size, pairs % size
        self.values = self.module.weight.new_zeros(len(pairs), self.module.embedding_dim)
        if gradient is not None:
            rows = gradient.reshape(-1, self.module.embedding_dim).to(self._dtype)
            self.values.index_add_(0, place, rows)
        lives = self._mask[self.token]
        if self.module.padding_idx is not None:
            lives = lives & (self.token != self.module.padding_idx)[:, None]
        self.values = self.values.masked_fill_(~lives, 0.0)
        self._squares = self._by_record(self.values.double().square().sum(1), records)

    def _by_record(self, values: Tensor, records: int) -> Tensor:
        return torch.zeros(records, dtype=torch.float64, device=values.device).index_add_(0, self.record, values)

    def zero_records(self, bad: Tensor) -> None:
        self.values = self.values.masked_fill(bad[self.record][:, None], 0.0)
        self._squares = self._squares.masked_fill(bad, 0.0)

    def add_weighted_sum(self, total: Tensor, factor: Tensor, chunks: Sequence[slice] | None = None) -> None:
        del chunks  # all in float64
        total += self._by_token(self.values * factor[self.record][:, None])

    def _by_token(self, values: Tensor) -> Tensor:
        table = torch.zeros(self._mask.shape, dtype=torch.float64, device=values.device)
        return table.index_add_(0, self.token, values).flatten()[self._index]

    def _mapped(self, factor: Tensor, map: Map) -> tuple[Tensor, float]:
        """Mapped gradients less what the map makes of zero, in float64 and zero where pruned; and that value itself."""
        at_zero = float(map(self.values.new_zeros(1)))
        scaled = (self.values * factor[self.record][:, None]).to(self._dtype)
        return map(scaled).double().masked_fill_(~self._mask[self.token], at_zero).sub_(at_zero), at_zero

    def mapped_squares(self, factor: Tensor, map: Map) -> Tensor:
        """Coordinates of tokens that a record does not hold are zero, and a map may send zero elsewhere."""
        values, at_zero = self._mapped(factor, map)
        changed = self._by_record(((values + at_zero).square() - at_zero**2).sum(1), len(factor))
        return (changed + len(self._index) * at_zero**2).clamp_min_(0.0)

    def mapped_sum(self, factor: Tensor, map: Map, weight: Tensor | None) -> Tensor:
        values, at_zero = self._mapped(factor, map)
        if weight is not None:
            values = values.mul_(weight[self.record][:, None])
        return self._by_token(values) + at_zero * (len(factor) if weight is None else float(weight.sum()))
