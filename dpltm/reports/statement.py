"""A statement: what was done to which records, what that guarantees, and what came of it, as one JSON object.

It is what cards carry and reports show (docs/formats.md, *Statements*). The guarantee follows from the entries in it, so
whoever has it can compute it again (``dpltm.reports.checking``), without the records and without torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, get_args

from dpltm.errors import ArtifactError, InputError, in_flags
from dpltm.privacy import statement as privacy
from dpltm.privacy.account import Account
from dpltm.privacy.accountants import ACCOUNTANTS
from dpltm.privacy.entry import entry_from_json, to_json
from dpltm.privacy.mechanisms import Adjacency, Sampling
from dpltm.privacy.trade_off import Curves, curves_of_profiles
from dpltm.reports.attacker import odds

FORMAT, SCHEMA = "dpltm-statement", 2

LIBRARIES = ("dpltm", "numpy", "scipy", "dp-accounting")
"""Those that figures are computed with."""

MAX_ENTRIES = 2000
"""Of a statement; more are too many to read."""


@dataclass(frozen=True)
class Terms:
    """What a guarantee is stated at.

    Attributes:
        delta: in (0, 1).
        accountant: that was asked for.
        adjacency: where no entry fixes one.
    """

    delta: float = 1e-5
    accountant: str = "pld"
    adjacency: Adjacency = "add-remove"


@dataclass(frozen=True)
class Subject:
    """What a statement is about.

    Attributes:
        kind: ``run``, ``tickets`` or ``sweep``.
        name: of its folder.
        settings: public settings, by name: texts, numbers, truth values or None.
        outcome: what came of it, likewise.
        notes: sentences, beside those that the entries call for.
        versions: of the libraries that made it.
        state: ``finished``, ``unfinished`` or ``damaged``.
    """

    kind: str
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    outcome: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    state: str = "finished"


def statement(subject: Subject, account: Account, terms: Terms) -> dict[str, Any]:
    """Return the statement on everything in an account.

    Args:
        subject: what it is about.
        account: of what it depends on; without a ledger, so that it can be computed again from its entries.
        terms: what the guarantee is stated at.

    Raises:
        InputError: more entries than a statement may hold.
    """
    if len(account.entries) > MAX_ENTRIES:
        raise InputError(
            f"{subject.name}: {len(account.entries):,} entries, more than the {MAX_ENTRIES:,} of a statement"
        )
    said = privacy.statement(account, terms.delta, terms.accountant, terms.adjacency, subject.notes)
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "kind": subject.kind,
        "name": subject.name,
        "state": subject.state,
        **said.to_json(),
        "notes": list(dict.fromkeys(in_flags(note) for note in said.notes)),  # of a training they are in flags already
        "accountant": terms.accountant,
        "odds": odds_of(curves_of(account)),
        "entries": [to_json(entry) for entry in account.entries],
        "settings": dict(subject.settings),
        "outcome": dict(subject.outcome),
        "computed_with": {name: version(name) for name in LIBRARIES},
        "versions": dict(subject.versions),
    }


def curves_of(account: Account) -> Curves | None:
    """Return the certified curves of an account; None where it holds nothing paid, or nothing can be certified."""
    try:
        return curves_of_profiles(account.profiles()) if account.paid else None
    except InputError:
        return None


def odds_of(curves: Curves | None) -> dict[str, Any] | None:
    """Return the best attacker against certified curves, as JSON; None where there are none."""
    return None if curves is None else odds(curves).to_json()


def account_of(body: Mapping[str, Any]) -> Account:
    """Return the account of the entries in a statement.

    Raises:
        ArtifactError: one that cannot be read, or that protects another unit than the statement says.
    """
    entries = []
    for number, one in enumerate(body["entries"], start=1):
        try:
            entries.append(entry_from_json(one))
        except ArtifactError as error:
            raise ArtifactError(f"entry {number}: {error}") from None
    try:
        return Account(tuple(entries), unit=body["certified"]["unit"])
    except InputError as error:
        raise ArtifactError(f"entries: {error}") from None


_SCALAR = (str, int, float, bool, type(None))
_CERTIFIED = {"epsilon": (int, float, str), "delta": (int, float), "accountant": str, "adjacency": str, "unit": str,
              "sampling": str}  # fmt: skip
_NOMINAL = {"epsilon": (int, float, str), "delta": (int, float), "source": str}
_SHAPE: dict[str, Any] = {
    "format": str, "schema": int, "kind": str, "name": str, "state": str, "certified": dict,
    "nominal": (dict, type(None)), "notes": list,
    "accountant": str, "odds": (dict, type(None)), "entries": list, "settings": dict, "outcome": dict,
    "computed_with": dict, "versions": dict,
}  # fmt: skip
_CHOICES = {name: get_args(kind) for name, kind in (("adjacency", Adjacency), ("sampling", Sampling))}


def check_shape(body: Mapping[str, Any]) -> None:
    """Raises ArtifactError unless ``body`` has the keys of a statement, each with values of its type."""
    _keys("the statement", body, _SHAPE)
    _keys("certified", body["certified"], _CERTIFIED)
    if body["nominal"] is not None:
        _keys("nominal", body["nominal"], _NOMINAL)
    for name, known in _CHOICES.items():
        if body["certified"][name] not in known:
            raise ArtifactError(f"certified.{name}: {body['certified'][name]!r:.40} is not one of {', '.join(known)}")
    if body["accountant"] not in ACCOUNTANTS:
        raise ArtifactError(f"accountant: {body['accountant']!r:.40} is not one of {', '.join(ACCOUNTANTS)}")
    for claim in filter(None, (body["certified"], body["nominal"])):
        epsilon, delta = claim["epsilon"], claim["delta"]
        if (isinstance(epsilon, str) and epsilon != "inf") or (
            not isinstance(epsilon, str) and not 0 <= epsilon < math.inf
        ):
            raise ArtifactError(f"epsilon: {epsilon!r:.40} is no epsilon")
        if not 0 < delta < 1:
            raise ArtifactError(f"delta: {delta!r:.40} is not between 0 and 1")
    if body["kind"] not in ("run", "tickets", "sweep"):
        raise ArtifactError(f"kind: {body['kind']!r:.40} is not one of run, tickets, sweep")
    if body["state"] not in ("finished", "unfinished", "damaged"):
        raise ArtifactError(f"state: {body['state']!r:.40} is not one of finished, unfinished, damaged")
    if len(body["entries"]) > MAX_ENTRIES:
        raise ArtifactError(f"entries: {len(body['entries']):,}, more than the {MAX_ENTRIES:,} of a statement")
    if not all(isinstance(note, str) for note in body["notes"]):
        raise ArtifactError("notes: one is no text")
    if body["odds"] is not None:
        _keys("odds", body["odds"], {"right": list, "found": list})
        for name, key in (("right", "prior"), ("found", "false_alarms")):
            for row in body["odds"][name]:
                _keys(f"odds.{name}", row, {key: (int, float), "at_most": (int, float)})
    for name in ("settings", "outcome", "versions", "computed_with"):
        if wrong := [key for key, value in body[name].items() if not isinstance(value, _SCALAR)]:
            raise ArtifactError(f"{name}.{wrong[0]!s:.40}: neither a text nor a number")


def _keys(name: str, body: Any, known: Mapping[str, Any]) -> None:
    if not isinstance(body, Mapping):
        raise ArtifactError(f"{name}: expected an object")
    if wrong := sorted(set(body) ^ set(known)):
        raise ArtifactError(f"{name}: unknown or missing field {wrong[0]!r:.40}")
    for key, types in known.items():
        if not isinstance(body[key], types) or (isinstance(body[key], bool) and bool not in _as_tuple(types)):
            raise ArtifactError(f"{name}: field {key}: bad value {body[key]!r:.60}")


def _as_tuple(types: Any) -> tuple[type, ...]:
    return types if isinstance(types, tuple) else (types,)
