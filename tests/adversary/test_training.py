"""``dpltm train`` on neighbouring datasets, over every pair of options that changes what is released, with options that go
together, and with other kinds of records; ``PrivateLoop``; the estimators.

``--compile`` is left out: it needs a compiler and a minute, changes the speed of element-wise filters only, and has tests of
its own against the plain sums (tests/dpltm/gradients/test_fused.py). ``--device cuda`` is there where the device is.
"""

from __future__ import annotations

import itertools

import pytest

from adversary import Case, examine
from adversary_cases import CHOICES, estimator_cases, loop_cases, pair_cases, pairwise, train_cases

PAIRS = [pytest.param(case, marks=pytest.mark.long if place % 4 else ()) for place, case in enumerate(pair_cases())]
"""Most of them with ``make proofs``: they differ in which options meet."""


@pytest.mark.one_of(22)
@pytest.mark.parametrize(
    "case", [*PAIRS, *train_cases(), *loop_cases(), *estimator_cases()], ids=lambda case: case.name
)
def test_nothing_goes_past_the_mechanisms(case: Case) -> None:
    """What is released is a function of recorded draws and public options, and every draw is what its event says."""
    found = examine(case)
    assert found.mismatches == []
    assert found.compared >= found.queries > 0


def test_every_pair_of_options_is_there() -> None:
    rows = list(pairwise(CHOICES))
    for (one, values), (other, others) in itertools.combinations(CHOICES.items(), 2):
        had = {(row[one], row[other]) for row in rows}
        assert had == set(itertools.product(values, others)), f"{one} and {other}"
