"""Attacks on messages: claims that are far too small fall, and certified ones stand."""

from dataclasses import replace
from unittest import mock

import pytest

from dpltm.local.channels import Response
from dpltm.local.codebook import Codebook
from dpltm.local.scheme import BitStrings, FixedPoint
from dpltm.randomness.noise import FastSource
from dpltm.verbs.audit import local_bound
from refusals import refused

BITS = BitStrings(20, 5, FixedPoint(4, 5), "uer", 0.5, 7.0, 1.0)
INDEX = Codebook(12, 5, 3.0, "one-hot", 16)


def bound(answer, messages=1000, confidence=0.95):
    return local_bound(answer, messages, confidence, FastSource(2))


def test_what_uer_claims_falls_at_once():
    assert bound(BITS) > BITS.nominal == 1.5
    assert bound(BITS) < BITS.certified


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    "answer",
    [
        INDEX,
        replace(INDEX, labels="signed", epsilon=1.0),
        replace(BITS, protocol="rappor", alpha=None, epsilon=2.0),
        replace(BITS, protocol="moue-hs", epsilon=2.0),
        BitStrings(1, 5, FixedPoint(1, 1), "rappor", 3.0, None, None),
    ],
)
def test_what_is_certified_stands(answer):
    assert bound(answer) <= answer.certified


@pytest.mark.long
def test_of_few_bits_and_of_an_index_the_bound_comes_near():
    assert bound(BitStrings(1, 5, FixedPoint(0, 1), "rappor", 2.0, None, None), 4000) > 0.8
    assert bound(INDEX, 2000) > 1.5


def test_the_label_is_attacked_as_well():
    """Bits that say nothing, and a label that says a lot."""
    silent = BitStrings(1, 5, FixedPoint(0, 1), "rappor", 1e-3, None, 2.0)
    assert bound(silent, 3000) > 1
    assert bound(replace(silent, label_epsilon=None), 3000) < 0.1


def test_coins_that_do_less_than_they_say_are_found():
    answer = BitStrings(1, 2, FixedPoint(0, 1), "rappor", 0.1, None, 0.5)
    assert bound(answer) < answer.certified
    with mock.patch.object(Response, "send", lambda _, near, __: near[:, 0]):
        assert bound(answer) > answer.certified


def test_bad_input():
    assert refused(bound, BITS, 19) == "`messages`: 19 are too few to tell anything; take at least 20, such as 2000"
    assert refused(bound, BITS, 100, 1.0) == "`confidence`: 1 is not at least 0.5 and below 1, such as 0.95"
