"""Products that go over live coordinates alone.

``torch.embedding_bag`` adds up rows of a table, as listed: a product with a sparse matrix, by code that torch generates for
the processor at hand. Several times quicker than the sparse matrices of a linear algebra library.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpltm.gradients.kernels.operands import Operands


def forward(operands: Operands, input: Tensor) -> Tensor:
    """The module's output, ``(batch, out)``; pruned weights count as zero."""
    module = operands.module
    values = module.weight.detach().view(-1).index_select(0, operands.index)
    output = _times(operands.bags, operands.turned(input), values)
    if module.bias is not None:
        output += module.bias.detach()[:, None]
    rows = output.new_empty(output.shape[1], len(output))  # what follows goes over one record after the other
    rows.T.copy_(output)
    return rows


def squared_norms(operands: Operands) -> Tensor:
    """See ``dense.squared_norms``; records side by side."""
    inputs, gradients, space = operands.inputs, operands.gradients, operands.space
    if len(gradients) < len(inputs):
        left, right, bags = inputs, gradients, operands.bags
    else:
        left, right, bags = gradients, inputs, operands.bags_of_columns
    squares = space.take("squares", tuple(left.shape), left.dtype, left.device)
    return _times(bags, torch.mul(left, left, out=squares)).mul_(right).mul_(right).sum(0)


def add(operands: Operands, scaled: Tensor, rows: slice, total: Tensor) -> None:
    """See :meth:`dense.add`."""
    left = operands.space.fill("left", scaled.T)
    right = operands.space.fill("chunk", operands.inputs[:, rows], scaled.dtype)
    pattern = operands.pattern(scaled.dtype)
    found = pattern.values().zero_()  # one dot product each; what is there would be multiplied by beta
    torch.sparse.sampled_addmm(pattern, left, right.T, beta=0.0, out=pattern)
    total += found


def _times(bags: tuple[Tensor, Tensor], dense: Tensor, values: Tensor | None = None) -> Tensor:
    """A sparse matrix times a dense one; its values are ones, or in the order of the bags."""
    return torch.embedding_bag(dense, *bags, False, 0, False, values)[0]
