"""Audits of runs, tickets and messages: what they attack, what falls and what stands; and their demo in small."""

from dataclasses import replace
from functools import cache
from unittest import mock

import numpy as np
import pytest

from dpltm.audit import audit, epsilon_bound
from dpltm.features.inputs import Services
from dpltm.local.channels import Response
from dpltm.local.codebook import Codebook
from dpltm.local.scheme import BitStrings, FixedPoint
from dpltm.networks import ModelSpec
from dpltm.options.generate import GenerateOptions
from dpltm.options.train import TrainOptions
from dpltm.privacy.entry import Lineage
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Unprotected
from dpltm.randomness.noise import FastSource
from dpltm.records import Arrays, Dataset, Split, from_arrays, load
from dpltm.training.artifacts import Run, fresh
from dpltm.verbs import audit as stage
from dpltm.verbs import audit as verb
from dpltm.verbs.audit import audit_scheme, out_of_order, unset_features, with_canaries
from dpltm.verbs.generate import generate, plan
from dpltm.verbs.train import train_start
from opened import arrays_of
from refusals import refused
from set_entries import DRAWN


def dataset_of_three() -> Dataset:
    x = np.random.default_rng(0).integers(0, 256, (200, 6), dtype=np.uint8)
    return from_arrays(x, np.arange(200) % 3, name="mine", classes=3, records=200)


def trained(ledger: Ledger | None = None, **options) -> Run:
    settings = TrainOptions(**{"noise_multiplier": 8.0, "steps": 2, "audit": 40, **options})
    start = fresh(ModelSpec("mlp:8", 6, 3), 0)
    return train_start(start, dataset_of_three(), settings, Ledger() if ledger is None else ledger, Services())


def test_a_run_brings_what_its_audit_saw():
    run = trained()
    assert len(run.observations.scores) == 40
    assert run.observations.norms == pytest.approx(np.ones(40))
    seen = run.observations  # what they tell by chance may exceed what is certified, in one run of twenty
    nothing = replace(seen, included=np.arange(40) % 2 == 1, scores=np.arange(40.0) // 2)
    found = audit(replace(run, observations=nothing))
    assert (found.facts["canaries"], found.facts["confidence"], found.violates) == (40, 0.95, [])
    assert found.certified == run.privacy.certified
    assert "40 made-up records attacked this training" in " ".join(run.privacy.notes)


def test_an_audit_is_of_the_training_alone():
    """Its claim is the stronger one: other releases from the records are no excuse."""
    ledger = Ledger()
    first, second = trained(ledger), trained(ledger, noise_multiplier=4.0)
    assert second.privacy.certified.epsilon > audit(second).certified.epsilon > audit(first).certified.epsilon
    both = replace(first, lineage=first.lineage | second.lineage)
    assert audit(both).certified == audit(first).certified


@pytest.mark.one_of(2)
@pytest.mark.parametrize(("noise", "fallen"), [(20.0, ["certified", "nominal"]), (0.5, ["nominal"]), (0.01, [])])
def test_claims_that_fall_are_named(noise, fallen):
    """Of 40 canaries, nearly all are found. Tanh as printed claims a bound of 1 in place of 7.9."""
    run = trained(noise_multiplier=noise, filter="tanh", no_pre_clip=True)
    included = np.arange(len(run.observations.included)) % 2 == 0  # as coins mostly fall, but in every run
    told = np.where(included, 1.0, -1.0)
    found = audit(replace(run, observations=replace(run.observations, included=included, scores=told)))
    assert found.lower_bound > 1.5
    assert found.violates == fallen


def test_what_cannot_be_audited_is_refused():
    message = "the run: has no observations of an audit; train with `audit`, such as 1000, to have it attacked"
    assert refused(audit, trained(audit=None)) == message


def test_rows_of_the_demo_with_their_claims(monkeypatch):
    monkeypatch.setattr(verb, "SHORT", {"batch_size": 16.0, "steps": 40, "lr": 0.3})
    monkeypatch.setattr(verb, "UER", replace(verb.UER, values=20))
    short = {name: {**options, "audit": 60} for name, options in verb.TRAININGS.items()}
    monkeypatch.setattr(verb, "TRAININGS", short)
    rows = verb.demo(load("digits"), Services())
    assert [row.what for row in rows] == [*verb.TRAININGS, "LATENT's UER, one record"]
    for row in rows:
        assert row.lower_bound <= row.certified.epsilon
        assert (row.nominal is not None) == (row.what in ("tanh as printed", "LATENT's UER, one record"))
    assert rows[-1].violates == ["nominal"]


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
    assert found.facts["canaries"] == EMPTY
    assert found.lower_bound == epsilon_bound(EMPTY, EMPTY, found.facts["correct"], 0.0, 0.95) > 1
    assert found.nominal.epsilon == pytest.approx(0.1)
    assert found.violates == ["nominal"], "nothing is certified for such tickets, so nothing certified falls"
    assert 0 <= found.facts["shuffled_mask"] <= 1
    assert 0 <= found.facts["supermask"] <= 1


def test_tickets_that_do_not_depend_on_the_records_tell_nothing(monkeypatch):
    """The same attack on masks made without them: a bound above what is true would be a bug of ours."""
    whole = stage.generate

    def of_the_first(spec, records, options, **given):
        x, y = records
        return whole(spec, (x[:200], y[:200]), options, **given)

    monkeypatch.setattr(stage, "generate", of_the_first)
    found = attacked(private_set())
    assert found.lower_bound == 0
    assert found.facts["correct"] < EMPTY
    assert found.violates == []


def test_the_records_are_left_as_they_are():
    dataset = records()
    before = arrays_of(dataset.train).x.copy()
    attacked(private_set(), dataset)
    assert np.array_equal(arrays_of(dataset.train).x, before)
    facts = attacked(private_set(), dataset).facts
    assert facts["supermask"] is facts["shuffled_mask"] is None


@pytest.mark.parametrize("changed", [{"provenance": "dp"}, {"criterion": "random"}])
def test_tickets_that_the_attack_is_not_for_are_refused(changed):
    tickets = replace(private_set(), **changed)
    assert refused(attacked, tickets).startswith(f"{tickets.label}: the attack is on sets of `provenance` private")


def test_records_that_the_attack_is_not_for_are_refused():
    assert refused(attacked, private_set(), _wider()) == (
        "`dataset`: 4 of its features are zero in every record, and `confidence` 0.95 needs 5; this attack is for images"
        " with an empty border, such as mnist"
    )


def _wider():
    """As many features, of which 4 are empty."""
    dataset = records()
    x = arrays_of(dataset.train).x.copy()
    x[0, 8 : 8 + EMPTY - 4] = 1
    return replace(dataset, train=Split(Arrays(x, arrays_of(dataset.train).y)))


WEIGHTS = np.array([[0.1, 0.5, 0.3, 0.6], [0.2, 0.7, 0.8, 0.05]])


def test_pruning_by_a_threshold_is_in_order():
    for threshold in (0.0, 0.15, 0.4, 0.9):
        mask = threshold <= WEIGHTS
        assert out_of_order(WEIGHTS, mask).tolist() == [0, 0, 0, 0]


def test_a_feature_whose_weights_moved_is_the_one_out_of_order():
    mask = WEIGHTS >= 0.4
    mask[1, 3] = True  # 0.05 was kept
    assert out_of_order(WEIGHTS, mask).tolist() == [0, 0, 0, 1]
    mask[1, 1] = False  # and 0.7 dropped
    assert out_of_order(WEIGHTS, mask).tolist() == [0, 1, 0, 1]


def test_features_that_no_record_has():
    x = np.array([[[0, 1], [0, 0]], [[0, 0], [0, 2]]], dtype=np.uint8)
    assert unset_features(x).tolist() == [0, 2]
    more = with_canaries(x, np.array([0, 2]), 255.0)
    assert more.dtype == np.uint8
    assert more[:2].tolist() == x.tolist()
    assert more[2:].tolist() == [[[255, 0], [0, 0]], [[0, 0], [255, 0]]]


BITS = BitStrings(20, 5, FixedPoint(4, 5), "uer", 0.5, 7.0, 1.0)
INDEX = Codebook(12, 5, 3.0, "one-hot", 16)


def message_bound(answer, messages=1000):
    return audit_scheme("messages", answer, messages, 0.95, FastSource(2)).lower_bound


def test_what_uer_claims_falls_at_once():
    assert message_bound(BITS) > BITS.nominal == 1.5
    assert message_bound(BITS) < BITS.certified


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    "answer",
    [
        INDEX,
        replace(INDEX, labels="signed", epsilon=1.0),
        replace(BITS, protocol="rappor", alpha=None, epsilon=2.0),
        replace(BITS, protocol="moue-hs", epsilon=2.0),
        BitStrings(1, 5, FixedPoint(1, 1), "rappor", 3.0, None, None),
    ],
)
def test_what_is_certified_stands(answer):
    assert message_bound(answer) <= answer.certified


@pytest.mark.long
def test_of_few_bits_and_of_an_index_the_bound_comes_near():
    assert message_bound(BitStrings(1, 5, FixedPoint(0, 1), "rappor", 2.0, None, None), 4000) > 0.8
    assert message_bound(INDEX, 2000) > 1.5


def test_the_label_is_attacked_as_well():
    """Bits that say nothing, and a label that says a lot."""
    silent = BitStrings(1, 5, FixedPoint(0, 1), "rappor", 1e-3, None, 2.0)
    assert message_bound(silent, 3000) > 1
    assert message_bound(replace(silent, label_epsilon=None), 3000) < 0.1


def test_coins_that_do_less_than_they_say_are_found():
    answer = BitStrings(1, 2, FixedPoint(0, 1), "rappor", 0.1, None, 0.5)
    assert message_bound(answer) < answer.certified
    with mock.patch.object(Response, "send", lambda _, near, __: near[:, 0]):
        assert message_bound(answer) > answer.certified
