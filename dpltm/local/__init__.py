"""Local privacy: protocols by name, their claims, and their chances of sending a bit.

A new protocol for bits is one ``LocalProtocol``, and one line in ``PROTOCOLS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from dpltm.registry import Registry

Chances = tuple[Decimal, Decimal]  # that a 1 arrives as 1, and that a 0 does


@dataclass(frozen=True)
class LocalProtocol:
    """A protocol that can be chosen by name.

    Attributes:
        name: such as ``uer``.
        help: one sentence.
        chances: from claimed epsilon, alpha and the number of bits of a record, those of the first bits, repeated. None
            where a record is no string of bits, but one index of a codebook, label included.
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


def _moue(exponent: Decimal, alpha: Decimal) -> list[Chances]:
    return [(1 / (1 + alpha), 1 / (1 + alpha * exponent.exp()))]


def _uer(exponent: Decimal, alpha: Decimal) -> list[Chances]:
    ((_, q),) = _moue(exponent, alpha)
    return [(alpha / (1 + alpha), q), (1 / (1 + alpha**3), q)]


CODEBOOK = LocalProtocol(
    "codebook",
    "One index for record and label: with a fixed probability that of a near random direction.",
    "Ye and Barg 2018; Isik et al. 2023",
    None,
)

PROTOCOLS = Registry[LocalProtocol](
    "protocol",
    (
        CODEBOOK,
        LocalProtocol(
            "ue", "Unary encoding: half of epsilon for either bit of a pair.", "Wang et al. 2017",
            lambda epsilon, *_: _symmetric(epsilon / 2), one_hot=True,
        ),
        LocalProtocol(
            "oue", "Optimised unary encoding: a 1 is a fair coin, a 0 nearly stays.", "Wang et al. 2017",
            lambda epsilon, *_: _moue(epsilon, Decimal(1)), one_hot=True,
        ),
        LocalProtocol(
            "rappor", "Epsilon shared evenly among the bits.", "LATENT, eq. 6",
            lambda epsilon, _, bits: _symmetric(epsilon / bits),
        ),
        LocalProtocol(
            "moue", "Optimised unary encoding with a different coin for a 1.", "LATENT",
            lambda epsilon, alpha, _: _moue(epsilon, alpha), has_alpha=True, one_hot=True,
        ),
        LocalProtocol(
            "moue-hs", "The same, with epsilon divided among the bits.", "LATENT",
            lambda epsilon, alpha, bits: _moue(epsilon / bits, alpha), has_alpha=True,
        ),
        LocalProtocol(
            "uer", "Other coins at even and at odd positions.", "LATENT, eq. 9",
            lambda epsilon, alpha, bits: _uer(epsilon / bits, alpha), has_alpha=True,
            caveat="uer's proof lets ratios at even and odd positions cancel; a pair of records need not: they add up",
        ),
    ),
)  # fmt: skip

BIT_PROTOCOLS = PROTOCOLS.names(lambda protocol: protocol.chances is not None)  # those that send bits

WITH_ALPHA = PROTOCOLS.names(lambda protocol: protocol.has_alpha)
