"""Writes docs/choices.md: what can be chosen by name, read off the registries.

    python scripts/choices.py

``tests/layout/test_documents.py`` compares the file with what this writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpltm.criteria import CRITERIA
from dpltm.features import MAPS
from dpltm.filters import FILTERS
from dpltm.local import PROTOCOLS
from dpltm.networks import KINDS
from dpltm.privacy.accountants import ACCOUNTANTS
from dpltm.registry import Registry

PATH = Path(__file__).resolve().parents[1] / "docs" / "choices.md"

SECTIONS: tuple[tuple[str, str, Registry[Any]], ...] = (
    ("Gradient filters", "`dpltm train --filter`", FILTERS),
    ("Criteria", "`dpltm generate --criterion`", CRITERIA),
    ("Networks", "`--model`", KINDS),
    ("Feature maps", "`--features`", MAPS),
    ("Accountants", "`--accountant`", ACCOUNTANTS),
    ("Local protocols", "`dpltm latent scheme --protocol`", PROTOCOLS),
)

HEAD = """# What can be chosen

By name, with parameters and their defaults. `python scripts/choices.py` writes this page;
[Contributing](../CONTRIBUTING.md) says how to add one.
"""


def text() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(section(*each) for each in SECTIONS)])


def section(title: str, chosen_by: str, registry: Registry[Any]) -> str:
    """One list."""
    entries = (f"- `{name}`: {entry.help}{_parameters(entry)} ({entry.source})" for name, entry in registry.items())
    return "\n".join([f"## {title}", "", f"By {chosen_by}.", "", *entries, ""])


def _parameters(entry: Any) -> str:
    """With their defaults."""
    parameters = getattr(entry, "parameters", ())
    return "".join(f" `{item.name.replace('_', '-')}` {_shown(item.default)}." for item in parameters)


def _shown(default: float | bool) -> str:
    return ("on" if default else "off") if isinstance(default, bool) else f"{default:g}"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
