"""Blocks of code in the documents: commands and programs exist with such options, and Python compiles.

``tests/examples/test_pages.py`` runs them.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpltm.cli.main import COMMANDS
from pages import PAGES, ROOT, blocks, steps


def command_lines(document: Path) -> Iterator[list[str]]:
    """Arguments of each ``dpltm`` in blocks of shell, with lines joined and comments left out."""
    for step in steps(document):
        words = step.command
        if words[:1] == ["torchrun"]:
            words = words[words.index("dpltm") :]
        if words[:1] == ["dpltm"]:
            yield words[1:]


def test_documents_hold_commands():
    assert sum(1 for document in PAGES for _ in command_lines(document)) > 60


MADE = ("returns/predict.py",)
"""Programs that a step before makes (``dpltm export``)."""


@pytest.mark.parametrize("document", PAGES, ids=lambda path: path.name)
def test_blocks_of_documents_can_be_typed(document):
    known = {entry.name: entry for entry in COMMANDS}
    for words in command_lines(document):
        entry, rest = known[words[0]], words[1:]
        if hasattr(entry, "commands"):
            entry, rest = entry.commands[rest[0]], rest[1:]
        filled_in = not any(re.search(r"\b[A-Z]{2,}\b|\.\.\.", word) for word in rest)  # unlike SET
        if rest != ["--help"] and filled_in:
            entry.make_context(entry.name, list(rest))
    for body in blocks(document, "python"):
        compile(body, str(document), "exec")
    for step in steps(document):
        words = step.command
        if words[:1] == ["python"] and words[1].endswith(".py") and words[1] not in MADE:
            source = (ROOT / words[1]).read_text(encoding="utf-8")
            assert [word for word in words if word.startswith("--") and f'"{word}"' not in source] == [], step
