"""Ticket sets on disk: a folder that holds everything needed to select from, train or share a set of tickets."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import dpltm
from dpltm.errors import ArtifactError, DpltmError, InputError
from dpltm.networks import Network
from dpltm.networks.masks import Mask
from dpltm.networks.own_network import OwnNetwork, network_of
from dpltm.networks.state import content_id
from dpltm.options.generate import MAX_ROUNDS
from dpltm.privacy.entry import Lineage, lineage_from_json, to_json, today, value_from_json
from dpltm.privacy.ledger import canonical
from dpltm.pruning.generation import Ticket, Tickets
from dpltm.tickets import files, tensors
from dpltm.tickets.feature_files import read_map, write_map
from dpltm.tickets.model_card import card
from dpltm.training.artifacts import Parent, TicketSet, Winner, check_provenance, set_id

MAX_ROUND, MAX_CARD, MAX_TEXT = MAX_ROUNDS + 1, 2**20, 200

MAX_SET = 2**28  # most coordinates of all masks together: reading a set takes a few bytes for each

_KEYS = frozenset(
    {"id", "predictors_id", "name", "created", "dpltm", "model", "features", "classes", "criterion", "provenance"}
) | {"lineage", "parent", "config", "feature_map", "tickets", "card"}
_OWN_DOCUMENT = files.Document("dpltm-ticket-set", 5, _KEYS | {"own"})  # of a network of the user's own
_DOCUMENT = files.Document("dpltm-ticket-set", 4, _KEYS)

WINNER = "winner.json"  # file of the winner of the last draw, in the folder of its set
_WINNER = files.Document("dpltm-winner", 1, frozenset({"ticket_set", "round", "facts", "lineage", "day"}))


def folder_of(tickets: TicketSet) -> Path:
    """Return the folder of a set; ArtifactError for one that was never saved."""
    if tickets.path is None:
        raise ArtifactError(f"{tickets.label}: lies in no folder; save it first")
    return tickets.path


def lying_in(path: Path, tickets: TicketSet) -> TicketSet:
    """Return a set as it lies in ``path``: draws from it are marked there."""
    return replace(tickets, path=path, label=str(path), on_mark=partial(files.add_lineage, path, of=tickets.id))


def save_ticket_set(path: Path, tickets: TicketSet, winner: Winner | None = None) -> TicketSet:
    """Write a new ticket set to ``path``, whole or not at all, perhaps with a winner, and return it as it lies there.

    Accuracies of a ``private`` set are private, and written nowhere.
    """
    body = tickets.body
    check_text("`name`", tickets.name)
    check_text("criterion", tickets.criterion)
    check_size("`rounds`", body.spec, len(body.tickets))
    if tickets.parent is not None:
        for key in ("id", "name", "how"):
            check_text(f"parent: {key}", getattr(tickets.parent, key))
    _check_finite("`lr`", body.theta0)
    check_provenance(tickets.provenance, tickets.lineage)
    predictors = {  # live values, by round and name
        f"{ticket.round}/{key}": value[ticket.mask[key]].numpy()
        for ticket in body.tickets
        for key, value in (ticket.predictor or {}).items()
        if key in ticket.mask
    }
    with files.new_folder(path) as folder:
        front = write_map(folder, tickets.feature_map)
        document = _described(tickets, content_id(predictors) if predictors else None, front)
        text = card(document, tickets.lineage).encode()
        theta0 = {key: value.numpy() for key, value in body.theta0.items()}
        tensors.write_tensors(folder / "theta0.safetensors", theta0)
        tensors.write_outputs(folder, body.spec)
        tensors.write_masks(folder / "masks.safetensors", {str(ticket.round): ticket.mask for ticket in body.tickets})
        if predictors:
            tensors.write_tensors(folder / "predictors.safetensors", predictors)
        files.write_lineage(folder, tickets.lineage, tickets.id)
        form = _OWN_DOCUMENT if "own" in document else _DOCUMENT
        files.write_json(folder / "tickets.json", form.sealed({**document, "card": hashlib.sha256(text).hexdigest()}))
        (folder / "README.md").write_bytes(text)
        if winner is not None:
            save_winner(folder, winner)
    return lying_in(path, tickets)


def _described(tickets: TicketSet, predictors_id: str | None, front: Mapping[str, Any] | None) -> dict[str, Any]:
    """``tickets.json``, but for what every document has, and for the card, which is made of it."""
    body, spec = tickets.body, tickets.body.spec
    return {
        "id": tickets.id, "predictors_id": predictors_id, "name": tickets.name, "created": today(),
        "dpltm": dpltm.__version__, "model": spec.text, "features": spec.features, "classes": spec.classes,
        "criterion": tickets.criterion, "provenance": tickets.provenance, "lineage": _digests(tickets.lineage),
        "parent": None if tickets.parent is None else asdict(tickets.parent), "config": dict(tickets.config),
        "tickets": ticket_rows(body, measured=tickets.provenance != "private"), "feature_map": front,
        **({"own": spec.to_json()} if isinstance(spec, OwnNetwork) else {}),
    }  # fmt: skip


def _digests(lineage: Lineage) -> dict[str, str]:
    return {entry.id: hashlib.sha256(canonical(to_json(entry)).encode()).hexdigest() for entry in lineage.entries}


def load_ticket_set(path: Path) -> TicketSet:
    """Return the ticket set in ``path``, with everything that its description claims checked against its tensors."""
    where = path / "tickets.json"
    if not where.is_file():
        code = " (code goes with `model`)" if ":" in path.name else ""
        raise ArtifactError(f"{path}: no ticket set there; name a folder that holds one{code}")
    document = described(path)
    spec, count = _size(where, document)
    rounds = [str(number) for number in range(count)]
    spec, theta0 = tensors.read_weights(path / "theta0.safetensors", spec, document.get("own"))
    masks = tensors.read_masks(path / "masks.safetensors", rounds, spec.shapes(), spec.mask)
    _check_finite(str(path / "theta0.safetensors"), theta0)
    if document["id"] != set_id({key: value.numpy() for key, value in theta0.items()}, masks):
        raise ArtifactError(f"{where}: the id does not match theta0 and masks; the set is damaged or was changed")
    predictors = _predictors(path, document["predictors_id"], rounds, masks)
    tickets = tuple(
        _ticket(f"{where}: tickets[{number}]", number, row, masks[str(number)], predictors)
        for number, row in enumerate(document["tickets"])
    )
    for before, after in itertools.pairwise(tickets):
        if not after.mask.nested_in(before.mask):
            raise ArtifactError(
                f"{where}: the mask of round {after.round} is not nested in that of round {before.round}"
            )
    lineage, stated = files.read_lineage(path, document["id"]), document["lineage"]
    if not isinstance(stated, dict) or not stated.items() <= _digests(lineage).items():
        raise ArtifactError(f"{path / files.LINEAGE}: does not hold the entries that the set was written with")
    try:
        check_provenance(document["provenance"], lineage)
    except ArtifactError as error:
        raise ArtifactError(f"{where}: {error}") from None
    parent = document["parent"]
    loaded = TicketSet(
        body=Tickets(spec, theta0, tickets),
        **{name: document[name] for name in ("name", "criterion", "provenance", "config")},
        made_from=lineage,
        parent=None if parent is None else value_from_json(Parent, parent, f"{where}: parent"),
        feature_map=read_map(path, where, document["feature_map"], spec.features),
    )
    return lying_in(path, loaded)


def check_text(where: str, text: object) -> None:
    """Raise ArtifactError unless ``text`` can be shown on a terminal as it is."""
    if not isinstance(text, str) or len(text) > MAX_TEXT or not text.isprintable():
        raise ArtifactError(f"{where}: not a printable text of at most {MAX_TEXT} characters")


def card_is_as_written(path: Path) -> bool:
    """Tell whether the card of a set is the one that was written with it."""
    stated = described(path)["card"]
    return bool(hashlib.sha256(files.read_bytes(path / "README.md", MAX_CARD)).hexdigest() == stated)


def described(path: Path) -> dict[str, Any]:
    """Return the description of a set, before it is compared with anything else; ArtifactError where it is none."""
    where = path / "tickets.json"
    body = files.parse_json(where, files.read_bytes(where, files.MAX_JSON))
    own = isinstance(body, dict) and "own" in body
    return (_OWN_DOCUMENT if own else _DOCUMENT).checked(where, body)


def _predictors(path: Path, stated: object, rounds: list[str], masks: Mapping[str, Mask]) -> dict[str, np.ndarray]:
    """Live values of the networks trained in each round; empty in a set without."""
    where = path / "predictors.safetensors"
    if stated is None:
        if where.exists() or where.is_symlink():
            raise ArtifactError(f"{where}: there, though tickets.json knows of no predictors; remove it")
        return {}
    shapes = {
        tensors.join(number, key): (int(value.sum()),) for number in rounds for key, value in masks[number].items()
    }
    predictors = tensors.read_tensors(where, shapes, "float32")
    if stated != content_id(predictors):
        raise ArtifactError(f"{where}: does not match predictors_id in tickets.json; damaged or changed")
    return predictors


def ticket_rows(tickets: Tickets, *, measured: bool = True) -> list[dict[str, Any]]:
    """Return the tickets of a set as JSON, here and in answers; accuracies are null unless ``measured``."""
    return [
        _row(ticket.round, ticket.mask) | {"accuracy": ticket.accuracy if measured else None}
        for ticket in tickets.tickets
    ]


def _row(number: int, mask: Mask) -> dict[str, Any]:
    return {"round": number, "density": mask.density, "live": mask.live}


def _size(where: Path, document: Mapping[str, Any]) -> tuple[Network, int]:
    for key in ("id", "name", "created", "dpltm", "criterion"):
        check_text(f"{where}: {key}", document[key])
    if not isinstance(document["config"], dict):
        raise ArtifactError(f"{where}: config is not an object")
    try:
        spec = network_of(str(where), document)
    except ArtifactError:
        raise
    except DpltmError as error:
        raise ArtifactError(f"{where}: {error}") from None
    rows = document["tickets"]
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_ROUND:
        raise ArtifactError(f"{where}: tickets is not a list of 1 to {MAX_ROUND} rounds")
    check_size(str(where), spec, len(rows))
    return spec, len(rows)


def _ticket(where: str, number: int, row: object, mask: Mask, values: Mapping[str, np.ndarray]) -> Ticket:
    try:
        mask.check_alive(where)
    except InputError as error:
        raise ArtifactError(str(error)) from None
    predictor: dict[str, Tensor] = {}
    for name, live in mask.items() if values else ():
        predictor[name] = torch.zeros(live.shape)
        predictor[name][live] = torch.from_numpy(values[f"{number}/{name}"])
    measured = row.get("accuracy", ...) if isinstance(row, dict) else ...
    if row != _row(number, mask) | {"accuracy": measured}:
        raise ArtifactError(f"{where}: its round, live or density disagrees with its place and its mask")
    if measured is not None and not (isinstance(measured, float) and 0 <= measured <= 1):
        raise ArtifactError(f"{where}: accuracy {measured!r:.40} is not between 0 and 1")
    return Ticket(number, mask, measured, predictor or None)


def check_size(where: str, spec: Network, masks: int) -> None:
    """Raise ArtifactError if a set of so many masks would be too large to be read; ``where`` asks for so many."""
    if masks * spec.parameters > MAX_SET:
        raise ArtifactError(
            f"{where}: {masks} masks of {spec.text:.80} have more coordinates than the {MAX_SET:,} of the largest set"
        )


def _check_finite(where: str, theta0: Mapping[str, Tensor]) -> None:
    for name, value in theta0.items():
        if not bool(value.isfinite().all()):
            raise ArtifactError(f"{where}: {name}: a starting weight is not finite")


# --- The winner of a selection, remembered beside the set that it was drawn from ---


def save_winner(folder: Path, winner: Winner) -> None:
    """Record who won in the folder of its set, at its place already or not; the last draw counts for ``dpltm train SET``."""
    assert winner.tickets is not None
    body = {
        "ticket_set": winner.tickets.id, "round": winner.round, "facts": dict(winner.facts),
        "lineage": to_json(winner.lineage), "day": today(),
    }  # fmt: skip
    files.write_json(folder / WINNER, _WINNER.sealed(body))


def load_winner(tickets: TicketSet) -> Winner:
    """Return the winner of the last draw; ArtifactError where there is no record of any, or it is damaged."""
    winner = last_winner(tickets)
    if winner is None:
        raise ArtifactError(
            f"{tickets.label}: no winner was drawn yet; run dpltm select {tickets.label}, or name a round as"
            f" {tickets.label}@ROUND"
        )
    return winner


def last_winner(tickets: TicketSet) -> Winner | None:
    """Return the winner of the last draw; None where there is no record of any."""
    if tickets.path is None or not os.path.lexists(path := tickets.path / WINNER):
        return None
    body = _WINNER.read(path, files.MAX_LINEAGE)
    number, facts = body["round"], body["facts"]
    if body["ticket_set"] != tickets.id or type(number) is not int or not isinstance(facts, dict):
        raise ArtifactError(f"{path}: does not belong to this ticket set; run dpltm select {tickets.label} again")
    try:
        lineage = lineage_from_json(body["lineage"])
        return Winner(tickets.ticket(number).round, lineage | tickets.lineage, tickets, facts)
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from None
