"""What a mask tells of features that no record has: exact small cases, and whole generations."""

import re

import numpy as np
import pytest

from dpltm.errors import InputError
from dpltm.verbs.audit import check_unset, mask_bound, out_of_order, unset_features, with_canaries

WEIGHTS = np.array([[0.1, 0.5, 0.3, 0.6], [0.2, 0.7, 0.8, 0.05]])


def test_pruning_by_a_threshold_is_in_order():
    for threshold in (0.0, 0.15, 0.4, 0.9):
        mask = threshold <= WEIGHTS
        assert out_of_order(WEIGHTS, mask).tolist() == [0, 0, 0, 0]


def test_a_feature_whose_weights_moved_is_the_one_out_of_order():
    mask = WEIGHTS >= 0.4
    mask[1, 3] = True  # 0.05 was kept
    assert out_of_order(WEIGHTS, mask).tolist() == [0, 0, 0, 1]
    mask[1, 1] = False  # and 0.7 dropped
    assert out_of_order(WEIGHTS, mask).tolist() == [0, 1, 0, 1]


def test_features_that_no_record_has():
    x = np.array([[[0, 1], [0, 0]], [[0, 0], [0, 2]]], dtype=np.uint8)
    assert unset_features(x).tolist() == [0, 2]
    more = with_canaries(x, np.array([0, 2]), 255.0)
    assert more.dtype == np.uint8
    assert more[:2].tolist() == x.tolist()
    assert more[2:].tolist() == [[[255, 0], [0, 0]], [[0, 0], [255, 0]]]


def test_the_bound_counts_guesses_of_both_kinds():
    included = np.arange(40) % 2 == 0
    correct, perfect = mask_bound(np.where(included, 3, 0), included, 0.95)
    chance = 0.05 ** (1 / 40)
    assert correct == 40
    assert perfect == pytest.approx(np.log(chance / (1 - chance)), abs=1e-6)
    assert mask_bound(np.zeros(40), included, 0.95) == (20, 0)


def test_too_few_features_are_refused():
    message = (
        "`dataset`: 4 of its features are zero in every record, and `confidence` 0.95 needs 5; this attack is for images"
        " with an empty border, such as mnist"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        check_unset(4, 0.95)
