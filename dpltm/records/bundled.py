"""Tensors of feature maps, which come with the package."""

from __future__ import annotations

import hashlib
from importlib import resources

import numpy as np
from safetensors.numpy import load

from dpltm.errors import DataError


def bundled_tensors(name: str, digest: str) -> dict[str, np.ndarray]:
    """Return the tensors of a file beside the feature maps.

    Args:
        name: of the file.
        digest: SHA-256 (hex) of its bytes.

    Raises:
        DataError: it is not there, or is not that file.
    """
    try:
        body = resources.files("dpltm.features").joinpath(name).read_bytes()
    except OSError:
        body = b""
    if hashlib.sha256(body).hexdigest() != digest:
        raise DataError(f"{name}, which comes with dpltm, is not what was bundled; install dpltm again")
    tensors: dict[str, np.ndarray] = load(body)
    return tensors
