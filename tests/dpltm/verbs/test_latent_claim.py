"""Claims beside what holds (privacy-model.md 6)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpltm.errors import CalibrationError
from dpltm.options.latent import EpsilonRequest
from dpltm.verbs.latent import claim as local_claim
from refusals import refused


def claim(**options: Any):
    return local_claim(EpsilonRequest(**options))


def test_the_figure_of_the_paper_and_what_it_is_worth() -> None:
    found = claim(protocol="uer", alpha=7.0, bits=92160, epsilon=0.5)
    assert found.nominal == 0.5
    assert found.certified == pytest.approx(262983.6, abs=0.05)


@pytest.mark.parametrize(
    ("options", "certified"), [({"protocol": "moue-hs", "alpha": 7.0}, 0.4375), ({"protocol": "rappor"}, 0.5)]
)
def test_what_holds_as_claimed(options: dict[str, Any], certified: float) -> None:
    assert claim(**options, bits=92160, epsilon=0.5).certified == pytest.approx(certified, rel=1e-6)


def test_one_hot_strings_are_worth_what_is_claimed_for_them() -> None:
    of_any, one_hot = (claim(protocol="oue", bits=10, epsilon=2.0, one_hot=one) for one in (False, True))
    assert one_hot.certified == pytest.approx(2)
    assert of_any.certified == pytest.approx(10 * -math.log(2 / (1 + math.exp(2))), rel=1e-9)
    assert any("`one_hot`" in note for note in of_any.notes)
    assert not any("`one_hot`" in note for note in one_hot.notes)


def test_labels_and_copies_add_up() -> None:
    found = claim(protocol="rappor", bits=30, epsilon=1.0, label_epsilon=2.0, copies=3)
    assert found.certified == pytest.approx(3 * (1 + 2))  # as three encodings in one ledger
    assert found.nominal == 3


@pytest.mark.parametrize(
    "options",
    [{"protocol": "oue", "one_hot": True}, {"protocol": "moue-hs", "alpha": 7.0}, {"protocol": "uer", "epsilon": 1.0}],
)
def test_the_setting_that_certifies_what_is_wanted(options: dict[str, Any]) -> None:
    found = claim(**options, bits=40, certified=30.0)
    assert 30 * (1 - 1e-6) <= found.certified <= 30
    again = claim(**{**options, "epsilon": found.epsilon, "alpha": found.alpha}, bits=40)
    assert again.certified == pytest.approx(found.certified, rel=1e-9)


REFUSED: dict[str, dict[str, Any]] = {
    "`bits`: 0 is not a whole number from 1 to": {"bits": 0, "alpha": 7.0, "epsilon": 1.0},
    "`epsilon`: -1 is not a positive number": {"alpha": 7.0, "epsilon": -1.0},
    "`alpha`: ue has none; leave it out": {"protocol": "ue", "alpha": 7.0, "epsilon": 1.0},
    "`epsilon` is missing: what uer shall claim; `alpha` is found for it": {"certified": 3.0},
    "`epsilon`, `certified`: one of them decides": {"protocol": "ue", "certified": 3.0, "epsilon": 5.0},
    "`certified`: 3 is all spent on the label": {"protocol": "ue", "certified": 3.0, "label_epsilon": 3.0},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message: str) -> None:
    assert refused(claim, **{"bits": 10, **REFUSED[message]}).startswith(message)


def test_no_setting_certifies_so_little() -> None:
    with pytest.raises(CalibrationError, match=r"no alpha from 1 to 1e\+06 certifies 1; the least is 2\.5"):
        claim(bits=92160, certified=1.0, epsilon=5.0)
