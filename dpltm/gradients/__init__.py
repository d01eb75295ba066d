"""Per-record gradients of live coordinates, filtered and summed; and the tanh filter on ordinary gradients."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from dpltm.filters import Tanh
from dpltm.gradients.engine import RecordGradients
from dpltm.gradients.mapped import Loss


@torch.no_grad()
def tanh_grad_(parameters: Tensor | Iterable[Tensor], scale: float = 1.0, range: float = 1.0) -> Tensor:
    """Replace every gradient coordinate g by scale tanh(g / range), in place; called where ``clip_grad_norm_`` would be,
    against gradients that explode in recurrent networks (thesis 5.4).

    No coordinate is larger than ``scale`` afterwards, whatever the gradient was; coordinates that are not numbers become
    zero. No noise is added: this gives no privacy.

    Args:
        parameters: whose gradients are replaced.
        scale: vertical range c > 0.
        range: horizontal range k > 0.

    Returns:
        The L2 norm of all gradients together before the filter, a scalar tensor; infinite or NaN if they were.

    Raises:
        InputError: ``scale`` or ``range`` is not between 1e-6 and its inverse.
    """
    filter = Tanh(scale, range)
    tensors = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
    if not gradients:
        return torch.tensor(0.0)
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]))
    for gradient in gradients:
        filter.map(gradient.nan_to_num_(nan=0.0, posinf=torch.inf, neginf=-torch.inf))
    return norm


__all__ = ["Loss", "RecordGradients", "tanh_grad_"]
