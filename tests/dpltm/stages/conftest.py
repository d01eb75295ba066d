"""Trainings here are of a few small networks, which are probed once."""

from probed import probed_once

__all__ = ["probed_once"]
