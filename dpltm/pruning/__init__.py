"""Pruning criteria: which live weights to drop next.

A new criterion is one ``Criterion``, and one line in ``CRITERIA``. Nothing here imports torch before a mask is made.
"""

from __future__ import annotations

from dpltm.pruning.criteria import (
    DP_SYNTHETIC,
    DP_TRAIN,
    INIT_MAGNITUDE,
    INPUTS,
    MAGNITUDE,
    RANDOM,
    SCOPES,
    STRUCTURED,
    SYNFLOW,
    Criterion,
    PruningRound,
    Schedule,
    Scope,
)
from dpltm.registry import Registry

CRITERIA = Registry[Criterion](
    "criterion",
    (
        MAGNITUDE,
        INPUTS,
        RANDOM,
        INIT_MAGNITUDE,
        SYNFLOW,
        STRUCTURED,
        DP_TRAIN,
        DP_SYNTHETIC,
    ),
)

PLAIN_CRITERIA = CRITERIA.names(lambda criterion: criterion.mechanism is None)
"""Those that spend no budget."""

DP_CRITERIA = CRITERIA.names(lambda criterion: criterion.mechanism is not None)
"""Those that read private records through a mechanism."""

DATA_FREE = CRITERIA.names(lambda criterion: criterion.data_free)
"""Those that look at no trained weights, so that their masks depend on no data."""

__all__ = [
    "CRITERIA",
    "DATA_FREE",
    "DP_CRITERIA",
    "PLAIN_CRITERIA",
    "SCOPES",
    "Criterion",
    "PruningRound",
    "Schedule",
    "Scope",
]
