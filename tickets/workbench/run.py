"""The three stages from one file, in one folder: tickets, a run, and the ledger of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from dpltm.errors import as_flags
from dpltm.experiments.pipeline import Means, Pipeline, plan, read_pipeline
from dpltm.options.run import RunRequest
from dpltm.records import DatasetCache
from dpltm.stages.progress import SILENT, Progress
from dpltm.tickets.checkpoint_files import remove_ended
from dpltm.tickets.files import check_free, only_being_written, read_json, read_toml, write_json
from dpltm.tickets.journal import begin
from dpltm.tickets.ledger_file import unnamed_ledger
from dpltm.tickets.room import check_room
from dpltm.tickets.workbench.generate import generate
from dpltm.tickets.workbench.opening import feature_sources, services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.tickets.workbench.select import select
from dpltm.tickets.workbench.train import train
from dpltm.training.checkpoint import begun_again_by, check_same

ROOM = 2**22
"""Bytes that the three stages take together at least; each asks for its own before it begins."""

FORMAT, SCHEMA, UNFINISHED = "dpltm-unfinished", 1, "unfinished.json"
"""What a run was asked for and the answers of stages that ended, in its folder until all of them have."""

RESULTS = {"generate": "tickets/tickets.json", "select": "tickets/selection.json", "train": "run/config.json"}
"""What lies in the folder of a run as soon as a stage has ended."""


def run_file(path: Path, options: RunRequest, progress: Progress) -> dict[str, Any]:
    """Runs the three stages that a file describes.

    Args:
        path: a TOML file.
        options: see :func:`run`.
        progress: who watches.

    Raises:
        DpltmError: as :func:`run`, or a file that cannot be read.
    """
    return run(options, read_pipeline(read_toml(path), path, options), progress)


def run(options: RunRequest, pipeline: Pipeline, progress: Progress) -> dict[str, Any]:
    """Runs the three stages, those that an interrupted attempt did not end; returns their answers, and the guarantee of all.

    Args:
        options: budget, delta, and folder to write.
        pipeline: the requests of the three stages.
        progress: who watches.

    Raises:
        DpltmError: bad input anywhere, before the first stage starts.
    """
    with begun_again_by(f"move {options.out} away to begin again"):
        return _run(options, pipeline, progress)


def _run(options: RunRequest, pipeline: Pipeline, progress: Progress) -> dict[str, Any]:
    unfinished, asked = Path(options.out or "") / UNFINISHED, _asked(options, pipeline)
    answers = _answers(unfinished, asked)
    dataset_cache = DatasetCache()
    if answers is None or options.dry_run:
        ledger, load = unnamed_ledger(remember=False), partial(open_dataset, dataset_cache=dataset_cache)
        privacy = plan(options, pipeline, Means(load, feature_sources(ledger.registry), ledger, services(SILENT)))
    if options.dry_run:
        return as_flags(
            {
                "dry_run": True,
                "out": options.out,
                "tickets_from": pipeline.generate.dataset,
                "private_records": pipeline.train.dataset,
                "rounds": pipeline.generate.rounds,
                "eps1": pipeline.select.eps1,
                "privacy": privacy.to_json(),
            }
        )
    if answers is None:
        answers = {}
        check_room(unfinished, ROOM, unfinished.parent / "ledger.jsonl")
        begin(unfinished.parent)  # the folder is a new one, and so is its ledger
        unfinished.parent.mkdir(parents=True, exist_ok=True)

    def keep(name: str | None = None, answer: dict[str, Any] | None = None) -> None:
        """Writes down the answers, with that of a stage whose result comes to its place next."""
        ended = answers if name is None else {**answers, name: answer}
        body = {"format": FORMAT, "schema": SCHEMA, "of": asked, "answers": ended}
        write_json(unfinished, body, mode=0o600)

    stages: dict[str, Callable[..., dict[str, Any]]] = {
        "generate": partial(generate, pipeline.generate, progress, dataset_cache=dataset_cache),
        "select": partial(select, pipeline.select, progress, dataset_cache=dataset_cache),
        "train": partial(train, pipeline.train, progress, dataset_cache=dataset_cache),
    }
    keep()
    for name, stage in stages.items():
        if name not in answers:
            answers[name] = stage(ending=partial(keep, name))
    for request in (pipeline.generate, pipeline.train):
        remove_ended(Path(request.out or ""))
    unfinished.unlink()
    return {"out": options.out, **answers, "privacy": answers["train"]["privacy"]}


def _answers(unfinished: Path, asked: dict[str, Any]) -> dict[str, Any] | None:
    """Those of an interrupted attempt; None where there was none, and the place is free."""
    if not unfinished.exists():
        if not only_being_written(unfinished):
            check_free(unfinished.parent)
        return None
    body = read_json(unfinished, FORMAT, SCHEMA)
    check_same(body.get("of", {}), asked)
    ended: dict[str, Any] = body.get("answers", {})
    return {
        name: ended[name] for name, made in RESULTS.items() if name in ended and (unfinished.parent / made).exists()
    }


def _asked(options: RunRequest, pipeline: Pipeline) -> dict[str, Any]:
    """What the run is, by table and key."""
    parts: dict[str, Any] = {
        "run": replace(options, dry_run=False),
        "generate": pipeline.generate,
        "select": pipeline.select,
        "train": pipeline.train,
    }
    return {f"[{part}] {name}": value for part, each in parts.items() for name, value in asdict(each).items()}
