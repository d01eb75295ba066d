"""What a ledger says, and how much it may come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.options.privacy import AdoptOptions, BudgetOptions, LedgerOptions, RestoreOptions
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.accountants import certified_by
from dpltm.privacy.best_of import alike, best_of_notes
from dpltm.privacy.budgets import MINUTE, QUICK_FIRST, budgets_in, is_paid, spent_of
from dpltm.privacy.describe import describe
from dpltm.privacy.event_json import to_json
from dpltm.privacy.events import BudgetEvent, DatasetRef, Event, TrainingEvent, now
from dpltm.privacy.figures import figure
from dpltm.privacy.lineage import entered_on
from dpltm.privacy.old_ledger import beside, merge, missing
from dpltm.privacy.parts import mechanisms_of, parts
from dpltm.privacy.privacy_unit import unit_of
from dpltm.privacy.report import costs_alone, if_overlapping, report
from dpltm.privacy.statement import json_figure
from dpltm.stages.checks import check_delta_alone, check_epsilon
from dpltm.stages.progress import Progress
from dpltm.tickets import journal
from dpltm.tickets.identity import event_reader
from dpltm.tickets.ledger_file import enrol, open_ledger
from dpltm.tickets.ledger_file import restore as put_back
from dpltm.tickets.room import SMALL, check_room
from dpltm.tickets.workbench.records import open_dataset

ALL_LEDGERS = ", in all ledgers of this user"
"""Where trainings are on record that no single ledger holds."""


def explain(options: LedgerOptions, progress: Progress) -> dict[str, Any]:
    """The JSON answer of ``dpltm privacy ledger``: line by line, and what it all comes to."""
    del progress
    check_delta_alone(options.delta)
    path = Path(options.file or "")
    numbered = _numbered(path, options.dataset)
    events = tuple(event for _, event in numbered)
    alone = costs_alone(events, options.delta, certified_by(options.accountant))
    return as_flags({
        "ledger": str(path),
        "events": [
            {
                "line": line, "time": event.time, "dataset": str(event.dataset), "adjacency": body["adjacency"],
                "unit": body["unit"], "words": describe(event), "epsilon": cost,
            }
            for (line, event), body, cost in zip(numbered, map(to_json, events), alone, strict=True)
        ],
        "datasets": _datasets(events, _others(path, events), options),
        "if_overlapping": _if_overlapping(events, options),
        "privacy": report(events, options.delta, "add-remove", accountant=options.accountant).to_json(),
    })  # fmt: skip


def budgets(options: BudgetOptions, progress: Progress) -> dict[str, Any]:
    """The JSON answer of ``dpltm privacy budget``: the budgets of a ledger, after one was set if one was asked for."""
    del progress
    check_delta_alone(options.delta)
    path = Path(options.file or "")
    if options.epsilon is None:
        if options.dataset is not None:
            raise InputError(
                "`epsilon` is missing: the budget to set on `dataset`; leave `dataset` out to see all budgets"
            )
        return {"ledger": str(path), "budgets": _budgets(read_ledger(path, None))}
    check_epsilon("epsilon", options.epsilon)
    check_room(path, SMALL, path)
    dataset, ledger = open_dataset(options), open_ledger(path)
    ref = entered_on(dataset, "add-remove", ledger.registry)
    moment, known = now(), beside(ledger.events, (), journal.look().events)[0]
    newest = max((event.time[:MINUTE] for event in known if isinstance(event, BudgetEvent)), default="")
    moment = max(moment[:MINUTE], newest) + moment[MINUTE:]  # a clock that jumped back makes no earlier budget of it
    ledger.append(BudgetEvent(ref, options.epsilon, options.delta, dataset.unit, time=moment))
    return {"ledger": str(path), "budgets": _budgets(ledger.events)}


def restore(options: RestoreOptions, progress: Progress) -> dict[str, Any]:
    """The JSON answer of ``dpltm privacy restore``: what was missing stands in the ledger again."""
    del progress
    path = Path(options.file or "")
    held, missed = put_back(path)
    return {"ledger": str(path), "events": held, "put_back": missed}


def adopt(options: AdoptOptions, progress: Progress) -> dict[str, Any]:
    """The JSON answer of ``dpltm privacy adopt``: a ledger from elsewhere counts here as well."""
    del progress
    path = Path(options.file or "")
    read_ledger(path, None)
    return {"ledger": str(path), "events": enrol(path), "put_back": 0}


def read_ledger(path: Path, dataset: str | None) -> tuple[Event, ...]:
    """The events of a ledger file that must exist, or those that may touch the records of one name.

    Raises:
        InputError: no such file, or no event on such records.
        ArtifactError: a line that is broken, edited or unknown; the message names it.
    """
    return tuple(event for _, event in _numbered(path, dataset))


def _numbered(path: Path, dataset: str | None) -> list[tuple[int, Event]]:
    """The events with the lines they stand on; of one dataset, all that may touch its records, under whatever name."""
    if path.is_dir() and (path / "ledger.jsonl").is_file():
        raise InputError(f"{path}: a folder; name the ledger in it, {path / 'ledger.jsonl'}")
    numbered = list(enumerate(open_ledger(path).events, start=2))  # the first line is the header
    if not path.is_file():
        raise InputError(f"{path}: no such ledger file; name one, such as SET/ledger.jsonl")
    names = dict.fromkeys(event.dataset.name for _, event in numbered)
    if dataset is not None and dataset not in names:
        raise InputError(f"`dataset`: {path} holds nothing on {dataset!r}; it holds {', '.join(names) or 'nothing'}")
    named = {event.dataset for _, event in numbered if event.dataset.name == dataset}
    return [
        (line, event)
        for line, event in numbered
        if dataset is None or any(event.dataset.may_overlap(ref) for ref in named)
    ]


def note_all_ledgers(path: Path, training: TrainingEvent, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer of a training, with what the best of several costs where other ledgers of this user hold more of them.

    Only whoever made them all reads that: what a run says of itself depends on no other ledger.

    Args:
        path: of the ledger that it was entered in.
        training: as it was entered.
        answer: with the report as ``privacy``.
    """
    held = open_ledger(path).events
    others = alike(merge(_others(path, held).values()), training)
    if not others:
        return answer
    privacy = answer["privacy"]
    certified = privacy["certified"]
    every, delta, method = (*alike(held, training), *others), certified["delta"], certified["accountant"]
    notes = best_of_notes(every, delta, method, ALL_LEDGERS, priced=False)
    return {**answer, "privacy": {**privacy, "notes": [*privacy["notes"], *notes]}}


def _others(path: Path, held: tuple[Event, ...]) -> dict[str | None, tuple[Event, ...]]:
    """Releases that only other ledgers of this user hold, by where each was used last; None for what lies in no file."""
    record, read = journal.look(), event_reader()
    known, places = record.known(journal.names_of(path)), {number: name for name, number in record.names.items()}
    found: dict[str | None, tuple[Event, ...]] = {}
    for number, chain in record.chains.items():
        if number not in known:
            theirs = missing((read(each.text) for each in chain), held)
            place = places.get(number)
            found[place] = (*found.get(place, ()), *filter(is_paid, theirs))
    return found


def _elsewhere(
    touching: tuple[Event, ...], others: dict[str | None, tuple[Event, ...]], options: LedgerOptions
) -> dict[str, Any] | None:
    """What other ledgers hold on the records of some releases, and what all of it comes to; None where they hold nothing."""
    refs = {own.dataset for own in touching if is_paid(own)}
    on_these = {
        place: tuple(event for event in events if any(event.dataset.may_overlap(ref) for ref in refs))
        for place, events in others.items()
    }
    merged = beside(touching, (), merge(on_these.values()))[0]
    if len(merged) == len(touching):
        return None
    as_budget = BudgetEvent(merged[0].dataset, 1.0, options.delta, unit_of(mechanisms_of(touching)))
    return {
        "events": len(merged) - len(touching),
        "ledgers": [
            {"ledger": place, "events": len(events)}
            for place, events in sorted(on_these.items(), key=lambda row: row[0] or "")
            if events
        ],
        "epsilon": json_figure(spent_of(as_budget, merged, accountant=certified_by(options.accountant))),
        "notes": best_of_notes(merged, options.delta, certified_by(options.accountant), ALL_LEDGERS),
    }


def _datasets(
    events: tuple[Event, ...], others: dict[str | None, tuple[Event, ...]], options: LedgerOptions
) -> list[dict[str, Any]]:
    """The total of each dataset; its parts where disjoint ranges of it were treated differently; what others hold on it."""
    pieces_of: dict[str, list[tuple[DatasetRef, tuple[Event, ...]]]] = {}
    for ref, part in parts(events):
        pieces_of.setdefault(ref.group, []).append((ref, part))
    rows = []
    for pieces in pieces_of.values():
        touching = tuple(event for event in events if any(event in part for _, part in pieces))
        method, unit = certified_by(options.accountant), unit_of(mechanisms_of(touching))
        costs = [epsilon(mechanisms_of(part), options.delta, method, unit=unit) for _, part in pieces]
        ref, names = pieces[0][0], sorted({event.dataset.name for event in touching})
        notes = (
            []
            if len(names) == 1
            else [f"the same records, or records that cannot be told apart, go by {', '.join(names)}"]
        )
        if len(pieces) > 1:
            ranges = ", ".join(f"{ref} at {figure(cost)}" for (ref, _), cost in zip(pieces, costs, strict=True))
            notes.append(f"parts that no record is in two of (`subset`) are counted apart: {ranges}")
        notes += best_of_notes(touching, options.delta, method)
        total = report(touching, options.delta, "add-remove", notes, options.accountant)
        rows.append(
            {
                "dataset": ref.name,
                "key_id": ref.key_id,
                "events": len(touching),
                "parts": [
                    {"records": _range(ref), "epsilon": json_figure(cost)}
                    for (ref, _), cost in zip(pieces, costs, strict=True)
                ],
                "privacy": total.to_json(),
                "elsewhere": _elsewhere(touching, others, options),
            }
        )
    return rows


def _if_overlapping(events: tuple[Event, ...], options: LedgerOptions) -> dict[str, Any] | None:
    """What everything comes to, should the datasets have people in common; None where the ledger holds one dataset."""
    paid = [event for event in events if is_paid(event)]
    groups = len({event.dataset.group for event in paid})
    if groups < 2:
        return None
    try:
        total: float | str = json_figure(if_overlapping(paid, options.delta, options.accountant))
    except InputError:
        total = "inf"  # stated for relations, or units, without a common guarantee
    return {"datasets": groups, "epsilon": total, "delta": options.delta}


def _range(ref: DatasetRef) -> str:
    return str(ref).removeprefix(ref.name).strip("[]") or ":"


def _budgets(held: tuple[Event, ...]) -> list[dict[str, Any]]:
    """Each budget in force on records of a ledger, whichever ledger sets it, and what all of them spent of it."""
    rows = []
    events, _ = beside(held, (), journal.look().events)
    for budget in budgets_in(events):
        if not any(event.dataset.may_overlap(budget.dataset) for event in held):
            continue
        touching = [event for event in events if event.dataset.may_overlap(budget.dataset)]
        spent = min(spent_of(budget, touching, accountant=each) for each in QUICK_FIRST)
        rows.append(
            {
                "dataset": str(budget.dataset),
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "unit": budget.unit,
                "spent": json_figure(spent),
                "elsewhere": sum(map(is_paid, missing(touching, held))),
                "set": budget.time,
            }
        )
    return rows
