"""What owners and server agree on: an identity of all that decides messages, public statistics, messages in order."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from dpltm.features.feature_map import make_feature_map
from dpltm.local import scheme as scheme_module
from dpltm.local.scheme import BitStrings, FixedPoint, Scheme, public_statistics, varied
from dpltm.randomness.noise import FastSource
from local_channels import decoded
from refusals import refused
from set_entries import LINEAGES

MAP = make_feature_map("unit:1", (2, 3), (0.0, 255.0))
ANSWER = BitStrings(6, 4, FixedPoint(1, 2), "rappor", 9.0, None, 2.0)


def made(**changes) -> Scheme:
    mean, deviation = np.linspace(-1, 1, 6, dtype="f4"), np.linspace(0.5, 3, 6, dtype="f4")
    return Scheme(**{"feature_map": MAP, "mean": mean, "deviation": deviation, "answer": ANSWER, **changes})


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 2, 3)).astype(np.uint8)


def unit_features(x: np.ndarray) -> np.ndarray:
    """Of norm 8 and centred, by hand in float64."""
    flat = x.reshape(len(x), -1) / 255.0
    flat = flat - flat.mean(1, keepdims=True)
    return 8 * flat / np.linalg.norm(flat, axis=1, keepdims=True)


def test_the_id_is_that_of_equal_schemes():
    assert made().id == made().id
    assert len(bytes.fromhex(made().id)) == 32
    assert made(feature_map=replace(MAP, bounds=(0, 255))).id == made().id, "0 is 0.0"
    assert made(lineage=LINEAGES["public"]).id == made().id, "the same statistics, whoever declared them public"


CHANGES = {
    "features": {"feature_map": make_feature_map("unit:2", (12,), (0.0, 255.0))},
    "shape": {"feature_map": replace(MAP, shape=(3, 2))},
    "bounds": {"feature_map": replace(MAP, bounds=(0.0, 16.0))},
    "mean": {"mean": np.float32([-1, -0.6, -0.2, 0.2, 0.6, 1.000001])},
    "deviation": {"deviation": np.float32([0.5, 1, 1.5, 2, 2.5, 3.000001])},
    "swapped": {"mean": made().deviation, "deviation": made().deviation},
    "classes": {"answer": replace(ANSWER, classes=5)},
    "whole": {"answer": replace(ANSWER, form=FixedPoint(2, 2))},
    "as long, elsewhere": {"answer": replace(ANSWER, form=FixedPoint(2, 1))},
    "fraction": {"answer": replace(ANSWER, form=FixedPoint(1, 3))},
    "protocol": {"answer": replace(ANSWER, protocol="ue")},
    "epsilon": {"answer": replace(ANSWER, epsilon=9.000000001)},
    "alpha": {"answer": replace(ANSWER, protocol="uer", alpha=7.0)},
    "another alpha": {"answer": replace(ANSWER, protocol="uer", alpha=7.5)},
    "label epsilon": {"answer": replace(ANSWER, label_epsilon=2.5)},
    "public labels": {"answer": replace(ANSWER, label_epsilon=None)},
}


def test_the_id_is_another_with_anything_that_changes_messages():
    ids = [made(**change).id for change in CHANGES.values()]
    assert len({made().id, *ids}) == len(ids) + 1


@given(st.integers(1, 45), st.integers(1, 9))
def test_statistics_are_mean_and_deviation_however_they_are_read(count, rows):
    x = images(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpltm.local.scheme.ROWS", rows)
        mean, deviation = public_statistics(MAP, x)
    values = MAP(x).double().numpy()
    np.testing.assert_allclose(mean, values.mean(0), rtol=1e-5, atol=1e-5)
    plain = values.std(0)
    least = max(plain.max() * 1e-3, 1e-12)
    np.testing.assert_allclose(deviation, np.maximum(plain, least), rtol=1e-3, atol=2e-6)
    assert mean.dtype == deviation.dtype == np.float32


def test_scores_by_hand():
    x, scheme = images(20), made()
    scores = scheme.scores(x)
    assert scores.dtype == np.float32
    expected = (unit_features(x) - np.linspace(-1, 1, 6)) / np.linspace(0.5, 3, 6)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


def test_messages_are_of_all_records_in_order_some_at_a_time():
    """With coins that hardly ever flip anything. Nothing is read before it is asked for."""
    x, y, seen = images(1201), np.arange(1201) % 4, []
    sure = made(answer=replace(ANSWER, epsilon=1e4, label_epsilon=1e3))
    messages = sure.messages(x, y, FastSource(0), seen.append)
    found = [next(messages), next(messages)]
    assert seen == [500]
    found += messages
    assert seen == [500, 1000, 1201]
    assert [len(rows) for rows in found] == [500, 500, 201]
    rows = np.concatenate(found)
    assert rows[:, -2].tolist() == y.tolist()
    values = decoded(sure.answer.form, rows[:, :-2], 6)
    scores = sure.scores(x)
    assert float(np.abs(values - np.clip(scores, -1.75, 1.75)).max()) <= 0.25
    assert np.count_nonzero(np.abs(scores) >= 2) > 0, "some of them saturated"


def test_a_message_depends_on_its_record_alone():
    """Under the same coins, another record changes its own message and no other one."""
    x, y = images(30), np.arange(30) % 4
    other = x.copy()
    other[17] = 255 - other[17]
    strong = made(answer=replace(ANSWER, epsilon=300.0))
    one, same, changed = (
        np.concatenate(list(strong.messages(records, y, FastSource(9)))) for records in (x, x, other)
    )
    assert np.array_equal(one, same)
    assert np.flatnonzero((one != changed).any(1)).tolist() == [17]


FITS = "Expected as many statistics and values as the 6 features, not"
FINITE = "Expected finite means and finite, positive deviations of features"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": np.zeros(5, np.float32)}, f"{FITS} 5, 6 and 6"),
        ({"deviation": np.ones(7, np.float32)}, f"{FITS} 6, 7 and 6"),
        ({"answer": replace(ANSWER, values=4)}, f"{FITS} 6, 6 and 4"),
        ({"mean": np.float32([1, 1, math.nan, 1, 1, 1])}, FINITE),
        *(({"deviation": np.float32([1, 1, value, 1, 1, 1])}, FINITE) for value in (0.0, -1.0, math.inf)),
    ],
)
def test_what_is_no_scheme(change, message):
    assert refused(made, **change) == message


@pytest.fixture
def vary(monkeypatch):
    """Vary images by given numbers from -1 to 1: down, across, turn, mirror."""
    shown = np.random.default_rng(0).random((2, 20, 20, 3)).astype("f4")

    def by(*numbers, x=shown):
        draws = (np.repeat(numbers, len(x)) + 1) / 2
        monkeypatch.setattr(scheme_module, "uniform", lambda *_: draws)
        return x, varied(x, FastSource(0))

    return by


def test_images_are_moved_by_a_tenth_of_a_side_and_mirrored(vary):
    """Two of twenty pixels; what comes in at the edge repeats it."""
    shown, found = vary(1, 0, 0, 1)
    np.testing.assert_allclose(found, shown[:, np.minimum(np.arange(20) + 2, 19)], atol=1e-5)
    shown, found = vary(0, 1, 0, 1)
    np.testing.assert_allclose(found, shown[:, :, np.minimum(np.arange(20) + 2, 19)], atol=1e-5)
    shown, found = vary(0, 0, 0, -1)
    np.testing.assert_allclose(found, shown[:, :, ::-1], atol=1e-5)


def test_images_are_turned_by_ten_degrees(vary):
    shown, found = vary(0, 0, 1, 1)
    turned = [ndimage.rotate(image, 10, reshape=False, order=1, mode="nearest") for image in shown]
    np.testing.assert_allclose(found, turned, atol=1e-4)


def test_varied_images_stay_in_range_and_differ():
    """Grey ones of another kind of number, each by coins of its own."""
    x = np.random.default_rng(1).integers(0, 256, (50, 9, 12), dtype=np.uint8)
    found = varied(x, FastSource(3))
    assert (found.dtype, found.shape) == (np.float32, x.shape)
    assert found.min() >= x.min()
    assert found.max() <= x.max()
    same = varied(np.repeat(x[:1], 50, 0), FastSource(3))
    assert len({image.tobytes() for image in same}) == 50
    assert np.array_equal(varied(x, FastSource(3)), found), "by the source alone"
