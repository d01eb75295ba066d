"""The Dataset value: ranges keep bounds and identity; a fingerprint needs its key."""

import pytest

from dpltm.data import load
from dpltm.errors import DataError


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def test_features(digits):
    assert digits.features == 64


def test_take_of_take(digits):
    part = digits.take(100, 400).take(50, 60)
    assert part.subset == (150, 160)
    assert part.records == len(part.train) == 10
    assert part.train.y.tolist() == digits.train.y[150:160].tolist()
    assert part.fingerprint(b"k") == digits.fingerprint(b"k")
    assert part.test is digits.test


def test_fingerprint_depends_on_the_key(digits):
    assert digits.fingerprint(b"one") != digits.fingerprint(b"two")
    assert digits.fingerprint(b"one") not in digits.source_digest
    assert len(digits.fingerprint(b"one")) == 32


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 5), (0, 1439)])
def test_take_outside(digits, start, stop):
    with pytest.raises(DataError) as caught:
        digits.take(start, stop)
    assert str(caught.value) == f"--subset {start}:{stop}: digits has records 0 to 1438; give a range inside"
