"""Experiments: recipes of several arms and seeds, their trials, what these share, and what came of them. No files."""

from dpltm.registry import lazily

__getattr__, __dir__ = lazily(__name__, __path__)
