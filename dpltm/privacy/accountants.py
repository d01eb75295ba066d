"""Registry of accountants: one value each, from which choices, refusals and figures are read.

Their arithmetic is imported when one is first asked. Another accountant is one ``ACCOUNTANTS.register(Accountant(...))``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpltm.errors import InputError
from dpltm.registry import Deferred, Registry, listed


@dataclass(frozen=True)
class Resolution:
    """Discretisation of losses; both are upper bounds, one quicker and one tighter.

    Attributes:
        fraction: grid width over the deviation of one step's loss; epsilon comes out high by about fraction^2 / 12.
        least, most: grid points that the mechanisms take together; the grid is narrowed or widened to keep to them.
        total: grid points that the composed losses may take.
    """

    fraction: float
    least: float
    most: float
    total: float


FINE, QUICK = Resolution(0.03, 3e4, 2e5, 2e6), Resolution(0.1, 3e3, 6e4, 3e5)


@dataclass(frozen=True)
class Accountant:
    """A way from mechanisms to epsilon at delta.

    Attributes:
        certifies: whether its figure is a proven upper bound. Only such a one may satisfy a budget or calibrate noise.
        help: one sentence on what it is.
        source: where it comes from.
        function: epsilon of a ``Composition`` that is not empty, at a delta in (0, 1) and a resolution, without
            the ``plain`` part, which is added to every figure. Equal arguments give equal answers, which are remembered.
    """

    name: str
    certifies: bool
    help: str
    source: str
    function: Callable[[Any, float, Resolution], float]


ACCOUNTANTS = Registry[Accountant]("accountant", (
    Accountant("pld", True, "certified: privacy loss distributions", "Koskela et al. 2020; Doroshenko et al. 2022",
               Deferred("dpltm.privacy.accountant:by_privacy_loss")),
    Accountant("rdp", True, "certified, looser: Renyi divergences", "Mironov 2017; Balle et al. 2020, Theorem 21",
               Deferred("dpltm.privacy.accountant:by_renyi")),
    Accountant("ma", True, "certified, loosest: the moments accountant, as in the papers", "Abadi et al. 2016",
               Deferred("dpltm.privacy.accountant:by_moments")),
    Accountant("clt", False, "nominal: central limit theorem", "GDP central limit theorem",
               Deferred("dpltm.privacy.accountant:by_central_limit")),
))  # fmt: skip
CERTIFIED = ACCOUNTANTS.names(lambda accountant: accountant.certifies)  # whose figure may be promised, tightest first
DEFAULT = "pld"  # of every certified figure, unless another is asked for


def check_certifies(name: str) -> None:
    """Raise InputError for an accountant that may not decide over noise or a budget: an approximation, or unknown."""
    if not ACCOUNTANTS.find(name).certifies:
        raise InputError(
            f"`accountant`: {name} is an approximation and can neither calibrate noise nor satisfy a budget; use"
            f" {listed(CERTIFIED)}"
        )


def certified_by(name: str) -> str:
    """Accountant of the certified figure where ``name`` was asked for: the default stands in for an approximation."""
    return name if ACCOUNTANTS.find(name).certifies else DEFAULT
