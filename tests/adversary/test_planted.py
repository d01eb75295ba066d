"""Bugs, planted one at a time: the adversary must see each of them, and as what it is."""

from __future__ import annotations

import pytest

from adversary import Case, examine
from planted import BUGS, Bug


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    with bug.plant():
        assert bug.kind in examine(bug.case).kinds


@pytest.mark.parametrize("case", {bug.case.name: bug.case for bug in BUGS}.values(), ids=lambda case: case.name)
def test_without_it_there_is_nothing_to_catch(case: Case) -> None:
    """After the bugs, so that one that was left behind shows as well."""
    assert examine(case).mismatches == []
