"""Binary channels, and records as bits and a label: what is sent, and its worth (docs/privacy-model.md section 6)."""

import functools
import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from dpltm.local import BIT_PROTOCOLS, PROTOCOLS, WITH_ALPHA
from dpltm.local.channels import WHOLE, Bit, Channel, Response, channel, log_ratio
from dpltm.local.scheme import BitStrings, FixedPoint, Messages
from dpltm.randomness.noise import FastSource, SecureSource
from local_channels import Words
from refusals import refused


def made(protocol, bits, epsilon, alpha=7.0):
    return channel(protocol, bits, epsilon, alpha if protocol in WITH_ALPHA else None)


def brute_force(found: Channel, one_hot: bool) -> float:
    """Largest log-ratio over all pairs of inputs and all outputs, all of them written out."""
    p, q = found.probabilities()
    strings = list(itertools.product((0, 1), repeat=found.bits))
    sent = [string for string in strings if sum(string) == 1] if one_hot else strings
    chances = [[np.array([1 - c, c]) for c in np.where(x, p, q)] for x in sent]
    logs = np.log([functools.reduce(np.kron, bits) for bits in chances])  # a row an input, a column an output
    return float((logs.max(0) - logs.min(0)).max())


def test_figures_of_the_specification():
    """9,216 values of ten bits, alpha 7: claims 0.5, certifies 262,983.6 (docs/privacy-model.md section 6.2)."""
    assert channel("uer", 92160, 0.5, 7.0).certified() == pytest.approx(262983.6, abs=0.05)
    assert channel("moue-hs", 92160, 0.5, 7.0).certified() == pytest.approx(0.4375, rel=1e-6)
    assert channel("rappor", 92160, 0.5).certified() == pytest.approx(0.5, rel=1e-12)
    even, odd = channel("uer", 92160, 0.5, 7.0).pattern
    assert even.epsilon == pytest.approx(1.946, abs=5e-4)
    assert odd.epsilon == pytest.approx(3.761, abs=5e-4)
    assert channel("rappor", 92160, 0.5).pattern[0].one / WHOLE - 0.5 == pytest.approx(1.4e-6, rel=0.05)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_chances_are_those_of_the_table(epsilon):
    each, whole = math.exp(epsilon / 10), math.exp(epsilon)
    half = math.exp(epsilon / 2)
    table = {
        "ue": (half / (1 + half), 1 / (1 + half)),
        "oue": (0.5, 1 / (1 + whole)),
        "rappor": (each / (1 + each), 1 / (1 + each)),
        "moue": (1 / 8, 1 / (1 + 7 * whole)),
        "moue-hs": (1 / 8, 1 / (1 + 7 * each)),
        "uer": ([7 / 8, 1 / 344], 1 / (1 + 7 * each)),
    }
    for protocol, (p, q) in table.items():
        ones, zeros = made(protocol, 10, epsilon).probabilities()
        np.testing.assert_allclose(ones, np.resize(p, 10), rtol=1e-14)
        np.testing.assert_allclose(zeros, np.resize(q, 10), rtol=1e-14)


CHANCES = st.integers(WHOLE // 10**9, WHOLE - WHOLE // 10**6)
"""Those whose logarithms float64 compares in a product of ten."""


@given(st.lists(st.tuples(CHANCES, CHANCES), min_size=1, max_size=5), st.booleans())
def test_certified_is_exact_for_any_pattern(chances, one_hot):
    found = Channel(5, tuple(Bit(*pair) for pair in chances))
    assert found.certified(one_hot) == pytest.approx(brute_force(found, one_hot), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("protocol", BIT_PROTOCOLS)
@given(bits=st.integers(3, 300), epsilon=st.floats(0.01, 20))
def test_protocols_keep_their_claims_and_coins_are_rounded_to_where_they_tell_less(protocol, bits, epsilon):
    """So that a budget of what is claimed has room for it, up to the last bit of a float for each bit that is sent.

    One-hot protocols hold on one-hot strings alone; reversed positions of ``uer`` hold nothing, whatever epsilon is.
    """
    channel_, one_hot = made(protocol, bits, epsilon), PROTOCOLS[protocol].one_hot
    if protocol == "uer":
        assert channel_.certified() >= math.log(7) - 1e-9
        return
    claim = channel_.certified(one_hot=one_hot)
    assert claim <= epsilon * (1 + 2.0**-52 * bits) + (bits * 2.0**-60 if protocol == "moue-hs" else 0)
    if one_hot:
        assert claim == pytest.approx(epsilon, rel=1e-9)
        assert channel_.certified() > epsilon


@given(st.integers(1, WHOLE - 1), st.integers(1, WHOLE - 1))
def test_a_ratio_is_rounded_up(a, b):
    with localcontext() as context:
        context.prec = 60
        exact = (Decimal(a) / Decimal(b)).ln()
        assert Decimal(log_ratio(a, b)) >= exact
        assert Decimal(log_ratio(a, b)) - exact <= abs(exact) * Decimal(2) ** -52


@pytest.mark.parametrize("bits", [7, 77])
@pytest.mark.parametrize("protocol", BIT_PROTOCOLS)
def test_bits_flip_as_often_as_the_channel_says(protocol, bits):
    """A chi-squared test of the ones that arrive, at each place for each input; bits of a place do not sway others."""
    found, rows = made(protocol, bits, 3.0, 2.0), 20_000
    given_ = np.random.default_rng(0).integers(0, 2, (rows, bits), dtype=np.uint8)
    arrived = np.unpackbits(found.send(np.packbits(given_, 1), FastSource(1)), 1, count=bits)
    p, q = found.probabilities()
    observed, expected = [], []
    for value, chance in ((1, p), (0, q)):
        count = (given_ == value).sum(0)
        ones = (arrived * (given_ == value)).sum(0)
        observed += [ones, count - ones]
        expected += [count * chance, count * (1 - chance)]
    square = sum(((o - e) ** 2 / e).sum() for o, e in zip(observed, expected, strict=True))
    assert 1e-4 < stats.chi2.sf(square, 2 * bits) < 1 - 1e-4
    off = arrived - np.where(given_, p, q)
    assert np.abs((off[:, :-1] * off[:, 1:]).mean(0)).max() < 6 / math.sqrt(rows) / 4


@pytest.mark.parametrize("one", [1, WHOLE // 3, WHOLE - 1])
def test_a_bit_is_one_where_its_number_is_below_the_threshold(one):
    """Numbers that agree with the threshold but for their last bits: all 64 are looked at where that is what it takes."""
    numbers = [max(0, min(WHOLE - 1, one + step)) for step in range(-32, 32)]
    planes = [
        np.packbits([number >> height & 1 for number in numbers], bitorder="little").view(np.uint64)
        for height in range(63, -1, -1)
    ]
    found = Channel(64, (Bit(one, 1),)).send(np.full((1, 8), 255, dtype=np.uint8), Words(*planes))
    assert np.unpackbits(found[0], bitorder="little").tolist() == [int(number < one) for number in numbers]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rr", 10, 1.0), "`protocol`: unknown protocol 'rr'; known: ue, oue, rappor, moue, moue-hs, uer"),
        (("ue", 0, 1.0), "`bits`: 0 is not a positive whole number up to 1,000,000,000"),
        (("ue", 10, 0.0), "`epsilon`: 0 is not a positive number up to 10000"),
        (("ue", 10, 1.0, 7.0), "`alpha`: ue has none; leave it out"),
        (("uer", 10, 1.0, 0.0), "`alpha`: 0 is not a positive number up to 1e+06"),
        (("uer", 10, 1.0), "`alpha`: uer needs one, such as 7"),
    ],
)
def test_what_no_channel_is_made_of(arguments, said):
    assert refused(channel, *arguments) == said


@given(st.integers(2, 1000), st.floats(0.001, 20), st.data())
def test_what_is_certified_is_what_was_asked_for(categories, epsilon, data):
    near = data.draw(st.integers(1, categories - 1))
    found = Response(categories, epsilon, near)
    inside, outside = found.chances
    assert epsilon * (1 - 1e-9) <= found.certified <= epsilon
    assert math.log(inside / outside) == pytest.approx(found.certified, rel=1e-6, abs=1e-9)
    assert near * inside + (categories - near) * outside == pytest.approx(1)


@pytest.mark.parametrize(
    ("categories", "epsilon", "near"), [(3, 1e-20, 1), (7, 1e-19, 1), (1000, 1e-17, 1), (768, 1e-20, 5)]
)
def test_of_an_epsilon_below_what_coins_resolve_the_truth_is_certified(categories, epsilon, near):
    """The chance of the truth is rounded below an even share: then another answer is the likelier one."""
    found = Response(categories, epsilon, near)
    ratio = Fraction(found.truth * (categories - near), (WHOLE - found.truth) * near)
    assert ratio < 1
    assert Fraction(found.certified) >= 1 / ratio - 1 - (1 / ratio - 1) ** 2 / 2 > 0, "ln(1 + x) is above x - x^2 / 2"


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize(
    ("categories", "epsilon", "near"), [(2, 0.5, 1), (10, 2.0, 1), (300, 5.0, 1), (256, 1.0, 40), (768, 4.0, 20)]
)
def test_answers_are_as_frequent_as_they_should_be(categories, epsilon, near, scattered):
    """Near ones are all alike, and so are all others, wherever the near ones stand. One in 5,000 such tests would fail."""
    found, count = Response(categories, epsilon, near), 60_000
    chosen = np.arange(categories - near, categories)
    chosen = np.random.default_rng(1).permutation(categories)[:near] if scattered else chosen
    seen = np.bincount(found.send(np.tile(chosen, (count, 1)), FastSource(0)), minlength=categories)
    inside, outside = found.chances
    expected = np.full(categories, count * outside)
    expected[chosen] = count * inside
    assert 1e-4 < stats.chisquare(seen, expected).pvalue < 1 - 1e-4


def test_the_incomplete_run_of_words_is_drawn_anew():
    """2^64 - 1 is three times 2^64 // 3: of three others, it alone is left over."""
    top = 2**64 - 1
    words = (np.array(words, dtype=np.uint64) for words in ([top, top], [7, 7], [top, 4], [2]))
    assert Response(4, 1.0).send(np.zeros((2, 1), dtype=int), Words(*words)).tolist() == [3, 2]


def test_what_is_no_response_and_no_category():
    assert refused(Response, 1, 1.0) == "`categories`: 1 is not a whole number from 2 to 65,536"
    assert refused(Response, 3, 1.0, 3) == "`near`: 3 is not a positive whole number up to 2"
    assert refused(Response, 3, math.nan) == "`epsilon`: nan is not a positive number up to 10000"
    send = Response(3, 1.0).send
    assert refused(send, np.array([[-1], [0]]), FastSource(0)) == "Expected categories from 0 to 2, not -1 to 0"
    assert send(np.zeros((0, 1), dtype=int), FastSource(0)).shape == (0,)


# --- records as bits and a label, and what a network is told of them ---

ALPHA = 7.0
FORMS = (FixedPoint(0, 0), FixedPoint(0, 3), FixedPoint(1, 0), FixedPoint(2, 2), FixedPoint(4, 5))


def strings(form=FORMS[3], protocol="rappor", values=3, epsilon=8.0, label_epsilon=2.0, classes=4, alpha=ALPHA):
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
    answer = strings(form, protocol)
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
    answer = strings(protocol="uer")
    bits = np.random.default_rng(0).integers(0, 2, (6, answer.channel.bits), dtype=np.uint8)
    found = Messages(rows_of(bits), answer, randomised, inputs="bits")[:]
    assert found.dtype == torch.float32
    assert found.tolist() == bits.tolist()


def test_inputs_are_finite_however_little_or_much_a_channel_tells():
    for protocol, epsilon in itertools.product(BIT_PROTOCOLS, (1e-3, 1e4)):
        answer = strings(FixedPoint(8, 7), protocol, epsilon=epsilon, values=2)
        for bits in (np.zeros((1, answer.channel.bits), np.uint8), np.ones((1, answer.channel.bits), np.uint8)):
            assert bool(Messages(rows_of(bits), answer)[:].isfinite().all()), (protocol, epsilon)


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=9), st.integers(0, 65_535))
def test_public_records_are_bits_and_label(scores, label):
    """The values as ``FixedPoint`` writes them, then two bytes of the label, the least first."""
    answer = strings(FixedPoint(2, 3), values=len(scores), classes=1 << 16, label_epsilon=None)
    (row,) = answer.without_coins(np.array([scores]), np.array([label]))
    assert len(row) == answer.record_bytes
    assert row.tolist() == [*answer.form.encode(np.array([scores]))[0], label % 256, label // 256]
    assert answer.labels(row[None]).tolist() == [label]


@pytest.mark.parametrize("protocol", BIT_PROTOCOLS)
def test_every_bit_is_randomised_as_the_channel_says(protocol):
    """All of a message, by counts: six deviations at most, of a true sign and of the lowest bit, and of the label."""
    answer = strings(FixedPoint(0, 1), protocol, values=2, epsilon=3.0, label_epsilon=1.0)
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
    answer = strings(values=40, epsilon=10.0)
    scores, labels = np.ones((20, 40)), np.zeros(20, dtype=np.int64)
    rows = [answer.randomise(scores, labels, SecureSource()) for _ in range(2)]
    assert len({row.tobytes() for row in np.concatenate(rows)}) == 40
    one, same = (answer.randomise(scores, labels, FastSource(3)) for _ in range(2))
    assert np.array_equal(one, same), "coins come from the source alone"
    assert answer.randomise(scores[:0], labels[:0], SecureSource()).shape == (0, answer.record_bytes)


def test_certified_is_that_of_bits_and_label():
    """Coins are independent, so both add up; a label that is declared public is sent as it is, and adds nothing."""
    answer = strings(epsilon=1.3, label_epsilon=0.7, classes=3)
    assert answer.certified == pytest.approx(answer.channel.certified() + answer.response.certified, rel=1e-12)
    assert (answer.certified, answer.nominal) == (pytest.approx(2.0), pytest.approx(2.0))
    answer = strings(label_epsilon=None, epsilon=0.1)
    labels = np.arange(400) % 4
    rows = answer.randomise(np.zeros((400, 3)), labels, SecureSource())
    assert np.array_equal(answer.labels(rows), labels)
    assert (answer.nominal, answer.certified) == (0.1, pytest.approx(0.1))
    message = refused(strings, classes=65_537, label_epsilon=None)
    assert message == "`classes`: 65537 is not a whole number from 2 to 65,536", "a label is two bytes"


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


@pytest.mark.parametrize(("whole", "fraction"), [(-1, 3), (9, 7)])
def test_what_is_no_format(whole, fraction):
    message = refused(FixedPoint, whole, fraction)
    assert message.startswith(f"`format`: {whole},{fraction} is not two numbers of bits")


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
