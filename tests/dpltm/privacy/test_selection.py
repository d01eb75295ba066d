"""Phase 2: probabilities by enumeration, draws against them, sensitivities and the privacy inequality by brute force."""

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from dpltm.privacy.selection import (
    SelectionPlan,
    draw,
    exponential_probabilities,
    permute_and_flip_probabilities,
    smallest_within,
)
from dpltm.randomness.noise import FastSource
from refusals import refused

PAPER_DENSITIES = tuple(0.7**round_ for round_ in range(1, 16))
PROBABILITIES = {"exponential": exponential_probabilities, "permute-and-flip": permute_and_flip_probabilities}


def probabilities(plan, correct):
    return PROBABILITIES[plan.mechanism](plan.scores(np.asarray(correct)), plan.exponent)


# Oracles: the two mechanisms as their papers define them.


def softmax(scores, exponent):
    """With 50 digits, and no shift of the scores."""
    from mpmath import exp, mp, mpf

    with mp.workdps(50):
        weights = [exp(mpf(exponent) * mpf(float(score))) for score in scores]
        return [float(weight / sum(weights)) for weight in weights]


def permute_and_flip(scores, exponent):
    """McKenna and Sheldon 2020, Algorithm 1: all permutations, each walked until a coin accepts."""
    accept = [math.exp(exponent * (score - max(scores))) for score in scores]
    result = np.zeros(len(scores))
    for order in itertools.permutations(range(len(scores))):
        left = 1.0
        for index in order:
            result[index] += left * accept[index]
            left *= 1 - accept[index]
    return result / math.factorial(len(scores))


some_scores = st.lists(st.floats(-2, 2), min_size=1, max_size=6).map(np.array)
exponents = st.floats(0.01, 200)


@given(some_scores, exponents)
def test_exponential_is_the_softmax(scores, exponent):
    assert exponential_probabilities(scores, exponent) == pytest.approx(
        softmax(scores, exponent), rel=1e-10, abs=1e-300
    )


@settings(max_examples=40)
@given(some_scores, exponents)
def test_permute_and_flip_by_all_permutations(scores, exponent):
    found = permute_and_flip_probabilities(scores, exponent)
    assert found == pytest.approx(permute_and_flip(scores.tolist(), exponent), rel=1e-9, abs=1e-12)
    assert found.sum() == pytest.approx(1, abs=1e-12)


# Golden values, docs/privacy-model.md section 3.3: C_i = 0.7^i, A = 0.97, nu = 50, eps1 = 0.1.


@pytest.mark.parametrize("fixed", [True, False])
def test_golden_paper_sensitivity_is_nearly_uniform(fixed):
    plan = SelectionPlan(0.1, PAPER_DENSITIES, 10_000, rule="paper", fixed_predictors=fixed)
    assert plan.sensitivity == 49
    found = probabilities(plan, [9700] * 15)
    assert found.min() >= 0.06485
    assert found.max() <= 0.06725
    assert np.abs(found - 1 / 15).sum() / 2 == pytest.approx(0.0038, abs=5e-5)


def test_golden_exact_sensitivity_draws():
    plan = SelectionPlan(0.1, PAPER_DENSITIES, 10_000)
    assert plan.sensitivity == pytest.approx((50 * 0.7 - 1) / 10_000)
    found = probabilities(plan, [9700] * 15)
    assert found[14] == pytest.approx(0.79, abs=5e-3)  # the sparsest ticket
    assert found[13] == pytest.approx(0.185, abs=5e-4)


def test_golden_sign_of_the_product_score():
    """docs/privacy-model.md section 3.1: above a density of 1/nu = 2 % more correct answers lower the score."""
    plan = SelectionPlan(1.0, (0.5, 0.021, 0.019), 100)
    assert (plan.scores(np.full(3, 90)) < plan.scores(np.full(3, 80))).tolist() == [True, True, False]


# Scores.


@given(
    st.lists(st.tuples(st.integers(0, 100), st.floats(0.001, 1)), min_size=1, max_size=5),
    st.floats(0, 100),
    st.integers(1, 1000),
)
def test_scores_in_exact_arithmetic(candidates, weight, records):
    """S = (k/n0)(1 - nu C) and S = k/n0 - lambda C, with fractions; nu = 1 has no paper sensitivity and is not used."""
    correct, densities = np.array([k for k, _ in candidates]), tuple(c for _, c in candidates)
    additive = SelectionPlan(1.0, densities, records, score="additive", lam=weight).scores(correct)
    product = SelectionPlan(1.0, (*densities, 1.0), records, nu=weight + 2).scores(np.append(correct, 0))
    for index, (k, density) in enumerate(candidates):
        share, c = Fraction(k, records), Fraction(density)
        assert additive[index] == pytest.approx(float(share - Fraction(weight) * c), rel=1e-9, abs=1e-9)
        assert product[index] == pytest.approx(float(share * (1 - Fraction(weight + 2) * c)), rel=1e-9, abs=1e-9)


def test_paper_accuracies_saturate_at_one():
    """Lemma 1 speaks of accuracies in [0, 1]; more right answers than n0 must not leave it. Counts may exceed n0."""
    kwargs = {"eps1": 1.0, "densities": (0.5, 0.5), "records": 100}
    assert SelectionPlan(**kwargs, rule="paper").scores(np.array([100, 250])).tolist() == [-24.0, -24.0]
    assert SelectionPlan(**kwargs).scores(np.array([100, 250])).tolist() == [-24.0, -60.0]


# Sensitivity and the privacy inequality, by brute force over small datasets.
# A record is a row of 0/1: which candidates get it right. A dataset is a multiset of rows; only column sums matter.

PLANS = {
    "product": {"score": "product", "nu": 5.0},
    "product, all slopes positive": {"score": "product", "nu": 0.5},
    "additive": {"score": "additive", "lam": 0.7},
}
THREE = (0.9, 0.4, 0.05)
ROWS = tuple(itertools.product((0, 1), repeat=3))


def neighbours(adjacency, size=3):
    """Column sums of all pairs of neighbouring datasets of up to ``size`` records."""
    pairs = set()
    for records in range(size):
        for rows in itertools.combinations_with_replacement(ROWS, records):
            base = tuple(map(sum, zip((0, 0, 0), *rows, strict=True)))
            with_row = [tuple(a + b for a, b in zip(base, row, strict=True)) for row in ROWS]
            if adjacency == "add-remove":
                pairs.update((base, one) for one in with_row)
            else:
                pairs.update(itertools.product(with_row, repeat=2))
    return pairs | {(b, a) for a, b in pairs}


NEIGHBOURS = {adjacency: neighbours(adjacency) for adjacency in ("add-remove", "replace-one")}


@pytest.mark.parametrize("adjacency", NEIGHBOURS)
@pytest.mark.parametrize("name", PLANS)
def test_exact_sensitivity_is_the_maximum_over_neighbours(name, adjacency):
    plan = SelectionPlan(1.0, THREE, 3, adjacency=adjacency, **PLANS[name])
    largest = max(
        np.abs(plan.scores(np.array(one)) - plan.scores(np.array(two))).max() for one, two in NEIGHBOURS[adjacency]
    )
    assert plan.sensitivity == pytest.approx(largest, rel=1e-12)


def worst_ratio(plan, pairs):
    """The largest log ratio of a candidate's probabilities on neighbouring datasets."""
    logs = {sums: np.log(probabilities(plan, sums)) for sums in {sums for pair in pairs for sums in pair}}
    return max((logs[one] - logs[two]).max() for one, two in pairs)


@pytest.mark.parametrize("mechanism", PROBABILITIES)
@pytest.mark.parametrize("adjacency", NEIGHBOURS)
@pytest.mark.parametrize("name", PLANS)
def test_every_neighbour_within_eps1(name, adjacency, mechanism):
    """The definition of pure DP on exact probabilities; monotone additive scores without the factor 2 included."""
    for eps1 in (0.1, 1.0, 8.0):
        plan = SelectionPlan(eps1, THREE, 3, adjacency=adjacency, mechanism=mechanism, **PLANS[name])
        worst = worst_ratio(plan, NEIGHBOURS[adjacency])
        assert eps1 / 4 < worst <= eps1 * (1 + 1e-9)


@st.composite
def answers(draw):
    """A table of right and wrong answers, with one record more, less or changed; and a plan of a draw."""
    records, candidates = draw(st.integers(1, 30)), draw(st.integers(1, 6))
    rows = st.lists(st.integers(0, 1), min_size=candidates, max_size=candidates)
    table = np.array(draw(st.lists(rows, min_size=records, max_size=records)))
    given = {
        "eps1": draw(st.floats(0.01, 3)),  # with lambda below: no probability underflows to 0
        "densities": tuple(draw(st.lists(st.floats(0.01, 1), min_size=candidates, max_size=candidates))),
        "records": draw(st.integers(1, 60)),  # public, hence free of the true number
        "score": draw(st.sampled_from(["product", "additive"])),
        "nu": draw(st.sampled_from([0.0, 0.5, 1.5, 3.0, 50.0])),
        "lam": draw(st.floats(0, 3)),
        "mechanism": draw(st.sampled_from(list(PROBABILITIES))),
        "adjacency": draw(st.sampled_from(["add-remove", "replace-one"])),
    }
    one = table.sum(axis=0)
    return given, one, one - table[0] + (np.array(draw(rows)) if given["adjacency"] == "replace-one" else 0)


def product(nu, *densities):
    return {"eps1": 1.0, "densities": densities, "records": 1, "nu": nu}


@settings(max_examples=60)
@given(answers())
@example((product(3.0, 1 / 3), np.array([1]), np.array([0])))  # 1 - 3 (1/3) is 0 in float64
@example((product(3.0, 1 / 3, 0.3333333333333333 - 2**-54), np.array([1, 1]), np.array([0, 0])))  # and nearly 0
def test_random_correctness_within_eps1(case):
    """Larger random cases. Where no answer can move a score, there is nothing to draw by, and the plan is refused."""
    given, one, two = case
    if given.get("score") != "additive" and all(given["nu"] * density == 1 for density in given["densities"]):
        assert refused(SelectionPlan, **given) == CONSTANT.format(f"{given['nu']:g}")
        return
    plan = SelectionPlan(**given)
    first, second = probabilities(plan, one), probabilities(plan, two)
    assert np.abs(plan.scores(one) - plan.scores(two)).max() <= plan.sensitivity * (1 + 1e-9) + 1e-12
    assert np.abs(np.log(first) - np.log(second)).max() <= plan.eps1 * (1 + 1e-6)


@pytest.mark.parametrize("mechanism", PROBABILITIES)
@pytest.mark.parametrize("nu", [0.0, 0.9, 1.5, 1.99, 2.0, 50.0])
def test_paper_rule_when_one_record_moves_every_accuracy(nu, mechanism):
    """Predictors trained on the record: all accuracies may jump between 0 and 1. The certified figure holds for that."""
    plan = SelectionPlan(0.5, (1.0, 0.6, 0.05), 4, nu=nu, rule="paper", mechanism=mechanism, fixed_predictors=False)
    corners = list(itertools.product((0, 2, 4), repeat=3))
    worst = worst_ratio(plan, list(itertools.product(corners, repeat=2)))
    assert worst <= plan.certified_epsilon * (1 + 1e-9)


@pytest.mark.parametrize(
    ("nu", "densities", "expected"),
    [
        (50.0, PAPER_DENSITIES, 0.1),
        (2.0, (0.5, 0.01), 0.1),
        # Lemma 1 says |1 - 1.5| = 0.5; at density 0.05 a score moves by 1 - 0.075 = 0.925.
        (1.5, (0.9, 0.05), 0.1 * 0.925 / 0.5),
        (0.9, (1.0, 0.5), 0.1 * 0.55 / 0.1),
        (0.0, (0.5,), 0.1),
    ],
)
def test_certified_epsilon_of_the_paper_rule(nu, densities, expected):
    plan = SelectionPlan(0.1, densities, 100, nu=nu, rule="paper")
    assert plan.certified_epsilon == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("score", ["product", "additive"])
def test_the_resolution_makes_one_candidate_twice_as_likely(score):
    plan = SelectionPlan(0.1, (0.5, 0.5), 1000, score=score)
    chances = exponential_probabilities(plan.scores(np.array([0.6, 0.6 - plan.resolution]) * 1000), plan.exponent)
    assert max(chances) / min(chances) == pytest.approx(2)


def test_only_monotone_scores_drop_the_factor_2():
    def exponent(score, adjacency):
        return SelectionPlan(1.0, (0.5,), 100, score=score, adjacency=adjacency, nu=4.0).exponent

    assert exponent("additive", "add-remove") == pytest.approx(100)
    assert exponent("additive", "replace-one") == pytest.approx(50)
    assert exponent("product", "add-remove") == exponent("product", "replace-one") == pytest.approx(50)


DRAWN = {
    "spread": ({"eps1": 0.05, "densities": (0.5, 0.3, 0.1, 0.05)}, (60, 80, 70, 75)),
    "monotone": ({"eps1": 0.3, "densities": (0.5, 0.3, 0.1), "score": "additive"}, (97, 95, 90)),
    "ties": ({"eps1": 0.5, "densities": (0.2, 0.2, 0.1, 0.2, 0.2)}, (50, 50, 80, 50, 48)),
}


@pytest.mark.one_of(2)
@pytest.mark.parametrize("mechanism", PROBABILITIES)
@pytest.mark.parametrize("name", DRAWN)
def test_draws_follow_the_probabilities(name, mechanism):
    options, correct = DRAWN[name]
    plan, source = SelectionPlan(records=100, mechanism=mechanism, **options), FastSource(21)
    wins = np.bincount([draw(plan, np.array(correct), source) for _ in range(8_000)], minlength=len(correct))
    expected = probabilities(plan, correct) * 8_000
    assert expected.min() > 50  # no cell is idle
    assert stats.chisquare(wins, expected).pvalue > 1e-3


@pytest.mark.parametrize("mechanism", PROBABILITIES)
@pytest.mark.parametrize(("eps1", "correct"), [(1e3, (10**9, 10**9 - 10**6, 3)), (1e6, (90, 80, 3))])
def test_a_huge_epsilon_draws_the_best(mechanism, eps1, correct):
    """Without overflow (warnings are errors): the best of the scores, whatever their size."""
    plan = SelectionPlan(eps1, (0.5, 0.3, 0.1), 10, score="additive", lam=1.0, mechanism=mechanism)
    assert probabilities(plan, correct).tolist() == [1, 0, 0]
    assert draw(plan, np.array(correct), FastSource(1)) == 0


@pytest.mark.parametrize("mechanism", PROBABILITIES)
def test_at_the_borders_a_candidate_is_drawn_as_well(mechanism):
    """At a tiny epsilon evenly; from a single one; and with the last random number."""
    tiny = SelectionPlan(1e-12, (0.5, 0.3, 0.1), 10, mechanism=mechanism)
    assert probabilities(tiny, (10, 0, 3)) == pytest.approx([1 / 3] * 3, rel=1e-9)
    assert draw(SelectionPlan(0.1, (0.5,), 10, mechanism=mechanism), np.array([3]), FastSource(1)) == 0
    last = SimpleNamespace(random_bytes=lambda count: b"\xff" * count)
    assert draw(SelectionPlan(0.1, (0.7, 0.49), 100, mechanism=mechanism), np.array([50, 50]), last) in (0, 1)


# DPLTM's rule for public data.


@given(
    st.lists(st.tuples(st.floats(0.01, 1), st.floats(0, 1)), max_size=6),
    st.floats(0, 1),
    st.floats(0, 0.5),
    st.floats(0, 1),
)
@example([(0.7, 0.98), (0.5, 0.97), (0.3, 0.96), (0.1, 0.5)], 0.97, 0.01, 0.3)  # at both limits
def test_smallest_within_by_search(tickets, dense, tolerance, most):
    found = smallest_within(tuple(c for c, _ in tickets), tuple(a for _, a in tickets), dense, tolerance, most)
    good = [index for index, (c, a) in enumerate(tickets) if c <= most and a >= dense - tolerance]
    if not good:
        assert found is None
    else:
        assert found in good
        assert all(tickets[found][0] < tickets[index][0] or found <= index for index in good)


GOOD = {"eps1": 0.1, "densities": (0.7, 0.49), "records": 100}
CONSTANT = (
    "`nu`: {} makes the sensitivity 0 (all scores are constant, or nu is 1 under the paper's rule), which no draw can be"
    " calibrated to; use another value"
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({"eps1": value}, f"`eps1`: {value} ") for value in (0, -0.1, math.nan, math.inf)),
        ({"eps1": 1.1e6}, "`eps1`: 1.1e+06 "),
        ({"densities": ()}, "select: the ticket set holds no pruned ticket"),
        ({"nu": math.nan}, "`nu`: nan makes the sensitivity 0"),
        *(({"fixed_predictors": False, "score": score}, "`sensitivity`: exact ") for score in ("product", "additive")),
        *(
            ({"rule": "paper", "score": "additive", "fixed_predictors": fixed}, "`sensitivity`: paper ")
            for fixed in (True, False)
        ),
        ({"nu": 1.0, "rule": "paper"}, "`nu`: 1 "),
        ({"nu": 2.0, "densities": (0.5, 0.5)}, CONSTANT.format(2)),
    ],
)
def test_bad_plan(change, message):
    assert refused(SelectionPlan, **(GOOD | change)).startswith(message)


def test_counts_for_other_candidates():
    message = "Expected 2 counts, one for each candidate, got 3"
    assert refused(draw, SelectionPlan(**GOOD), np.zeros(3, dtype=int), FastSource(1)) == message
