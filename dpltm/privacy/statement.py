"""Statements of privacy: a certified figure, what a source paper would claim for the same releases (nominal), and notes.

Both figures are computed from an account alone, so whoever has its entries can recompute them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dpltm.privacy.account import Account
from dpltm.privacy.accountant import MIN_NOISE, approximate
from dpltm.privacy.accountants import ACCOUNTANTS, certified_by
from dpltm.privacy.describe import figure
from dpltm.privacy.entry import to_json
from dpltm.privacy.mechanisms import Adjacency, Mechanism, NoisySgd, Sampling, Selection, Unprotected, sampling_of

SEARCH_NOTE = (
    "hyperparameter search, seed picking and early stopping on private scores are not covered unless they are paid for"
)
MIXED_NOTE = (
    "some releases are for add-remove and some for replace-one; the figure is for replace-one, where one for add-remove"
    " counts as two steps"
)
SETTLED_NOTE = "the figure holds for releases that were settled beforehand, or by a rule that does not look at answers"


@dataclass(frozen=True)
class Certified:
    """A proven guarantee: epsilon at delta, with everything it is stated for."""

    epsilon: float
    delta: float
    accountant: str
    adjacency: Adjacency
    unit: str
    sampling: Sampling


@dataclass(frozen=True)
class Nominal:
    """A claimed figure and the source that claims it."""

    epsilon: float
    delta: float
    source: str


@dataclass(frozen=True)
class PrivacyReport:
    """Figures and notes about privacy; no ``nominal`` one where no source claims any; epsilons of populations ``apart``."""

    certified: Certified
    nominal: Nominal | None
    notes: tuple[str, ...]
    apart: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the ``privacy`` object of every command that touches private data."""
        return {"certified": to_json(self.certified), "nominal": to_json(self.nominal), "notes": list(self.notes)}


def json_figure(value: float) -> float | str:
    """Return a figure as JSON has it: the text ``inf`` where it is infinite."""
    return "inf" if math.isinf(value) else value


def statement(
    account: Account,
    delta: float,
    accountant: str = "pld",
    adjacency: Adjacency = "add-remove",
    notes: Iterable[str] = (),
) -> PrivacyReport:
    """Return both figures, and the notes, of everything that counts.

    Args:
        accountant: of the certified figure; that of one that certifies nothing is nominal, beside ``pld``'s.
        adjacency: the relation to state where no release fixes one.
    """
    method = certified_by(accountant)
    value = account.epsilon(delta, method)
    mechanisms = [mechanism for entry in account.paid for mechanism in entry.mechanisms]
    certified = Certified(value, delta, method, account.adjacency or adjacency, account.unit, sampling_of(mechanisms))
    nominal = _nominal(account, delta, accountant)
    sentences = [*entry_notes(account), *notes]
    if nominal is not None and method != accountant:
        sentences.append(compare_central_limit(nominal.epsilon, value))
    if len({mechanism.adjacency for mechanism in mechanisms}) > 1:
        sentences.append(MIXED_NOTE)
    if len(account.paid) > 1:
        sentences.append(SETTLED_NOTE)
    sentences += [SEARCH_NOTE] if account.adjacency is not None else []
    apart = {
        name: Account(entries, unit=entries[0].unit).epsilon(delta, method) for name, entries in account.aside.items()
    }
    sentences += [
        f"at least epsilon {figure(epsilon)} for {name}, declared to have nobody in common with these people"
        for name, epsilon in apart.items()
    ]
    return PrivacyReport(certified, nominal, tuple(dict.fromkeys(sentences)), apart)


def of_run(report: PrivacyReport, account: Account) -> PrivacyReport:
    """Return what is stated of a run: no source claims anything of one whose training is not among its entries."""
    mechanisms = [mechanism for entry in account.paid for mechanism in entry.mechanisms]
    untrained = all(isinstance(mechanism, (Unprotected, Selection)) for mechanism in mechanisms)
    return replace(report, nominal=None) if mechanisms and untrained else report


def compare_central_limit(approximate: float, certified: float) -> str:
    """Return how far the central limit figure is from the certified one, and on which side."""
    if not (math.isfinite(approximate) and math.isfinite(certified) and certified > 0):
        return "the central limit figure is an approximation and promises nothing"
    side = "below" if approximate < certified else "above"
    gap = abs(approximate - certified)
    return (
        f"the central limit figure {figure(approximate)} is {gap:.2g} ({gap / certified:.1%}) {side} the certified one: it"
        " is an approximation and promises nothing"
    )


def as_claimed(mechanism: Mechanism) -> Mechanism:
    """Return a mechanism as its source accounts for it: a claimed bound in place of the true one."""
    match mechanism:
        case NoisySgd() if mechanism.nominal_sensitivity is not None:
            return replace(mechanism, noise_multiplier=mechanism.noise_std / mechanism.nominal_sensitivity)
        case Selection():
            return replace(mechanism, certified_epsilon=mechanism.eps1)
    return mechanism


def claimed(account: Account) -> Account:
    """Return an account as sources account for it: tickets taken as given, claimed bounds in place of true ones."""
    entries = []
    for entry in account.entries:
        protected = (mechanism for mechanism in entry.mechanisms if not isinstance(mechanism, Unprotected))
        mechanisms = tuple(map(as_claimed, protected))
        if mechanisms or not entry.paid:
            entries.append(replace(entry, mechanisms=mechanisms))
    return replace(account, entries=tuple(entries))


def claims(account: Account) -> list[str]:
    """Return the sources that claim other sensitivities than the certified ones, each once."""
    sources = [
        sgd.claimed_by or "the filter's source"
        for entry in account.paid
        for sgd in entry.of(NoisySgd)
        if sgd.nominal_sensitivity not in (None, sgd.sensitivity)
    ]
    return list(dict.fromkeys(sources))


def _nominal(account: Account, delta: float, accountant: str) -> Nominal | None:
    """Figure of an approximation, or what the papers would claim; None where they claim nothing of their own."""
    seen, method = claimed(account), ACCOUNTANTS.find(accountant)
    if not method.certifies:
        value = max(approximate(seen.mechanisms(piece), delta, accountant) for piece in seen.pieces)
        return Nominal(value, delta, "; ".join([f"{method.source}, an approximation", *claims(account)]))
    drawn = [selection for entry in account.paid for selection in entry.of(Selection)]
    unprotected = any(entry.of(Unprotected) for entry in account.paid)
    sources = [*(["DPLTM Theorem 3"] if drawn or unprotected else []), *claims(account)]
    if not sources:
        return None
    # the theorem adds eps1 and eps2 of the training, and takes candidates as given, whatever they were made from
    rest = replace(seen, entries=tuple(entry for entry in seen.entries if not entry.of(Selection)))
    return Nominal(sum(draw.eps1 for draw in drawn) + rest.epsilon(delta), delta, "; ".join(sources))


def entry_notes(account: Account) -> list[str]:
    """Return the notes that entries call for by themselves, whatever else is said of them."""
    paid = account.paid
    notes = []
    fast = sum(any(mechanism.bits == "fast" for mechanism in entry.mechanisms) for entry in paid)
    if fast:
        notes.append(
            f"noise of {fast} {'release' if fast == 1 else 'releases'} (`noise` fast) comes from a generator that is not"
            " cryptographic: whoever predicts its bits can take the noise away, and no figure counts that"
        )
    for entry in paid:
        for mechanism in entry.mechanisms:
            if isinstance(mechanism, Unprotected):
                notes.append(f"released without protection from {entry.part}: {entry.words}; nothing is certified")
            elif isinstance(mechanism, Selection) and mechanism.certified_epsilon > mechanism.eps1:
                notes.append(
                    f"the sensitivity of {entry.words} is below the true one: the selection at eps1 {mechanism.eps1:g} is"
                    f" certified as {figure(mechanism.certified_epsilon)}"
                )
            elif isinstance(mechanism, NoisySgd) and mechanism.noise_multiplier < MIN_NOISE:
                notes.append(f"training at noise multiplier {mechanism.noise_multiplier:.3g}: nothing is certified")
    for kind, declared in (("public", "public"), ("excluded", "apart from these people")):
        part_names = dict.fromkeys(str(entry.part) for entry in account.entries if entry.kind == kind)
        if part_names and paid:
            notes.append(f"nothing is promised for records that were declared {declared}: {', '.join(part_names)}")
    notes += [
        f"parts of {name} are cut by its places, which its published file fixes: the neighbour is that file with one place"
        " empty"
        for name in dict.fromkeys(entry.part.name for entry in paid if entry.part.cut == "place")
    ]
    if any(entry.kind == "local" and entry.home != account.home for entry in paid):
        notes.append("messages under local DP are counted one an owner; whoever sent several adds them up")
    return notes
