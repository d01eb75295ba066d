"""A network tried out on made-up records: whether it keeps records apart, and keeps nothing of them.

A bound on one record's gradient bounds what the record changes only if no other record's gradient depends on it. No rule can
see that from a module's kind, and autograd does not see it through detached or discrete operations, so it is tried: one
record is replaced, by ordinary values, by huge ones, zeros and NaN, and nothing that any layer sees of the others may change
by a bit. What mixes only records of a certain kind, or only in large batches, can still escape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from dpltm.errors import InputError
from dpltm.gradients.calls import Recorder

Loss = Callable[[Tensor, Tensor], Tensor]

SIZES = (11, 13, 17, 19, 23, 29, 7, 5)
"""Candidates for the number of made-up records: one that no dimension of anything else has."""

LENGTHS = (1, 2, 8, 16, 32)
"""Batches whose losses must not depend on how many records come after."""

ALIKE = 2e-3
"""Largest relative difference, in float32, between batches of different lengths: they are summed in other orders."""

MIXED = (
    "no bound would hold; leave out whatever averages or compares over records, in the model and in the loss, divides by the"
    " length of the batch, or takes another dimension than 0 (batch_first) for the record"
)


@dataclass(frozen=True)
class MadeUp:
    """Batches of the same shape and dtype as some records that have nothing to do with them.

    Attributes:
        x, y: what they are like; only shape, dtype and device are looked at.
        dtype: of floating-point batches, where those of the records are narrower.
        largest: of whole numbers (tokens, classes); 1, or 0 where the model or the loss knows no other.
        records: how many, where nobody says: no dimension of records, labels, parameters or constants has that size.
    """

    x: Tensor
    y: Tensor
    dtype: torch.dtype
    largest: int
    records: int

    @classmethod
    def like(cls, model: nn.Module, x: Tensor, y: Tensor, largest: int = 1) -> MadeUp:
        constants = [
            value for module in model.modules() for value in _state(module).values() if isinstance(value, Tensor)
        ]
        tensors = [x[:0], y[:0], *model.parameters(), *model.buffers(), *constants]
        sizes = {size for value in tensors for size in value.shape}
        return cls(
            x,
            y,
            next(model.parameters()).dtype,
            largest,
            next((size for size in SIZES if size not in sizes), SIZES[-1]),
        )

    def batch(self, records: int | None = None) -> tuple[Tensor, Tensor]:
        """A batch; the same every time for a number of records."""
        generator = torch.Generator().manual_seed(0)
        x, y = (
            self._values(like, self.records if records is None else records, generator) for like in (self.x, self.y)
        )
        return x, y

    def _values(self, like: Tensor, records: int, generator: torch.Generator) -> Tensor:
        shape = (records, *like.shape[1:])
        if not like.is_floating_point():
            whole = torch.randint(0, self.largest + 1, shape, generator=generator)
            return whole.to(like.dtype).to(like.device)
        values = torch.rand(shape, generator=generator, dtype=torch.float64)
        return values.to(like.dtype if like.dtype.itemsize >= 4 else self.dtype).to(like.device)

    def replaced(self, x: Tensor, y: Tensor, record: int) -> Iterator[tuple[Tensor, Tensor]]:
        """A batch with one record, or its label, replaced in every way."""
        for which, values in enumerate((x, y)):
            old = values[record]
            if values.is_floating_point():
                ways = [1 - old, 1e3 * (old - 0.5), torch.zeros_like(old), torch.full_like(old, math.nan)]
            else:
                ways = [(old == 0).to(values.dtype)] if self.largest else []
            for way in ways:
                other = values.clone()
                other[record] = way
                yield (other, y) if which == 0 else (x, other)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Leaves parameters, buffers, tensors among a module's attributes, modes and random state as they were.

    Meanwhile parameters are moved a little, and far into range: weights of zero or of 1e30 would hide a mistake.
    """
    parameters = [value.detach().clone() for value in model.parameters()]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    values = [(value, value.detach().clone()) for value in model.buffers()]
    attributes = [(module, _state(module)) for module in model.modules()]
    with torch.random.fork_rng([value.device.index for value in parameters[:1] if value.is_cuda]):
        torch.manual_seed(0)
        try:
            with torch.no_grad():
                for value in model.parameters():
                    near = value.nan_to_num().clamp_(-1, 1)
                    moved = near * (0.9 + 0.2 * torch.rand_like(near))
                    value.copy_(torch.where(near == 0, 0.1 * torch.randn_like(near), moved))
            yield
        finally:
            with torch.no_grad():
                for parameter, old in zip(model.parameters(), parameters, strict=True):
                    parameter.copy_(old)
                for buffer, old in values:
                    buffer.copy_(old)
            for module, old_buffers in buffers:
                module._buffers.update(old_buffers)
            for module, state in attributes:
                vars(module).update(state)


def _state(module: nn.Module) -> dict[str, Tensor | float]:
    """Attributes that may hold something of records seen before."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, (Tensor, float)) and not isinstance(value, nn.Parameter)
    }


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Switches off what torch's own modules drop."""
    saved: list[tuple[nn.Module, str, float]] = []
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            saved.append((module, "p", module.p))
        elif isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
            saved.append((module, "dropout", module.dropout))
    try:
        for module, name, _ in saved:
            setattr(module, name, 0.0)
        yield
    finally:
        for module, name, value in saved:
            setattr(module, name, value)


def losses_of(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Tensor:
    """One loss a record.

    Raises:
        InputError: it is something else, or no parameter has a part in it.
    """
    losses = loss(model(x), y)
    if losses.shape != (len(x),):
        raise InputError(
            f"loss: shape {tuple(losses.shape)}, expected one value for each of {len(x)} records; use reduction='none'"
        )
    if not losses.requires_grad:
        raise InputError("loss: does not depend on any parameter of the model")
    return losses


@dataclass(frozen=True)
class Probe:
    """A network, the modules of it that are watched, and a loss, tried out.

    Attributes:
        units: the modules that are watched.
        copy: those among them whose outputs an in-place operation overwrites.
    """

    model: nn.Module
    units: tuple[nn.Module, ...]
    loss: Loss
    made_up: MadeUp
    copy: tuple[nn.Module, ...] = ()

    @classmethod
    def first(cls, model: nn.Module, units: Iterable[nn.Module], loss: Loss, x: Tensor, y: Tensor) -> Probe:
        """Tries the network for the first time.

        Raises:
            InputError: the model or the loss fails, is not one value a record, or the model changes its own buffers.
        """
        units = tuple(units)
        probe = cls(model, units, loss, MadeUp.like(model, x, y))
        try:
            return replace(probe, copy=probe._overwritten())
        except InputError:
            raise
        except Exception:  # perhaps there is one class, or one token
            probe = replace(probe, made_up=MadeUp.like(model, x, y, largest=0))
        try:
            return replace(probe, copy=probe._overwritten())
        except InputError:
            raise
        except Exception as error:  # whatever the user's own code raises
            raise InputError(
                f"model or loss: fails on {probe.made_up.records} made-up records of shape {tuple(x.shape[1:])}:"
                f" {_first_line(error)}"
            ) from error

    def _overwritten(self) -> tuple[nn.Module, ...]:
        model = self.model
        buffers = {name: (value, value._version) for name, value in model.named_buffers()}
        states = {name: _state(module) for name, module in model.named_modules()}
        with Recorder(self.units) as recorder:
            losses_of(model, self.loss, *self.made_up.batch())
        changed = [
            name
            for name, value in model.named_buffers()
            if name in buffers and not (value is buffers[name][0] and value._version == buffers[name][1])
        ]
        for name, module in model.named_modules():
            now, prefix = _state(module), f"{name}." if name else ""
            changed += [f"{prefix}{key}" for key, old in states[name].items() if now.get(key) is not old]
        if changed:
            raise InputError(
                f"model buffer {changed[0]}: changes with the records it sees, outside the ledger; use a module without"
                " state"
            )
        return tuple({id(call.module): call.module for call in recorder.calls if call.overwritten()}.values())

    def seen(self, x: Tensor, y: Tensor, seed: int = 1) -> list[tuple[str, Tensor]]:
        """Everything that rules are given: losses, what every unit saw, and the gradients at what it gave."""
        torch.manual_seed(seed)
        with Recorder(self.units, self.copy) as recorder:
            losses = losses_of(self.model, self.loss, x, y)
        recorder.backward(losses.sum())
        seen = [("the loss", losses.detach())]
        for call in recorder.calls:
            values, _ = tree_flatten((call.inputs, call.keywords, call.gradients))
            seen += [(f"a {type(call.module).__name__}", value) for value in values if isinstance(value, Tensor)]
        return seen

    def check_apart(self) -> None:
        """Refuses a network in which anything about a record depends on the others, or on how many there are."""
        x, y = self.made_up.batch()
        base = self.seen(x, y)
        if _difference(base, self.seen(x, y), None):
            raise InputError(
                "model: gives another answer to the same records; does it keep a state, or draw from elsewhere than torch?"
            )
        for record in (0, 1, len(x) - 1):
            others = torch.arange(len(x), device=x.device) != record
            for other_x, other_y in self.made_up.replaced(x, y, record):
                found = None
                with suppress(IndexError, ValueError, RuntimeError, AssertionError):  # a class or token that is none
                    found = self.seen(other_x, other_y)
                place = None if found is None else _difference(base, found, others)
                if place:
                    raise InputError(
                        f"model or loss: what one record gives depends on others (seen at {place}): {MIXED}"
                    )
        with without_dropout(self.model):
            self._check_lengths()

    def _check_lengths(self) -> None:
        x, y = self.made_up.batch(LENGTHS[-1] + 1)
        whole = self.seen(x, y)
        if _difference(whole, self.seen(x, y, seed=2), None):
            return  # it draws by itself, and the draws of one length are not those of another
        for length in LENGTHS:
            try:
                found = self.seen(x[:length], y[:length])
            except InputError:
                raise
            except Exception as error:
                raise InputError(f"model or loss: fails on {length} made-up records: {_first_line(error)}") from error
            pairs = [(name, one, other) for (name, one), (_, other) in zip(found, whole, strict=False)]
            places = [name for name, one, other in pairs if _far(one, other, length, len(x))]
            places += ["the layers that are called"] if len(found) != len(whole) else []
            if places:
                raise InputError(
                    f"model or loss: what one record gives depends on how many there are (seen at {places[0]}): {MIXED}"
                )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _difference(first: list[tuple[str, Tensor]], second: list[tuple[str, Tensor]], rows: Tensor | None) -> str | None:
    """Where two passes differ in a bit at these records, in whichever dimension has as many; None if nowhere."""
    if len(first) != len(second):
        return "the layers that are called"
    for (place, one), (_, other) in zip(first, second, strict=True):
        if one.shape != other.shape:
            return place
        if rows is not None and len(rows) in one.shape:
            along = one.shape.index(len(rows))
            one, other = one.movedim(along, 0)[rows], other.movedim(along, 0)[rows]
        elif rows is not None:
            continue  # no dimension for records: whoever takes this call refuses it
        if not torch.equal(one.nan_to_num(nan=1e30), other.nan_to_num(nan=1e30)):
            return place
    return None


def _far(part: Tensor, whole: Tensor, length: int, records: int) -> bool:
    """Whether ``part`` is not the beginning of ``whole`` along the dimension of records; False if there is none."""
    along = [
        place
        for place, sizes in enumerate(zip(part.shape, whole.shape, strict=False))
        if sizes == (length, records) and part.ndim == whole.ndim
    ]
    if not along:
        return False  # whoever takes this call refuses it
    whole = whole.narrow(along[0], 0, length)
    if part.shape != whole.shape or not part.is_floating_point():
        return not torch.equal(part, whole)
    if not part.numel():
        return False
    apart = (part.nan_to_num() - whole.nan_to_num()).abs().max()
    return not float(apart) <= ALIKE * max(float(whole.nan_to_num().abs().max()), 1e-30)
