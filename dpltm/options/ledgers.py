"""Options of commands about ledgers and cards."""

from __future__ import annotations

from dpltm.options import EPSILON, Options, option
from dpltm.options.data import DeltaOptions
from dpltm.privacy.accountants import ACCOUNTANTS


class LedgerRequest(DeltaOptions):
    """Explain a ledger line by line, and recompute its total from the file alone; or the total of several ledgers.

    Examples:
        dpltm privacy ledger digits.ledger.jsonl
        # everything that two projects spent on the same people
        dpltm privacy ledger one.ledger.jsonl other.ledger.jsonl
    """

    files: tuple[str, ...] = option(None, "Ledger files.", "FILE...", argument=True)
    accountant: str = option("pld", "Accountant of the certified figure.", choices=ACCOUNTANTS)


class BudgetRequest(DeltaOptions):
    """Show the budget that a ledger sets on its population, or set one.

    Every command that this ledger pays for refuses a release that would exceed the budget. The last budget counts; all of
    them stay in the ledger.

    Examples:
        # set a budget for everybody whose records this ledger pays for
        dpltm privacy budget dpltm.ledger.jsonl --epsilon 3
        # show what is set, and what is spent
        dpltm privacy budget dpltm.ledger.jsonl
    """

    file: str = option(None, "Ledger file.", "LEDGER", argument=True)
    epsilon: float | None = option(None, "Limit for everything in the ledger together.", "E", within=EPSILON)
    unit: str | None = option(None, "Of a new ledger: whom it protects.", "NOUN", shown="record")
    population: str | None = option(None, "Of a new ledger: its population, by name.", "NAME")


class ApartRequest(Options):
    """Declare that another population has nobody in common with that of a ledger.

    What concerns them is then shown beside its figure, and counts in neither figure nor budget. Nobody checks it.

    Examples:
        dpltm privacy apart dpltm.ledger.jsonl --name "survey 2019"
    """

    file: str = option(None, "Ledger file.", "LEDGER", argument=True)
    name: str = option(None, "The other population.", "NAME")


class CheckRequest(Options):
    """Compute the figures of a card or a page again, from the entries in it, and say what differs.

    For a run, it compares the weights with its lineage, its figures, and the cards and pages in its folder, and computes the
    epsilon again from its entries. Nothing is signed: the command finds figures and words that do not follow from the
    entries, and trusts the entries.

    Examples:
        dpltm privacy check README.md
        # whether the card is of the weights in this folder
        dpltm privacy check README.md --run digits.run
    """

    card: str = option(None, "Card, page or run.", "CARD|RUN", argument=True)
    run: str | None = option(None, "Folder of the run that the card should describe.", "RUN")
