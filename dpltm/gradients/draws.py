"""Random draws of a network during a private step: a record's are its own, by a key of its own.

PyTorch draws by place in the batch, from a generator whose seed is public or has 32 bits: one record more moves the dropout
masks of all that come after it. Here every operation that would draw is answered from the records' keys instead. The c-th
draw of a pass, at position p within record r, is a fixed function of (key of r, c, p).

**Why the bound holds.** Every step takes fresh secret bits for one key of 64 bits for each record at hand, as its coin is
taken (``randomness.sampling.record_keys``). Keys are independent and uniform, and independent of coins and noise. Couple the
runs on D, and on D' with one record r more: every common record has the same coin and the same key in both. Given coins and
keys, the sums differ by the filtered gradient of r, if r was drawn. For each value of the keys that is the Poisson-sampled
Gaussian mechanism of sensitivity C, hence for their mixture: its divergences (hockey-stick and Renyi) are jointly convex. A
record that takes another's place takes its key. How random the draws *within* a record are matters for the training alone.

**Which numbers are a record's.** The trial on made-up records (``probe``) finds the dimension of every draw that is as long
as the batch, or a multiple of it in dimension 0 (attention weights ``(batch * heads, ...)``), and training holds to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from dpltm.errors import InputError

Axis = tuple[int, int]
"""Dimension of records in a draw, and how many of its rows each record has; more than one in dimension 0 alone."""

REMEDY = "switch it off (p=0, dropout=0, or eval() of this module)"

SELDOM = f"draws random numbers for some batches or records and not for others; draw always, or {REMEDY}"

ONES = 2**64 - 1
STEP, FIRST, SECOND = (value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""Of SplitMix64 (Steele, Lea, Flood 2014), as signed numbers: the odd increment, and the two multipliers."""

BLOCK = 2**16
"""Words that are mixed at once on a processor: more would leave its cache in between."""


class CannotDraw(InputError):
    """A draw that cannot be made a record's own; says why, and what to use."""


def mixed(words: Tensor, other: Tensor | None = None) -> Tensor:
    """SplitMix64's finalizer of each word, int64, in place: a permutation of all words under which close ones part."""
    other = torch.empty_like(words) if other is None else other
    for shift, factor in ((30, FIRST), (27, SECOND), (31, None)):
        torch.bitwise_right_shift(words, shift, out=other).bitwise_and_(ONES >> shift)  # which carries the sign along
        words.bitwise_xor_(other)
        if factor is not None:
            words.mul_(factor)
    return words


def blocks(keys: Tensor, draw: int, count: int) -> Iterator[tuple[slice, Tensor]]:
    """Some records at a time, and random words ``(rows, count)`` int64 by key, draw and place, overwritten by the next."""
    own = mixed(keys + mixed(torch.tensor([draw + 1], device=keys.device)))
    along = torch.arange(count, device=keys.device) * STEP
    at_once = len(keys) if keys.is_cuda else max(1, BLOCK // max(1, count))
    space = torch.empty(2, min(at_once, len(keys)), count, dtype=torch.int64, device=keys.device)
    for start in range(0, len(keys), at_once):
        rows = slice(start, min(start + at_once, len(keys)))
        words, other = space[:, : rows.stop - start]
        yield rows, mixed(torch.add(own[rows, None], along, out=words), other)


class Draws(TorchDispatchMode):
    """Answers draws while entered, from the records' keys.

    ``axes`` are those of every draw of a pass, in order; None to find them, and the ``shapes`` of draws. ``count``, from
    ``first`` on, is the number of the next draw. Records that are ``mapped`` over are in dimension 0 of every draw.
    """

    def __init__(
        self, keys: Tensor, axes: Sequence[Axis] | None = None, first: int = 0, *, mapped: bool = False
    ) -> None:
        super().__init__()
        self.keys, self.axes, self.count, self._mapped = keys, list(axes or ()), first, mapped
        self._finding = axes is None
        self._over = False
        self.shapes: list[torch.Size] = []
        self._by_steps: Any = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # what skips it imports the compiler, for seconds; nothing is compiled within a mode anyway

    def __enter__(self) -> Draws:
        if self.keys.is_cuda:  # the others drop out inside a kernel
            self._by_steps = sdpa_kernel(SDPBackend.MATH)
            self._by_steps.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        if self._by_steps is not None:
            self._by_steps.__exit__(*raised)

    def close(self) -> None:
        """Refuse draws from here on: the forward pass is over. Raises CannotDraw if there were fewer than in the trial."""
        if self.count != len(self.axes):
            raise CannotDraw(SELDOM)
        self._over = True

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in operation.tags or _is_still(operation, args, kwargs):
            return operation(*args, **kwargs)
        if self._over:
            raise CannotDraw("draws in the backward pass; leave out hooks that draw, and checkpoints of what draws")
        law = _LAWS.get(operation)
        if law is None or kwargs.pop("generator", None) is not None:
            raise CannotDraw(
                f"draws by {operation.name()}, which cannot be made each record's own; use nn.Dropout, torch.rand_like,"
                f" torch.randn_like or torch.bernoulli, or {REMEDY}"
            )
        return law(self, *args, **kwargs)

    def below(self, shape: torch.Size, chance: float, device: torch.device, into: Tensor | None = None) -> Tensor:
        """True with a chance that is right to 2^-33, ``shape`` bool; or ones and zeros ``into`` a tensor of that shape."""
        least = round(chance * 2**32) - 2**31 - 1  # the largest 32-bit word that is below

        def decide(words: Tensor, decisions: Tensor) -> None:
            if least < -(2**31):
                decisions.zero_()
            else:
                torch.le(words.view(torch.int32)[:, : decisions.shape[1]], least, out=decisions)

        return self._laid_out(shape, device, torch.bool, 2, decide, into)

    def uniform(self, shape: torch.Size, device: torch.device, bits: int = 53) -> Tensor:
        """Multiples of 2^-bits in [0, 1), ``shape`` float64."""

        def scale(words: Tensor, numbers: Tensor) -> None:
            numbers.copy_(words.bitwise_right_shift_(64 - bits).bitwise_and_(2**bits - 1)).mul_(2.0**-bits)

        return self._laid_out(shape, device, torch.float64, 1, scale, None)

    def _laid_out(
        self,
        shape: torch.Size,
        device: torch.device,
        dtype: torch.dtype,
        of_a_word: int,
        make: Callable[[Tensor, Tensor], None],
        into: Tensor | None,
    ) -> Tensor:
        """The next draw, made from words by record and position."""
        dimension, rows = self._axis(shape)
        keys = self.keys.to(device)
        rest = (*shape[:dimension], *shape[dimension + 1 :])
        records, count = len(keys), rows * math.prod(rest)
        in_place = into is not None and dimension == 0 and into.is_contiguous()  # else memory is fresh, and slow
        drawn = into if into is not None and in_place else torch.empty(records, count, dtype=dtype, device=device)
        flat = drawn.view(records, count)
        for some, words in blocks(keys, self.count, -(-count // of_a_word)):
            make(words, flat[some])
        self.count += 1
        if in_place:
            return drawn
        drawn = drawn.view(shape) if dimension == 0 else drawn.view(records, *rest).movedim(0, dimension)
        return drawn if into is None else into.copy_(drawn)

    def _axis(self, shape: torch.Size) -> Axis:
        records = len(self.keys)
        if not self._mapped and not self._finding:
            if self.count == len(self.axes):
                raise CannotDraw(SELDOM)
            dimension, rows = self.axes[self.count]
        elif not self._mapped and records in shape:
            dimension, rows = shape.index(records), 1
        else:
            dimension, rows = 0, shape[0] // records if shape else 0
        if not rows or len(shape) <= dimension or shape[dimension] != records * rows:
            raise CannotDraw(
                f"draws random numbers of shape {tuple(shape)} at once, which are not of one record each; draw for every"
                f" record, in dimension 0 (nn.Dropout, torch.rand_like of the batch), or {REMEDY}"
            )
        if self._finding:
            self.axes.append((dimension, rows))
            self.shapes.append(shape)
        return dimension, rows


def _is_still(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True for a share of zero to drop, and outside training."""
    switches = [
        args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
        for place, argument in enumerate(operation._schema.arguments)
        if argument.name in ("dropout_p", "dropout", "train", "training")
    ]
    return any(value is not None and not value for value in switches)


_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""Of a number in [0, 1) that a dtype holds without rounding it to 1."""


def _fill_bernoulli(draws: Draws, target: Tensor, p: float | Tensor = 0.5) -> Tensor:
    if isinstance(p, Tensor):
        return target.copy_(draws.uniform(target.shape, target.device) < p)
    return draws.below(target.shape, p, target.device, target)


def _fill_uniform(draws: Draws, target: Tensor, low: float = 0.0, high: float = 1.0, **named: Any) -> Tensor:
    low, high = named.get("from", low), named.get("to", high)  # "from" is no name in Python
    drawn = draws.uniform(target.shape, target.device, _BITS[target.dtype])
    return target.copy_(drawn.mul_(high - low).add_(low))


def _fill_normal(draws: Draws, target: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    inside = draws.uniform(target.shape, target.device, 52).mul_(2).add_(2.0**-52 - 1)  # never -1, never 1
    return target.copy_(inside.erfinv_().mul_(std * math.sqrt(2)).add_(mean))


def _like(fill: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda draws, like, **options: fill(draws, torch.empty_like(like, **options))


def _sized(fill: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda draws, size, **options: fill(draws, torch.empty(size, **options))


def _bernoulli(draws: Draws, chances: Tensor, p: float | None = None) -> Tensor:
    return _fill_bernoulli(draws, torch.empty_like(chances), chances if p is None else p)


def _native_dropout(draws: Draws, values: Tensor, p: float, _: bool | None) -> tuple[Tensor, Tensor]:
    stays = draws.below(values.shape, 1 - p, values.device)
    return values * stays * (0.0 if p == 1 else 1 / (1 - p)), stays


_aten = torch.ops.aten
_LAWS: dict[Any, Callable[..., Any]] = {
    _aten.bernoulli_.float: _fill_bernoulli,
    _aten.bernoulli_.Tensor: _fill_bernoulli,
    _aten.bernoulli.default: _bernoulli,
    _aten.bernoulli.p: _bernoulli,
    _aten.native_dropout.default: _native_dropout,
    _aten.uniform_.default: _fill_uniform,
    _aten.rand_like.default: _like(_fill_uniform),
    _aten.rand.default: _sized(_fill_uniform),
    _aten.normal_.default: _fill_normal,
    _aten.randn_like.default: _like(_fill_normal),
    _aten.randn.default: _sized(_fill_normal),
}
"""How operations that draw are answered. Dropout comes down to the first of them, or, on a GPU, to ``native_dropout``."""
