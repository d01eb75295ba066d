"""Losses of one value a record."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from dpltm.records.units import ABSENT


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of a classifier, one value a record: ``(batch, classes)`` and ``(batch,)`` to ``(batch,)``."""
    return functional.cross_entropy(outputs, labels, reduction="none")


def mean_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean over copies of a record: ``(batch, copies, classes)`` and ``(batch,)`` to ``(batch,)``."""
    copies = outputs.shape[1]
    return cross_entropy(outputs.flatten(0, 1), labels.repeat_interleave(copies)).view(-1, copies).mean(1)


def user_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean over what a user gave: ``(batch, slots, classes)`` and ``(batch, slots)`` to ``(batch,)``.

    Labels are ``ABSENT`` in slots that a user left empty. How many are filled is the user's own affair, so it may divide.
    """
    losses = functional.cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=ABSENT, reduction="none")
    return losses.view_as(labels).sum(1) / (labels != ABSENT).sum(1).clamp_min(1)
