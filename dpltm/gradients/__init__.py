"""Per-record gradients of live coordinates, filtered and summed."""

from dpltm.gradients.engine import FilteredSum, RecordGradients
from dpltm.gradients.plain import tanh_grad_

__all__ = ["FilteredSum", "RecordGradients", "tanh_grad_"]
