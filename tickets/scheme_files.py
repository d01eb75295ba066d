"""Schemes of local privacy on disk, and what was learned by them (docs/formats.md)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError
from dpltm.features.feature_map import FeatureMap
from dpltm.local.codebook import Codebook
from dpltm.local.scheme import Scheme
from dpltm.networks import ModelSpec, build
from dpltm.pruning.generation import Ticket
from dpltm.tickets.feature_files import read_map, write_map
from dpltm.tickets.files import new_folder, read_json, write_json
from dpltm.tickets.run import environment, write_network, write_run
from dpltm.tickets.scheme_json import FORMAT, KEYS, SCHEMA, scheme_from_json, scheme_json
from dpltm.tickets.tensors import read_tensors, write_tensors

NAME = "statistics.safetensors"

LEARNED = "dpltm-latent-run"
"""Format of a network that was trained on messages."""


def save_scheme(target: Path, scheme: Scheme) -> None:
    """Writes the folder of a scheme."""
    with new_folder(target) as folder:
        write_tensors(folder / NAME, {"mean": scheme.mean, "deviation": scheme.deviation})
        write_json(folder / "scheme.json", scheme_json(scheme, write_map(folder, front(scheme))))


def load_scheme(path: Path) -> Scheme:
    """The scheme in ``path``, checked against its id.

    Raises:
        ArtifactError: none, a newer one, or one that was changed.
    """
    where = path / "scheme.json"
    if not where.is_file():
        raise ArtifactError(
            f"{path}: not a scheme (no scheme.json in it); make one with dpltm latent scheme --out {path}"
        )
    body = read_json(where, FORMAT, SCHEMA)
    if set(body) != KEYS:
        raise ArtifactError(f"{where}: its keys are not those of a scheme")
    feature_map = read_map(path, where, body["feature_map"])
    if feature_map is None:
        raise ArtifactError(f"{where}: feature_map is missing")
    values = read_tensors(path / NAME, dict.fromkeys(("mean", "deviation"), (feature_map.features,)), "float32")
    return scheme_from_json(where, body, feature_map, values)


def front(scheme: Scheme) -> FeatureMap:
    """The feature map of a scheme that was made or loaded here."""
    assert isinstance(scheme.feature_map, FeatureMap)
    return scheme.feature_map


def save_learned(target: Path, scheme: Scheme, spec: ModelSpec, ticket: Ticket, result: Mapping[str, Any]) -> None:
    """Writes a network that was trained on messages.

    From a codebook it is a run like any other, whose network takes features. From bits it is one on messages: its folder
    has no ``config.json``.

    Args:
        target: folder to write.
        scheme: that the messages were made by.
        spec: the network.
        ticket: with its trained parameters and its mask.
        result: what ``result.json`` holds beside the scheme.

    Raises:
        ArtifactError: ``target`` exists or cannot be written.
    """
    model = build(spec)
    model.load_state_dict(dict(ticket.predictor or {}))
    with new_folder(target) as folder:
        write_json(folder / "result.json", {**result, "format": LEARNED, "schema": 1, "scheme": scheme.id})
        if isinstance(scheme.answer, Codebook):
            settings = {"model": spec.text, "features": spec.features, "classes": spec.classes}
            config = {**settings, "bounds": list(scheme.feature_map.bounds), "scheme": scheme.id}
            write_run(folder, config, model, ticket.mask, (), front(scheme))
        else:
            write_json(folder / "environment.json", environment())
            write_network(folder, model, ticket.mask)
