"""Local privacy: protocols by name, their claims, and their chances of sending a bit.

A new protocol for bits is one ``LocalProtocol``, and one line in ``PROTOCOLS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from dpltm.registry import Registry

Chances = tuple[Decimal, Decimal]  # that a 1 arrives as 1, and that a 0 does


@dataclass(frozen=True)
class LocalProtocol:
    """A protocol that can be chosen by name.

    Attributes:
        name: such as ``uer``.
        help: one sentence.
        source: the paper.
        chances: from claimed epsilon, alpha and the number of bits of a record, the chances of the first bits, and of
            the others in turn. None where a record is no string of bits, but one index of a codebook, label included.
        has_alpha: whether it takes ``alpha``.
        one_hot: whether its epsilon is claimed for strings with a single one.
        caveat: what its claim leaves out, said beside its figures.
    """

    name: str
    help: str
    source: str
    chances: Callable[[Decimal, Decimal, int], list[Chances]] | None
    has_alpha: bool = False
    one_hot: bool = False
    caveat: str = ""


# p and q as docs/privacy-model.md section 6.1 has them; positions of bits are counted from 0


def _symmetric(exponent: Decimal) -> list[Chances]:
    p = 1 / (1 + (-exponent).exp())
    return [(p, 1 - p)]


def _ue(epsilon: Decimal, *_: Any) -> list[Chances]:
    return _symmetric(epsilon / 2)


def _oue(epsilon: Decimal, *_: Any) -> list[Chances]:
    return [(Decimal("0.5"), 1 / (1 + epsilon.exp()))]


def _rappor(epsilon: Decimal, _: Decimal, bits: int) -> list[Chances]:
    return _symmetric(epsilon / bits)


def _moue(epsilon: Decimal, alpha: Decimal, _: int) -> list[Chances]:
    return [(1 / (1 + alpha), 1 / (1 + alpha * epsilon.exp()))]


def _moue_hs(epsilon: Decimal, alpha: Decimal, bits: int) -> list[Chances]:
    return _moue(epsilon / bits, alpha, bits)


def _uer(epsilon: Decimal, alpha: Decimal, bits: int) -> list[Chances]:
    q = 1 / (1 + alpha * (epsilon / bits).exp())
    return [(alpha / (1 + alpha), q), (1 / (1 + alpha**3), q)]


CODEBOOK = LocalProtocol(
    "codebook",
    "One index for record and label: with a fixed probability that of a near random direction.",
    "Ye and Barg 2018; Isik et al. 2023",
    None,
)
WANG = "Wang et al. 2017"

PROTOCOLS = Registry[LocalProtocol](
    "protocol",
    (
        CODEBOOK,
        LocalProtocol("ue", "Unary encoding: half of epsilon for either bit of a pair.", WANG, _ue, one_hot=True),
        LocalProtocol(
            "oue", "Optimised unary encoding: a 1 is a fair coin, a 0 nearly stays.", WANG, _oue, one_hot=True
        ),
        LocalProtocol("rappor", "Epsilon shared evenly among the bits.", "LATENT, eq. 6", _rappor),
        LocalProtocol(
            "moue",
            "Optimised unary encoding with a different coin for a 1.",
            "LATENT",
            _moue,
            has_alpha=True,
            one_hot=True,
        ),
        LocalProtocol("moue-hs", "The same, with epsilon divided among the bits.", "LATENT", _moue_hs, has_alpha=True),
        LocalProtocol(
            "uer",
            "Other coins at even and at odd positions.",
            "LATENT, eq. 9",
            _uer,
            has_alpha=True,
            caveat="uer's proof lets ratios at even and odd positions cancel; a pair of records need not: they add up",
        ),
    ),
)

BIT_PROTOCOLS = PROTOCOLS.names(lambda protocol: protocol.chances is not None)  # those that send bits

WITH_ALPHA = PROTOCOLS.names(lambda protocol: protocol.has_alpha)
