"""Ticket sets from tickets: for other records, and from a pruned model. Both keep what the tickets depend on.

A mask that goes into another set still tells of the records that it was made from, so provenance, the releases that it was
made by and every draw behind it go along (privacy-model.md 2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Protocol, cast

from dpltm.errors import InputError
from dpltm.features.feature_map import FeatureMap
from dpltm.networks import ModelSpec
from dpltm.options.features import FeatureOptions
from dpltm.options.tickets import ImportOptions
from dpltm.options.transfer import TransferOptions
from dpltm.privacy.behind import found_behind
from dpltm.privacy.events import DatasetRef, Event, ProvenanceKind
from dpltm.privacy.lineage import draws_behind
from dpltm.privacy.old_ledger import merge
from dpltm.pruning.generation import Tickets
from dpltm.pruning.ticket_set import Parent, TicketSet, Winner, found_setting, schema_of
from dpltm.pruning.ticket_transfer import Fresh, LayerReport, Mode, one_round, retarget
from dpltm.pruning.ticket_transfer import transfer as transfer_tickets
from dpltm.records import Dataset
from dpltm.records.notes import public_input_notes
from dpltm.records.registry import RecordRegistry
from dpltm.stages.checks import check_tables
from dpltm.stages.front import FeatureSources, take_over_map, with_feature_map
from dpltm.stages.progress import SILENT, Progress


@dataclass(frozen=True)
class TransferredSet:
    """A ticket set for other records.

    Attributes:
        tickets: the set.
        layers: where each layer comes from.
        notes: what a reader should know.
    """

    tickets: TicketSet
    layers: tuple[LayerReport, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class TransferPlan:
    """A transfer in which all that can be refused was not, unless the two networks have no layer in common.

    Attributes:
        tickets: the set that is taken from.
        body: its tickets, or the one round that is taken.
        round: that round; None for all.
        dataset: the other records, with what stands in front of the network.
        target: the network for them.
        options: what is taken over.
        draws: behind what is taken.
    """

    tickets: TicketSet
    body: Tickets
    round: int | None
    dataset: Dataset
    target: ModelSpec
    options: TransferOptions
    draws: tuple[Event, ...]


def check_options(options: TransferOptions) -> None:
    """Raises InputError for an option out of range."""
    if not 0 <= options.seed < 2**62:
        raise InputError(f"`seed`: {options.seed} is not between 0 and 2^62 - 1")


def plan_transfer(
    tickets: TicketSet,
    dataset: Dataset,
    options: TransferOptions,
    *,
    round: int | None = None,
    winner: Winner | None = None,
) -> TransferPlan:
    """Which network the tickets would be for.

    Args:
        tickets: a set.
        dataset: the other records, of which only the shape is looked at.
        options: what is taken over.
        round: the ticket that is taken; None for all.
        winner: of the draws from the set, if there were any.

    Raises:
        InputError: an option out of range, or records that the network cannot take.
        ArtifactError: no such round.
    """
    check_options(options)
    dataset = take_over_map(dataset, tickets.feature_map, None, tickets.label)
    body = tickets.body
    if round is not None:
        body = one_round(body, tickets.ticket(round).round)
    target = retarget(body.spec, dataset.input_shape, dataset.features, dataset.classes, dataset.input_tables)
    check_tables(target, dataset, f"{tickets.label}: its network")
    return TransferPlan(tickets, body, round, dataset, target, options, draws_behind(tickets, winner, round))


def transfer(plan: TransferPlan) -> TransferredSet:
    """The set of the tickets for the other records.

    Raises:
        InputError: not one layer can be kept.
    """
    source, options, dataset = plan.tickets, plan.options, plan.dataset
    mode, fresh = cast(Mode, options.mode), cast(Fresh, options.fresh)
    made = transfer_tickets(plan.body, plan.target, mode, fresh, options.seed)
    tickets = replace(
        source,
        body=made.tickets,
        config={
            "transfer": {"mode": options.mode, "fresh": options.fresh, "seed": options.seed},
            **schema_of(source),
            **found_setting(merge((found_behind(source), dataset.found))),
        },
        draws=plan.draws,
        parent=Parent(source.id, source.name, plan.round, f"transfer ({options.mode})"),
        name=options.name or source.name,
        feature_map=dataset.feature_map or source.feature_map,
        label="",
        path=None,
    )
    notes = public_input_notes(dataset)
    if source.provenance in ("dp", "private"):
        notes.append(
            f"the tickets depend on {source.source}, where their cost is entered; whether {dataset.name} holds the same"
            " people in a form that is not recognised (scaled, rounded, other columns) is yours to know"
        )
    return TransferredSet(tickets, made.layers, tuple(notes))


class StatedFront(Protocol):
    """What a file says of the map in front of its network: all but its tensors."""

    @property
    def text(self) -> str: ...

    @property
    def network(self) -> ModelSpec | None: ...

    @property
    def source(self) -> DatasetRef | None: ...

    @property
    def has_tensors(self) -> bool: ...

    def restored(self, named: FeatureMap | None) -> FeatureMap | None:
        """The map itself, with the tensors of ``named`` if it has any; None if that is another map, or is needed."""
        ...


class StatedOrigin(Protocol):
    """What a file says of where its ticket comes from."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def provenance(self) -> ProvenanceKind: ...

    @property
    def source(self) -> DatasetRef | None: ...

    @property
    def events(self) -> tuple[Event, ...]: ...

    @property
    def draws(self) -> tuple[Event, ...]: ...

    @property
    def found(self) -> tuple[Event, ...] | None:
        """What bounds and categories were found by; None where the file does not say."""
        ...

    @property
    def front(self) -> StatedFront | None: ...

    @property
    def complete(self) -> bool:
        """Whether it says what stands in front; files that dpltm wrote before 0.2 did not."""
        ...


def front_of_import(
    dataset: Dataset,
    origin: StatedOrigin | None,
    options: FeatureOptions,
    sources: FeatureSources,
    *,
    file: str,
    progress: Progress = SILENT,
) -> tuple[Dataset, list[str]]:
    """The records with the map that the file says its network stands behind, or that is named where it does not say.

    Args:
        dataset: the records that the network is for.
        origin: what the file says of itself, if it does.
        options: that name a map.
        sources: where what they name comes from.
        file: its name, for messages.
        progress: told how far it is.

    Raises:
        InputError: the map has tensors, and is not named; or another is.
    """
    notes = []
    if origin is not None and origin.found is None:
        notes.append(
            f"{file} is of a former version, and does not say what bounds and categories of its records were found by; if"
            " that was a release, it is not counted: export the ticket again"
        )
    if origin is None or not origin.complete:
        if options.features is not None:
            return with_feature_map(dataset, options, sources, progress), notes
        return dataset, [
            *notes,
            f"{file} does not say what stands in front of its network; records as they are is what is taken: if it is"
            " features, name them with `features`, since what they were made from counts as well",
        ]
    front = origin.front
    if front is None:
        if options.features is not None:
            raise InputError(f"`features`: the network in {file} takes records as they are; leave it out")
        return dataset, notes
    if front.has_tensors and options.features is None:
        example = "network:RUN" if front.network is not None else f"{front.text}, with its `public` and `components`"
        raise InputError(
            f"`features` is missing: the network in {file} stands behind {front.text} features, made from"
            f" {front.source}, whose tensors the file does not hold; name what they were made by, as `features` {example}"
        )
    named = None
    if options.features is not None:
        named = with_feature_map(dataset, options, sources, progress).feature_map
    feature_map = front.restored(named)
    if feature_map is None:
        raise InputError(
            f"`features`: {options.features} is not what the network in {file} stands behind ({front}); name the very same"
        )
    return take_over_map(dataset, feature_map, None, file), notes


def imported_set(
    body: Tickets,
    dataset: Dataset,
    origin: StatedOrigin | None,
    options: ImportOptions,
    registry: RecordRegistry,
    *,
    file: str,
) -> TicketSet:
    """The set of a pruned model.

    Args:
        body: its dense network and its ticket.
        dataset: the records that it is for, with what stands in front of the network; and that it was made from, where
            the options and not the file say so.
        origin: what the file says of itself, if it does.
        options: what is said of it.
        registry: tells whose records these are.
        file: where it lies, for messages.

    Raises:
        InputError: nobody says what the tickets depend on, or the options say something else than the file.
    """
    parent, found = None, merge(((origin and origin.found) or (), dataset.found))
    source: DatasetRef | None
    events = () if origin is None else origin.events
    if origin is not None:
        if options.provenance not in (None, origin.provenance):
            raise InputError(f"`provenance`: {file} says {origin.provenance} of itself; leave `provenance` out")
        provenance, source = origin.provenance, origin.source
        parent = Parent(origin.id, origin.name, None, "export and import")
    elif options.provenance is None:
        raise InputError(f"`provenance` is missing: {file} does not say what its masks and weights depend on")
    else:
        provenance = cast(ProvenanceKind, options.provenance)
        free = provenance == "data-free"
        if dataset.synthetic is not None and not free:
            if provenance == "private":
                raise InputError(
                    f"`provenance`: private is for records of people, and those of {dataset.name} are synthetic: take"
                    " public, at no cost; the tickets remember the release behind the records"
                )
            released = registry.resolve_event(dataset.synthetic.event)
            provenance, source, events = "dp", released.dataset, (released,)
        else:
            source = None if free else registry.reference(dataset, public=provenance == "public")
    return TicketSet(
        body=body,
        name=options.name or PurePath(file).stem,
        criterion="imported",
        provenance=provenance,
        source=source,
        config={"imported": PurePath(file).name, **found_setting(found)},
        events=events,
        draws=() if origin is None else origin.draws,
        parent=parent,
        feature_map=dataset.feature_map,
    )
