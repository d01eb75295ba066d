"""The three stages from one file, in one folder: tickets, a run, and the ledger of both."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from dpltm.data import DatasetCache
from dpltm.errors import as_flags
from dpltm.experiments.pipeline import Means, Pipeline, plan, read_pipeline
from dpltm.options.run import RunRequest
from dpltm.stages.progress import SILENT, Progress
from dpltm.tickets.files import check_free, read_toml
from dpltm.tickets.journal import begin
from dpltm.tickets.ledger_file import unnamed_ledger
from dpltm.tickets.workbench.generate import generate
from dpltm.tickets.workbench.opening import feature_sources, services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.tickets.workbench.select import select
from dpltm.tickets.workbench.train import train


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
    """Runs the three stages; returns their answers and the guarantee of all together.

    Args:
        options: budget, delta, and folder to write.
        pipeline: the requests of the three stages.
        progress: who watches.

    Raises:
        DpltmError: bad input anywhere, before the first stage starts.
    """
    check_free(Path(options.out or ""))
    dataset_cache, ledger = DatasetCache(), unnamed_ledger(remember=False)
    load = partial(open_dataset, dataset_cache=dataset_cache)
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
    begin(Path(options.out or ""))  # the folder is a new one, and so is its ledger
    made = generate(pipeline.generate, progress, dataset_cache=dataset_cache)
    drawn = select(pipeline.select, progress, dataset_cache=dataset_cache)
    trained = train(pipeline.train, progress, dataset_cache=dataset_cache)
    return {"out": options.out, "generate": made, "select": drawn, "train": trained, "privacy": trained["privacy"]}
