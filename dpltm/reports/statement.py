"""A statement: what was done to which records, what that guarantees, and what came of it, as one JSON object.

It is what cards carry and reports show (docs/formats.md, *Statements*). The guarantee follows from the entries in it, so
whoever has it can compute it again (``differences``), without the records and without torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from types import NoneType
from typing import Any, Literal

import numpy as np

from dpltm.errors import ArtifactError, InputError, in_flags
from dpltm.networks.skill import wilson
from dpltm.privacy import statement as privacy
from dpltm.privacy.account import Account
from dpltm.privacy.entry import entry_from_json, to_json
from dpltm.privacy.mechanisms import Adjacency, NoisySgd, PrivateSearch, Unprotected
from dpltm.privacy.trade_off import Curves, curves_of_profiles

FORMAT, SCHEMA = "dpltm-statement", 2

LIBRARIES = ("dpltm", "numpy", "scipy")
"""Libraries that figures are computed with."""

MAX_ENTRIES = 2000
"""Of a statement; more are too many to read."""

PRIORS = (0.5, 0.1)
"""Chances, before anything is seen, that a record was used."""

PROVENANCE = {
    "data-free": "made from no records at all: using it costs no privacy",
    "public": "made from records that were declared public: using it costs no privacy",
    "dp": (
        "made under differential privacy from private records: what that cost is in its lineage, and counts with whatever is"
        " made of it; it may be shared as far as that guarantee goes"
    ),
    "private": (
        "made from private records with no mechanism: the masks may reveal them, the predictors, ordinary networks trained"
        " on them, even more, and nothing can be certified for those records. Think before you share it"
    ),
}
"""Where tickets may come from, and what that means: told from the kind alone, whatever else a file says."""

FALSE_ALARMS = (0.001, 0.01, 0.05, 0.1)
"""Of the table of records that an attacker finds."""


State = Literal["finished", "unfinished", "damaged"]
AccountantName = Literal["pld", "rdp", "ma", "clt"]


@dataclass(frozen=True)
class Subject:
    """Subject of a statement; ``settings`` and ``outcome`` hold texts, numbers, truth values or None by name.

    ``adjacency`` counts where no entry fixes one.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    outcome: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    state: State = "finished"
    delta: float = 1e-5
    accountant: AccountantName = "pld"
    adjacency: Adjacency = "add-remove"


@dataclass(frozen=True)
class Statement:
    """A statement; ``settings`` and the other objects hold texts, numbers, truth values or None by name."""

    format: str
    schema: int
    kind: Literal["run"]
    name: str
    state: State
    certified: privacy.Certified
    nominal: privacy.Nominal | None
    notes: tuple[str, ...]
    accountant: AccountantName
    odds: dict | None
    entries: tuple[dict, ...]
    settings: dict
    outcome: dict
    computed_with: dict
    versions: dict

    def __post_init__(self) -> None:
        for claim in (self.certified, self.nominal):
            if claim is not None and not (claim.epsilon >= 0 and 0 < claim.delta < 1):
                raise InputError(f"certified: epsilon {claim.epsilon:g} at delta {claim.delta:g} is no guarantee")
        if len(self.entries) > MAX_ENTRIES:
            raise InputError(f"{len(self.entries):,} entries, more than the {MAX_ENTRIES:,} of a statement")
        for values in (self.settings, self.outcome, self.computed_with, self.versions):
            for name, value in values.items():
                if not isinstance(value, (str, int, float, NoneType)):
                    raise InputError(f"{name:.40}: bad value {value!r:.60}")


def statement(subject: Subject, account: Account) -> dict[str, Any]:
    """Return the statement on everything in an account; what follows from its entries is taken from them.

    Args:
        account: without a ledger, so that it can be computed again from its entries.
    """
    outcome = {name: value for name, value in subject.outcome.items() if name not in ("low", "high")}
    outcome |= interval(outcome.get("accuracy"), outcome.get("test_records"))
    stated = privacy.statement(account, subject.delta, subject.accountant, subject.adjacency, subject.notes)
    stated = privacy.of_run(stated, account)
    value = Statement(
        FORMAT, SCHEMA, "run", subject.name, subject.state, stated.certified, stated.nominal,
        tuple(dict.fromkeys(map(in_flags, stated.notes))),  # of a training they are in flags already
        subject.accountant, odds(curves_of(account)), tuple(map(to_json, account.entries)),
        {**subject.settings, **_settings(subject.settings, account)}, outcome,
        {name: version(name) for name in LIBRARIES}, dict(subject.versions),
    )  # fmt: skip
    return to_json(value)


def _settings(settings: Mapping[str, Any], account: Account) -> dict[str, Any]:
    """Settings of a run that follow from the entry of its training: of several, or of a search's, the one that fits best."""
    same = ("sampling_rate", "steps", "noise_multiplier", "sensitivity", "nominal_sensitivity", "noise_std")
    batch, groups = settings.get("expected_batch"), settings.get("groups")
    rows = []
    for entry in account.paid:
        for sgd in (*entry.of(NoisySgd), *(sgd for search in entry.of(PrivateSearch) for sgd in search.trainings)):
            parts = len(getattr(sgd, "strategy", (1.0,)))  # of which a step samples one
            records = round(parts * batch / sgd.sampling_rate) if isinstance(batch, (int, float)) else None
            rows.append({
                **{name: getattr(sgd, name) for name in same}, "noise_bits": sgd.bits, "dataset": entry.part.name,
                "records": str(entry.part), "public_records": records, "divisor": batch if groups is None else groups,
            })  # fmt: skip
    return min(rows, key=lambda row: sum(settings.get(name) != value for name, value in row.items()), default={})


# --- what an attacker can do: Dong, Roth, Su 2022; Kairouz et al. 2015 ------------------------------------------------
# The attacker knows everything but whether one record (or one user) was among those used, and sees all that was released.


def curves_of(account: Account) -> Curves | None:
    """Return the certified curves of an account; None where it holds nothing paid, or nothing can be certified."""
    try:
        return curves_of_profiles(account.profiles()) if account.paid else None
    except InputError:
        return None


def odds(curves: Curves | None) -> dict[str, Any] | None:
    """Return upper bounds on the best attacker against certified curves, as JSON; None where there are none.

    ``right``: by prior, the largest share of cases in which any guess is right; guessing alone gives max(p, 1 - p).
    ``found``: by share of false alarms, the largest share of the records used that are found.

    Guarantees:
        With prior p <= 1/2 the best guess is right with chance (1 - p) + p delta(ln((1 - p) / p)), since
        p P(S) + (1 - p)(1 - Q(S)) is largest where P - e^epsilon Q is, at epsilon = ln((1 - p) / p). delta is an upper
        bound and taken at the next smaller point of its curve, where it is not smaller.
    """
    if curves is None:
        return None
    right = []
    for prior in PRIORS:
        place = int(np.searchsorted(curves.epsilons, math.log((1 - prior) / prior), side="right")) - 1
        right.append({"prior": prior, "at_most": min((1 - prior) + prior * float(curves.deltas[place]), 1.0)})
    rows = [{"false_alarms": alarms, "at_most": 1 - curves.misses_at(alarms)} for alarms in FALSE_ALARMS]
    return {"right": right, "found": rows}


def precision(true_positives: float, false_alarms: float, prior: float) -> float:
    """Return how often an attacker who says "it was used" is right, by Bayes, from the shares of records that he finds and
    takes for used wrongly, and the chance that one was used before he looks."""
    positives = prior * true_positives + (1 - prior) * false_alarms
    return prior * true_positives / positives if positives else prior


def interval(share: Any, records: Any) -> dict[str, float]:
    """Return Wilson's 95 % interval (1927) of a share of test records, as ``low`` and ``high``; empty where unknown.

    It covers other records of the same kind, and not the noise of another training.
    """
    if type(share) not in (int, float) or not 0 <= share <= 1 or type(records) is not int or records < 1:
        return {}
    low, high = wilson(share, records)
    return {"low": low, "high": high}


# --- read again -------------------------------------------------------------------------------------------------------


def account_of(body: Mapping[str, Any]) -> Account:
    """Return the account of the entries in a statement; ArtifactError for one that cannot be read, or of another unit."""
    entries = tuple(entry_from_json(entry, f"entry {number}") for number, entry in enumerate(body["entries"], start=1))
    try:
        return Account(entries, unit=body["certified"]["unit"])
    except InputError as error:
        raise ArtifactError(f"entries: {error}") from None


SAME, NEAR = 1e-6, 1e-3
"""By how much a figure computed again may differ, in parts of itself: another processor; another version of a library."""

_FIGURES = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?|\binf\b")


def differences(body: Mapping[str, Any]) -> list[str]:
    """Return claims of a statement, read as a :class:`Statement`, that do not follow from its own entries."""
    account = account_of(body)
    settings, state = body["settings"], body["state"]
    terms = body["certified"]["delta"], body["accountant"], body["certified"]["adjacency"]
    about = Subject(body["name"], settings, body["outcome"], (), body["versions"], state, *terms)
    try:
        again = statement(about, account)
    except (InputError, ArithmeticError) as error:
        raise ArtifactError(f"its entries have no figure: {error}") from None
    figures = SAME if body["computed_with"] == again["computed_with"] else NEAR
    lines = [
        line for name in ("certified", "nominal", "odds") for line in _compared(name, body[name], again[name], figures)
    ]
    if state == "finished":
        lines += [line for name in ("outcome", "settings") for line in _compared(name, body[name], again[name], SAME)]
        if not any(entry.of(NoisySgd) or entry.of(PrivateSearch) for entry in account.paid):
            lines.append("entries: none is that of a training, and the statement is of one")
        lines += _unlike_provenance(settings, account)
    else:
        lines.append(f"state: {state}: what it tells of is not complete, so its settings cannot be compared")
    stated = {_FIGURES.sub("#", note) for note in body["notes"]}  # figures may be those of another version
    missing = [note for note in again["notes"] if _FIGURES.sub("#", note) not in stated]
    return lines + [f"notes: its entries call for one that is missing: {note:.120}" for note in missing]


def _unlike_provenance(settings: Mapping[str, Any], account: Account) -> list[str]:
    """Return where the statement says that its tickets come from elsewhere than its entries say."""
    kind = settings.get("provenance")
    if kind is not None and kind not in PROVENANCE:
        return [f"settings.provenance: {_text(kind)} is not one of {', '.join(PROVENANCE)}"]
    if kind is not None and settings.get("ticket_set") is None:
        return [f"settings.provenance: {_text(kind)}, but no ticket set is named"]
    if kind == "private" and not any(entry.of(Unprotected) for entry in account.paid):
        return ["settings.provenance: private, but no entry says that anything was released without protection"]
    return []


def _compared(name: str, stated: Any, again: Any, tolerance: float) -> list[str]:
    """Return where two values of JSON differ, each with its place; numbers may, by ``tolerance`` in parts of themselves."""
    if isinstance(stated, list) and isinstance(again, list):
        stated, again = dict(enumerate(stated, start=1)), dict(enumerate(again, start=1))
    if isinstance(stated, Mapping) and isinstance(again, Mapping):
        return [
            line
            for key in dict.fromkeys((*again, *stated))
            for line in _compared(f"{name}.{key}", stated.get(key, "missing"), again.get(key), tolerance)
        ]
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (stated, again)):
        alike = math.isclose(stated, again, rel_tol=tolerance, abs_tol=1e-12)
    else:
        alike = type(stated) is type(again) and stated == again
    return [] if alike else [f"{name}: {_text(stated)}, but its entries give {_text(again)}"]


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "nothing" if value is None else f"{value!s:.80}"
