"""Products of float32 numbers taken in float32, whatever the device would round them to for speed, and each time the same.

Recent GPUs multiply float32 numbers of convolutions with 10 bits of mantissa (TF32), and processors may take bfloat16: a
gradient would be off by 1e-3, and by how much may depend on the batch. cuDNN's fastest gradients of a convolution add up in
whatever order threads come.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from operator import attrgetter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dpltm.errors import InputError

_SWITCHES = {
    "float32_matmul_precision": "highest",
    "backends.cudnn.allow_tf32": False,
    **{
        f"backends.{operator}.fp32_precision": "ieee"
        for operator in ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
    },
    # partial sums in the narrow type of the operands
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction": False,
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction": False,
    "backends.cuda.matmul.allow_fp16_accumulation": False,
    "backends.cudnn.deterministic": True,
    "backends.cudnn.benchmark": False,
    "backends.mha.fastpath_enabled": False,
}
"""Settings of torch that may round products, or choose how they are taken, and how none does. The first two are older than
those of operators, which torch writes when these are written, and so come first."""


@cache
def _access(switch: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """What reads a setting, and what writes it; AttributeError for one that this torch does not have."""
    place, _, name = switch.rpartition(".")
    owner = attrgetter(place)(torch) if place else torch
    if hasattr(owner, f"get_{name}"):
        return getattr(owner, f"get_{name}"), getattr(owner, f"set_{name}")
    return partial(getattr, owner, name), partial(setattr, owner, name)


_lock = threading.Lock()
_precise: list[Callable[[], None]] = []
_ordered: list[Callable[[], None]] = []
"""Of the blocks that are entered, in any thread, what restores the settings that the first of them found."""


@contextlib.contextmanager
def _while_any(entered: list[Callable[[], None]], turn: Callable[[], Callable[[], None]]) -> Iterator[None]:
    """A block with settings as ``turn`` makes them; the last one to end restores what the first one found."""
    with _lock:
        restore = turn()
        entered.append(entered[0] if entered else restore)
    try:
        yield
    finally:
        with _lock:
            restore = entered.pop()
            if not entered:
                restore()


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """A block in which no product of float32 numbers, and no sum of narrower ones, is rounded to fewer bits, in cuBLAS,
    cuDNN and oneDNN. cuDNN takes deterministic algorithms, and does not choose among them by timing. Frozen encoders of
    transformers do not take their fast path, which is another one where every record of a batch is padded at its end. The
    settings are those of the process, all threads included. A model that sets them itself has its way.
    """
    with _while_any(_precise, _exact):
        yield


def _exact() -> Callable[[], None]:
    found = []
    for switch, exact in _SWITCHES.items():
        # an older one cannot be read where a program has said different things of two operators by newer ones: then these
        # alone are written
        with contextlib.suppress(AttributeError, RuntimeError):
            read, write = _access(switch)
            found.append((read, write, read(), exact))
    for _, write, value, exact in found:
        if value not in (exact, "none"):  # as operators say that were not set
            write(exact)

    def restore() -> None:
        for read, write, value, _ in found:
            if read() != value:
                write(value)

    return restore


@contextlib.contextmanager
def threads(number: int | None) -> Iterator[None]:
    """A block with that many CPU threads; restores the former number."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_seeding = threading.RLock()


@contextlib.contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """A block in which the common generators of torch, of the processor and of ``device``, begin at a public seed, and are
    restored. One thread at a time: what another draws there would be taken for one's own."""
    devices = [device.index] if device is not None and device.type == "cuda" else []
    with _seeding, torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes milliseconds, and seeds other devices
        for index in devices:
            torch.cuda.default_generators[index].manual_seed(seed)
        yield


def aligned(values: torch.Tensor) -> torch.Tensor:
    """Values that begin where those of any other pass do: how a library rounds may depend on that."""
    if values.is_contiguous() and values.data_ptr() % 64 == 0:
        return values
    return values.clone(memory_format=torch.contiguous_format)


@contextlib.contextmanager
def deterministic(device: torch.device, wanted: bool) -> Iterator[None]:
    """A block in which, on a GPU and where it is ``wanted``, no sum depends on the order in which threads come; RuntimeError
    for operations that PyTorch has no such form of. The setting is that of the process: the last block restores it."""
    with _while_any(_ordered, _in_order) if wanted and device.type == "cuda" else contextlib.nullcontext():
        yield


def _in_order() -> Callable[[], None]:
    enabled = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    return partial(torch.use_deterministic_algorithms, enabled, warn_only=warns)


GRAIN = 2**15  # numbers from which on torch lets one thread more take part in what is done to each


def flushed_in_part() -> bool:
    """True if some threads set numbers below 1e-38 to zero, and others do not: each has a switch, which nobody can read."""
    products = (_small(GRAIN * torch.get_num_threads()) * 1.0).view(torch.int32)  # compared as they are stored
    least, largest = products.aminmax()
    return bool(least != largest)


@cache
def _small(count: int) -> torch.Tensor:
    return torch.full((count,), 2**16, dtype=torch.int32, device="cpu").view(torch.float32)


class TilesMix(TorchDispatchMode):
    """Tells of what is computed while entered whether rows may ``mix``: where products are in bfloat16, and tiles of this
    processor let NaN of a row, which made-up records may not hold, reach the row above. InputError for tensors of other
    classes than torch's own, which see all rows even where these are mapped over."""

    mix = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or a second of imports for nothing

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for kind in types:
            if kind not in (torch.Tensor, torch.nn.Parameter):
                raise InputError(
                    f"model: computes with a {kind.__name__}, a tensor of another class; use plain tensors"
                )
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.bfloat16 and not result.is_cuda and not self.mix:
            self.mix = tiles_mix()
        return result


def tiles_mix() -> bool:
    """True if tiles of this processor let NaN of a row reach the row above, in products of bfloat16."""
    rows = torch.ones(64, 17, dtype=torch.bfloat16, device="cpu")
    rows[1::2] = torch.nan
    return bool((rows @ rows.new_ones(17, 5))[::2].isnan().any())
