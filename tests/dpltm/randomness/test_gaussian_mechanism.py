"""The Gaussian mechanism on a grid: what is released is what arithmetic without rounding would release, and nothing else."""

import ast
import hashlib
import math
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from mpmath import mp
from scipy import stats
from torch import Tensor, nn

from dpltm.networks.full_precision import threads
from dpltm.randomness import gaussian_mechanism as module
from dpltm.randomness.gaussian_mechanism import SEED, gaussian_mechanism, grid_step
from dpltm.randomness.noise import FastSource, KeyedSource, gaussian
from dpltm.randomness.second_moments import SENSITIVITY, edge, release_second_moments, whole_rows
from dpltm.training.optimizers import CURVATURE, OPTIMIZERS, NewtonSteps
from prepared_bytes import Prepared
from programs import ROOT

KEY = bytes(range(32))
VALUES = st.floats(-1e6, 1e6)
STDS = st.floats(1e-6, 1e6)


def block(first: list[int], second: list[int], seed: bytes = bytes(SEED)) -> Prepared:
    """The bytes of one block whose uniform numbers are (j + 1/2) / 2^52, so far as 52 bits tell."""
    return Prepared(seed + np.array([*first, *second], dtype=np.uint64).__lshift__(12).tobytes())


def in_reals(values: list[float], std: float, first: list[int], second: list[int], seed: bytes) -> list[Fraction]:
    """What real arithmetic releases, in steps, with every bit of the uniform numbers: 52 of the words, 256 of the seed."""
    found, half = [], len(first)
    with mp.workprec(1500):
        for place, value in enumerate(values):
            pair = place % half
            more = hashlib.shake_256(seed + pair.to_bytes(4, "little")).digest(64)
            u, v = (
                mp.mpf((word << 256) + int.from_bytes(part, "little")) / 2**308 + mp.mpf(2) ** -309
                for word, part in ((first[pair], more[:32]), (second[pair], more[32:]))
            )
            x = mp.sqrt(-2 * mp.log(u)) * (mp.cos(2 * mp.pi * v) if place < half else mp.sin(2 * mp.pi * v))
            whole = mp.floor((mp.mpf(value) + mp.mpf(std) * x) / mp.mpf(grid_step(std)) + mp.mpf(1) / 2)
            found.append(Fraction(int(whole)))
    return found


def in_steps(noisy: np.ndarray, std: float) -> list[Fraction]:
    return [Fraction(value) / Fraction(grid_step(std)) for value in noisy.tolist()]


@given(STDS)
def test_the_step_is_a_power_of_two_and_small(std: float) -> None:
    assert math.frexp(grid_step(std))[0] == 0.5
    assert 2**10 <= std / grid_step(std) < 2**11


@given(st.lists(VALUES, min_size=1, max_size=9), STDS, st.integers(0, 99))
def test_only_points_of_the_grid_are_released(values: list[float], std: float, seed: int) -> None:
    for count in in_steps(gaussian_mechanism(np.array(values), std, FastSource(seed)), std):
        assert count.denominator == 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.integers(-(2**40), 2**40), STDS, st.integers(0, 99))
def test_noise_does_not_know_where_the_value_lies(parts: list[float], by: int, std: float, seed: int) -> None:
    """A value that lies whole steps further on gives the same answer so many steps on: no answer is out of reach.

    ``parts`` are on a grid of 2^-12 steps, so that adding up is exact.
    """
    step = grid_step(std)
    values = np.floor(np.array(parts) * 2**12) * 2.0**-12 * step
    here = gaussian_mechanism(values, std, FastSource(seed))
    there = gaussian_mechanism(values + by * step, std, FastSource(seed))
    assert [one + by for one in in_steps(here, std)] == in_steps(there, std)


def trailing(values: np.ndarray) -> int:
    """The lowest bit that is set in any of them, as an exponent of two."""
    return min(1 - Fraction(value).denominator.bit_length() for value in values.tolist())


def test_low_bits_tell_plain_noise_and_nothing_here() -> None:
    """Mironov's attack at its simplest: near zero floating-point numbers are finer than beside 1."""
    plain = [value + gaussian(FastSource(1), 5000) for value in (0.0, 1.0)]
    assert trailing(plain[0]) < -60 < -53 <= trailing(plain[1])
    ours = [gaussian_mechanism(np.full(5000, value), 1.0, FastSource(1)) for value in (0.0, 1.0, 1 / 3)]
    assert [trailing(values) for values in ours] == [-10] * 3


# Real arithmetic.


def test_it_is_what_real_arithmetic_releases() -> None:
    rng = np.random.default_rng(1)
    for std in (1e-3, 0.7, 1.0, 3e5):
        first, second = (rng.integers(0, 2**52, 100).tolist() for _ in range(2))
        values = (rng.normal(size=199) * std * 3).tolist()
        found = gaussian_mechanism(np.array(values), std, block(first, second))
        assert in_steps(found, std) == in_reals(values, std, first, second, bytes(SEED))


@pytest.mark.parametrize("seed", [bytes(SEED), b"\xff" * SEED, KEY])
def test_uniform_numbers_near_the_ends(seed: bytes) -> None:
    """Where the bits that were not drawn decide by how many steps: beyond 8.4 standard deviations, and near none."""
    first, second = [0, 1, 2**29, 2**52 - 1, 2**52 - 2, 2**51], [5, 2**50 + 12345, 2**40, 7**18, 3**32, 0]
    values = [0.25 * number for number in range(12)]
    found = gaussian_mechanism(np.array(values), 1.5, block(first, second, seed))
    assert in_steps(found, 1.5) == in_reals(values, 1.5, first, second, seed)
    assert abs(found[0] - values[0]) > 8.4 * 1.5 > 8.4


def test_the_further_bits_decide_at_the_end() -> None:
    """With 52 bits of them all, uniform numbers of zero bits would always give the same answer."""
    found = {float(gaussian_mechanism(np.zeros(1), 1.0, block([0], [0], bytes([k]) * SEED))[0]) for k in range(20)}
    assert len(found) > 10


@pytest.mark.parametrize("away", [0, 1, -1, 3, -3])
def test_sums_near_a_half_are_decided_exactly(away: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values made so that value and noise meet within 2^-40 steps of a half, where float64 cannot tell."""
    asked, exact = [], module.exactly
    monkeypatch.setattr(module, "exactly", lambda *given: (asked.append(1), exact(*given))[1])
    rng = np.random.default_rng(2)
    first, second = (rng.integers(2**45, 2**52 - 2**45, 50).tolist() for _ in range(2))
    with mp.workprec(200):
        noise = [
            mp.sqrt(-2 * mp.log((mp.mpf(u) + 0.5) / 2**52)) * turn(2 * mp.pi * (mp.mpf(v) + 0.5) / 2**52) * 2**10
            for turn in (mp.cos, mp.sin)
            for u, v in zip(first, second, strict=True)
        ]
        values = [float(mp.floor(x) + mp.mpf(1) / 2 - x + mp.mpf(away) * 2.0**-41) * 2.0**-10 for x in noise]
    for clear in (module._CLEAR, 0.49):  # nothing is clear at first sight then
        monkeypatch.setattr(module, "_CLEAR", clear)
        found = gaussian_mechanism(np.array(values), 1.0, block(first, second, KEY))
        assert in_steps(found, 1.0) == in_reals(values, 1.0, first, second, KEY)
    assert len(asked) == 200


def test_what_320_bits_leave_in_doubt_goes_to_600(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, arithmetic = [], module._arithmetic
    monkeypatch.setattr(module, "_arithmetic", lambda bits: (asked.append(bits), arithmetic(bits))[1])
    for clear in (module._CLEAR, 0.499):
        monkeypatch.setattr(module, "_CLEAR", clear)
        module.exactly(0.3, 1500.0, np.array([0.25, 0.125]), (1, 2), False)
    assert asked == [320, 320, 600]


@pytest.mark.parametrize("value", [-1e-300, 1e-300, -(2.0**-60), 2.0**-60])
def test_tiny_values_stay_on_their_side(value: float) -> None:
    """What is left of a value beside whole steps is never rounded: not for small negative ones either."""
    first, second = [2**51], [2**50 - 1]
    with mp.workprec(1500):
        found = gaussian_mechanism(np.array([value]), 1.0, block(first, second))
    assert in_steps(found, 1.0) == in_reals([value], 1.0, first, second, bytes(SEED))


@pytest.mark.parametrize("size", [2.0**16, 2.0**17 - 1e-9, 2.0**17, 2.0**17 + 0.3, 2.0**30, 2.0**40])
def test_values_are_split_where_float64_has_no_room_for_them_beside_noise(size: float) -> None:
    """From 2^27 steps on, of either sign."""
    rng = np.random.default_rng(3)
    first, second = (rng.integers(0, 2**52, 20).tolist() for _ in range(2))
    for sign in (1.0, -1.0):
        values = [sign * (size - 1e-4 * number) for number in range(40)]
        found = gaussian_mechanism(np.array(values), 1.0, block(first, second))
        assert in_steps(found, 1.0) == in_reals(values, 1.0, first, second, bytes(SEED))


def test_the_law_is_that_of_a_rounded_gaussian() -> None:
    """p-values of a test for normality are uniform over 60 seeds; a uniform number within the step undoes the rounding."""
    found = []
    for seed in range(60):
        noisy = gaussian_mechanism(np.full(20_001, 0.3), 2.0, FastSource(seed)) - 0.3
        noisy += (np.random.default_rng(seed).random(20_001) - 0.5) * grid_step(2.0)
        found.append(stats.kstest(noisy / 2.0, "norm").pvalue)
    assert stats.kstest(found, "uniform").pvalue > 1e-3


def test_blocks_and_coordinates_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 1000)
    noisy = gaussian_mechanism(np.zeros(20_000), 1.0, KeyedSource(KEY))
    assert stats.kstest(noisy + (np.random.default_rng(0).random(20_000) - 0.5) / 2**10, "norm").pvalue > 1e-3
    for lag in (1, 500, 1000):
        assert abs(np.corrcoef(noisy[lag:], noisy[:-lag])[0, 1]) < 0.03


def test_how_many_bytes_are_drawn_depends_on_the_number_of_values_alone() -> None:
    asked: list[list[int]] = []

    class Counting(FastSource):
        def random_bytes(self, count: int) -> bytes:
            asked[-1].append(count)
            return super().random_bytes(count)

    for values in (np.zeros(70_001), np.full(70_001, 2.0**-11), np.linspace(-1e9, 1e9, 70_001)):
        asked.append([])
        gaussian_mechanism(values, 1.0, Counting(1))
    assert asked[0] == asked[1] == asked[2]
    assert sum(asked[0]) >= 8 * 70_001


def test_without_noise_nothing_changes() -> None:
    values = np.array([0.1, -3.0])
    found = gaussian_mechanism(values, 0.0, Prepared(b""))
    assert np.array_equal(found, values)
    assert found is not values


def test_zeros_have_no_sign() -> None:
    """It would tell on which side the sum lay."""
    noisy = gaussian_mechanism(np.repeat([-1e-3, 0.0, 1e-3], 5000), 1e-2, FastSource(1))
    assert (noisy == 0).sum() > 1
    assert not np.signbit(noisy[noisy == 0]).any()


def test_over_a_divisor_it_is_the_quotient_in_float32() -> None:
    values = np.random.default_rng(4).normal(size=70_001) * 40
    for std in (0.0, 0.7, 3e9):
        found = gaussian_mechanism(values, std, KeyedSource(KEY), 37.3)
        assert found.dtype == np.float32
        assert np.array_equal(found, (gaussian_mechanism(values, std, KeyedSource(KEY)) / 37.3).astype(np.float32))


class Counting(KeyedSource):
    """How often bytes were asked for; some are late, and one call fails, counted from 1, if it is given."""

    def __init__(self, fails: int = 0) -> None:
        super().__init__(KEY)
        self.fails, self.asked = fails, 0

    def random_bytes(self, count: int) -> memoryview:
        self.asked += 1
        if self.asked == self.fails:
            raise OSError("no more bits")
        time.sleep(1e-3 * (self.asked % 9 == 0))  # whoever comes in between would get these bytes
        return super().random_bytes(count)


def test_on_any_number_of_threads_it_is_the_same_and_leaves_the_same_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 500)
    values, source = np.random.default_rng(5).normal(size=60_001), KeyedSource(KEY)
    expected = np.concatenate(
        [gaussian_mechanism(values[at : at + 500], 1.3, source) for at in range(0, len(values), 500)]
    )
    begun, submit = list[object](), ThreadPoolExecutor.submit
    monkeypatch.setattr(ThreadPoolExecutor, "submit", lambda pool, work: (begun.append(work), submit(pool, work))[1])
    for number in (1, 2, 4):
        drawn = Counting()
        with threads(number):
            found = gaussian_mechanism(values, 1.3, drawn)
            assert torch.get_num_threads() == number
        assert np.array_equal(found, expected)
        assert drawn.state == source.state
        assert len(begun) == number - 1
        begun.clear()


def test_a_source_that_fails_ends_it_on_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 500)
    failing = Counting(fails=5)
    with threads(4):
        with pytest.raises(OSError, match="no more bits"):
            gaussian_mechanism(np.zeros(60_001), 1.0, failing)
        assert torch.get_num_threads() == 4
    assert failing.asked == 5


MODULES = ("dpltm.randomness.noise", "dpltm.randomness.gaussian_mechanism", "dpltm.randomness.gaussian_on_device")


def test_every_other_gaussian_is_public() -> None:
    """Who imports what noise is made of: the mechanism, and features and codewords that come from a published number."""
    found: dict[str, set[str]] = {}
    for path in [each for folder in ("dpltm", "tickets", "cli") for each in (ROOT / folder).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in MODULES:
                for name in node.names:
                    found.setdefault(name.name, set()).add(path.stem)
    assert found["gaussian"] == {"transforms", "codebook"}
    assert found["box_muller"] == {"gaussian_mechanism"}
    assert found["gaussian_mechanism"] >= {"descent", "normalisation", "second_moments"}
    assert found["gaussian_mechanism_on_device"] == {"descent"}


# --- second moments of norm-bounded rows, and the steps that divide by them ---

FEATURES = 3
ANY = npst.arrays(np.float32, (4, FEATURES), elements=st.floats(width=32, allow_nan=True, allow_infinity=True))


def moments(x: Tensor, std: float = 0.0, seed: int = 0) -> Tensor:
    return release_second_moments(iter([x]), x.shape[1], std, FastSource(seed))


def distance(one: Tensor, other: Tensor) -> Fraction:
    """Squared, of svec, without any rounding; both triangles together stand for the sqrt 2."""
    pairs = zip(one.flatten().tolist(), other.flatten().tolist(), strict=True)
    return sum(((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs), Fraction(0))


@given(ANY)
def test_a_record_more_moves_the_moments_by_at_most_the_sensitivity(rows: np.ndarray):
    """Whatever it and the others are; and a record replaced by at most twice that."""
    x = torch.from_numpy(rows)
    assert distance(moments(x), moments(x[:-1])) <= Fraction(SENSITIVITY) ** 2
    assert distance(moments(x[1:]), moments(x[:-1])) <= 4 * Fraction(SENSITIVITY) ** 2


def test_the_bound_is_reached_by_records_of_norm_1_and_above():
    others = torch.randn(50, FEATURES, generator=torch.Generator().manual_seed(1))
    for row in ([1.0, 0.0, 0.0], [0.6, 0.0, -0.8], [3e38, 3e38, -3e38], [0.0, 1e30, 1e-30]):
        moved = distance(moments(torch.cat([others, torch.tensor([row])])), moments(others))
        assert Fraction(0.999) < moved <= 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_adds_nothing(value: float):
    others = torch.randn(5, FEATURES, generator=torch.Generator().manual_seed(2))
    odd = torch.tensor([[0.5, value, 0.0]])
    assert torch.equal(moments(torch.cat([others, odd])), moments(others))


def test_short_rows_are_kept_as_they_are_and_long_ones_in_direction():
    x = torch.tensor([[0.25, -0.5, 0.125], [3.0, 0.0, 4.0], [0.0, 0.0, 0.0]])
    plain = torch.tensor([[0.25, -0.5, 0.125], [0.6, 0.0, 0.8], [0.0, 0.0, 0.0]]).double()
    assert ((whole_rows(x) / 2**16 - plain).abs() <= 2 * 2.0**-16).all()


def test_sums_are_those_of_the_naive_loop_in_any_order():
    x = torch.randn(5000, 4, generator=torch.Generator().manual_seed(3)) * 0.2
    naive = sum((torch.outer(row, row) for row in x.double()), torch.zeros(4, 4, dtype=torch.float64))
    assert (moments(x) - naive).abs().max() < 5000 * 2.0**-15
    assert torch.equal(moments(x), release_second_moments(iter([x[3000:], x[:3000]]), 4, 0.0, FastSource(0)))


def test_the_noise_is_that_of_svec_and_symmetric():
    noise, std = moments(torch.zeros(1, 300), 5.0), 5.0
    assert torch.equal(noise, noise.T)
    first, other = torch.triu_indices(300, 300, 1)
    # 44,850 and 300 draws: five standard errors of a deviation are 2 % and 20 % of it
    assert noise[first, other].std() == pytest.approx(std / math.sqrt(2), rel=0.02)
    assert noise.diagonal().std() == pytest.approx(std, rel=0.2)
    assert torch.linalg.eigvalsh(noise).max() == pytest.approx(edge(300, std), rel=0.1)


def layer(gradient: Tensor) -> nn.Linear:
    """Weights of zero, whose gradient is that, with the bias last."""
    made = nn.Linear(gradient.shape[1] - 1, len(gradient))
    for parameter, part in zip(made.parameters(), (gradient[:, :-1], gradient[:, -1]), strict=True):
        nn.init.zeros_(parameter)
        parameter.grad = part.clone()
    return made


def test_a_step_solves_the_damped_least_squares_problem():
    """(I + lr c M) step = -lr gradient, for the exact moments, which have no noise to be shrunk for."""
    generator = torch.Generator().manual_seed(4)
    gradient, second = torch.randn(2, 4, generator=generator), moments(torch.rand(90, 4, generator=generator))
    made = layer(gradient)
    NewtonSteps(list(made.parameters()), second, 0.0, 0.5).step(7.0, 1)
    found = torch.cat([made.weight, made.bias[:, None]], dim=1).double()
    curved = torch.eye(4, dtype=torch.float64) + 7.0 * CURVATURE * 0.5 * second
    assert torch.allclose(found @ curved, -7.0 * gradient.double(), atol=1e-5)


def test_classes_go_by_the_weights_that_each_has():
    """A class with two weights and its bias takes the step of a layer of those alone; the second input has none anywhere."""
    generator = torch.Generator().manual_seed(4)
    gradient, second = torch.randn(2, 5, generator=generator), moments(torch.rand(90, 4, generator=generator))
    live = torch.tensor([[True, False, True, False], [False, False, True, True]])
    made = layer(gradient * torch.cat([live, torch.ones(2, 1)], 1))
    NewtonSteps(list(made.parameters()), second, 1.0, 0.5, live=live).step(7.0, 1)
    assert not made.weight[~live].any()
    for number, places in enumerate(([0, 1, 3], [1, 2, 3])):  # of inputs 0, 2, 3 and the bias
        alone = layer(gradient[number : number + 1, [*live[number].nonzero()[:, 0].tolist(), 4]])
        NewtonSteps(list(alone.parameters()), second[places][:, places], 1.0, 0.5).step(7.0, 1)
        assert torch.allclose(made.weight[number, live[number]], alone.weight[0], atol=1e-6)
        assert torch.allclose(made.bias[number], alone.bias, atol=1e-6)


@pytest.mark.parametrize("second", [None, moments(torch.zeros(1, 4), 3.0)])
def test_without_moments_above_their_noise_a_step_is_one_of_sgd(second: Tensor | None):
    """The second has eigenvalues of noise alone; one that rises a little above the edge is told by its size."""
    gradient = torch.randn(2, 4, generator=torch.Generator().manual_seed(5))
    newton, sgd = layer(gradient), layer(gradient)
    NewtonSteps(list(newton.parameters()), second, 3.0).step(0.5, 1)
    OPTIMIZERS["sgd"](list(sgd.parameters())).step(0.5, 1)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(newton.parameters(), sgd.parameters(), strict=True))
