"""scikit-learn's own checks of estimators: all pass but those that ask two fits for the same answer."""

import pytest
from sklearn.utils.estimator_checks import check_estimator

import dpltm

TWICE = "compares the predictions of two fits, whose noise and sampling no seed decides"
EXPECTED = {
    "classifier": ("check_classifier_data_not_an_array", "check_supervised_y_2d", "check_fit_idempotent"),
    "regressor": (
        "check_regressor_data_not_an_array",
        "check_regressors_int",
        "check_supervised_y_2d",
        "check_fit_idempotent",
    ),
}
ONE_NUMBER = {"check_fit2d_1feature": "unit leaves nothing of one number, and says so in its own words"}
SKIPPED = {"check_pipeline_consistency": "is non deterministic", "check_array_api_input": "SCIPY_ARRAY_API is not set"}

# Hardly any noise, since checks learn from 30 to 300 records; scores are paid for, since they are of training records.
GIVEN = {"noise_multiplier": 0.05, "score_epsilon": 1000.0}
ESTIMATORS = {
    "classifier": lambda: dpltm.TicketClassifier(bounds=(-10, 10), epochs=4, features="fourier:64,2", **GIVEN),
    "regressor": lambda: dpltm.TicketRegressor(
        bounds=(-4, 4), target_bounds=(-3, 3), epochs=8, features="unit", **GIVEN
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["classifier", "regressor"])
@pytest.mark.filterwarnings("ignore")  # checks try what is deprecated, on purpose
def test_the_checks_of_scikit_learn(kind):
    expected = dict.fromkeys(EXPECTED[kind], TWICE) | (ONE_NUMBER if kind == "regressor" else {})
    results = check_estimator(ESTIMATORS[kind](), expected_failed_checks=expected, on_skip=None, on_fail=None)
    status = {result["check_name"]: result["status"] for result in results}
    assert {
        name: repr(one["exception"]) for one in results if (name := one["check_name"]) and one["status"] == "failed"
    } == {}
    assert sum(one == "passed" for one in status.values()) >= 35
    for name, why in SKIPPED.items():
        (found,) = (one for one in results if one["check_name"] == name)
        assert found["status"] == "skipped"
        assert why in str(found["exception"])
    assert {name for name, one in status.items() if one == "skipped"} == set(SKIPPED)
