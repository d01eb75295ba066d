"""What all feature maps have in common: what they are known by, and the norm of their features."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np

VERSION = 1
"""Part of every id; raised when the same settings give other features, so that nothing stale is taken for them."""


NORM = 8.0
"""L2 norm of every feature vector. The bias of a layer behind sees an input of 1, so its share of the squared norm of a
gradient is 1 / (1 + NORM^2), under 2 %; with norm 1 it would be a half, taken from what clipping leaves for the weights."""


def map_id(settings: list[object], digest: str = "", tensors: Mapping[str, np.ndarray] | None = None) -> str:
    """SHA-256 (hex) over all that decides the features.

    Args:
        settings: text, shape, bounds, and what is said of a network in front, or None; as JSON has them.
        digest: of the bundled file that the map computes with, if any.
        tensors: of the map, by name; none for one that is made without data.
    """
    whole = hashlib.sha256()
    whole.update(json.dumps([VERSION, *settings, *([digest] if digest else [])]).encode())
    for name, value in sorted((tensors or {}).items()):
        whole.update(name.encode() + value.astype("<f4").tobytes())
    return whole.hexdigest()
