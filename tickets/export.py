"""Ticket sets for others: a set to share, one ticket in the form of ``torch.nn.utils.prune``, and smaller networks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpltm.errors import ArtifactError, DpltmError, InputError, first_line
from dpltm.networks import ModelSpec, Network
from dpltm.networks.compaction import Compact, compact
from dpltm.networks.masks import Mask, network_id
from dpltm.networks.state import weights_of
from dpltm.privacy.entry import Lineage, to_json, value_from_json
from dpltm.pruning.generation import Ticket, Tickets
from dpltm.tickets import files
from dpltm.tickets.charts import MAX_METRICS
from dpltm.tickets.feature_files import described, map_json, write_map
from dpltm.tickets.files import check_free, new_file, new_folder, read_bytes, read_header
from dpltm.tickets.model_card import sources
from dpltm.tickets.run import WEIGHTS, read_object, write_config, write_network
from dpltm.tickets.tensors import read_tensors, write_tensors
from dpltm.tickets.ticket_set import MAX_SET, check_text, save_ticket_set
from dpltm.training.artifacts import Parent, ProvenanceKind, Run, TicketSet, check_provenance

_ORIG, _MASK = "_orig", "_mask"
_ORIGIN = "dpltm_origin"  # key in the metadata of an exported file

MAX_METADATA = 2**20

_LARGEST_STATE = 8  # bytes for each parameter at most: a float32, and one of its mask


SHARING_PRIVATE = (
    "made from private records with no mechanism: its masks may reveal them, and no epsilon bounds how much"
)


@dataclass(frozen=True)
class Origin:
    """Origin that a ticket states once it left its set, with its feature map as ``map_json`` has it."""

    id: str
    name: str
    provenance: ProvenanceKind
    lineage: Lineage
    feature_map: dict | None = None

    def __post_init__(self) -> None:
        for key in ("id", "name"):
            check_text(key, getattr(self, key))
        check_provenance(self.provenance, self.lineage)
        if self.feature_map is not None:
            described(self.feature_map)

    @classmethod
    def of(cls, tickets: TicketSet) -> Origin:
        return cls(tickets.id, tickets.name, tickets.provenance, tickets.lineage, map_json(tickets.feature_map))

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "lineage": to_json(self.lineage)}


def check_shareable(tickets: TicketSet, *, label: str, consent: bool) -> None:
    """Refuse to hand on masks that no epsilon bounds without consent."""
    if tickets.provenance == "private" and not consent:
        raise DpltmError(
            f"{label}: {SHARING_PRIVATE}; if you mean to hand them on all the same, without predictors, add `yes`"
        )


def sharing_notes(tickets: TicketSet, *, of_set: bool) -> list[str]:
    """Notes for whoever hands tickets on."""
    feature_map, lineage = tickets.feature_map, tickets.lineage
    private = f"{SHARING_PRIVATE}; predictors and accuracies stay here"
    notes = [private] if tickets.provenance == "private" else []
    if feature_map is not None and not of_set:
        notes.append(
            f"the network takes {feature_map.text} features, not records; what makes them stays in {tickets.label}"
        )
    if lineage.paid:
        whose = " and ".join(sources(lineage))
        notes.append(f"what it depends on goes with the copy: releases from {whose}, and what they cost")
    return notes


def export_set(tickets: TicketSet, path: Path) -> TicketSet:
    """Write a copy to hand on: no winner, and of a set of provenance ``private`` neither predictors nor accuracies."""
    body = tickets.body
    if tickets.provenance == "private":
        unscored = (replace(ticket, accuracy=None, predictor=None) for ticket in body.tickets)
        body = replace(body, tickets=tuple(unscored))
    return save_ticket_set(path, replace(tickets, body=body))


def export_torch_prune(values: Mapping[str, Tensor], mask: Mask, path: Path, origin: Origin) -> None:
    """Write the state dict of a model pruned by ``torch.nn.utils.prune``: ``NAME_orig`` and ``NAME_mask`` of each weight."""
    check_free(path)
    if path.suffix != ".safetensors":
        raise ArtifactError(f"`out`: {path}: tensors are written as safetensors; name it {path.stem}.safetensors")
    tensors: dict[str, np.ndarray] = {}
    for name, value in values.items():
        if name not in mask.prunable:
            tensors[name] = value.numpy()
        else:
            tensors[name + _ORIG], tensors[name + _MASK] = value.numpy(), mask[name].to(value.dtype).numpy()
    with new_file(path) as staging:
        # of several keys the order would vary
        write_tensors(staging, tensors, metadata={_ORIGIN: json.dumps(origin.to_json())})


def read_origin(path: Path) -> Origin | None:
    """Return the origin of the tickets in an exported file; None in a file that does not say."""
    header = read_header(path, _LARGEST_STATE * MAX_SET)
    stated = header.get("__metadata__", {}).get(_ORIGIN)
    if stated is None:
        return None
    try:
        return value_from_json(Origin, json.loads(stated), "origin")
    except (ArtifactError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: what it says of its origin: {first_line(error)}") from None


def import_torch_prune(path: Path, spec: Network) -> Tickets:
    """Return the set of the dense network and the ticket in a state dict of ``torch.nn.utils.prune``, stored as safetensors.

    Weights may be there with their masks (``NAME_orig``, ``NAME_mask``) or by their names: zeros among those count as
    pruned, since ``prune.remove`` leaves them. InputError for masks that prune nothing, a whole layer, or a bias.
    """
    header = read_header(path, _LARGEST_STATE * spec.parameters)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in spec.shapes().items():
        shapes |= {name + _ORIG: shape, name + _MASK: shape} if name + _MASK in header else {name: shape}
    stored = {
        name: torch.from_numpy(value) for name, value in read_tensors(path, shapes, metadata=MAX_METADATA).items()
    }
    values = {name: stored[name if name in stored else name + _ORIG] for name in spec.shapes()}
    dense = Mask({name: torch.ones(shape, dtype=torch.bool) for name, shape in spec.shapes().items()})
    live = dict(dense.items())
    for name, value in values.items():
        if not bool(value.isfinite().all()):
            raise InputError(f"{path}: {name} holds a weight that is not finite")
        if (mask := stored.get(name + _MASK)) is not None:
            if value.ndim < 2 and not bool((mask == 1).all()):
                raise InputError(f"{path}: {name} is pruned, but only weights can be: biases stay live")
            if not bool(((mask == 0) | (mask == 1)).all()):
                raise InputError(f"{path}: {name}{_MASK} holds values other than 0 and 1; it is no mask")
            live[name] = mask == 1
        elif value.ndim >= 2:
            live[name] = value != 0
    pruned = Mask(live)
    pruned.check_alive(str(path))
    if pruned.density == 1:
        raise InputError(f"{path}: its masks prune nothing, and no weight is zero")
    return Tickets(spec, values, (Ticket(0, dense, None, None), Ticket(1, pruned, None, None)))


def compact_set(tickets: TicketSet, number: int, path: Path) -> dict[str, Any]:
    """Write a set of the compact dense network, and the ticket of a round in it, as round 1; return sizes."""
    spec, ticket = tickets.body.spec, tickets.ticket(number)
    smaller = _compacted(spec, tickets.body.theta0, ticket.mask, tickets.label)
    dense = Ticket(0, Mask.dense(smaller.model), None, None)
    body = Tickets(smaller.spec, weights_of(smaller.model), (dense, Ticket(1, smaller.mask, None, None)))
    # pruned starting weights are those of the set as well, though the mask keeps them at zero
    for name, value in body.theta0.items():
        value.copy_(tickets.body.theta0[name].flatten()[smaller.places[name]].view(value.shape))
    config: dict[str, Any] = {"compacted": {"model": spec.text, "features": spec.features, "classes": spec.classes}}
    if "table_schema" in tickets.config:
        config["table_schema"] = tickets.config["table_schema"]
    parent = Parent(tickets.id, tickets.name, number, "compaction")
    save_ticket_set(path, replace(tickets, body=body, config=config, parent=parent))
    return _sizes(spec, ticket.mask, smaller)


def compact_run(run: Run, path: Path) -> dict[str, Any]:
    """Write a run whose network is compact and gives the same answers, and return sizes."""
    if run.path is None:
        raise ArtifactError(f"{run.label}: lies in no folder; save it first")
    spec = run.spec
    smaller = _compacted(spec, weights_of(run.model), run.mask, run.label)
    with new_folder(path) as folder:
        for name in ("metrics.jsonl", "environment.json"):
            (folder / name).write_bytes(read_bytes(run.path / name, MAX_METRICS))
        digest = network_id(smaller.model, smaller.mask)
        result = read_object(run.path / "result.json")
        files.write_json(folder / "result.json", {**result, WEIGHTS: digest})  # figures are of the same answers
        changes = {"model": smaller.spec.text, "compacted_from": spec.text}
        write_config(folder, {**run.config, **changes, "feature_map": write_map(folder, run.feature_map)})
        write_network(folder, smaller.model, smaller.mask)
        files.write_lineage(folder, run.lineage, digest)
    return _sizes(spec, run.mask, smaller)


def _compacted(spec: Network, values: Mapping[str, Tensor], mask: Mask, label: str) -> Compact:
    if not isinstance(spec, ModelSpec):
        raise InputError(f"{label}: is of {spec.text!a:.100}; only networks of a kind by name can be compacted")
    smaller = compact(spec, values, mask)
    if smaller.spec == spec:
        raise InputError(
            "nothing to compact: every unit of a linear layer or a convolution has a live weight behind it; a sparser round,"
            " or `criterion` structured, leaves more without use"
        )
    return smaller


def _sizes(spec: Network, mask: Mask, smaller: Compact) -> dict[str, Any]:
    """Return networks, their parameters and live coordinates, before and after, as JSON."""
    sides = {"before": (spec, mask), "after": (smaller.spec, smaller.mask)}
    return {
        "model": {name: spec.text for name, (spec, _) in sides.items()},
        "parameters": {name: sum(value.numel() for value in side.values()) for name, (_, side) in sides.items()},
        "live": {name: side.live for name, (_, side) in sides.items()},
    }
