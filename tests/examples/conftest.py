"""Trainings of the documents are of a few networks, which are probed once."""

from probed import probed_once

__all__ = ["probed_once"]
