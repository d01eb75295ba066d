"""Per-record gradients of live coordinates, filtered and summed."""

from dpltm.gradients.linear import FilteredSum, LinearGradients

__all__ = ["FilteredSum", "LinearGradients"]
