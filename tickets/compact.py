"""Compact ticket sets and runs: the units that a mask leaves without use are gone for good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from dpltm.errors import ArtifactError, InputError
from dpltm.networks import ModelSpec, Network
from dpltm.networks.compaction import Compact, compact
from dpltm.networks.masks import Mask, network_id
from dpltm.networks.state import weights_of
from dpltm.pruning.generation import Ticket, Tickets
from dpltm.tickets.charts import MAX_METRICS
from dpltm.tickets.feature_files import write_map
from dpltm.tickets.files import MAX_JSON, new_folder, parse_json, read_bytes, write_json, write_lineage
from dpltm.tickets.run import WEIGHTS, write_config, write_network
from dpltm.tickets.ticket_set import save_ticket_set
from dpltm.training.artifacts import Parent, Run, TicketSet


def compact_set(tickets: TicketSet, number: int, path: Path) -> dict[str, Any]:
    """Write a set of two, and return sizes: the compact dense network, and the ticket of round ``number`` in it, as round 1.

    Starting weights are those of the set. Units without live inputs stay: their biases are constants that train.
    """
    spec, ticket = _of_a_kind(tickets.body.spec, tickets.label), tickets.ticket(number)
    smaller = _compacted(spec, tickets.body.theta0, ticket.mask, fold=False)
    dense = Ticket(0, Mask.dense(smaller.model), None, None)
    body = Tickets(smaller.spec, weights_of(smaller.model), (dense, Ticket(1, smaller.mask, None, None)))
    # pruned starting weights are those of the set as well, though the mask keeps them at zero
    for name, value in body.theta0.items():
        value.copy_(tickets.body.theta0[name].flatten()[smaller.places[name]].view(value.shape))
    made = replace(
        tickets,
        body=body,
        config={
            "compacted": {"model": spec.text, "features": spec.features, "classes": spec.classes},
            **{name: value for name, value in tickets.config.items() if name == "table_schema"},
        },
        parent=Parent(tickets.id, tickets.name, number, "compaction"),
    )
    save_ticket_set(path, made)
    return _sizes(spec, ticket.mask, smaller)


def compact_run(run: Run, path: Path) -> dict[str, Any]:
    """Write a run whose network is compact and gives the same answers, and return sizes; constants go into biases."""
    if run.path is None:
        raise ArtifactError(f"{run.label}: lies in no folder; save it first")
    spec = _of_a_kind(run.spec, run.label)
    smaller = _compacted(spec, weights_of(run.model), run.mask, fold=True)
    with new_folder(path) as folder:
        for name in ("metrics.jsonl", "environment.json"):
            (folder / name).write_bytes(read_bytes(run.path / name, MAX_METRICS))
        digest = network_id(smaller.model, smaller.mask)
        result: Any = parse_json(run.path / "result.json", read_bytes(run.path / "result.json", MAX_JSON))
        write_json(folder / "result.json", {**result, WEIGHTS: digest})  # figures are of the same answers
        front = write_map(folder, run.feature_map)
        write_config(
            folder, {**run.config, "model": smaller.spec.text, "feature_map": front, "compacted_from": spec.text}
        )
        write_network(folder, smaller.model, smaller.mask)
        write_lineage(folder, run.lineage, digest)
    return _sizes(spec, run.mask, smaller)


def _of_a_kind(spec: Network, label: str) -> ModelSpec:
    if not isinstance(spec, ModelSpec):
        raise InputError(f"{label}: is of {spec.text!a:.100}; only networks of a kind by name can be compacted")
    return spec


def _compacted(spec: ModelSpec, values: Mapping[str, Tensor], mask: Mask, *, fold: bool) -> Compact:
    smaller = compact(spec, values, mask, fold=fold)
    if smaller.spec == spec:
        raise InputError(
            "nothing to compact: every unit of a linear layer or a convolution has a live weight behind it; a sparser round,"
            " or `criterion` structured, leaves more without use"
        )
    return smaller


def _sizes(spec: ModelSpec, mask: Mask, smaller: Compact) -> dict[str, Any]:
    """Return networks, their parameters and live coordinates, before and after, as JSON."""
    sides = {"before": (spec, mask), "after": (smaller.spec, smaller.mask)}
    return {
        "model": {name: spec.text for name, (spec, _) in sides.items()},
        "parameters": {name: sum(value.numel() for value in side.values()) for name, (_, side) in sides.items()},
        "live": {name: side.live for name, (_, side) in sides.items()},
    }
