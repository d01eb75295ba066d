"""``dpltm privacy``: what ledgers and cards say, what they come to together, and how much they may come to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole

from dpltm.cli.console import answering
from dpltm.cli.show import show_answer, show_notes, show_privacy
from dpltm.errors import ArtifactError, InputError
from dpltm.options.ledgers import ApartRequest, BudgetRequest, CheckRequest, LedgerRequest
from dpltm.privacy.account import Account
from dpltm.privacy.accountants import certified_by
from dpltm.privacy.describe import describe, figure
from dpltm.privacy.entry import Entry, union
from dpltm.privacy.ledger import Book
from dpltm.privacy.mechanisms import Guarantee
from dpltm.privacy.statement import json_figure, statement
from dpltm.progress import Progress
from dpltm.registry import Deferred
from dpltm.reports.statement import differences
from dpltm.tickets.files import digest_of, read_bytes
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.model_card import MOST, edits, holds_statement, read_statement


def explain(options: LedgerRequest, _: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm privacy ledger``: line by line, and what it all comes to."""
    books = [read_book(Path(name)) for name in options.files]
    account = total(books)
    method = certified_by(options.accountant)
    entries = [entry for book in books for entry in book.entries]
    adaptive = account.filter_epsilon(options.delta)
    notes = [
        f"epsilon {figure(adaptive)} also holds for releases that were chosen after looking at answers (Renyi filters of"
        " fixed orders)"
    ]
    if len(books) > 1:
        notes.append("a draw that is first in its own ledger counts as a later one here")
    return {
        "ledgers": [str(name) for name in options.files],
        "population": books[0].population,
        "unit": account.unit,
        "entries": [
            {
                "line": entry.sequence + 1, "day": entry.day, "kind": entry.kind, "dataset": str(entry.part),
                "unit": entry.unit, "words": describe(entry),
                "epsilon": json_figure(_price(account, [entry], options.delta, method)) if entry.paid else None,
            }
            for entry in entries
        ],
        "parts": _parts(account, options.delta, method),
        "adaptive_epsilon": json_figure(adaptive),
        "privacy": statement(account, options.delta, options.accountant, notes=notes).to_json(),
    }  # fmt: skip


def total(books: list[Book]) -> Account:
    """Return the account of several ledgers together; of one, draws keep their place, and its declared parts stay apart."""
    if len(books) == 1:
        return books[0].account()
    units = dict.fromkeys(book.unit for book in books)
    if len(units) > 1:
        raise InputError(
            f"ledgers of different units ({', '.join(units)}) have no common figure: name those of one unit"
        )
    entries = union(*(book.entries for book in books))  # an owner may have sent messages by each of them: they add up
    return Account.of(
        (replace(entry, home="") if entry.kind == "local" else entry for entry in entries), unit=books[0].unit
    )


def _price(account: Account, entries: Iterable[Entry], delta: float, method: str) -> float:
    return replace(account, entries=tuple(entries)).epsilon(delta, method)


def _parts(account: Account, delta: float, method: str) -> list[dict[str, Any]]:
    """The price of each piece of an account that has several: no person is in two."""
    rows = []
    for piece in account.pieces if len(account.pieces) > 1 else ():
        epsilon = json_figure(_price(account, piece, delta, method))
        rows.append({"records": sorted({str(entry.part) for entry in piece}), "epsilon": epsilon})
    return sorted(rows, key=lambda row: row["records"])


def budgets(options: BudgetRequest, _: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm privacy budget``: the budget of a ledger, after one was set if one was asked for."""
    path = Path(options.file)
    if options.epsilon is not None:
        ledger = open_ledger(path, population=options.population, unit=options.unit)
        limit = Guarantee(options.epsilon, options.delta)
        ledger.declare(Entry("budget", mechanisms=(limit,), words="a budget", unit=ledger.unit))
    book = read_book(path)
    account, rows = book.account(), []
    if (budget := account.budget) is not None:
        spent = min(account.epsilon(budget.delta, method) for method in ("rdp", "pld"))
        row = {"epsilon": budget.epsilon, "delta": budget.delta, "unit": book.unit, "population": book.population}
        rows = [{**row, "spent": json_figure(spent)}]
    return {"ledger": str(path), "budgets": rows}


def declare_apart(options: ApartRequest, _: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm privacy apart``: another population has nobody in common with that of a ledger."""
    path = Path(options.file)
    ledger = open_ledger(path)
    if ledger.population in (None, options.name):
        owner = "nobody's by name" if ledger.population is None else f"that of {options.name!r} itself"
        raise InputError(f"`name`: two named populations can be apart, and this ledger is {owner}; name another one")
    ledger.declare(Entry("apart", population=options.name, words="declared by the owner", unit=ledger.unit))
    return {"ledger": str(path), "population": ledger.population, "apart": options.name}


def read_book(path: Path) -> Book:
    """Return the content of a ledger file that must exist."""
    book = open_ledger(path).book  # which knows of one that is gone
    if not path.is_file():
        raise InputError(f"{path}: no such ledger file; name one, such as dpltm.ledger.jsonl")
    return book


FIND_RUN = Deferred("dpltm.tickets.run:find_run")  # a card needs no torch

_BOTH = "compared with the entries: both epsilons, the attacker's figures,"
COMPARED = f"{_BOTH} sampling, steps, noise, sensitivity, records, batch and divisor, notes that are due"
FIGURES = f"{_BOTH} notes that are due; no settings of a training"
WORD = (
    "the writer's word: the entries themselves, accuracy, audit, budget asked for, names of datasets, filter, clip norm,"
    " live coordinates, bounds, how sums were rounded, where tickets come from, the network, columns, purpose, contact, what"
    " all on the same people comes to, figures inside notes, further notes"
)
UNSIGNED = (
    "nothing here is signed: whoever writes other entries, and all figures that follow from them, is not found out; compare"
    " the entries with the ledger of whoever trained, and read nothing that stands around what dpltm wrote"
)
PAGE = "only the statement inside the page was compared, not its words and pictures; a card is compared line by line"
OF_RUN = (
    "compared: the SHA-256 of weights and mask with those that lineage, figures, cards and pages in the folder are of, and"
    " the certified epsilon, and what it is stated at, with entries and settings"
)


def check(options: CheckRequest, _: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm privacy check``: the differences."""
    path = Path(options.card)
    if path.is_dir():
        if options.run is not None:
            raise InputError(f"`run`: {path} is a folder itself; name a card or a page, or leave `run` out")
        return _check_run(path)
    body, problems, notes = _checked(path)
    weights = body["settings"].get("weights")
    if options.run is not None:
        problems += _other_weights(weights, FIND_RUN(Path(options.run)).weights, options.run)
    elif weights is not None:
        notes.append(f"its weights (SHA-256 {weights!s:.12}) were not compared; name their run by `run`")
    privacy = {key: body[key] for key in ("certified", "nominal", "notes")}
    return {
        "card": str(path), "ok": not problems, "problems": problems, "entries": len(body["entries"]),
        "privacy": privacy, "notes": notes,
    }  # fmt: skip


def _check_run(path: Path) -> dict[str, Any]:
    run = FIND_RUN(path)
    problems = list(run.problems)
    cards = [card for card in sorted(run.path.iterdir()) if card.suffix in (".md", ".html") and holds_statement(card)]
    for card in cards:
        body, differing, _ = _checked(card)
        differing += _other_weights(body["settings"].get("weights"), run.weights, str(path))
        problems += [f"{card}: {line}" for line in differing]
    return {
        "card": str(path), "ok": not problems, "problems": problems, "weights": run.weights,
        "cards": list(map(str, cards)), "entries": len(run.lineage.entries), "privacy": run.privacy,
        "notes": [OF_RUN, UNSIGNED],
    }  # fmt: skip


def _other_weights(stated: object, weights: str | None, run: str) -> list[str]:
    """That a statement is of other weights than those of a run, if that is so."""
    if stated is None:
        return ["weights: the statement does not say which it is of; write it again with dpltm report"]
    if stated == weights:
        return []
    state = "cannot be read" if weights is None else f"have {weights[:12]}"
    return [f"weights: the statement is of SHA-256 {stated!s:.12}, and those of {run} {state}"]


def _checked(path: Path) -> tuple[dict[str, Any], list[str], list[str]]:
    """The statement in a card or a page, what differs in it, and notes."""
    try:
        text = read_bytes(path, MOST, links=True).decode("utf-8")
    except UnicodeDecodeError:
        raise ArtifactError(f"{path}: not a text; name a card or a page that dpltm report wrote") from None
    body = read_statement(str(path), text)
    notes = [UNSIGNED]
    if "<html" in text[:1000]:
        changed = body["digest"] != digest_of(body)
        problems = ["digest: the statement was changed after it was written"] if changed else []
        notes.append(PAGE)
    else:
        problems = edits(body, text)
    try:
        problems = [*differences(body), *problems]
    except ArtifactError as error:
        problems = [str(error), *problems]
    return body, problems, [*notes, COMPARED if body["state"] == "finished" else FIGURES, WORD]


def show_ledger(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show a ledger, line by line."""
    for row in body["entries"]:
        alone = "" if row["epsilon"] is None else f"  epsilon alone {figure(row['epsilon'])}"
        rich.print(f"line {row['line']}  {row['day']}  {row['dataset']}{alone}", style="bold")
        rich.print(f"  {row['words']}")
    if not body["entries"]:
        rich.print("the ledger holds no entry")
        return
    for row in body["parts"]:
        rich.print(f"{', '.join(row['records'])}: epsilon {figure(row['epsilon'])}")
    rich.print("\neverything together", style="bold")
    show_privacy(rich, body["privacy"])


def show_check(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the statement of a card, and the differences."""
    for line in body["problems"] or [f"{body['card']}: what was compared agrees with its entries ({body['entries']})"]:
        rich.print(line, style="bold")
    if body.get("weights") is not None:
        rich.print(f"SHA-256 of weights and mask: {body['weights']}")
    if body["privacy"] is not None:
        show_privacy(rich, body["privacy"])
    show_notes(rich, body)


ledger_command = answering(explain, show_ledger)
apart_command = answering(declare_apart, partial(show_answer, "declared to have nobody in common"))
budget_command = answering(budgets, partial(show_answer, "{ledger}"))
check_command = answering(check, show_check, lambda body: not body["ok"])
