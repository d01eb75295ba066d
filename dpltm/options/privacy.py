"""What the accountant on its own is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from dpltm.options import option
from dpltm.privacy.accountants import ACCOUNTANTS


@dataclass(frozen=True, kw_only=True)
class SettingOptions:
    """Training: its public settings, as the accountant sees them."""

    noise_multiplier: float | None = option(
        None, "Noise over sensitivity (under replace-one: over the doubled one).", metavar="S", section="Training"
    )
    sampling_rate: str | None = option(
        None, "Chance of each record to enter a step, as 0.01 or 256/60000.", metavar="Q"
    )
    steps: int | None = option(None, "Number of noisy steps.", metavar="T")
    epochs: float | None = option(None, "Expected passes over the records, instead of `steps`.", metavar="N")
    delta: float = option(1e-5, "Delta of the guarantee.", metavar="D")
    eps1: float | None = option(None, "Epsilon of a draw of tickets before the training.", metavar="E")
    mechanism: str = option("exponential", "How that draw is made.", choices=("exponential", "permute-and-flip"))
    adjacency: str = option("add-remove", "Neighbouring relation.", choices=("add-remove", "replace-one"))


@dataclass(frozen=True, kw_only=True)
class EpsilonRequest(SettingOptions):
    """What a training costs, by every accountant.

    pld is the certified figure; rdp and ma are certified too, and looser. clt is an approximation that promises nothing.

    Examples:
        dpltm privacy epsilon --noise-multiplier 1.1 --sampling-rate 256/60000 --epochs 15 --delta 1e-5
    """


@dataclass(frozen=True, kw_only=True)
class NoiseRequest(SettingOptions):
    """What a budget allows: the least noise, the most steps, or the largest sampling rate.

    Give `epsilon` and two of `noise_multiplier`, `sampling_rate` and `steps`; the third is found. The certified epsilon of
    what is found is at most `epsilon`, and within 0.1 % of it where whole steps and sensible settings allow.

    Examples:
        # the least noise
        dpltm privacy noise --epsilon 1 --sampling-rate 256/60000 --steps 3516
        # the most steps
        dpltm privacy noise --epsilon 1 --sampling-rate 256/60000 --noise-multiplier 1.1
    """

    epsilon: float | None = option(None, "Whole budget, a draw (`eps1`) included.", metavar="E")
    accountant: str = option("pld", "Accountant to calibrate by; clt can satisfy no budget.", choices=ACCOUNTANTS)


@dataclass(frozen=True, kw_only=True)
class CurveRequest(SettingOptions):
    """What an attacker can do: the trade-off between false alarms and misses, and delta against epsilon.

    For the settings of one training, or for everything in a ledger.

    Examples:
        dpltm privacy curve --noise-multiplier 1.1 --sampling-rate 256/60000 --epochs 15 --plot curve.png
        # of all that a ledger holds
        dpltm privacy curve --ledger digits.ledger.jsonl
    """

    ledger: str | None = option(None, "Ledger file, instead of settings.", metavar="FILE")
    csv: str | None = option(None, "File to write the curves to.", metavar="FILE.csv")
    plot: str | None = option(None, "Picture to write.", metavar="FILE.png|.svg|.pdf")


@dataclass(frozen=True, kw_only=True)
class LedgerRequest:
    """Explain a ledger line by line, and recompute what it comes to from the file alone; or what several come to together.

    Examples:
        dpltm privacy ledger digits.ledger.jsonl
        # everything that two projects spent on the same people
        dpltm privacy ledger one.ledger.jsonl other.ledger.jsonl
    """

    files: tuple[str, ...] | None = option(None, "Ledger files.", metavar="FILE...", argument=True, required=True)
    delta: float = option(1e-5, "Delta of the guarantee.", metavar="D")
    accountant: str = option(
        "pld", "Accountant of the certified figure; clt adds its approximation as nominal.",
        choices=ACCOUNTANTS,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BudgetRequest:
    """Show the budget that a ledger sets on its population, or set one.

    Before any release that would exceed it, every command that pays by this ledger refuses. The last one set counts; all
    stay on record.

    Examples:
        # set a budget for everybody whose records this ledger pays for
        dpltm privacy budget dpltm.ledger.jsonl --epsilon 3
        # show what is set, and what is spent
        dpltm privacy budget dpltm.ledger.jsonl
    """

    file: str | None = option(None, "Ledger file.", metavar="LEDGER", argument=True, required=True)
    epsilon: float | None = option(None, "Largest certified epsilon of everything on record together.", metavar="E")
    delta: float = option(1e-5, "Delta at which it is read.", metavar="D")
    unit: str | None = option(None, "Of a new ledger: whom it protects.", metavar="NOUN", shown="record")
    population: str | None = option(None, "Of a new ledger: whose account it is, by name.", metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class ApartRequest:
    """Declare that another population has nobody in common with that of a ledger.

    What concerns them is then shown beside its figure, and counts in neither figure nor budget. Nobody checks it.

    Examples:
        dpltm privacy apart dpltm.ledger.jsonl --name "survey 2019"
    """

    file: str | None = option(None, "Ledger file.", metavar="LEDGER", argument=True, required=True)
    name: str | None = option(None, "The other population.", metavar="NAME", required=True)


@dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """Compute the figures of a card or a page again, from the entries in it, and say what differs.

    Nothing is signed. It shows figures and words that do not follow from the events; the events are taken at their word.

    Examples:
        dpltm privacy check README.md
    """

    card: str | None = option(
        None, "Card or page that dpltm report wrote.", metavar="CARD", argument=True, required=True
    )
