"""Runs on disk: a trained network with everything that says how it came about and what it cost."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from dpltm.errors import ArtifactError, DpltmError, InputError, as_flags
from dpltm.features.feature_map import FeatureMap
from dpltm.networks import build
from dpltm.networks.masks import Mask, network_id
from dpltm.networks.own_network import OwnNetwork, network_of
from dpltm.networks.state import put, weights_of
from dpltm.options import TARGET_METRICS
from dpltm.privacy.account import Account
from dpltm.privacy.describe import figure
from dpltm.privacy.entry import NO_LINEAGE, Entry, Lineage, Part, to_json
from dpltm.privacy.mechanisms import Unprotected
from dpltm.reports.statement import State, count, guarantee_of_run, number, section
from dpltm.tickets import files, tensors
from dpltm.tickets.charts import read_metrics
from dpltm.tickets.checkpoint_files import is_begun
from dpltm.tickets.feature_files import read_map, write_map
from dpltm.tickets.files import attempt
from dpltm.training.artifacts import Run
from dpltm.training.canaries import Observations

FORMAT, SCHEMA, OWN_SCHEMA = "dpltm-run", 2, 3
"""Of ``config.json``; the last is that of a run of a network of the user's own."""


def write_run(
    folder: Path,
    config: Mapping[str, Any],
    model: nn.Module,
    mask: Mask,
    metrics: Iterable[Mapping[str, Any]],
    feature_map: FeatureMap | None = None,
) -> None:
    """Write all of a run but its lineage and result into ``folder`` (a staging folder of ``new_folder``)."""
    write_config(folder, {**config, "feature_map": write_map(folder, feature_map)})
    write_network(folder, model, mask)
    write_metrics(folder, metrics)
    files.write_json(folder / "environment.json", environment())


def write_metrics(folder: Path, metrics: Iterable[Mapping[str, Any]]) -> None:
    """Write what was measured on the way, a line for each point."""
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics), encoding="utf-8")


def save_run(folder: Path, run: Run) -> None:
    """Write a run into ``folder`` (a staging folder of ``new_folder``): with its lineage and its result."""
    settings = dict(run.config)
    if "resolved" in settings:
        settings["resolved"] = files.published(settings["resolved"])
    if isinstance(run.network, OwnNetwork):
        settings["own"] = run.network.to_json()
        tensors.write_outputs(folder, run.network)
    write_run(folder, settings, run.model, run.mask, run.metrics, run.feature_map)
    write_observations(folder, run.observations)
    digest = network_id(run.model, run.mask)
    files.write_lineage(folder, run.lineage, digest)
    if run.privacy is not None:
        files.write_json(folder / "result.json", as_flags(files.published({**answer(run), WEIGHTS: digest})))


WEIGHTS = "weights"  # key of the digest that ``result.json`` and statements are of


def answer(run: Run) -> dict[str, Any]:
    """Return the outcome of a training as ``dpltm train`` prints it: facts, the last measurements, and the report."""
    last, facts = run.metrics[-1], run.config["resolved"]
    report = {} if run.privacy is None else {"privacy": run.privacy.to_json()}
    return {
        "run": run.label,
        **facts,
        "steps_taken": last["step"],
        "seconds": run.seconds,
        "accuracy": last["accuracy"],
        **{name: last[name] for name in ("balanced_accuracy", *TARGET_METRICS) if name in last},
        "skill": None if run.skill is None else run.skill.to_json(),
        **report,
    }


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write ``config.json``."""
    schema = OWN_SCHEMA if config.get("own") is not None else SCHEMA
    files.write_json(folder / "config.json", {**config, "format": FORMAT, "schema": schema})


def read_config(path: Path) -> dict[str, Any]:
    """Return what ``config.json`` holds; ArtifactError for another document, or one of a newer version."""
    body = files.parse_json(path, files.read_bytes(path, files.MAX_JSON))
    own = isinstance(body, dict) and body.get("own") is not None
    files.check_schema(path, body, FORMAT, OWN_SCHEMA if own else SCHEMA)
    assert isinstance(body, dict)
    return body


def write_network(folder: Path, model: nn.Module, mask: Mask) -> None:
    """Write the trained parameters and the mask."""
    values = {name: value.numpy() for name, value in weights_of(model).items()}
    tensors.write_tensors(folder / "model.safetensors", values)
    tensors.write_masks(folder / "mask.safetensors", {"": mask})


def environment() -> dict[str, str]:
    """Versions that results depend on."""
    libraries = {name: version(name) for name in ("dpltm", "torch", "numpy", "safetensors")}
    return {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}", **libraries}


def load_run(path: Path) -> Run:
    """Return the run in ``path``; ArtifactError for no run, a newer format, or files that do not fit each other."""
    where = path / "config.json"
    if not where.is_file():
        raise ArtifactError(f"{path}: not a run (no config.json in it); name a folder made by dpltm train")
    config = read_config(where)
    try:
        spec = network_of(str(where), config)
        low, high = config["bounds"]
        if not float(low) < float(high):
            raise ValueError(low)
    except ArtifactError:
        raise
    except (DpltmError, KeyError, TypeError, ValueError):
        raise ArtifactError(f"{where}: model, features, classes or bounds are missing or wrong") from None
    spec, values = tensors.read_weights(path / "model.safetensors", spec, config.get("own"))
    model = build(spec)
    put(model, values)
    mask = tensors.read_masks(path / "mask.safetensors", [""], spec.shapes(), spec.mask)[""]
    if any(bool(value[~mask[name]].any()) for name, value in model.named_parameters()):
        raise ArtifactError(f"{path / 'model.safetensors'}: a pruned weight is not zero; model and mask do not fit")
    return Run(
        config, model, mask, read_map(path, where, config.get("feature_map"), spec.features),
        network=spec if isinstance(spec, OwnNetwork) else None,
        lineage=files.read_lineage(path, network_id(model, mask)),
        observations=read_observations(path, section(config, "options").get("audit")), label=str(path), path=path,
    )  # fmt: skip


AUDIT = "audit.safetensors"  # file of what an audit of the training saw


def write_observations(folder: Path, seen: Observations | None) -> None:
    """Write what an audit saw, if there was one."""
    if seen is not None:
        values = {"scores": seen.scores, "included": seen.included, "norms": seen.norms}
        tensors.write_tensors(folder / AUDIT, {name: value.astype(np.float64) for name, value in values.items()})


def read_observations(folder: Path, canaries: object) -> Observations | None:
    """Return what an audit of so many canaries saw; None where there was none, or the run was made smaller since."""
    if canaries is None or not (folder / AUDIT).exists():
        return None
    size = count(canaries)
    if not size:
        raise ArtifactError(f"{folder / 'config.json'}: audit is not a number of canaries")
    values = tensors.read_tensors(folder / AUDIT, dict.fromkeys(("scores", "included", "norms"), (size,)), "float64")
    try:
        if not np.isin(values["included"], (0, 1)).all():
            raise ValueError("coins")
        return Observations(values["scores"], values["included"] == 1, values["norms"])
    except ValueError:
        raise ArtifactError(f"{folder / AUDIT}: scores, coins or norms that no audit leaves") from None


# --- what there is of a run: all of it, or what a training that goes on, was interrupted or went wrong has left ---

LOCAL = (
    "made under local privacy: its guarantee is that of its scheme; see dpltm latent epsilon and dpltm audit SCHEME"
)
"""Said of runs of ``dpltm latent train``, whose ledgers are with the owners of the records."""

UNKNOWN = "a training whose entry is not known here"
"""Of a run whose lineage cannot be read: nothing is certified then, rather than nothing spent."""


@dataclass(frozen=True)
class FoundRun:
    """A run, as far as it is there.

    Attributes:
        config, result, environment, metrics: empty where they cannot be read, or belong to other weights.
        run: its network and mask; None where they cannot be read.
        lineage: everything that it depends on, its training (``entry``) among it; empty where that is not known.
        weights: digest of its weights and mask; None where they cannot be read.
    """

    path: Path
    state: State
    problems: tuple[str, ...] = ()
    label: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    run: Run | None = None
    metrics: Mapping[int, float] | None = None
    lineage: Lineage = NO_LINEAGE
    entry: Entry | None = None
    weights: str | None = None

    @property
    def parameters(self) -> int | None:
        """Number of its network's parameters; None if that could not be read."""
        return None if self.run is None else self.run.spec.parameters

    @property
    def part(self) -> Part | None:
        return None if self.entry is None else self.entry.part

    @property
    def account(self) -> Account:
        """Account of its lineage by itself, without its ledger; with no guarantee where its training is not known."""
        account = Account.alone(self.lineage)
        if self.entry is not None or (self.config and self.config.get("entry") is None and self.state == "finished"):
            return account
        unknown = (Entry("release", mechanisms=(Unprotected(),), words=UNKNOWN, unit=account.unit),)
        return account + unknown

    @cached_property
    def privacy(self) -> Mapping[str, Any]:
        """Price of its lineage by itself, at its own terms, as JSON; empty where no rule says what that is."""
        with contextlib.suppress(DpltmError):
            return guarantee_of_run(self.config, self.account).to_json() if self.state != "unfinished" else {}
        return {}

    @property
    def understated(self) -> str | None:
        """Return what is wrong with the guarantee that it states; None where its lineage gives none that is weaker."""
        stated, due = section(section(self.result, "privacy"), "certified"), section(self.privacy, "certified")
        of_more = stated.get("adjacency") == "replace-one"  # which its ledger may hold beside
        terms = ("delta", "unit", "accountant", *(() if of_more else ("adjacency",)))
        for term in terms if stated and self.entry is not None else ():
            if stated.get(term) != due.get(term, stated.get(term)):
                return _changed(term, stated.get(term), f"settings and lineage give {due[term]}")
        with contextlib.suppress(DpltmError):
            due = to_json(guarantee_of_run(self.config, self.account.replaced).certified) if of_more and due else due
        least, epsilon = float(due.get("epsilon", "inf")), number(stated.get("epsilon"))
        if epsilon is None or epsilon >= least * (1 - 1e-3):  # what its ledger holds beside may add to it
            return None
        return _changed("certified epsilon", figure(epsilon), f"lineage gives {figure(least)}")


def _changed(what: str, stated: object, due: str) -> str:
    return f"result.json says {what} {stated}, but its {due}: one of them was changed"


def find_run(path: Path, label: str = "") -> FoundRun:
    """Return the run in a folder, or in one of ``dpltm run``, as far as it is there; InputError where there is nothing."""
    is_run = (path / "config.json").exists()
    if not is_run and ((path / "run" / "config.json").exists() or is_begun(path / "run")):
        path /= "run"
        is_run = (path / "config.json").exists()
    if not is_run and is_begun(path):
        why = f"{path} is still going, or was interrupted, and has no result; the same command goes on with it"
        paid = "its entry stands in the ledger that its command named, which is not known here"
        return FoundRun(path, "unfinished", (why, paid), label)
    if not is_run and not (path / "model.safetensors").exists():
        raise InputError(f"{path}: no run there; name a folder made by dpltm train or dpltm run")
    problems: list[str] = []
    config = attempt(lambda: read_config(path / "config.json"), problems) or {}
    if "scheme" in config:
        raise InputError(f"{path}: {LOCAL}")
    run = attempt(lambda: load_run(path), problems) if config else None
    result = attempt(lambda: read_object(path / "result.json"), problems) or {}
    environment = attempt(lambda: read_object(path / "environment.json"), problems) or {}
    metrics = read_metrics(path / "metrics.jsonl")
    if metrics is None:
        problems.append(f"{path / 'metrics.jsonl'}: is missing or damaged")
    entry = None if run is None else attempt(lambda: run.entry, problems)
    weights = None if run is None else network_id(run.model, run.mask)
    if result.get(WEIGHTS, weights) != weights:
        state = "the weights in the folder cannot be read" if weights is None else f"the folder has {weights[:12]}"
        problems.append(
            f"{path / 'result.json'}: its figures belong to other weights, of SHA-256 {result[WEIGHTS]!s:.12}, and are left"
            f" out; {state}"
        )
        result, metrics = {}, None
    unchecked = FoundRun(
        path, "damaged" if problems else "finished", tuple(problems), label, config, result, environment,
        run, metrics, NO_LINEAGE if run is None else run.lineage, entry, weights,
    )  # fmt: skip
    if (understated := unchecked.understated) is None:
        return unchecked
    return replace(unchecked, state="damaged", problems=(*problems, understated))


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; InputError for other JSON."""
    body = files.parse_json(path, files.read_bytes(path, files.MAX_JSON))
    if not isinstance(body, dict):
        raise InputError(f"{path}: not a JSON object")
    return body
