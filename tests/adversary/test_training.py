"""``dpltm train`` with options that go together, and with other kinds of records; ``PrivateLoop``."""

from __future__ import annotations

import pytest

from adversary import Case, examine
from adversary_cases import loop_cases, train_cases


@pytest.mark.parametrize("case", [*train_cases(), *loop_cases()], ids=lambda case: case.name)
def test_nothing_goes_past_the_mechanisms(case: Case) -> None:
    found = examine(case)
    assert found.mismatches == []
    assert found.compared >= found.queries > 0
