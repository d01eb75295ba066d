"""The registry of accountants: light to import, read by whoever refuses, and open to another one in one line."""

import math
import subprocess
import sys

import pytest

from dpltm.errors import InputError
from dpltm.privacy.account import NOTHING
from dpltm.privacy.accountant import approximate, epsilon
from dpltm.privacy.accountants import ACCOUNTANTS, Accountant, certified_by, check_certifies
from dpltm.privacy.calibration import TOLERANCE, Odometer, calibrate_noise
from dpltm.privacy.mechanisms import Guarantee, LaplaceRelease, NoisySgd, Unprotected
from refusals import refused

SGD = NoisySgd(0.01, 100, 1.0)


def loose(composition, *_):
    """Ten deviations for every release, added up as they are."""
    return 10.0 * sum(count * loss.scale for loss, count in composition.losses.items())


@pytest.fixture
def added():
    """Another accountant, for one test."""
    ACCOUNTANTS.register(Accountant("loose", True, "certified, absurdly loose", "this test", loose))
    yield ACCOUNTANTS["loose"]
    ACCOUNTANTS.unregister("loose")


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
    assert epsilon([SGD], 1e-5, "loose") == pytest.approx(100 * each)
    assert epsilon([LaplaceRelease(0.5)], 1e-5, "loose") == 2  # never above basic composition, whatever it says
    assert epsilon([SGD, Guarantee(600.0)], 1e-5, "loose") == pytest.approx(100 * each + 600)  # added as it is
    assert epsilon([SGD, Unprotected()], 1e-5, "loose") == math.inf
    assert epsilon([], 1e-5, "loose") == 0
    assert certified_by("loose") == "loose"
    quieter = calibrate_noise(5.0, 1e-5, SGD, accountant="loose")
    assert (1 - TOLERANCE) * 5 <= epsilon([quieter], 1e-5, "loose") <= 5
    assert quieter.noise_multiplier > 1
    assert Odometer(NOTHING, SGD, 1e-5, "loose").after(50) == pytest.approx(50 * each)


@pytest.mark.usefixtures("added")
def test_refusals_are_read_from_the_registry():
    with pytest.raises(InputError, match=r"use pld, rdp, ma or loose$"):
        check_certifies("clt")
    with pytest.raises(InputError, match=r"known: pld, rdp, ma, clt, loose; did you mean loose\?$"):
        approximate([SGD], 1e-5, "loos")


def fail(*_):
    raise RuntimeError("no such order")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda *_: -1.0, "`accountant`: mine gives -1.0, which is no epsilon"),
        (lambda *_: math.nan, "`accountant`: mine gives nan, which is no epsilon"),
        (lambda *_: "3", "`accountant`: mine gives '3', which is no epsilon"),
        (fail, "`accountant`: mine fails: no such order"),
    ],
)
def test_what_is_no_epsilon_is_not_certified(function, said):
    ACCOUNTANTS.register(Accountant("mine", True, "certified", "this test", function))
    try:
        assert refused(epsilon, [SGD], 1e-5, "mine") == said
    finally:
        ACCOUNTANTS.unregister("mine")
