"""Ticket sets from tickets: for other records, and from a pruned model. Both keep the lineage of what they are made of.

A mask that goes into another set still tells of the records that it was made from (docs/privacy-model.md section 2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Protocol, cast

from dpltm.errors import InputError
from dpltm.features.feature_map import FeatureMap
from dpltm.features.setup import take_over_map, with_feature_map
from dpltm.networks import ModelSpec, Network, check_kind_takes, check_tables
from dpltm.networks.own import OwnModel
from dpltm.networks.own_network import for_records, network_notes, started_at
from dpltm.options.tickets import ImportOptions, TransferOptions
from dpltm.privacy.account import check_private, check_unprotected
from dpltm.privacy.entry import Entry, Lineage, lineage_of
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Unprotected
from dpltm.pruning.generation import Tickets
from dpltm.pruning.ticket_transfer import Fresh, LayerReport, Mode, one_round, retarget
from dpltm.pruning.ticket_transfer import transfer as transfer_tickets
from dpltm.records import Dataset
from dpltm.records.notes import public_input_notes
from dpltm.training.artifacts import Parent, ProvenanceKind, TicketSet, columns_in, with_start


@dataclass(frozen=True)
class TransferredSet:
    """A ticket set for other records, the source of each of its layers, and notes for a reader."""

    tickets: TicketSet
    layers: tuple[LayerReport, ...]
    notes: tuple[str, ...]


def transfer(
    tickets: TicketSet,
    dataset: Dataset,
    options: TransferOptions,
    *,
    round: int | None = None,
    model: OwnModel | None = None,
) -> TransferredSet:
    """Return the same tickets for other records.

    Args:
        dataset: of which only the shape is looked at.
        model: a network of the user's own for them; None for the tickets' kind.
    """
    dataset, columns, notes = _by_name(tickets, dataset)
    dataset = take_over_map(dataset, tickets.feature_map, None, tickets.label)
    body = tickets.body
    if round is not None:
        body = one_round(body, tickets.ticket(round).round)
    target = _target(body.spec, dataset, model, tickets.label)
    check_tables(target, dataset, f"{tickets.label}: its network")
    mode, fresh = cast(Mode, options.mode), cast(Fresh, options.fresh)
    made = transfer_tickets(body, target, mode, fresh, options.seed)
    config = {"transfer": {"mode": options.mode, "fresh": options.fresh, "seed": options.seed}}
    schema = {name: value for name, value in tickets.config.items() if name == "table_schema"}
    result = TicketSet(
        body=replace(made.tickets, spec=started_at(target, made.tickets.theta0)),
        name=options.name or tickets.name,
        criterion=tickets.criterion,
        provenance=with_start(tickets.provenance, target),
        made_from=lineage_of(tickets, dataset, target),
        config={**config, **schema, **columns},
        parent=Parent(tickets.id, tickets.name, round, f"transfer ({options.mode})"),
        feature_map=dataset.feature_map or tickets.feature_map,
        draws=tickets.draws,
    )
    return TransferredSet(result, made.layers, (*public_input_notes(dataset), *network_notes(target), *notes))


def _by_name(tickets: TicketSet, dataset: Dataset) -> tuple[Dataset, dict[str, list[str]], tuple[str, ...]]:
    """Return the records with columns in the order of the tickets', if they are the same; their names; and notes."""
    known = columns_in(tickets.config)
    if not known or not dataset.columns:
        return dataset, {"columns": list(dataset.columns)} if dataset.columns else {}, ()
    if sorted(known) == sorted(dataset.columns):
        return dataset.in_order(known, tickets.label), {"columns": list(known)}, ()
    moved = [f"{old!r} to {new!r}" for old, new in zip(known, dataset.columns, strict=False) if old != new]
    what = f"; those of {', '.join(moved[:3])}{' and others' if len(moved) > 3 else ''}" if moved else ""
    return dataset, {"columns": list(dataset.columns)}, (f"columns have other names, so weights went by place{what}",)


def _target(spec: Network, dataset: Dataset, model: OwnModel | None, label: str) -> Network:
    if isinstance(spec, ModelSpec):
        if model is not None:
            raise InputError(
                f"`model`: {label} is of the kind {spec.text}, which is carried over by itself; leave it out"
            )
        check_kind_takes(spec.text, dataset)
        return retarget(spec, dataset.input_shape, dataset.features, dataset.classes, dataset.input_tables)
    if model is None:
        raise InputError(
            f"`model` is missing: {label} is of {spec.text!a:.100}; name the same with a last layer for"
            f" {dataset.labels or f'{dataset.classes} classes'}"
        )
    return for_records(model, dataset).with_roles_of(spec)  # which asks for what weights depend on that are no draw


class StatedFront(Protocol):
    """Statement of a file on the map in front of its network: all but its tensors."""

    @property
    def text(self) -> str: ...

    def restored(self) -> FeatureMap | None:
        """Return the map itself; None if it has tensors, which the file does not hold."""
        ...


class StatedOrigin(Protocol):
    """Statement of a file on where its ticket comes from."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def provenance(self) -> ProvenanceKind: ...

    @property
    def lineage(self) -> Lineage: ...

    @property
    def front(self) -> StatedFront | None: ...


def front_of_import(
    dataset: Dataset, origin: StatedOrigin | None, features: str | None, *, file: str
) -> tuple[Dataset, list[str]]:
    """Return the records with the map that the file says its network stands behind, or that options name."""
    if origin is None:
        if features is not None:
            return with_feature_map(dataset, features), []
        return dataset, [
            f"{file} does not say what stands in front of its network; records as they are is what is taken: if it is"
            " features, name them with `features`, since what they were made from counts as well",
        ]
    front = origin.front
    if front is None:
        if features is not None:
            raise InputError(f"`features`: the network in {file} takes records as they are; leave it out")
        return dataset, []
    feature_map = front.restored()
    if feature_map is None:
        raise InputError(
            f"{file}: its network stands behind {front.text} features with tensors of their own, which the file does not"
            " hold; take a copy of the whole set (dpltm tickets export SET)"
        )
    behind = take_over_map(dataset, feature_map, None, file)
    named = behind.feature_map if features is None else with_feature_map(dataset, features).feature_map
    if named is None or behind.feature_map is None or named.id != behind.feature_map.id:
        raise InputError(
            f"`features`: {features} is not what the network in {file} stands behind, {front.text}; leave it out"
        )
    return behind, []


def imported_set(
    body: Tickets,
    dataset: Dataset,
    origin: StatedOrigin | None,
    options: ImportOptions,
    ledger: Ledger,
    *,
    file: str,
) -> TicketSet:
    """Return the set of a pruned model.

    Args:
        dataset: the records that it is for, with what stands in front of the network; and that it was made from, where
            the options and not the file say so.
    """
    parent = None if origin is None else Parent(origin.id, origin.name, None, "export and import")
    drafts: tuple[Entry, ...] = ()
    if origin is not None:
        if options.provenance not in (None, origin.provenance):
            raise InputError(f"`provenance`: {file} says {origin.provenance} of itself; leave `provenance` out")
        provenance = origin.provenance
    else:
        provenance, drafts = _said(dataset, options, ledger, file)
    declared = ledger.declare_once(*drafts)
    return TicketSet(
        body=body,
        name=options.name or PurePath(file).stem,
        criterion="imported",
        provenance=provenance,
        made_from=lineage_of(dataset, dataset.feature_map, origin, declared),
        config={"imported": PurePath(file).name, **({"table_schema": dataset.schema} if dataset.schema else {})},
        parent=parent,
        feature_map=dataset.feature_map,
    )


def _said(
    dataset: Dataset, options: ImportOptions, ledger: Ledger, file: str
) -> tuple[ProvenanceKind, tuple[Entry, ...]]:
    """Return the declared provenance of masks and weights that say nothing of themselves, and drafts of it."""
    words = "masks and weights made elsewhere"
    match options.provenance:
        case None:
            raise InputError(f"`provenance` is missing: {file} does not say what its masks and weights depend on")
        case "data-free":
            return "data-free", ()
        case "public":
            return "public", ledger.public(dataset, words)
        case _:
            part = ledger.part(dataset)
            check_private(ledger.account(), part)
            made = Entry("release", part, (Unprotected(),), f"{words}, with no mechanism", unit=ledger.unit)
            check_unprotected(ledger.account(), (made,), options.unprotected)
            return "private", (made,)
