"""Batch normalisation: where it keeps records apart, and what to take in its place where it does not."""

from __future__ import annotations

import copy
import math
import warnings
from typing import cast

import torch
from torch import Tensor, nn

from dpltm.errors import InputError

GROUPS, CHANNELS = 32, 4
"""Most groups, and fewest channels of a group, of a GroupNorm that takes the place of a BatchNorm."""

_BATCH_NORM = nn.modules.batchnorm._BatchNorm


def check_batch_norm(model: nn.Module) -> None:
    """Raise InputError for a normalisation that mixes records, or keeps statistics of them.

    In evaluation mode, with running statistics, it is an affine map of each record by itself.
    """
    for name, module in model.named_modules():
        where = f"model: {name or type(module).__name__}"
        if isinstance(module, _BATCH_NORM) and (module.training or module.running_mean is None):
            raise InputError(
                f"{where} is a batch normalisation"
                + (" in training mode" if module.training else " without running statistics")
                + ": it mixes records, and no bound would hold; take dpltm.networks.without_batch_norm(model), which has"
                " nn.GroupNorm in its place"
                + (", or call eval() on it to keep its running statistics" if module.running_mean is not None else "")
            )
        if getattr(module, "track_running_stats", False) and module.training:
            raise InputError(
                f"{where} keeps running statistics of the records outside the ledger; use track_running_stats=False"
            )


def without_batch_norm(model: nn.Module) -> nn.Module:
    """Return a copy with a GroupNorm in the place of every BatchNorm, of the same name, weight and bias.

    Warns where a BatchNorm has seen records: the network computes something else then, and has to be trained again.
    """
    copied, seen = copy.deepcopy(model), list[str]()
    if isinstance(copied, _BATCH_NORM):
        return _group_norm(copied)
    for name, module in list(copied.named_modules()):
        for child, part in list(module.named_children()):
            if isinstance(part, _BATCH_NORM):
                setattr(module, child, _group_norm(part))
                if part.num_batches_tracked is not None and int(part.num_batches_tracked):
                    seen.append(f"{name}.{child}" if name else child)
    if seen:
        warnings.warn(
            f"{seen[0]} and {len(seen) - 1} more had running statistics, which are gone: with GroupNorm a pretrained network"
            " computes something else; train it again on public records before it is a start",
            stacklevel=2,
        )
    return copied


def _group_norm(norm: _BATCH_NORM) -> nn.GroupNorm:
    channels = norm.num_features
    most = max(1, min(GROUPS, channels // CHANNELS))
    groups = next(count for count in range(most, 0, -1) if math.gcd(count, channels) == count)
    made = nn.GroupNorm(groups, channels, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        with torch.no_grad():
            for name in ("weight", "bias"):
                old = cast(Tensor, getattr(norm, name))
                new = cast(nn.Parameter, getattr(made, name))
                new.copy_(old)
                new.requires_grad_(old.requires_grad)
    made.train(norm.training)
    return made.to(norm.weight.device) if norm.affine else made
