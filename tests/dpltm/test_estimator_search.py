"""Cross-validation and grid searches: every fit is in one ledger, and the report is on all of them together."""

from __future__ import annotations

import functools
import warnings
from dataclasses import replace

import joblib
import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dpltm
from dpltm.privacy.events import GuaranteeEvent, TrainingEvent
from dpltm.privacy.parts import total_epsilon
from dpltm.tickets.ledger_file import open_ledger


def table() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).random((150, 4))
    return x, (x[:, 0] > 0.5).astype(int)


def classifier(**given) -> dpltm.TicketClassifier:
    settings = {"epsilon": 1.0, "bounds": (0, 1), "classes": 2, "n_records": 150, "score_epsilon": 0.2, "epochs": 2}
    return dpltm.TicketClassifier(**{**settings, **given})


def of(kind, ledger):
    return [event for event in ledger.events if isinstance(event, kind)]


def composed(ledger) -> float:
    """What all releases cost, were each on the same records: the same mechanisms, on one reference."""
    (first, *_) = events = [*of(TrainingEvent, ledger), *of(GuaranteeEvent, ledger)]
    return total_epsilon([replace(event, dataset=first.dataset) for event in events], 1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_cross_validation_pays_for_every_fit_and_score(threads):
    made = classifier()
    with joblib.parallel_backend("threading"):
        scores = cross_val_score(made, *table(), cv=3, n_jobs=threads)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert (len(of(TrainingEvent, made.ledger_)), len(of(GuaranteeEvent, made.ledger_))) == (3, 3)
    stated = made.privacy_
    assert stated.certified.epsilon == composed(made.ledger_)
    assert 1.2 < stated.certified.epsilon <= 3 * 1.2
    assert (
        "3 trainings and 3 paid scores are in the ledger; epsilon covers all of them together, as if they were on the same"
        " records" in stated.notes
    )
    assert "how many records `score` was measured on is treated as public" in stated.notes


def test_a_grid_search_is_paid_for_by_the_estimator_that_it_returns():
    search = GridSearchCV(classifier(), {"epsilon": [0.5, 1.0]}, cv=2).fit(*table())
    best = search.best_estimator_
    assert len(of(TrainingEvent, best.ledger_)) == 5
    assert best.privacy_.certified.epsilon == composed(best.ledger_)
    assert best.run_.privacy.certified.epsilon <= search.best_params_["epsilon"] < best.privacy_.certified.epsilon
    assert search.estimator.privacy_ == best.privacy_


def test_a_scaler_in_front_does_not_make_other_people_of_the_records():
    """Fitted anew in each fold, it changes every row, so that no registry knows them again; they add up all the same."""
    last = classifier(bounds=(-4, 4))
    cross_val_score(make_pipeline(StandardScaler(), last), *table(), cv=2)
    first, second = of(TrainingEvent, last.ledger_)
    assert not first.dataset.may_overlap(second.dataset)
    assert last.privacy_.certified.epsilon == composed(last.ledger_)


def test_a_nominal_figure_of_all_fits_stands_beside_the_certified_one():
    made = classifier(filter="tanh", noise="nominal", epsilon=None, noise_multiplier=2.0)
    cross_val_score(made, *table(), cv=2)
    stated = made.privacy_
    assert stated.nominal.source == "tanh paper's sensitivity"
    assert stated.nominal.epsilon > made.fit(*table()).run_.privacy.nominal.epsilon / 1.0001


def test_without_a_price_scores_on_private_records_are_missing():
    """The first fold passes for separate records; from then on they are not."""
    made = classifier(score_epsilon=None)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        scores = cross_val_score(made, *table(), cv=3)
    assert np.isnan(scores).tolist() == [False, True, True]
    assert any("to cross-validate on private records give `score_epsilon`" in str(one.message) for one in told)
    assert len(of(TrainingEvent, made.ledger_)) == 1


@pytest.mark.slow
def test_workers_in_other_processes_are_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="this estimator was pickled, and its ledger stayed behind"):
            cross_val_score(classifier(), *table(), cv=2, n_jobs=2)


@pytest.mark.slow
def test_workers_share_a_ledger_file(tmp_path):
    made = classifier(ledger=functools.partial(open_ledger, tmp_path / "l.jsonl"))
    scores = cross_val_score(made, *table(), cv=3, n_jobs=2, error_score="raise")
    assert np.isfinite(scores).all()
    ledger = open_ledger(tmp_path / "l.jsonl")
    assert (len(of(TrainingEvent, ledger)), len(of(GuaranteeEvent, ledger))) == (3, 3)
    assert made.privacy_.certified.epsilon == composed(ledger)
