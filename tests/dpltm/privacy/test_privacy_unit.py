"""Records and users: what a release for the one says of the other, against the mechanisms themselves."""

import math
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from dpltm.errors import BudgetError, InputError
from dpltm.privacy.accountant import approximate, central_limit_mu, epsilon
from dpltm.privacy.budgets import check_budgets
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.composition import compose
from dpltm.privacy.events import OPEN_END, DatasetRef
from dpltm.privacy.odometer import Odometer
from dpltm.privacy.old_ledger import Ledger
from dpltm.privacy.parts import OnRecord, mechanisms_of, profiles, total_epsilon
from dpltm.privacy.privacy_loss import BoundedRangeLoss, GaussianLoss, GuaranteeLoss, LaplaceLoss, SampledGaussianLoss
from dpltm.privacy.privacy_unit import unit_of
from dpltm.privacy.report import report
from entries import (
    BUDGET,
    DATA,
    GAUSSIAN,
    GUARANTEE,
    LAPLACE,
    PROVENANCE,
    RANDOMIZED,
    REVEALED,
    SELECTION,
    TRAINING,
    having,
)

DELTA = 1e-5
RECORD = having(TRAINING, sampling_rate=0.01, steps=10, noise_multiplier=1.0)
USER = replace(having(RECORD, unit="user"), dataset=replace(DATA, stop=OPEN_END))


@pytest.mark.parametrize(
    ("events", "unit"),
    [
        ([], "record"),
        ([RECORD], "record"),
        ([USER], "user"),
        ([USER, RECORD], "record"),
        ([USER, PROVENANCE], "user"),
        ([USER, BUDGET], "user"),
        ([USER, REVEALED], "user"),
    ],
)
def test_together_they_protect_the_smaller(events, unit):
    assert unit_of(mechanisms_of(events)) == unit


def test_a_release_for_records_is_worth_nothing_to_a_user():
    assert total_epsilon([RECORD], DELTA, unit="user") == math.inf
    assert total_epsilon([USER, RECORD], DELTA, unit="user") == math.inf
    assert total_epsilon([USER], DELTA) == total_epsilon([RECORD], DELTA) < math.inf
    assert approximate([USER.mechanism], DELTA) == approximate([RECORD.mechanism], DELTA)


def divergence(noise, rate, first, second, x):
    """Hockey-stick divergence of one step at e^x, user's contribution ``first`` against ``second``: by integration."""
    z = np.linspace(-12 * noise - 2, 12 * noise + 2, 40_001)

    def density(centre):
        def normal(at):
            return np.exp(-((z - at) ** 2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))

        return (1 - rate) * normal(0.0) + rate * normal(centre)

    return float(np.trapezoid(np.maximum(density(first) - math.exp(x) * density(second), 0.0), z))


@settings(max_examples=6)
@given(st.floats(0.5, 4.0), st.floats(0.05, 1.0), st.floats(-1, 1), st.floats(-1, 1))
def test_one_step_for_users_covers_any_change_of_what_one_user_contributes(noise, rate, first, second):
    """Bounded by 1 before and after, and 0 for a user who was not there."""
    user = having(USER, steps=1, noise_multiplier=noise, sampling_rate=rate)
    found = total_epsilon([user], 1e-3, unit="record")
    for before, after in ((first, second), (1.0, -1.0), (-1.0, 1.0), (0.0, second), (first, 0.0)):
        assert divergence(noise, rate, before, after, found) <= 1e-3 + 1e-6


def test_to_count_a_release_for_users_once_would_be_too_little():
    """The control: the epsilon for a user does not hold for one rating of a user who has others."""
    user = having(USER, steps=1, noise_multiplier=2.0, sampling_rate=0.5)
    for_user, for_record = total_epsilon([user], 1e-3), total_epsilon([user], 1e-3, unit="record")
    assert divergence(2.0, 0.5, 1.0, 0.0, for_user) <= 1e-3 + 1e-6
    assert divergence(2.0, 0.5, 1.0, -1.0, for_user) > 2e-3
    true = brentq(lambda x: divergence(2.0, 0.5, 1.0, -1.0, x) - 1e-3, 0, 10)
    assert for_user < 0.65 * true
    assert true <= for_record <= 1.02 * true


def test_both_units_compose_for_a_record():
    total = total_epsilon([RECORD, USER], DELTA)
    assert compose(mechanisms_of([RECORD, USER])).losses == {
        SampledGaussianLoss(1.0, 0.01, False): 10,
        SampledGaussianLoss(0.5, 0.01, True): 10,
    }
    apart = total_epsilon([RECORD], DELTA / 2) + total_epsilon([USER], DELTA / 2, unit="record")
    assert total_epsilon([USER], DELTA, unit="record") < total < apart
    for accountant in ("rdp", "ma"):
        assert total_epsilon([RECORD, USER], DELTA, accountant) > total
    assert approximate([RECORD.mechanism, USER.mechanism], DELTA) > approximate([USER.mechanism], DELTA, unit="record")
    assert central_limit_mu([RECORD.mechanism, USER.mechanism]) > central_limit_mu([RECORD.mechanism])


@pytest.mark.parametrize(
    ("event", "loss"),
    [
        (having(TRAINING, sampling_rate=1.0, steps=4, noise_multiplier=6.0), GaussianLoss(1.5)),
        (having(GAUSSIAN, noise_multiplier=3.0), GaussianLoss(1.5)),
        (having(LAPLACE, scale=2.0, sensitivity=1.0), LaplaceLoss(1.0)),
        (SELECTION, BoundedRangeLoss(1.0)),
        (having(SELECTION, draw="permute-and-flip"), GuaranteeLoss(1.0)),
        (having(GUARANTEE, delta=1e-9), GuaranteeLoss(1.0, (1 + math.exp(0.5)) * 1e-9)),
    ],
)
def test_other_releases_for_users_by_two_steps(event, loss):
    ((found, count),) = compose(mechanisms_of([having(event, unit="user")]), "record").losses.items()
    assert (type(found), count) == (type(loss), 1)
    assert astuple(found) == pytest.approx(astuple(loss))


@pytest.mark.parametrize(
    "event",
    [
        having(GUARANTEE, epsilon=50.0, delta=1e-9, unit="user"),
        having(GUARANTEE, epsilon=1e6, delta=1e-300, unit="user"),
        having(USER, noise_multiplier=1.5e-3),
    ],
)
def test_what_two_steps_leave_nothing_of(event):
    assert total_epsilon([event], 1e-3, unit="record") == math.inf


def test_no_rule_under_replace_one():
    """A rating replaced by one of another user changes two users."""
    user, record = (having(event, adjacency="replace-one") for event in (USER, RECORD))
    assert total_epsilon([user], DELTA) == total_epsilon([record], DELTA)
    for events in ([user, record], [having(RANDOMIZED, unit="user"), record]):
        with pytest.raises(InputError) as error:
            total_epsilon(events, DELTA)
        assert str(error.value) == (
            "unit: the ledger holds releases for records and for users under replace-one, which have no common guarantee;"
            " use one unit throughout, or separate ledgers"
        )


def test_one_unit_for_all_datasets_of_a_figure():
    """Users of one dataset beside records of another: for a record, what is for users counts twice there too."""
    elsewhere = replace(having(RECORD, noise_multiplier=100.0), dataset=DatasetRef("imdb", "f2", "k1"))
    assert total_epsilon([USER, elsewhere], DELTA) == total_epsilon([USER], DELTA, unit="record")
    assert len(profiles([USER, elsewhere])) == 2


def test_a_report_states_the_unit_and_says_what_it_does_not_cover():
    both = report([RECORD, USER], DELTA, "add-remove")
    assert (both.certified.unit, both.certified.epsilon) == ("record", total_epsilon([RECORD, USER], DELTA))
    assert both.notes[1] == (
        "there are releases for users, which count at twice their sensitivity here: one record more or less changes what its"
        " user contributes from one bounded value to another; nothing is certified for a user"
    )
    users = report([USER], DELTA, "add-remove")
    assert (users.certified.unit, users.certified.epsilon) == ("user", total_epsilon([USER], DELTA))
    assert not any("releases for" in note for note in users.notes)
    asked = report([RECORD, USER], DELTA, "add-remove", unit="user")
    assert (asked.certified.unit, asked.certified.epsilon) == ("user", math.inf)
    assert asked.notes[1] == (
        "there are releases for single records, which certify nothing for a user, who may have many; for one record"
        f" everything together is certified at epsilon {total_epsilon([RECORD, USER], DELTA):.4g}"
    )
    assert asked.to_json()["certified"] == {
        "epsilon": "inf", "delta": DELTA, "accountant": "pld", "adjacency": "add-remove", "unit": "user",
        "sampling": "poisson",
    }  # fmt: skip


def test_a_budget_for_users_and_one_for_records_stand_beside_each_other():
    for_user = replace(BUDGET, dataset=USER.dataset, epsilon=0.5, unit="user")
    for_record = replace(for_user, unit="record", epsilon=0.8)
    quiet, loud = (
        having(USER, sampling_rate=1.0, noise_multiplier=60.0),
        having(USER, sampling_rate=1.0, noise_multiplier=19.0),
    )
    user, both = (total_epsilon(events, DELTA) for events in ([loud], [quiet, loud]))
    assert total_epsilon([quiet], DELTA) < 0.5 < user < 0.8 < total_epsilon([loud], DELTA, unit="record")
    ledger = Ledger([for_user, for_record])
    ledger.append(quiet)
    for event, figure in ((loud, both), (RECORD, math.inf)):
        with pytest.raises(BudgetError, match=f"to epsilon {figure:.4g} at delta 1e-05, above the budget of 0.5"):
            check_budgets(ledger.events, (event,))
    with pytest.raises(BudgetError, match=r"above the budget of 0\.8"):
        check_budgets([for_record], [loud])


def test_noise_is_calibrated_and_the_odometer_counts_for_the_unit_of_the_plan():
    for_record, for_user = RECORD.mechanism, USER.mechanism
    assert 1.998 <= epsilon([calibrate_noise(2.0, DELTA, for_user)], DELTA) <= 2.0
    with pytest.raises(BudgetError, match="on these records epsilon inf goes to"):
        calibrate_noise(2.0, DELTA, for_user, OnRecord(DATA, (RECORD,)))
    after = calibrate_noise(20.0, DELTA, for_record, [for_user])
    assert 19.98 <= epsilon([for_user, after], DELTA) <= 20.0
    assert Odometer([for_record], for_user, DELTA).after(10) == math.inf
    assert Odometer([for_user], for_record, DELTA).after(10) == epsilon([for_user, for_record], DELTA)
