"""Small records, tickets and releases in memory, for tests of the stages."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from dpltm.networks import ModelSpec
from dpltm.options.train import TrainOptions
from dpltm.privacy.events import DatasetRef, ProvenanceEvent, SelectionEvent
from dpltm.privacy.mechanisms import Selection
from dpltm.privacy.old_ledger import Ledger
from dpltm.pruning.generation import GenerationConfig, Tickets, generate
from dpltm.pruning.ticket_set import TicketSet
from dpltm.records import Dataset, from_arrays, prepare
from dpltm.records.registry import RecordRegistry
from dpltm.stages.services import Services
from dpltm.stages.starting_point import StartingPoint, from_round
from dpltm.stages.train_plan import TrainingPlan, plan

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


def plain_records(
    seed: int, count: int = RECORDS, features: int = FEATURES, name: str = "mine", **facts: Any
) -> Dataset:
    """Records of which every third has the same label, whatever its features, with their number declared."""
    draw = np.random.default_rng(seed)
    x, y = draw.integers(0, 256, (count, features), dtype=np.uint8), np.arange(count) % CLASSES
    return from_arrays(x, y, name=name, **{"classes": CLASSES, "records": count, **facts})


def kinds(ledger: Ledger) -> list[str]:
    """What a ledger holds, in order: kinds of releases, and where tickets or maps come from."""
    return [
        event.provenance if isinstance(event, ProvenanceEvent) else type(event).__name__ for event in ledger.events
    ]


@cache
def body() -> Tickets:
    """Two rounds of a small network, made of the records of seed 1."""
    made = records(1)
    config = GenerationConfig(rounds=2, prune=(0.3,), iterations=5, batch_size=32)
    x, y = torch.from_numpy(prepare(made.train.x, made.bounds)), torch.from_numpy(made.train.y)
    return generate(SPEC, x, y, config)


def ticket_set(registry: RecordRegistry, provenance: str = "public", source: Dataset | None = None) -> TicketSet:
    """A set of two rounds, said to be of that provenance: of ``source``, or of the records of seed 1."""
    made = records(1) if source is None else source
    ref = None if provenance == "data-free" else registry.reference(made, public=provenance == "public")
    return TicketSet(
        body=body(),
        name="tickets",
        criterion="magnitude",
        provenance=provenance,
        source=ref,
        config={},  # type: ignore[arg-type]
    )


def a_draw(ref: DatasetRef, tickets: TicketSet, eps1: float = 0.2, **said: Any) -> SelectionEvent:
    """A winner drawn from ``tickets`` on the records of ``ref``."""
    return SelectionEvent(ref, Selection(eps1, eps1, **said), "additive", "exact", 0.01, 2, tickets.id)


def planned(
    *, start: StartingPoint | None = None, dataset: Dataset | None = None, ledger: Ledger | None = None, **options: Any
) -> TrainingPlan:
    """A training of two steps of the ticket of round 2 of a public set on the records of seed 0, but for what is said."""
    ledger = Ledger(registry=RecordRegistry()) if ledger is None else ledger
    start = from_round(ticket_set(ledger.registry), 2) if start is None else start
    length = {} if {"steps", "epochs"} & set(options) else {"steps": 2}
    dataset = records(0) if dataset is None else dataset
    return plan(start, dataset, TrainOptions(**length, **options), ledger, Services())
