"""Pruning criteria: which live weights to drop next."""

from dpltm.pruning.magnitude import prune_by_magnitude

__all__ = ["prune_by_magnitude"]
