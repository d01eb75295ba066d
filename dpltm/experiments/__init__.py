"""Experiments: recipes of several arms and seeds, their trials, what these share, and what came of them. No files."""
