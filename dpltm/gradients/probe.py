"""Trial of a network on made-up records: it must keep records apart, and keep nothing of them.

A bound on one record's gradient bounds what the record changes only if no other record's gradient depends on it. No rule can
see that from a module's kind, and autograd does not see it through detached or discrete operations, so it is tried: one
record is replaced, by ordinary values, by huge ones, constant ones, zeros and NaN, and among short records, padded at their
end or their beginning, by a long one; nothing that any layer sees of the others may change by a bit. It stays a trial: what
mixes only records of a certain kind, or only in large batches, can still escape.

Nor may it depend on a record's place in the batch, since one record more moves all that come after it. PyTorch draws random
numbers by place, so they come from a key of each record instead (``draws``), in the trial as well.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from dpltm.errors import InputError, first_line
from dpltm.gradients.draws import REMEDY, Axis, CannotDraw, Draws, mixed
from dpltm.gradients.layer import Call, Recorder
from dpltm.networks.state import attributes_of, local, sharded, state_of
from dpltm.randomness.noise import drawn_so_far
from dpltm.records.batches import TRIES
from dpltm.records.made_up import constant, padded, tokens_of

Loss = Callable[[Tensor, Tensor], Tensor]


@contextmanager
def undisturbed(model: nn.Module, loss: Loss) -> Iterator[None]:
    """Leave parameters, buffers, attributes and random state of the model, and of a loss that is a module, as they
    were. Meanwhile parameters are moved a little, and far into range: weights of zero or of 1e30 would hide a
    mistake."""
    # shards last: ranks draw as many numbers for all that is whole, and move it alike
    parameters = [(part, part.clone()) for part in map(local, sorted(model.parameters(), key=sharded))]
    modules = modules_of(model, loss)
    buffers = [(module, dict(module._buffers)) for module in modules]
    attributes = [(module, attributes_of(module)) for module in modules]
    held = [value for _, state in (*buffers, *attributes) for value in state.values()]
    tensors = [(value, value.detach().clone()) for value in held if isinstance(value, Tensor)]
    arrays = [(value, value.copy()) for value in held if isinstance(value, np.ndarray)]
    lists = [(value, list(value)) for value in held if isinstance(value, list)]
    with torch.random.fork_rng([value.device.index for value, _ in parameters[:1] if value.is_cuda]):
        for value, _ in parameters[
            :1
        ]:  # by each generator: torch.manual_seed takes milliseconds, and seeds other devices
            torch.default_generator.manual_seed(0)
            if value.is_cuda:
                torch.cuda.default_generators[value.device.index].manual_seed(0)
        try:
            with torch.no_grad():
                for value, _ in parameters:
                    near = value.nan_to_num().clamp_(-1, 1)
                    moved = near * (0.9 + 0.2 * torch.rand_like(near))
                    value.copy_(torch.where(near == 0, 0.1 * torch.randn_like(near), moved))
            yield
        finally:
            with torch.no_grad():
                for parameter, old in parameters:
                    parameter.copy_(old)
                for tensor, old in tensors:
                    tensor.copy_(old)
            for module, old_buffers in buffers:
                module._buffers.update(old_buffers)
            for module, state in attributes:
                for name in attributes_of(module).keys() - state.keys():
                    delattr(module, name)
                vars(module).update(state)
            for array, old_array in arrays:
                array[...] = old_array
            for values, old_values in lists:
                values[:] = old_values


def modules_of(model: nn.Module, loss: Loss) -> list[nn.Module]:
    """Every module of a model, and of a loss that is one."""
    return [*model.modules(), *(loss.modules() if isinstance(loss, nn.Module) else ())]


def structure(model: nn.Module, loss: Loss) -> tuple[object, ...]:
    """Modules and parameters, hooks, own ``forward`` and settings: what decides how records go through a model, as far as
    that is seen."""
    parameters = (
        (id(value), value.requires_grad, value.dtype, value.device, value.shape, tuple(map(tuple, hooks_of(value))))
        for value in model.parameters()
    )
    return *parameters, *(
        (
            module,
            module.training,
            vars(module).get("forward"),
            *(tuple(hooks) for hooks in _hooks(module)),
            *(
                (name, setting)
                for name, value in (*attributes_of(module).items(), *module._buffers.items())
                if (setting := _setting(value, 0)) is not None
            ),
        )
        for module in modules_of(model, loss)
    )


DEEP = 3
"""Collections within each other that settings are looked for in."""


def _setting(value: object, depth: int) -> object:
    """What there is in a value to switch something by: numbers and texts, a single number in a tensor, functions, and what
    mappings, data classes and namespaces hold of those. Nothing else, or what a program notes at every step would count."""
    if isinstance(value, (int, float, str)):
        return repr(value)
    if isinstance(value, Tensor):
        return repr(value.item()) if value.numel() == 1 and value.layout == torch.strided else None
    if depth == DEEP:
        return None
    if isinstance(value, SimpleNamespace) or (is_dataclass(value) and hasattr(value, "__dict__")):
        value = vars(value)
    if isinstance(value, Mapping):
        return tuple((repr(key), _setting(each, depth + 1)) for key, each in value.items())
    return id(value) if callable(value) and not isinstance(value, nn.Module) else None


def hooks_of(parameter: nn.Parameter) -> list[dict[int, Any]]:
    """Return the hooks on a parameter's gradient, of both kinds, where it has any."""
    kinds: Any = (parameter._backward_hooks, getattr(parameter, "_post_accumulate_grad_hooks", None))
    return [hooks for hooks in kinds if hooks]


def _hooks(module: nn.Module) -> tuple[dict[int, Any], ...]:
    return (
        module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks,
    )  # fmt: skip


@contextmanager
def in_float64(model: nn.Module, loss: Loss) -> Iterator[None]:
    """Put float64 copies in place of parameters and buffers of floating point, which themselves are left alone."""
    modules = modules_of(model, loss)
    held = [(module, {**module._parameters}, {**module._buffers}) for module in modules]
    wide: dict[int, nn.Parameter] = {}  # what is shared stays so

    def widened(value: nn.Parameter) -> nn.Parameter:
        if id(value) not in wide:
            wide[id(value)] = nn.Parameter(value.detach().double(), requires_grad=value.requires_grad)
        return wide[id(value)]

    try:
        for module, parameters, buffers in held:
            for name, value in parameters.items():
                if value is not None and value.is_floating_point():
                    setattr(
                        module, name, widened(value)
                    )  # not by the dictionary: recurrent modules keep a list as well
            for name, buffer in buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    module._buffers[name] = buffer.double()
        yield
    finally:
        for module, parameters, buffers in held:
            for name, value in parameters.items():
                if value is not None:
                    setattr(module, name, value)
            module._buffers.update(buffers)


@contextmanager
def watching_draws(model: nn.Module, like: Tensor) -> Iterator[list[tuple[str, nn.Module]]]:
    """Modules that are called, by name: those that are under way where an exception ends the pass, the innermost first; else
    those that moved generators on, those inside another before it."""
    drew: list[tuple[str, nn.Module]] = []
    begun: list[tuple[str, nn.Module, list[object]]] = []

    def begin(name: str, module: nn.Module) -> None:
        begun.append((name, module, drawn_so_far(like)))

    def end() -> None:
        name, module, states = begun.pop()
        if states != drawn_so_far(like):
            drew.append((name, module))

    hooks = []
    try:
        for name, module in model.named_modules():
            hooks.append(
                module.register_forward_pre_hook(lambda module, _, name=name: begin(name, module), prepend=True)
            )
            hooks.append(module.register_forward_hook(lambda *_: end()))
        yield drew
    finally:
        drew[:0] = [(name, module) for name, module, _ in reversed(begun)]
        for handle in hooks:
            handle.remove()


SIZES = (11, 13, 17, 19, 23, 29, 7, 5)
"""Candidates for the number of made-up records: the first that no other dimension of what layers see and give has."""

LARGEST = (10**6, 10**4, 999, 99, 49, 9, 4, 2)
"""Candidates for the largest whole number that a model or a loss takes."""

LENGTHS = (1, 2, 8, 16, 32)
"""Batches whose losses must not depend on how many records come after."""

ALIKE, ALIKE_WIDE = 2e-3, 1e-6
"""Largest relative difference, in float32 and float64, between batches of different lengths: other orders of
summation. float64 decides; in float32, whatever is larger must be a unit near zero."""

KINK = 0.1
"""Largest share of what a layer sees or gives, in L2 norm, that in float32 a unit may change which rounding switches on or
off."""

ROUNDINGS = 8
"""How many times as far as by the last bits of its factors a float32 sum may be rounded."""

HOW_MANY = "how many there are"

PARTS = (*(slice(0, length) for length in LENGTHS[:-1]), slice(1, LENGTHS[-1] + 1))
"""Parts of a batch that are compared with the whole of it: of every length, the last at another place as well."""

MIXED = (
    "no bound would hold; leave out whatever averages or compares over records, in the model and in the loss, divides by the"
    " length of the batch, or takes another dimension than 0 (batch_first) for the record"
)


ROUTED = (
    "sees as many rows as records hold certain values (experts that get the rows routed to them, packed sequences), so which"
    " row is whose cannot be known; give every layer all records, and weigh or select what it gives"
)


@dataclass(frozen=True)
class MadeUp:
    """Batches of the same shape and dtype as ``x`` and ``y``, of which nothing else is looked at.

    ``dtype`` is wider where that of the records is narrow; ``largest`` are whole numbers (tokens, classes) in records and in
    labels, as large as the model and the loss take, among a few; ``records`` is the default size. ``fillings`` are rows of
    padding, as records are prepared.
    """

    x: Tensor
    y: Tensor
    dtype: torch.dtype
    largest: tuple[int, int] = (1, 1)
    records: int = SIZES[0]
    fillings: Tensor | None = None

    def batch(self, records: int | None = None) -> tuple[Tensor, Tensor]:
        """A batch; the same every time for a number of records."""
        generator = torch.Generator().manual_seed(0)
        count = self.records if records is None else records
        x, y = (
            self._values(like, count, largest, generator)
            for like, largest in zip((self.x, self.y), self.largest, strict=True)
        )
        return x, y

    def alone(self) -> MadeUp:
        """The same, without a hold on the records that they are like."""
        return replace(self, x=self.x.new_empty(0, *self.x.shape[1:]), y=self.y.new_empty(0, *self.y.shape[1:]))

    def keys(self, x: Tensor, start: int = 0) -> Tensor:
        """Keys of these records, of which the first is number ``start`` of a batch: each has its own wherever it is."""
        return mixed(torch.arange(start, start + len(x), device=x.device))

    def _values(self, like: Tensor, records: int, largest: int, generator: torch.Generator) -> Tensor:
        shape = (records, *like.shape[1:])
        if not like.is_floating_point():  # the largest is kept for what takes a record's place
            whole = torch.randint(0, max(largest, 2 if largest else 1), shape, generator=generator)
            return whole.to(like.dtype).to(like.device)
        values = torch.rand(shape, generator=generator, dtype=torch.float64)
        return values.to(like.dtype if like.dtype.itemsize >= 4 else self.dtype).to(like.device)

    def replaced(self, x: Tensor, y: Tensor, record: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches with one record, or its label, replaced in every way."""
        for which, values in enumerate((x, y)):
            old = values[record]
            if values.is_floating_point():
                ways = [1 - old, 1e3 * (old - 0.5), *constant(old)]
            else:
                largest = self.largest[which]
                ways = [(old == 0).to(values.dtype), torch.full_like(old, largest)] if largest else []
            if which == 0:
                ways += [short[0] for short, _ in islice(padded(old[None]), 1)]
            for way in ways:
                other = values.clone()
                other[record] = way
                yield (other, y) if which == 0 else (x, other)


def losses_of(model: nn.Module, loss: Loss, x: Tensor, y: Tensor, draws: Draws | None) -> Tensor:
    """Losses of the records, ``(batch,)``, with a graph; InputError if they are anything else, or use no parameter."""
    with contextlib.nullcontext() if draws is None else draws:
        outputs = model(x)
        losses = loss(outputs, y)
    if draws is not None:
        draws.close()
    if losses.shape != (len(x),):
        raise InputError(_of_shape(losses, outputs, y, len(x)))
    if not losses.requires_grad:
        raise InputError("loss: does not depend on any parameter of the model")
    return losses


def _of_shape(losses: Tensor, outputs: object, y: Tensor, records: int) -> str:
    """Return what is wrong with the shape of losses, and the likely remedy."""
    gave = tuple(outputs.shape) if isinstance(outputs, Tensor) else (records,)
    if gave[:1] != (records,):
        fix = "let the model keep dimension 0 for records (squeeze(1) or flatten(1) in place of squeeze(), say)"
    elif losses.ndim == 0:
        fix = "use reduction='none'"
    elif records in losses.shape[1:]:
        fix = "every output is compared with every label: give both one shape (outputs.squeeze(1), say)"
    else:
        fix = "take the mean of a record's losses (flatten(1).mean(1)), or give outputs and labels one dimension, squeeze(1)"
    of = f"outputs {gave} and labels {tuple(y.shape)}" if isinstance(outputs, Tensor) else f"labels {tuple(y.shape)}"
    return f"loss: shape {tuple(losses.shape)} of {of}, expected one value for each of {records} records; {fix}"


@dataclass(frozen=True)
class Probe:
    """A network and a loss, tried out; ``units`` are watched, in-place operations overwrite the outputs of ``copy``,
    ``spread`` see one row for all records, and ``axes`` are those of what it draws, None until they are known."""

    model: nn.Module
    units: tuple[nn.Module, ...]
    loss: Loss
    made_up: MadeUp
    copy: tuple[nn.Module, ...] = ()
    axes: tuple[Axis, ...] | None = None
    spread: tuple[nn.Module, ...] = ()

    def draws(self, x: Tensor, start: int = 0) -> Draws:
        """Answers to what a pass over these records draws; ``start`` is the number of the first."""
        return Draws(self.made_up.keys(x, start), self.axes)

    @classmethod
    def first(cls, model: nn.Module, units: Iterable[nn.Module], loss: Loss, made_up: MadeUp) -> Probe:
        """Try the network for the first time; InputError if it fails, the loss is not one value a record, or the model
        changes its own buffers."""
        probe, failure = cls(model, tuple(units), loss, made_up), Exception()
        for largest in (1, 0):  # perhaps there is one class, or one token
            probe = replace(probe, made_up=replace(made_up, largest=(largest, largest)))
            try:
                return probe._watched()._of_unique_size()._of_largest_numbers()
            except InputError:
                raise
            except Exception as error:  # whatever the user's own code raises
                failure = error
        raise InputError(
            f"model or loss: fails on {made_up.records} made-up records of shape {tuple(made_up.x.shape[1:])}:"
            f" {first_line(failure)}"
        ) from failure

    def _of_largest_numbers(self) -> Probe:
        probe = self
        for which, like in enumerate((self.made_up.x, self.made_up.y)):
            largest = probe.made_up.largest
            whole = not like.is_floating_point() and like.dtype != torch.bool
            if largest[which] and whole and not like.is_cuda:  # there, what is out of range ends the process
                for size in LARGEST:
                    if size > torch.iinfo(like.dtype).max:
                        continue
                    bounds = (size, largest[1]) if which == 0 else (largest[0], size)
                    tried = replace(probe, made_up=replace(probe.made_up, largest=bounds))
                    x, y = tried.made_up.batch()
                    (x, y)[which][0] = size
                    try:
                        tried.seen(x, y)
                    except InputError:
                        raise
                    except Exception:  # out of range, in whatever way the model or the loss says so
                        continue
                    probe = tried
                    break
        return probe

    def _of_unique_size(self) -> Probe:
        """The same probe with a number of records that no other dimension has, so that rows of a record are known by
        it."""
        for size in SIZES:
            probe = replace(self, made_up=replace(self.made_up, records=size))
            x, y = probe.made_up.batch()
            draws = probe.draws(x)
            shapes = [*(value.shape for _, value in probe.seen(x, y, draws=draws)), *draws.shapes]
            if all(shape.count(size) < 2 for shape in shapes):
                return replace(probe, axes=tuple(draws.axes))
        raise InputError(
            f"model: has layers with every one of {SIZES} in their shapes, so that records cannot be told apart"
        )

    def _watched(self) -> Probe:
        """The same probe, which knows what has to be copied, and what to be spread: tables of positions."""
        model = self.model
        modules = modules_of(model, self.loss)
        names = {id(module): f"{name}." if name else "" for name, module in model.named_modules()}
        before = [state_of(module) for module in modules]
        x, y = self.made_up.batch()
        with Recorder(self.units) as recorder, self._refusing_draws(x, y):
            losses_of(model, self.loss, x, y, self.draws(x))
        for module, old in zip(modules, before, strict=True):
            changed = [key for key, value in state_of(module).items() if value != old.get(key)]
            if changed:
                raise InputError(
                    f"model: {names.get(id(module), 'the loss: ')}{changed[0]} changes with the records it sees, outside the"
                    " ledger; use a module without state"
                )
        copy = {id(call.module): call.module for call in recorder.calls if call.overwritten()}
        spread = {id(call.module): call.module for call in recorder.calls if _of_all(call)}
        return replace(self, copy=tuple(copy.values()), spread=tuple(spread.values()))

    def seen(self, x: Tensor, y: Tensor, start: int = 0, draws: Draws | None = None) -> list[tuple[str, Tensor]]:
        """Everything that rules are given, by name: losses, inputs of every unit, and the gradients at its outputs; and what
        recurrent ones gave.

        ``start`` is the number of the first record in the batch that these were cut from. Raises InputError if a random
        number was drawn that is not a record's own.
        """
        with self._refusing_draws(x, y):
            return self._pass(x, y, self.draws(x, start) if draws is None else draws)

    def _pass(self, x: Tensor, y: Tensor, draws: Draws) -> list[tuple[str, Tensor]]:
        with Recorder(self.units, self.copy, draws=draws, spread=self.spread, records=len(x)) as recorder:
            losses = losses_of(self.model, self.loss, x, y, draws)
        with draws:  # which refuses them here
            recorder.backward(losses.sum())
        seen = [("the loss", losses.detach())]
        for call in recorder.calls:
            goes_by_outputs = isinstance(call.module, (nn.RNNBase, nn.RNNCellBase))
            gave = [value.detach() for value in call.outputs] if goes_by_outputs else []
            values, _ = tree_flatten((call.inputs, call.keywords, call.gradients, gave))
            seen += [(f"a {type(call.module).__name__}", value) for value in values if isinstance(value, Tensor)]
        return seen

    def apart(self) -> Probe:
        """The probe, tried out; without what is ``spread``, if records depend on others then: it is averaged, perhaps."""
        if self.spread:
            try:
                self.check_apart()
            except InputError:
                return replace(self, spread=()).apart()
            return self
        self.check_apart()
        return self

    def check_apart(self) -> None:
        """Refuse a network in which anything about a record depends on the others, or on how many there are."""
        try:
            self._check_apart()
        except InputError as error:
            axes = self.axes or ()
            if any(rows > 1 for _, rows in axes):  # which were taken to stand together
                try:
                    replace(self, axes=tuple((place, 1) for place, _ in axes)).seen(*self.made_up.batch())
                except InputError as draw:
                    raise InputError(f"{error}; perhaps since {str(draw).removeprefix('model: ')}") from None
            raise

    def _check_apart(self) -> None:
        x, y = self.made_up.batch()
        draws = self.draws(x), self.draws(x)
        base, again = (self.seen(x, y, draws=each) for each in draws)
        if _difference(base, again, None, {}) or draws[0].began != draws[1].began:
            raise InputError(
                "model: gives another answer to the same records; does it keep a state, or draw from elsewhere than torch?"
            )
        along = self._along(base)
        self._check_replaced(x, y, base, along)
        self._check_padded(x, y, along)
        self._compare_lengths()

    @contextmanager
    def _refusing_draws(self, x: Tensor, y: Tensor) -> Iterator[None]:
        """Refuse draws that are not a record's own, by the name of the innermost module that made them."""
        before, why = drawn_so_far(x), ""
        try:
            yield
        except CannotDraw as error:
            why = str(error)
        for _ in range(1 if why else TRIES):  # another thread may have drawn
            if not why and before == drawn_so_far(x):
                return
            before = drawn_so_far(x)
            with watching_draws(self.model, x) as drew:
                try:
                    self._pass(x, y, self.draws(x))
                except CannotDraw as error:
                    why = str(error)
        if not why:
            if before == drawn_so_far(x):
                return
            why = f"draws random numbers that are not a record's own, where PyTorch does not show it; {REMEDY}"
        who = "the loss, or a hook," if not drew else f"{drew[0][0] or 'its forward'} ({type(drew[0][1]).__name__})"
        raise InputError(f"model: {who} {why}")

    def _check_replaced(self, x: Tensor, y: Tensor, base: list[tuple[str, Tensor]], along: dict[int, int]) -> None:
        for record in (0, 1, len(x) // 2, len(x) - 1):
            for other_x, other_y in self.made_up.replaced(x, y, record):
                try:
                    seen = self.seen(other_x, other_y)
                except InputError:
                    raise
                except Exception:  # a class or token that is none, or values that a model will not take
                    continue
                _refuse_mixed(base, seen, record, along)

    def _check_padded(self, x: Tensor, y: Tensor, along: dict[int, int]) -> None:
        """Refuse a network in which short records depend on whether a long one is among them: cut to the longest."""
        declared = () if x.is_floating_point() else tokens_of(self.model, last=not x.is_cuda)
        for short, long in padded(x, declared, self.made_up.fillings):
            try:
                base, seen = self.seen(short, y), self.seen(long, y)
            except InputError:
                raise
            except Exception:  # a token that is none, or records that a model will not take
                continue
            _refuse_mixed(base, seen, 0, along)

    def _along(self, base: list[tuple[str, Tensor]]) -> dict[int, int]:
        """Dimension of records by place in ``base``: the one that is as long as the batch, whatever its length."""
        records, more = self.made_up.records, self.made_up.records + 1
        longer = self.seen(*self.made_up.batch(more))
        if len(longer) != len(base):
            raise InputError(
                f"model or loss: what one record gives depends on how many there are (seen at the layers that are called):"
                f" {MIXED}"
            )
        return {
            place: value.shape.index(records)
            for place, ((_, value), (_, other)) in enumerate(zip(base, longer, strict=True))
            if records in value.shape and other.ndim == value.ndim and other.shape[value.shape.index(records)] == more
        }

    def _compare_lengths(self) -> None:
        """Refuse a network in which parts of a batch, alone, give something else than in the whole of it.

        float64 decides, where other orders of summation leave next to nothing. float32 is looked at as well, for what
        depends on the length there alone: a unit near zero may differ, which in a wide layer rounding switches on or off.
        Where float64 cannot run, float32 may differ as much as rounding of the weights to their last bits moves it.
        """
        batch, wide = self.made_up.batch(LENGTHS[-1] + 1), next(self.model.parameters()).dtype == torch.float64
        whole = self.seen(*batch)
        sizes = [_largest(value) for _, value in whole]
        coarse = [(ALIKE_WIDE if wide else ALIKE) * size for size in sizes]
        apart = self._told_by_part(batch, whole, coarse, 0.0 if wide else KINK)
        why = ""
        if not apart and not wide:
            try:
                apart = self._told_in_float64(batch)
            except Exception as error:  # it may not run in another precision
                fine = [min(pair) for pair in zip(coarse, self._rounded(batch, whole), strict=True)]
                apart = self._told_by_part(batch, whole, fine)
                why = f"; or by rounding, which float64 would tell, but: {first_line(error)}"
        if apart:
            what, place = apart
            raise InputError(f"model or loss: what one record gives depends on {what} (seen at {place}{why}): {MIXED}")

    def _told_in_float64(self, batch: tuple[Tensor, Tensor]) -> tuple[str, str] | None:
        if any(map(sharded, self.model.parameters())):
            raise NotImplementedError("its parameters are sharded")
        with in_float64(self.model, self.loss):
            x, y = (part.double() if part.is_floating_point() else part for part in batch)
            whole = self.seen(x, y)
            return self._told_by_part((x, y), whole, [ALIKE_WIDE * _largest(value) for _, value in whole])

    def _rounded(self, batch: tuple[Tensor, Tensor], whole: list[tuple[str, Tensor]]) -> list[float]:
        """How far float32 sums in another order may be from ``whole``: a computed product of matrices is the exact one of
        factors of which each is moved by few last bits (Higham 2002, 3.5), so what such a move changes is measured; times
        ``ROUNDINGS``, and at least as far as a number is rounded by itself."""
        generator = torch.Generator().manual_seed(0)

        def moved(value: Tensor) -> Tensor:
            signs = torch.randint(0, 2, value.shape, generator=generator).to(value.device) * 2 - 1
            return value * (1 + 2.0**-23 * signs)

        parameters = [local(value) for value in self.model.parameters()]
        before = [value.clone() for value in parameters]
        with torch.no_grad():
            for value in parameters:
                value.copy_(moved(value))
        try:
            x, y = batch
            other = self.seen(moved(x) if x.is_floating_point() else x, y)
        finally:
            with torch.no_grad():
                for value, old in zip(parameters, before, strict=True):
                    value.copy_(old)
        if [value.shape for _, value in other] != [value.shape for _, value in whole]:
            return [0.0] * len(whole)
        return [
            ROUNDINGS * max(_largest((two - one).nan_to_num()), 2.0**-23 * _largest(one))
            for (_, one), (_, two) in zip(whole, other, strict=True)
        ]

    def _told_by_part(
        self,
        batch: tuple[Tensor, Tensor],
        whole: list[tuple[str, Tensor]],
        most: Sequence[float],
        share: float = 0.0,
        parts: Sequence[slice] = PARTS,
    ) -> tuple[str, str] | None:
        """What parts of the batch depend on, and where that is seen: by more than ``most`` in a number, and ``share`` of a
        record's L2 norm; None if nothing does."""
        x, y = batch
        for rows in parts:
            start, stop = rows.start, rows.stop
            try:
                part = self.seen(x[rows], y[rows], start)
            except InputError:
                raise
            except Exception as error:
                raise InputError(
                    f"model or loss: fails on {stop - start} made-up records: {first_line(error)}"
                ) from error
            if len(part) != len(whole):
                return HOW_MANY, "the layers that are called"
            shares = [
                _apart(value, other, rows, len(x), largest)
                for (_, value), (_, other), largest in zip(part, whole, most, strict=True)
            ]
            if max(shares) > share:
                place = next(name for (name, _), apart in zip(part, shares, strict=True) if apart)
                if start == 0:
                    return HOW_MANY, place
                first = self._told_by_part(batch, whole, most, share, [slice(0, stop - start)])  # or the same length
                return first or ("its place in the batch", place)
        return None


def _of_all(call: Call) -> bool:
    """True for an embedding of tokens that are the same for every record, in one row."""
    shapes = [value.shape for value in (*call.inputs[:1], *call.outputs) if isinstance(value, Tensor)]
    return type(call.module) is nn.Embedding and all(len(shape) > 1 and shape[0] == 1 for shape in shapes)


def _refuse_mixed(
    first: list[tuple[str, Tensor]], second: list[tuple[str, Tensor]], but: int, along: dict[int, int]
) -> None:
    """Refuse a network where two passes differ at other records than one."""
    if place := _difference(first, second, but, along):
        pairs = enumerate(zip(first, second, strict=False))
        if any(number not in along and one.shape != other.shape for number, ((_, one), (_, other)) in pairs):
            raise InputError(f"model: {place} {ROUTED}")
        raise InputError(f"model or loss: what one record gives depends on others (seen at {place}): {MIXED}")


def _difference(
    first: list[tuple[str, Tensor]], second: list[tuple[str, Tensor]], but: int | None, along: dict[int, int]
) -> str | None:
    """Name of what differs by a bit between two passes, at all records ``but`` one or anywhere; None if nothing does.
    What has no dimension for records is passed over then, since whoever takes that call refuses it."""
    if len(first) != len(second):
        return "the layers that are called"
    for number, ((place, one), (_, other)) in enumerate(zip(first, second, strict=True)):
        if one.shape != other.shape:
            return place
        if but is None:
            same = _equal(one, other)
        elif number not in along:
            continue
        else:
            one, other = one.movedim(along[number], 0), other.movedim(along[number], 0)
            same = _equal(one[:but], other[:but]) and _equal(one[but + 1 :], other[but + 1 :])
        if not same:
            return place
    return None


def _equal(one: Tensor, other: Tensor) -> bool:
    """True if both hold the same numbers, or NaN at the same places."""
    return torch.equal(one, other) or torch.equal(one.nan_to_num(nan=1e30), other.nan_to_num(nan=1e30))


def _largest(values: Tensor) -> float:
    """Largest finite magnitude of all records, since one alone may be what is left where others cancel; at least 1e-30."""
    if not values.is_floating_point() or not values.numel():
        return 0.0
    largest = float(torch.linalg.vector_norm(values, math.inf))
    if not math.isfinite(largest):
        largest = float(values.abs().where(values.isfinite(), 0).max())
    return max(largest, 1e-30)


def _apart(part: Tensor, whole: Tensor, rows: slice, records: int, most: float) -> float:
    """Share, in L2 norm, by which ``part`` differs from those rows of ``whole`` along the dimension of records; 0
    where there is none, or where no number differs by more than ``most``."""
    along = [
        place
        for place, sizes in enumerate(zip(part.shape, whole.shape, strict=False))
        if sizes == (rows.stop - rows.start, records) and part.ndim == whole.ndim
    ]
    if not along:
        return 0.0  # whoever takes this call refuses it
    whole = whole.narrow(along[0], rows.start, rows.stop - rows.start)
    if part.shape != whole.shape or not part.is_floating_point():
        return 0.0 if torch.equal(part, whole) else math.inf
    if not part.numel() or float(torch.linalg.vector_norm(part - whole, math.inf)) <= most:  # false for NaN
        return 0.0
    apart, whole = part.nan_to_num() - whole.nan_to_num(), whole.nan_to_num()
    if float(apart.abs().max()) <= most:
        return 0.0
    return float(apart.double().norm()) / max(float(whole.double().norm()), 1e-30)
