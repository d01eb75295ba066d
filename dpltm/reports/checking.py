"""Statements computed again: what in one does not follow from its own entries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from dpltm.errors import ArtifactError, InputError, in_flags
from dpltm.privacy.account import Account
from dpltm.privacy.accountants import certified_by
from dpltm.privacy.entry import UNKNOWN_RECORDS
from dpltm.privacy.mechanisms import Unprotected
from dpltm.privacy.statement import json_figure, statement
from dpltm.reports.fields import PROVENANCE
from dpltm.reports.intervals import interval
from dpltm.reports.statement import LIBRARIES, account_of, curves_of, odds_of
from dpltm.reports.trainings import alike, rows_of

SAME, NEAR = 1e-6, 1e-3
"""By how much a figure computed again may differ, in parts of itself: another processor; another version of a library."""

_OF_KIND = {"run": "sampling_rate", "tickets": "rounds", "sweep": "members"}
"""A setting that statements of a kind have, and those of no other kind."""


def differences(body: Mapping[str, Any]) -> list[str]:
    """Return what in a statement does not follow from its own entries; nothing where all of it does.

    Args:
        body: a statement whose shape was checked (:func:`check_shape`).

    Raises:
        ArtifactError: entries that cannot be read.
    """
    account, certified = account_of(body), body["certified"]
    try:
        due = statement(account, certified["delta"], body["accountant"], certified["adjacency"])
    except InputError as error:
        raise ArtifactError(f"its entries have no figure: {error}") from None
    again = due.to_json()
    tolerance = SAME if body["computed_with"] == {name: version(name) for name in LIBRARIES} else NEAR
    found = _compared("certified", certified, again["certified"], tolerance)
    found += _compared("nominal", body["nominal"], again["nominal"], tolerance)
    found += _compared("odds", body["odds"], odds_of(curves_of(account)), tolerance)
    outcome = body["outcome"]
    ends = interval(outcome.get("accuracy"), outcome.get("test_records")) or {}
    for name in ("low", "high"):
        found += _compared(f"outcome.{name}", outcome.get(name), ends.get(name), SAME)
    if body["state"] == "finished":
        found += _unlike_settings(body, account)
    else:
        found.append(f"state: {body['state']}: what it tells of is not complete, so its settings cannot be compared")
    return [*found, *_missing_notes(body, due.notes)]


def _unlike_settings(body: Mapping[str, Any], account: Account) -> list[str]:
    """Settings of a training that no entry in the statement has, that are missing, or that do not fit each other."""
    settings, kind = body["settings"], body["kind"]
    found = [
        f"kind: {kind}, but its settings are those of a {other}"
        for other, name in _OF_KIND.items() if other != kind and settings.get(name) is not None
    ]  # fmt: skip
    rows = [row for entry in account.paid for row in rows_of(entry)]
    if kind == "run" or settings.get(_OF_KIND["run"]) is not None:
        found += _of_run(settings, rows)
    return found + _unlike_provenance(settings, account)


def _of_run(settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return ["entries: none is that of a training, and the statement is of one"]
    unlike = [
        [name for name, value in row.items() if name not in settings or not alike(settings[name], value, SAME)]
        for row in rows
    ]
    place = min(range(len(rows)), key=lambda at: len(unlike[at]))  # the training that fits best
    found = [
        f"settings.{name}: {_text(settings[name]) if name in settings else 'missing'}, but its entry says"
        f" {_text(rows[place][name])}"
        for name in unlike[place]
    ]
    return found + _unlike_batch(settings, rows[place]["sampling_rate"])


def _unlike_batch(settings: Mapping[str, Any], rate: float) -> list[str]:
    """What the noisy sum is divided by, beside the rate and the public number of records."""
    batch, records = settings.get("expected_batch"), settings.get("public_records")
    groups, divisor = settings.get("groups"), settings.get("divisor")
    found = []
    if batch is not None or records is not None:
        size, whole = _number(batch), _number(records)
        if size is None or whole is None or abs(size / rate - whole) > 0.5 + SAME * abs(whole):
            gives = None if whole is None else rate * whole
            found.append(
                f"settings.expected_batch: {_text(batch)}, but the rate {_text(rate)} of {_text(records)} records gives"
                f" {_text(gives)}"
            )
    expected = batch if groups is None else groups
    if not alike(divisor, expected, SAME) and (divisor is not None or expected is not None):
        found.append(f"settings.divisor: {_text(divisor)}, but groups and expected batch give {_text(expected)}")
    return found


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _unlike_provenance(settings: Mapping[str, Any], account: Account) -> list[str]:
    """Where the statement says that its tickets come from elsewhere than its entries say."""
    kind, ticket_set = settings.get("provenance"), settings.get("ticket_set")
    if kind is not None and kind not in PROVENANCE:
        return [f"settings.provenance: {_text(kind)} is not one of {', '.join(PROVENANCE)}"]
    if kind is not None and ticket_set is None:
        return [f"settings.provenance: {_text(kind)}, but no ticket set is named"]
    if kind == "private" and not any(entry.of(Unprotected) for entry in account.paid):
        return ["settings.provenance: private, but no entry says that anything was released without protection"]
    return []


def kept_apart(body: Mapping[str, Any]) -> str | None:
    """Return what a statement would cost if the parts that it keeps apart were the same; None if it keeps none.

    Raises:
        ArtifactError: entries that cannot be read.
    """
    account = account_of(body)
    if len(account.pieces) < 2:
        return None
    together = replace(account, entries=tuple(replace(one, part=UNKNOWN_RECORDS) for one in account.entries))
    try:
        total = json_figure(together.epsilon(body["certified"]["delta"], certified_by(body["accountant"])))
    except InputError:
        total = "inf"
    return (
        f"the entries are counted in {len(account.pieces)} parts of records that the statement keeps apart, by its own word;"
        f" were they the same records: epsilon {total if isinstance(total, str) else format(total, '.4g')}"
    )


_FIGURES = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?|\binf\b")


def _missing_notes(body: Mapping[str, Any], due: Sequence[str]) -> list[str]:
    """Notes that the entries call for and the statement lacks; figures in them may be those of another version."""
    stated = {_FIGURES.sub("#", note) for note in body["notes"]}
    return [
        f"notes: its entries call for one that is missing: {note:.120}"
        for note in map(in_flags, due)
        if _FIGURES.sub("#", note) not in stated
    ]


def _compared(name: str, stated: Any, again: Any, tolerance: float) -> list[str]:
    """Where two values of JSON differ, each with its place."""
    if isinstance(stated, Mapping) and isinstance(again, Mapping) and stated.keys() == again.keys():
        return [line for key in again for line in _compared(f"{name}.{key}", stated[key], again[key], tolerance)]
    if isinstance(stated, list) and isinstance(again, list) and len(stated) == len(again):
        pairs = enumerate(zip(stated, again, strict=True), start=1)
        return [line for at, (one, two) in pairs for line in _compared(f"{name}.{at}", one, two, tolerance)]
    if alike(stated, again, tolerance):
        return []
    return [f"{name}: {_text(stated)}, but its entries give {_text(again)}"]


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "nothing" if value is None else f"{value!s:.80}"
