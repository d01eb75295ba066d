"""Files of numbers that come with dpltm: each is what its digest says, or is refused."""

from __future__ import annotations

import hashlib
from importlib import resources

import numpy as np

from dpltm.errors import DataError


def bundled_tensors(name: str, digest: str) -> dict[str, np.ndarray]:
    """The tensors of a file of this package.

    Args:
        name: of the file.
        digest: SHA-256 (hex) of its bytes.

    Raises:
        DataError: it is not there, or is not that file.
    """
    from safetensors.numpy import load

    try:
        body = resources.files(__package__).joinpath(name).read_bytes()
    except OSError:
        body = b""
    if hashlib.sha256(body).hexdigest() != digest:
        raise DataError(f"{name}, which comes with dpltm, is not what was bundled; install dpltm again")
    tensors: dict[str, np.ndarray] = load(body)
    return tensors
