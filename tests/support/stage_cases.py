"""Small records, tickets and releases in memory, for tests of the verbs."""

from functools import cache
from typing import Any

import numpy as np
import torch

from dpltm.features.inputs import Services
from dpltm.networks import ModelSpec
from dpltm.options.generate import GenerateOptions
from dpltm.options.train import TrainOptions
from dpltm.privacy.entry import NO_LINEAGE, Entry, Lineage
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Selection, Unprotected
from dpltm.pruning.generation import Tickets, generate
from dpltm.records import Dataset, from_arrays, prepare
from dpltm.training.artifacts import StartingPoint, TicketSet, from_round
from dpltm.training.release import TrainingPlan
from dpltm.verbs.train import plan, settle
from opened import arrays_of

FEATURES, CLASSES, RECORDS = 6, 3, 200
SPEC = ModelSpec("mlp:8", FEATURES, CLASSES)


def records(seed: int, count: int = RECORDS, test: int = 0, **facts: Any) -> Dataset:
    """Records whose label is that of their largest group of features, more or less, ``(count, FEATURES)`` bytes."""
    draw = np.random.default_rng(seed)
    x = draw.integers(0, 256, (count + test, FEATURES), dtype=np.uint8)
    y = x.reshape(-1, CLASSES, FEATURES // CLASSES).sum(2).argmax(1)
    held_out = (x[count:], y[count:]) if test else None
    facts = {"classes": CLASSES, "name": f"records{seed}", **facts}
    return from_arrays(x[:count], y[:count], test=held_out, **facts)


def kinds(entries: Any) -> list[str]:
    """What a ledger or a lineage holds, in order: kinds of declarations, and mechanisms of releases."""
    return [
        "+".join(type(each).__name__ for each in entry.mechanisms) if entry.paid else entry.kind
        for entry in entries.entries
    ]


@cache
def body() -> Tickets:
    """Two rounds of a small network, made of the records of seed 1."""
    made = records(1)
    config = GenerateOptions(rounds=2, prune=(0.3,), iterations=5, batch_size=32).for_records(1000)
    x, y = torch.from_numpy(prepare(arrays_of(made.train).x, made.bounds)), torch.from_numpy(arrays_of(made.train).y)
    return generate(SPEC, (x, y), config)


def ticket_set(provenance: str = "data-free", lineage: Lineage = NO_LINEAGE) -> TicketSet:
    """A set of two rounds, said to be of that provenance."""
    return TicketSet(
        body=body(), name="tickets", criterion="magnitude", provenance=provenance, made_from=lineage, config={}
    )  # type: ignore[arg-type]


def public_set(ledger: Ledger) -> TicketSet:
    """A set made from the records of seed 1, which are declared public in a ledger."""
    (entry,) = ledger.declare(Entry("public", ledger.part(records(1)), words="tickets", unit=ledger.unit))
    return ticket_set("public", ledger.lineage(entry))


def private_set(ledger: Ledger, seed: int = 0) -> TicketSet:
    """A set made with no mechanism from the records of a seed."""
    draft = Entry("release", ledger.part(records(seed)), (Unprotected(),), "tickets", unit=ledger.unit)
    return ticket_set("private", ledger.lineage(*ledger.declare(draft)))


def a_draw(ledger: Ledger, tickets: TicketSet, eps1: float = 0.2, seed: int = 0) -> Lineage:
    """A winner drawn from ``tickets`` on the records of a seed, which marks the set."""
    draft = Entry("release", ledger.part(records(seed)), (Selection(eps1, eps1),), "a winner", unit=ledger.unit)
    lineage = tickets.lineage | ledger.lineage(*ledger.declare(draft))
    tickets.mark(lineage)
    return lineage


def planned(
    *,
    start: StartingPoint | None = None,
    dataset: Dataset | None = None,
    ledger: Ledger | None = None,
    own: bool = False,
    **options: Any,
) -> TrainingPlan:
    """A training of two steps of the ticket of round 2 of a public set on the records of seed 0, but for what is said."""
    ledger = Ledger() if ledger is None else ledger
    start = from_round(ticket_set(), 2) if start is None else start
    length = {} if {"steps", "epochs"} & set(options) else {"steps": 2}
    dataset = records(0) if dataset is None else dataset
    return plan(settle(start, dataset, TrainOptions(**length, **options), ledger, Services()), ledger.book, own=own)
