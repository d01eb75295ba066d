"""Made-up rows, and the trial on them of whether a function of a batch keeps its rows apart.

What a function gives for a row alone is known from ``torch.func.vmap``: no row is there for another to see, and a function
that asks for a value, to go one way or another, cannot be run so. What it gives for the batch must be the same. No bound
rests on the trial: what is summed under a price is computed for each row alone (``gradients.mapped``).
"""

from __future__ import annotations

import contextlib
import gc
import math
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn, overrides
from torch._functorch import autograd_function
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.func import vmap
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch
from torch.utils._pytree import tree_map

from dpltm.errors import InputError, first_line

PADDINGS = (0, 1, -1, -100, 255)
"""Values that stand where a short row ends, of those that its dtype holds; of numbers that are not whole NaN as well."""


def paddings(x: Tensor) -> tuple[float, ...]:
    """Return the values that rows like those of ``x`` may be padded with."""
    if x.is_floating_point():
        return (*PADDINGS[:3], math.nan)
    if x.is_cuda:  # a token that is none ends the process there
        return (0,)
    low, high = (0, 1) if x.dtype == torch.bool else (torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max)
    return tuple(value for value in PADDINGS if low <= value <= high)


def tokens_of(model: nn.Module, last: bool = True) -> set[int]:
    """Return tokens that tables of a model declare as padding; and, if ``last``, that of each which stands at its end."""
    tokens = {getattr(module, "padding_idx", None) for module in model.modules()}
    if last:
        tokens |= {module.num_embeddings - 1 for module in model.modules() if isinstance(module, nn.Embedding)}
    return {token for token in tokens if isinstance(token, int)}


def fractions(count: int, columns: int) -> Tensor:
    """Return numbers from 0 to 1 that follow no pattern, ``(count, columns)`` float64: multiples of the golden ratio."""
    places = torch.arange(count * columns, dtype=torch.float64)
    return (places * 0.6180339887498949).frac().view(count, columns)


def filled_up(values: Tensor, rows: int, filler: Tensor | None = None) -> Tensor:
    """Return these rows, and behind them others, ``filler`` or zeros, so that there are ``rows``; each in memory that begins
    alike, and by no ``torch.cat``, which fails for float16 where passes are in bfloat16."""
    filled = values.new_zeros(rows, *values.shape[1:])
    filled[: len(values)] = values
    if filler is not None:
        filled[len(values) :] = filler.to(values)
    return filled


def constant(row: Tensor, largest: int = 1) -> list[Tensor]:
    """Return rows of one value each in the place of ``row``: of whole numbers from 0 to ``largest``."""
    if row.is_floating_point():
        return [torch.full_like(row, value) for value in (0.0, 0.5, 1.0, math.nan)]
    return [torch.zeros_like(row), torch.full_like(row, largest)]


def short_rows(row: Tensor, declared: Iterable[int] = ()) -> Iterator[Tensor]:
    """Yield what is left of a row, ``(...)``, where it is short: a quarter along every dimension in turn, and at least one;
    the rest is padding, of values that are ``declared`` or usual, behind it or before it."""
    ways = dict.fromkeys((*paddings(row[None]), *declared))
    for along, length in enumerate(row.shape):
        stop = max(1, length // 4)
        for filling, start in product(ways, (stop, 0)) if length > 1 else ():
            short = row.clone()
            short.narrow(along, start, length - stop).fill_(filling)
            yield short


class Sight(NamedTuple):
    """What is looked at of a batch: where, its values, whether they are a gradient, and the dimension of rows."""

    place: str
    values: Tensor
    slope: bool = False
    along: int = 0

    @property
    def rows(self) -> Tensor:
        """What there is of each row, ``(n, numbers)``."""
        return self.values.movedim(self.along, 0).flatten(1) if self.values.ndim > 1 else self.values[:, None]


Sights = list[Sight]

ALIKE, COARSE, FLOOR, LIMIT = 1e-9, 1e-3, 1e-3, 1e4
"""Largest difference between a row in the batch and alone, in float64 and in float32: of the largest magnitude of the row
and of the same place in all rows, whichever is less; or of ``FLOOR`` times the largest of the row's values, or gradients,
below ``LIMIT``, and 1 at least, since what is zero by nature comes out as rounding. A huge number, such as the mask of an
attention, hides nothing beside it."""

BLOCK, SOME = 2**16, 8
"""Numbers that are compared at once; rows that are taken one after the other."""

DECIDES = (
    "decides by values of the batch (if, while, int(), nonzero()), so that what one record gives may depend on others: no"
    " bound would hold; choose by torch.where, and cut and pad to public lengths"
)


class CannotFollow(Exception):
    """``vmap`` has no rule for an operation; says for which."""


class Decides(Exception):
    """A function goes one way or another by values of the batch; says where."""


class Mixes(Exception):
    """What a row gives depends on others; says where that is seen."""


_ASKED = (".item()", "data-dependent control flow", "output dynamic shape")
"""What ``vmap`` says where a value is asked for: as a number, as a truth value, or to make a shape of it."""


def alone(
    function: Callable[..., Sequence[Tensor]], *rows: Tensor, model: nn.Module | None = None
) -> tuple[Tensor, ...]:
    """Return what a function of batches, which calls a model, gives for each row in a batch of its own, ``(n, ...)`` each.

    Decides where it asks for values of the batch, in code that is no installed library; CannotFollow where it asks for them
    in a library, or does what ``vmap`` has no rule for.
    """
    check_plain(model or nn.Module())
    try:
        with warnings.catch_warnings(), _recurrent_at_once(model or nn.Module(), len(rows[0])), sealed():
            warnings.filterwarnings("ignore", "There is a performance drop")
            mapped = vmap(lambda *row: tuple(function(*(value[None] for value in row))), randomness="different")
            return tuple(mapped(*rows))
    except InputError:
        raise
    except Exception as error:  # whatever the function's own code raises
        where, library = _asks(error)
        if where and not library:
            raise Decides(f"{where} {DECIDES}") from error
        raise CannotFollow(f"{where} {DECIDES.partition(' (')[0]}" if where else first_line(error)) from error


def _asks(error: Exception) -> tuple[str, bool]:
    """Line that asks for a value, and whether that is of an installed library; no line where nobody asks."""
    if not any(words in str(error) for words in _ASKED):
        return "", False
    ours, torch_itself = Path(__file__).parents[1], Path(torch.__file__).parent
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        path = Path(frame.f_code.co_filename)
        inside = path.is_relative_to(torch_itself) and not path.is_relative_to(torch_itself / "nn")
        if not inside and not path.is_relative_to(ours):
            installed = {"site-packages", "dist-packages"} & {*path.parts} or any(map(path.is_relative_to, libraries))
            return f"{path.name}, line {line},", bool(installed)
    return "", False


def of_all_rows(rows: int, value: Any) -> Any:
    """What a tensor, of one row while these are mapped over, is of all of them, ``(rows, ...)``; others as they are."""
    functorch: Any = torch._C._functorch
    level = functorch.maybe_current_level()
    return functorch._remove_batch_dim(value, level, rows, 0) if isinstance(value, Tensor) and level else value


def mapped_over(value: Any) -> Any:
    """Undo :func:`of_all_rows`."""
    functorch: Any = torch._C._functorch
    return functorch._add_batch_dim(value, 0, functorch.maybe_current_level()) if isinstance(value, Tensor) else value


_sealing = threading.local()


@contextlib.contextmanager
def sealed() -> Iterator[None]:
    """Let nothing run in this thread, while records are mapped over, that PyTorch would show all of them: rules for
    ``vmap`` that an ``autograd.Function`` or an operation brings along, hooks of saved tensors, and modes that see every
    operation."""
    _guard()
    for mode in (*overrides._get_current_function_mode_stack(), *_python_dispatch._get_current_dispatch_mode_stack()):
        _check_known(mode)
    before = getattr(_sealing, "on", False)
    with disable_saved_tensors_hooks("hooks of saved tensors see all records"):
        _sealing.on = True
        try:
            yield
        finally:
            _sealing.on = before


@cache
def _guard() -> None:
    """Let what begins to see all records ask first; for good, since other threads may be at any other place."""

    def told(usual: Callable[..., Any], *facts: Any, **named: Any) -> Any:  # of the map, as rules are
        if getattr(_sealing, "on", False):
            raise CannotFollow("a function or operation has a rule for torch.func.vmap of its own")
        return usual(*facts, **named)

    def push(usual: Callable[[Any], Any], mode: Any) -> Any:
        if getattr(_sealing, "on", False):
            _check_known(mode)
        return usual(mode)

    rules: Any = autograd_function
    rules.VmapInfo = partial(told, rules.VmapInfo)
    modes: tuple[Any, ...] = (overrides, _python_dispatch)
    for module in modes:
        module._push_mode = partial(push, module._push_mode)


def _check_known(mode: object) -> None:
    if not type(mode).__module__.startswith(("dpltm.", "torch.utils._device")):
        raise CannotFollow(f"a {type(mode).__name__} sees every operation")


def check_plain(module: nn.Module) -> None:
    """Raise CannotFollow for parameters or buffers of another class of tensors, which would see all records."""
    for value in (*module.parameters(), *module.buffers()):
        if type(value) not in (Tensor, nn.Parameter):
            raise CannotFollow(f"a {type(value).__name__} is a tensor of another class")


KEPT = "keeps tensors of records after a pass, which the next one would see in their places; keep no state"


def mapped_tensors() -> set[int]:
    """Tensors of one record that there are now, by identity: between passes, what errors hold, or somebody kept."""
    functorch: Any = torch._C._functorch
    tensors = (value for value in gc.get_objects() if type(value) is Tensor)
    return {id(value) for value in tensors if functorch.is_batchedtensor(value)}


def outlive(before: set[int]) -> bool:
    """True if others outlive the map over records by now than there were ``before``."""
    if not mapped_tensors() - before:
        return False
    gc.collect()
    return bool(mapped_tensors() - before)


@contextlib.contextmanager
def _recurrent_at_once(model: nn.Module, rows: int) -> Iterator[None]:
    """Let recurrent modules, which ``vmap`` has no rule for, see all rows as one batch while these are mapped over."""

    def forward(module: nn.Module, input: Tensor, hx: Any = None) -> Any:
        cell = isinstance(module, nn.RNNCellBase)
        if not isinstance(input, Tensor) or input.ndim != (2 if cell else 3):
            raise CannotFollow(f"a {type(module).__name__} of packed sequences, or of one")
        of_state = 0 if cell else 1  # dimensions of the batch
        of_input = 0 if cell or module.batch_first else 1

        def at_once(value: Any, batch: int) -> Any:
            return value if value is None else of_all_rows(rows, value).movedim(0, batch).flatten(batch, batch + 1)

        def per_record(value: Tensor, batch: int) -> Any:
            return mapped_over(value.unflatten(batch, (rows, -1)).movedim(batch, 0))

        hx = tree_map(partial(at_once, batch=of_state), hx)
        outputs = type(module).forward(module, at_once(input, of_input), hx)
        if cell:
            return tree_map(partial(per_record, batch=0), outputs)
        return per_record(outputs[0], of_input), tree_map(partial(per_record, batch=1), outputs[1])

    kinds = (nn.RNN, nn.GRU, nn.LSTM, nn.RNNCell, nn.GRUCell, nn.LSTMCell)  # a user's own may look at all rows
    recurrent = [module for module in model.modules() if type(module) in kinds and "forward" not in vars(module)]
    try:
        for module in recurrent:
            module.forward = partial(forward, module)
        yield
    finally:
        for module in recurrent:
            del module.forward


class _Widening(TorchFunctionMode):
    """Takes float64 wherever float32 is named, or is what a new tensor would be of."""

    factories = (
        torch.zeros, torch.ones, torch.empty, torch.full, torch.eye, torch.linspace, torch.rand, torch.randn, torch.tensor,
    )  # fmt: skip

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = {name: torch.float64 if value is torch.float32 else value for name, value in (kwargs or {}).items()}
        call: Any = Tensor.double if function is Tensor.float else function
        result = call(*(torch.float64 if value is torch.float32 else value for value in args), **keywords)
        return result.double() if function in self.factories and result.dtype == torch.float32 else result


@contextlib.contextmanager
def in_float64(modules: Sequence[nn.Module]) -> Iterator[None]:
    """A block with float64 copies in the place of parameters and buffers of floating point, which are left alone, and of
    whatever is made of float32 meanwhile."""
    tensors = [(module, {**module._parameters}, {**module._buffers}) for module in modules]
    wide: dict[int, nn.Parameter] = {}  # what is shared stays so

    def widened(value: nn.Parameter) -> nn.Parameter:
        if id(value) not in wide:
            wide[id(value)] = nn.Parameter(value.detach().double(), requires_grad=value.requires_grad)
        return wide[id(value)]

    try:
        for module, parameters, buffers in tensors:
            for name, value in parameters.items():
                if value is not None and value.is_floating_point():
                    # not by the dictionary: recurrent modules keep a list as well
                    setattr(module, name, widened(value))
            for name, buffer in buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    module._buffers[name] = buffer.double()
        with _Widening():
            yield
    finally:
        for module, parameters, buffers in tensors:
            for name, value in parameters.items():
                if value is not None:
                    setattr(module, name, value)
            module._buffers.update(buffers)


Way = tuple[int, Tensor, bool]
"""Which of the tensors of a batch has another row, that row, and whether gradients at it are smooth."""


def odd_rows(x: Tensor, largest: int = 1, declared: Iterable[int] = ()) -> list[Way]:
    """Return rows to be put in the place of some of ``x``: other, huge, of one value, short behind and before padding.

    Gradients are not smooth at rows that are of one value in part: rounding decides which of equal values is the largest.
    """
    row = x[0]
    is_whole = not x.is_floating_point()
    if is_whole:
        ways = [(0, (row == 0).to(x.dtype), True)] if largest else []
    else:
        ways = [(0, 1 - row, True), (0, 4 * row - 2, True), (0, 1e3 * (row - 0.5), True)]
    ways += [(0, value, False) for value in (constant(row, largest) if largest or not is_whole else ())]
    return ways + [(0, short, False) for short in short_rows(row, declared)]


@dataclass(frozen=True)
class Trial:
    """Trial of whether a function of batches keeps their rows apart.

    Attributes:
        sees: what is looked at of a batch; ``own`` the same, where every row is alone.
        alike: largest difference to be taken for rounding, of what a row has; gradients only count where that is little:
            rounding switches units on and off.
    """

    sees: Callable[..., Sights]
    own: Callable[..., Sights]
    ways: Sequence[Way] = ()
    alike: float = ALIKE

    def run(self, modules: Sequence[nn.Module], *rows: Tensor) -> None:
        """Raise Mixes or Decides where a row among others is not what it is alone, in float64 if that can be.

        Modules are those to compute in float64. Where ``vmap`` cannot follow, some rows are taken one after the other.
        """
        try:
            self._run(modules, rows)
        except CannotFollow:
            replace(self, own=self._one_by_one)._run(modules, [values[:SOME] for values in rows])

    def _run(self, modules: Sequence[nn.Module], rows: Sequence[Tensor]) -> None:
        with in_float64(modules):
            wide = replace(self, ways=[(which, _wide(row), even) for which, row, even in self.ways])
            runs = wide.compare(*map(_wide, rows))
        if not runs:
            replace(self, alike=COARSE).compare(*rows)

    def _one_by_one(self, *rows: Tensor) -> Sights:
        each = [self.sees(*(values[place : place + 1] for values in rows)) for place in range(len(rows[0]))]
        if len({len(seen) for seen in each}) > 1:
            raise Mixes("the layers that are called")
        for seen in zip(*each, strict=True):
            if len({row.values.shape for row in seen}) > 1:
                raise Mixes(seen[0].place)
        together = [torch.cat([row.values for row in seen], seen[0].along) for seen in zip(*each, strict=True)]
        return [seen._replace(values=values) for seen, values in zip(each[0], together, strict=True)]

    def compare(self, *rows: Tensor) -> bool:
        """Raise Mixes where rows are not among ordinary and odd ones what they are alone; or as :func:`alone`. Return
        whether the function takes any batch of them. All are different: twins would hide what looks at the nearest."""
        waiting: list[Sequence[Way]] = [[]]  # left where no odd rows are taken
        for missing in (True, False):  # NaN apart: it could hide others
            ways_of_kind = [way for way in self.ways if bool(way[1].isnan().any()) == missing]
            most = max(1, len(rows[0]) // 2)
            waiting += [ways_of_kind[start : start + most] for start in range(0, len(ways_of_kind), most)]
        order = torch.randperm(len(rows[0]), generator=torch.Generator().manual_seed(0)).tolist()
        compared = False
        while waiting and not (compared and waiting == [[]]):
            ways = waiting.pop()
            changed = tuple(values.clone() for values in rows)
            smooth = torch.ones(len(rows[0]), dtype=torch.bool)
            for place, (which, row, even) in zip(order, ways, strict=False):
                changed[which][place], smooth[place] = row, even
            if (of_all := self.seen(changed)) is not None:
                own = self.own(*changed)
                compared = True
                if len(of_all) != len(own):
                    raise Mixes("the layers that are called")
                self._tell_apart(of_all, own, smooth)
            elif len(ways) > 1:
                middle = len(ways) // 2
                waiting += [ways[:middle], ways[middle:]]
        return compared

    def _tell_apart(self, of_all: Sights, own: Sights, smooth: Tensor) -> None:
        pairs = []
        for seen, by_itself in zip(of_all, own, strict=True):
            if seen.slope and self.alike > ALIKE:
                continue
            if seen.values.shape != by_itself.values.shape:
                raise Mixes(seen.place)
            if seen.values.numel():
                pairs.append((seen, seen.rows, by_itself.rows))
        sizes = [_size(beside, 1) for _, beside, _ in pairs]
        largest = {slope: torch.ones(len(smooth), dtype=torch.float64) for slope in (False, True)}
        for (seen, *_), size in zip(pairs, sizes, strict=True):
            largest[seen.slope] = largest[seen.slope].to(size).maximum(size.where(size < LIMIT, 0.0))
        for (seen, beside, other), size in zip(pairs, sizes, strict=True):
            wrong = _differ(beside, other, self.alike, size, FLOOR * self.alike * largest[seen.slope]).cpu()
            if bool((wrong & smooth if seen.slope else wrong).any()):
                raise Mixes(seen.place)

    def seen(self, rows: Sequence[Tensor]) -> Sights | None:
        """What is looked at of a batch; None of values that a function will not take, such as a token that is none."""
        try:
            return self.sees(*rows)
        except (InputError, Mixes):
            raise
        except Exception:  # in whatever way it says so
            return None


def _ordinary(rows: int, like: Tensor) -> Tensor:
    """Made-up rows, ``(rows, ...)``: numbers from 0 to 1, or 0 and 1 where they are whole."""
    numbers = torch.rand(rows, *like.shape[1:], generator=torch.Generator().manual_seed(0))
    return (numbers if like.is_floating_point() else 2 * numbers).to(like)


@torch.no_grad()
def follows(model: nn.Module, like: Tensor) -> bool:
    """True if ``vmap`` can follow a network: where it asks for no value, other records cannot make it go another way."""
    try:
        return bool(alone(lambda row: [model(row)], _ordinary(2, like), model=model))
    except (CannotFollow, Decides):
        return False


@torch.no_grad()
def bits_hold(function: Callable[[Tensor], Tensor], like: Tensor, rows: int) -> bool:
    """True if not a bit of what a function of ``rows`` gives for made-up ones changes where others are large, or all are
    moved."""
    batch = _ordinary(2 * rows, like)
    other = torch.arange(rows) % 2 == 1
    replaced = batch[:rows].clone()
    replaced[other] = batch[rows:][other]
    if like.is_floating_point():
        for place, factor in enumerate((1e3, 1e30, math.nan)):
            replaced[1 + 2 * place :: 6] *= factor
    usual, turned = function(batch[:rows]), function(batch[:rows].roll(1, 0))
    try:
        rest = function(replaced)
    except Exception:  # values that it will not take
        replaced[other] = batch[rows:][other]
        rest = function(replaced)
    other = other.to(usual.device)
    return torch.equal(usual[~other], rest[~other]) and torch.equal(usual, turned.roll(-1, 0))


def same_numbers(left: Tensor, right: Tensor) -> bool:
    """True if two tensors hold the same numbers, to a bit, and NaN at the same places."""
    return torch.equal(left, right) or torch.equal(left.nan_to_num(nan=1e30), right.nan_to_num(nan=1e30))


def _wide(values: Tensor) -> Tensor:
    return values.double() if values.is_floating_point() else values


def _differ(left: Tensor, right: Tensor, alike: float, size: Tensor, floor: Tensor) -> Tensor:
    """Which of the rows ``(n, values)`` differ, but for NaN in both, ``(n,)``: by more than ``alike`` of the ``size`` of the
    row, ``(n,)``, or of the same place in all of them, and by more than the row's ``floor`` ``(n,)``."""
    if not left.is_floating_point():
        return (left != right).any(1)
    most = max(1, BLOCK // left.shape[1])  # what fits a cache is quickest
    blocks = [*zip(left.split(most), right.split(most), size.split(most), floor.split(most), strict=True)]
    if all(bool(((mine - other).abs_().amax(1) <= least).all()) for mine, other, _, least in blocks):
        return torch.zeros(len(left), dtype=torch.bool, device=left.device)
    places, wrong = _size(left, 0), []
    for mine, other, own, least in blocks:
        room = (alike * torch.minimum(own[:, None], places)).maximum(least[:, None])
        same = (mine == other) | (mine.isnan() & other.isnan())
        wrong.append((~same & ~((mine - other).abs() <= room)).any(1))
    return torch.cat(wrong)


def _size(values: Tensor, along: int) -> Tensor:
    """Largest finite magnitude of each row of ``(n, values)``, or of each place, float64."""
    values = values.detach()
    if not values.is_floating_point():
        return values.new_zeros(values.shape[1 - along], dtype=torch.float64)
    largest = torch.maximum(values.amax(along), -values.amin(along))
    return (largest if bool(largest.isfinite().all()) else values.abs().nan_to_num(0.0, 0.0, 0.0).amax(along)).double()
