"""Randomness: sources of bits, Gaussian noise on a grid, counts, Poisson samples."""

from dpltm.registry import lazily

__getattr__, __dir__ = lazily(__name__, __path__)
