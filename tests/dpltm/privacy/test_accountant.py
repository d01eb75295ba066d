"""The certified accountants, against published figures, closed forms, integration and Opacus; and a registered one."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent
from opacus.accountants.prv import PRVAccountant
from scipy.optimize import brentq

from dpltm.errors import InputError
from dpltm.privacy import renyi
from dpltm.privacy.account import NOTHING
from dpltm.privacy.accountant import approximate, central_limit_mu, compose, epsilon
from dpltm.privacy.accountants import ACCOUNTANTS, Accountant, certified_by
from dpltm.privacy.calibration import TOLERANCE, Odometer, calibrate_noise
from dpltm.privacy.mechanisms import (
    DiscreteGaussianRelease,
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    Mechanism,
    NoisySgd,
    RandomizedResponse,
    Selection,
    Unprotected,
    Zcdp,
)
from dpltm.privacy.privacy_loss import (
    BoundedRangeLoss,
    GaussianLoss,
    GuaranteeLoss,
    LaplaceLoss,
    RandomizedResponseLoss,
    SampledGaussianLoss,
)
from every_mechanism import ALLOCATED, BANDED, SEARCH, SGD, TRUNCATED
from exact import gaussian_delta, gaussian_epsilon, removed_delta, step_epsilon
from refusals import refused

DELTA = 1e-5
Q = 256 / 60000


def training(steps, sigma, rate=Q, adjacency="add-remove", **other):
    """A training; what the accountant must not look at can be given by name."""
    return NoisySgd(rate, steps, sigma, adjacency=adjacency, **other)


def selection(eps1, **how):
    return Selection(eps1, eps1, **how)


def flip(eps1):
    return selection(eps1, draw="permute-and-flip")


def first_draw(eps1):
    return selection(eps1, adaptive=False)


def from_above(value, exact, slack):
    """The accountant may round up, by at most ``slack``; it may not be below the truth (1e-9: the oracle's own error)."""
    assert exact * (1 - 1e-9) <= value <= exact + slack


GDP_TABLE = [
    (1.3, 15, 0.2273, 0.835, 1.19, 0.8646),
    (1.1, 60, 0.5736, 2.324, 3.01, 2.382),
    (0.7, 45, 1.1339, 5.066, 7.10, 5.640),
    (0.6, 62, 1.9975, 9.982, 13.27, 10.950),
    (0.55, 68, 2.7608, 14.984, 18.72, 15.717),
    (0.5, 100, 4.7822, 31.117, 32.35, 28.05),
]
"""Noise, epochs, mu (of which the paper has two digits), and figures by the central limit, by moments, and certified."""


@pytest.mark.parametrize(
    ("sigma", "rate", "epochs", "delta", "mu", "clt", "ma", "certified"),
    [(sigma, Q, epochs, DELTA, *figures) for sigma, epochs, *figures in GDP_TABLE]
    + [
        (0.56, 512 / 25000, 9, DELTA, None, 10.43, 15.24, 12.14),
        (0.55, 256 / 29305, 18, DELTA, None, 10.20, 14.7, 11.81),
        (0.6, 1 / 80, 20, 1e-6, None, 10.61, 15.39, 12.75),
    ],
    ids=["1.3", "1.1", "0.7", "0.6", "0.55", "0.5", "imdb", "adult", "movielens"],
)
def test_golden_table(sigma, rate, epochs, delta, mu, clt, ma, certified):
    """privacy-model.md 5.5 (GDP Table 1), and the paper's IMDb, Adult and MovieLens: T = epochs / q, rounded."""
    events = [training(round(epochs / rate), sigma, rate)]
    assert mu is None or central_limit_mu(events) == pytest.approx(mu, abs=5e-5)
    assert approximate(events, delta) == pytest.approx(clt, abs=5e-4 if mu else 5e-3)
    assert epsilon(events, delta, "ma") == pytest.approx(ma, rel=5e-3)
    assert epsilon(events, delta) == pytest.approx(certified, rel=1e-3)
    assert epsilon(events, delta) < epsilon(events, delta, "rdp") < epsilon(events, delta, "ma")


def test_golden_training_then_selection():
    """docs/privacy-model.md section 5.5: 1.134 alone; then a draw of 0.5, against a naive sum of 1.634."""
    alone, after = training(3515, 1.1), [training(3515, 1.1)]
    assert epsilon([alone], DELTA) == pytest.approx(1.134, abs=5e-4)
    assert epsilon([flip(0.5), alone], DELTA) == pytest.approx(1.596, abs=5e-4)  # pure DP and no more
    assert epsilon([first_draw(0.5), alone], DELTA) == pytest.approx(1.42, abs=5e-3)
    assert epsilon([*after, selection(0.5)], DELTA) == pytest.approx(1.444, abs=1e-3)  # adaptive: between the two


def test_golden_tanh_bound():
    """privacy-model.md 4.3: 26,010 live weights, c = 1, sigma = 1.1 against a bound of 1: about 11,156 for one step."""
    sigma = 1.1 / math.sqrt(26010)
    exact = step_epsilon(sigma, 0.00427, DELTA)
    assert exact == pytest.approx(11156, abs=1)
    from_above(epsilon([training(1, sigma, 0.00427)], DELTA), exact, 2e-4 * exact)


def test_two_subsampled_steps_by_integration():
    """delta of two steps = the mean, over the first step's losses, of one step's delta at what is left of epsilon."""
    sigma, rate = 1.0, 0.2
    x = np.linspace(-10 * sigma, 1 + 10 * sigma, 200_001)
    zero, one = (np.exp(-((x - mean) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi)) for mean in (0, 1))
    mixed = (1 - rate) * zero + rate * one

    def excess(eps):
        return np.trapezoid(mixed * removed_delta(eps - np.log(mixed / zero), sigma, rate), x) - DELTA

    exact = brentq(excess, 0.1, 20.0)
    assert exact > step_epsilon(sigma, rate, DELTA) + 0.1  # the second step shows, far beyond the slack below
    from_above(epsilon([training(2, sigma, rate)], DELTA), exact, 1e-3)


def test_laplace_and_gaussian_by_integration():
    """Laplace's loss is e with chance 1/2, -e with e^-e/2, else e (1 - 2u) at density e e^(-e u)/2, 0 < u < 1."""
    eps, mu = 0.5, 0.7
    u = (np.arange(100_000) + 0.5) / 100_000

    def exact(x):
        between = (eps / 2 * np.exp(-eps * u) * gaussian_delta(x - eps * (1 - 2 * u), mu)).mean()
        return gaussian_delta(x - eps, mu) / 2 + math.exp(-eps) / 2 * gaussian_delta(x + eps, mu) + between

    found = epsilon([LaplaceRelease(2.0 / eps, 2.0), GaussianRelease(1 / mu, 3.0)], DELTA)
    from_above(found, brentq(lambda x: exact(x) - DELTA, 0.0, 30.0), 1e-3)


# What each mechanism is composed as.

CLAIMED = {"sensitivity": 3.0, "nominal_sensitivity": 0.5}


@pytest.mark.parametrize(
    ("mechanism", "loss"),
    [
        (training(1, 2.0, 0.1, **CLAIMED), SampledGaussianLoss(2.0, 0.1, False)),
        (training(1, 2.0, 0.1, "replace-one"), SampledGaussianLoss(2.0, 0.1, True)),
        (training(1, 1e7, 1e-13), SampledGaussianLoss(1e6, 1e-12, False)),  # a little more than it costs
        (training(4, 2.0, 1.0, **CLAIMED), GaussianLoss(1.0)),
        (training(1, 1e7, 1.0), GaussianLoss(1e6)),
        (GaussianRelease(2.0, 3.0), GaussianLoss(2.0)),
        (GaussianRelease(1e7), GaussianLoss(1e6)),
        (LaplaceRelease(2.0, 3.0), LaplaceLoss(1.5)),
        (LaplaceRelease(1e10), LaplaceLoss(1e-9)),
        (Selection(0.1, 0.4), BoundedRangeLoss(0.4)),
        (Selection(1e-10, 1e-10), BoundedRangeLoss(1e-9)),
        (Selection(0.1, 0.4, draw="permute-and-flip"), GuaranteeLoss(0.4)),
        (Selection(1e-10, 1e-10, draw="permute-and-flip"), GuaranteeLoss(1e-9)),
        (RandomizedResponse(0.4, 10), RandomizedResponseLoss(0.4, categories=10)),
        (RandomizedResponse(1e-10, 10), RandomizedResponseLoss(1e-9, categories=10)),
        (Guarantee(0.4, 1e-6), GuaranteeLoss(0.4, 1e-6)),
        (Guarantee(1e-10), GuaranteeLoss(1e-9)),
        (Guarantee(600.0, 1e-6), GuaranteeLoss(1e-9, 1e-6)),  # its epsilon is added as it is, its delta counts
    ],
    ids=repr,
)
def test_each_mechanism_is_its_loss(mechanism, loss):
    composition = compose([mechanism])
    assert composition.losses == {loss: 1}
    assert (composition.draw, math.isfinite(composition.plain)) == (0.0, True)


def test_equal_steps_are_counted_together_and_gaussians_are_one():
    """What is not the noise over the bound (the bound itself, the claimed one) does not count; precisions add."""
    events = [training(n, 1.2, 0.02, sensitivity=float(n)) for n in (1, 5, 30)]
    assert compose(events).losses == {SampledGaussianLoss(1.2, 0.02, False): 36}
    for adjacency in ("add-remove", "replace-one"):
        full = [GaussianRelease(3.0, adjacency=adjacency), training(4, 5.0, 1.0, adjacency)]
        ((loss, count),) = compose([*full, GaussianRelease(2.0, adjacency=adjacency)]).losses.items()
        assert (type(loss), count) == (GaussianLoss, 1)
        assert loss.noise_multiplier == pytest.approx((1 / 9 + 4 / 25 + 1 / 4) ** -0.5)


def test_two_draws_first_are_one_first_and_one_later():
    """Two cannot both have come before everything else; the larger gains more from being first."""
    total = compose([first_draw(0.2), Selection(0.1, 0.5, adaptive=False), first_draw(0.3)])
    assert total.draw == 0.5
    assert total.losses == {BoundedRangeLoss(0.2): 1, BoundedRangeLoss(0.3): 1}
    assert compose([first_draw(1e-10)]).draw == 1e-9


KINDS = [
    training(20, 1.0, 0.05),
    training(1, 3.0, 1.0),
    GaussianRelease(3.0),
    LaplaceRelease(3.0),
    selection(0.3),
    first_draw(0.3),
    flip(0.3),
    Guarantee(0.3),
    Guarantee(0.3, 1e-6),
]


@pytest.mark.parametrize("accountant", ["rdp", "ma"])
def test_guarantees_that_may_fail_leave_less_delta(accountant):
    events, other = [training(10, 1.0, 0.05)], Guarantee(1e-9, 4e-6)
    together = epsilon([*events, other, other], DELTA, accountant)
    assert together == pytest.approx(epsilon(events, DELTA - 8e-6, accountant), rel=1e-6)
    assert epsilon([*events, Guarantee(1e-9, DELTA)], DELTA, accountant) == math.inf
    assert epsilon([*events, Guarantee(1e-9, DELTA)], DELTA) == math.inf
    assert epsilon([*events, other, other], DELTA) >= epsilon(events, DELTA - 7e-6)


@pytest.mark.parametrize("accountant", ["pld", "rdp", "ma"])
def test_every_kind_is_counted(accountant):
    """Beside a training, twice is more than once is more than none."""
    base = [training(50, 1.5, 0.05)]
    none = epsilon(base, DELTA, accountant)
    for event in KINDS:
        once, twice = (epsilon(base + [event] * count, DELTA, accountant) for count in (1, 2))
        assert none + 0.01 < once < twice - 0.01, event


@pytest.mark.parametrize("accountant", ["rdp", "ma"])
def test_pure_events_never_cost_more_than_their_sum(accountant):
    """At a delta that Renyi divergences cannot use."""
    events = [LaplaceRelease(5.0), flip(0.3), selection(0.1), first_draw(0.2), Guarantee(0.4)]
    assert epsilon(events, 1e-200, accountant) == pytest.approx(1.2, abs=1e-9)
    assert epsilon(events, 1e-9) <= 1.2


@pytest.mark.parametrize("accountant", ["pld", "rdp", "ma"])
@pytest.mark.parametrize(
    "event",
    [
        selection(600.0),
        first_draw(600.0),
        flip(600.0),
        LaplaceRelease(2.0, 1200.0),
        Guarantee(600.0),
        RandomizedResponse(600.0, 5),
    ],
    ids=repr,
)
def test_what_is_too_large_is_added(event, accountant):
    """Basic composition: (600, 0)-DP adds 600, once."""
    small = [training(2, 1.0, 0.05, event.adjacency)]
    assert epsilon([event], DELTA, accountant) == pytest.approx(600, abs=1e-3)
    assert epsilon([event, *small], DELTA, accountant) == pytest.approx(600 + epsilon(small, DELTA, accountant))


def test_central_limit_adds_up():
    """Squares of mu for trainings and Gaussians; epsilons for the rest, and the chance of a guarantee off delta."""
    noisy = [training(1000, 1.0, 0.01), training(5, 6.0, 1.0), GaussianRelease(4.0)]
    mu = math.sqrt(1000 * 1e-4 * math.expm1(1.0) + 5 / 36 + 1 / 16)
    assert central_limit_mu(noisy) == pytest.approx(mu, rel=1e-12)
    assert approximate(noisy, DELTA) == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-6)
    rest = [selection(0.3), first_draw(0.2), LaplaceRelease(10.0), Guarantee(0.05), flip(0.4)]
    assert approximate(noisy + rest, DELTA) == pytest.approx(gaussian_epsilon(mu, DELTA) + 1.05, rel=1e-6)
    failing = approximate([*noisy, Guarantee(0.3, 4e-6)], DELTA)
    assert failing == pytest.approx(0.3 + gaussian_epsilon(mu, 6e-6), rel=1e-6)
    assert approximate([*noisy, Guarantee(0.3, DELTA)], DELTA) == math.inf
    for other in (first_draw(0.1), LaplaceRelease(1.0), Guarantee(600.0), Unprotected()):
        assert central_limit_mu([*noisy, other]) is None
    assert central_limit_mu([]) == approximate([], DELTA) == 0.0
    assert approximate([*noisy, Unprotected()], DELTA) == math.inf


def test_central_limit_of_replace_one():
    """mu^2 = T times the integral of (P - Q)^2 over N(0), here q^2 4 sinh(1/(4 sigma^2)): P and Q are half as far from N(0).

    The formula of add/remove would give 2.32 here; the certified figure is 1.82.
    """
    event = training(14062, 1.1, adjacency="replace-one")
    mu = Q * math.sqrt(14062 * 4 * math.sinh(0.25 / 1.1**2))
    assert approximate([event], DELTA) == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-6)
    assert approximate([event], DELTA) == pytest.approx(epsilon([event], DELTA), rel=0.02)


def test_replace_one_covers_every_pair_of_gradients():
    """No two gradients in the ball do worse than the accountant says; opposite ones reach it. By integration in 2-D."""
    sigma, rate = 0.6, 0.3
    value = epsilon([training(1, sigma, rate, "replace-one")], 1e-3)
    axis = np.linspace(-0.5 - 6 * sigma, 0.5 + 6 * sigma, 301)
    cell = (axis[1] - axis[0]) ** 2
    x, y = np.meshgrid(axis, axis)

    def mixture(radius, angle):
        with_record = np.exp(-((x - radius * np.cos(angle)) ** 2 + (y - radius * np.sin(angle)) ** 2) / (2 * sigma**2))
        return ((1 - rate) * np.exp(-(x**2 + y**2) / (2 * sigma**2)) + rate * with_record) / (2 * math.pi * sigma**2)

    def delta(first, second, eps):
        return np.maximum(first - math.exp(eps) * second, 0).sum() * cell

    fixed = mixture(0.5, 0.0)
    for radius in (0.0, 0.25, 0.5):
        for angle in (0.0, math.pi / 2, 0.9 * math.pi, math.pi):
            other = mixture(radius, angle)
            assert max(delta(fixed, other, value), delta(other, fixed, value)) <= 1e-3 * (1 + 1e-3)
    assert delta(fixed, mixture(0.5, math.pi), value - 2e-3) > 1e-3


@pytest.mark.parametrize(
    ("event", "delta"),
    [(training(1000, 1.0, 0.01), 1e-14), (training(10**6, 0.3, 0.5), 1e-5)],
    ids=["delta beneath the rounding", "coarse"],
)
def test_renyi_steps_in_where_the_grid_or_the_arithmetic_shows(event, delta):
    """pld is never looser than rdp, not even where it could certify nothing alone."""
    assert 0 < epsilon([event], delta) <= epsilon([event], delta, "rdp") < math.inf


@pytest.mark.parametrize(
    "event",
    [Unprotected(), training(1, 0.0), training(1, 9.9e-4), GaussianRelease(9.9e-4), Selection(0.1, math.inf)],
    ids=repr,
)
def test_non_private_is_infinite(event):
    assert epsilon([event], DELTA) == math.inf
    assert epsilon([training(10, 5.0), event, selection(0.1)], DELTA) == math.inf
    assert epsilon([GaussianRelease(1e-3)], DELTA) < math.inf  # the least noise that counts


NO_NUMBER = (0.0, -1.0, math.nan, math.inf)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (
            training(3, 1.0),
            {
                "sampling_rate": (0.0, -0.1, 1.1, 1e-300, math.nan),
                "steps": (0, -1, 3.0, True, 10**12),
                "noise_multiplier": NO_NUMBER[1:],
                "sensitivity": NO_NUMBER,
                "nominal_sensitivity": NO_NUMBER,
            },
        ),
        (GaussianRelease(1.0), {"noise_multiplier": NO_NUMBER, "sensitivity": NO_NUMBER}),
        (LaplaceRelease(1.0), {"scale": NO_NUMBER, "sensitivity": NO_NUMBER}),
        (selection(0.5), {"eps1": (*NO_NUMBER, 0.6), "certified_epsilon": (0.0, -1.0, math.nan, 0.4)}),
        (RandomizedResponse(0.5, 3), {"epsilon": NO_NUMBER, "categories": (1, 0, -3), "adjacency": ("add-remove",)}),
        (Guarantee(0.5), {"epsilon": NO_NUMBER, "delta": (-0.1, 1.0, math.nan)}),
        (Zcdp(0.5), {"rho": NO_NUMBER}),
        (DiscreteGaussianRelease(3.0), {"deviation": (*NO_NUMBER, 2e5), "sensitivity": (0, 1.5, True)}),
        (TRUNCATED, {"truncated_batch_size": (0, 2.0), "most_records": (True, 10**12 + 1)}),
        (BANDED, {"strategy": ((), (0.5, 0.5), (1.0, math.nan), (1.0, math.inf)), "adjacency": ("replace-one",)}),
        (ALLOCATED, {"participations": (0, 9, True, 1.0), "steps": (20,), "adjacency": ("replace-one",)}),
        (ALLOCATED, {"sampling_rate": (0.05,)}),
        (SEARCH, {"trainings": ((), (SGD,), (TRUNCATED,)), "gamma": (0.0, 1.0, math.nan), "score_noise": (0.0,)}),
        (SEARCH, {"adjacency": ("replace-one",)}),
        (Mechanism(), {"adjacency": ("substitution", "", None)}),
    ],
    ids=lambda given: type(given).__name__,
)
def test_mechanisms_that_there_are_not(good, bad):
    """Each field by itself: what no accountant could price is never entered."""
    words = {(SEARCH, "adjacency"): "one relation", (ALLOCATED, "participations"): "`sampling`: allocation:"}
    for field, values in bad.items():
        for value in values:
            with pytest.raises(InputError, match=words.get((good, field), field)):
                replace(good, **{field: value})


@pytest.mark.parametrize(
    ("good", "field", "value", "wanted"),
    [
        (GaussianRelease(1.0), "noise_multiplier", 0.0, "a number above 0 and finite"),
        (training(3, 1.0), "noise_multiplier", math.inf, "a number from 0 and finite"),
        (Guarantee(0.5), "delta", 1.0, "a number from 0 and below 1"),
        (DiscreteGaussianRelease(3.0), "deviation", 2e5, "a number above 0 to 1e+05"),
        (RandomizedResponse(0.5, 3), "categories", 1, "a whole number from 2 to 1e+09"),
    ],
    ids=lambda given: str(given)[:20],
)
def test_ranges_are_told_as_people_say_them(good, field, value, wanted):
    assert refused(replace, good, **{field: value}) == f"Expected {field}={value!r} to be {wanted}"


@pytest.mark.parametrize(
    ("mechanisms", "arguments", "message"),
    [
        *(([], (delta,), f"`delta`: {delta:g} is not between 0 and 1") for delta in (0, 1, -0.1, math.nan, math.inf)),
        *(
            ([], (DELTA, name), f"`accountant`: {name!r} certifies nothing; known are pld, rdp, ma")
            for name in ("clt", "")
        ),
        (
            [training(1, 1.0), selection(0.1, adjacency="replace-one")],
            (DELTA,),
            "adjacency: mechanisms under add-remove and under replace-one have no common guarantee",
        ),
    ],
)
def test_what_has_no_price(mechanisms, arguments, message):
    assert refused(epsilon, iter(mechanisms), *arguments) == message


PLAIN = NoisySgd(0.01, 100, 1.0)


def loose(composition, *_):
    """Ten deviations for every release, added up as they are."""
    return 10.0 * sum(count * loss.scale for loss, count in composition.losses.items())


@pytest.fixture
def added():
    """Another accountant, for one test."""
    ACCOUNTANTS.register(Accountant("loose", True, "certified, absurdly loose", "this test", loose))
    yield ACCOUNTANTS["loose"]
    ACCOUNTANTS.pop("loose")


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("accountants, dpltm.privacy.mechanisms, dpltm.privacy.entry", "numpy scipy dp_accounting torch"),
        ("ledger", "scipy dp_accounting torch"),
    ],
)
def test_the_registry_is_light(modules, heavy):
    """The command line reads its choices from it; and a ledger takes what composes only when it is asked for a figure."""
    script = f"import sys, dpltm.privacy.{modules}; print([name for name in {heavy.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.usefixtures("added")
def test_another_accountant_is_one_object():
    each = 10 * 0.01 * math.sqrt(math.expm1(1.0))  # the deviation of one step's loss is q sqrt(e^(1/sigma^2) - 1)
    assert epsilon([PLAIN], 1e-5, "loose") == pytest.approx(100 * each)
    assert epsilon([LaplaceRelease(0.5)], 1e-5, "loose") == 2  # never above basic composition, whatever it says
    assert epsilon([PLAIN, Guarantee(600.0)], 1e-5, "loose") == pytest.approx(100 * each + 600)  # added as it is
    assert epsilon([PLAIN, Unprotected()], 1e-5, "loose") == math.inf
    assert epsilon([], 1e-5, "loose") == 0
    assert certified_by("loose") == "loose"
    quieter = calibrate_noise(5.0, 1e-5, PLAIN, accountant="loose")
    assert (1 - TOLERANCE) * 5 <= epsilon([quieter], 1e-5, "loose") <= 5
    assert quieter.noise_multiplier > 1
    assert Odometer(NOTHING, PLAIN, 1e-5, "loose").after(50) == pytest.approx(50 * each)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda *_: -1.0, "`accountant`: mine gives -1.0, which is no epsilon"),
        (lambda *_: math.nan, "`accountant`: mine gives nan, which is no epsilon"),
        (lambda *_: "3", "`accountant`: mine gives '3', which is no epsilon"),
    ],
)
def test_what_is_no_epsilon_is_not_certified(function, said):
    ACCOUNTANTS.register(Accountant("mine", True, "certified", "this test", function))
    try:
        assert refused(epsilon, [PLAIN], 1e-5, "mine") == said
    finally:
        ACCOUNTANTS.pop("mine")


pytestmark = pytest.mark.filterwarnings("ignore:Optimal order is the")  # Opacus's PRV asks its RDP for a domain size


def bracket(sigma, rate, steps, delta, eps_error):
    """Lower and upper bound of Opacus's PRV accountant."""
    accountant = PRVAccountant()
    accountant.history = [(sigma, rate, steps)]
    losses = accountant._get_dprv(eps_error=eps_error, delta_error=delta / 1000)
    lower, _, upper = losses.compute_epsilon(delta, delta / 1000, eps_error)
    return float(lower), float(upper)


RUNS = ((3, 1e-3), (200, 1e-5), (1000, 1e-6), (2000, 1e-8))  # steps and delta
SIGMAS, RATES = (0.6, 1.1, 5.0), (0.001, 0.02, 0.2)


@pytest.mark.one_of(4)
@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("rate", RATES)
def test_pld_lies_in_the_bracket(sigma, rate):
    """Never below the lower bound, and above the upper one by no more than our own grid.

    18 settings: every two of noise and rate meet, at half of the runs.
    """
    place = SIGMAS.index(sigma) + RATES.index(rate)
    for steps, delta in (RUNS[place % 4], RUNS[(place + 2) % 4]):
        found = epsilon([NoisySgd(rate, steps, sigma)], delta)
        lower, upper = bracket(sigma, rate, steps, delta, eps_error=max(0.01, 0.002 * found))
        assert lower < upper
        assert lower <= found <= max(upper, 0.0) + 5e-4 * found + 1e-4, (steps, delta)


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("rate", RATES)
def test_renyi_divergences_agree(sigma, rate):
    """At whole and at fractional orders: ours is integrated, theirs is summed with its signs."""
    for order in (1.25, 2.0, 3.7, 8.0, 31.5, 64.0):
        theirs = float(compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=order))
        ours = renyi.sampled_gaussian(sigma, rate, order)
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-12)  # their series ends at e^-30
        assert ours >= theirs * (1 - 1e-8) - 1e-12


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta"), [(1.1, 256 / 60000, 14062, 1e-5), (5.0, 0.3, 1000, 1e-8)]
)
def test_rdp_epsilon_agrees(sigma, rate, steps, delta):
    """On a dense set of orders Opacus is a little above our best real order, and not by more than the density allows."""
    orders = list(1 + np.geomspace(0.05, 200, 300))
    spent = compute_rdp(q=rate, noise_multiplier=sigma, steps=steps, orders=orders)
    theirs, _ = get_privacy_spent(orders=orders, rdp=spent, delta=delta)
    ours = epsilon([NoisySgd(rate, steps, sigma)], delta, "rdp")
    assert ours <= theirs * (1 + 1e-6)
    assert ours == pytest.approx(theirs, rel=1e-3)
    classical = min(rdp - math.log(delta) / (order - 1) for rdp, order in zip(spent, orders, strict=True))
    assert epsilon([NoisySgd(rate, steps, sigma)], delta, "ma") == pytest.approx(classical, rel=1e-3)
