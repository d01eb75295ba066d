"""Whether a training moves the weights that it pays for.

A loop of the user's own may give its gradients to parameters that its optimizer does not have: copies that a wrapper made,
adapters that were added afterwards, a layer that was replaced. Nothing fails then, the loss looks like a loss, and the
account is charged (issue 820 of Opacus: LoRA adapters that were never trained). So the weights are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from dpltm.errors import InputError
from dpltm.networks.masks import Mask

FIRST_STEPS = 10
"""Steps within which something has to move: an optimizer may be asked every few steps only, or begin with step size 0."""

SHOWN = 3
"""Names in a message."""


class Movement:
    """Compares weights with what they were.

    Args:
        model: after its mask was applied, since pruned weights move to zero once, by no training.
        mask: parameters with live coordinates are looked at, but for frozen ones.
    """

    def __init__(self, model: nn.Module, mask: Mask) -> None:
        self._model = model
        self._before = {
            name: value.detach().clone()
            for name, value in model.named_parameters()
            if value.requires_grad and bool(mask[name].any())
        }

    @property
    def count(self) -> int:
        """How many parameters are looked at."""
        return len(self._before)

    def unmoved(self) -> tuple[str, ...]:
        """Names of the parameters that are the same to the bit; what became of others is not looked at."""
        now = dict(self._model.named_parameters())
        return tuple(name for name, value in self._before.items() if name in now and torch.equal(now[name], value))

    def check(self, step: int) -> tuple[str, ...]:
        """The parameters that have not moved by a step, if others have.

        Args:
            step: that was taken last.

        Raises:
            InputError: none has.
        """
        still = self.unmoved()
        if still and len(still) == len(self._before):
            raise InputError(
                f"model: after {step} steps no weight has moved, so nothing is trained though it is paid for; give the"
                f" optimizer the parameters of the very model that the loop has ({_some(still)}), and call its step"
            )
        return still


def unmoved_note(names: Iterable[str], count: int) -> str:
    """What a reader should know of parameters that were paid for and not moved.

    Args:
        names: of these.
        count: of all that are trained.
    """
    names = tuple(names)
    return (
        f"{len(names)} of {count} parameters had not moved after the first steps ({_some(names)}): the optimizer may not"
        " have them; freeze them (requires_grad False) before the loop is made, and there is less noise for the others"
    )


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
