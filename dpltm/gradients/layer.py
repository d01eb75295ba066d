"""Parts of a network after a pass, as the engine uses them, and the calls of modules that they are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from dpltm.errors import InputError
from dpltm.gradients.draws import Draws


@dataclass
class Call:
    """One call of one module, its tensors detached: ``outputs`` that a loss can depend on, their ``places`` in the flattened
    output, and the loss's gradient at each, if any; ``keys`` of records, and the number of the ``first`` draw in it."""

    module: Any  # of a class that its rule knows
    inputs: tuple[Any, ...]
    keywords: dict[str, Any]
    outputs: list[Tensor]
    places: list[int]
    gradients: list[Tensor | None] = field(default_factory=list)
    keys: Tensor | None = None
    first: int = 0
    _versions: list[tuple[Tensor, int]] = field(default_factory=list)

    @property
    def arrived(self) -> dict[int, Tensor]:
        """Gradients by place, where there are any."""
        pairs = zip(self.places, self.gradients, strict=True)
        return {place: gradient for place, gradient in pairs if gradient is not None}

    def overwritten(self) -> bool:
        """True if an in-place operation has changed an input or an output since."""
        return any(tensor._version != version for tensor, version in self._versions)


def only_call(
    calls: Sequence[Call], name: str, records: int, dimensions: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """Input of a module, and the loss's gradient at its output; InputError unless it is called once a pass."""
    seen = calls[0].inputs[0] if len(calls) == 1 else None
    if seen is None or len(seen) != records or dimensions not in (None, seen.ndim):
        raise InputError(f"model: {name} is used otherwise than in the passes before, once on {records} rows")
    return seen, calls[0].gradients[0] if calls[0].gradients else None


@dataclass(eq=False)
class Recorder:
    """Keep the calls of ``modules`` while entered. ``draws`` answer those of the forward pass; outputs of ``copy``, which
    are overwritten, are handed on as copies; functions stand ``instead`` of the forward of some modules. Modules of
    ``spread`` see one row for all of the ``records``: what they give is handed on as a row, with a gradient, for each."""

    modules: Sequence[nn.Module]
    copy: Sequence[nn.Module] = ()
    instead: Sequence[tuple[nn.Module, Callable[..., Any]]] = ()
    draws: Draws | None = None
    spread: Sequence[nn.Module] = ()
    records: int = 0
    calls: list[Call] = field(default_factory=list, init=False)
    _begun: list[int] = field(default_factory=list, init=False)
    _over: bool = field(default=False, init=False)

    def __enter__(self) -> Recorder:
        parts = [(module, _in_parts(self._keep, module)) for module in self.modules]
        hooked = [module for module, forward in parts if forward is None]
        self.instead = [*self.instead, *((module, forward) for module, forward in parts if forward is not None)]
        for module, forward in self.instead:
            module.forward = forward
        self._hooks = [  # before others, which may change what a module gives: rules go by its own
            module.register_forward_hook(self._keep, prepend=True, with_kwargs=True) for module in hooked
        ]
        if (draws := self.draws) is not None:
            begin: Any = lambda *_: self._begun.append(draws.count)  # noqa: E731
            self._hooks += [module.register_forward_pre_hook(begin) for module in hooked]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        for module, _forward in self.instead:
            del module.forward
        self.instead = ()  # whose functions hold on to this: what was kept would wait for the collector

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> Any:
        if self._over:  # checkpointing calls modules again during the backward pass
            return output
        inputs, keywords = inputs_first(inputs, keywords)
        if module in self.spread and len(inputs[0]) == len(output) == 1:
            seen_by_all, output = (value.expand(self.records, *value.shape[1:]) for value in (inputs[0], output))
            inputs = (seen_by_all,)
        if isinstance(output, Tensor):  # as nearly always
            places, outputs = ([0], [output]) if output.requires_grad else ([], [])
        else:
            flat, form = tree_flatten(output)
            places = [place for place, value in enumerate(flat) if isinstance(value, Tensor) and value.requires_grad]
            if len(places) > 1:  # one may have been made from another: what is kept must be what the loss sees of each
                flat = [value.view_as(value) if place in places else value for place, value in enumerate(flat)]
                output = tree_unflatten(flat, form)
            outputs = [flat[place] for place in places]
        if len(inputs) == 1 and isinstance(inputs[0], Tensor) and not keywords:
            inputs = (inputs[0].detach(),)
            seen: Sequence[Any] = inputs
        else:
            inputs, keywords = (tree_map_only(Tensor, Tensor.detach, part) for part in (inputs, keywords))
            seen = tensors_in((inputs, keywords))
        call = Call(module, inputs, keywords, outputs, places)
        if self.draws is not None and self._begun:  # not in parts, which draw nothing
            call.keys = self.draws.keys
            call.first = self._begun.pop()
        call._versions = [(value, value._version) for value in (*seen, *outputs)]
        self.calls.append(call)
        return tree_map_only(Tensor, Tensor.clone, output) if module in self.copy else output

    def backward(self, total: Tensor) -> None:
        """Fill in the gradients of ``total``, a scalar, at every output; InputError after an in-place operation."""
        self._over = True
        outputs = [output for call in self.calls for output in call.outputs]
        gradients = iter(torch.autograd.grad(total, outputs, allow_unused=True) if outputs else ())
        for call in self.calls:
            if call.overwritten():
                kind = type(call.module).__name__
                raise InputError(f"model: what a {kind} saw or gave is overwritten in place; leave inplace=True out")
            call.gradients = [next(gradients) for _ in call.outputs]


def inputs_first(inputs: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a module, with its input in front where that is named."""
    if "input" not in keywords:
        return inputs, keywords
    return (keywords["input"], *inputs), {name: value for name, value in keywords.items() if name != "input"}


Keep = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], Any]


def _in_parts(keep: Keep, module: nn.Module) -> Callable[..., Any] | None:
    """The forward that takes the place of a module's own."""
    if "forward" in vars(module):
        return None
    if type(module) is nn.GroupNorm and module.affine:
        return _normalise(keep, module)
    if type(module) is not nn.MultiheadAttention or not module.batch_first or module.in_proj_weight is None:
        return None
    return _attend(keep, module) if module.bias_k is None and not module.add_zero_attn else None


def _normalise(keep: Keep, module: nn.GroupNorm) -> Callable[[Tensor], Tensor]:
    """Every record has scales and shifts of its own, kept as what ``module`` gave: the pass leaves the gradients at them."""

    def forward(input: Tensor) -> Tensor:
        records = len(input)
        affine = (value for value in (module.weight, module.bias) if value is not None)
        own = keep(module, (input,), {}, tuple(value.expand(records, -1) for value in affine))
        beside = input.reshape(1, -1, *input.shape[2:])
        groups = records * module.num_groups  # channels of all records
        scale = own[0].reshape(-1)
        shift = own[1].reshape(-1) if len(own) > 1 else None
        normalised = functional.group_norm(beside, groups, scale, shift, module.eps).view_as(input)
        last = input.ndim == 4 and input.stride(1) == 1 and not input.is_contiguous()
        # as the module's own forward
        return normalised.contiguous(memory_format=torch.channels_last) if last else normalised

    return forward


def _attend(keep: Keep, module: nn.MultiheadAttention) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Its two products by weights are kept as calls of their own, whose keyword is the weight's name."""
    heads, weight, bias = module.num_heads, module.in_proj_weight, module.in_proj_bias

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        seen: tuple[Tensor, ...] = (query, key, value)
        if query is key is value:
            seen = (query,)
            projected: Any = functional.linear(query, weight, bias)
        else:
            biases = (None,) * 3 if bias is None else bias.chunk(3)
            projected = tuple(map(functional.linear, seen, weight.chunk(3), biases))
        projected = keep(module, seen, {"weight": "in_proj"}, projected)
        projected = projected.chunk(3, -1) if len(seen) == 1 else projected
        query, key, value = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in projected)
        is_causal = is_causal and key_padding_mask is None and not need_weights
        masks = [] if key_padding_mask is None else [key_padding_mask[:, None, None]]
        if attn_mask is not None and not is_causal:
            masks.append(attn_mask if attn_mask.ndim == 2 else attn_mask.unflatten(0, (-1, heads)))
        masks = [torch.where(part, -math.inf, 0.0) if part.dtype == torch.bool else part for part in masks]
        mask = sum(masks[1:], masks[0]).to(query.dtype) if masks else None
        drop = module.dropout if module.training else 0.0
        weights = None
        if need_weights:
            scores = query * key.shape[-1] ** -0.5 @ key.transpose(-1, -2)
            weights = functional.softmax(scores if mask is None else scores + mask, -1)
            if drop:
                weights = functional.dropout(weights.flatten(0, 1), drop).view_as(weights)
            attended = weights @ value
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            attended = functional.scaled_dot_product_attention(query, key, value, mask, drop, is_causal)
        attended = attended.transpose(1, 2).flatten(2)
        output = functional.linear(attended, module.out_proj.weight, module.out_proj.bias)
        return keep(module, (attended,), {"weight": "out_proj"}, output), weights

    return forward


def tensors_in(tree: Any) -> list[Tensor]:
    """Tensors in nested collections, in the order of flattening."""
    return [value for value in tree_flatten(tree)[0] if isinstance(value, Tensor)]


Map = Callable[[Tensor], Tensor]
"""An element-wise filter's map; may overwrite what it is given."""


class Layer(Protocol):
    """A part of a network, ``modules`` that own some parameters, of ``sizes`` live coordinates, under a mask.

    ``begin`` says how many rows a batch has, and each ``take`` is of those of one pass, until all were taken. From then to
    ``release`` it stands for the gradients of a batch, one for each record, at its live coordinates, row-major within each.
    All that is made of ``rows`` is made in the shape of a pass. What is implemented here is of gradients that are written
    out, in matrices ``(batch, coordinates)``.
    """

    modules: tuple[nn.Module, ...]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    _values: dict[str, Tensor]

    def begin(self, records: int) -> None:
        """Make room for a batch."""

    def take(self, calls: Sequence[Call], rows: slice) -> None:
        """Take what the last pass, over these rows of the batch, left with this layer."""

    def left(self, rows: slice) -> list[Tensor]:
        """What a pass left of these rows, ``(rows, ...)`` each: all that their gradients are made from."""
        return [values[rows] for values in self._values.values()]

    def cut(self, records: int) -> None:
        """Keep the first ``records`` rows alone: the others fill a pass up."""
        self._values = {name: values[:records] for name, values in self._values.items()}

    def release(self) -> None:
        """Free it."""

    def zero_records(self, bad: Tensor) -> None:
        """Set the gradients of these records, ``(batch,)`` bool, to exactly zero, whatever they hold."""
        for values in self._values.values():
            values[: len(bad)].masked_fill_(bad[:, None], 0.0)

    def measure(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Of each record, ``(rows,)``: how much it brings, NaN or no smaller than its largest magnitude but for rounding,
        and the squared norm of its gradient, in the layer's precision or better."""
        squares = []
        for values in self._values.values():
            in_blocks = values.shape[1] // BLOCK * BLOCK
            if in_blocks:
                blocks = values[rows, :in_blocks].unflatten(1, (in_blocks // BLOCK, BLOCK))
                squares.append(torch.linalg.vector_norm(blocks, dim=2).double().square_().sum(1))
            if in_blocks < values.shape[1] or not in_blocks:
                squares.append(torch.linalg.vector_norm(values[rows, in_blocks:], dim=1).double().square_())
        total = torch.stack(squares).sum(0)
        return total.sqrt().to(values.dtype), total  # infinite where the dtype cannot hold it

    def wide_squared_norms(self, rows: slice) -> Tensor:
        """Squared norm of each record's gradient in float64, ``(rows,)``."""
        parts = [torch.linalg.vector_norm(value[rows], dim=1, dtype=torch.float64) for value in self._values.values()]
        return torch.stack(parts).square_().sum(0)

    def add_weighted_sum(self, total: Tensor, factor: Tensor, chunks: Sequence[slice] | None = None) -> None:
        """Add the sum over records of factor ``(batch,)`` times gradient to ``total``, ``(live,)`` float64; float32
        within each of ``chunks`` (see ``sampling``)."""

    def mapped_squares(self, rows: slice, factor: Tensor, map: Map) -> Tensor:
        """Squared norm of each record's mapped factor times gradient, ``(rows,)`` float64."""

    def mapped_sum(self, rows: slice, factor: Tensor, map: Map, weight: Tensor | None, count: int) -> Tensor:
        """Sum over the first ``count`` rows of ``weight``, or 1, times mapped factor times gradient, ``(live,)`` float64."""


BLOCK = 64
"""Coordinates whose squares are added in the gradients' own precision; blocks are added in float64. Float32 is off by
a factor of 1 + (64 + 2) 2^-24 at most, half of it in the norm: far less than the engine's ``rounding`` allows for."""

CHUNK = 400_000
"""Most per-record coordinates that element-wise filters hold at once (1.6 MB in float32: what fits a cache is quickest)."""


def pieces(records: int, most: int, unit: int = 1) -> Iterator[slice]:
    """Rows in pieces of one size: the largest multiple of ``unit`` up to ``most`` that divides them; else one by one."""
    size = max((size for size in range(unit, min(records, most) + 1, unit) if records % size == 0), default=1)
    return (slice(start, start + size) for start in range(0, records, size))


class Workspace:
    """Buffers that outlive a step: fresh memory costs more than what is computed in it. Batches may differ in size."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}
        self._taken: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}  # to look at a buffer anew takes time

    def take(self, name: str, shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A contiguous tensor with whatever values it holds, until ``name`` and the dtype are taken again."""
        key = (name, dtype or like.dtype, like.device)
        buffer_view = self._taken.get(key)
        if buffer_view is None or buffer_view.shape != shape:
            count = math.prod(shape)
            buffer = self._buffers.get(key)
            if buffer is None or len(buffer) < count:
                buffer = torch.empty(count + count // 4, dtype=dtype or like.dtype, device=like.device)
                self._buffers[key] = buffer
            buffer_view = self._taken[key] = buffer[:count].view(shape)
        return buffer_view

    def rows(self, name: str, shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A matrix whose rows begin at multiples of 64 bytes: how a library rounds may depend on where they do."""
        (rows, width), step = shape, 64 // (dtype or like.dtype).itemsize
        return self.take(name, (rows, -(-width // step) * step), like, dtype)[:, :width]

    def aligned(self, name: str, values: Tensor) -> Tensor:
        """``values`` ``(rows, width)`` if its rows begin as those of :meth:`rows` do, else a copy."""
        size = values.element_size()
        if values.stride(1) == 1 and values.stride(0) * size % 64 == values.data_ptr() % 64 == 0:
            return values
        return self.rows(name, values.shape, values).copy_(values)

    def turn(self, name: str, values: Tensor) -> Tensor:
        """A contiguous copy of the transpose of ``values``, a matrix; written so that torch takes all its threads."""
        turned = self.take(name, values.T.shape, values)
        turned.T.copy_(values)
        return turned

    def fill(self, name: str, values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return self.take(name, values.shape, values, dtype).copy_(values)
