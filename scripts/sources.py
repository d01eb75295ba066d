"""Writes what the sources claim into the tables of docs/sources.md, from examples/papers/sources.toml.

    python scripts/sources.py

``tests/layout/test_documents.py`` compares the page with what this writes.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE, FACTS = ROOT / "docs" / "sources.md", ROOT / "examples" / "papers" / "sources.toml"


def lines() -> dict[str, dict[str, Any]]:
    """Every line of the file, by what stands in the first column."""
    sources = tomllib.loads(FACTS.read_text(encoding="utf-8")).values()
    return {line["line"]: line for source in sources for line in source.values()}


def text() -> str:
    """The whole page, with every claim in the second column of its line; KeyError for a line without one."""
    page, left = [], lines()
    for row in PAGE.read_text(encoding="utf-8").splitlines(keepends=True):
        cells = row.split(" | ")
        if row.startswith("| ") and len(cells) == 5 and cells[1] != "the source":
            line = left.pop(re.sub(r"\[(.*)\]\(.*\)", r"\1", cells[0].removeprefix("| ")))  # a name may be a link
            cells[1] = f"{line['section']}: {line['claim'].format(**line)}"
        page.append(" | ".join(cells))
    if left:
        raise ValueError(f"no line for {', '.join(left)}")
    return "".join(page)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
