"""The code that a release runs on, as a resume must find it again: what would change a sum while its noise stays the same.

Everything that is imported and no installed library counts, wherever it lies: the file of a network, its helpers, packages
that are installed as links. So do modules, installed or not, of a package that has a part of the network. Other libraries
count by version: their modules are many, and which of them are imported depends on what else a process does.
"""

from __future__ import annotations

import platform
import sys
import sysconfig
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import MethodType, ModuleType

import numpy as np
import torch

from dpltm import __version__
from dpltm.records.weights import file_digest

FILE_MODULE = "dpltm_code_"
"""Beginning of the name of a module that was run from a file by itself; the rest changes with what it holds."""

_OURS = ("dpltm", "torch")
_OF_THE_START = ("__main__", "__mp_main__", "sitecustomize", "usercustomize")
"""Modules of how a process begins, of which no network is made unless it is written there."""


def versions() -> dict[str, str]:
    """Return the versions of all that decides the bits of a sum beside a network's own code."""
    return {
        "version of dpltm": __version__,
        "version of torch": torch.__version__,
        "version of numpy": np.__version__,
        "version of python": platform.python_version(),
    }


def loaded_code(parts: Iterable[object]) -> dict[str, str]:
    """Return the SHA-256 (hex) of every module imported so far that counts, under ``code of NAME``.

    Args:
        parts: modules, classes and functions of a network; their packages count even where they are installed.
    """
    packages = {_home(part).partition(".")[0] for part in parts} - {*_OURS}
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    digests = {}
    for name, module in sorted(sys.modules.items()):
        package, file = (
            name.partition(".")[0],
            vars(module).get("__file__") if isinstance(module, ModuleType) else None,
        )
        if not file or package in _OURS:
            continue
        path = Path(file).absolute()  # links are not followed: some installers keep what they link to in a cache
        installed = {"site-packages", "dist-packages"} & {*path.parts} or any(map(path.is_relative_to, libraries))
        if package not in packages and (installed or package in _OF_THE_START or package.startswith(FILE_MODULE)):
            continue
        holder = next((place for place in (path, *path.parents) if place.is_file()), None)  # perhaps an archive
        shown = path.name if package.startswith(FILE_MODULE) else name
        digests[f"code of {shown}"] = "gone" if holder is None else file_digest(holder)
    return digests


def _home(part: object) -> str:
    """Name of the module that a part of a network was written in."""
    while isinstance(part, (partial, MethodType)):
        part = part.func if isinstance(part, partial) else part.__func__
    return str(getattr(part, "__module__", None) or type(part).__module__)
