"""The sources that a module needs, so that it can run elsewhere: itself, and all that is imported with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "dpltm"


def sources_of(module: str) -> dict[str, bytes]:
    """Sources of a module of this package and of all that it imports of the package, by their path in an archive.

    What functions import when they are called is left out, and so are imports for types.
    """
    found: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        spec = _spec(name)
        if spec is None or spec.origin is None:
            continue  # a function or a constant of a module
        path = "/".join(name.split(".")) + ("/__init__.py" if spec.submodule_search_locations is not None else ".py")
        if path not in found:
            found[path] = Path(spec.origin).read_bytes()
            parent = name.rpartition(".")[0]
            waiting += [*([parent] if parent else []), *_imported(ast.parse(found[path]).body)]
    return found


def _spec(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except ModuleNotFoundError:  # its parent is no package
        return None


def _imported(body: list[ast.stmt]) -> Iterator[str]:
    """Names of the package that statements import, outside of functions and of blocks for types."""
    for node in body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == PACKAGE:
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == PACKAGE)
