"""Ticket sets for tests, and entries that they come from: as some ledger holds them, with a lineage for each provenance."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from dpltm.privacy.entry import Entry, Lineage, Part
from dpltm.privacy.mechanisms import GaussianRelease, NoisySgd, Selection, Unprotected
from dpltm.pruning.generation import Tickets
from dpltm.tickets.ticket_set import save_ticket_set
from dpltm.training.artifacts import TicketSet

HOME, DAY = "ab" * 32, "2026-01-02"
SOURCE = Part("digits", "cd" * 32, cut="place", start=0, stop=719)


def entered(draft: Entry, number: int) -> Entry:
    """A draft as entry ``number`` of one ledger."""
    return replace(draft, id=f"{number:064x}", home=HOME, sequence=number, day=DAY)


SAID = entered(Entry("public", SOURCE, words="tickets by magnitude"), 1)
MADE = entered(Entry("release", SOURCE, (Unprotected(),), "tickets by magnitude, with no mechanism"), 2)
TRAINED = entered(Entry("release", SOURCE, (NoisySgd(0.25, 60, 3.5),), "tickets by dp-train"), 3)
MOMENTS = entered(Entry("release", SOURCE, (GaussianRelease(7.5, 2.0),), "tickets by dp-synthetic"), 4)
DRAWN = entered(Entry("release", SOURCE, (Selection(0.1, 0.1),), "winner of 3 tickets"), 5)

LINEAGES = {
    "data-free": Lineage(),
    "public": Lineage((SAID,)),
    "dp": Lineage((TRAINED, MOMENTS)),
    "private": Lineage((MADE,)),
}
"""By provenance."""


def by_dp_accounting(*entries: Entry, interval: float = 1e-3) -> float:
    """The epsilon of trainings and Gaussian queries at delta 1e-5 by dp-accounting's own accountant."""
    from dp_accounting import dp_event
    from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=interval)
    for entry in entries:
        for query in entry.of(GaussianRelease):
            accountant.compose(dp_event.GaussianDpEvent(query.noise_multiplier))
        for sgd in entry.of(NoisySgd):
            step = dp_event.PoissonSampledDpEvent(sgd.sampling_rate, dp_event.GaussianDpEvent(sgd.noise_multiplier))
            accountant.compose(dp_event.SelfComposedDpEvent(step, sgd.steps))
    return float(accountant.get_epsilon(1e-5))


def store_set(path: Path, body: Tickets, **said: Any) -> TicketSet:
    """The set in ``path``, from its tickets and the fields of ``TicketSet``; its lineage is one of its provenance."""
    said = {"made_from": LINEAGES[said["provenance"]], **said}
    return save_ticket_set(path, TicketSet(body=body, **said))
