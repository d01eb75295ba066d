"""Several ledgers together."""

from __future__ import annotations

import pytest

from dpltm.cli.ledgers import total
from dpltm.errors import InputError
from dpltm.privacy.entry import Entry
from dpltm.privacy.ledger import Book, Ledger
from dpltm.privacy.mechanisms import Guarantee
from refusals import refused


def book(*kinds: str, unit: str = "record") -> Book:
    """What a ledger with one guarantee of epsilon 1, under replace-one, of each kind holds."""
    ledger = Ledger(unit=unit)
    message = (Guarantee(1.0, adjacency="replace-one"),)
    ledger.declare(*(Entry(kind, mechanisms=message, words="something", unit=unit) for kind in kinds))  # type: ignore[arg-type]
    return ledger.book


@pytest.mark.parametrize(
    ("books", "epsilon"),
    [
        ([book("local")], 1),
        ([book("local"), book("local")], 2),  # whoever is in both sent two messages
        ([book("local", "local"), book("local")], 3),
        ([book("release"), book("local")], 2),
    ],
)
def test_everything_adds_up(books, epsilon):
    """Guarantees with no delta: no composition of theirs is below their sum by more than what delta buys."""
    assert total(books).epsilon(1e-12) == pytest.approx(epsilon, rel=1e-6)


def test_units_have_no_common_figure():
    assert refused(total, [book("release"), book("release", unit="patient")], kind=InputError).startswith(
        "ledgers of different units"
    )
