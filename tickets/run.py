"""Runs on disk: a trained network with everything that says how it came about and what it cost."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dpltm.audit.canaries import Observations
from dpltm.errors import ArtifactError, DpltmError, as_flags
from dpltm.features.feature_map import FeatureMap
from dpltm.networks import ModelSpec, build
from dpltm.networks.content import content_id
from dpltm.networks.masks import Mask
from dpltm.tickets.feature_files import read_map, write_map
from dpltm.tickets.files import read_json, read_lineage, write_json, write_lineage
from dpltm.tickets.published import published
from dpltm.tickets.tensors import read_masks, read_tensors, write_masks, write_tensors
from dpltm.training.run import Run

FORMAT, SCHEMA = "dpltm-run", 2

version = cache(metadata.version)  # reads and parses a file


def write_run(
    folder: Path,
    config: Mapping[str, Any],
    model: nn.Module,
    mask: Mask,
    metrics: Iterable[Mapping[str, Any]],
    feature_map: FeatureMap | None = None,
) -> None:
    """Writes all of a run but its lineage and result into ``folder`` (a staging folder of ``new_folder``).

    Args:
        folder: to write into.
        config: settings, as JSON.
        model: trained, on the CPU.
        mask: of the ticket.
        metrics: lines of ``metrics.jsonl``, as JSON.
        feature_map: in front of the network; None for none.
    """
    write_config(folder, {**config, "feature_map": write_map(folder, feature_map)})
    write_network(folder, model, mask)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics), encoding="utf-8")
    write_json(folder / "environment.json", environment())


def save_run(folder: Path, run: Run) -> None:
    """Writes a run into ``folder`` (a staging folder of ``new_folder``): with its lineage and its result."""
    settings = (
        {**run.config, "resolved": published(run.config["resolved"])} if "resolved" in run.config else run.config
    )
    write_run(folder, settings, run.model, run.mask, run.metrics, run.feature_map)
    write_observations(folder, run.observations)
    write_lineage(folder, run.lineage, weights_of(run.model, run.mask))
    if run.privacy is not None:
        write_json(folder / "result.json", as_flags(published(answer(run))))


def weights_of(model: nn.Module, mask: Mask) -> str:
    """Return the content id of trained weights and mask: what a lineage, a page and a card are of."""
    values = {f"weights/{name}": value.detach().numpy() for name, value in model.named_parameters()}
    return content_id(values | {f"mask/{name}": value.numpy() for name, value in mask.items()})


def answer(run: Run) -> dict[str, Any]:
    """What came of a training, as ``dpltm train`` prints it: facts, the last measurements, and the report."""
    last, facts = run.metrics[-1], run.config["resolved"]
    report = {} if run.privacy is None else {"privacy": run.privacy.to_json()}
    return {
        "run": run.label,
        **facts,
        "steps_taken": last["step"],
        "seconds": run.seconds,
        "accuracy": last["accuracy"],
        **({"rmse": last["rmse"]} if "rmse" in last else {}),
        **report,
    }


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Writes ``config.json``."""
    write_json(folder / "config.json", {**config, "format": FORMAT, "schema": SCHEMA})


def write_network(folder: Path, model: nn.Module, mask: Mask) -> None:
    """Writes the trained parameters and the mask.

    Args:
        folder: to write into.
        model: trained, on the CPU.
        mask: of the ticket.
    """
    write_tensors(
        folder / "model.safetensors", {name: value.detach().numpy() for name, value in model.named_parameters()}
    )
    write_masks(folder / "mask.safetensors", {"": mask})


def environment() -> dict[str, str]:
    """Versions that results depend on."""
    libraries = {name: version(name) for name in ("dpltm", "torch", "numpy", "dp-accounting", "safetensors")}
    return {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}", **libraries}


def load_run(path: Path) -> Run:
    """The run in ``path``.

    Raises:
        ArtifactError: not a run, a newer format, or files that do not fit each other.
    """
    if not (path / "config.json").is_file():
        raise ArtifactError(
            f"{path}: not a run (no config.json in it); name a folder made by dpltm train --out {path}"
        )
    config = read_json(path / "config.json", FORMAT, SCHEMA)
    try:
        spec = ModelSpec(config["model"], config["features"], config["classes"])
        low, high = config["bounds"]
        if not float(low) < float(high):
            raise ValueError(low)
    except (DpltmError, KeyError, TypeError, ValueError):
        raise ArtifactError(
            f"{path / 'config.json'}: model, features, classes or bounds are missing or wrong"
        ) from None
    model = build(spec)
    values = read_tensors(path / "model.safetensors", spec.shapes(), "float32")
    model.load_state_dict({name: torch.from_numpy(value) for name, value in values.items()})
    mask = read_masks(path / "mask.safetensors", [""], spec.shapes())[""]
    if any(bool(value[~mask[name]].any()) for name, value in model.named_parameters()):
        raise ArtifactError(f"{path / 'model.safetensors'}: a pruned weight is not zero; model and mask do not fit")
    feature_map = read_map(path, path / "config.json", config.get("feature_map"))
    if feature_map is not None and feature_map.features != spec.features:
        raise ArtifactError(
            f"{path / 'config.json'}: feature_map gives {feature_map.features} features, the network takes {spec.features}"
        )
    options = config.get("options")
    observations = read_observations(path, options.get("audit") if isinstance(options, dict) else None)
    lineage = read_lineage(path, weights_of(model, mask))
    return Run(
        config, model, mask, feature_map, lineage=lineage, observations=observations, label=str(path), path=path
    )


AUDIT = "audit.safetensors"
"""File of what an audit of the training saw."""


def write_observations(folder: Path, seen: Observations | None) -> None:
    """Write what an audit saw into the folder of a run; None writes nothing."""
    if seen is not None:
        values = {"scores": seen.scores, "included": seen.included, "norms": seen.norms}
        write_tensors(folder / AUDIT, {name: value.astype(np.float64) for name, value in values.items()})


def read_observations(folder: Path, count: object) -> Observations | None:
    """Return what an audit saw; None where the training was not audited, or the run was made smaller since.

    Args:
        folder: of the run.
        count: of canaries, as the settings of the run have it.

    Raises:
        ArtifactError: a damaged file, or one of other canaries.
    """
    if count is None or not (folder / AUDIT).exists():
        return None
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count < 2**31:
        raise ArtifactError(f"{folder / 'config.json'}: audit is not a number of canaries")
    values = read_tensors(folder / AUDIT, dict.fromkeys(("scores", "included", "norms"), (count,)), "float64")
    included = values["included"]
    try:
        if not np.isin(included, (0, 1)).all():
            raise ValueError("coins")
        return Observations(values["scores"], included == 1, values["norms"])
    except ValueError:
        raise ArtifactError(f"{folder / AUDIT}: scores, coins or norms that no audit leaves") from None
