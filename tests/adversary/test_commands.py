"""Every command that spends, on neighbouring datasets: what is released, and what the ledger says, against what was done."""

from __future__ import annotations

import itertools

import pytest

import adversary_cases
from adversary import Case, examine

CASES = adversary_cases.all_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_goes_past_the_mechanisms(case: Case) -> None:
    """What is released is a function of recorded draws and public options, and every draw is what its event says."""
    found = examine(case)
    assert found.mismatches == []
    assert bool(found.compared) == case.spends


def test_every_pair_of_options_is_there() -> None:
    rows = list(adversary_cases.pairwise(adversary_cases.CHOICES))
    for (one, values), (other, others) in itertools.combinations(adversary_cases.CHOICES.items(), 2):
        had = {(row[one], row[other]) for row in rows}
        assert had == set(itertools.product(values, others)), f"{one} and {other}"


def test_every_command_that_spends_is_there() -> None:
    """Those that can enter something in a ledger, but for those that run others (demo) or write down limits (budget)."""
    assert {command[0] for case in CASES for command in case.commands} == {
        "generate", "select", "train", "latent", "run", "tune",
    }  # fmt: skip
