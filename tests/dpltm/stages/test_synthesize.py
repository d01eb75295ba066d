"""Synthetic records as a stage: what is entered, what is refused, and what follows them into other stages.

That nothing but the query looks at the records, and that the event comes first, ``tests/adversary`` shows.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpltm
import dpltm.tickets
from dpltm.errors import ArtifactError, BudgetError
from dpltm.options.latent import EncodeOptions, SchemeOptions
from dpltm.options.synthesize import SynthesizeOptions
from dpltm.privacy import gdp
from dpltm.privacy.events import SYNTHETIC, BudgetEvent, GaussianEvent, ProvenanceEvent
from dpltm.privacy.old_ledger import Ledger
from dpltm.records import from_arrays, load
from dpltm.records.registry import RecordRegistry
from dpltm.stages import synthesize as stage
from dpltm.stages.front import FeatureSources
from dpltm.stages.latent_owner import plan_encoding
from dpltm.stages.latent_scheme import make_scheme
from dpltm.stages.services import Services
from refusals import refused, refused_after_it_ran
from stage_cases import records

FEW: dict[str, Any] = {"records_out": 40, "model": "mlp:4", "delta": 1e-4}
TINY: dict[str, Any] = {"model": "mlp:4", "rounds": 1, "iterations": 3, "batch_size": 20}


def planned(ledger: Ledger | None = None, dataset: Any = None, **options: Any) -> stage.SynthesisPlan:
    mine = records(1) if dataset is None else dataset
    return stage.plan(mine, SynthesizeOptions(**{**FEW, "epsilon": 1.0, **options}), ledger or Ledger(), Services())


@pytest.mark.parametrize(("adjacency", "bound"), [("add-remove", 9 / 8), ("replace-one", 9 / 4)])
def test_the_event_is_a_gaussian_mechanism_of_that_epsilon(adjacency: str, bound: float) -> None:
    made = dpltm.synthesize(records(1), epsilon=1.0, adjacency=adjacency, **FEW)
    (event,) = made.ledger.events
    assert isinstance(event, GaussianEvent)
    assert (event.mechanism.sensitivity, event.mechanism.adjacency) == (bound, adjacency)
    # a Gaussian mechanism is mu-GDP with mu = 1/sigma, whose delta at epsilon is exact (Dong, Roth, Su 2022, Cor. 2.13)
    exact = gdp.delta(1.0, 1 / event.mechanism.noise_multiplier)
    assert exact <= 1e-4
    assert exact == pytest.approx(1e-4, rel=0.02)
    assert made.privacy.certified.epsilon <= 1.0
    assert made.privacy.certified.adjacency == adjacency


def test_records_are_shaped_and_bounded_as_the_private_ones() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2, 3))
    made = dpltm.synthesize(x, np.arange(60) % 3, bounds=(-2.0, 5.0), epsilon=1.0, **{**FEW, "delta": 1e-3})
    assert (made.x.shape, made.x.dtype, made.y.dtype) == ((40, 2, 3), np.float32, np.int64)
    assert made.x.min() >= -2
    assert made.x.max() <= 5
    assert set(made.y.tolist()) <= {0, 1, 2}
    assert (made.score, made.dataset.bounds, made.dataset.classes) == (None, (-2.0, 5.0), 3)


def test_much_epsilon_makes_records_that_teach() -> None:
    made = dpltm.synthesize(records(1, 2000, test=500), epsilon=50.0, records_out=2000, model="mlp:16", delta=1e-4)
    assert made.score is not None
    assert (made.score.model, made.score.records) == ("mlp:16", 500)
    assert made.score.accuracy > 0.7  # a guess has a third; the noise is small beside 2,000 records
    assert (
        "accuracy is measured on the test split, which is declared separate from the private records"
        in made.privacy.notes
    )


def test_what_is_spent_already_is_part_of_the_budget() -> None:
    ledger = Ledger()
    first = dpltm.synthesize(records(1), epsilon=0.5, ledger=ledger, **FEW)
    second = dpltm.synthesize(records(1), epsilon=1.0, ledger=ledger, **FEW)
    assert first.privacy.certified.epsilon <= 0.5
    assert 0.9 < second.privacy.certified.epsilon <= 1.0
    assert len(ledger.events) == 2
    message = refused(planned, ledger, epsilon=0.5, kind=BudgetError)
    assert message.startswith("budget: ")


def test_a_budget_on_the_records_is_kept() -> None:
    mine, ledger = records(1), Ledger()
    ledger.append(BudgetEvent(ledger.registry.reference(mine), 0.3, 1e-4))
    refused(planned, ledger, mine, kind=BudgetError)
    assert len(ledger.events) == 1


def test_a_plan_runs_once() -> None:
    plan = planned()
    stage.synthesize(plan, Services())
    refused_after_it_ran(lambda again: stage.synthesize(again, Services()), plan)


def test_what_is_refused() -> None:
    assert refused(planned, epsilon=None) == "`epsilon` is missing: what may be spent on these records, such as 1"
    assert refused(planned, epsilon=-1.0) == "`epsilon`: -1 is not a positive number up to 10000"
    assert refused(planned, records_out=0) == "`records_out`: 0 is not a positive whole number"
    assert refused(planned, records_out=10**8) == (
        "`records_out`: 100,000,000 records of 6 features are more than a gigabyte; ask for at most 44,739,242"
    )
    assert refused(planned, seed=-1) == "`seed`: -1 is not between 0 and 2^63 - 1"
    assert refused(planned, delta=0.1).startswith("`delta`: 0.1 is not between 0 and 1/n = 0.005 for 200 records")
    wide = from_arrays(np.zeros((9, 8193), np.uint8), np.arange(9) % 3)
    assert refused(planned, dataset=wide, delta=1e-3) == (
        "`dataset`: takes at most 8192 features, since it releases their number squared; records has 8193: make tickets by"
        " dpltm generate `criterion` dp-train"
    )


def test_records_declared_public_are_no_private_ones() -> None:
    mine, ledger = records(1), Ledger()
    dpltm.generate(mine, provenance="public", ledger=ledger, **TINY)
    assert "down as public" in refused(planned, ledger, mine)


def test_training_on_them_enters_the_release_where_it_is_not_known() -> None:
    made, other = dpltm.synthesize(records(1), epsilon=1.0, **FEW), Ledger()
    run = dpltm.train("mlp:4", made.dataset, noise_multiplier=1.0, steps=2, batch_size=10, ledger=other)
    spent, told, trained = other.events
    assert spent == made.ledger.events[0]
    assert isinstance(told, ProvenanceEvent)
    assert (told.provenance, told.ticket_set) == ("dp", f"{SYNTHETIC}{made.dataset.synthetic.id}")  # type: ignore[union-attr]
    assert told.dataset == spent.dataset != trained.dataset
    (note,) = (note for note in run.privacy.notes if note.startswith("records of synthetic"))
    assert note == (
        "records of synthetic records1 are synthetic: post-processing of a release from records1, for whose records that"
        " release alone is certified as epsilon 1.19; it stands in the ledger, once however often they are used"
    )
    dpltm.train("mlp:4", made.dataset, noise_multiplier=1.0, steps=2, batch_size=10, ledger=other)
    assert len(other.events) == 4  # the release is not entered again


def test_tickets_from_them_are_tickets_of_that_release() -> None:
    mine = records(1)
    made = dpltm.synthesize(mine, epsilon=1.0, **FEW)
    tickets = dpltm.generate(made.dataset, provenance="public", delta=1e-4, **TINY)
    assert (tickets.provenance, tickets.events, tickets.source) == (
        "dp", made.ledger.events, made.ledger.events[0].dataset,
    )  # fmt: skip
    assert tickets.privacy is not None
    assert tickets.privacy.certified.epsilon == made.privacy.certified.epsilon
    run = dpltm.train(tickets, mine, round=1, epsilon=2.0, delta=1e-4, steps=3, batch_size=20)
    assert made.ledger.events[0] in run.ledger.events  # and pays for what the ticket knows of the records
    assert run.privacy.certified.epsilon <= 2.0
    free = dpltm.generate(made.dataset, criterion="random", model="mlp:4", rounds=1)
    assert (free.provenance, free.source, free.events) == ("data-free", None, ())


def test_they_pass_for_no_other_records() -> None:
    made = dpltm.synthesize(records(1), epsilon=1.0, **FEW).dataset
    fix = (
        "is for records of people, and those of synthetic records1 are synthetic: take `criterion` magnitude and"
        " `provenance` public, at no cost; the tickets remember the release behind the records"
    )
    assert refused(dpltm.generate, made, provenance="private", **TINY) == f"`provenance`: private {fix}"
    assert refused(dpltm.generate, made, criterion="dp-train", epsilon=1.0, **TINY) == f"`criterion`: dp-train {fix}"
    assert refused(dpltm.synthesize, made, epsilon=1.0) == (
        "`x`: records of synthetic records1 are synthetic already, and cost nothing more; name the private ones"
    )


def test_nothing_certifies_more_than_the_release() -> None:
    """A tiny budget: the score is chance, and the figure holds."""
    made = dpltm.synthesize(records(1, test=60), epsilon=0.01, **FEW)
    assert made.privacy.certified.epsilon <= 0.01
    assert made.score is not None
    assert math.isfinite(made.score.accuracy)


def test_where_the_release_would_be_lost_they_are_refused(tmp_path: Path) -> None:
    """As public records of a feature map or a scheme, and as records of an owner; kept in a file and read again."""
    made = dpltm.synthesize(records(1), epsilon=1.0, **FEW)
    path = tmp_path / "made.npz"
    assert dpltm.tickets.save(made, path) is made
    found = load(str(path))
    assert np.array_equal(found.train.x, made.x)
    assert found.synthetic == made.dataset.synthetic
    lost = "records of {} are synthetic, made from records1, and what is taken of them here would not say so; name {}"
    public = "records that are public themselves"
    told = refused(dpltm.train, "mlp:4", records(2), features="unit", components=2, public=str(path), epsilon=1.0)
    assert told == f"`public`: {lost.format('made', public)}"
    sources, options = FeatureSources(registry=RecordRegistry()), SchemeOptions(epsilon=4.0, features="unit")
    assert refused(make_scheme, found, options, sources) == f"`public`: {lost.format('made', public)}"
    scheme = make_scheme(records(3), options, sources)
    told = refused(plan_encoding, scheme, found, EncodeOptions(delta=1e-5), Ledger())
    assert told == f"`dataset`: {lost.format('made', 'the private ones')}"
    told = refused(dpltm.tickets.save, made, tmp_path / "made.csv", kind=ArtifactError)
    assert told == f"`path`: {tmp_path / 'made.csv'} is no .npz; name it made.npz"
