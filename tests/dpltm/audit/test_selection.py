"""Audits of draws, ``benchmarks/audit_draws.py``: the largest ratio over neighbours, and draws that are counted."""

from unittest import mock

import numpy as np
import pytest

from dpltm.privacy import selection
from dpltm.privacy.selection import SelectionPlan
from dpltm.randomness.noise import FastSource
from programs import program
from refusals import refused

audit_draws = program("benchmarks/audit_draws.py")
chances, drawn_bound, worst_neighbour = audit_draws.chances, audit_draws.drawn_bound, audit_draws.worst_neighbour

DENSITIES = (0.7, 0.5, 0.35, 0.2)


def plan(mechanism="exponential", **settings):
    return SelectionPlan(0.5, DENSITIES, 20, mechanism=mechanism, **settings)


@pytest.mark.parametrize("mechanism", ["exponential", "permute-and-flip"])
@pytest.mark.parametrize("score", ["product", "additive"])
def test_no_neighbour_is_farther_than_eps1(mechanism, score):
    generator = np.random.default_rng(4)
    worst = max(worst_neighbour(plan(mechanism, score=score), generator.integers(0, 21, 4))[0] for _ in range(20))
    assert 0.05 < worst <= 0.5 + 1e-9


def test_of_two_candidates_by_hand():
    """Additive, lambda 0: P(1) = 1 / (1 + e^(0.5 (k2 - k1))); from equal counts the worst is one count more."""
    two = SelectionPlan(0.5, (0.9, 0.1), 10, score="additive", lam=0.0)
    worst, other = worst_neighbour(two, np.array([3, 3]))
    share = 1 / (1 + np.exp(-0.5))
    assert worst == pytest.approx(max(np.log(share / 0.5), np.log(0.5 / (1 - share))))
    assert sorted(other.tolist()) in ([2, 3], [3, 4])


def test_a_sensitivity_that_is_too_small_is_found_exactly_and_by_draws():
    counts = np.array([10, 10, 10, 10])
    with mock.patch.object(SelectionPlan, "sensitivity", 0.01):  # it is 0.05
        wrong = plan(score="additive", lam=0.0)
        worst, other = worst_neighbour(wrong, counts)
        assert worst > 1.0
        assert drawn_bound(wrong, counts, other, 2000, 0.95, FastSource(0)) > 0.5


@pytest.mark.parametrize("mechanism", ["exponential", "permute-and-flip"])
def test_draws_of_a_correct_mechanism_survive(mechanism):
    counts = np.array([10, 12, 15, 9])
    _, other = worst_neighbour(plan(mechanism), counts)
    assert drawn_bound(plan(mechanism), counts, other, 1000, 0.95, FastSource(1)) <= 0.5


def test_code_that_does_not_draw_as_the_formula_says_is_found_by_draws():
    """The best always wins: chances say nothing of it, draws do."""
    first, second = np.array([10, 11, 0, 0]), np.array([11, 10, 0, 0])
    right = plan(score="additive", lam=0.0)
    assert abs(np.log(chances(right, first)) - np.log(chances(right, second))).max() <= 1
    with mock.patch.object(selection, "draw_exponential", lambda _, scores, __: int(scores.argmax())):
        assert drawn_bound(right, first, second, 400, 0.95, FastSource(0)) > 3


def test_bad_input():
    many = SelectionPlan(0.5, (0.5,) * 13, 20)
    message = "Expected at most 12 candidates to enumerate, not 13; take draws instead"
    assert refused(worst_neighbour, many, np.zeros(13, int)) == message
    assert refused(drawn_bound, plan(), np.zeros(4, int), np.zeros(4, int), 10, 1.5, FastSource(0)).startswith(
        "`confidence`: 1.5"
    )
