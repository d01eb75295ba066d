"""Weighted sums of per-record gradients of a linear layer: chunks in float32, all else in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dpltm.gradients.chunks import HIGHEST, held_in_float32, others
from dpltm.gradients.kernels import Kernel
from dpltm.gradients.kernels.operands import Operands


def add_weighted_sum(
    kernel: Kernel, operands: Operands, total: Tensor, factor: Tensor, chunks: Sequence[slice] | None
) -> Tensor:
    """Adds the sum of factor times gradient of the weight, and returns that of the bias, ``(out,)`` float64.

    Args:
        kernel: that adds.
        operands: with what a pass left.
        total: to which the sum at live coordinates is added, ``(live,)`` float64.
        factor: ``(batch,)`` float64.
        chunks: rows that may be summed in float32 together (see ``chunks``); None for float64, with nothing cut off.
    """
    gradient = operands.gradient
    bias = torch.zeros(gradient.shape[1], dtype=torch.float64, device=factor.device)
    most = math.inf
    if chunks is not None:
        most, factor = HIGHEST, held_in_float32(factor)
    narrow = [rows for rows in chunks or () if kernel.in_chunks and rows.start < rows.stop]
    for dtype, parts in ((gradient.dtype, narrow), (torch.float64, others(narrow, len(factor)))):
        if parts:
            scaled = operands.scaled(factor.to(dtype), kernel.turned)
            if most < math.inf:
                scaled.clamp_(-most, most)
            whole = sum(rows.stop - rows.start for rows in parts) == len(gradient)
            for rows in (slice(None),) if whole else parts:
                bias += scaled[rows].sum(0, dtype=torch.float64)
            for rows in parts:  # each in its own precision, whatever that of the others is
                kernel.add(operands, scaled[rows], rows, total)
    return bias
