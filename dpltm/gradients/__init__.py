"""Per-record gradients of live coordinates, filtered and summed."""

from dpltm.gradients.engine import FilteredSum, RecordGradients
from dpltm.gradients.module_state import Loss
from dpltm.gradients.plain import tanh_grad_

__all__ = ["FilteredSum", "Loss", "RecordGradients", "tanh_grad_"]
