"""Weights of classes by label, by order and by shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dpltm
from dpltm.errors import InputError


def data() -> tuple[np.ndarray, np.ndarray]:
    """Of two classes that overlap; one in six has the second."""
    draw = np.random.default_rng(0)
    y = np.where(draw.random(900) < 1 / 6, "yes", "no")
    return np.clip(draw.normal(0.4, 0.15, (900, 2)) + 0.15 * (y == "yes")[:, None], 0, 1), y


def fitted(**given: Any) -> dpltm.TicketClassifier:
    made = dpltm.TicketClassifier(
        bounds=(0, 1), noise_multiplier=0.02, epochs=12, batch_size=900, features="unit", lr=2.0,
        ledger=dpltm.Ledger(), **given,
    )  # fmt: skip
    return made.fit(*data())


@pytest.mark.parametrize(
    "given",
    [
        {"class_weight": {"yes": 5.0, "no": 1.0}},
        {"class_weight": {"yes": 5.0}},
        {"class_weight": [0.2, 1.0]},
        {"class_weight": "balanced", "class_shares": {"no": 5 / 6, "yes": 1 / 6}},
        {"class_weight": "balanced", "class_shares": [5 / 6, 1 / 6]},
    ],
)
def test_all_say_the_same(given: dict[str, Any]) -> None:
    run = fitted(**given).run_
    assert run.config["resolved"]["filter"] == "clip(C=1) times class weights 0.2,1"


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match=r"^`class_weight`: 'perhaps' is no label; name those of `y`$"):
        fitted(class_weight={"perhaps": 2.0})
    with pytest.raises(InputError, match=r"^`class_weight`: balanced needs public shares of the classes"):
        fitted(class_weight="balanced")
