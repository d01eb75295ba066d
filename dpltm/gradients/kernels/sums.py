"""Weighted sums of per-record gradients of a linear layer: chunks in float32, all else in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dpltm.gradients.chunks import HIGHEST, others, scaled
from dpltm.gradients.kernels.operands import Operands

AddChunk = Callable[[Operands, Tensor, slice, Tensor], None]
AddRest = Callable[[Operands, Tensor, slice, Tensor, float], Tensor]


def add_weighted_sum(
    operands: Operands,
    total: Tensor,
    factor: Tensor,
    chunks: Sequence[slice] | None,
    add_chunk: AddChunk | None,
    add_rest: AddRest,
) -> Tensor:
    """Adds the sum of factor times gradient of the weight, and returns that of the bias, ``(out,)`` float64.

    Args:
        operands: with what a pass left.
        total: to which the sum at live coordinates is added, ``(live,)`` float64.
        factor: ``(batch,)`` float64.
        chunks: rows that may be summed in float32 together (see ``chunks``); None for float64, with nothing cut off.
        add_chunk: of the kernel; None for no such sum.
        add_rest: of the kernel, for all other rows.
    """
    gradient, space = operands.gradient, operands.space
    most = math.inf if chunks is None else HIGHEST
    chunks = chunks if chunks is not None and add_chunk is not None else ()
    bias = torch.zeros(gradient.shape[1], dtype=torch.float64, device=factor.device)
    parts = space.rows("scaled", len(gradient), len(bias), gradient.dtype, gradient.device)
    if chunks:
        scaled(gradient, factor, out=parts)
    for rows in chunks:
        bias += parts[rows].sum(0, dtype=torch.float64)
        add_chunk(operands, parts[rows], rows, total)  # type: ignore[misc]
    for rows in others(chunks, len(factor)):
        bias += add_rest(operands, factor, rows, total, most)
    return bias
