"""Tensors by name: weights, and masks."""

from collections.abc import Mapping

import torch
from torch import Tensor


def same_tensors(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether both have the same names, with the same bits."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )
