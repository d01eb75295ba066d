"""Phase 2: how the winning ticket is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpltm.options import FROM_ZERO, POSITIVE, Range, data, option
from dpltm.options.network import CodeOptions

RULE_HELP = "Draw, or take the sparsest ticket within a tolerance of the dense one, on public data."


class SelectOptions(
    data.UnprotectedOptions, data.GuaranteeOptions, data.MetricOptions, data.SharesOptions, data.PerUnitOptions
):
    """How the winner is chosen, and what that may spend."""

    eps1: float | None = option(None, "Epsilon of the draw; DPLTM uses 0.1.", "E", section="Draw", within=POSITIVE)
    score: str = option("product", "A(1 - nu C), as printed; or A - lambda C.", choices=("product", "additive"))
    nu: float = option(50.0, "Weight of the density C in the product score.", "X", within=FROM_ZERO)
    lam: float = option(0.05, "Weight of the density C in the additive score.", "X", within=FROM_ZERO)
    sensitivity: str | None = option(
        None, "Of the score; paper is |1 - nu|.", choices=("exact", "paper"), shown="exact where it holds"
    )
    mechanism: str = option("exponential", "How the winner is drawn.", choices=("exponential", "permute-and-flip"))
    rule: str = option("mechanism", RULE_HELP, choices=("mechanism", "smallest-within"), section="Without a draw")
    tolerance: float = option(0.01, "Accuracy that smallest-within may lose.", "X", within=Range(high=1))
    max_density: float = option(0.1, "Density that it may keep.", "X", within=Range(high=1, above=True))
    reveal: bool = option(False, "Print scores and probabilities, entered as unprotected.", section="Output")


class SelectRequest(CodeOptions, data.LedgerOptions, SelectOptions, data.DataOptions):
    """Phase 2: draw the winning ticket on private records under differential privacy.

    Only the winner is released. Scores, probabilities and accuracies on private records stay private unless `reveal`.
    Drawing again spends eps1 again.

    Examples:
        # draw a winner for the second half of the digits
        dpltm select digits.tickets --dataset digits --subset 0.5:1.0 --score additive --eps1 0.1
        # see what that would spend
        dpltm select digits.tickets --dataset digits --subset 0.5:1.0 --score additive --eps1 0.1 --dry-run
    """

    set: str = option(None, "Folder of the ticket set.", "SET", argument=True)
    dry_run: bool = option(False, data.DRY_RUN_HELP, section="Output")


def reads_no_records(select: Mapping[str, Any]) -> bool:
    """Tell whether a draw goes by public accuracies alone."""
    return select.get("rule") == "smallest-within"
