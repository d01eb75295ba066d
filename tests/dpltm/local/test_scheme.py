"""What owners and server agree on: an identity of all that decides messages, public statistics, messages in order."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage, stats

from dpltm.local import scheme as scheme_module
from dpltm.local.channels import Response
from dpltm.local.codebook import PAIRS, Codebook, best_codebook, codewords, estimates, metric, nearest_mean
from dpltm.local.scheme import BitStrings, FixedPoint, Scheme, public_statistics, varied
from dpltm.randomness.noise import FastSource
from local_channels import decoded
from maps import make_feature_map
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


FINITE = "Expected finite means and finite, positive deviations of features"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": replace(ANSWER, values=4)}, "Expected 6 values, one a feature, not 4"),
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


# --- codebooks, one index a record: what it may tell, and what can be learned from many ---

SIGNED, ONE_HOT = Codebook(6, 3, 1.0, "signed", 40), Codebook(6, 3, 4.0, "one-hot", 20)


def records(count, values, seed=0):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(count, values)).astype("f4"), generator.integers(0, 3, count)


def parts(rows):
    """Numbers of codebooks and indices, read byte by byte."""
    rows = rows.astype(np.int64)
    return rows[:, :4] @ 256 ** np.arange(4), rows[:, 4:] @ 256 ** np.arange(2)


@pytest.mark.parametrize(("found", "candidates"), [(SIGNED, 2 * PAIRS), (ONE_HOT, 6 * PAIRS)])
def test_a_candidate_is_reported_by_subset_selection(found, candidates):
    assert found.response == Response(candidates, found.epsilon, found.near)
    assert found.certified == found.response.certified


@settings(max_examples=60)
@given(
    arrays(
        "f4",
        (4, 6),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 1e-45, 1.0]),
    ),
    st.sampled_from([SIGNED, ONE_HOT]),
    st.integers(0, 2**32 - 1),
)
@pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")
def test_exactly_k_candidates_are_near_whatever_the_record_is(scores, found, number):
    """All of the guarantee is in this: sums that overflow, ties and rows of zeros included."""
    near = found.near_candidates(scores, np.array([0, 1, 2, 0]), number)
    assert near.shape == (4, found.near)
    assert all(len(set(row)) == found.near for row in near.tolist())
    assert 0 <= near.min() <= near.max() < found.candidates


@pytest.mark.parametrize("found", [SIGNED, ONE_HOT])
def test_candidates_are_ranked_by_how_well_they_point_along_the_record(found):
    """As fractions have it, nearest first; of ties, as all are for a record of zeros, the first one."""
    x, y = records(8, 6)
    x[0] = 0.0
    directions, signs = codewords(9, 6, 3)
    near = found.near_candidates(x, y, 9)
    for record, label, row in zip(x.tolist(), y.tolist(), near.tolist(), strict=True):
        along = [
            sum(Fraction(a) * Fraction(b) for a, b in zip(record, public, strict=True))
            for public in directions.tolist()
        ]
        turned = [value * (int(signs[at, label]) if found is SIGNED else 1) for at, value in enumerate(along)]
        both = [*turned, *(-value for value in turned)]
        best = sorted(range(2 * PAIRS), key=lambda at: -both[at])[: found.near]
        assert row == [at + (0 if found is SIGNED else 2 * PAIRS * label) for at in best]
    for scale in (2.0**-100, 2.0**60):
        np.testing.assert_array_equal(found.near_candidates(x * np.float32(scale), y, 9), near)


@pytest.mark.parametrize("found", [SIGNED, ONE_HOT])
def test_no_attack_tells_two_records_apart_more_often_than_epsilon_permits(found):
    """The likelihood ratio, which no attack beats, for records as far apart as they can be."""
    count, draws = 6000, np.random.default_rng(0)
    pair = [(np.eye(1, 6, dtype="f4") * sign, np.array([label])) for sign, label in ((1, 0), (-1, 2))]
    which, ties = draws.integers(0, 2, count), draws.integers(0, 2, count)
    x, y = (np.concatenate([pair[one][part] for one in which]) for part in (0, 1))
    numbers, indices = parts(found.randomise(x, y, FastSource(7)))
    right = 0
    for number in np.unique(numbers):
        some = numbers == number
        one, other = (np.isin(indices[some], found.near_candidates(*record, int(number))) for record in pair)
        right += int((np.where(one == other, ties[some], other) == which[some]).sum())
    limit = math.exp(found.epsilon) / (1 + math.exp(found.epsilon))
    assert stats.binomtest(right, count).proportion_ci(0.999).low <= limit
    assert stats.binomtest(right, count).pvalue < 1e-6  # the test has power: a message does tell something


def test_the_number_of_a_codebook_says_nothing_of_its_records():
    """It comes before any record is looked at: with the same coins it is the same for all records."""
    (x, y), (other, labels) = records(300, 6), records(300, 6, seed=1)
    numbers = [parts(SIGNED.randomise(*pair, FastSource(5)))[0] for pair in ((x, y), (other, labels))]
    assert numbers[0][0] == numbers[1][0]
    assert len(np.unique(numbers[0])) == 19  # 16 records share one


@pytest.mark.parametrize("epsilon", [1.0, 5.0])
def test_estimates_are_right_in_the_mean_and_as_noisy_as_said(epsilon):
    found = best_codebook(6, 3, epsilon)
    assert found.labels == ("signed" if epsilon == 1 else "one-hot")
    count = 1_500
    labels = np.arange(count) % 3
    truth = np.array([[1, 0, 0, 0, 0, 0], [0, 0.6, 0.8, 0, 0, 0], [-0.8, 0, 0, 0, 0, 0.6]])
    scores = (7 * truth[labels]).astype("f4")  # only the direction counts
    off = []
    for seed in range(8):
        told = estimates(found, found.randomise(scores, labels, FastSource(seed)))
        off.append((told.means - truth) / math.sqrt(told.variance))
    off = np.array(off)
    assert np.abs(off.mean(0)).max() < 4.5 / math.sqrt(8)
    assert 0.8 < off.std() < 1.15


@pytest.mark.one_of(3)
@pytest.mark.parametrize("epsilon", [3.0, 5.0, 8.0])
def test_second_moments_are_right_in_the_mean_and_as_noisy_as_said(epsilon):
    count, values = 480, 30
    found = best_codebook(values, 3, epsilon)
    assert found.labels == "one-hot"
    generator = np.random.default_rng(1)
    scores = generator.normal(size=(count, values)) * np.linspace(2, 0.5, values) + np.eye(values)[0]
    labels = generator.integers(0, 3, count)
    lengths = np.linalg.norm(scores, axis=1, keepdims=True)
    truth = (scores / lengths).T @ (scores / lengths) / count
    off = []
    for seed in range(8):
        told = estimates(found, found.randomise(scores.astype("f4"), labels, FastSource(seed)))
        off.append((told.moments - truth) / told.deviation)
    off = np.array(off)
    assert np.abs(off.mean(0)).max() < 5 * math.sqrt(2 / 8)  # on the diagonal, variances are twice as large
    apart = off[:, ~np.eye(values, dtype=bool)]
    assert 0.93 < apart.std() < 1.07


@pytest.mark.parametrize("found", [SIGNED, Codebook(1025, 3, 4.0, "one-hot", 20)])
def test_signed_messages_and_long_records_tell_no_second_moments(found):
    x, y = records(50, found.values)
    rows = found.randomise(x, y, FastSource(0))
    assert estimates(found, rows).moments is None
    assert nearest_mean(found, estimates(found, rows))["fc1.weight"].shape == (3, found.values)


@pytest.mark.parametrize("deviation", [1e-9, 1.0, 1e9])
def test_metric_of_nothing_but_noise(deviation):
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(size=(60, 60))
        within = np.eye(60) / 60 + deviation * (noise + noise.T) / math.sqrt(2)
        np.testing.assert_array_equal(metric(within, deviation), np.eye(60))


def test_metric_without_noise_is_one_over_the_spread():
    rows = np.random.default_rng(0).normal(size=(50, 3)) * [3, 1, 0.2]
    within = rows.T @ rows / len(rows)
    product = metric(within, 1e-12) @ within
    np.testing.assert_allclose(product, product[0, 0] * np.eye(3), atol=1e-6 * product[0, 0])


@pytest.mark.parametrize("values", [50, 700])
def test_codewords_are_those_of_the_format(values):
    """As docs/formats.md says: messages written by another version rely on it, however many values a record has."""
    generator, count = np.random.Generator(np.random.SFC64(77)), PAIRS * values
    words = np.frombuffer(generator.bytes(8 * count), dtype=np.uint64) >> np.uint64(12)
    radius, turn = np.split((words + 0.5) * 2.0**-52, 2)
    radius = np.sqrt(-2 * np.log(radius))
    normal = np.concatenate([radius * np.cos(2 * np.pi * turn), radius * np.sin(2 * np.pi * turn)])
    directions, signs = codewords(77, values, 10)
    np.testing.assert_allclose(directions.ravel(), normal, rtol=1e-6, atol=1e-12)
    lowest = np.frombuffer(generator.bytes(PAIRS * 10), dtype=np.uint8) & 1
    np.testing.assert_array_equal(signs.ravel(), np.where(lowest, 1, -1))


def test_a_frequent_class_is_not_shunned():
    """Two classes in opposite directions, nine to one: nearest means are right about both."""
    generator, count = np.random.default_rng(0), 5_000
    y = (generator.random(count) < 0.1).astype(int)
    x = (np.where(y[:, None], -1.0, 1.0) * np.eye(1, 6) + 0.5 * generator.normal(size=(count, 6))).astype("f4")
    x *= 8 / np.linalg.norm(x, axis=1, keepdims=True)
    found = best_codebook(6, 2, 4.0)
    parameters = nearest_mean(found, estimates(found, found.randomise(x, y, FastSource(0))))
    outputs = x @ parameters["fc1.weight"].numpy().T + parameters["fc1.bias"].numpy()
    right = outputs.argmax(1) == y
    assert min(right[y == 0].mean(), right[y == 1].mean()) > 0.9


def test_what_is_no_codebook():
    assert refused(Codebook, 4, 3, 0.0, "signed", 1) == "`epsilon`: 0 is not a positive number up to 10000"
    assert refused(Codebook, 4, 3, 1.0, "signed", 129) == "`near`: 129 is not a positive whole number up to 128"


def test_what_is_no_message():
    said = "an index is 65535, and there are 256 candidates"
    assert refused(SIGNED.check, np.full((1, 6), 255, dtype=np.uint8)) == said
