"""Ticket sets for other tools: plain state dicts, the form of ``torch.nn.utils.prune``, ONNX, and a set to share."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpltm.errors import ArtifactError, DpltmError, InputError, first_line
from dpltm.networks import ModelSpec, Network, build
from dpltm.networks.masks import Mask
from dpltm.networks.state import put, traceable
from dpltm.privacy.account import Account
from dpltm.privacy.describe import figure
from dpltm.privacy.entry import Lineage, lineage_from_json, to_json
from dpltm.privacy.mechanisms import NoisySgd, Unprotected
from dpltm.pruning.generation import Ticket, Tickets
from dpltm.tickets.card import sources
from dpltm.tickets.feature_files import Front
from dpltm.tickets.files import MAX_JSON, check_free, new_file, new_folder, read_bytes, read_header
from dpltm.tickets.store import problems
from dpltm.tickets.tensors import read_any, write_tensors
from dpltm.tickets.ticket_set import (
    MAX_SET,
    check_text,
    described,
    load_ticket_set,
    lying_in,
    other_files,
    save_ticket_set,
)
from dpltm.training.artifacts import PROVENANCES, ProvenanceKind, TicketSet, check_provenance

_ORIG, _MASK = "_orig", "_mask"
_ORIGIN = "dpltm_origin"  # key in the metadata of an exported file

MAX_METADATA = 2**20

ANY_DELTA = 1e-5  # delta of the epsilon that is told of a network in front

UNPROTECTED_FRONT = "holds a network trained on {} with no mechanism"

_LARGEST_STATE = 8  # bytes for each parameter at most: a float32, and one of its mask


SHARING_PRIVATE = (
    "made from private records with no mechanism: its masks may reveal them, and no epsilon bounds how much"
)


@dataclass(frozen=True)
class Origin:
    """Origin that a ticket states once it left its set."""

    id: str
    name: str
    provenance: ProvenanceKind
    lineage: Lineage
    front: Front | None = None

    @classmethod
    def of(cls, tickets: TicketSet) -> Origin:
        front = None if tickets.feature_map is None else Front.of(tickets.feature_map)
        return cls(tickets.id, tickets.name, tickets.provenance, tickets.lineage, front)

    def to_json(self) -> dict[str, Any]:
        front = None if self.front is None else self.front.to_json()
        named = {"id": self.id, "name": self.name, "provenance": self.provenance}
        return {**named, "lineage": to_json(self.lineage), "feature_map": front}

    @classmethod
    def from_json(cls, body: object) -> Origin:
        """Read the result of ``to_json``; ArtifactError if it is something else."""
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


def unprotected(lineage: Lineage) -> bool:
    """Tell whether something was released with no mechanism, or with one that adds no noise."""
    bare = (sgd for entry in lineage.entries for sgd in entry.of(NoisySgd) if sgd.noise_multiplier == 0)
    return any(entry.of(Unprotected) for entry in lineage.entries) or next(bare, None) is not None


def _spent(lineage: Lineage) -> float:
    by_unit = {
        unit: tuple(entry for entry in lineage.paid if entry.unit == unit)
        for unit in {entry.unit for entry in lineage.paid}
    }
    return max((Account(entries, unit=unit).epsilon(ANY_DELTA) for unit, entries in by_unit.items()), default=0.0)


def check_shareable(tickets: TicketSet, *, label: str, whole: bool, predictor: bool, consent: bool) -> None:
    """Refuse to hand on what no epsilon bounds: networks trained on private records, always; masks, without consent.

    Args:
        whole: whether all of it goes, with what stands in front; or one ticket.
    """
    front = Lineage() if tickets.feature_map is None else tickets.feature_map.lineage
    named = " and ".join(sources(front))
    if whole and unprotected(front):
        held = UNPROTECTED_FRONT.format(named)
        raise DpltmError(f"{label}: {held}, which is never handed on; export one ticket alone, as {label}@ROUND")
    behind_unprotected = unprotected(front) and tickets.provenance != "data-free"
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
    """Notes for whoever hands tickets on."""
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
    """Write a copy to hand on: no winner, and nothing made from private records with no mechanism but masks.

    Predictors and accuracies of a set of provenance ``private`` stay behind. InputError where the network in front was
    trained on private records with no mechanism: a set cannot go without it.
    """
    front = tickets.feature_map
    if front is not None and unprotected(front.lineage):
        named = " and ".join(sources(front.lineage))
        raise InputError(f"{tickets.label}: {UNPROTECTED_FRONT.format(named)}, which is never handed on")
    private = tickets.provenance == "private"
    body = tickets.body if predictors and not private else tickets.body.without_predictors()
    if private:
        body = replace(body, tickets=tuple(replace(ticket, accuracy=None) for ticket in body.tickets))
    return save_ticket_set(path, replace(tickets, body=body))


def export_state_dict(values: Mapping[str, Tensor], mask: Mask, path: Path, origin: Origin) -> None:
    """Write the parameters under a mask, pruned ones zero, in a file that ``safetensors.torch.load_file`` reads."""
    _write(
        path,
        origin,
        {
            name: (value.masked_fill(~mask[name], 0.0) if name in mask else value).numpy()
            for name, value in values.items()
        },
    )


def export_torch_prune(values: Mapping[str, Tensor], mask: Mask, path: Path, origin: Origin) -> None:
    """Write the state dict of a model pruned by ``torch.nn.utils.prune``: ``NAME_orig`` and ``NAME_mask`` for every weight.

    ``prune.identity(module, "weight")`` on every module with a weight makes a model that takes it.
    """
    tensors: dict[str, np.ndarray] = {}
    for name, value in values.items():
        if name not in mask.prunable:
            tensors[name] = value.numpy()
        else:
            tensors[name + _ORIG], tensors[name + _MASK] = value.numpy(), mask[name].to(value.dtype).numpy()
    _write(path, origin, tensors)


def export_onnx(
    spec: Network, values: Mapping[str, Tensor], mask: Mask, path: Path, origin: Origin | None = None
) -> None:
    """Write the network as an ONNX file, input ``records (batch, features)``, output ``outputs (batch, classes)``.

    Pruned weights are zeros. The metadata is the origin alone: torch notes for every node where its own source lies.
    """
    spec.check_code("what is exported")
    model = build(spec)
    put(model, values)
    mask.apply(model)
    check_free(path)
    batch = torch.export.Dim("batch", min=1)
    program = onnx_program(
        traceable(model).eval, torch.zeros(2, spec.features), spec.text, input_names=["records"],
        output_names=["outputs"], dynamic_shapes=({0: batch},),
    )  # fmt: skip
    program.model.metadata_props.update({} if origin is None else {_ORIGIN: _stated(origin)})
    with new_file(path) as staging:
        program.save(str(staging))


def onnx_program(made: Callable[[], Any], given: Any, text: str, **options: Any) -> Any:
    """Return a network as an ONNX program, without torch's notes on where its own source lies.

    Args:
        made: makes the module, or the program of ``torch.export``.
        given: its argument.
        text: what messages call it.

    Raises:
        InputError: a package is missing, or ONNX cannot hold it.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(f"`to`: onnx needs the package {error.name}; pip install 'dpltm[onnx]'") from None
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision, which nothing here needs
    network = made()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        try:
            program = torch.onnx.export(network, (given,), dynamo=True, verbose=False, **options)
        except (RuntimeError, torch.onnx.OnnxExporterError) as error:
            raise InputError(f"`to`: onnx cannot hold {text}: {first_line(error)}") from error
    assert program is not None
    for part in _parts(program.model):
        part.metadata_props.clear()
        part.doc_string = None
    return program


def _parts(model: Any) -> Iterator[Any]:
    """Yield everything in an ONNX model that may have metadata: itself, its graphs, their nodes and values."""
    yield model
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        nodes = list(graph.all_nodes())
        yield from (graph, *graph.inputs, *nodes, *(value for node in nodes for value in node.outputs))
    yield from model.graph.initializers.values()


def read_origin(path: Path, spec: ModelSpec | None = None) -> Origin | None:
    """Return the origin of the tickets in an exported file; None in a file that does not say."""
    header = read_header(path, _LARGEST_STATE * (MAX_SET if spec is None else spec.parameters))
    stated = header.get("__metadata__", {}).get(_ORIGIN)
    if stated is None:
        return None
    try:
        return Origin.from_json(json.loads(stated))
    except (ArtifactError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: what it says of its origin: {first_line(error)}") from None


def import_torch_prune(path: Path, spec: ModelSpec) -> Tickets:
    """Return the set of the dense network and the ticket in a state dict of ``torch.nn.utils.prune``, stored as safetensors.

    Weights may be there with their masks (``NAME_orig``, ``NAME_mask``) or by their names: zeros among those count as
    pruned, since ``prune.remove`` leaves them and nothing else does. Any precision is taken, and kept as float32.

    Raises InputError for masks that are not zeros and ones, that prune nothing, a whole layer, or a bias.
    """
    stored = read_header(path, _LARGEST_STATE * spec.parameters)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in spec.shapes().items():
        shapes |= {name + _ORIG: shape, name + _MASK: shape} if name + _MASK in stored else {name: shape}
    tensors = {name: value.float() for name, value in read_any(path, shapes, MAX_METADATA).items()}
    values = {name: tensors[name if name in tensors else name + _ORIG] for name in spec.shapes()}
    dense = Mask({name: torch.ones(shape, dtype=torch.bool) for name, shape in spec.shapes().items()})
    live = dict(dense.items())
    for name, value in values.items():
        if not bool(value.isfinite().all()):
            raise InputError(f"{path}: {name} holds a weight that is not finite")
        if (mask := tensors.get(name + _MASK)) is not None:
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


def _write(path: Path, origin: Origin, tensors: Mapping[str, np.ndarray]) -> None:
    check_free(path)
    text = _stated(origin)
    if path.suffix != ".safetensors":
        raise ArtifactError(f"`out`: {path}: tensors are written as safetensors; name it {path.stem}.safetensors")
    with new_file(path) as staging:
        write_tensors(staging, tensors, metadata={_ORIGIN: text})  # of several keys the order would vary


def _stated(origin: Origin) -> str:
    """Return a file's statement of its origin; InputError if that is too long."""
    text = json.dumps(origin.to_json())
    if len(text) > MAX_METADATA // 2:
        raise InputError(
            f"{origin.name}: {len(origin.lineage.entries)} releases and declarations are too many to go with a file; export"
            " the whole set"
        )
    return text


# --- To and from a folder or the Hugging Face Hub: out without what is private, in only after everything was checked ---
#
# A place gives files by name and nothing else: no listing is taken from it, so that what else lies there is never fetched.
# How large each file may be is said by the caller; more than that is not kept.

DESCRIPTION = "tickets.json"

AT_ONCE = 2**20  # bytes that are asked of a server at a time

HUB = "hf://"
_REPOSITORY = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


@dataclass(frozen=True)
class Folder:
    """A folder of this machine, or of one that it has mounted."""

    path: Path

    @property
    def name(self) -> str:
        """Name that the user calls it by."""
        return str(self.path)

    def fetch(self, file: str, target: Path, most: int) -> bool:
        """Copy a file of that name to a new ``target``; tell whether there is one. ArtifactError above ``most`` bytes."""
        source = self.path / file
        if not source.exists() and not source.is_symlink():
            return False
        target.write_bytes(read_bytes(source, most))  # no link, pipe or device
        return True

    def put(self, folder: Path) -> None:
        """Put all files of a folder there, whole or not at all; ArtifactError if that cannot be done."""
        with new_folder(self.path) as staging:
            for source in sorted(folder.iterdir()):
                shutil.copyfile(source, staging / source.name)


@dataclass(frozen=True)
class Hub:
    """A repository OWNER/NAME of the Hugging Face Hub, by its own client: a branch, tag or commit; None for the newest."""

    repository: str
    revision: str | None = None
    public: bool = False

    @property
    def name(self) -> str:
        """Name that the user calls it by."""
        return f"{HUB}{self.repository}" + ("" if self.revision is None else f"@{self.revision}")

    def fetch(self, file: str, target: Path, most: int) -> bool:
        """See :meth:`Folder.fetch`."""
        client = _client()
        with self._said():
            try:
                source = client.HfFileSystem().open(f"{self.repository}/{file}", "rb", revision=self.revision)
            except FileNotFoundError:
                return False
            with source, target.open("wb") as into:
                while part := source.read(AT_ONCE):
                    into.write(part)
                    if into.tell() > most:
                        raise ArtifactError(f"{self.name}/{file}: more than the {most:,} bytes that it may have")
        return True

    def put(self, folder: Path) -> None:
        """See :meth:`Folder.put`."""
        client = _client()
        with self._said():
            interface = client.HfApi()
            interface.create_repo(self.repository, private=not self.public, exist_ok=True)
            if not self.public and not interface.model_info(self.repository).private:  # one that was there before
                raise InputError(
                    f"DEST: {self.name}: everybody can read this repository; make it private there, or say --public"
                )
            interface.upload_folder(  # one commit
                repo_id=self.repository, folder_path=str(folder), commit_message="Add lottery tickets of dpltm"
            )

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        """A block in which whatever the client says becomes one line."""
        try:
            yield
        except DpltmError:
            raise
        except Exception as error:  # the client's errors, and those of whatever it talks through
            raise ArtifactError(
                f"{self.name}: {first_line(error)}; check the name, the network and your login (hf auth login)"
            ) from None


def _client() -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise InputError(f"{HUB}: needs the package {error.name}; pip install 'dpltm[hub]'") from None


Place = Folder | Hub  # where the files of a set lie, or will: it gives them by name and nothing else


def place_of(text: str, argument: str, *, public: bool = False) -> Place:
    """Return the place of an address: ``hf://OWNER/NAME[@REVISION]``, ``file:///...`` or the path of a folder."""
    if text.startswith(HUB):
        match = _REPOSITORY.fullmatch(text)
        if match is None or ".." in text:
            raise InputError(f"{argument}: {text:.100}: not a repository; write hf://OWNER/NAME")
        if argument == "DEST" and match[2] is not None:
            raise InputError(f"DEST: {text:.100}: sets are pushed to the main branch; leave @{match[2]} out")
        return Hub(match[1], match[2], public)
    scheme, found, rest = text.partition("://")
    if found and scheme != "file":
        raise InputError(f"{argument}: {text:.100}: takes hf://OWNER/NAME and folders; fetch the set into a folder")
    return Folder(Path(rest if found else text))


def push(tickets: TicketSet, place: Place, *, predictors: bool = True) -> str:
    """Put a copy of a set in a place: the result of ``export_set``, and nothing else.

    Returns:
        The digest of the description, which pins all of the set and of its lineage.

    Guarantees:
        No ledger, winner, checkpoint or accuracy on private records leaves: the files that go are those of a set that was
        written anew. Its lineage, with the draws from it, goes with it.
    """
    with tempfile.TemporaryDirectory(prefix="dpltm-push-") as temporary:
        copy = Path(temporary) / "set"
        export_set(tickets, copy, predictors=predictors)
        if isinstance(place, Hub) and place.fetch(DESCRIPTION, Path(temporary) / DESCRIPTION, MAX_JSON):
            raise ArtifactError(f"{place.name}: holds a ticket set already; choose another name")
        digest: str = described(copy)["digest"]
        try:
            place.put(copy)
        except ArtifactError as error:  # a push has no `out`
            raise ArtifactError(str(error).replace("`out`", "DEST", 1)) from None
    return digest


def pull(place: Place, out: Path, digest: str | None = None) -> tuple[TicketSet, str]:
    """Take a set from a place into a new folder, once everything about it was found to be right.

    Args:
        digest: that its description must have; None to take it as it is.

    Guarantees:
        Only the files of a set are asked for, by their names, and of each no more than its description allows, which bounds
        itself. Nothing is at ``out`` before all of it was read, checked and compared; then all of it is.
    """
    with new_folder(out) as folder:
        if not place.fetch(DESCRIPTION, folder / DESCRIPTION, MAX_JSON):
            raise ArtifactError(f"{place.name}: no ticket set there (no {DESCRIPTION}); name one that was pushed")
        with _naming(place, folder):
            stated = described(folder)
        if digest is not None and stated["digest"] != digest:
            raise ArtifactError(
                f"{place.name}: its digest is {stated['digest']}, not the one expected; it was changed, or is another set"
            )
        for name, most in other_files(folder).items():
            if not place.fetch(name, folder / name, most):
                raise ArtifactError(f"{place.name}: {name} is missing; the set there is incomplete")
        with _naming(place, folder):
            for wrong in problems(folder):
                raise ArtifactError(wrong)
            tickets = load_ticket_set(folder)
    return lying_in(out, tickets), stated["digest"]


@contextlib.contextmanager
def _naming(place: Place, folder: Path) -> Iterator[None]:
    """A block whose refusals name the place where they would name the folder."""
    try:
        yield
    except DpltmError as error:
        raise ArtifactError(str(error).replace(str(folder), place.name)) from None
