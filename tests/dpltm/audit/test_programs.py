"""Programs of ``benchmarks`` that audit: planted bugs, draws, and the worst case of DPSUR's selective release."""

from unittest import mock

import numpy as np
import pytest

from dpltm.privacy import selection
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.privacy.selection import SelectionPlan
from dpltm.randomness.noise import FastSource
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


selective = program("benchmarks/selective_release.py")


def test_without_selection_it_is_the_epsilon_of_the_steps_from_below() -> None:
    """The accountant rounds up where this rounds down, by up to a grid step a step; both are right, so they are close."""
    setting = selective.Setting(2.0, 1.3, 1.0)
    found = selective.worst(setting, 200, None)
    certified = epsilon((NoisySgd(setting.rate, 200, setting.sigma),), selective.DELTA)
    assert certified - 0.05 < found <= certified


@pytest.mark.long
def test_the_published_training_at_three_is_refuted() -> None:
    """Steps that hold the target pass more often, by up to the ratio of both chances of the test."""
    found = selective.examine(selective.PUBLISHED[-1])
    assert found.nominal == pytest.approx(3.0, abs=0.01)
    assert 1.14 * found.nominal < found.lower_bound < found.certified
    assert 1.15 * found.once_claimed < found.once


def test_the_normalisation_is_charged_as_in_the_published_code() -> None:
    """Two releases of all records at multiplier 8 are one Gaussian mechanism at 8 / sqrt 2; without it more steps fit."""
    setting = selective.PUBLISHED[-1]
    steps, releases = setting.both(100), NoisySgd(1.0, 1, 8 / 2**0.5)
    assert setting.cost(100) == pytest.approx(epsilon((*steps, releases), selective.DELTA), rel=1e-3)
    assert epsilon(setting.both(1574), selective.DELTA, "rdp") < setting.claim < setting.cost(1574, "rdp")
