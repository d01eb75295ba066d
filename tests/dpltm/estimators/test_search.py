"""Cross-validation and grid searches: every fit is in one ledger, and the report is on all of them together."""

from __future__ import annotations

import copy
import functools
import pickle
import subprocess
import sys
import warnings
from dataclasses import replace

import joblib
import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import dpltm
from dpltm.errors import BudgetError
from dpltm.privacy.events import BudgetEvent, GuaranteeEvent, TrainingEvent
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
        "3 trainings and 3 paid scores are on record; epsilon covers all of them together, as if they were on the same"
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
    fits, scores = of(TrainingEvent, made.ledger_), of(GuaranteeEvent, made.ledger_)
    assert [event.mechanism.adjacency for event in fits] == ["add-remove"] * 2 + ["replace-one"] * 2
    apart = 0.0
    for event in (*fits, *scores):  # a bound that needs no composition of different mechanisms: their sum
        mechanism = event.mechanism
        if mechanism.adjacency == "replace-one":
            apart += total_epsilon([event], 2.5e-6)
        elif isinstance(event, GuaranteeEvent):
            apart += 2 * mechanism.epsilon
        else:
            half = replace(mechanism, noise_multiplier=mechanism.noise_multiplier / 2, sensitivity=2.0)
            apart += total_epsilon([replace(event, mechanism=replace(half, adjacency="replace-one"))], 2.5e-6)
    alone = total_epsilon(fits[2:], 1e-5)
    assert alone < stated.certified.epsilon <= apart


def test_workers_in_other_processes_are_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="this estimator was pickled, and its ledger stayed behind"):
            cross_val_score(classifier(), *table(), cv=2, n_jobs=2)


def test_workers_share_a_ledger_file(tmp_path):
    made = classifier(ledger=functools.partial(open_ledger, tmp_path / "l.jsonl"))
    scores = cross_val_score(made, *table(), cv=3, n_jobs=2, error_score="raise")
    assert np.isfinite(scores).all()
    ledger = open_ledger(tmp_path / "l.jsonl")
    assert (len(of(TrainingEvent, ledger)), len(of(GuaranteeEvent, ledger))) == (3, 3)
    assert made.privacy_.certified.epsilon == composed(ledger)


@pytest.fixture
def two_sets():
    """Two ticket sets, each with a ledger of its own."""
    x = np.random.default_rng(7).random((100, 4))
    given = {
        "bounds": (0, 1),
        "provenance": "public",
        "model": "mlp:4",
        "rounds": 1,
        "iterations": 5,
        "batch_size": 20,
    }
    return [dpltm.generate(x, (x[:, 0] > 0.5).astype(int), **given) for _ in range(2)]


def all_composed(*ledgers) -> float:
    """What all releases in several ledgers cost, were each on the same records."""
    events = [event for ledger in ledgers for kind in (TrainingEvent, GuaranteeEvent) for event in of(kind, ledger)]
    return total_epsilon([replace(event, dataset=events[0].dataset) for event in events], 1e-5)


def test_a_grid_over_tickets_counts_the_fits_in_the_ledgers_of_all_of_them(two_sets):
    """Each set has a ledger, and so have fits without tickets: one fit before, two folds of each setting, each scored."""
    made = classifier().fit(*table())
    grid = [{"tickets": two_sets, "round": [1]}, {"epsilon": [0.5]}]
    GridSearchCV(made, grid, cv=2, refit=False, error_score="raise").fit(*table())
    ledgers = [made.ledger_, *(tickets.ledger for tickets in two_sets)]
    assert [len(of(TrainingEvent, ledger)) for ledger in ledgers] == [3, 2, 2]
    stated = made.privacy_
    assert stated.certified.epsilon == all_composed(*ledgers)
    assert (
        "7 trainings and 6 paid scores are on record; epsilon covers all of them together, as if they were on the same"
        " records" in stated.notes
    )
    sent = pickle.loads(pickle.dumps(made))
    assert sent.privacy_ == stated


@pytest.mark.parametrize("change", ["tickets", "ledger", "file", "none"])
def test_another_ledger_does_not_forget_what_was_spent(two_sets, change, tmp_path):
    first = dpltm.Ledger()
    made = classifier(ledger=first if change == "none" else None).fit(*table())
    before = made.ledger_
    settings = {
        "tickets": {"tickets": two_sets[0], "round": 1},
        "ledger": {"ledger": dpltm.Ledger()},
        "file": {"ledger": functools.partial(open_ledger, tmp_path / "l.jsonl")},
        "none": {"ledger": None},
    }
    alone = made.privacy_
    made.set_params(**settings[change])
    assert made.privacy_.certified == alone.certified
    spent = before.events
    held = made.ledger_.events
    made.fit(*table())
    assert before.events == spent
    new = dpltm.Ledger(event for event in made.ledger_.events if event not in held)
    assert made.privacy_.certified.epsilon == all_composed(before, new) > alone.certified.epsilon


def test_what_was_spent_goes_along_when_an_estimator_is_pickled(tmp_path):
    """In memory first, then in a file: whoever reads the pickle opens the file again, and counts each release once."""
    made = classifier().fit(*table())
    memory = made.ledger_
    made.set_params(ledger=functools.partial(open_ledger, tmp_path / "l.jsonl")).fit(*table())
    sent = pickle.loads(pickle.dumps(copy.deepcopy(made)))
    assert sent.privacy_.certified == made.privacy_.certified
    sent.fit(*table())
    assert made.privacy_.certified.epsilon == all_composed(memory, open_ledger(tmp_path / "l.jsonl"))
    assert sent.privacy_.certified == made.privacy_.certified
    other = pickle.loads(pickle.dumps(classifier().fit(*table())))
    spent = other.privacy_.certified.epsilon
    assert other.set_params(ledger=dpltm.Ledger()).fit(*table()).privacy_.certified.epsilon > spent


def test_records_scored_for_free_are_not_private_under_another_ledger(tmp_path):
    x, y = table()
    made = classifier(score_epsilon=None).fit(x[:100], y[:100])
    made.score(x[100:], y[100:])
    made.set_params(ledger=functools.partial(open_ledger, tmp_path / "l.jsonl"))
    with pytest.raises(ValueError, match="accuracy on some of these records was measured by `score` without noise"):
        made.fit(x, y)
    made.fit(x[:50], y[:50]).set_params(ledger=dpltm.Ledger())
    with pytest.raises(ValueError, match="are records of records, which the ledger protects"):
        made.score(x[50:100], y[50:100])


def halved(x):
    return x / 2


def squared(x):
    return x**2


@pytest.mark.parametrize("kept", ["memory", "file", "another ledger"])
def test_a_budget_stops_a_search_whose_front_changes_the_rows(kept, tmp_path):
    """It is set on the records of the first fit; no registry knows the others for the same, and they count all the same."""
    made = classifier(ledger=functools.partial(open_ledger, tmp_path / "l.jsonl") if kept == "file" else None)
    (event,) = of(TrainingEvent, made.fit(*table()).ledger_)
    ledger = made.ledger_
    ledger.append(BudgetEvent(event.dataset, 1.5, 1e-5))
    if kept == "another ledger":
        made.set_params(ledger=dpltm.Ledger())
    search = GridSearchCV(
        make_pipeline(FunctionTransformer(), made),
        {"functiontransformer__func": [halved, squared]},
        cv=2,
        error_score="raise",
    )
    with pytest.raises(BudgetError, match=r"this would bring records to epsilon .* above the budget of 1\.5"):
        search.fit(*table())
    spent = made.privacy_.certified.epsilon
    assert 1 < spent <= 1.5
    with pytest.raises(BudgetError):
        made.fit(halved(table()[0]), table()[1])
    assert made.privacy_.certified.epsilon == spent


def test_of_two_budgets_on_rows_that_a_step_changed_each_counts():
    """On the same records the later one would stand in for the earlier."""
    x, y = table()
    made = classifier(ledger=dpltm.Ledger(), epsilon=0.5)
    made.fit(x, y)
    made.fit(halved(x), y)
    first, second = of(TrainingEvent, made.ledger_)
    for event, limit in ((first, made.privacy_.certified.epsilon * 1.01), (second, 9.0)):
        made.ledger_.append(BudgetEvent(event.dataset, limit, 1e-5))
    with pytest.raises(BudgetError, match=r"above the budget of 0\."):
        made.fit(squared(x), y)


AS_DOCUMENTED = """
import functools

import numpy as np
from sklearn.model_selection import cross_val_score

import dpltm, dpltm.tickets

x = np.random.default_rng(0).random((150, 4))
made = dpltm.TicketClassifier(
    score_epsilon=0.2, bounds=(0, 1), classes=2, n_records=150, epochs=2,
    ledger=functools.partial(dpltm.tickets.ledger_file.open_ledger, "study.jsonl"),
)
scores = cross_val_score(made, x, (x[:, 0] > 0.5).astype(int), cv=2, n_jobs=2, error_score="raise")
print(np.isfinite(scores).all(), made.privacy_.notes[0])
"""


@pytest.mark.long
def test_the_way_with_workers_that_the_documentation_shows(tmp_path):
    """In a process of its own: here somebody has imported all modules."""
    done = subprocess.run(
        [sys.executable, "-c", AS_DOCUMENTED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True 2 trainings and 2 paid scores are on record;")
    assert len(of(TrainingEvent, open_ledger(tmp_path / "study.jsonl"))) == 2
