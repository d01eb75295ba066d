"""Content ids: what tensors are known by, wherever they lie (``docs/formats.md``)."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def pack(mask: Tensor) -> np.ndarray:
    """Bits of a boolean tensor in row-major order, eight to a byte, most significant first."""
    return np.packbits(mask.numpy().reshape(-1))


def content_id(tensors: Mapping[str, np.ndarray]) -> str:
    """SHA-256 (hex) over names, shapes and little-endian bytes, in order of name."""
    digest = hashlib.sha256()
    for name in sorted(tensors, key=str.encode):
        value = tensors[name]
        data = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<")).tobytes()
        text = name.encode()
        digest.update(struct.pack("<Q", len(text)) + text)
        digest.update(struct.pack(f"<{value.ndim + 1}Q", value.ndim, *value.shape))
        digest.update(struct.pack("<Q", len(data)) + data)
    return digest.hexdigest()
