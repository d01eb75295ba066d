"""Transfer of tickets to other records (DPLTM section 4.5), where a network has another input width or class count.

Layers of the same shape are kept, mask and starting weights; the others are made new. A set keeps the lineage of what it is
made of: its masks still tell of the records that they were made from (docs/privacy-model.md section 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dpltm.errors import InputError
from dpltm.features.inputs import take_over_map
from dpltm.networks import ModelSpec, Network, build, check_kind_takes, check_tables
from dpltm.networks.evaluation import check_no_target
from dpltm.networks.kind import PROJECTION
from dpltm.networks.own import OwnModel
from dpltm.networks.own_network import for_records, network_notes, started_at
from dpltm.networks.state import weights_of
from dpltm.options.tickets import TransferOptions
from dpltm.privacy.entry import lineage_of
from dpltm.pruning.generation import Ticket, Tickets
from dpltm.records.dataset import Dataset
from dpltm.records.notes import public_input_notes
from dpltm.training.artifacts import Parent, TicketSet, columns_in, with_start


def transfer(
    tickets: TicketSet,
    dataset: Dataset,
    options: TransferOptions,
    *,
    round: int | None = None,
    model: OwnModel | None = None,
) -> tuple[TicketSet, list[dict[str, Any]], list[str]]:
    """Return the same tickets for other records, where each layer comes from (``carry_over``), and notes for a reader.

    Args:
        dataset: of which only the shape is looked at.
        round: the ticket that is taken, as round 1 beside the dense network; None for all.
        model: a network of the user's own for them; None for the tickets' kind.
    """
    check_no_target(dataset, "tickets transfer")
    # a first layer that stood behind a projection has no columns by name
    trained_columns = None if options.mode == "drop-projection" else columns_in(tickets.config)
    notes = []
    if trained_columns and dataset.columns and sorted(trained_columns) == sorted(dataset.columns):
        dataset = dataset.in_order(trained_columns, tickets.label)
    elif trained_columns and dataset.columns:
        notes = ["columns have other names, so weights went by place"]
    columns = {"columns": list(dataset.columns)} if dataset.columns else {}
    dataset = take_over_map(dataset, tickets.feature_map, None, tickets.label)
    body = tickets.body
    if round is not None:
        chosen = (replace(tickets.ticket(round), round=1),) if round else ()
        body = replace(body, tickets=(body.tickets[0], *chosen))
    target = target_of(body.spec, dataset, options.mode, model, tickets.label)
    check_tables(target, dataset, f"{tickets.label}: its network")
    carried, layers = carry_over(body, target, options.mode, options.fresh, options.seed)
    config = {"transfer": {name: getattr(options, name) for name in ("mode", "fresh", "seed")}}
    of_table = dataset.schema.text if options.mode == "drop-projection" else tickets.config.get("table_schema")
    schema = {"table_schema": of_table} if of_table else {}
    result = TicketSet(
        body=replace(carried, spec=started_at(target, carried.theta0)),
        name=options.name or tickets.name,
        criterion=tickets.criterion,
        provenance=with_start(tickets.provenance, target),
        made_from=lineage_of(tickets, dataset, target),
        config={**config, **schema, **columns},
        parent=Parent(tickets.id, tickets.name, round, f"transfer ({options.mode})"),
        feature_map=dataset.feature_map or tickets.feature_map,
        draws=tickets.draws,
    )
    return result, layers, [*public_input_notes(dataset), *network_notes(target), *notes]


def target_of(spec: Network, dataset: Dataset, mode: str, model: OwnModel | None, label: str) -> Network:
    """Return the network that tickets of ``spec`` are carried over to; InputError if there is none for these records."""
    if mode == "drop-projection":
        check_kind_takes(spec.text, dataset)
        return without_projection(spec, dataset.features, dataset.classes)
    if isinstance(spec, ModelSpec):
        if model is not None:
            raise InputError(f"`model`: {label} is of a kind by name, which is carried over by itself; leave it out")
        check_kind_takes(spec.text, dataset)
        return retarget(spec, dataset.input_shape, dataset.features, dataset.classes, dataset.input_tables)
    if model is None:
        raise InputError(
            f"`model` is missing: {label} is of {spec.text!a:.100}; name the same with a last layer for"
            f" {dataset.labels or f'{dataset.classes} classes'}"
        )
    return for_records(model, dataset).with_roles_of(spec)  # which asks for what weights depend on that are no draw


def carry_over(
    tickets: Tickets, target: Network, mode: str = "ticket", fresh: str = "sparse", seed: int = 0
) -> tuple[Tickets, list[dict[str, Any]]]:
    """The same tickets for ``target``, with as many rounds, nested, and layer by layer where they come from; InputError if
    not one can be kept. They have predictors only where nothing at all was changed, and never accuracies of other records.

    Args:
        target: a network whose layers have the same names (``retarget`` gives one, or ``without_projection``).
        mode: ``ticket`` takes over masks and weights; ``drop-projection`` those of the layers between the projection, which
            ``target`` has not, and the output layer, which is new (DPLTM 4.5.2); ``mask-only`` the masks; ``shuffled-mask``
            the weights, under masks with as many live weights in each layer; ``random`` nothing but how many these are.
        fresh: layers made new live at random with the density of the layer that they replace (``sparse``), or all of them.

    Returns:
        The tickets; and of each layer the shapes of its weight before and after, its density in the last ticket, and where
        its ``mask`` comes from (``kept``, ``repeated`` over the channels of images, ``shuffled``, ``random``, or ``dense``
        if it keeps all) and its ``weights`` (``kept``, ``repeated``, ``fresh``); ``dropped`` of a projection taken off.
    """
    _check_head(tickets.spec, target)
    before, after = tickets.spec.shapes(), target.shapes()
    relations = {name: _relation(before.get(name), shape) for name, shape in after.items() if len(shape) >= 2}
    layers = list[tuple[Any, ...]]()
    if mode == "drop-projection":
        layers.append((PROJECTION, before[f"{PROJECTION}.weight"], (), "dropped", "dropped", 0.0))
        relations[next(reversed(relations))] = "fresh"
        mode = "ticket"  # of what is between
    if set(relations.values()) == {"fresh"}:
        raise InputError(
            f"{tickets.spec.text} on {tickets.spec.features} features and {tickets.spec.classes} classes has no layer in"
            f" common with {target.text} on {target.features} and {target.classes}: there is nothing to transfer"
        )
    if tickets.spec == target and mode == "ticket":
        moved = replace(tickets, tickets=tuple(replace(ticket, accuracy=None) for ticket in tickets.tickets))
    else:
        theta0 = weights_of(build(target, seed))
        if mode in ("ticket", "shuffled-mask"):
            theta0 |= _kept_weights(tickets.theta0, theta0, relations)
        generator = torch.Generator().manual_seed(seed + 2**34)
        order = {name: torch.rand(after[name], generator=generator, dtype=torch.float64) for name in relations}
        rounds = []
        for ticket in tickets.tickets:
            mask = {name: torch.ones(shape, dtype=torch.bool) for name, shape in after.items()}
            for name, relation in relations.items():  # frozen ones are kept, and live
                if name in ticket.mask and not (relation == "fresh" and fresh == "dense"):
                    mask[name] = _mask(ticket.mask[name], relation, mode, order[name])
            rounds.append(Ticket(ticket.round, target.mask(mask), None, None))
        moved = Tickets(target, theta0, tuple(rounds))
    for name, relation in relations.items():
        density = float(moved.tickets[-1].mask[name].double().mean())
        how = {"shuffled-mask": "shuffled", "random": "random"}.get(mode, relation)
        masked = "dense" if density == 1 else "random" if relation == "fresh" else how
        weights = relation if mode in ("ticket", "shuffled-mask") else "fresh"
        layer = name.removesuffix(".weight")
        layers.append((layer, before.get(name, ()), after[name], masked, weights, density))
    columns = ("layer", "before", "after", "mask", "weights", "density")
    return moved, [dict(zip(columns, row, strict=True)) for row in layers]


def _check_head(source: Network, target: Network) -> None:
    """Raise InputError for networks of the user's own that differ in more than the layer that gives the outputs."""
    if isinstance(source, ModelSpec) and isinstance(target, ModelSpec):
        return
    before, after = source.shapes(), target.shapes()
    other = [name for name in (*before, *after) if before.get(name) != after.get(name)]
    heads = {name.rpartition(".")[0] for name in other}
    if list(before) != list(after) or len(heads) > 1:
        raise InputError(
            f"`model`: {target.text} is more than {source.text} with another head ({', '.join(dict.fromkeys(other))});"
            " a network of your own is carried over to the same module with another last layer"
        )


def _relation(before: tuple[int, ...] | None, after: tuple[int, ...]) -> str:
    # all can be taken over, one channel for each of several, or nothing
    if before == after:
        return "kept"
    if before is None or len(before) != 4 or before[1] != 1:
        return "fresh"
    return "repeated" if (before[0], *before[2:]) == (after[0], *after[2:]) else "fresh"


def _kept_weights(
    old: Mapping[str, Tensor], drawn: Mapping[str, Tensor], relations: Mapping[str, str]
) -> dict[str, Tensor]:
    """Return the weights that are taken over: a layer's bias goes with all of its weights."""
    weights = {}
    fresh = {weight.rpartition(".")[0] for weight, relation in relations.items() if relation == "fresh"}
    for name, value in drawn.items():
        goes_along = name not in relations and name.rpartition(".")[0] not in fresh
        if relations.get(name) == "repeated":
            weights[name] = old[name].expand(value.shape).clone() / value.shape[1]  # grey images give the same
        elif relations.get(name) == "kept" or (goes_along and name in old and old[name].shape == value.shape):
            weights[name] = old[name].clone()
    return weights


def _mask(old: Tensor, relation: str, mode: str, order: Tensor) -> Tensor:
    """The mask of one layer's weight; ``order`` is the same for every round, so that masks stay nested."""
    if relation == "repeated":
        old = old.expand(order.shape).clone()
    if relation != "fresh" and mode in ("ticket", "mask-only"):
        return old
    count = max(1, round(float(old.double().mean()) * order.numel()))
    live = torch.zeros(order.numel(), dtype=torch.bool)
    live[order.flatten().argsort(stable=True)[:count]] = True
    return live.view(order.shape)


def retarget(
    spec: ModelSpec, shape: tuple[int, ...], features: int, classes: int, tables: tuple[int, ...] = ()
) -> ModelSpec:
    """The network of ``spec`` for records of another shape, classes or ``tables`` of positions; InputError if none."""
    name = spec.name
    sizes = name.kind.sizes_of(spec.text.partition(":")[0], shape, tables)
    return ModelSpec(spec.text if sizes == name.sizes else str(replace(name, sizes=sizes)), features, classes)


def without_projection(spec: Network, features: int, classes: int) -> ModelSpec:
    """The network behind the projection of ``spec``; InputError if it has none onto the width ``features``."""
    name = spec.name if isinstance(spec, ModelSpec) else None
    if name is None or not name.projected or name.widths[0] != features:
        raise InputError(
            f"`mode`: {spec.text!a:.100} has no projection onto {features:,} numbers to drop; generate tickets of the"
            f" network mlp:{PROJECTION}{features},300,100, or take `mode` ticket"
        )
    return ModelSpec(str(replace(name, explicit=tuple(name.widths[1:]), projected=False)), features, classes)
