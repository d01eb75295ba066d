"""Tickets made from private records with no mechanism: their masks tell who is among the records."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from dpltm.features.inputs import Services
from dpltm.options.generate import GenerateOptions
from dpltm.privacy.entry import Lineage
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Unprotected
from dpltm.randomness.noise import FastSource
from dpltm.records import Arrays, Split, from_arrays
from dpltm.verbs import audit as stage
from dpltm.verbs.generate import generate, plan
from opened import arrays_of
from refusals import refused
from set_entries import DRAWN

EMPTY = 24


def records(unset: int = EMPTY, test: int = 0):
    """Records of two classes on 8 features, beside ``unset`` that none of them has."""
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (200 + test, 8 + unset), dtype=np.uint8)
    y = (x[:, 0].astype(int) > x[:, 1]).astype(int)
    x[:, 8:] = 0
    held_out = (x[200:], y[200:]) if test else None
    return from_arrays(x[:200], y[:200], test=held_out, classes=2, name="mine")


@cache
def private_set(**settings):
    given = {"criterion": "magnitude", "model": "mlp:100", "provenance": "private", **settings}
    options = GenerateOptions(
        rounds=1, prune="0.3", iterations=400, batch_size=50, lr=0.5, seed=1, delta=1e-4, **given
    )
    return generate(plan(records(), options, Ledger(), Services()))


def attacked(tickets, dataset=None, ledger=None, **given):
    return stage.audit_tickets(
        tickets, dataset or records(), ledger or Ledger(), Services(), coins=FastSource(3), **given
    )


def test_the_mask_alone_refutes_what_is_claimed():
    tickets, ledger = replace(private_set()), Ledger()
    tickets.mark(Lineage((DRAWN,)))
    found = attacked(tickets, records(test=80), ledger)
    apart, look = ledger.entries
    assert (apart.kind, bool(look.of(Unprotected))) == ("excluded", True)
    assert found.canaries == EMPTY
    assert found.lower_bound > 1
    assert found.nominal == pytest.approx(0.1)
    assert found.violates == ["nominal"], "nothing is certified for such tickets, so nothing certified falls"
    assert 0 <= found.shuffled <= 1
    assert 0 <= found.supermask <= 1


def test_tickets_that_do_not_depend_on_the_records_tell_nothing(monkeypatch):
    """The same attack on masks made without them: a bound above what is true would be a bug of ours."""
    whole = stage.generate
    monkeypatch.setattr(
        stage, "generate", lambda spec, x, y, config, **given: whole(spec, x[:200], y[:200], config, **given)
    )
    found = attacked(private_set())
    assert found.lower_bound == 0
    assert found.correct < EMPTY
    assert found.violates == []


def test_the_records_are_left_as_they_are():
    dataset = records()
    before = arrays_of(dataset.train).x.copy()
    attacked(private_set(), dataset)
    assert np.array_equal(arrays_of(dataset.train).x, before)
    assert (found := attacked(private_set(), dataset)).supermask is None
    assert found.shuffled is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"provenance": "dp"},
            "tickets of provenance dp have a guarantee for private records, or cost them nothing; this attack is for tickets"
            " of provenance private",
        ),
        (
            {"criterion": "random"},
            "the attack is on `criterion` magnitude and `scope` layer, without `features`; make them so",
        ),
    ],
)
def test_tickets_that_the_attack_is_not_for_are_refused(changed, message):
    tickets = replace(private_set(), **changed)
    assert refused(attacked, tickets) == f"{tickets.label}: {message}"


def test_records_that_the_attack_is_not_for_are_refused():
    assert "4 of its features are zero in every record" in refused(attacked, private_set(), _wider())
    assert refused(attacked, private_set(), confidence=1.0).startswith("`confidence`: 1 is not")


def _wider():
    """As many features, of which 4 are empty."""
    dataset = records()
    x = arrays_of(dataset.train).x.copy()
    x[0, 8 : 8 + EMPTY - 4] = 1
    return replace(dataset, train=Split(Arrays(x, arrays_of(dataset.train).y)))
