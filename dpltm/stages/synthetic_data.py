"""Synthetic records as what a stage runs on: the release that they come from, for its ledger and its readers.

They are nobody's, so nothing is spent on them. But what is made of them is made of that release (privacy-model.md 2).
"""

from __future__ import annotations

from dpltm.errors import InputError
from dpltm.privacy.events import SYNTHETIC, Event, ProvenanceEvent
from dpltm.privacy.figures import figure
from dpltm.privacy.parts import total_epsilon
from dpltm.records import Dataset
from dpltm.records.registry import RecordRegistry


def synthetic_events(dataset: Dataset, registry: RecordRegistry) -> tuple[Event, ...]:
    """What using these records calls for, on the private records that they come from; nothing where they are anybody's.

    Args:
        dataset: the records.
        registry: tells records apart.
    """
    origin = dataset.synthetic
    if origin is None:
        return ()
    event = registry.resolve_event(origin.event)
    return event, ProvenanceEvent(event.dataset, "dp", f"{SYNTHETIC}{origin.id}")


def synthetic_notes(dataset: Dataset, delta: float) -> list[str]:
    """What a reader should know about where the records come from.

    Args:
        dataset: the records.
        delta: that the epsilon of the release is read at.
    """
    if dataset.synthetic is None:
        return []
    spent = total_epsilon([dataset.synthetic.event], delta)
    return [
        f"records of {dataset.name} are synthetic: post-processing of a release from {dataset.synthetic.source}, for whose"
        f" records that release alone is certified as epsilon {figure(spent)}; it stands in the ledger, once however often"
        " they are used"
    ]


def check_made_of_records(dataset: Dataset, taker: str, fix: str = "name records that are public themselves") -> None:
    """Raises InputError for synthetic records where the release behind them would be lost.

    Args:
        dataset: the records.
        taker: the argument that names them, as the message has it: "`public`".
        fix: what to do about it.
    """
    if dataset.synthetic is not None:
        raise InputError(
            f"{taker}: records of {dataset.name} are synthetic, made from {dataset.synthetic.source}, and what is taken of"
            f" them here would not say so; {fix}"
        )
