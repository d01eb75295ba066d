"""Binary channels: what they do to bits, and what that is worth (docs/privacy-model.md section 6)."""

import functools
import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpltm.local import BIT_PROTOCOLS, PROTOCOLS, WITH_ALPHA
from dpltm.local.channels import WHOLE, Bit, Channel, Response, channel, log_ratio
from dpltm.randomness.noise import FastSource
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
    assert channel("rappor", 92160, 0.5).pattern[0].chances[0] - 0.5 == pytest.approx(1.4e-6, rel=0.05)


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
        (("ue", 0, 1.0), "`bits`: 0 is not a whole number from 1 to 1,000,000,000"),
        (("ue", 10, 0.0), "`epsilon`: 0 is not a positive number up to 10000"),
        (("ue", 10, 1.0, 7.0), "`alpha`: ue has none; leave it out"),
        (("uer", 10, 1.0), "`alpha` is missing: uer needs one, such as 7"),
    ],
)
def test_what_no_channel_is_made_of(arguments, said):
    assert refused(channel, *arguments) == said


def test_what_no_bits_are():
    send = channel("ue", 3, 1.0).send
    assert refused(send, np.full((2, 1), 255, dtype=np.uint8), FastSource(0)) == (
        "Expected 3 bits a record, and there are more"
    )
    assert refused(Bit, 0, 1) == "Expected chances strictly between 0 and 2^64, not 0 and 1"


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
    assert refused(Response, 1, 1.0) == "Expected 1 categories from 2 to 65536"
    assert refused(Response, 3, 1.0, 3) == "Expected 3 near categories from 1 to 2"
    assert refused(Response, 3, math.nan) == "`epsilon`: nan is not a positive number up to 10000"
    send = Response(3, 1.0).send
    assert refused(send, np.array([[-1], [0]]), FastSource(0)) == "Expected categories from 0 to 2, not -1 to 0"
    assert send(np.zeros((0, 1), dtype=int), FastSource(0)).shape == (0,)
