"""Audits of runs: what they attack, and what cannot be attacked. And the demo of audits, on less of everything."""

import re
from dataclasses import replace

import numpy as np
import pytest

from dpltm.audit import audit
from dpltm.errors import ArtifactError
from dpltm.features.inputs import Services
from dpltm.networks import ModelSpec
from dpltm.options.train import TrainOptions
from dpltm.privacy.entry import Lineage
from dpltm.privacy.ledger import Ledger
from dpltm.records import Dataset, from_arrays, load
from dpltm.training.artifacts import Run, fresh
from dpltm.verbs import audit as verb
from dpltm.verbs.train import train_start
from refusals import refused


def records() -> Dataset:
    x = np.random.default_rng(0).integers(0, 256, (200, 6), dtype=np.uint8)
    return from_arrays(x, np.arange(200) % 3, name="mine", classes=3, records=200)


def trained(ledger: Ledger | None = None, **options) -> Run:
    settings = TrainOptions(**{"noise_multiplier": 8.0, "steps": 2, "audit": 40, **options})
    start = fresh(ModelSpec("mlp:8", 6, 3), 0)
    return train_start(start, records(), settings, Ledger() if ledger is None else ledger, Services())


def test_a_run_brings_what_its_audit_saw():
    run = trained()
    assert len(run.observations.scores) == 40
    assert run.observations.norms == pytest.approx(np.ones(40))
    seen = run.observations  # what they tell by chance may exceed what is certified, in one run of twenty
    nothing = replace(seen, included=np.arange(40) % 2 == 1, scores=np.arange(40.0) // 2)
    found = audit(replace(run, observations=nothing))
    assert (found.canaries, found.confidence, found.violates) == (40, 0.95, [])
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


def test_a_lineage_of_another_training_is_refused():
    run = trained()
    (entry,) = run.lineage.entries
    other = replace(entry, mechanisms=tuple(replace(each, noise_multiplier=9.0) for each in entry.mechanisms))
    for lineage in (Lineage((other,)), Lineage()):
        with pytest.raises(ArtifactError, match=re.escape("its lineage holds no training with its settings")):
            audit(replace(run, lineage=lineage))


def test_rows_of_the_demo_with_their_claims(monkeypatch):
    monkeypatch.setattr(verb, "SHORT", {"batch_size": 16.0, "steps": 40, "lr": 0.3})
    monkeypatch.setattr(verb, "UER", replace(verb.UER, values=20))
    short = {name: {**options, "audit": 60} for name, options in verb.TRAININGS.items()}
    monkeypatch.setattr(verb, "TRAININGS", short)
    rows = verb.demo(load("digits"), Services())
    assert [row.what for row in rows] == [*verb.TRAININGS, "LATENT's UER, one record"]
    for row in rows:
        assert row.lower_bound <= row.certified
        assert (row.nominal is not None) == (row.what in ("tanh as printed", "LATENT's UER, one record"))
    assert rows[-1].violates == ["nominal"]
