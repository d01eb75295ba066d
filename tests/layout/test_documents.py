"""What documents say of this repository: the tests that docs/privacy.md names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = sorted(
    set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs/privacy.md").read_text(encoding="utf-8")))
)


def test_the_statement_names_tests():
    assert len(NAMED) > 10


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_test_that_a_document_names_is_there(path, name):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert f"\ndef {name or 'test_'}" in text
