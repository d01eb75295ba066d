"""Feature maps on disk: what ticket sets and runs keep of the map in front of their network."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dpltm.errors import ArtifactError, DpltmError
from dpltm.features import Choice, parse
from dpltm.features.feature_map import CENTRE, FeatureMap, FrozenNetwork
from dpltm.features.normalisation import ChannelStatistics, Projection
from dpltm.networks import ModelSpec, build
from dpltm.privacy.entry import Lineage, lineage_from_json, to_json
from dpltm.tickets.tensors import read_tensors, write_tensors

NAME = "features.safetensors"

_MALFORMED = (DpltmError, KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading a description that is none raises."""

_KEYS = {"id", "text", "shape", "bounds", "statistics", "components", "centred", "lineage", "network"}
_MAX_SIDE = 10_000

ENCODER = "encoder"
"""Key of the digest of a bundled file that a map computes with; there only where it has one."""


@dataclass(frozen=True)
class Front:
    """What a description says of a feature map: all but its tensors.

    Attributes:
        base: the kind of map with its parameters, or the network in front.
        id, shape, bounds, lineage: see ``FeatureMap``.
        statistics, centred: whether it has those of channels, and a centre.
        components: how many principal components it has; None for none.
    """

    id: str
    base: Choice | ModelSpec
    shape: tuple[int, ...]
    bounds: tuple[float, float]
    statistics: bool
    components: int | None
    centred: bool
    lineage: Lineage

    @property
    def text(self) -> str:
        """What the map is called, as in ``scatter:2,8``."""
        return self.base.text if isinstance(self.base, Choice) else "network"

    @property
    def network(self) -> ModelSpec | None:
        """The network in front, if it is one."""
        return None if isinstance(self.base, Choice) else self.base

    @property
    def has_tensors(self) -> bool:
        """Whether the map is more than what is said here."""
        return self.statistics or self.centred or self.components is not None or self.network is not None

    def __str__(self) -> str:
        made_from = ", ".join(dict.fromkeys(str(entry.part) for entry in self.lineage.entries))
        return f"{self.text}, made from {made_from}" if made_from else self.text

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
            "lineage": to_json(self.lineage),
            "network": None
            if network is None
            else {"model": network.text, "features": network.features, "classes": network.classes},
            **({ENCODER: self.base.digest} if isinstance(self.base, Choice) and self.base.digest else {}),
        }

    @classmethod
    def of(cls, feature_map: FeatureMap) -> Front:
        """Of a map."""
        base, projection = feature_map.base, feature_map.projection
        return cls(
            feature_map.id, base if isinstance(base, Choice) else base.spec, feature_map.shape, feature_map.bounds,
            feature_map.statistics is not None, None if projection is None else len(projection.components),
            feature_map.centre is not None, feature_map.lineage,
        )  # fmt: skip

    @classmethod
    def from_json(cls, body: Any) -> Front:
        """What ``to_json`` gave.

        Raises:
            ArtifactError: it is something else.
        """
        try:
            description = _description(body)
            if isinstance(description.id, str):
                return description
            raise ArtifactError("its id is no text")
        except ArtifactError as error:
            raise ArtifactError(f"feature_map: {error}") from None
        except _MALFORMED:
            raise ArtifactError("feature_map is not the description of a feature map") from None

    def restored(self, named: FeatureMap | None) -> FeatureMap | None:
        """The map itself, with the tensors of ``named`` if it has any. None if that is another map, or is needed.

        What it was made from, and what that cost, is what is said here, and what ``named`` says beside that.
        """
        try:
            if named is None and isinstance(self.base, Choice) and not self.has_tensors:
                named = FeatureMap(self.base, self.shape, self.bounds)
            made = None if named is None else named.for_records(self.shape, self.bounds)
        except DpltmError:
            return None
        if made is None or made.id != self.id:
            return None
        return replace(made, lineage=self.lineage | made.lineage)


def write_map(folder: Path, feature_map: FeatureMap | None) -> dict[str, Any] | None:
    """Writes what a map has of tensors into ``folder``; returns the rest, as JSON."""
    if feature_map is not None and feature_map.tensors:
        write_tensors(folder / NAME, {name: value.numpy() for name, value in feature_map.tensors.items()})
    return map_json(feature_map)


def map_json(feature_map: FeatureMap | None) -> dict[str, Any] | None:
    """All of a map but its tensors, as JSON; None for no map."""
    if feature_map is None:
        return None
    return Front.of(feature_map).to_json()


def read_map(folder: Path, where: Path, body: object) -> FeatureMap | None:
    """The map that :func:`write_map` wrote, checked against its id.

    Args:
        folder: of the set or run, with the map's tensors.
        where: the file of the description, for messages.
        body: the description; None where there is no map.

    Raises:
        ArtifactError: description or tensors are not those of a map, or not of this one.
    """
    if body is None:
        _check_none(folder, where)
        return None
    try:
        feature_map = _read(folder, body)
    except _MALFORMED as error:
        if isinstance(error, ArtifactError):
            told = str(error)
            raise ArtifactError(told if told.startswith(str(folder)) else f"{where}: feature_map: {told}") from None
        raise ArtifactError(f"{where}: feature_map is not the description of a feature map") from None
    if not feature_map.tensors:
        _check_none(folder, where)
    if feature_map.id != body["id"]:  # type: ignore[index]
        raise ArtifactError(f"{where}: feature_map: the id does not match; it is damaged or was changed")
    return feature_map


def _check_none(folder: Path, where: Path) -> None:
    if (folder / NAME).exists() or (folder / NAME).is_symlink():
        raise ArtifactError(f"{folder / NAME}: there, though {where.name} knows of no such features; remove it")


def _description(body: Any) -> Front:
    if "events" in body:
        raise ArtifactError("written by dpltm before 0.3; make it again")
    if set(body) - {ENCODER} != _KEYS or not all(isinstance(body[key], list) for key in ("shape", "bounds")):
        raise ValueError("keys")
    shape = tuple(body["shape"])
    if not all(type(size) is int and 1 <= size <= _MAX_SIDE for size in shape) or not 1 <= len(shape) <= 3:
        raise ValueError("shape")
    low, high = (float(bound) for bound in body["bounds"])
    if not -math.inf < low < high < math.inf or not isinstance(body["text"], str):
        raise ValueError("bounds")
    base = _choice(body["text"]) if body["network"] is None else ModelSpec(**_network(body["network"]))
    digest = base.digest if isinstance(base, Choice) else ""
    if body.get(ENCODER, "") != digest:
        raise ArtifactError(
            f"{body['text']!r:.80} was made with another encoder than this version of dpltm has (SHA-256"
            f" {str(body.get(ENCODER))[:12]}, here {digest[:12]}); install the version that made it"
        )
    lineage = lineage_from_json(body["lineage"])
    statistics, centred, components = body["statistics"], body["centred"], body["components"]
    if components is not None and not (type(components) is int and 1 <= components <= _MAX_SIDE):
        raise ValueError("components")
    network = isinstance(base, ModelSpec)
    if not (type(statistics) is type(centred) is bool) or network != (body["text"] == "network"):
        raise ValueError("kind")
    if statistics and (isinstance(base, ModelSpec) or not base.channels):
        raise ValueError("statistics")
    if components is not None and network:
        raise ValueError("components")
    if bool(lineage) != (network or statistics or components is not None):
        raise ArtifactError("its lineage does not say what it was made from")
    return Front(body["id"], base, shape, (low, high), statistics, components, centred, lineage)


def _choice(text: str) -> Choice:
    choice = parse(text)
    if not isinstance(choice, Choice) or choice.text != text:  # an id is of one way to say it
        raise ValueError("text")
    return choice


def _read(folder: Path, body: Any) -> FeatureMap:
    said = _description(body)
    network, components = said.network, said.components
    shapes: dict[str, tuple[int, ...]] = {} if network is None else network.shapes()
    if said.statistics or said.centred or components is not None:
        plain = _plain_shape(said)
        whole = math.prod(plain)
        shapes |= {"mean": plain[-1:], "deviation": plain[-1:]} if said.statistics else {}
        shapes |= {} if components is None else {"offset": (whole,), "components": (components, whole)}
        shapes |= {CENTRE: (components or whole,)} if said.centred else {}
    tensors = read_tensors(folder / NAME, shapes, "float32") if shapes else {}
    values = {name: torch.from_numpy(value) for name, value in tensors.items()}
    if not all(bool(value.isfinite().all()) for value in values.values()):
        raise ValueError("tensors")
    return FeatureMap(
        said.base
        if isinstance(said.base, Choice)
        else FrozenNetwork(said.base, {name: values[name] for name in said.base.shapes()}),
        said.shape,
        said.bounds,
        statistics=ChannelStatistics(values["mean"], values["deviation"]) if said.statistics else None,
        projection=None if components is None else Projection(values["offset"], values["components"]),
        centre=values.get(CENTRE),
        lineage=said.lineage,
    )


def _plain_shape(said: Front) -> tuple[int, ...]:
    """Shape of the features before they are projected, which tensors have to fit."""
    if isinstance(said.base, Choice):
        return said.base.on(said.shape).feature_shape
    weights = {name: value.detach() for name, value in build(said.base).named_parameters()}
    return FrozenNetwork(said.base, weights).on(said.shape).feature_shape


def _network(body: dict[str, Any]) -> dict[str, Any]:
    if set(body) != {"model", "features", "classes"}:
        raise ValueError("network")
    return {"text": body["model"], "features": body["features"], "classes": body["classes"]}
