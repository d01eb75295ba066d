"""Tickets under DP, draws, messages, sweeps, and commands that only say what they would spend, on neighbouring datasets."""

from __future__ import annotations

import pytest

from adversary import Case, examine
from adversary_cases import FAMILIES, all_cases

FAMILY_NAMES = ("tickets", "latent", "dry", "own", "parts", "sweeps", "schemas")
CASES = [case for name in FAMILY_NAMES for case in FAMILIES[name]()]


@pytest.mark.one_of(15)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_goes_past_the_mechanisms(case: Case) -> None:
    found = examine(case)
    assert found.mismatches == []
    assert bool(found.compared) == case.spends


def test_every_command_that_spends_is_there() -> None:
    """Those that can enter a release in a ledger, but for demo, which runs others."""
    assert {command.split()[0] for case in all_cases() for command in case.commands} == {
        "generate", "select", "train", "latent", "run", "tune", "datasets",
    }  # fmt: skip
