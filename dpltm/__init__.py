"""Lottery-ticket pruning and differentially private selection and training.

The package computes and returns values: it prints nothing and opens no file but a dataset. ``dpltm.tickets`` keeps
the artifacts on disk and ``dpltm.cli`` is the command line. Importing ``dpltm`` alone is cheap; each mechanism is
imported under its own name, for example ``from dpltm.selection import select``.
"""

__version__ = "0.2.0"
