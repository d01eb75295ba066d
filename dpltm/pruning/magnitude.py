"""Magnitude: weights of smallest absolute value are dropped first (Han et al. 2015; Frankle and Carbin 2019)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from dpltm.masks import Mask
from dpltm.pruning.highest import Scope, keep_highest


def prune_by_magnitude(
    weights: Mapping[str, Tensor], mask: Mask, live: Mapping[str, int], scope: Scope = "layer"
) -> Mask:
    """The next mask of DPLTM's Algorithm 1: of each layer, or of the network, the smallest live weights go.

    Args:
        weights: trained parameters, or those at initialisation.
        mask: the present mask.
        live: how many weights of each prunable parameter are to stay.
        scope: ``layer`` or ``global`` (see ``keep_highest``).
    """
    return keep_highest({name: weights[name].abs() for name in live}, mask, live, scope)
