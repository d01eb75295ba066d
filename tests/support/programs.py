"""Programs of the repository that no package holds: scripts and examples."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def program(path: str) -> ModuleType:
    """The module in a file of the repository, run anew."""
    spec = importlib.util.spec_from_file_location(f"program_{Path(path).stem}", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their types up
    spec.loader.exec_module(module)
    return module
