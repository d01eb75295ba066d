"""The Dataset value: parts keep bounds and identity; a fingerprint needs its key; a reference says nothing."""

import re

import numpy as np
import pytest

from dpltm.data import load
from dpltm.data.rows import Rows
from dpltm.privacy.event_json import ref_to_json


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def test_features(digits):
    assert digits.features == 64


@pytest.mark.parametrize("subset", ["100:400", "0.5"])
def test_a_part_is_known_by_the_whole(digits, subset):
    part = load("digits", subset=subset)
    assert not part.whole
    assert digits.whole
    assert (part.bounds, part.classes, part.published) == (digits.bounds, digits.classes, True)
    assert len(part.rows) == 1438
    assert part.fingerprint(b"k") == digits.fingerprint(b"k")
    assert np.array_equal(part.test.x, digits.test.x)


def test_fingerprint_depends_on_the_key(digits):
    assert digits.fingerprint(b"one") != digits.fingerprint(b"two")
    assert re.fullmatch("[0-9a-f]{32}", digits.fingerprint(b"one"))


def test_fingerprint_depends_on_the_rows_and_not_on_their_order():
    x, y = np.random.default_rng(0).integers(0, 255, (40, 6), dtype=np.uint8), np.arange(40) % 3
    order = np.random.default_rng(1).permutation(40)

    def of(x, y):
        from dataclasses import replace

        return replace(load("digits"), rows=Rows(x, y)).fingerprint(b"k")

    assert of(x[order], y[order]) == of(x, y)
    assert of(x.astype(np.int64), y.astype(np.int32)) == of(x, y)
    changed = x.copy()
    changed[7, 2] ^= 1
    for other_x, other_y in ((changed, y), (x[:-1], y[:-1]), (np.concatenate([x, x[:1]]), np.append(y, y[0]))):
        assert of(other_x, other_y) != of(x, y)


def test_a_reference_says_nothing_of_the_records(digits):
    """What is written is random; what tells records apart stays in memory."""
    first, second = digits.reference(), digits.reference()
    assert re.fullmatch("[0-9a-f]{32}", first.id)
    assert first.id != second.id
    assert first.key_id == second.key_id
    assert first != second
    assert first.may_overlap(second)
    assert first.surely_overlaps(second)
    written = str(ref_to_json(first))
    assert first.content not in written
    assert digits.fingerprint(b"k" * 32) not in written


def test_references_under_two_keys_cannot_be_told_apart():
    other = load("digits", subset="0.5").reference(b"another key")
    first = load("digits", subset="0.5:1.0").reference()
    assert first.may_overlap(other)
    assert not first.surely_overlaps(other)
    assert not first.may_overlap(load("digits", subset="0.5").reference())
