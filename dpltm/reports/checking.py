"""Statements computed again: what in one does not follow from its own entries."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpltm.errors import ArtifactError, InputError
from dpltm.privacy.account import Account
from dpltm.privacy.accountants import certified_by
from dpltm.privacy.entry import UNKNOWN_RECORDS
from dpltm.privacy.mechanisms import NoisySgd, PrivateSearch, Unprotected
from dpltm.privacy.statement import json_figure
from dpltm.reports.statement import PROVENANCE, Subject, account_of, statement

SAME, NEAR = 1e-6, 1e-3
"""By how much a figure computed again may differ, in parts of itself: another processor; another version of a library."""

_MISSING = "missing"

_OF_KIND = {"run": "sampling_rate", "tickets": "rounds", "sweep": "members"}
"""A setting that statements of a kind have, and those of no other kind."""


def differences(body: Mapping[str, Any]) -> list[str]:
    """Return claims of a statement, of checked shape, that do not follow from its own entries."""
    account, certified, settings, kind = account_of(body), body["certified"], body["settings"], body["kind"]
    terms = certified["delta"], body["accountant"], certified["adjacency"]
    about = Subject(kind, body["name"], settings, body["outcome"], (), body["versions"], body["state"], *terms)
    try:
        again = statement(about, account)
    except (InputError, ArithmeticError) as error:
        raise ArtifactError(f"its entries have no figure: {error}") from None
    tolerance = SAME if body["computed_with"] == again["computed_with"] else NEAR
    found = [
        line
        for name in ("certified", "nominal", "odds")
        for line in _compared(name, body[name], again[name], tolerance)
    ]
    if body["state"] != "finished":
        said = f"state: {body['state']}: what it tells of is not complete, so its settings cannot be compared"
        return [*found, said, *_missing_notes(body, again["notes"])]
    found += [line for name in ("outcome", "settings") for line in _compared(name, body[name], again[name], SAME)]
    found += [
        f"kind: {kind}, but its settings are those of a {other}"
        for other, name in _OF_KIND.items() if other != kind and settings.get(name) is not None
    ]  # fmt: skip
    if kind == "run" and not any(entry.of(NoisySgd) or entry.of(PrivateSearch) for entry in account.paid):
        found.append("entries: none is that of a training, and the statement is of one")
    return [*found, *_unlike_provenance(settings, account), *_missing_notes(body, again["notes"])]


def _missing_notes(body: Mapping[str, Any], due: Sequence[str]) -> list[str]:
    """Notes that the entries call for and the statement lacks; figures in them may be those of another version."""
    stated = {_FIGURES.sub("#", note) for note in body["notes"]}
    missing = (note for note in due if _FIGURES.sub("#", note) not in stated)
    return [f"notes: its entries call for one that is missing: {note:.120}" for note in missing]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _alike(one: Any, other: Any, tolerance: float) -> bool:
    """Tell whether two values of JSON are the same; numbers may differ by ``tolerance``, in parts of themselves."""
    if _is_number(one) and _is_number(other):
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=1e-12)
    return type(one) is type(other) and bool(one == other)


def _unlike_provenance(settings: Mapping[str, Any], account: Account) -> list[str]:
    """Return where the statement says that its tickets come from elsewhere than its entries say."""
    kind, ticket_set = settings.get("provenance"), settings.get("ticket_set")
    if kind is not None and kind not in PROVENANCE:
        return [f"settings.provenance: {_text(kind)} is not one of {', '.join(PROVENANCE)}"]
    if kind is not None and ticket_set is None:
        return [f"settings.provenance: {_text(kind)}, but no ticket set is named"]
    if kind == "private" and not any(entry.of(Unprotected) for entry in account.paid):
        return ["settings.provenance: private, but no entry says that anything was released without protection"]
    return []


def kept_apart(body: Mapping[str, Any]) -> str | None:
    """Return what a statement would cost if the parts that it keeps apart were the same; None if it keeps none."""
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


def _compared(name: str, stated: Any, again: Any, tolerance: float) -> list[str]:
    """Return where two values of JSON differ, each with its place."""
    if isinstance(stated, Mapping) and isinstance(again, Mapping):
        known = {key: stated.get(key, _MISSING) for key in (*again, *stated)}
        return [
            line for key, one in known.items() for line in _compared(f"{name}.{key}", one, again.get(key), tolerance)
        ]
    if isinstance(stated, list) and isinstance(again, list) and len(stated) == len(again):
        pairs = enumerate(zip(stated, again, strict=True), start=1)
        return [line for at, (one, two) in pairs for line in _compared(f"{name}.{at}", one, two, tolerance)]
    if _alike(stated, again, tolerance):
        return []
    return [f"{name}: {_text(stated)}, but its entries give {_text(again)}"]


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "nothing" if value is None else f"{value!s:.80}"
