"""A ticket that an estimator draws on the records: whatever is wrong is said before the draw is paid for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dpltm
from dpltm.privacy.entry import Entry
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Guarantee
from dpltm.training.artifacts import TicketSet
from stage_cases import kinds


def table(count: int = 120) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).random((count, 4))
    return x, (x[:, 0] > 0.5).astype(int)


@pytest.fixture(scope="module")
def tickets() -> TicketSet:
    x = np.random.default_rng(7).random((100, 4))
    made = {"model": "mlp:8", "rounds": 2, "iterations": 5, "batch_size": 20}
    y = (x[:, 0] > 0.5).astype(int)
    return dpltm.generate(x, y, provenance="public", bounds=(0, 1), ledger=Ledger(), **made)


def drawing(tickets: TicketSet, **given: Any) -> dpltm.TicketClassifier:
    """An estimator that would draw; in a ledger of its own."""
    public = {"bounds": (0, 1), "classes": 2, "n_records": 120, "epochs": 2}
    asked = {"tickets": tickets, "select_epsilon": 0.5, "epsilon": 2.0, "ledger": Ledger(), **public, **given}
    return dpltm.TicketClassifier(**asked)


BAD: dict[str, dict[str, Any]] = {
    "a draw that leaves nothing": {"epsilon": 0.4},
    "a draw of nothing": {"select_epsilon": 0.0},
    "delta": {"delta": 2.0},
    "optimizer": {"optimizer": "adamw"},
    "clip norm": {"clip_norm": 0.0},
    "filter": {"filter": "clipp"},
    "epochs": {"epochs": -2},
    "batch": {"batch_size": 1000.0},
    "centre": {"centre": 2.0},
    "features of a set": {"features": "scatter"},
    "head": {"head": "least-squares"},
    "seed": {"random_state": "seven"},
    "neither": {"epsilon": None},
    "persons": {"per_unit": 3},
    "a round beside a draw": {"round": 1},
}


@pytest.mark.parametrize("given", BAD.values(), ids=BAD)
def test_what_is_wrong_with_the_training_is_said_before_the_draw(tickets: TicketSet, given: dict[str, Any]) -> None:
    made = drawing(tickets, **given)
    with pytest.raises((ValueError, dpltm.errors.BudgetError)):  # in the words of each stage, which are tested there
        made.fit(*table())
    assert made.ledger_.entries == ()


def test_a_budget_that_the_training_would_exceed_is_said_before_the_draw(tickets: TicketSet) -> None:
    """It allows the draw, 0.5, and not the training after it, which brings all to 2."""
    x, y = table()
    ledger = Ledger()
    ledger.declare(Entry("budget", mechanisms=(Guarantee(1.0, 1e-5),)))
    with pytest.raises(dpltm.errors.BudgetError):
        drawing(tickets, ledger=ledger).fit(x, y)
    assert kinds(ledger) == ["budget"]
    drawing(tickets, ledger=ledger, epsilon=0.9).fit(x, y)
    assert kinds(ledger) == ["budget", "Selection", "NoisySgd"]


def test_a_second_draw_goes_on_from_the_first(tickets: TicketSet) -> None:
    made = drawing(tickets)
    made.fit(*table()).fit(*table())
    assert kinds(made.ledger_) == ["Selection", "NoisySgd"] * 2
    assert 2 < made.privacy_.certified.epsilon < 4
