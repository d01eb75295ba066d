"""Claims beside what holds (privacy-model.md 6)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpltm.local.latent import EpsilonRequest
from dpltm.tickets.workbench.latent import claim as local_claim
from refusals import refused


def claim(**options: Any) -> dict[str, Any]:
    return local_claim(EpsilonRequest(**options))


@pytest.mark.parametrize(
    ("options", "certified"),
    [({"protocol": "uer", "alpha": 7.0}, 262983.6), ({"protocol": "moue-hs", "alpha": 7.0}, 0.4375)],
)
def test_the_figures_of_the_paper_and_what_they_are_worth(options: dict[str, Any], certified: float) -> None:
    found = claim(**options, bits=92160, epsilon=0.5)
    assert (found["nominal"], found["certified"]) == (0.5, pytest.approx(certified, rel=1e-6))


def test_one_hot_strings_are_worth_what_is_claimed_for_them() -> None:
    of_any, one_hot = (claim(protocol="oue", bits=10, epsilon=2.0, one_hot=one) for one in (False, True))
    assert one_hot["certified"] == pytest.approx(2)
    assert of_any["certified"] == pytest.approx(10 * -math.log(2 / (1 + math.exp(2))), rel=1e-9)
    assert any("--one-hot" in note for note in of_any["notes"])
    assert not any("--one-hot" in note for note in one_hot["notes"])


def test_labels_and_copies_add_up() -> None:
    found = claim(protocol="rappor", bits=30, epsilon=1.0, label_epsilon=2.0, copies=3)
    assert found["certified"] == pytest.approx(3 * (1 + 2))  # as three encodings in one ledger
    assert found["nominal"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {},
            "`alpha` is missing: uer needs one, such as 7",
        ),  # the others of a channel: tests/dpltm/local/test_channels.py
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    assert refused(claim, **{"bits": 10, "epsilon": 1.0, **options}) == message
