"""Cross-validation and grid searches: every fit is in one ledger, and the report is on all of them together."""

import copy
import pickle
from dataclasses import replace
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler

import dpltm
from dpltm.errors import BudgetError
from dpltm.estimators import UncoveredWarning
from dpltm.privacy.account import Account
from dpltm.privacy.entry import Entry
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Guarantee, NoisySgd
from dpltm.tickets.ledger_file import open_ledger
from refusals import refused


def table() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).random((150, 4))
    return x, (x[:, 0] > 0.5).astype(int)


def classifier(**given) -> dpltm.TicketClassifier:
    settings = {"epsilon": 1.0, "bounds": (0, 1), "classes": 2, "n_records": 150, "score_epsilon": 0.2, "epochs": 2}
    settings["centre"] = 0.0  # a fit is one mechanism
    return dpltm.TicketClassifier(**{**settings, **given})


def of(kind, *ledgers):
    """All mechanisms of a kind in ledgers."""
    return [mechanism for ledger in ledgers for entry in ledger.entries if entry.paid for mechanism in entry.of(kind)]


def composed(*ledgers) -> float:
    """What all releases in ledgers cost, were each on the same records: the same mechanisms, whatever the parts."""
    mechanisms = [*of(NoisySgd, *ledgers), *of(Guarantee, *ledgers)]
    return Account((Entry("release", mechanisms=tuple(mechanisms), words="all"),)).epsilon(1e-5)


def test_cross_validation_pays_for_every_fit_and_score():
    made = classifier()
    with joblib.parallel_backend("threading"):
        scores = cross_val_score(made, *table(), cv=3, n_jobs=2)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert (len(of(NoisySgd, made.ledger_)), len(of(Guarantee, made.ledger_))) == (3, 3)
    stated = made.privacy_
    assert stated.certified.epsilon == composed(made.ledger_)
    assert 1.2 < stated.certified.epsilon <= 3 * 1.2
    assert "how many records `score` was measured on is treated as public" in stated.notes


def test_a_grid_search_is_paid_for_by_the_estimator_that_it_returns():
    search = GridSearchCV(classifier(), {"epsilon": [0.5, 1.0]}, cv=2).fit(*table())
    best = search.best_estimator_
    assert len(of(NoisySgd, best.ledger_)) == 5
    assert best.privacy_.certified.epsilon == composed(best.ledger_)
    assert best.run_.privacy.certified.epsilon <= search.best_params_["epsilon"] < best.privacy_.certified.epsilon
    assert search.estimator.privacy_ == best.privacy_


def test_a_scaler_in_front_does_not_make_other_people_of_the_records():
    """Fitted anew in each fold, it changes every row, so that no registry knows them again; they add up all the same."""
    last = classifier(bounds=(-4, 4))
    with pytest.warns(UncoveredWarning, match="look scaled"):
        cross_val_score(make_pipeline(StandardScaler(), last), *table(), cv=2)
    fits = [entry for entry in last.ledger_.entries if entry.of(NoisySgd)]
    assert len({entry.part.snapshot for entry in fits}) == 2
    assert last.privacy_.certified.epsilon == composed(last.ledger_)


CROSSED = {
    "scores": cross_val_score,
    "a scaler in front": lambda made, x, y: cross_val_score(make_pipeline(StandardScaler(), made), x, y),
    "AUC": lambda made, x, y: cross_val_score(made, x, y, scoring="roc_auc"),
    "a grid": lambda made, x, y: GridSearchCV(made, {"epsilon": [0.5]}).fit(x, y),
    "predictions": cross_val_predict,
    "calibration": lambda made, x, y: CalibratedClassifierCV(made).fit(x, y),
}


@pytest.mark.parametrize("call", CROSSED.values(), ids=CROSSED)
def test_without_a_price_nothing_is_crossed(call):
    """Refused before anything is spent; not a copy that somebody trains and scores by hand."""
    made = classifier(score_epsilon=None, ledger=Ledger())
    with pytest.raises(ValueError, match="`score_epsilon` is missing: cross-validation trains on the records of all"):
        call(made, *table())
    assert made.ledger_.entries == ()


def test_persons_whom_no_score_would_get_are_refused_before_anything_is_spent():
    x, y = table()
    made = classifier(ledger=Ledger(unit="user"), n_records=50)
    with pytest.raises(ValueError, match=r"`units`: .*call set_score_request"):
        cross_val_score(made, x, y, params={"units": np.arange(150) // 3})
    assert made.ledger_.entries == ()


SEEN = {
    "AUC": lambda made, x, y: cross_val_score(made, x, y, scoring="roc_auc", cv=2),
    "calibration": lambda made, x, y: CalibratedClassifierCV(made, cv=2).fit(x, y),
    "labels": lambda made, x, y: made.fit(x, y).predict(x),
    "one of many": lambda made, x, y: made.fit(x, y).predict_proba(np.concatenate([1 - x, x[7:8]])),
    "another clone's": lambda made, x, y: clone(made.fit(x, y)).fit(x[:100], y[:100]).predict_proba(x[100:]),
    "targets": lambda _, x, y: (
        dpltm.TicketRegressor(bounds=(0, 1), target_bounds=(0, 1), epochs=2).fit(x, y).predict(x)
    ),
}


@pytest.mark.parametrize("call", SEEN.values(), ids=SEEN)
def test_exact_predictions_for_records_of_a_fit_warn(call):
    with pytest.warns(UncoveredWarning, match=r"^some of these records are protected by a fit") as caught:
        call(classifier(), *table())
    assert [Path(one.filename).name for one in caught] == ["test_search.py"]


def test_predictions_warn_once_a_fit_and_for_no_other_records():
    x, y = table()
    made = classifier().fit(x, y)
    made.predict(1 - x)
    with pytest.warns(UncoveredWarning):
        made.predict(x)
    made.predict_proba(x)
    made.fit(x, y)
    with pytest.warns(UncoveredWarning):
        made.predict(x)
    classifier(rows_coincide=True).fit(x, y).predict(x)


@pytest.mark.parametrize("scaler", [StandardScaler(), MinMaxScaler()], ids=["deviations", "ends"])
def test_a_scaler_that_was_fitted_to_the_records_warns(scaler):
    """Not one that was fitted to others; nor columns of categories, or with public ends that many share."""
    x, y = table()
    scaler.fit(x)
    with pytest.warns(UncoveredWarning, match="look scaled by what was measured on just them"):
        classifier(bounds=(-4, 4)).fit(scaler.transform(x), y)
    for other in (scaler.transform(1 - x / 2), (x > 0.5).astype(float), np.clip(2 * x - 0.5, 0, 1)):
        classifier(bounds=(-4, 4)).fit(other, y)


def test_other_settings_may_be_scored_exactly_on_the_same_two_parts():
    x, y = table()
    made = classifier(score_epsilon=None, n_records=100).fit(x[:100], y[:100])
    for tried in (made, clone(made).set_params(epsilon=0.5).fit(x[:100], y[:100])):
        assert 0 <= tried.score(x[100:], y[100:]) <= 1


def test_a_grid_over_relations_is_stated_for_replace_one():
    """A release for add-remove is one for replace-one at half the noise: out one record, in another."""
    made = classifier(epsilon=None, noise_multiplier=4.0, score_epsilon=0.1)
    grid = {"adjacency": ["add-remove", "replace-one"]}
    GridSearchCV(made, grid, cv=2, refit=False, error_score="raise").fit(*table())
    stated = made.privacy_
    assert stated.certified.adjacency == "replace-one"
    assert (
        "some releases are for add-remove and some for replace-one; the figure is for replace-one, where one for add-remove"
        " counts as two steps" in stated.notes
    )
    fits, scores = of(NoisySgd, made.ledger_), of(Guarantee, made.ledger_)
    assert [steps.adjacency for steps in fits] == ["add-remove"] * 2 + ["replace-one"] * 2

    def alone(mechanism):
        return Account((Entry("release", mechanisms=(mechanism,), words="one"),)).epsilon(2.5e-6)

    apart = 0.0
    for mechanism in (*fits, *scores):  # a bound that needs no composition of different mechanisms: their sum
        if mechanism.adjacency == "replace-one":
            apart += alone(mechanism)
        elif isinstance(mechanism, Guarantee):
            apart += 2 * mechanism.epsilon
        else:
            half = replace(mechanism, noise_multiplier=mechanism.noise_multiplier / 2, sensitivity=2.0)
            apart += alone(replace(half, adjacency="replace-one"))
    both = Account((Entry("release", mechanisms=tuple(fits[2:]), words="two"),)).epsilon(1e-5)
    assert both < stated.certified.epsilon <= apart


@pytest.mark.long
def test_workers_share_a_ledger_file(tmp_path):
    made = classifier(ledger=open_ledger(tmp_path / "l.jsonl"))
    scores = cross_val_score(made, *table(), cv=3, n_jobs=2, error_score="raise")
    assert np.isfinite(scores).all()
    ledger = open_ledger(tmp_path / "l.jsonl")
    assert (len(of(NoisySgd, ledger)), len(of(Guarantee, ledger))) == (3, 3)
    assert made.privacy_.certified.epsilon == composed(ledger)


def a_set():
    """Tickets of other records, in a ledger of their own."""
    x = np.random.default_rng(7).random((100, 4))
    given = {"model": "mlp:4", "rounds": 1, "iterations": 5, "batch_size": 20, "bounds": (0, 1)}
    return dpltm.generate(x, (x[:, 0] > 0.5).astype(int), provenance="public", ledger=dpltm.Ledger(), **given)


@pytest.mark.one_of(2)
@pytest.mark.parametrize("change", ["tickets", "ledger", "file", "none"])
def test_another_ledger_does_not_forget_what_was_spent(change, tmp_path):
    first = dpltm.Ledger()
    made = classifier(ledger=first if change == "none" else None).fit(*table())
    before = made.ledger_
    settings = {
        "tickets": {"tickets": a_set(), "round": 1},
        "ledger": {"ledger": dpltm.Ledger()},
        "file": {"ledger": open_ledger(tmp_path / "l.jsonl")},
        "none": {"ledger": None},
    }
    alone = made.privacy_
    made.set_params(**settings[change])
    assert made.privacy_.certified == alone.certified
    spent = before.entries
    made.fit(*table())
    if made.ledger_ is not before:
        assert before.entries == spent
    assert made.privacy_.certified.epsilon == composed(*{before, made.ledger_}) > alone.certified.epsilon


def test_what_was_spent_goes_along_when_an_estimator_is_pickled(tmp_path):
    """In memory first, then in a file: whoever reads the pickle opens the file again, and counts each release once."""
    made = classifier().fit(*table())
    memory = made.ledger_
    made.set_params(ledger=open_ledger(tmp_path / "l.jsonl")).fit(*table())
    sent = pickle.loads(pickle.dumps(copy.deepcopy(made)))
    assert sent.privacy_.certified == made.privacy_.certified
    sent.fit(*table())
    assert made.privacy_.certified.epsilon == composed(memory, open_ledger(tmp_path / "l.jsonl"))
    assert sent.privacy_.certified == made.privacy_.certified


def test_records_scored_for_free_are_not_private_under_another_ledger(tmp_path):
    x, y = table()
    made = classifier(score_epsilon=None).fit(x[:100], y[:100])
    made.score(x[100:], y[100:])
    made.set_params(ledger=open_ledger(tmp_path / "l.jsonl"))
    with pytest.raises(ValueError, match="an exact score was measured, and these are other records"):
        made.fit(x, y)
    made.fit(x[:50], y[:50]).set_params(ledger=dpltm.Ledger())
    with pytest.raises(ValueError, match="are protected by a release on record"):
        made.score(x[50:100], y[50:100])


def halved(x):
    return x / 2


def squared(x):
    return x**2


def test_a_budget_stops_a_search_whose_front_changes_the_rows():
    """Nobody knows them again; everything in one ledger counts all the same."""
    made = classifier(ledger=Ledger()).fit(*table())
    made.ledger_.declare(Entry("budget", mechanisms=(Guarantee(1.5, 1e-5),)))
    search = GridSearchCV(
        make_pipeline(FunctionTransformer(), made),
        {"functiontransformer__func": [halved, squared]},
        cv=2,
        error_score="raise",
    )
    with pytest.raises(BudgetError, match=r"epsilon .* above the budget of 1\.5"):
        search.fit(*table())
    spent = made.privacy_.certified.epsilon
    assert 1 < spent <= 1.5
    refused(made.fit, halved(table()[0]), table()[1], kind=BudgetError)
    assert made.privacy_.certified.epsilon == spent
