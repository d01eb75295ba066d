"""Which kernel a linear layer computes with: the one that is quickest here, by trying them on made-up rows.

What is quick depends on the mask, the processor and the linear algebra library: thresholds that were found on one machine
are wrong on the next. What was chosen for a shape is remembered for the process.
"""

from __future__ import annotations

import contextlib
import math
import time

import torch

from dpltm.errors import InputError
from dpltm.gradients.kernels import FLOAT64, KERNELS, Kernel
from dpltm.gradients.kernels.operands import Operands
from dpltm.gradients.kernels.sums import weighted_sum

AUTO = "auto"

CHOICES = (AUTO, *KERNELS)

ROWS, CHUNK, TURNS = 288, 72, 3
"""Made-up rows, those of a chunk, and how often each kernel is timed; the least time counts."""

_chosen: dict[tuple[object, ...], str] = {}


def check_kernel(name: str) -> None:
    """Raises InputError for a name that is no choice."""
    if name not in CHOICES:
        raise InputError(f"`kernels`: unknown kernel {name!r}; known: {', '.join(CHOICES)}")


def kernel_for(operands: Operands, first: bool, asked: str = AUTO) -> str:
    """The name of the kernel for a layer.

    Args:
        operands: of the layer; what a pass left there is overwritten.
        first: whether its forward pass may be ours, which it is where the input takes no gradient.
        asked: a name to take instead. On a GPU, and for a network in float64, all is computed in float64 anyway.
    """
    weight = operands.module.weight
    if weight.is_cuda or weight.dtype != torch.float32 or not len(operands.index):
        return FLOAT64
    if asked != AUTO:
        return asked
    key = (tuple(weight.shape), len(operands.index), first, torch.get_num_threads())
    if key not in _chosen:
        times = _times(operands, first)
        _chosen[key] = min(times, key=times.__getitem__, default=FLOAT64)
    return _chosen[key]


@torch.no_grad()
def _times(operands: Operands, first: bool) -> dict[str, float]:
    """Seconds that each kernel takes for one batch; those that fail here are left out."""
    module, generator = operands.module, torch.Generator().manual_seed(0)
    input = torch.rand(ROWS, module.in_features, generator=generator)
    gradient = torch.rand(ROWS, module.out_features, generator=generator)
    factor = torch.rand(ROWS, generator=generator, dtype=torch.float64)
    chunks = [slice(start, start + CHUNK) for start in range(0, ROWS, CHUNK)]

    def batch(kernel: Kernel) -> None:
        operands.release()
        if first:
            module.forward(input) if kernel.forward is None else kernel.forward(operands, input)
        operands.input, operands.gradient = input, gradient
        kernel.squared_norms(operands)
        weighted_sum(operands, factor, chunks, kernel.add_chunk)

    times: dict[str, float] = {}
    for name, kernel in KERNELS.items():
        if operands.full and kernel.forward is not None:
            continue  # sparse products of what is dense
        with contextlib.suppress(RuntimeError):
            batch(kernel)
            times[name] = math.inf
    for _ in range(TURNS):
        for name in times:
            began = time.perf_counter()
            batch(KERNELS[name])
            times[name] = min(times[name], time.perf_counter() - began)
    operands.release()
    return times
