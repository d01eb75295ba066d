"""Ticket sets for other tools: plain state dicts, the form of ``torch.nn.utils.prune``, ONNX, and a set to share."""

from __future__ import annotations

import json
import logging
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dpltm.errors import ArtifactError, DpltmError, InputError, first_line
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.privacy.account import Account
from dpltm.privacy.entry import Lineage, lineage_from_json, to_json
from dpltm.privacy.figures import figure
from dpltm.privacy.mechanisms import NoisySgd, Unprotected
from dpltm.pruning.generation import Ticket, Tickets
from dpltm.pruning.ticket_set import PROVENANCES, ProvenanceKind, TicketSet, check_provenance
from dpltm.tickets.card import sources
from dpltm.tickets.feature_files import Front
from dpltm.tickets.files import check_free, new_file
from dpltm.tickets.tensors import read_header, read_tensors, write_tensors
from dpltm.tickets.ticket_set import MAX_SET, check_text, save_ticket_set

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ORIG, _MASK = "_orig", "_mask"
_ORIGIN = "dpltm_origin"
"""Key in the metadata of an exported file."""

MAX_METADATA = 2**20

ANY_DELTA = 1e-5
"""Delta of the epsilon that is told of a network in front."""

UNPROTECTED_FRONT = "holds a network trained on {} with no mechanism"

_LARGEST_STATE = 8
"""Bytes for each parameter at most: a float32, and one of its mask."""


SHARING_PRIVATE = (
    "made from private records with no mechanism: its masks may reveal them, and no epsilon bounds how much"
)


@dataclass(frozen=True)
class Origin:
    """What a ticket that left its set says of where it comes from.

    Attributes:
        id, name, provenance, lineage: of the set.
        front: what stands in front of its network, but for its tensors; None for nothing.
    """

    id: str
    name: str
    provenance: ProvenanceKind
    lineage: Lineage
    front: Front | None = None

    @classmethod
    def of(cls, tickets: TicketSet) -> Origin:
        """What the tickets of a set take along."""
        front = None if tickets.feature_map is None else Front.of(tickets.feature_map)
        return cls(tickets.id, tickets.name, tickets.provenance, tickets.lineage, front)

    def to_json(self) -> dict[str, Any]:
        """As one JSON object."""
        front = None if self.front is None else self.front.to_json()
        named = {"id": self.id, "name": self.name, "provenance": self.provenance}
        return {**named, "lineage": to_json(self.lineage), "feature_map": front}

    @classmethod
    def from_json(cls, body: object) -> Origin:
        """What ``to_json`` gave.

        Raises:
            ArtifactError: it is something else.
        """
        if isinstance(body, dict) and set(body) >= {"provenance", "source", "events"}:
            raise ArtifactError("it was written by dpltm before 0.3; make it again")
        if not isinstance(body, dict) or set(body) != {"id", "name", "provenance", "lineage", "feature_map"}:
            raise ArtifactError("not the origin of a ticket")
        for key in ("id", "name"):
            check_text(key, body[key])
        if body["provenance"] not in PROVENANCES:
            raise ArtifactError(f"provenance {body['provenance']!r:.40} is none of {', '.join(PROVENANCES)}")
        lineage, stated = lineage_from_json(body["lineage"]), body["feature_map"]
        check_provenance(body["provenance"], lineage)
        front = None if stated is None else Front.from_json(stated)
        return cls(body["id"], body["name"], body["provenance"], lineage, front)


def _unprotected(lineage: Lineage) -> bool:
    """Whether something was released with no mechanism, or with one that adds no noise."""
    bare = (sgd for entry in lineage.entries for sgd in entry.of(NoisySgd) if sgd.noise_multiplier == 0)
    return any(entry.of(Unprotected) for entry in lineage.entries) or next(bare, None) is not None


def _spent(lineage: Lineage) -> float:
    """The largest epsilon that a lineage comes to for one of its units."""
    by_unit = {
        unit: tuple(entry for entry in lineage.paid if entry.unit == unit)
        for unit in {entry.unit for entry in lineage.paid}
    }
    return max((Account(entries, unit=unit).epsilon(ANY_DELTA) for unit, entries in by_unit.items()), default=0.0)


def check_shareable(tickets: TicketSet, *, label: str, whole: bool, predictor: bool, consent: bool) -> None:
    """Refuses to hand on what no epsilon bounds: networks trained on private records, always; masks, without consent.

    Args:
        tickets: the set.
        label: what messages call it.
        whole: whether all of it goes, with what stands in front; or one ticket.
        predictor: whether the network trained in that round goes.
        consent: whether the user said yes to what may reveal records.

    Raises:
        DpltmError: saying what it is.
    """
    front = Lineage() if tickets.feature_map is None else tickets.feature_map.lineage
    named = " and ".join(sources(front))
    if whole and _unprotected(front):
        held = UNPROTECTED_FRONT.format(named)
        raise DpltmError(f"{label}: {held}, which is never handed on; export one ticket alone, as {label}@ROUND")
    behind_unprotected = _unprotected(front) and tickets.provenance != "data-free"
    if predictor and (tickets.provenance == "private" or behind_unprotected):
        raise DpltmError(
            f"`predictor`: the predictors of {label} were trained on private records with no mechanism, and are never handed"
            " on; leave it out for the starting weights"
        )
    if tickets.provenance == "private" and not consent:
        raise DpltmError(
            f"{label}: {SHARING_PRIVATE}; if you mean to hand them on all the same, without predictors, add `yes`"
        )
    if behind_unprotected and not consent:
        raise DpltmError(
            f"{label}: made behind a network trained on {named} with no mechanism: its masks may reveal those records, and"
            " no epsilon bounds how much; if you mean to hand them on all the same, add `yes`"
        )
    if whole and front.paid and not consent:
        raise DpltmError(
            f"{label}: holds a network trained on {named}; certified for those records is epsilon {figure(_spent(front))} at"
            f" delta {ANY_DELTA:g}; if you mean to hand it on, add `yes`"
        )


def sharing_notes(tickets: TicketSet, *, whole: bool) -> list[str]:
    """What whoever hands tickets on should know."""
    notes = []
    if tickets.provenance == "private":
        notes.append(f"{SHARING_PRIVATE}; predictors and accuracies stay here")
    if tickets.feature_map is not None and not whole:
        notes.append(
            f"the network takes {tickets.feature_map.text} features, not records; what makes them stays in {tickets.label}"
        )
    if tickets.lineage.paid:
        named = " and ".join(sources(tickets.lineage))
        notes.append(f"what it depends on goes with the copy: releases from {named}, and what they cost")
    return notes


def export_set(tickets: TicketSet, path: Path, *, predictors: bool = True) -> TicketSet:
    """A copy to hand on: no winner, and nothing made from private records with no mechanism but masks.

    Predictors and accuracies of a set of provenance ``private`` stay behind, and predictors of any set if asked.

    Args:
        tickets: the set.
        path: folder to write.
        predictors: whether trained networks go with it, where they may.

    Returns:
        The copy.

    Raises:
        ArtifactError: ``path`` exists or cannot be written.
        InputError: the network in front was trained on private records with no mechanism; a set cannot go without it.
    """
    front = tickets.feature_map
    if front is not None and _unprotected(front.lineage):
        named = " and ".join(sources(front.lineage))
        raise InputError(f"{tickets.label}: {UNPROTECTED_FRONT.format(named)}, which is never handed on")
    private = tickets.provenance == "private"
    body = tickets.body if predictors and not private else tickets.body.without_predictors()
    if private:
        body = replace(body, tickets=tuple(replace(ticket, accuracy=None) for ticket in body.tickets))
    return save_ticket_set(path, replace(tickets, body=body))


def export_state_dict(values: Mapping[str, Tensor], mask: Mask, path: Path, origin: Origin) -> None:
    """The parameters under a mask, pruned ones zero, in a file that ``safetensors.torch.load_file`` reads.

    Args:
        values: parameters by name.
        mask: of the ticket.
        path: file to write, ``.safetensors``; there must be none.
        origin: where they come from, for the metadata.

    Raises:
        ArtifactError: ``path`` exists, cannot be written, or has another suffix.
        InputError: the origin is too long.
    """
    _write(path, origin, {name: value.masked_fill(~mask[name], 0.0).numpy() for name, value in values.items()})


def export_torch_prune(values: Mapping[str, Tensor], mask: Mask, path: Path, origin: Origin) -> None:
    """The state dict of a model pruned by ``torch.nn.utils.prune``: ``NAME_orig`` and ``NAME_mask`` for every weight.

    ``prune.identity(module, "weight")`` on every module with a weight makes a model that takes it. Arguments as
    :func:`export_state_dict`.
    """
    tensors: dict[str, np.ndarray] = {}
    for name, value in values.items():
        if value.ndim < 2:
            tensors[name] = value.numpy()
        else:
            tensors[name + _ORIG], tensors[name + _MASK] = value.numpy(), mask[name].to(value.dtype).numpy()
    _write(path, origin, tensors)


def export_onnx(
    spec: ModelSpec, values: Mapping[str, Tensor], mask: Mask, path: Path, origin: Origin | None = None
) -> None:
    """The network as an ONNX file, input ``records (batch, features)``, output ``outputs (batch, classes)``.

    Of metadata it has the origin and no other: torch notes for every node where on this machine its own source lies.

    Args:
        spec: the network.
        values: parameters by name.
        mask: of the ticket; pruned weights are written as zeros.
        path: file to write; there must be none.
        origin: where they come from, for the metadata; None for nothing.

    Raises:
        InputError: the optional packages are not installed, or the origin is too long.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(f"`to`: onnx needs the package {error.name}; pip install 'dpltm[onnx]'") from None
    said = {} if origin is None else {_ORIGIN: _stated(origin)}
    model = build(spec)
    model.load_state_dict(dict(values))
    mask.apply(model)
    check_free(path)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision, which nothing here needs
    with new_file(path) as staging, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        program = torch.onnx.export(
            model.eval(), (torch.zeros(2, spec.features),), dynamo=True, input_names=["records"],
            output_names=["outputs"], verbose=False, dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
        )  # fmt: skip
        assert program is not None
        for part in _parts(program.model):
            part.metadata_props.clear()
            part.doc_string = None
        program.model.metadata_props.update(said)
        program.save(str(staging))


def _parts(model: Any) -> Iterator[Any]:
    """Everything in an ONNX model that may have metadata: itself, its graphs, their nodes and values."""
    yield model
    for graph in (model.graph, *model.functions.values()):
        yield graph.graph if hasattr(graph, "graph") else graph
        yield from (*graph.inputs, *graph.outputs)
        for node in graph.all_nodes():
            yield node
            yield from node.outputs
    yield from model.graph.initializers.values()


def read_origin(path: Path, spec: ModelSpec | None = None) -> Origin | None:
    """Where the tickets in an exported file come from; None in a file that does not say.

    Args:
        path: the file.
        spec: its network; None where that is not known yet.

    Raises:
        ArtifactError: not a safetensors file for that network, or what it says makes no sense.
    """
    header = read_header(path, _LARGEST_STATE * (MAX_SET if spec is None else spec.parameters))
    stated = header.get("__metadata__", {}).get(_ORIGIN)
    if stated is None:
        return None
    try:
        return Origin.from_json(json.loads(stated))
    except (ArtifactError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: what it says of its origin: {first_line(error)}") from None


def import_torch_prune(path: Path, spec: ModelSpec) -> Tickets:
    """The set of the dense network and the ticket in a state dict of ``torch.nn.utils.prune``, stored as safetensors.

    Weights may be there with their masks (``NAME_orig``, ``NAME_mask``) or, if they were not pruned, by their names.

    Raises:
        ArtifactError: not such a file, or of another network.
        InputError: masks that are not zeros and ones, that prune nothing, a whole layer, or a bias.
    """
    stored = read_header(path, _LARGEST_STATE * spec.parameters)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in spec.shapes().items():
        shapes |= {name + _ORIG: shape, name + _MASK: shape} if name + _MASK in stored else {name: shape}
    tensors = {
        name: torch.from_numpy(value) for name, value in read_tensors(path, shapes, "float32", MAX_METADATA).items()
    }
    theta0 = {name: tensors[name if name in tensors else name + _ORIG] for name in spec.shapes()}
    masks = {name: tensors[name + _MASK] for name in spec.shapes() if name + _MASK in tensors}
    live_mask = {name: torch.ones(shape, dtype=torch.bool) for name, shape in spec.shapes().items()}
    for name, value in masks.items():
        if live_mask[name].ndim < 2 and not bool((value == 1).all()):
            raise InputError(f"{path}: {name} is pruned, but only weights can be: biases stay live")
        if not bool(((value == 0) | (value == 1)).all()):
            raise InputError(f"{path}: {name}{_MASK} holds values other than 0 and 1; it is no mask")
        live_mask[name] = value == 1
    mask = Mask(live_mask)
    mask.check_alive(str(path))
    if mask.density == 1:
        raise InputError(f"{path}: its masks prune nothing")
    dense = Mask({name: torch.ones_like(value) for name, value in live_mask.items()})
    values = {name: value.to(torch.float32) for name, value in theta0.items()}
    for name, value in values.items():
        if not bool(value.isfinite().all()):
            raise InputError(f"{path}: {name} holds a weight that is not finite")
    return Tickets(spec, values, (Ticket(0, dense, None, None), Ticket(1, mask, None, None)))


def _write(path: Path, origin: Origin, tensors: Mapping[str, np.ndarray]) -> None:
    check_free(path)
    text = _stated(origin)
    if path.suffix != ".safetensors":
        raise ArtifactError(f"`out`: {path}: tensors are written as safetensors; name it {path.stem}.safetensors")
    with new_file(path) as staging:
        write_tensors(staging, tensors, metadata={_ORIGIN: text})  # of several keys the order would vary


def _stated(origin: Origin) -> str:
    """What a file says of where it comes from.

    Raises:
        InputError: too long.
    """
    text = json.dumps(origin.to_json())
    if len(text) > MAX_METADATA // 2:
        raise InputError(
            f"{origin.name}: {len(origin.lineage.entries)} releases and declarations are too many to go with a file; export"
            " the whole set"
        )
    return text
