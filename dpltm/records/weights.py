"""Files that a network of the user's own is made of: given weights, and the file of its code, which is only hashed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from dpltm.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name; InputError if it cannot be read, or is none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except OSError as error:
        raise InputError(f"`start`: {path} cannot be read: {error.strerror or error}") from None
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, MemoryError):
        raise InputError(
            f"`start`: {path} is not a safetensors file; write one with safetensors.torch.save_file"
        ) from None


def file_digest(path: str | Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
