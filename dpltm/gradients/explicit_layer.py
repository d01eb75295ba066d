"""Layers whose per-record gradients are written out, at live coordinates alone: norm and sum see the same numbers.

A coordinate of such a gradient is a sum, over positions or time steps, whose terms may cancel: computed twice in float32,
it could come out as two numbers, and the bound would not hold. Of an embedding table only rows of tokens that a record holds
are written out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

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
    """Modules that share parameters with no others, called any number of times. See ``Layer``.

    Each parameter's gradients lie in a matrix of their own, ``(batch, live)``: where all of it is live, products are written
    there.
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
        self.sizes = tuple(int(live_mask[name].sum()) for name in self.names)
        indices: dict[str, Tensor] = {}  # what values are of, in the order of a first rule's gradients
        self._parts: dict[tuple[int, int], tuple[str, Tensor | None]] = {}
        for module in modules.values():
            for value in module.parameters():
                if value.requires_grad:
                    name, places = names[id(value)], rules.layout(module, value)
                    if name not in indices:
                        live = live_mask[name].flatten().nonzero().squeeze(1)
                        indices[name] = live if places is None else live[places[live].argsort()]
                    index = indices[name] if places is None else places[indices[name]]
                    self._parts[id(module), id(value)] = (name, None if _whole(index, value) else index)
        self._order = {name: _sorting(index) for name, index in indices.items()}
        self._index = {
            name: None if _whole(index, parameters[name]) else index for name, index in indices.items()
        }  # an index takes twice the memory of its weights
        self._kind = next(iter(parameters.values()))
        self._dtype = self._kind.dtype
        self._space = Workspace()
        self.release()

    def release(self) -> None:
        self._values: dict[str, Tensor] = {}
        self._squares = None

    def shrink(self) -> None:
        """Give back the memory that outlives a batch: the next ones may be smaller."""
        self._space = Workspace()

    def begin(self, records: int) -> None:
        device = self._kind.device
        self._values = {
            name: self._space.rows(name, records, size, self._dtype, device)
            for name, size in zip(self.names, self.sizes, strict=True)
        }
        self._squares = None

    def take(self, calls: Sequence[Call], rows: slice) -> None:
        """Add up each record's gradients over the calls; zero where the loss depends on none."""
        self._add_up(rows, lambda filled: self._parts_of(calls, rows, filled))

    def hold(self, rows: slice, gradients: Iterator[tuple[str, Tensor]]) -> None:
        """Take per-record gradients ``(rows, *shape)`` of parameters by name."""
        self._add_up(rows, lambda _: ((name, self._index[name], 0, gradient) for name, gradient in gradients))

    def _parts_of(self, calls: Sequence[Call], rows: slice, filled: Mapping[str, int]) -> Iterator[_Part]:
        for call in (call for call in calls if call.outputs):  # there are none under torch.no_grad
            room = partial(self._room, rows, filled, call.module)
            rule = rules.rule_of(call.module)
            for parameter, first, gradient in rule(call, rows.stop - rows.start, room, self._space):
                part = self._parts.get((id(call.module), id(parameter)))
                if part is not None:  # else it is frozen
                    yield *part, first, gradient

    def _room(
        self,
        rows: slice,
        filled: Mapping[str, int],
        module: nn.Module,
        parameter: Tensor,
        first: int,
        count: int,
    ) -> Tensor:
        """The place of these gradients if they come first and whole, else memory for them."""
        name, index = self._parts.get((id(module), id(parameter)), ("", parameter))
        if index is None and first >= filled[name]:
            place = self._values[name][rows][first : first + count]
            if place.is_contiguous():
                return place
        return self._space.take("product", (count, parameter.numel()), self._dtype, parameter.device)

    def _add_up(self, rows: slice, parts_of: Callable[[Mapping[str, int]], Iterator[_Part]]) -> None:
        filled = dict.fromkeys(self.names, 0)
        values = {name: value[rows] for name, value in self._values.items()}
        for name, index, first, gradient in parts_of(filled):
            flat = gradient.reshape(len(gradient), -1)  # of one number a record, too
            place = values[name][first : first + len(flat)]
            if first < filled[name]:
                place += flat if index is None else flat.index_select(1, index)
                continue
            filled[name] = first + len(flat)  # the first gradients of these records
            if index is not None:  # not into the place itself: its rows are apart, and torch takes six times as long
                place.copy_(flat.index_select(1, index))
            elif flat.data_ptr() != place.data_ptr():
                place.copy_(flat)
        for name, count in filled.items():
            values[name][count:] = 0.0

    def _squared_norms(self) -> Tensor:
        return _squared_norms(self._values.values())

    def average(self, sizes: Tensor) -> None:
        """Put the mean gradient of each group of consecutive records in place of theirs; ``sizes`` ``(groups,)`` may hold 0.

        Norm and sum see the same numbers afterwards as well. What is not finite in one record is not in its group.
        """
        owner = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)
        for name, values in self._values.items():
            means = self._space.rows(f"means {name}", len(sizes), values.shape[1], self._dtype, self._kind.device)
            means.zero_().index_add_(0, owner, values)
            self._values[name] = means.div_(sizes[:, None])
        self._squares = None

    def wide_squared_norms(self, rows: Tensor) -> Tensor:
        parts = [torch.linalg.vector_norm(value[rows], dim=1, dtype=torch.float64) for value in self._values.values()]
        return torch.stack(parts).square_().sum(0)

    def zero_records(self, bad: Tensor) -> None:
        for values in self._values.values():
            values.masked_fill_(bad[:, None], 0.0)
        self._squares = None

    def add_weighted_sum(self, total: Tensor, factor: Tensor, chunks: Sequence[slice] | None = None) -> None:
        if chunks is not None:
            factor = held_in_float32(factor)  # in a chunk or not: what a record contributes may not depend on that
        plain = self._dtype == torch.float32 and not self._kind.is_cuda
        chunks = chunks if chunks is not None and plain else ()
        narrow, rest = factor.float(), others(chunks, len(factor))
        for part, (name, values) in zip(total.split(self.sizes), self._values.items(), strict=True):
            order = self._order[name]
            for rows in chunks:
                found = narrow[rows] @ values[rows]
                part += found if order is None else found[order]
            for rows in (some for each in rest for some in _pieces(each, values.shape[1])):
                found = factor[rows] @ values[rows].double()
                part += found if order is None else found[order]

    def mapped_squares(self, factor: Tensor, map: Map) -> Tensor:
        total = torch.zeros_like(factor)
        for values in self._values.values():
            for rows, part in self._mapped(values, factor, map):
                total[rows] += part.square_().sum(1, dtype=torch.float64)
        return total

    def mapped_sum(self, factor: Tensor, map: Map, weight: Tensor | None) -> Tensor:
        totals = []
        for name, values in self._values.items():
            total = torch.zeros(values.shape[1], dtype=torch.float64, device=factor.device)
            for rows, part in self._mapped(values, factor, map):
                weighted = part if weight is None else part.mul_(weight[rows, None].to(part.dtype))
                total += weighted.sum(0, dtype=torch.float64)
            order = self._order[name]
            totals.append(total if order is None else total[order])
        return torch.cat(totals)

    def _mapped(self, values: Tensor, factor: Tensor, map: Map) -> Iterator[tuple[slice, Tensor]]:
        for rows in _pieces(slice(0, len(values)), values.shape[1]):
            yield rows, map((values[rows] * factor[rows, None]).to(values.dtype))


def _pieces(rows: slice, width: int) -> Iterator[slice]:
    count = max(1, CHUNK // max(1, width))
    return (slice(start, min(start + count, rows.stop)) for start in range(rows.start, rows.stop, count))


def _sorting(index: Tensor) -> Tensor | None:
    """Where to find what ``index`` is of in increasing order; None if it is in that order."""
    order = index.argsort()
    return None if torch.equal(order, torch.arange(len(order), device=order.device)) else order


def _squared_norms(values: Iterable[Tensor]) -> Tensor:
    """Squared norm of each row of matrices side by side, float64, by blocks: a float64 copy would cost more."""
    squares = []
    for each in values:
        whole = each.shape[1] // BLOCK * BLOCK
        if whole:
            blocks = each[:, :whole].unflatten(1, (whole // BLOCK, BLOCK))
            squares.append(torch.linalg.vector_norm(blocks, dim=2).double().square_().sum(1))
        if whole < each.shape[1] or not whole:
            squares.append(torch.linalg.vector_norm(each[:, whole:], dim=1).double().square_())
    return torch.stack(squares).sum(0)


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
        lives = self._mask.sum(1)
        self._before = lives.cumsum(0) - lives - 1  # one less than the live coordinates in earlier rows
        self.sizes: tuple[int, ...] = (int(lives.sum()),)
        self._full = self.sizes[0] == self._mask.numel()
        self._dtype = module.weight.dtype
        self.release()

    def release(self) -> None:
        self.begin(0)

    def begin(self, records: int) -> None:
        device = self.module.weight.device
        self.values = self.module.weight.new_zeros(0, self.module.embedding_dim)
        self.record = self.token = torch.empty(0, dtype=torch.long, device=device)
        self._records, self._squares = records, None

    def take(self, calls: Sequence[Call], rows: slice) -> None:
        """Add up, for each record, the gradients of each token it holds; the padding token has none."""
        records = rows.stop - rows.start
        seen, gradient = only_call(calls, self.names[0], records)
        tokens = seen.reshape(records, -1).long()
        size = len(self.module.weight)
        keys = (torch.arange(rows.start, rows.stop, device=tokens.device)[:, None] * size + tokens).flatten()
        pairs, place = torch.unique(keys, return_inverse=True)
        record, token = pairs // size, pairs % size
        values = self.module.weight.new_zeros(len(pairs), self.module.embedding_dim)
        if gradient is not None:
            values.index_add_(0, place, gradient.reshape(-1, self.module.embedding_dim).to(self._dtype))
        if self.module.padding_idx is not None:
            values.masked_fill_((token == self.module.padding_idx)[:, None], 0.0)
        if not self._full:
            values.masked_fill_(~self._mask[token], 0.0)
        self.values, self.record, self.token = (
            torch.cat(both) if len(both[0]) else both[1]
            for both in ((self.values, values), (self.record, record), (self.token, token))
        )

    def _squared_norms(self) -> Tensor:
        return self._by_record(_squared_norms([self.values]))

    def wide_squared_norms(self, rows: Tensor) -> Tensor:
        return self._by_record(self.values.double().square().sum(1))[rows]

    def _by_record(self, values: Tensor) -> Tensor:
        return values.new_zeros(self._records).index_add_(0, self.record, values)

    def zero_records(self, bad: Tensor) -> None:
        self.values = self.values.masked_fill(bad[self.record][:, None], 0.0)
        self._squares = None

    def add_weighted_sum(self, total: Tensor, factor: Tensor, chunks: Sequence[slice] | None = None) -> None:
        del chunks  # all in float64
        self._add_by_token(total, self.values * factor[self.record][:, None])

    def _add_by_token(self, total: Tensor, values: Tensor) -> None:
        """Add ``values`` ``(pairs, dimension)``, zero where pruned, to the rows of their tokens."""
        if self._full:
            total.view(self._mask.shape).index_add_(0, self.token, values)
            return
        tokens, place = torch.unique(self.token, return_inverse=True)
        rows = values.new_zeros(len(tokens), values.shape[1]).index_add_(0, place, values)
        lives = self._mask[tokens]
        total[(self._before[tokens][:, None] + lives.cumsum(1))[lives]] += rows[lives]

    def _mapped(self, factor: Tensor, map: Map) -> tuple[Tensor, float]:
        """Mapped gradients less what the map makes of zero, in float64 and zero where pruned; and that value itself."""
        at_zero = float(map(self.values.new_zeros(1)))
        scaled = (self.values * factor[self.record][:, None]).to(self._dtype)
        return map(scaled).double().masked_fill_(~self._mask[self.token], at_zero).sub_(at_zero), at_zero

    def mapped_squares(self, factor: Tensor, map: Map) -> Tensor:
        """Coordinates of tokens that a record does not hold are zero, and a map may send zero elsewhere."""
        values, at_zero = self._mapped(factor, map)
        changed = self._by_record(((values + at_zero).square() - at_zero**2).sum(1))
        return (changed + self.sizes[0] * at_zero**2).clamp_min_(0.0)

    def mapped_sum(self, factor: Tensor, map: Map, weight: Tensor | None) -> Tensor:
        values, at_zero = self._mapped(factor, map)
        if weight is not None:
            values = values.mul_(weight[self.record][:, None])
        total = torch.zeros(self.sizes[0], dtype=torch.float64, device=values.device)
        self._add_by_token(total, values)
        return total + at_zero * (len(factor) if weight is None else float(weight.sum()))
