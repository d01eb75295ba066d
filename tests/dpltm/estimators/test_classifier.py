"""``TicketClassifier`` and ``TicketRegressor``: what they learn, take, refuse, and say."""

import copy
import dataclasses
import functools
import math
import pickle
import re

import numpy as np
import pandas
import polars
import pytest
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra import numpy as arrays
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

import dpltm
import dpltm.tickets
from dpltm import estimators
from dpltm.errors import BudgetError, InputError
from dpltm.estimators import column_ends, in_unit_range
from dpltm.networks import evaluation
from dpltm.privacy.account import Account
from dpltm.privacy.entry import NO_LINEAGE, Entry
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Guarantee
from dpltm.privacy.release import Once, pay
from dpltm.tickets.ledger_file import open_ledger
from dpltm.training.artifacts import Draws
from dpltm.verbs.evaluate import ROWS
from refusals import refused
from stage_cases import kinds
from tensors import same_tensors

pytestmark = pytest.mark.filterwarnings("ignore::dpltm.estimators.UncoveredWarning")  # predictions here are of fits

FAST = {"epochs": 2, "noise": "fast"}


def table(seed: int = 0, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Records that one column tells apart, and their labels."""
    x = np.random.default_rng(seed).random((count, 4))
    return x, np.where(x[:, 0] > 0.5, "high", "low")


def classifier(**given) -> dpltm.TicketClassifier:
    return dpltm.TicketClassifier(
        **{"bounds": (0, 1), "classes": ["low", "high"], "n_records": 200, "noise_multiplier": 2.0, **FAST, **given}
    )


# learning


def test_it_learns_digits_and_says_what_that_cost():
    digits = load_digits()
    x, y = digits.data[:1200], digits.target[:1200]
    made = dpltm.TicketClassifier(epsilon=3, bounds=(0, 16), classes=10, n_records=1200).fit(x, y)
    assert made.score(digits.data[1200:], digits.target[1200:]) > 0.85
    certified = made.privacy_.certified
    assert 2.9 < certified.epsilon <= 3
    assert (certified.delta, certified.adjacency, certified.unit) == (1e-5, "add-remove", "record")
    assert made.run_.privacy.certified == certified
    assert Account(made.ledger_.entries).epsilon(1e-5) == certified.epsilon
    (entry,) = made.run_.lineage.paid
    assert [type(mechanism).__name__ for mechanism in entry.mechanisms] == 3 * ["GaussianRelease"] + ["NoisySgd"]
    assert made.ticket_.live == 10 * 7 * 64 + 10, "hats and a line of each column; of so many, no pairs"


def test_probabilities_and_labels_agree():
    x, y = table()
    made = classifier().fit(x, y)
    chances = made.predict_proba(x)
    assert made.classes_.tolist() == ["high", "low"]
    np.testing.assert_allclose(chances.sum(1), 1)
    np.testing.assert_array_equal(made.predict(x), made.classes_[chances.argmax(1)])
    told = dpltm.predict(made.run_, x)
    np.testing.assert_allclose(told.probabilities, chances, atol=1e-6)
    np.testing.assert_array_equal(made.classes_[told.labels], made.predict(x))
    assert classifier(classes=3).fit(x, np.arange(200) % 3).predict_proba(x).shape == (200, 3)


def test_a_regressor_predicts_where_between_the_ends_of_the_range_a_target_lies():
    draw = np.random.default_rng(0)
    x = draw.random((3000, 3))
    y = 10 * x[:, 0] - 5
    made = dpltm.TicketRegressor(epsilon=3, bounds=(0, 1), target_bounds=(-5, 5), n_records=2000)
    made.fit(x[:2000], y[:2000])
    np.testing.assert_array_equal(made.predict(x[2000:]), dpltm.predict(made.run_, x[2000:]).values)
    assert made.score(x[2000:], y[2000:]) > 0.9
    assert made.privacy_.certified.epsilon <= 3


def test_targets_outside_of_their_bounds_count_as_their_ends():
    x, _ = table()
    given = {"bounds": (0, 1), "target_bounds": (0, 1), "noise_multiplier": 2.0, **FAST}
    made = dpltm.TicketRegressor(**given).fit(x, np.linspace(-1e300, 1e300, 200))
    assert np.isfinite(made.predict(x)).all()
    assert (made.predict(x) >= 0).all()
    assert (made.predict(x) <= 1).all()


# tickets


@pytest.fixture(scope="module")
def tickets():
    (x, y), few = table(7, 100), {"model": "mlp:8", "rounds": 2, "iterations": 5, "batch_size": 20}
    return dpltm.generate(x, (y == "low").astype(int), provenance="public", bounds=(0, 1), ledger=Ledger(), **few)


def test_a_ticket_by_its_round_or_by_a_draw_that_is_paid_for(tickets):
    x, y = table()
    taken = classifier(tickets=tickets, round=2, ledger=Ledger()).fit(x, y)
    assert same_tensors(taken.ticket_, tickets.body.tickets[2].mask)
    drawn = classifier(tickets=tickets, select_epsilon=0.5, epsilon=2.0, noise_multiplier=None, ledger=Ledger()).fit(
        x, y
    )
    assert kinds(drawn.ledger_) == ["Selection", "NoisySgd"]
    assert kinds(drawn.run_.lineage) == ["public", "Selection", "NoisySgd"]
    assert 1.9 < drawn.privacy_.certified.epsilon <= 2
    assert drawn.privacy_.nominal is not None
    assert any(same_tensors(drawn.ticket_, ticket.mask) for ticket in tickets.body.tickets)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "`round` is missing: say which ticket of the set, or train the winner that select returned"),
        ({"round": "2"}, "`round`: '2' is not a whole number of 64 bits"),
        (
            {"tickets": 3},
            "`tickets`: 3 is not a set or a winner; open its folder: dpltm.tickets.load(path)",
        ),
        ({"select_epsilon": 0.1, "model": "mlp"}, "`tickets`: a set decides the network; leave model= out"),
        (
            {"select_epsilon": 0.1, "epsilon": 0.5},
            "`epsilon` or `noise_multiplier`: give one of them; `epsilon` is the whole budget, such as 1",
        ),
        (
            {"round": 1, "select_epsilon": 0.1},
            "`select_epsilon`: draws one ticket of a set; give `tickets`, and leave `round` out",
        ),
    ],
)
def test_what_does_not_go_with_tickets(tickets, given, text):
    made = classifier(**{"tickets": tickets, "ledger": Ledger(), **given})
    assert refused(made.fit, *table()) == text
    assert made.ledger_.entries == ()  # no ticket was drawn


def drawing(tickets, **given):
    """An estimator that would draw on the records, of tickets that nobody drew from; in a ledger of its own."""
    tickets = dataclasses.replace(tickets, draws=Draws())
    asked = {"select_epsilon": 0.5, "epsilon": 2.0, "noise_multiplier": None, "ledger": Ledger()}
    return classifier(tickets=tickets, **{**asked, **given})


BAD = {
    "a draw that leaves nothing": {"epsilon": 0.4},
    "an option": {"delta": 2.0},
    "a batch of more than there are": {"batch_size": 1000.0},
    "features of a set": {"features": "scatter"},
    "head": {"head": "least-squares"},
    "seed": {"random_state": "seven"},
    "neither": {"epsilon": None},
    "a round beside a draw": {"round": 1},
}


@pytest.mark.parametrize("given", BAD.values(), ids=BAD)
def test_what_is_wrong_with_the_training_is_said_before_the_draw(tickets, given):
    """In the words of each stage, which are tested there."""
    made = drawing(tickets, **given)
    with pytest.raises((ValueError, BudgetError)):
        made.fit(*table())
    assert made.ledger_.entries == ()


def test_a_budget_that_the_training_would_exceed_is_said_before_the_draw(tickets):
    """It allows the draw, 0.5, and not the training after it, which brings all to 2."""
    ledger = Ledger()
    ledger.declare(Entry("budget", mechanisms=(Guarantee(1.0, 1e-5),)))
    refused(drawing(tickets, ledger=ledger).fit, *table(), kind=BudgetError)
    assert kinds(ledger) == ["budget"]
    drawing(tickets, ledger=ledger, epsilon=0.9).fit(*table())
    assert kinds(ledger) == ["budget", "Selection", "NoisySgd"]


@pytest.mark.parametrize("frame", [pandas.DataFrame, polars.DataFrame])
def test_data_frames_and_their_names(frame):
    x, y = table()
    made = classifier(random_state=0).fit(frame({"a": x[:, 0], "b": x[:, 1]}), y)
    assert made.feature_names_in_.tolist() == ["a", "b"]
    assert made.n_features_in_ == 2
    np.testing.assert_array_equal(
        made.predict(frame({"a": x[:, 0], "b": x[:, 1]})), made.predict(polars.DataFrame(x[:, :2], schema=["a", "b"]))
    )
    with pytest.raises(ValueError, match="feature names should match"):
        made.predict(frame({"b": x[:, 1], "a": x[:, 0]}))


@given(
    arrays.arrays(np.float64, (5, 3), elements=some.floats(-1e300, 1e300)),
    arrays.arrays(np.float64, 3, elements=some.floats(-1e100, 1e100)),
    some.floats(1e-3, 1e100),
)
def test_bounds_a_column_scale_each_record_by_itself(x, low, width):
    high = low + np.maximum(width, np.abs(low) * 1e-3)
    ends = column_ends((low, high), 3)
    rows = in_unit_range(x, ends)
    expected = [[min(max((v - a) / (b - a), 0.0), 1.0) for v, a, b in zip(row, low, high, strict=True)] for row in x]
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(in_unit_range(x[2:3], ends)[0], rows[2])


def test_columns_that_are_scaled_are_paid_for_by_the_ledger_of_all():
    """What another training spent, under other bounds, adds up in one ledger."""
    (x, y), ledger = table(), Ledger()
    made = classifier(bounds=([0, 0, 0, 0], [1, 2, 3, 4]), ledger=ledger).fit(x, y)
    dpltm.train("mlp", x, (y == "low").astype(int), bounds=(0, 1), noise_multiplier=2.0, epochs=1, ledger=ledger)
    first, second = ledger.entries
    assert first.part.snapshot == second.part.snapshot, "records are known by what they were before they were scaled"
    assert (
        made.privacy_.certified.epsilon == Account(ledger.entries).epsilon(1e-5) > made.run_.privacy.certified.epsilon
    )


# refusals


@pytest.mark.parametrize(
    ("made", "y", "text"),
    [
        (
            classifier(bounds=3),
            None,
            "`bounds`: 3 is not a pair of numbers; pass the public range, (low, high)",
        ),
        *(
            (
                classifier(bounds=bounds),
                None,
                "`bounds`: not two arrays (low, high), finite, low first, not too far apart, with a number for each of the 4"
                " columns; pass the public range of the features",
            )
            for bounds in ((0, [1, 1, np.inf, 1]), ([0, 0, 5, 0], [1, 1, 1, 1]), ([0, 0], [1, 1]), [[0], [1], [2]])
        ),
        (
            classifier(classes=2),
            table()[1].astype(object),
            "`y`: label 'high' is none of the 2 classes; declare every label, with `classes` or in the schema, or leave"
            " those records out",
        ),
        (
            classifier(classes=None),
            np.full(200, "low"),
            "`classes`: there is one class, so nothing can be told apart; give two or more",
        ),
        (
            classifier(ledger="l.jsonl"),
            None,
            "`ledger`: 'l.jsonl' is not a dpltm.Ledger, such as dpltm.tickets.open_ledger(path) opens",
        ),
        (
            dpltm.TicketRegressor(bounds=(0, 1)),
            np.linspace(0, 1, 200),
            "`target_bounds` is missing: the public range of the targets, (low, high); those of the data would leak them",
        ),
        (
            classifier(head="least-squares", features="unit"),
            None,
            "`epochs`: has no use with `head` least-squares, which has nothing to tune; leave it out",
        ),
        (classifier(class_weight={"perhaps": 2.0}), None, "`class_weight`: 'perhaps' is no label; name those of `y`"),
    ],
)
def test_bad_input_is_a_value_error_and_spends_nothing(made, y, text):
    x, labels = table()
    assert refused(made.fit, x, labels if y is None else y) == text
    assert not hasattr(made, "run_")
    if made.ledger is None:
        assert made.ledger_.entries == ()


def test_texts_and_holes_as_features():
    for cells in (["word"] * 200, [0.5, None] * 100):
        with pytest.raises(dpltm.errors.InputError, match="holds words, dates or holes; give `schema`"):
            classifier().fit(pandas.DataFrame({"word": cells}), table()[1])


@pytest.mark.parametrize("method", ["predict", "predict_proba"])
def test_nothing_is_predicted_before_a_fit(method):
    with pytest.raises(NotFittedError):
        getattr(classifier(), method)(table()[0])


def test_nothing_is_said_before_anything_is_spent():
    with pytest.raises(NotFittedError, match="this TicketClassifier has spent nothing yet; call 'fit' first"):
        _ = classifier().privacy_


def test_what_was_read_off_the_data_is_named():
    x, y = table()
    said = classifier(n_records=None, classes=None).fit(x, y).privacy_.notes
    assert {
        "the number of records (200) was counted and is treated as public; declare a figure with"
        " `n_records` to keep it"
        " private",
        "the number of classes (2) was read off the labels and is treated as public (`classes`)",
    } <= set(said)
    declared = classifier().fit(x, y).privacy_.notes
    assert not any("treated as public" in note for note in declared)
    whole = classifier(bounds=None).fit((255 * x).astype(np.uint8), y).privacy_.notes
    assert any(note.startswith("nobody gave the bounds of records, so 0 to 255 is assumed") for note in whole)


def test_beside_a_noise_multiplier_no_epsilon_limits_a_fit_and_the_notes_say_so():
    x, y = table()
    loud = classifier(noise_multiplier=0.5).fit(x, y)
    said = (
        "`noise_multiplier` was given, so `epsilon` limited nothing: what the fits cost is what their noise comes to"
    )
    assert loud.epsilon == 1 < loud.privacy_.certified.epsilon
    assert said in loud.privacy_.notes
    assert said not in classifier(noise_multiplier=None).fit(x, y).privacy_.notes


@pytest.mark.parametrize(
    "given", [{}, {"features": None}, {"head": "least-squares", "features": "unit", "epochs": None}]
)
def test_notes_name_parameters_that_there_are_and_agree_about_accuracy(given):
    (x, y), (x_test, y_test) = table(), table(1, 50)
    made = classifier(**given, n_records=None, classes=None).fit(x, y)
    made.score(x_test, y_test)
    notes = made.privacy_.notes
    for note in notes:
        for name in re.findall(r"`(\w+)`(?! of dpltm.train)", note):
            assert name in made.get_params() or name in ("score", "units")
    assert not any("accuracy" in note for note in notes)
    told = "nothing is promised for records that were declared apart from these people: the scored records (test)"
    assert told in notes


# scores


def test_a_score_on_separate_records_is_exact_and_free():
    """Of columns as they are: features are in half precision where accuracy is measured, and a near tie falls otherwise."""
    (x, y), (x_test, y_test) = table(), table(1, 50)
    made = classifier(features=None).fit(x, y)
    before = made.privacy_
    assert made.score(x_test, y_test) == np.mean(made.predict(x_test) == y_test)
    assert kinds(made.ledger_) == ["NoisySgd", "excluded"]
    assert made.privacy_.certified == before.certified
    assert refused(made.score, x_test, np.full(50, "medium")).startswith(
        "`y`: label 'medium' is none of the 2 classes;"
    )


def test_a_score_on_the_training_records_is_paid_for_or_refused():
    x, y = table()
    made = classifier().fit(x, y)
    for few in (slice(None), slice(5)):
        said = refused(made.score, np.concatenate([x[few], x + 1]), np.concatenate([y[few], y]))
        assert said.startswith("`X`: some of these records are protected ")
        assert " or give `score_epsilon`, which pays for a score with noise" in said
    assert "or train with `score_epsilon`, which pays for a measurement;" in refused(made.score, x, y)
    fitted = made.privacy_.certified.epsilon
    made.set_params(score_epsilon=0.5)
    assert 0 <= made.score(x, y) <= 1
    (paid,) = (paid for entry in made.ledger_.entries for paid in entry.of(Guarantee))
    assert paid == Guarantee(0.5, 0.0, adjacency="add-remove")
    assert fitted < made.privacy_.certified.epsilon <= fitted + 0.5
    made.set_params(score_epsilon=1e-9)
    assert refused(made.score, x, y).startswith("`score_epsilon`: 1e-09 is not a number from 0.01 to ")


def test_what_a_paid_score_counts_of_a_record_is_the_same_whoever_else_is_there():
    """A last batch of one record is summed in another order than one of two: a tie of the other would be counted anew."""
    x, y = table(0, 2 * ROWS)
    made = classifier().fit(x, y)
    whole = made._outputs(x, alike=True)
    for count in (1, ROWS + 1, ROWS + 2):
        assert np.array_equal(made._outputs(x[:count], alike=True), whole[:count])


def test_records_are_scored_one_by_one_where_others_move_a_bit(monkeypatch):
    x, y = table(0, 50)
    made, seen, x = classifier().fit(x, y), [], x[:5]
    made.run_.model.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    made._outputs(x, alike=True)
    assert seen[-1:] == [ROWS]
    monkeypatch.setattr(evaluation, "bits_hold", lambda *_: False)
    made._outputs(x, alike=True)
    assert seen[-5:] == [1] * 5


def priced(kind, count):
    """A fitted estimator whose scores are paid for, and its records."""
    x, y = table(0, count)
    if kind == "classifier":
        return classifier(score_epsilon=0.6).fit(x, y), x, y
    given = {"bounds": (0, 1), "target_bounds": (0, 1), "score_epsilon": 0.6, "noise_multiplier": 2.0}
    return dpltm.TicketRegressor(**given, **FAST).fit(x, x[:, 0]), x, x[:, 0]


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_noise_of_a_score_is_that_of_its_event_and_comes_after_it(kind, monkeypatch):
    """The sums are whole numbers of steps that a record changes by GRID at most, and each gets its part of epsilon."""
    made, x, labels = priced(kind, 200)
    asked = []

    def no_noise(source, epsilon):
        del source
        assert any(entry.of(Guarantee) for entry in made.ledger_.entries)
        asked.append(epsilon)
        return 0

    monkeypatch.setattr(estimators, "two_sided_geometric", no_noise)
    plain = made.score(x, labels)
    sums = 1 if kind == "classifier" else 3
    assert asked == [0.6 / (sums * estimators.GRID)] * sums
    if kind == "classifier":
        assert plain == np.mean(made.predict(x) == labels)
    else:
        predicted = made.predict(x)
        expected = 1 - np.square(predicted - labels).sum() / np.square(labels - labels.mean()).sum()
        assert plain == pytest.approx(expected, abs=0.02)


@given(arrays.arrays(np.float64, (3, 6), elements=some.floats(-1e6, 1e6)), some.integers(0, 5))
def test_a_record_changes_each_sum_of_a_score_by_one_at_most(values, at):
    """Naive: without noise, with one record left out, added or replaced."""
    entry = Entry("release", mechanisms=(Guarantee(1.0),), words="a score", unit="record")
    ledger = Ledger()

    def summed(values):
        drawn = functools.partial(estimators.noisy_sums, values, 1.0)
        return next(pay(lambda *_: Once(entry, NO_LINEAGE, drawn), ledger).values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimators, "two_sided_geometric", lambda *_: 0)
        values = np.rint(np.clip(values, 0, 1) * estimators.GRID).astype(np.int64)
        sums = summed(values)
        less = summed(np.delete(values, at, axis=1))
        swapped = values.copy()
        swapped[:, at] = estimators.GRID - swapped[::-1, at]
        other = summed(swapped)
    assert (np.abs(sums - less) <= 1).all()
    assert (np.abs(sums - other) <= 1).all()


@pytest.mark.parametrize(("columns", "gamma"), [(8, "8"), (99, "0.5")])
def test_the_width_of_a_kernel_follows_the_public_number_of_columns(columns, gamma):
    x, y = np.random.default_rng(0).random((60, columns)), np.arange(60) % 2
    made = classifier(classes=2, features="fourier").fit(x, y)
    assert (made.run_.feature_map.text, made.run_.spec.text) == (f"fourier:1024,{gamma}", "mlp")
    assert made.run_.config["options"]["schedule"] == "linear"


@pytest.mark.parametrize(
    "given",
    [
        {"class_weight": {"low": 5.0}},
        {"class_weight": [0.2, 1.0]},
        {"class_weight": "balanced", "class_shares": [5 / 6, 1 / 6]},
    ],
)
def test_weights_by_label_order_and_shares_are_the_same(given):
    run = classifier(classes=None, **given).fit(*table()).run_
    assert run.config["resolved"]["filter"] == "clip(C=1) times class weights 0.2,1"


def test_weights_of_records_are_refused_in_words():
    x, y = table()
    made, weights = classifier(ledger=Ledger()), np.ones(len(y))
    calls = [functools.partial(made.fit, x, y), functools.partial(made.score, x, y)]
    for call in (*calls, lambda **given: cross_val_score(made, x, y, params=given, error_score="raise")):
        assert refused(call, sample_weight=weights).startswith(
            "`sample_weight`: there are `X`, `y` and `units`, and each"
        )
    assert made.ledger_.entries == ()


# copies


def test_a_clone_has_the_parameters_and_the_account():
    x, y = table()
    made = classifier()
    twin = clone(made)
    twin.fit(x, y)
    assert not hasattr(made, "run_")
    assert made.ledger_ is twin.ledger_
    assert made.privacy_ == twin.privacy_
    assert twin.get_params() == made.get_params()
    for copied in (copy.copy(twin), copy.deepcopy(twin)):
        copied.fit(x, y)
        assert copied.ledger_ is made.ledger_
    assert kinds(made.ledger_) == ["NoisySgd"] * 3
    assert made.privacy_.certified.epsilon > twin.run_.privacy.certified.epsilon


def test_what_was_pickled_predicts_but_does_not_train():
    x, y = table()
    made = classifier().fit(x, y)
    read = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(read.predict(x), made.predict(x))
    assert read.privacy_ == made.privacy_
    # how long a training took grows with the private number of records
    assert made.run_.seconds > read.run_.seconds == 0
    for one in (read, clone(read)):
        assert refused(one.fit, x, y) == (
            "`ledger`: this estimator was pickled, and its ledger stayed behind: what it spends here would be entered"
            " nowhere that you see; leave `n_jobs` 1, use threads (joblib.parallel_backend), or give a `ledger` in a file,"
            " which processes share: dpltm.tickets.open_ledger(path)"
        )
    read.set_params(ledger=Ledger()).fit(x, y)
    assert kinds(read.ledger_) == ["NoisySgd"]
    assert read.privacy_.certified.epsilon > made.privacy_.certified.epsilon, "what went along counts"


def test_a_ledger_file_is_opened_in_each_process(tmp_path, monkeypatch):
    """By the path of one that is open, wherever the process stands."""
    x, y = table()
    monkeypatch.chdir(tmp_path)
    made = classifier(ledger=open_ledger("l.jsonl"))
    pickled = pickle.dumps(clone(made))  # as a worker of joblib gets it
    made.fit(x, y)
    monkeypatch.chdir("/")
    sent = pickle.loads(pickled).fit(x, y)
    monkeypatch.chdir(tmp_path)
    assert kinds(open_ledger(tmp_path / "l.jsonl")) == ["NoisySgd"] * 2
    assert made.privacy_.certified == sent.privacy_.certified
    assert made.privacy_.certified.epsilon > made.run_.privacy.certified.epsilon


def test_a_pickled_ledger_is_not_opened_where_its_file_holds_less(tmp_path, monkeypatch):
    """As on another machine: what was paid for would be forgotten."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "one"))
    made = classifier(ledger=open_ledger(tmp_path / "l.jsonl"))
    made.fit(*table())
    pickled = pickle.dumps(clone(made))
    (tmp_path / "l.jsonl").unlink()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    with pytest.raises(InputError, match=r"holds 0 entries .*, and the one that was pickled 1 entry"):
        pickle.loads(pickled)


@pytest.mark.parametrize("hole", [None, np.nan, pandas.NA])
def test_a_record_without_a_label_is_refused_by_its_place(hole):
    x, y = table()
    labels = pandas.Series(y, dtype=object)
    labels[7] = hole
    assert "`y`: no label at record 7 (counted from 0); leave out records" in refused(classifier().fit, x, labels)


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_a_fit_that_is_refused_leaves_the_last_one_whole(kind):
    x, y = table()
    frame = pandas.DataFrame(x, columns=list("abcd"))
    if kind == "classifier":
        made, bad = classifier().fit(frame, y), np.full(200, "other")
    else:
        given = {"bounds": (0, 1), "target_bounds": (0, 1), "noise_multiplier": 2.0, **FAST}
        made, bad = dpltm.TicketRegressor(**given).fit(frame, x[:, 0]), np.full(200, np.nan)
    before = made.predict(frame)
    for other in (x[:, :3], frame[["a", "b"]]):
        with pytest.raises(ValueError, match=r"`y`: label 'other' is none of|Input y contains NaN"):
            made.fit(other, bad)
        assert made.n_features_in_ == 4
        assert made.feature_names_in_.tolist() == list("abcd")
        np.testing.assert_array_equal(made.predict(frame), before)


def test_random_state_decides_the_starting_weights():
    x, y = table()
    seeds = [classifier(random_state=state).fit(x, y).run_.config["options"]["seed"] for state in (3, 3, None, None)]
    assert seeds[0] == seeds[1]
    assert len(set(seeds)) == 3


def test_rows_that_coincide_by_nature_are_scored_where_that_is_said():
    """A few categories: equal rows are other people's."""
    x = np.random.default_rng(0).integers(0, 2, (200, 2)).astype(float)
    y = x[:, 0].astype(int)
    with pytest.raises(InputError, match="or say `rows_coincide` where rows of different people may well be equal"):
        classifier(ledger=Ledger(), classes=2).fit(x, y).score(x[:50], y[:50])
    made = classifier(ledger=Ledger(), classes=2, rows_coincide=True).fit(x, y)
    assert 0 <= made.score(x[:50], y[:50]) <= 1


def test_what_any_release_of_an_estimator_was_of_is_not_measured_on():
    """Also after a paid score, and where a fit took equal rows for other people's; the digests stay in this process."""
    (x, y), (x_paid, y_paid) = table(), table(3, 60)
    made = classifier(score_epsilon=0.5, rows_coincide=True).fit(x, y)
    made.score(x_paid, y_paid)
    made.set_params(score_epsilon=None, rows_coincide=False)
    for rows, labels in ((x, y), (x_paid, y_paid)):
        with pytest.raises(InputError, match=r"^`X`: some of these records are protected by a release on record"):
            clone(made).fit(x, y).score(rows[:20], labels[:20])
    assert pickle.loads(pickle.dumps(made))._spent.protected == []


@pytest.mark.parametrize("price", [math.nan, -1, True, "abc", [], 10**400])
def test_what_is_no_price_of_a_score_is_refused_before_a_fit_pays(price):
    x, y = np.random.default_rng(0).random((40, 2)), np.array(["low", "high"] * 20)
    made = classifier(score_epsilon=price)
    assert refused(made.fit, x, y).startswith("`score_epsilon`: ")
    assert len(made.ledger_.entries) == 0
