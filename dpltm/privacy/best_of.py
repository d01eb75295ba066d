"""Cost of keeping the best of several trainings, where an account holds some that may differ in settings alone."""

from __future__ import annotations

import math
from dataclasses import replace

from dpltm.privacy.account import Account
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.accountants import FINE, QUICK
from dpltm.privacy.describe import figure
from dpltm.privacy.entry import TICKETS, Entry
from dpltm.privacy.mechanisms import NoisySgd, PrivateSearch
from dpltm.privacy.private_search import SCORE_NOISE, gamma_for

MAX_PRICED = 20
"""Trainings with up to this many different mechanisms are compared with a search; more would take long."""


def best_of_notes(account: Account, delta: float, accountant: str, *, priced: bool = True) -> list[str]:
    """Return what the best of some trainings costs: sentences for each part that several trainings are on.

    A ledger has no step sizes or seeds, so it cannot tell a search from one training that was begun twice: the sentences say
    what *keeping the best* costs. Tickets that a training under DP made are where others start, and no try.
    With ``priced`` they say what a private search would have cost; pricing one takes a second.
    """
    groups: dict[object, list[Entry]] = {}
    for entry in account.paid:
        if entry.of(NoisySgd) and not entry.facts.startswith(TICKETS):
            groups.setdefault(entry.part, []).append(entry)
    several = [group for group in groups.values() if len(group) > 1]
    return [note for group in several for note in _notes(account, group, delta, accountant, priced)]


def _notes(account: Account, group: list[Entry], delta: float, accountant: str, priced: bool) -> list[str]:
    every = replace(account, entries=tuple(group)).epsilon(delta, accountant)
    if math.isinf(every):
        return []
    notes = [
        f"{len(group)} trainings on {group[0].part} may differ in settings alone: whoever keeps the best of them pays for"
        f" all, epsilon {figure(every)} together, and for scores on private records on top (`eval_private`)"
    ]
    if priced and (price := _price(account, group, every, delta, accountant)) is not None:
        notes.append(
            f"a search that is paid for (dpltm tune `private` `tries` {len(group)}) would have cost epsilon {figure(price)},"
            " scores included, for as many tries in the mean, each as noisy as the costliest of these"
        )
    return notes


def _price(account: Account, group: list[Entry], every: float, delta: float, accountant: str) -> float | None:
    """Epsilon of a search; None where none is made (replace-one, other sampling or noise), or where pricing takes long."""
    trainings = {
        replace(sgd, nominal_sensitivity=None, claimed_by="") for entry in group for sgd in entry.of(NoisySgd)
    }
    if (
        account.adjacency != "add-remove"
        or len(trainings) > MAX_PRICED
        or {type(each) for each in trainings} != {NoisySgd}
    ):
        return None
    costliest = max(trainings, key=lambda mechanism: epsilon((mechanism,), delta, "rdp"))  # quick: it only ranks them
    price = every
    # The noise of scores follows from the price; a third time would change it by one percent.
    for resolution in (QUICK, FINE):
        search = PrivateSearch((costliest,), SCORE_NOISE / price, gamma_for(len(group)))
        price = epsilon((search,), delta, accountant, resolution=resolution)
        if math.isinf(price):
            return None
    return price
