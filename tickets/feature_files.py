"""Feature maps on disk: what ticket sets and runs keep of the map in front of their network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dpltm.errors import ArtifactError, DpltmError
from dpltm.features import FeatureMap, parse
from dpltm.features.scattering import Scale
from dpltm.models import ModelSpec
from dpltm.privacy.event_json import from_json, to_json
from dpltm.privacy.events import DatasetRef
from dpltm.tickets.tensors import Shapes, read_tensors, write_tensors

NAME = "features.safetensors"

_KEYS = {"id", "text", "shape", "bounds", "statistics", "source", "events", "network"}
_LARGEST_SIDE = 10_000


def write_map(folder: Path, found: FeatureMap | None) -> dict[str, Any] | None:
    """Writes what a map has of tensors into ``folder``; returns the rest, as JSON."""
    if found is None:
        return None
    if found.tensors:
        write_tensors(folder / NAME, {name: value.numpy() for name, value in found.tensors.items()})
    network = found.network
    return {
        "id": found.id,
        "text": found.text,
        "shape": list(found.shape),
        "bounds": list(found.bounds),
        "statistics": bool(found.tensors) and network is None,
        "source": None if found.source is None else asdict(found.source),
        "events": [to_json(event) for event in found.events],
        "network": None
        if network is None
        else {"model": network.text, "features": network.features, "classes": network.classes},
    }


def read_map(folder: Path, where: Path, body: object) -> FeatureMap | None:
    """The map that :func:`write_map` wrote, checked against its id.

    Raises:
        ArtifactError: description or tensors are not those of a map, or not of this one.
    """
    if body is None:
        if (folder / NAME).exists() or (folder / NAME).is_symlink():
            raise ArtifactError(f"{folder / NAME}: there, though {where.name} knows of no features; remove it")
        return None
    try:
        found = _read(folder, body)
    except (DpltmError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{where}: feature_map is not the description of a feature map") from None
    if found.id != body["id"]:  # type: ignore[index]
        raise ArtifactError(f"{where}: feature_map: the id does not match; it is damaged or was changed")
    return found


def _read(folder: Path, body: Any) -> FeatureMap:
    if set(body) != _KEYS or not all(isinstance(body[key], list) for key in ("shape", "bounds", "events")):
        raise ValueError("keys")
    shape = tuple(body["shape"])
    if not all(type(size) is int and 1 <= size <= _LARGEST_SIDE for size in shape) or not 1 <= len(shape) <= 3:
        raise ValueError("shape")
    low, high = (float(bound) for bound in body["bounds"])
    if not -math.inf < low < high < math.inf or not isinstance(body["text"], str):
        raise ValueError("bounds")
    network = None if body["network"] is None else ModelSpec(**_network(body["network"]))
    events = tuple(from_json(event) for event in body["events"])
    source = None if body["source"] is None else DatasetRef(**body["source"])
    plain = FeatureMap(body["text"], shape, (low, high), network=None) if network is None else None
    shapes: Shapes = {}
    if network is not None and body["text"] == "network":
        shapes = network.shapes()
    elif plain is not None and body["statistics"] is True:
        shapes = dict.fromkeys(("mean", "deviation"), (plain.feature_shape[-1],))
    elif body["statistics"] is not False:
        raise ValueError("statistics")
    if (source is None) != (not shapes) or (events and network is None) or (network is None and not _scatters(body)):
        raise ValueError("source")
    tensors: Mapping[str, Any] = read_tensors(folder / NAME, shapes, "float32") if shapes else {}
    if not all(bool(torch.from_numpy(value).isfinite().all()) for value in tensors.values()):
        raise ValueError("tensors")
    return FeatureMap(
        body["text"], shape, (low, high), source, events,
        {name: torch.from_numpy(value) for name, value in tensors.items()}, network,
    )  # fmt: skip


def _scatters(body: dict[str, Any]) -> bool:
    return isinstance(parse(body["text"]), Scale)


def _network(body: dict[str, Any]) -> dict[str, Any]:
    if set(body) != {"model", "features", "classes"}:
        raise ValueError("network")
    return {"text": body["model"], "features": body["features"], "classes": body["classes"]}
