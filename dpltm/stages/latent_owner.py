"""The owners' side of LATENT: the release of the messages. Nothing here needs torch, but a map in front that does.

Each message is locally private under replace-one, whatever the record; encoding the same records again is another release,
so the ledger holds one entry for each time (privacy-model.md 6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dpltm.errors import InputError
from dpltm.local.bit_strings import BitStrings
from dpltm.local.scheme import Scheme
from dpltm.options.latent import EncodeOptions
from dpltm.privacy.behind import check_not_read_off
from dpltm.privacy.budgets import is_paid
from dpltm.privacy.events import HASHED, DatasetRef, Event, GuaranteeEvent
from dpltm.privacy.lineage import check_not_public, to_enter
from dpltm.privacy.mechanisms import Guarantee
from dpltm.privacy.old_ledger import Ledger
from dpltm.privacy.parts import as_replace_one
from dpltm.privacy.statement import PrivacyReport
from dpltm.randomness.noise import SecureSource
from dpltm.records import Dataset
from dpltm.records.notes import bounds_notes, unit_notes
from dpltm.records.registry import RecordRegistry
from dpltm.registry import Deferred
from dpltm.stages.checks import LedgerState, check_delta
from dpltm.stages.progress import SILENT, Progress
from dpltm.stages.synthetic_data import check_made_of_records

Price = Callable[[Scheme, DatasetRef, tuple[Event, ...], float, list[str]], PrivacyReport]
"""What is said of a release."""

FULL_REPORT = Deferred("dpltm.stages.latent_report:encoding_report")
"""Both figures, by the accountant, which takes libraries that encoding itself does not."""


def scheme_notes(scheme: Scheme) -> list[str]:
    """What a reader should know of any message of the scheme."""
    if scheme.labels_are_public:
        return ["labels are sent as they are: declared public, and not counted"]
    return []


def check_fits(scheme: Scheme, dataset: Dataset) -> None:
    """Raises InputError unless records of the dataset are of the shape, range and classes that were agreed on."""
    feature_map = scheme.feature_map
    bounds = tuple(float(bound) for bound in dataset.bounds)
    for what, field, theirs, agreed in (
        ("shape", "dataset", dataset.train.x.shape[1:], feature_map.shape),
        ("bounds", "bounds", bounds, feature_map.bounds),
        ("classes", "classes", dataset.classes, scheme.answer.classes),
    ):
        if theirs != agreed:
            raise InputError(
                f"`{field}`: {dataset.name} has {what} {theirs}, and the scheme was made for {agreed}; take records like"
                " those"
            )


@dataclass(frozen=True)
class EncodingPlan:
    """A release that may be made: all that can be refused was not, and nothing is spent.

    Attributes:
        scheme: how records are randomised.
        dataset: the records.
        entered: what the ledger lacks, the release itself last.
        privacy: of these records, once all that is entered.
        ledger: that it is entered in.
        before: the ledger as it was when the plan was made.
    """

    scheme: Scheme
    dataset: Dataset
    entered: tuple[Event, ...]
    privacy: PrivacyReport
    ledger: Ledger
    before: LedgerState


def plan_encoding(
    scheme: Scheme,
    dataset: Dataset,
    options: EncodeOptions,
    ledger: Ledger,
    *,
    label: str = "the scheme",
    price: Price = FULL_REPORT,
) -> EncodingPlan:
    """What encoding all records of ``dataset`` once would enter.

    Args:
        scheme: that was agreed on.
        dataset: the private records; one will do.
        options: of the report.
        ledger: what was spent on them before.
        label: what messages call the scheme.
        price: says what it costs.

    Raises:
        InputError: records that are not what was agreed on, were declared public, or are those that the scheme was made
            from; or a part of them whose choice would tell of the owners.
        BudgetError: a budget does not allow it.
    """
    check_delta(options.delta, dataset)
    check_made_of_records(dataset, "`dataset`", "name the private ones")
    check_fits(scheme, dataset)
    if dataset.part.cut in HASHED:
        raise InputError(
            "`subset`: a fraction picks owners by a hash of what they hold, so whoever sends a message would tell something"
            " by sending one; encode all records, or those at places of a named dataset"
        )
    if dataset.hold_out:
        raise InputError(
            "`test`: a fraction picks owners by a hash of what they hold, as `subset` would; leave it out"
        )
    if any(map(is_paid, dataset.found)):
        raise InputError(
            "`schema`: its bounds or categories were found from private records, which owners who trust nobody have not"
            " sent; write public ones"
        )
    records = ledger.registry.reference(dataset)
    _check_private(scheme, label, records, ledger.registry)
    front = _front_events(scheme, records)
    release = _release(scheme, records)
    state, before = LedgerState(ledger), ledger.events
    check_not_public(before, records, ledger.registry)
    check_not_read_off(dataset.found, records, ledger.registry)
    entered = (*to_enter(front, before), release)
    ledger.check_budgets(entered)
    notes = [*scheme_notes(scheme), *_encoding_notes(scheme, dataset, counts_front=bool(front))]
    privacy = price(scheme, records, (*before, *entered), options.delta, notes)  # refuses what has no figure
    return EncodingPlan(scheme, dataset, entered, privacy, ledger, state)


def encode(plan: EncodingPlan, progress: Progress = SILENT) -> Iterator[np.ndarray]:
    """Enters the release, then gives the messages.

    Args:
        plan: of these records; its ledger holds the release when this returns, before any coin is tossed.
        progress: told how many records are encoded.

    Returns:
        Some messages at a time, ``(n, record_bytes)`` uint8, in the order of the records.

    Raises:
        InputError: the ledger has grown since the plan was made.

    Guarantees:
        Each message is ``scheme.answer.certified``-locally private, on coins of the system's generator.
    """
    plan.before.check(plan.ledger)
    plan.ledger.enter(plan.entered, plan.before.events)
    return _messages(plan, progress)


def _messages(plan: EncodingPlan, progress: Progress) -> Iterator[np.ndarray]:
    train = plan.dataset.train
    with progress.progress(f"encoding the records of {plan.dataset.name}", len(train)) as step:
        # how many values saturated depends on the records, and no epsilon covers it: it is dropped here
        for rows, _saturated in plan.scheme.messages(train.x, train.y, SecureSource(), step):
            yield rows


def _release(scheme: Scheme, records: DatasetRef) -> GuaranteeEvent:
    clear = ", whose labels are declared public and sent as they are" if scheme.labels_are_public else ""
    what = f"one message of each record{clear}, by {scheme.answer.protocol} of scheme {scheme.id[:8]}"
    return GuaranteeEvent(records, Guarantee(scheme.answer.certified, adjacency="replace-one"), what)


def _check_private(scheme: Scheme, label: str, records: DatasetRef, registry: RecordRegistry) -> None:
    """Raises InputError for records that the scheme was made from, which were declared public or have paid already."""
    source, network = scheme.feature_map.source, scheme.feature_map.network is not None
    for public in (scheme.public, None if network else source):
        if public is not None and registry.resolve(public).surely_overlaps(records):
            raise InputError(
                f"`dataset`: {public} was declared public for {label}, and {records} shares records with it; take others"
            )
    behind = () if source is None or not network else (source, *(event.dataset for event in scheme.feature_map.events))
    for ref in behind:
        if registry.resolve(ref).surely_overlaps(records):
            raise InputError(
                f"`dataset`: the network in front of {label} was trained on {ref}, or on what was made of them, and"
                f" {records} shares records with it; take others"
            )


def _front_events(scheme: Scheme, records: DatasetRef) -> tuple[Event, ...]:
    """What the network in front cost records that may be these, as a message's own relation has it."""
    behind = (event for event in scheme.feature_map.events if is_paid(event))
    return tuple(as_replace_one(event) for event in behind if event.dataset.may_overlap(records))


def _encoding_notes(scheme: Scheme, dataset: Dataset, *, counts_front: bool) -> list[str]:
    notes = [
        *bounds_notes(dataset),
        "the number of messages shows how many records there are",
        *unit_notes(dataset),
    ]
    if isinstance(scheme.answer, BitStrings):
        notes.append(
            "how many values saturated is told to nobody: it depends on the records, and no epsilon covers it"
        )
    if counts_front:
        paid = dict.fromkeys(event.dataset.name for event in scheme.feature_map.events if is_paid(event))
        notes.append(
            f"the network in front comes from {', '.join(paid)}, elsewhere: whether these records are among"
            " them cannot be told here, so what that cost is counted, at twice its sensitivity (replace-one)"
        )
    return notes
