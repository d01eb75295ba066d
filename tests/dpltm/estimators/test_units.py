"""Persons as the unit of privacy in ``fit``: whose each record is, and what is refused before anything is spent."""

from typing import Any

import numpy as np
import pandas
import polars
import pytest
import sklearn
from sklearn.base import clone
from sklearn.metrics import r2_score
from sklearn.model_selection import GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import dpltm
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Guarantee, NoisySgd, Selection
from refusals import refused

pytestmark = pytest.mark.filterwarnings("ignore::dpltm.estimators.UncoveredWarning")  # predictions here are of fits

PERSONS = 50
WHO = np.repeat(np.arange(PERSONS), 4)
X = np.random.default_rng(0).random((len(WHO), 4))
Y = (X[:, 0] > 0.5).astype(int)
TEXTS = np.array([f"p{number}" for number in WHO])


def classifier(**given: Any) -> dpltm.TicketClassifier:
    public = {"bounds": (0, 1), "classes": 2, "n_records": PERSONS, "noise_multiplier": 2.0, "noise": "fast"}
    ledger = Ledger(unit="user")
    return dpltm.TicketClassifier(**{**public, "batch_size": 10, "epochs": 2, "ledger": ledger, **given})


def training(made: dpltm.TicketClassifier) -> tuple[NoisySgd, str]:
    """The steps of its one training, and whom they protect."""
    ((entry, steps),) = ((entry, steps) for entry in made.ledger_.entries for steps in entry.of(NoisySgd))
    return steps, entry.unit


COLUMNS = {
    "numbers": WHO,
    "pandas, nullable": pandas.Series(WHO).astype("Int64"),
    "pandas, another index": pandas.Series(WHO, index=np.arange(len(WHO))[::-1]),
    "polars": polars.Series("who", TEXTS.tolist()),
}


@pytest.mark.parametrize("units", COLUMNS.values(), ids=COLUMNS)
def test_persons_are_protected(units: Any) -> None:
    made = classifier(per_unit=4).fit(X, Y, units=units)
    steps, unit = training(made)
    # of 50 persons, not of 200 records
    assert (steps, unit) == (NoisySgd(10 / PERSONS, 10, 2.0, 1.0, bits="fast"), "user")
    certified = made.privacy_.certified
    assert certified.unit == "user"
    assert certified.epsilon == pytest.approx(epsilon([steps], 1e-5), rel=1e-9)
    assert any("at most 4 of each count" in note for note in made.privacy_.notes)
    assert not any("one row a person" in note for note in made.privacy_.notes)


def test_columns_with_bounds_of_their_own_keep_their_persons() -> None:
    made = classifier(bounds=([0, 0, 0, 0], [1, 1, 1, 1])).fit(X, Y, units=WHO)
    assert training(made)[1] == "user"
    # other rows of a person who was
    assert "persons are protected by a release on record" in refused(made.score, X[:8] / 2, Y[:8], units=WHO[:8])


def test_persons_are_routed_as_scikit_learn_routes_metadata() -> None:
    """Folds that keep a person's records together; what is trained on goes with its own part of the column."""
    with sklearn.config_context(enable_metadata_routing=True):
        asked = classifier(n_records=40, score_epsilon=1.0).set_fit_request(units=True).set_score_request(units=True)
        front = classifier().set_fit_request(units=True)
        through = clone(make_pipeline(FunctionTransformer(), front)).fit(X, Y, units=WHO)
        folds = list(GroupKFold(5).split(X, Y, WHO))[:1]
        got = cross_validate(asked, X, Y, return_estimator=True, params={"units": WHO}, cv=folds, error_score="raise")
    assert through[-1].run_.config["unit"] == "user"
    assert got["estimator"][0].run_.config["unit"] == "user"
    assert asked.privacy_.certified.unit == through[-1].unit_ == "user"
    assert 0 <= got["test_score"][0] <= 1


def test_a_paid_score_counts_persons() -> None:
    """By the mean over the records of each; with hardly any noise, so that it shows. Whose they are must be said."""
    made = classifier(noise_multiplier=0.05).fit(X, Y, units=WHO).set_params(score_epsilon=1e4)
    before = made.ledger_.entries
    assert refused(made.score, X, Y).startswith("`units` is missing: whose each record is")
    assert made.ledger_.entries == before
    few = np.concatenate([np.arange(0, 40, 4), np.arange(40, 200)])  # ten persons with a record, forty with four
    labels = np.where(np.arange(170) < 10, 1 - Y[few], Y[few])
    found = made.score(X[few], labels, units=WHO[few])
    right = made.predict(X[few]) == labels
    means = [np.floor(1024 * right[WHO[few] == who].mean()) / 1024 for who in range(PERSONS)]
    assert found == pytest.approx(np.mean(means), abs=1e-4)
    assert abs(found - right.mean()) > 0.05  # what the mean over records would be
    entry = made.ledger_.entries[-1]
    assert (entry.unit, entry.mechanisms) == ("user", (Guarantee(1e4),))


def test_a_regressor_pays_for_a_score_of_persons() -> None:
    public = {"bounds": (0, 1), "target_bounds": (0, 1), "n_records": PERSONS, "noise_multiplier": 0.05}
    made = dpltm.TicketRegressor(**public, batch_size=10, epochs=2, noise="fast", ledger=Ledger(unit="user"))
    made.fit(X, X[:, 0], units=WHO).set_params(score_epsilon=1e4)
    few = np.concatenate([np.arange(0, 40, 4), np.arange(40, 200)])
    found = made.score(X[few], X[few, 0], units=WHO[few])
    weight = 1 / np.bincount(WHO[few])[WHO[few]]  # each person as much as any other
    assert found == pytest.approx(r2_score(X[few, 0], made.predict(X[few]), sample_weight=weight), abs=0.02)


def test_a_ticket_is_drawn_on_persons() -> None:
    made = {"model": "mlp:8", "rounds": 2, "iterations": 5, "batch_size": 20, "bounds": (0, 1)}
    tickets = dpltm.generate(X / 2 + 0.1, Y, provenance="public", ledger=Ledger(), **made)
    given = {"tickets": tickets, "select_epsilon": 0.5, "epsilon": 2.0, "noise_multiplier": None, "per_unit": 3}
    fitted = classifier(**given).fit(X, Y, units=WHO)
    drawn, trained = (entry for entry in fitted.ledger_.entries if entry.kind == "release")
    assert (drawn.unit, trained.unit, drawn.of(Selection)[0].eps1) == ("user", "user", 0.5)
    assert fitted.privacy_.certified.epsilon <= 2


def test_scores_of_persons_who_were_trained_on_are_refused() -> None:
    made = classifier().fit(X, Y, units=WHO)
    other, labels = X / 2, (X[:, 0] > 1).astype(int)  # rows that are nowhere in fit
    said = "persons are protected by a release on record"  # how many is private
    assert said in refused(made.score, other, labels, units=WHO)
    assert 0 <= made.score(other, labels, units=WHO + 1000) <= 1
    said = "`units` is missing: whose each record is, since the run protects persons"
    assert refused(made.score, other, labels) == said
