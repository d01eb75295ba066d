"""k-ary randomised response."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpltm.local.channels import WHOLE, Response
from dpltm.randomness.noise import FastSource
from local_channels import Words
from refusals import refused


@given(st.integers(2, 1000), st.floats(0.001, 20))
def test_what_is_certified_is_what_was_asked_for(categories, epsilon):
    found = Response(categories, epsilon)
    same, other = found.chances
    assert epsilon * (1 - 1e-9) <= found.certified <= epsilon
    assert math.log(same / other) == pytest.approx(found.certified, rel=1e-6, abs=1e-9)
    assert same + (categories - 1) * other == pytest.approx(1)


@pytest.mark.parametrize(("categories", "epsilon"), [(3, 1e-20), (7, 1e-19), (1000, 1e-17)])
def test_of_an_epsilon_below_what_coins_resolve_the_truth_is_certified(categories, epsilon):
    """The chance of the truth is rounded below an even share: then another answer is the likelier one."""
    found = Response(categories, epsilon)
    ratio = Fraction(found.truth * (categories - 1), WHOLE - found.truth)
    assert ratio < 1
    assert Fraction(found.certified) >= 1 / ratio - 1 - (1 / ratio - 1) ** 2 / 2 > 0, "ln(1 + x) is above x - x^2 / 2"


@pytest.mark.parametrize(("categories", "epsilon"), [(2, 0.5), (10, 2.0), (300, 5.0)])
def test_answers_are_as_frequent_as_they_should_be(categories, epsilon):
    found, count = Response(categories, epsilon), 40_000
    for value in (0, categories - 1):
        arrived = found.send(np.full(count, value), FastSource(value))
        same, other = found.chances
        expected = np.full(categories, other * count)
        expected[value] = same * count
        assert 1e-4 < stats.chisquare(np.bincount(arrived, minlength=categories), expected).pvalue < 1 - 1e-4


def test_the_incomplete_run_of_words_is_drawn_anew():
    """2^64 - 1 is three times 2^64 // 3: of three others, it alone is left over."""
    top = 2**64 - 1
    coins, others, anew = (np.array(words, dtype=np.uint64) for words in ([top, top], [top, 4], [2]))
    assert Response(4, 1.0).send(np.array([0, 0]), Words(coins, others, anew)).tolist() == [3, 2]


def test_what_is_no_response_and_no_category():
    assert refused(Response, 1, 1.0) == "Expected 1 categories from 2 to 65536"
    assert refused(Response, 3, 0.0) == "`epsilon`: 0 is not a positive number up to 10000"
    assert refused(Response, 3, math.nan) == "`epsilon`: nan is not a positive number up to 10000"
    send = Response(3, 1.0).send
    assert refused(send, np.array([1, 3]), FastSource(0)) == "Expected categories from 0 to 2, not 1 to 3"
    assert refused(send, np.array([-1, 0]), FastSource(0)) == "Expected categories from 0 to 2, not -1 to 0"
    assert send(np.zeros(0, dtype=int), FastSource(0)).shape == (0,)
