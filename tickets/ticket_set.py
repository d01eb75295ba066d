"""Ticket sets on disk: a folder that holds everything needed to select from, train or share a set of tickets."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import dpltm
from dpltm.errors import ArtifactError, DpltmError
from dpltm.generation import GenerationConfig, Ticket, Tickets
from dpltm.masks import Mask
from dpltm.models import ModelSpec
from dpltm.privacy.events import DatasetRef, ProvenanceKind, now
from dpltm.tickets.card import card
from dpltm.tickets.files import new_folder, read_json, write_json
from dpltm.tickets.tensors import content_id, join, pack, read_masks, read_tensors, write_masks, write_tensors

FORMAT, SCHEMA = "dpltm-ticket-set", 1
LARGEST_ROUND = 10_000
_KEYS = frozenset(
    {"format", "schema", "id", "predictors_id", "name", "created", "dpltm", "model", "features", "classes"}
    | {"criterion", "provenance", "source", "config", "tickets", "digest"}
)


@dataclass(frozen=True)
class TicketSet:
    """A ticket set and what it says about itself.

    Attributes:
        path: its folder.
        id: content id over theta0 and masks.
        name: label.
        criterion: how weights were pruned.
        provenance: what the masks were made from, as the user declared it.
        source: the records they were made from.
        config: settings of generation.
        body: spec, theta0 and tickets.
    """

    path: Path
    id: str
    name: str
    criterion: str
    provenance: ProvenanceKind
    source: DatasetRef
    config: Mapping[str, Any]
    body: Tickets

    def ticket(self, number: int) -> Ticket:
        """The ticket of round ``number``.

        Raises:
            ArtifactError: there is no such round.
        """
        if not 0 <= number < len(self.body.tickets):
            raise ArtifactError(
                f"{self.path}@{number}: no such round; it has rounds 0 to {len(self.body.tickets) - 1}"
            )
        return self.body.tickets[number]

    @property
    def ledger_path(self) -> Path:
        """The ledger of this set where no other is named."""
        return self.path / "ledger.jsonl"


def save_ticket_set(
    path: Path,
    tickets: Tickets,
    *,
    name: str,
    criterion: str,
    provenance: ProvenanceKind,
    source: DatasetRef,
    config: GenerationConfig,
) -> TicketSet:
    """Writes a new ticket set to ``path``, whole or not at all, and returns it.

    Accuracies of a ``private`` set are private: they go to ``NAME.private.json`` beside the folder.

    Raises:
        ArtifactError: ``path`` exists or cannot be written.
    """
    masks = {str(ticket.round): ticket.mask for ticket in tickets.tickets}
    theta0 = {key: value.numpy() for key, value in tickets.theta0.items()}
    predictors = {
        f"{ticket.round}/{key}": value[ticket.mask[key]].numpy()
        for ticket in tickets.tickets
        for key, value in ticket.predictor.items()
    }
    withheld = provenance == "private"
    rows = [_row(ticket, withheld) for ticket in tickets.tickets]
    document: dict[str, Any] = {
        "format": FORMAT,
        "schema": SCHEMA,
        "id": _set_id(theta0, masks),
        "predictors_id": content_id(predictors),
        "name": name,
        "created": now(),
        "dpltm": dpltm.__version__,
        "model": tickets.spec.text,
        "features": tickets.spec.features,
        "classes": tickets.spec.classes,
        "criterion": criterion,
        "provenance": provenance,
        "source": asdict(source),
        "config": asdict(config),
        "tickets": rows,
    }
    document["digest"] = _digest(document)
    with new_folder(path) as folder:
        write_tensors(folder / "theta0.safetensors", theta0)
        write_masks(folder / "masks.safetensors", masks)
        write_tensors(folder / "predictors.safetensors", predictors)
        write_json(folder / "tickets.json", document)
        (folder / "README.md").write_text(card(document), encoding="utf-8")
    if withheld:
        accuracies = {str(ticket.round): ticket.accuracy for ticket in tickets.tickets}
        side = {"format": "dpltm-private", "schema": 1, "id": document["id"], "accuracy": accuracies}
        write_json(private_path(path), side, mode=0o600)
    return TicketSet(path, document["id"], name, criterion, provenance, source, document["config"], tickets)


def private_path(path: Path) -> Path:
    """Where accuracies measured on private records lie: beside the folder of the set, never in it."""
    return path.with_name(path.name + ".private.json")


def load_ticket_set(path: Path) -> TicketSet:
    """The ticket set in ``path``, with everything that its description claims checked against its tensors.

    Raises:
        ArtifactError: not a ticket set, a newer format, or any disagreement between description, tensors and ids.
    """
    if not path.is_dir():
        raise ArtifactError(f"{path}: no ticket set there; make one with dpltm generate --out {path}")
    if not (path / "tickets.json").is_file():
        raise ArtifactError(f"{path}: not a ticket set (no tickets.json in it); name a folder made by dpltm generate")
    document = read_json(path / "tickets.json", FORMAT, SCHEMA)
    where = path / "tickets.json"
    if set(document) != _KEYS:
        raise ArtifactError(f"{where}: unknown or missing key {min(set(document) ^ _KEYS)!r}")
    spec = _spec(where, document)
    rounds = [str(number) for number in range(_round_count(where, document["tickets"]))]
    masks = read_masks(path / "masks.safetensors", rounds, spec.shapes())
    theta0 = read_tensors(path / "theta0.safetensors", spec.shapes(), "float32")
    predictors = read_tensors(
        path / "predictors.safetensors",
        {join(number, key): (int(value.sum()),) for number in rounds for key, value in masks[number].items()},
        "float32",
    )
    if document["id"] != _set_id(theta0, masks):
        raise ArtifactError(f"{where}: the id does not match theta0 and masks; the set is damaged or was changed")
    if document["predictors_id"] != content_id(predictors):
        raise ArtifactError(f"{where}: predictors_id does not match; predictors.safetensors is damaged or was changed")
    tickets = tuple(
        _ticket(where, int(number), document["tickets"][int(number)], masks[number], predictors) for number in rounds
    )
    _check_nesting(where, tickets)
    body = Tickets(spec, {key: torch.from_numpy(value) for key, value in theta0.items()}, tickets)
    provenance, source = _origin(where, document)
    if document["digest"] != _digest(document):
        raise ArtifactError(f"{where}: the digest does not match; the description is damaged or was changed")
    return TicketSet(
        path, document["id"], document["name"], document["criterion"], provenance, source, document["config"], body
    )


def _row(ticket: Ticket, withheld: bool) -> dict[str, Any]:
    return {
        "round": ticket.round,
        "density": ticket.mask.density,
        "live": ticket.mask.live,
        "accuracy": None if withheld else ticket.accuracy,
    }


def _set_id(theta0: Mapping[str, np.ndarray], masks: Mapping[str, Mask]) -> str:
    tensors = {f"theta0/{name}": value for name, value in theta0.items()}
    tensors |= {
        f"masks/{number}/{name}": pack(value) for number, mask in masks.items() for name, value in mask.items()
    }
    return content_id(tensors)


def _digest(document: dict[str, Any]) -> str:
    body = {key: value for key, value in document.items() if key != "digest"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _spec(where: Path, document: dict[str, Any]) -> ModelSpec:
    for key in ("id", "predictors_id", "name", "model", "criterion"):
        if not isinstance(document[key], str):
            raise ArtifactError(f"{where}: {key} is not a text")
    if not isinstance(document["config"], dict):
        raise ArtifactError(f"{where}: config is not an object")
    try:
        return ModelSpec(document["model"], document["features"], document["classes"])
    except DpltmError as error:
        raise ArtifactError(f"{where}: {error}") from None


def _round_count(where: Path, rows: object) -> int:
    if not isinstance(rows, list) or not 1 <= len(rows) <= LARGEST_ROUND:
        raise ArtifactError(f"{where}: tickets is not a list of 1 to {LARGEST_ROUND} rounds")
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or set(row) != {"round", "density", "live", "accuracy"} or row["round"] != number:
            raise ArtifactError(f"{where}: tickets[{number}]: expected round {number} with density, live and accuracy")
    return len(rows)


def _ticket(where: Path, number: int, row: dict[str, Any], mask: Mask, values: dict[str, np.ndarray]) -> Ticket:
    if row["live"] != mask.live or row["density"] != mask.density:
        raise ArtifactError(f"{where}: tickets[{number}]: live or density disagrees with its mask")
    score = row["accuracy"]
    if score is not None and (not isinstance(score, (int, float)) or not 0 <= score <= 1 or isinstance(score, bool)):
        raise ArtifactError(f"{where}: tickets[{number}]: accuracy {score!r} is not between 0 and 1")
    predictor: dict[str, Tensor] = {}
    for name, keep in mask.items():
        predictor[name] = torch.zeros(keep.shape)
        predictor[name][keep] = torch.from_numpy(values[f"{number}/{name}"])
    return Ticket(number, mask, None if score is None else float(score), predictor)


def _check_nesting(where: Path, tickets: tuple[Ticket, ...]) -> None:
    for before, after in itertools.pairwise(tickets):
        if not after.mask.nested_in(before.mask):
            raise ArtifactError(
                f"{where}: the mask of round {after.round} is not nested in that of round {before.round}"
            )


def _origin(where: Path, document: dict[str, Any]) -> tuple[ProvenanceKind, DatasetRef]:
    provenance, source = document["provenance"], document["source"]
    if provenance not in ("public", "private"):
        raise ArtifactError(f"{where}: provenance {provenance!r} is unknown to this version; known: public, private")
    types = {"name": str, "fingerprint": str, "key_id": str, "start": int, "stop": int}
    if not isinstance(source, dict) or {key: type(value) for key, value in source.items()} != types:
        raise ArtifactError(f"{where}: source is not a reference to records")
    return provenance, DatasetRef(**source)
