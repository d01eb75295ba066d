"""Ticket sets from tickets: for other records, and from a pruned model. Both keep the lineage of what they are made of.

A mask that goes into another set still tells of the records that it was made from (docs/privacy-model.md section 2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from dpltm.errors import InputError
from dpltm.features.inputs import take_over_map
from dpltm.networks import ModelSpec, Network, check_kind_takes, check_tables
from dpltm.networks.own import OwnModel
from dpltm.networks.own_network import for_records, network_notes, started_at
from dpltm.options.tickets import TransferOptions
from dpltm.privacy.entry import lineage_of
from dpltm.pruning.ticket_transfer import Fresh, LayerReport, Mode, one_round, retarget
from dpltm.pruning.ticket_transfer import transfer as transfer_tickets
from dpltm.records.dataset import Dataset
from dpltm.records.notes import public_input_notes
from dpltm.training.artifacts import Parent, TicketSet, columns_in, with_start


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
