"""The three stages on the digits inside scikit-learn, in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dpltm.experiments.pipeline import Pipeline
from dpltm.options.generate import GenerateRequest
from dpltm.options.run import DemoRequest, RunRequest
from dpltm.options.select import SelectRequest
from dpltm.options.train import TrainRequest
from dpltm.stages.progress import Progress
from dpltm.tickets.workbench.run import run

PUBLIC, PRIVATE = "0.0:0.5", "0.5:1.0"


def demo(options: DemoRequest, out: Path, progress: Progress) -> dict[str, Any]:
    """Runs the demo into ``out``; returns the answer of ``dpltm run``.

    Args:
        options: budget, delta and seed.
        out: folder to write.
        progress: who watches.
    """
    eps1 = options.epsilon / 10
    tickets, ledger = str(out / "tickets"), str(out / "ledger.jsonl")
    pipeline = Pipeline(
        GenerateRequest(
            dataset="digits", subset=PUBLIC, provenance="public", rounds=10, iterations=250, batch_size=64,
            seed=options.seed, threads=1, name="digits", out=tickets, ledger=ledger, delta=options.delta,
        ),
        SelectRequest(
            dataset="digits", subset=PRIVATE, set=tickets, eps1=eps1, score="additive", ledger=ledger, delta=options.delta
        ),
        TrainRequest(
            dataset="digits", subset=PRIVATE, ticket=tickets, filter="tanh", epsilon=options.epsilon, delta=options.delta,
            out=str(out / "run"), ledger=ledger,
        ),
    )  # fmt: skip
    torch.set_num_threads(1)  # networks this small gain nothing from more, and lose much on a machine that is busy
    progress.say("digits: records 0:719 are the public source of tickets, records 719:1438 are the private data")
    return run(RunRequest(options.epsilon, options.delta, out=str(out)), pipeline, progress)
