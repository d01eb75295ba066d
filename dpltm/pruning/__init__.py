"""Pruning: how tickets are made, round after round, and carried over to other networks: see ``dpltm.criteria``."""
