"""Products of whole matrices, of which what is not live is thrown away."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dpltm.gradients.chunks import LIMIT
from dpltm.gradients.kernels.operands import BLOCK, Operands


def squared_norms(operands: Operands) -> Tensor:
    """With inputs A, output gradients B and mask M: sum over j of (B^2 M)_j A_j^2, or over i of (A^2 M^T)_i B_i^2.

    The product is taken on the side where less comes out. Where everything is live, it is |A|^2 |B|^2.
    """
    input, gradient = operands.input, operands.gradient
    if operands.full:
        seen, given = operands.norms
        return seen.square() * given.square()
    if gradient.shape[1] < input.shape[1]:
        left, right, mask = input, gradient, operands.mask.T
    else:
        left, right, mask = gradient, input, operands.mask
    space, totals = operands.space, []
    for rows in blocks(slice(0, len(left)), right.shape[1]):
        part, other = left[rows], right[rows]
        squares = space.take("squares", tuple(part.shape), part.dtype, part.device)
        product = space.take("product", tuple(other.shape), other.dtype, other.device)
        torch.mm(torch.mul(part, part, out=squares), mask, out=product)
        totals.append(product.mul_(other).mul_(other).sum(1))
    return torch.cat(totals) if totals else gradient.new_zeros(0)


def add(operands: Operands, scaled: Tensor, rows: slice, total: Tensor) -> None:
    """One product, gathered at the live coordinates; of rows that begin as any others (``Workspace``).

    Args:
        operands: with what a pass left.
        scaled: output gradients times factors, ``(rows, out)``, one row or more, in the precision of the sum.
        rows: that these are of the batch.
        total: ``(live,)`` float64, to which the sum is added.
    """
    space = operands.space
    product = space.take("product", tuple(operands.mask.shape), scaled.dtype, scaled.device)
    if scaled.dtype == operands.input.dtype:
        torch.mm(scaled.T, operands.aligned[rows], out=product)
    else:
        inputs = operands.input[rows]
        for some in blocks(slice(0, len(scaled)), inputs.shape[1] if scaled.device.type == "cpu" else 0):
            right = space.fill("chunk", inputs[some], scaled.dtype)
            product.addmm_(scaled[some].T, right, beta=float(some.start > 0))
    total += product.view(-1) if operands.full else product.view(-1).index_select(0, operands.index)


def blocks(rows: slice, width: int) -> Iterator[slice]:
    """These rows, some at a time, of so many numbers each; never fewer than a chunk."""
    count = max(LIMIT, BLOCK // width if width else rows.stop - rows.start)
    return (slice(start, min(start + count, rows.stop)) for start in range(rows.start, rows.stop, count))
