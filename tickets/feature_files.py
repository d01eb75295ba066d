"""Feature maps on disk: what ticket sets and runs keep of the map in front of their network."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dpltm.errors import ArtifactError, DpltmError
from dpltm.features import CENTRE, IMAGES, PROJECTION, STATISTICS, FeatureMap, parse
from dpltm.models import ModelSpec, build
from dpltm.privacy.event_json import ref_to_json, to_json
from dpltm.privacy.events import DatasetRef, Event, GaussianEvent, GuaranteeEvent, LaplaceEvent, TrainingEvent
from dpltm.privacy.ledger import merge
from dpltm.tickets.identity import read_event, read_ref
from dpltm.tickets.tensors import read_tensors, write_tensors

NAME = "features.safetensors"

_MALFORMED = (DpltmError, KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading a description that is none raises."""

_KEYS = {"id", "text", "shape", "bounds", "statistics", "components", "centred", "source", "events", "network"}
_LARGEST_SIDE = 10_000

RELEASES = (TrainingEvent, GaussianEvent, LaplaceEvent, GuaranteeEvent)
"""What a network in front may have been trained by."""


@dataclass(frozen=True)
class Front:
    """What a description says of a feature map: all but its tensors.

    Attributes:
        id, text, shape, bounds, source, events, network: see ``FeatureMap``.
        statistics, centred: whether it has those of channels, and a centre.
        components: how many principal components it has; None for none.
    """

    id: str
    text: str
    shape: tuple[int, ...]
    bounds: tuple[float, float]
    statistics: bool
    components: int | None
    centred: bool
    source: DatasetRef | None
    events: tuple[Event, ...]
    network: ModelSpec | None

    @property
    def has_tensors(self) -> bool:
        """Whether the map is more than what is said here."""
        return self.statistics or self.centred or self.components is not None or self.network is not None

    def __str__(self) -> str:
        return self.text if self.source is None else f"{self.text}, made from {self.source}"

    def to_json(self) -> dict[str, Any]:
        """As one JSON object."""
        network = self.network
        return {
            "id": self.id,
            "text": self.text,
            "shape": list(self.shape),
            "bounds": list(self.bounds),
            "statistics": self.statistics,
            "components": self.components,
            "centred": self.centred,
            "source": None if self.source is None else ref_to_json(self.source),
            "events": [to_json(event) for event in self.events],
            "network": None
            if network is None
            else {"model": network.text, "features": network.features, "classes": network.classes},
        }

    @classmethod
    def of(cls, found: FeatureMap) -> Front:
        """Of a map."""
        return cls(
            found.id, found.text, found.shape, found.bounds, "mean" in found.tensors,
            len(found.tensors["components"]) if "components" in found.tensors else None, CENTRE in found.tensors,
            found.source, found.events, found.network,
        )  # fmt: skip

    @classmethod
    def from_json(cls, body: Any) -> Front:
        """What ``to_json`` gave.

        Raises:
            ArtifactError: it is something else.
        """
        try:
            found = _front(body)
            if isinstance(found.id, str):
                return found
            raise ArtifactError("its id is no text")
        except ArtifactError as error:
            raise ArtifactError(f"feature_map: {error}") from None
        except _MALFORMED:
            raise ArtifactError("feature_map is not the description of a feature map") from None

    def restored(self, found: FeatureMap | None) -> FeatureMap | None:
        """The map itself; its tensors, if it has any, are those of ``found``. None if that is another map, or is needed.

        What it was made from, and what that cost, is what is said here, and what ``found`` says beside that.
        """
        try:
            plain = FeatureMap(self.text, self.shape, self.bounds) if found is None and not self.has_tensors else found
            made = None if plain is None else plain.carried(self.shape, self.bounds)
        except DpltmError:
            return None
        if made is None or made.id != self.id:
            return None
        return replace(made, source=self.source, events=merge([self.events, made.events]))


def write_map(folder: Path, found: FeatureMap | None) -> dict[str, Any] | None:
    """Writes what a map has of tensors into ``folder``; returns the rest, as JSON."""
    if found is not None and found.tensors:
        write_tensors(folder / NAME, {name: value.numpy() for name, value in found.tensors.items()})
    return map_json(found)


def map_json(found: FeatureMap | None) -> dict[str, Any] | None:
    """All of a map but its tensors, as JSON; None for no map."""
    if found is None:
        return None
    return Front.of(found).to_json()


def read_map(folder: Path, where: Path, body: object) -> FeatureMap | None:
    """The map that :func:`write_map` wrote, checked against its id.

    Raises:
        ArtifactError: description or tensors are not those of a map, or not of this one.
    """
    if body is None:
        _check_none(folder, where)
        return None
    try:
        found = _read(folder, body)
    except _MALFORMED as error:
        if isinstance(error, ArtifactError):
            told = str(error)
            raise ArtifactError(told if told.startswith(str(folder)) else f"{where}: feature_map: {told}") from None
        raise ArtifactError(f"{where}: feature_map is not the description of a feature map") from None
    if not found.tensors:
        _check_none(folder, where)
    if found.id != body["id"]:  # type: ignore[index]
        raise ArtifactError(f"{where}: feature_map: the id does not match; it is damaged or was changed")
    return found


def _check_none(folder: Path, where: Path) -> None:
    if (folder / NAME).exists() or (folder / NAME).is_symlink():
        raise ArtifactError(f"{folder / NAME}: there, though {where.name} knows of no such features; remove it")


def _front(body: Any) -> Front:
    if set(body) != _KEYS or not all(isinstance(body[key], list) for key in ("shape", "bounds", "events")):
        raise ValueError("keys")
    shape = tuple(body["shape"])
    if not all(type(size) is int and 1 <= size <= _LARGEST_SIDE for size in shape) or not 1 <= len(shape) <= 3:
        raise ValueError("shape")
    low, high = (float(bound) for bound in body["bounds"])
    if not -math.inf < low < high < math.inf or not isinstance(body["text"], str):
        raise ValueError("bounds")
    network = None if body["network"] is None else ModelSpec(**_network(body["network"]))
    events = tuple(read_event(event) for event in body["events"])
    if not all(isinstance(event, RELEASES) for event in events):
        raise ValueError("events")
    source = None if body["source"] is None else read_ref(body["source"])
    statistics, centred, components = body["statistics"], body["centred"], body["components"]
    if components is not None and not (type(components) is int and 1 <= components <= _LARGEST_SIDE):
        raise ValueError("components")
    if not (type(statistics) is type(centred) is bool) or (network is not None) != (body["text"] == "network"):
        raise ValueError("kind")
    if statistics and not isinstance(parse(body["text"]), IMAGES):
        raise ValueError("statistics")
    if components is not None and network is not None:
        raise ValueError("components")
    if (source is None) != (network is None and not statistics and components is None) or (events and network is None):
        raise ValueError("source")
    return Front(
        body["id"], body["text"], shape, (low, high), statistics, components, centred, source, events, network
    )


def _read(folder: Path, body: Any) -> FeatureMap:
    said = _front(body)
    network, components = said.network, said.components
    shapes: dict[str, tuple[int, ...]] = {} if network is None else network.shapes()
    if said.statistics or said.centred or components is not None:
        plain = _plain(said.text, said.shape, said.bounds, network)
        whole = math.prod(plain)
        shapes |= dict.fromkeys(STATISTICS, plain[-1:]) if said.statistics else {}
        shapes |= {} if components is None else dict(zip(PROJECTION, ((whole,), (components, whole)), strict=True))
        shapes |= {CENTRE: (components or whole,)} if said.centred else {}
    tensors = read_tensors(folder / NAME, shapes, "float32") if shapes else {}
    values = {name: torch.from_numpy(value) for name, value in tensors.items()}
    if not all(bool(value.isfinite().all()) for value in values.values()):
        raise ValueError("tensors")
    return FeatureMap(said.text, said.shape, said.bounds, said.source, said.events, values, network)


def _plain(
    text: str, shape: tuple[int, ...], bounds: tuple[float, float], network: ModelSpec | None
) -> tuple[int, ...]:
    """Shape of the features, which tensors have to fit."""
    if network is None:
        return FeatureMap(text, shape, bounds).feature_shape
    tensors = {name: value.detach() for name, value in build(network).named_parameters()}
    return FeatureMap(text, shape, bounds, tensors=tensors, network=network).feature_shape


def _network(body: dict[str, Any]) -> dict[str, Any]:
    if set(body) != {"model", "features", "classes"}:
        raise ValueError("network")
    return {"text": body["model"], "features": body["features"], "classes": body["classes"]}
