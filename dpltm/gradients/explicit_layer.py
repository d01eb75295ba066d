"""Layers whose per-record gradients are written out, at live coordinates alone: norm and sum see the same numbers, though
sums over positions or time steps, whose terms may cancel, would come out as two if they were computed twice in float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpltm.gradients import rules
from dpltm.gradients.layer import CHUNK, Call, Layer, Map, Workspace, only_call, pieces
from dpltm.randomness.sampling import held_in_float32, others


class ExplicitLayer(Layer):
    """Modules that share parameters with no others, called any number of times; a matrix ``(batch, live)`` a parameter."""

    def __init__(self, model: nn.Module, modules: tuple[nn.Module, ...], live_mask: Mapping[str, Tensor]) -> None:
        self.modules = modules
        names = {id(value): name for name, value in model.named_parameters()}
        indices: dict[str, Tensor] = {}  # what values are of, in the order of a first rule's gradients
        # of a module's parameter: its name, and where live coordinates stand in a gradient; None for all of them, in order,
        # since an index takes twice the memory of its weights
        self._parts: dict[tuple[int, int], tuple[str, Tensor | None]] = {}
        trained = [(part, value) for part in modules for value in part.parameters() if value.requires_grad]
        for module, value in trained:
            name, places = names[id(value)], rules.layout(module, value)
            if name not in indices:
                live = live_mask[name].flatten().nonzero().squeeze(1)
                indices[name] = live if places is None else live[places[live].argsort()]
            index = indices[name] if places is None else places[indices[name]]
            all_in_order = len(index) == value.numel() and _in_order(index)
            self._parts[id(module), id(value)] = (name, None if all_in_order else index)
        self.names = tuple(name for name in live_mask if name in indices)
        self.sizes = tuple(len(indices[name]) for name in self.names)
        # where to find live coordinates in their own order; None where values are in it
        orders = {name: index.argsort() for name, index in indices.items()}
        self._order = {name: None if _in_order(order) else order for name, order in orders.items()}
        self._like = trained[0][1]
        self._space = Workspace()
        self.release()

    def release(self) -> None:
        self._values = {}

    def shrink(self) -> None:
        """Give back the memory that outlives a batch: the next ones may be smaller."""
        self._space = Workspace()

    def begin(self, records: int) -> None:
        self._values = {
            name: self._space.rows(name, (records, size), self._like)
            for name, size in zip(self.names, self.sizes, strict=True)
        }

    def take(self, calls: Sequence[Call], rows: slice) -> None:
        """Add up each record's gradients over the calls; zero where the loss depends on none."""
        filled = dict.fromkeys(self.names, 0)
        for call in (call for call in calls if call.arrived):  # others no loss depends on
            room = partial(self._room, rows, filled, call.module)
            gradients = rules.rule_of(call.module)(call, rows.stop - rows.start, room, self._space)
            self._add_up(rows, filled, call.module, gradients)
        for name, count in filled.items():
            self._values[name][rows][count:] = 0.0

    def _room(
        self, rows: slice, filled: Mapping[str, int], module: nn.Module, parameter: Tensor, first: int, count: int
    ) -> Tensor:
        """Where these gradients are wanted, if they come first and whole; else memory for them."""
        name, index = self._parts.get((id(module), id(parameter)), ("", parameter))
        if index is None and first >= filled[name]:
            place = self._values[name][rows][first : first + count]
            if place.is_contiguous():
                return place
        return self._space.take("product", (count, parameter.numel()), self._like)

    def _add_up(self, rows: slice, filled: dict[str, int], module: nn.Module, gradients: rules.Gradients) -> None:
        for parameter, first, gradient in gradients:
            if (id(module), id(parameter)) not in self._parts:
                continue  # it is frozen
            name, index = self._parts[id(module), id(parameter)]
            flat = gradient.reshape(len(gradient), -1)  # of one number a record, too
            place = self._values[name][rows][first : first + len(flat)]
            if first < filled[name]:
                place += flat if index is None else flat.index_select(1, index)
                continue
            filled[name] = first + len(flat)  # the first gradients of these records
            if index is not None:  # not into the place itself: its rows are apart, and torch takes six times as long
                place.copy_(flat.index_select(1, index))
            elif flat.data_ptr() != place.data_ptr():
                place.copy_(flat)

    def average(self, sizes: Tensor, records: int) -> None:
        """Put the mean gradient of each group of ``sizes`` consecutive rows in place of theirs; ``records`` are left, those
        beyond the groups to fill a pass up. A group's rows are added one by one, so it depends on nothing else."""
        owner = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)
        for name, values in self._values.items():
            means = self._space.rows(f"means {name}", (records, values.shape[1]), self._like)
            means[: len(sizes)].zero_().index_add_(0, owner, values[: len(owner)]).div_(sizes[:, None])
            means[len(sizes) :] = 1.0  # of ordinary size
            self._values[name] = means

    def add_weighted_sum(self, total: Tensor, factor: Tensor, chunks: Sequence[slice] | None = None) -> None:
        if chunks is not None:
            factor = held_in_float32(factor)  # in a chunk or not: what a record contributes may not depend on that
        plain = self._like.dtype == torch.float32 and not self._like.is_cuda
        chunks = chunks if chunks is not None and plain else ()
        narrow = factor.float()
        rest = others(chunks, len(factor))
        for part, (name, values) in zip(total.split(self.sizes), self._values.items(), strict=True):
            order = self._order[name]
            for rows in chunks:
                product = narrow[rows] @ values[rows]
                part += product if order is None else product[order]
            count = max(1, CHUNK // max(1, values.shape[1]))
            for rows in rest:
                for weights, numbers in zip(factor[rows].split(count), values[rows].split(count), strict=True):
                    product = weights @ numbers.double()
                    part += product if order is None else product[order]

    def mapped_squares(self, rows: slice, factor: Tensor, map: Map) -> Tensor:
        total = torch.zeros_like(factor)
        for values in self._values.values():
            for columns, part in self._mapped(values[rows], factor, map):
                total[columns] += part.square_().sum(1, dtype=torch.float64)
        return total

    def mapped_sum(self, rows: slice, factor: Tensor, map: Map, weight: Tensor | None, count: int) -> Tensor:
        totals = []
        for name, values in self._values.items():
            total = torch.zeros(values.shape[1], dtype=torch.float64, device=factor.device)
            for columns, part in self._mapped(values[rows], factor, map):
                weighted = part if weight is None else part.mul_(weight[columns, None].to(part.dtype))
                total += weighted[: max(0, count - columns.start)].sum(0, dtype=torch.float64)
            order = self._order[name]
            totals.append(total if order is None else total[order])
        return torch.cat(totals)

    def _mapped(self, values: Tensor, factor: Tensor, map: Map) -> Iterator[tuple[slice, Tensor]]:
        for rows in pieces(len(values), CHUNK // max(1, values.shape[1]), 32 * torch.get_num_threads()):
            yield rows, map((values[rows] * factor[rows, None]).to(values.dtype))


def _in_order(index: Tensor) -> bool:
    return torch.equal(index, torch.arange(len(index), device=index.device))


class EmbeddingLayer(Layer):
    """One ``nn.Embedding`` called once a pass. A record has as many slots as tokens: one has the gradient of each token that
    it holds, however often; pruned coordinates are zero, and so is every slot that is left over, not ``held``."""

    def __init__(self, name: str, module: nn.Embedding, live_mask: Mapping[str, Tensor]) -> None:
        self.module = module
        self.modules: tuple[nn.Module, ...] = (module,)
        self.names: tuple[str, ...] = (f"{name}.weight" if name else "weight",)
        self._mask = live_mask[self.names[0]]
        lives = self._mask.sum(1)
        self._before = lives.cumsum(0) - lives - 1  # one less than the live coordinates in earlier rows
        self.sizes: tuple[int, ...] = (int(lives.sum()),)
        self._full = self.sizes[0] == self._mask.numel()
        self.release()

    def release(self) -> None:
        self._values = {}
        self._tokens = torch.empty(0)
        self._held = torch.empty(0)

    def begin(self, records: int) -> None:
        self._records = records

    def take(self, calls: Sequence[Call], rows: slice) -> None:
        """Add up, for each record, the gradients of each token it holds; the padding token has none."""
        records, dimension = rows.stop - rows.start, self.module.embedding_dim
        seen, gradient = only_call(calls, self.names[0], records)
        tokens, order = seen.reshape(records, -1).long().sort(dim=1, stable=True)
        length = tokens.shape[1]
        slot = functional.pad((tokens.diff(dim=1) != 0).long().cumsum(1), (1, 0))[:, :length]  # of sorted tokens
        if rows.start == 0:
            shape = (self._records, length)
            self._values = {"": self.module.weight.new_zeros(self._records, length * dimension)}
            self._tokens, self._held = tokens.new_zeros(shape), tokens.new_zeros(shape, dtype=torch.bool)
        values = self._values[""][rows].view(-1, dimension)
        token = self._tokens[rows].scatter_(1, slot, tokens)
        self._held[rows] = torch.arange(length, device=tokens.device) <= slot[:, -1:]
        if gradient is not None:
            place = torch.empty_like(slot).scatter_(1, order, slot)
            place += torch.arange(records, device=tokens.device)[:, None] * length
            values.index_add_(0, place.flatten(), gradient.reshape(-1, dimension).to(values.dtype))
        if self.module.padding_idx is not None:
            values.masked_fill_((token == self.module.padding_idx).view(-1, 1), 0.0)
        if not self._full:
            values.masked_fill_(~self._mask[token].view_as(values), 0.0)

    def left(self, rows: slice) -> list[Tensor]:
        return [*super().left(rows), self._tokens[rows], self._held[rows]]

    def cut(self, records: int) -> None:
        super().cut(records)
        self._tokens, self._held = self._tokens[:records], self._held[:records]

    def add_weighted_sum(self, total: Tensor, factor: Tensor, chunks: Sequence[slice] | None = None) -> None:
        del chunks  # all in float64
        self._add_by_token(total, slice(0, len(factor)), self._values[""] * factor[:, None])

    def _add_by_token(self, total: Tensor, records: slice, values: Tensor) -> None:
        """Add ``values`` of these records, zero where pruned, to the rows of their tokens."""
        present = self._held[records]
        token, values = self._tokens[records][present], values.view(*present.shape, -1)[present]
        if self._full:
            total.view(self._mask.shape).index_add_(0, token, values)
            return
        tokens, place = torch.unique(token, return_inverse=True)
        rows = values.new_zeros(len(tokens), values.shape[1]).index_add_(0, place, values)
        lives = self._mask[tokens]
        total[(self._before[tokens][:, None] + lives.cumsum(1))[lives]] += rows[lives]

    def _mapped(self, rows: slice, factor: Tensor, map: Map) -> tuple[Tensor, float]:
        """Mapped gradients less what the map makes of zero, in float64 and zero where pruned; and that value itself."""
        values, tokens = self._values[""][rows], self._tokens[rows]
        at_zero = float(map(values.new_zeros(1)))
        mapped = map((values * factor[:, None]).to(values.dtype)).double()
        live = self._mask[tokens] & self._held[rows][:, :, None]
        return mapped.masked_fill_(~live.view_as(mapped), at_zero).sub_(at_zero), at_zero

    def mapped_squares(self, rows: slice, factor: Tensor, map: Map) -> Tensor:
        """Coordinates of tokens that a record does not hold are zero, and a map may send zero elsewhere."""
        values, at_zero = self._mapped(rows, factor, map)
        changed = ((values + at_zero).square() - at_zero**2).sum(1)
        return (changed + self.sizes[0] * at_zero**2).clamp_min_(0.0)

    def mapped_sum(self, rows: slice, factor: Tensor, map: Map, weight: Tensor | None, count: int) -> Tensor:
        values, at_zero = self._mapped(rows, factor, map)
        if weight is not None:
            values = values.mul_(weight[:, None])
        total = torch.zeros(self.sizes[0], dtype=torch.float64, device=values.device)
        self._add_by_token(total, slice(rows.start, rows.start + count), values[:count])
        return total + at_zero * (count if weight is None else float(weight[:count].sum()))
