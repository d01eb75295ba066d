"""Randomness: sources of bits, Gaussian noise on a grid, counts, Poisson samples."""
