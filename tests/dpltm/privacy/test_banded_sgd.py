"""Training with banded noise as the accountant sees it: a sampled Gaussian release for each step that a record may enter."""

from dataclasses import replace

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from dpltm.privacy.account import Account
from dpltm.privacy.accountant import epsilon, profile
from dpltm.privacy.calibration import calibrate_steps
from dpltm.privacy.entry import Entry
from dpltm.privacy.mechanisms import BandedSgd, NoisySgd, RandomizedResponse, over_two_steps

BANDED = BandedSgd(0.1, 11, 0.9, 1.3, strategy=(1.0, 0.7, 0.5, 0.2))


@pytest.mark.parametrize("accountant", ["pld", "rdp", "ma"])
@pytest.mark.parametrize(("steps", "entered"), [(1, 1), (4, 1), (5, 2), (11, 3), (12, 3), (13, 4)])
def test_it_costs_what_a_record_can_enter(accountant, steps, entered):
    """Also where it was left early, and where all of a part enter."""
    for rate in (0.1, 1.0):
        banded = replace(BANDED, steps=steps, sampling_rate=rate)
        assert banded.compositions == entered
        plain = NoisySgd(rate, entered, 0.9, 1.3)
        assert epsilon([banded], 1e-5, accountant) == epsilon([plain], 1e-5, accountant)


def test_a_record_in_its_own_steps_alone_is_worth_no_more():
    """An adversary who is told nothing but whether a record of one number was there, by drawing: T = 3 steps, two bands.

    The record is in the first part, whose steps are 0 and 2, and adds the whole bound to each that it enters. Chances that
    the likelihood ratio is above e^x differ by no more than the accountant's delta(x), within four standard errors.
    """
    strategy, q, steps, draws = (1.0, 0.8), 0.4, 3, 400_000
    bound = float(np.hypot(*strategy))
    mechanism, draw = BandedSgd(q, steps, 0.8, bound, strategy=strategy), np.random.default_rng(0)
    entered = draw.random((draws, 2)) < q
    changes = np.array([[1.0, 0.8, 0.0], [0.0, 0.0, 1.0]])  # C v, cut off where training ends
    seen = entered @ changes + mechanism.noise_std * draw.normal(size=(draws, steps))
    along, norms = seen @ changes.T / mechanism.noise_std**2, (changes**2).sum(1) / (2 * mechanism.noise_std**2)
    loss = np.log1p(q * np.expm1(along - norms)).sum(1)
    certified, x = profile([mechanism]), np.array([0.0, 0.3, 0.8, 1.5])
    for point, most in zip(x, certified.delta(x), strict=True):
        excess = np.clip(-np.expm1(point - loss), 0.0, None)
        assert excess.mean() <= most + 4 * excess.std() / np.sqrt(draws)
        if point < 1:  # and it is not far off, though the last step shows less than the norm
            assert excess.mean() > 0.4 * most


def test_the_most_steps_of_a_budget_are_whole_rounds():
    most = calibrate_steps(1.0, 1e-5, replace(BANDED, noise_multiplier=5.0), most=1000)
    assert most.steps % 4 == 0
    assert epsilon([most], 1e-5) <= 1.0 < epsilon([replace(most, steps=most.steps + 1)], 1e-5)


def test_a_replaced_record_may_leave_one_part_and_enter_another():
    """So it counts without sampling: at most 2 bound |a| for each of three pairs of blocks, side by side."""
    assert over_two_steps(BANDED) == NoisySgd(1.0, 3, 0.45, 2.6, adjacency="replace-one")
    answers = Entry("local", mechanisms=(RandomizedResponse(1.0, 3),))
    account = Account((Entry("release", mechanisms=(BANDED,)), answers))
    assert account.epsilon(1e-5) == pytest.approx(
        epsilon([over_two_steps(BANDED), RandomizedResponse(1.0, 3)], 1e-5), rel=1e-9
    )
    assert account.epsilon(1e-5) > epsilon([BANDED], 1e-5)


def test_dp_accounting_asks_as_much_for_the_steps_that_a_record_can_enter():
    steps = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(0.9)), 3)
    oracle = PLDAccountant(value_discretization_interval=1e-3).compose(steps)
    assert epsilon([BANDED], 1e-5) == pytest.approx(oracle.get_epsilon(1e-5), rel=2e-3)
