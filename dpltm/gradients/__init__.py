"""Per-record gradients of live coordinates, filtered and summed."""

from dpltm.gradients.engine import FilteredSum, RecordGradients
from dpltm.gradients.plain import tanh_grad_
from dpltm.gradients.probe import Loss

__all__ = ["FilteredSum", "Loss", "RecordGradients", "tanh_grad_"]
