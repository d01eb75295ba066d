"""Products of float32 numbers taken in float32, whatever the device would round them to for speed, and each time the same.

On recent GPUs PyTorch multiplies float32 numbers of convolutions with 10 bits of mantissa (TF32) unless told otherwise, and
processors may take bfloat16 in the same way. A gradient would then be off by 1e-3, and by how much may depend on the batch.
The fastest gradients of a convolution in cuDNN add up in whatever order threads come, so that no two passes agree.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, TypeVar

import torch

T = TypeVar("T")

FULL = ("ieee", "none")
"""Settings of an operator that round no operand; ``none`` says nothing, and nothing is rounded by itself."""

_OPERATORS = tuple(
    (backend, name)
    for backend, names in (("cuda", ("matmul",)), ("cudnn", ("conv", "rnn")), ("mkldnn", ("matmul", "conv", "rnn")))
    for name in names
)
_SWITCHES = (
    (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
    (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    (torch.backends.cuda.matmul, "allow_fp16_accumulation", False),
    (torch.backends.cudnn, "deterministic", True),
    (torch.backends.cudnn, "benchmark", False),
)
"""Switches of CUDA matrix products (partial sums in the narrow type of the operands), and of cuDNN's choice of
algorithms."""


_lock = threading.Lock()
_precise: list[Callable[[], None]] = []
_ordered: list[Callable[[], None]] = []
"""Of the blocks that are entered, in any thread, what restores the settings that the first of them found."""


@contextlib.contextmanager
def _while_any(entered: list[Callable[[], None]], turn: Callable[[], Callable[[], None]]) -> Iterator[None]:
    """A block in which settings of the process are as ``turn`` makes them, which returns what restores those it found. The
    last block to end restores what the first one found."""
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
    """A block in which no product of float32 numbers, and no sum of narrower ones, is rounded to fewer bits.

    Guarantees:
        TF32 and bfloat16 are off for float32 operands of matrix products, convolutions and recurrent layers of cuBLAS, cuDNN
        and oneDNN, and so are reduced-precision reductions of narrow types. cuDNN takes deterministic algorithms, and does
        not choose among them by timing. Frozen encoders of transformers do not take their fast path, which is another one
        where every record of a batch is padded at its end. The settings are those of the process, all threads included. A
        model that sets them itself has its way.
    """
    with _while_any(_precise, _exact):
        yield


def _exact() -> Callable[[], None]:
    settings = _Settings()
    settings.turn_off()
    return settings.restore


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
    """A block in which the common generators of torch, of the processor and of ``device``, begin at a public seed;
    afterwards they are as they were. One thread at a time: what another draws there would be taken for one's own."""
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


class _Settings:
    """The settings as found. torch keeps two sets of switches that write to each other. The older ones cannot be read
    where a program has used the newer ones to say different things of two operators; then the newer ones alone are
    written."""

    def __init__(self) -> None:
        self._matmul = _read(torch.get_float32_matmul_precision)
        self._cudnn = _read(lambda: bool(torch.backends.cudnn.allow_tf32))
        self._operators = [(operator, operator.fp32_precision) for operator in _operators()]
        self._fast_attention = torch.backends.mha.get_fastpath_enabled()
        self._switches = [
            switch for switch in _SWITCHES if bool(getattr(switch[0], switch[1], switch[2])) is not switch[2]
        ]

    def turn_off(self) -> None:
        if self._matmul not in (None, "highest"):
            torch.set_float32_matmul_precision("highest")
        if self._cudnn:
            torch.backends.cudnn.allow_tf32 = False
        for operator, precision in self._operators:
            if precision not in FULL:
                operator.fp32_precision = "ieee"
        torch.backends.mha.set_fastpath_enabled(False)
        for owner, name, wanted in self._switches:
            setattr(owner, name, wanted)

    def restore(self) -> None:
        if self._matmul is not None and self._matmul != "highest":
            torch.set_float32_matmul_precision(self._matmul)
        if self._cudnn:
            torch.backends.cudnn.allow_tf32 = True
        for operator, precision in self._operators:
            if operator.fp32_precision != precision:
                operator.fp32_precision = precision
        torch.backends.mha.set_fastpath_enabled(self._fast_attention)
        for owner, name, wanted in self._switches:
            setattr(owner, name, not wanted)


@cache
def _operators() -> list[Any]:
    """The newer switches, one an operator; none in a torch that has only the older ones."""
    operators = []
    for backend, name in _OPERATORS:
        operator = getattr(getattr(torch.backends, backend), name, None)
        if operator is not None and hasattr(operator, "fp32_precision"):
            operators.append(operator)
    return operators


def _read(setting: Callable[[], T]) -> T | None:
    try:
        return setting()
    except RuntimeError:  # the newer switches say what the older one has no word for
        return None
