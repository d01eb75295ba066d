"""Products of whole matrices, of which what is not live is thrown away."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

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


def add_chunk(operands: Operands, scaled: Tensor, rows: slice, total: Tensor) -> None:
    """One float32 product, gathered at the live coordinates; of a copy that begins as any other (``Workspace.rows``).

    Args:
        operands: with what a pass left.
        scaled: output gradients of the chunk times factors, ``(rows, out)``.
        rows: of the chunk, in the batch.
        total: ``(live,)`` float64, to which the sum is added.
    """
    inputs = operands.space.fill("chunk", operands.input[rows])
    product = operands.space.take("product", (scaled.shape[1], inputs.shape[1]), inputs.dtype, inputs.device)
    values = torch.mm(scaled.T, inputs, out=product).view(-1)
    total += values if operands.full else values.index_select(0, operands.index)


def add_rest(operands: Operands, factor: Tensor, rows: slice, total: Tensor, most: float) -> Tensor:
    """The float64 sum of rows that are in no chunk is added; returns that of the bias.

    Args:
        operands: with what a pass left.
        factor: of all records, ``(batch,)`` float64.
        rows: of the batch.
        total: ``(live,)`` float64.
        most: that scaled output gradients are cut off at.
    """
    shape = operands.mask.shape
    product = torch.zeros(shape, dtype=torch.float64, device=factor.device)
    bias = torch.zeros(shape[0], dtype=torch.float64, device=factor.device)
    for some in [rows] if factor.is_cuda else blocks(rows, shape[1]):
        wide = operands.gradient[some].double().mul_(factor[some, None]).clamp_(-most, most)
        bias += wide.sum(0)
        product.addmm_(wide.T, operands.input[some].double())
    total += product.view(-1) if operands.full else product.view(-1).index_select(0, operands.index)
    return bias


def blocks(rows: slice, width: int) -> Iterator[slice]:
    """These rows, some at a time, of so many numbers each."""
    count = max(1, BLOCK // max(1, width))
    return (slice(start, min(start + count, rows.stop)) for start in range(rows.start, rows.stop, count))
