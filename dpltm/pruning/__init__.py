"""Pruning: how tickets are made, round after round, and carried over to other networks. Its criteria are chosen by name."""

from dpltm.criteria import CRITERIA, Criterion, PruningRound

__all__ = ["CRITERIA", "Criterion", "PruningRound"]
