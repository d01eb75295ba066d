"""Per-record gradients of live coordinates, filtered and summed."""

from dpltm.gradients.linear import FilteredSum, LinearGradients
from dpltm.gradients.plain import tanh_grad_

__all__ = ["FilteredSum", "LinearGradients", "tanh_grad_"]
