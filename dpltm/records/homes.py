"""The folders that dpltm looks for data in, and keeps what can be had again."""

from __future__ import annotations

import os
from pathlib import Path


def data_home() -> Path:
    """The folder of dataset files: environment variable ``DPLTM_DATA``, else ``dpltm`` in the user cache folder."""
    declared = os.environ.get("DPLTM_DATA")
    return Path(declared).expanduser() if declared else cache_home()


def cache_home() -> Path:
    """The folder for what can be had again: ``dpltm`` in the user cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dpltm"
