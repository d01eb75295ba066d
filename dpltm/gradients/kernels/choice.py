"""Which kernel a linear layer computes with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from dpltm.errors import InputError
from dpltm.gradients.choose import fastest
from dpltm.gradients.kernels import FLOAT64, KERNELS, Kernel
from dpltm.gradients.kernels.operands import Operands
from dpltm.gradients.kernels.sums import add_weighted_sum

AUTO = "auto"

CHOICES = (AUTO, *KERNELS)

ROWS, CHUNK = 320, 80
"""Made-up rows that kernels are timed on, and those of a chunk."""


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
    key = ("linear", tuple(weight.shape), len(operands.index), first, torch.get_num_threads())
    return fastest(key, partial(_ways, operands, first)) or FLOAT64


def _ways(operands: Operands, first: bool) -> dict[str, Callable[[], None]]:
    """A batch by each kernel; sparse products of what is dense are not tried."""
    module, generator = operands.module, torch.Generator().manual_seed(0)
    input = torch.rand(ROWS, module.in_features, generator=generator)
    gradient = torch.rand(ROWS, module.out_features, generator=generator)
    factor = torch.rand(ROWS, generator=generator, dtype=torch.float64)
    total = torch.zeros(len(operands.index), dtype=torch.float64)
    chunks = [slice(start, start + CHUNK) for start in range(0, ROWS, CHUNK)]

    @torch.no_grad()
    def batch(kernel: Kernel) -> None:
        operands.release()
        if first:
            module.forward(input) if kernel.forward is None else kernel.forward(operands, input)
        operands.input, operands.gradient = input, gradient
        kernel.squared_norms(operands)
        add_weighted_sum(kernel, operands, total, factor, chunks)
        operands.release()

    tried = {name: kernel for name, kernel in KERNELS.items() if not (operands.full and kernel.forward)}
    return {name: partial(batch, kernel) for name, kernel in tried.items()}
