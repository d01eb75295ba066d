"""Bugs, planted one at a time: the adversary must see each of them, and as what it is."""

from __future__ import annotations

import re
import sys
import time
from types import ModuleType

import pytest
import torch

from adversary import KINDS, Case, examine
from adversary_cases import all_cases
from dpltm.privacy.ledger import Ledger
from dpltm.randomness.noise import SecureSource
from dpltm.training import descent as training
from planted import BUGS, BUGS_ON_DEVICE, Bug
from recorder import Recorder

PLANTED = BUGS + (BUGS_ON_DEVICE if torch.cuda.is_available() else ())


@pytest.mark.one_of(6)
@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    with bug.plant():
        assert bug.kind in examine(bug.case).kinds


OWN = {bug.case.name: bug.case for bug in PLANTED if bug.case not in all_cases()}
"""Cases that no other module runs without a bug."""


@pytest.mark.parametrize("case", OWN.values(), ids=lambda case: case.name)
def test_without_it_there_is_nothing_to_catch(case: Case) -> None:
    assert examine(case).mismatches == []


def test_every_kind_of_mismatch_is_reached() -> None:
    assert {bug.kind for bug in BUGS} == set(KINDS)


def test_nothing_is_left_replaced() -> None:
    def replaced() -> tuple[object, ...]:
        return (
            training.noisy_mean,
            training.gaussian_mechanism,
            SecureSource.random_bytes,
            Ledger.enter,
            time.perf_counter,
        )

    before = replaced()
    with Recorder():
        assert not any(one is other for one, other in zip(replaced()[:3], before, strict=False))
    assert replaced() == before


def test_a_module_that_a_recorder_might_stay_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would answer by the turns of the first run in every later one, as if they depended on the records."""
    late = "dpltm.late: first imported within a recorder, whose functions may stay there; import before"
    with pytest.raises(RuntimeError, match=f"^{re.escape(late)}$"), Recorder():
        monkeypatch.setitem(sys.modules, "dpltm.late", ModuleType("dpltm.late"))
