"""A reference to a dataset says nothing of its records, and tells what is surely or perhaps the same."""

import re

from dpltm.privacy.event_json import ref_to_json
from dpltm.records import load


def test_a_reference_says_nothing_of_the_records():
    """What is written is random; what tells records apart stays in memory."""
    digits = load("digits")
    first, second = digits.reference(), digits.reference()
    assert re.fullmatch("[0-9a-f]{32}", first.id)
    assert first.id != second.id
    assert first.key_id == second.key_id
    assert first.may_overlap(second)
    assert first.surely_overlaps(second)
    written = str(ref_to_json(first))
    assert first.content not in written
    assert digits.fingerprint(b"k" * 32) not in written


def test_references_under_two_keys_cannot_be_told_apart():
    part = load("digits", subset="0.5")
    other, first = part.reference(b"another key"), load("digits", subset="0.5:1.0").reference()
    assert first.may_overlap(other)
    assert not first.surely_overlaps(other)
    assert not first.may_overlap(part.reference())
