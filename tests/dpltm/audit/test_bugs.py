"""Audits of planted bugs: ``benchmarks/audit_bugs.py``, which plants all of them."""

import pytest

from programs import program

audit_bugs = program("benchmarks/audit_bugs.py")
BUGS = audit_bugs.BUGS

QUICK = ("noise of half the scale", "half the sensitivity of a score", "bits sent with other odds")


def test_every_bug_is_attacked_or_is_said_to_leave_no_trace() -> None:
    assert {bug.name for bug in BUGS} == {*audit_bugs.ATTACKS, *audit_bugs.UNSEEN}


@pytest.mark.one_of(2)
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.name in QUICK], ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught_and_the_same_without_it_is_not(bug) -> None:
    attack = audit_bugs.ATTACKS[bug.name][1]
    with bug.plant():
        wrong = attack(0)
    assert wrong.lower_bound > wrong.certified
    right = attack(0)
    assert right.certified == wrong.certified
    assert right.lower_bound <= right.certified


def test_a_bug_without_a_trace_is_reported_with_the_reason() -> None:
    bug = next(bug for bug in BUGS if bug.name == "search on the private records")
    row = audit_bugs.bug_row(bug.name, bug.plant, 0)
    assert not row["caught"]
    assert row["because"] == audit_bugs.UNSEEN[bug.name]
