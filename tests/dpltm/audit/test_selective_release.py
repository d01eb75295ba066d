"""The worst case of DPSUR's selective release: ``benchmarks/selective_release.py``."""

import pytest

from dpltm.privacy.accountant import epsilon
from dpltm.privacy.mechanisms import NoisySgd
from programs import program

selective = program("benchmarks/selective_release.py")


def test_without_selection_it_is_the_epsilon_of_the_steps_from_below() -> None:
    """The accountant rounds up where this rounds down, by up to a grid step a step; both are right, so they are close."""
    setting = selective.Setting(2.0, 1.3, 1.0)
    found = selective.worst(setting, 200, None)
    certified = epsilon((NoisySgd(setting.rate, 200, setting.sigma),), selective.DELTA)
    assert certified - 0.05 < found <= certified


@pytest.mark.long
def test_the_published_training_at_three_is_refuted() -> None:
    """Steps that hold the target pass more often, by up to the ratio of both chances of the test."""
    found = selective.examine(selective.PUBLISHED[-1])
    assert found.nominal == pytest.approx(3.0, abs=0.01)
    assert 1.14 * found.nominal < found.lower_bound < found.certified
    assert 1.15 * found.once_claimed < found.once


def test_the_normalisation_is_charged_as_in_the_published_code() -> None:
    """Two releases of all records at multiplier 8 are one Gaussian mechanism at 8 / sqrt 2; without it more steps fit."""
    setting = selective.PUBLISHED[-1]
    steps, releases = setting.both(100), NoisySgd(1.0, 1, 8 / 2**0.5)
    assert setting.cost(100) == pytest.approx(epsilon((*steps, releases), selective.DELTA), rel=1e-3)
    assert epsilon(setting.both(1574), selective.DELTA, "rdp") < setting.claim < setting.cost(1574, "rdp")
