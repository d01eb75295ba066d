"""Embedding tables: a record's gradient lives in the rows of the tokens that it holds, and only those are written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from dpltm.gradients.calls import Call, only_call
from dpltm.gradients.layer import ExplicitGradients, Map


class EmbeddingLayer(ExplicitGradients):
    """One ``nn.Embedding`` called once a pass, and what the last pass left. See ``Layer``.

    Args:
        name: of the module within the model.
        module: the layer.
        live_mask: live coordinates of every parameter of the model, none of frozen ones.

    Attributes:
        values: gradients by record and token, ``(pairs, dimension)``: one row for each token that a record holds, however
            often; pruned coordinates are zero.
        record, token: whose gradient it is, and of which row of the table, ``(pairs,)``.
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
        """Adds up, for each record, the gradients of each token it holds; those of the padding token are none.

        Raises:
            InputError: it was not called once.
        """
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
        """See :meth:`Layer.add_weighted_sum`."""
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
        """See :meth:`Layer.mapped_sum`."""
        values, at_zero = self._mapped(factor, map)
        if weight is not None:
            values = values.mul_(weight[self.record][:, None])
        return self._by_token(values) + at_zero * (len(factor) if weight is None else float(weight.sum()))
