"""Audits of runs: what they attack, and what cannot be attacked."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from dpltm.errors import ArtifactError, InputError
from dpltm.privacy.events import TrainingEvent
from dpltm.privacy.old_ledger import Ledger
from dpltm.stages.audit import audit, training_of
from dpltm.stages.services import Services
from dpltm.stages.train import train
from dpltm.training.run import Run
from refusals import refused
from stage_cases import planned

SETTINGS = {"noise_multiplier": 8.0, "audit": 40}


def trained(**options) -> Run:
    return train(planned(**{**SETTINGS, **options}), Services())


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
    first, second = trained(ledger=ledger), trained(ledger=ledger, noise_multiplier=4.0)
    assert second.privacy.certified.epsilon > audit(second).certified.epsilon > audit(first).certified.epsilon
    assert training_of(replace(first, events=second.events)).mechanism.noise_multiplier == 8.0


@pytest.mark.parametrize(("noise", "fallen"), [(20.0, ["certified", "nominal"]), (0.5, ["nominal"]), (0.01, [])])
def test_claims_that_fall_are_named(noise, fallen):
    """Of 40 canaries, nearly all are found. Tanh as printed claims a bound of 1 in place of 7.9."""
    run = trained(noise_multiplier=noise, filter="tanh", no_pre_clip=True)
    told = np.where(run.observations.included, 1.0, -1.0)
    found = audit(replace(run, observations=replace(run.observations, scores=told)))
    assert found.lower_bound > 1.5
    assert found.violates == fallen


@pytest.mark.parametrize("canaries", [0, 63])
def test_an_audit_that_cannot_be_is_refused_while_it_is_planned(canaries):
    with pytest.raises(InputError, match=r"^`audit`: "):
        planned(**{**SETTINGS, "audit": canaries})


def test_what_cannot_be_audited_is_refused():
    message = "the run: has no observations of an audit; train with `audit`, such as 1000, to have it attacked"
    assert refused(audit, trained(audit=None)) == message


def test_events_of_another_training_are_refused():
    run = trained()
    others = tuple(
        replace(event, mechanism=replace(event.mechanism, noise_multiplier=9.0))
        for event in run.events
        if isinstance(event, TrainingEvent)
    )
    assert len(others) == 1
    for events in (others, ()):
        with pytest.raises(ArtifactError, match=re.escape("its ledger holds no training with its settings")):
            audit(replace(run, events=events))
