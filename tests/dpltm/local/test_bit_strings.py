"""Records as bits and a label: what is sent of them, what that is worth, and what a network is told."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpltm.local import BIT_PROTOCOLS, WITH_ALPHA
from dpltm.local.scheme import BitStrings, FixedPoint
from dpltm.local.server import Messages
from dpltm.randomness.noise import FastSource, SecureSource
from refusals import refused

ALPHA = 7.0
FORMS = (FixedPoint(0, 0), FixedPoint(0, 3), FixedPoint(1, 0), FixedPoint(2, 2), FixedPoint(4, 5))


def made(form=FORMS[3], protocol="rappor", values=3, epsilon=8.0, label_epsilon=2.0, classes=4, alpha=ALPHA):
    return BitStrings(
        values, classes, form, protocol, epsilon, alpha if protocol in WITH_ALPHA else None, label_epsilon
    )


def normal_between(low: float, high: float) -> float:
    """P(low <= |z| < high) of a standard normal z."""
    return math.erfc(low / math.sqrt(2)) - math.erfc(high / math.sqrt(2))


@functools.cache
def priors(form: FixedPoint) -> list[tuple[float, float, float]]:
    """Of each bit of a standard normal value: how often it is 1, and what it adds to the value if 1 and if 0."""
    mean_size = math.sqrt(2 / math.pi)
    found, digits = [(0.5, -mean_size, mean_size)], form.length - 1
    for place in range(digits):
        ones = 0.0
        for code in range(2**digits):
            if f"{code:0{digits}b}"[place] == "1":
                last = code == 2**digits - 1  # saturates
                ones += normal_between(code / 2**form.fraction, math.inf if last else (code + 1) / 2**form.fraction)
        found.append((ones, 2.0 ** (form.whole - 1 - place), 0.0))
    return found


def by_bayes(answer: BitStrings, randomised: bool) -> list[tuple[float, float, float]]:
    """Of each bit: what a 0 and a 1 that arrive add to the value in the mean, beyond the mean; and how often a 1 does."""
    found, chances = [], zip(*answer.channel.probabilities(), strict=True)
    for place, coins in enumerate(chances):
        prior, one, zero = priors(answer.form)[place % answer.form.length]
        p, q = coins if randomised else (1.0, 0.0)
        told = []
        for arrived in (0, 1):
            if_one, if_zero = (p, q) if arrived else (1 - p, 1 - q)
            evidence = prior * if_one + (1 - prior) * if_zero
            posterior = prior * if_one / evidence if evidence else 0.0
            told.append(posterior * one + (1 - posterior) * zero - (prior * one + (1 - prior) * zero))
        found.append((*told, prior * p + (1 - prior) * q))
    return found


def rows_of(bits: np.ndarray) -> np.ndarray:
    """Messages with those bits, and label 0."""
    return np.concatenate([np.packbits(bits, axis=1), np.zeros((len(bits), 2), np.uint8)], axis=1)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("protocol", BIT_PROTOCOLS)
def test_what_is_read_is_the_mean_by_bayes_rule(protocol, form):
    answer = made(form, protocol)
    table = by_bayes(answer, True)
    square = sum((1 - often) * low**2 + often * high**2 for low, high, often in table)
    unit = 8 / math.sqrt(square)
    bits = np.random.default_rng(0).integers(0, 2, (6, len(table)), dtype=np.uint8)
    for randomised in (True, False):
        found = Messages(rows_of(bits), answer, randomised)[:]
        assert found.dtype == torch.float32
        assert found.shape == (6, answer.channel.bits)
        told = by_bayes(answer, randomised)
        expected = [[unit * told[place][bit] for place, bit in enumerate(row)] for row in bits]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("randomised", [True, False])
def test_bits_are_read_as_they_are(randomised):
    answer = made(protocol="uer")
    bits = np.random.default_rng(0).integers(0, 2, (6, answer.channel.bits), dtype=np.uint8)
    found = Messages(rows_of(bits), answer, randomised, inputs="bits")[:]
    assert found.dtype == torch.float32
    assert found.tolist() == bits.tolist()


def test_inputs_are_finite_however_little_or_much_a_channel_tells():
    for protocol, epsilon in itertools.product(BIT_PROTOCOLS, (1e-3, 1e4)):
        answer = made(FixedPoint(8, 7), protocol, epsilon=epsilon, values=2)
        for bits in (np.zeros((1, answer.channel.bits), np.uint8), np.ones((1, answer.channel.bits), np.uint8)):
            assert bool(Messages(rows_of(bits), answer)[:].isfinite().all()), (protocol, epsilon)


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=9), st.integers(0, 65_535))
def test_public_records_are_bits_and_label(scores, label):
    """The values as ``FixedPoint`` writes them, then two bytes of the label, the least first."""
    answer = made(FixedPoint(2, 3), values=len(scores), classes=1 << 16, label_epsilon=None)
    (row,) = answer.without_coins(np.array([scores]), np.array([label]))
    assert len(row) == answer.record_bytes
    assert row.tolist() == [*answer.form.encode(np.array([scores]))[0], label % 256, label // 256]
    assert answer.labels(row[None]).tolist() == [label]


@pytest.mark.parametrize("protocol", BIT_PROTOCOLS)
def test_every_bit_is_randomised_as_the_channel_says(protocol):
    """All of a message, by counts: six deviations at most, of a true sign and of the lowest bit, and of the label."""
    answer = made(FixedPoint(0, 1), protocol, values=2, epsilon=3.0, label_epsilon=1.0)
    count = 20_000
    rows = answer.randomise(np.tile([[-0.7, 0.1]], (count, 1)), np.full(count, 2), FastSource(5))
    bits = np.unpackbits(rows[:, :-2], axis=1)
    assert not bits[:, 4:].any(), "bits that only fill up a byte tell nothing"
    for place, true in enumerate((1, 1, 0, 0)):
        chance = answer.channel.probabilities()[0 if true else 1][place]
        assert abs(bits[:, place].mean() - chance) < 6 * math.sqrt(chance * (1 - chance) / count)
    arrived = np.bincount(answer.labels(rows), minlength=4) / count
    truth = math.e / (math.e + 3)
    for label, chance in enumerate([(1 - truth) / 3, (1 - truth) / 3, truth, (1 - truth) / 3]):
        assert abs(arrived[label] - chance) < 6 * math.sqrt(chance * (1 - chance) / count)


def test_coins_are_each_records_own():
    answer = made(values=40, epsilon=10.0)
    scores, labels = np.ones((20, 40)), np.zeros(20, dtype=np.int64)
    rows = [answer.randomise(scores, labels, SecureSource()) for _ in range(2)]
    assert len({row.tobytes() for row in np.concatenate(rows)}) == 40
    one, same = (answer.randomise(scores, labels, FastSource(3)) for _ in range(2))
    assert np.array_equal(one, same), "coins come from the source alone"
    assert answer.randomise(scores[:0], labels[:0], SecureSource()).shape == (0, answer.record_bytes)


def test_certified_is_that_of_bits_and_label():
    """Coins are independent, so both add up; a label that is declared public is sent as it is, and adds nothing."""
    answer = made(epsilon=1.3, label_epsilon=0.7, classes=3)
    assert answer.certified == pytest.approx(answer.channel.certified() + answer.response.certified, rel=1e-12)
    assert (answer.certified, answer.nominal) == (pytest.approx(2.0), pytest.approx(2.0))
    answer = made(label_epsilon=None, epsilon=0.1)
    labels = np.arange(400) % 4
    rows = answer.randomise(np.zeros((400, 3)), labels, SecureSource())
    assert np.array_equal(answer.labels(rows), labels)
    assert (answer.nominal, answer.certified) == (0.1, pytest.approx(0.1))
    message = refused(made, classes=65_537, label_epsilon=None)
    assert message == "Expected 3 values >= 1 and 65537 classes from 2 to 65536", "a label is two bytes"


formats = st.tuples(st.integers(0, 8), st.integers(0, 7)).map(lambda pair: FixedPoint(*pair))


def by_hand(value: float, form: FixedPoint) -> str:
    """The bits of one number, written with Python's whole numbers."""
    size = min(int(abs(float(value)) * 2**form.fraction) if abs(value) < 1e6 else 10**9, 2 ** (form.length - 1) - 1)
    return ("1" if np.signbit(value) else "0") + (f"{size:0{form.length - 1}b}" if form.length > 1 else "")


def test_a_number_by_hand():
    packed = FixedPoint(4, 5).encode(np.array([[-5.40625, 0.03125, 99.0]]))
    assert "".join(f"{byte:08b}" for byte in packed[0])[:30] == "101010110100000000010111111111"


WIDE = st.floats(-40, 40, width=32) | st.floats(-1000, 1000, width=32) | st.sampled_from([np.inf, -np.inf])


@given(arrays("f4", (70, 3), elements=WIDE), formats)
def test_every_value_is_written_after_the_other(values, form):
    packed = form.encode(values)
    for row, found in zip(values, packed, strict=True):
        text = "".join(by_hand(value, form) for value in row)
        assert "".join(f"{byte:08b}" for byte in found) == text.ljust(len(found) * 8, "0")


def test_what_is_no_format_and_no_value():
    for whole, fraction in ((-1, 3), (9, 7)):
        message = refused(FixedPoint, whole, fraction)
        assert message.startswith(f"`format`: {whole},{fraction} is not two numbers of bits")
    assert refused(FixedPoint(4, 5).encode, np.array([[np.nan]])) == (
        "values: some are not numbers; what cannot be compared cannot be encoded"
    )


ANSWER = BitStrings(5, 3, FixedPoint(1, 1), "rappor", 40.0, None, 3.0)


def sent(count: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    scores, labels = draw.standard_normal((count, 5)), draw.integers(0, 3, count)
    return ANSWER.randomise(scores, labels, FastSource(seed))


@given(st.lists(st.integers(0, 34), max_size=20), st.slices(35))
def test_rows_in_any_order(index, part):
    rows = sent(35)
    found = Messages(rows, ANSWER)
    got = found[torch.tensor(index, dtype=torch.int64)]
    assert got.shape == (len(index), ANSWER.channel.bits)
    for row, place in zip(got, index, strict=True):
        assert torch.equal(row, Messages(rows[place][None], ANSWER)[:][0])
    assert torch.equal(found[part], Messages(rows[part], ANSWER)[:])
    assert found.labels.dtype == torch.int64
    assert found.labels.tolist() == [int(row[-2]) + 256 * int(row[-1]) for row in rows]
    assert len(found) == 35
