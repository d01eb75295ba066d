"""The accountants that there are: one value each, from which choices, refusals and figures are read.

Light: their arithmetic is imported when one is first asked. Another accountant is registered in one line::

    register(Accountant("mine", certifies=True, help="certified: ...", source="...", function=my_function))
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpltm.errors import InputError

if TYPE_CHECKING:
    from dpltm.privacy.composition import Composition
    from dpltm.privacy.pld import Resolution

Function = Callable[["Composition", float, "Resolution"], float]
"""From what was done, a delta in (0, 1), and how finely to discretise, to epsilon; see :attr:`Accountant.function`."""


@dataclass(frozen=True)
class Accountant:
    """A way from mechanisms to epsilon at delta.

    Attributes:
        name: what users call it.
        certifies: whether its figure is a proven upper bound. Only such a one may satisfy a budget or calibrate noise.
        help: one sentence on what it is.
        source: where it comes from.
        function: its epsilon of a composition that is private and not empty, without the ``plain`` part of it, which is
            added to every figure. It is not asked for more than basic composition gives, if it certifies.
    """

    name: str
    certifies: bool
    help: str
    source: str
    function: Function


ACCOUNTANTS: dict[str, Accountant] = {}
"""All of them by name, in the order in which they are shown."""

CERTIFIED: dict[str, Accountant] = {}
"""Those whose figure may be promised, tightest first."""

DEFAULT = "pld"
"""The accountant of every certified figure, unless another is asked for."""


def register(accountant: Accountant) -> None:
    """Adds an accountant to those that there are.

    Raises:
        InputError: there is one of that name.
    """
    if accountant.name in ACCOUNTANTS:
        raise InputError(f"accountant {accountant.name}: there is one of that name already; take another")
    ACCOUNTANTS[accountant.name] = accountant
    if accountant.certifies:
        CERTIFIED[accountant.name] = accountant


def find_accountant(name: str) -> Accountant:
    """The accountant of that name.

    Raises:
        InputError: there is none; names the nearest.
    """
    if name not in ACCOUNTANTS:
        near = difflib.get_close_matches(name, list(ACCOUNTANTS), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"`accountant`: unknown {name!r}; known are {', '.join(ACCOUNTANTS)}{hint}")
    return ACCOUNTANTS[name]


def check_certifies(name: str) -> None:
    """Refuses an accountant that may not decide over noise or a budget.

    Raises:
        InputError: it is an approximation, or there is none of that name.
    """
    if not find_accountant(name).certifies:
        *most, last = CERTIFIED
        raise InputError(
            f"`accountant`: {name} is an approximation and can neither calibrate noise nor satisfy a budget; use"
            f" {', '.join(most)} or {last}"
        )


def certified_by(name: str) -> str:
    """The accountant of the certified figure where ``name`` was asked for: the default stands in for an approximation."""
    return name if find_accountant(name).certifies else DEFAULT


def _imported(name: str) -> Function:
    """A function of ``accountant``, imported when it is first called: scipy and dp-accounting take seconds."""

    def function(composition: Composition, delta: float, resolution: Resolution) -> float:
        imported: Function = getattr(importlib.import_module("dpltm.privacy.accountant"), name)
        return imported(composition, delta, resolution)

    return function


register(
    Accountant(
        "pld", True, "certified: privacy loss distributions", "dp-accounting, pessimistic discretisation",
        _imported("by_privacy_loss"),
    )
)  # fmt: skip
register(
    Accountant(
        "rdp", True, "certified, looser: Renyi divergences", "Mironov 2017; Balle et al. 2020, Theorem 21",
        _imported("by_renyi"),
    )
)  # fmt: skip
register(
    Accountant(
        "ma", True, "certified, loosest: the moments accountant, as in the papers", "Abadi et al. 2016",
        _imported("by_moments"),
    )
)  # fmt: skip
register(
    Accountant(
        "clt", False, "nominal: central limit theorem", "GDP central limit theorem", _imported("by_central_limit")
    )
)
