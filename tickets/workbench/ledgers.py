"""What ledgers say, what they come to together, and how much they may come to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.options.privacy import ApartRequest, BudgetRequest, LedgerRequest
from dpltm.privacy.account import Account
from dpltm.privacy.accountants import certified_by
from dpltm.privacy.best_of import best_of_notes
from dpltm.privacy.checks import check_delta_alone, check_epsilon
from dpltm.privacy.describe import describe, figure
from dpltm.privacy.entry import Entry, union
from dpltm.privacy.ledger import Book
from dpltm.privacy.mechanisms import Guarantee
from dpltm.privacy.statement import json_figure, statement
from dpltm.progress import Progress
from dpltm.tickets.ledger_file import open_ledger


def explain(options: LedgerRequest, progress: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm privacy ledger``: line by line, and what it all comes to."""
    del progress
    check_delta_alone(options.delta)
    books = [read_book(Path(name)) for name in options.files or ()]
    account = total(books)
    method = certified_by(options.accountant)
    entries = [entry for book in books for entry in book.entries]
    notes = best_of_notes(account, options.delta, method)
    if len(books) > 1:
        notes.append(
            "a draw is the first release only in the ledger in which it was made; here it counts as a later one"
        )
    adaptive = account.filter_epsilon(options.delta)
    notes.append(
        f"epsilon {figure(adaptive)} also holds for releases that were chosen after looking at answers (a Renyi filter of"
        " fixed order)"
    )
    return as_flags({
        "ledgers": [str(name) for name in options.files or ()],
        "population": books[0].population,
        "unit": account.unit,
        "entries": [
            {
                "line": entry.sequence + 1, "day": entry.day, "kind": entry.kind, "dataset": str(entry.part),
                "unit": entry.unit, "words": describe(entry), "epsilon": _alone(account, entry, options.delta, method),
            }
            for entry in entries
        ],
        "parts": _parts(account, options.delta, method),
        "adaptive_epsilon": json_figure(adaptive),
        "privacy": statement(account, options.delta, options.accountant, notes=notes).to_json(),
    })  # fmt: skip


def total(books: list[Book]) -> Account:
    """Return the account of several ledgers together.

    Args:
        books: of them; of one, draws keep their place, and what it declares apart stays apart.

    Raises:
        InputError: they protect different units, which have no common figure.
    """
    if len(books) == 1:
        return books[0].account()
    units = dict.fromkeys(book.unit for book in books)
    if len(units) > 1:
        raise InputError(
            f"ledgers of different units ({', '.join(units)}) have no common figure: name those of one unit"
        )
    entries = union(*(book.entries for book in books))  # an owner may have sent messages by each of them: they add up
    return Account.of(
        (replace(each, home="") if each.kind == "local" else each for each in entries), unit=books[0].unit
    )


def _alone(account: Account, entry: Entry, delta: float, method: str) -> float | str | None:
    """What an entry costs by itself; None of what costs nothing."""
    if not entry.paid:
        return None
    return json_figure(replace(account, entries=(entry,)).epsilon(delta, method))


def _parts(account: Account, delta: float, method: str) -> list[dict[str, Any]]:
    """What the pieces of an account come to, where it has several: no person is in two."""
    if len(account.pieces) < 2:
        return []
    rows = [
        {
            "records": sorted({str(entry.part) for entry in piece}),
            "epsilon": json_figure(replace(account, entries=piece).epsilon(delta, method)),
        }
        for piece in account.pieces
    ]
    return sorted(rows, key=lambda row: row["records"])


def budgets(options: BudgetRequest, progress: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm privacy budget``: the budget of a ledger, after one was set if one was asked for."""
    del progress
    check_delta_alone(options.delta)
    path = Path(options.file or "")
    if options.epsilon is None:
        return {"ledger": str(path), "budgets": _budget(read_book(path))}
    check_epsilon("epsilon", options.epsilon)
    ledger = open_ledger(path, population=options.population, unit=options.unit)
    ledger.declare(
        Entry("budget", mechanisms=(Guarantee(options.epsilon, options.delta),), words="a budget", unit=ledger.unit)
    )
    return {"ledger": str(path), "budgets": _budget(ledger.book)}


def _budget(book: Book) -> list[dict[str, Any]]:
    """The budget in force, and what was spent of it; none where none was set."""
    account = book.account()
    limit = account.budget
    if limit is None:
        return []
    spent = min(account.epsilon(limit.delta, method) for method in ("rdp", "pld"))
    row = {"epsilon": limit.epsilon, "delta": limit.delta, "unit": book.unit, "population": book.population}
    return [{**row, "spent": json_figure(spent)}]


def declare_apart(options: ApartRequest, progress: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm privacy apart``: another population has nobody in common with that of a ledger."""
    del progress
    path = Path(options.file or "")
    ledger = open_ledger(path)
    if ledger.population is None or options.name == ledger.population:
        raise InputError(
            "`name`: only named populations can be apart: this ledger "
            + ("has no `population`" if ledger.population is None else f"is that of {options.name!r} itself")
        )
    ledger.declare(Entry("apart", population=options.name, words="declared by the owner", unit=ledger.unit))
    return {"ledger": str(path), "population": ledger.population, "apart": options.name}


def read_book(path: Path) -> Book:
    """Return what a ledger file that must exist holds.

    Raises:
        InputError: no such file.
        ArtifactError: a line that is broken, edited or unknown; the message names it.
    """
    if path.is_dir():
        raise InputError(f"{path}: a folder; name the ledger file, such as {path / 'dpltm.ledger.jsonl'}")
    book = open_ledger(path).book  # which knows of one that is gone
    if not path.is_file():
        raise InputError(f"{path}: no such ledger file; name one, such as dpltm.ledger.jsonl")
    return book
