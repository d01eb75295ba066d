"""``dpltm demo``: the three stages on the digits inside scikit-learn, in about a minute."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli import train
from dpltm.cli.console import Console
from dpltm.cli.options import Call, option
from dpltm.cli.run import RunOptions, Stages, run
from dpltm.options.generate import GenerateRequest
from dpltm.options.select import SelectRequest

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

PUBLIC, PRIVATE = "0.0:0.5", "0.5:1.0"


@dataclass(frozen=True)
class DemoOptions:
    """The three stages on the embedded digits: one half is the public source of tickets, the other half is private.

    Ends in a table and the certified epsilon. Nothing is kept unless --out says where.
    """

    epsilon: float = option(3.0, "Whole budget on the private half.", metavar="E")
    delta: float = option(1e-5, "Delta of the guarantee.", metavar="D")
    out: str | None = option(
        None, "Folder to keep tickets, run and ledger in.", metavar="DIR", shown="nothing is kept"
    )
    seed: int = option(0, "Seed of generation.", metavar="N")


def command(options: DemoOptions, call: Call) -> None:
    """Runs ``dpltm demo`` and prints its answer."""
    console = Console(call.json, call.quiet)
    if options.out is not None:
        body = demo(options, Path(options.out), console)
    else:
        with tempfile.TemporaryDirectory(prefix="dpltm-demo-") as folder:
            body = demo(options, Path(folder) / "demo", console)
    console.result(body, lambda rich: _show(rich, body, kept=options.out is not None))


def demo(options: DemoOptions, out: Path, console: Console) -> dict[str, Any]:
    """Runs the demo into ``out``; returns the answer of ``dpltm run``."""
    eps1 = options.epsilon / 10
    tickets, ledger = str(out / "tickets"), str(out / "ledger.jsonl")
    stages = Stages(
        GenerateRequest(
            dataset="digits", subset=PUBLIC, provenance="public", rounds=10, iterations=1000, batch_size=64,
            seed=options.seed, threads=1, name="digits", out=tickets, ledger=ledger, delta=options.delta,
        ),
        SelectRequest(
            dataset="digits", subset=PRIVATE, set=tickets, eps1=eps1, score="additive", ledger=ledger, delta=options.delta
        ),
        train.TrainOptions(
            dataset="digits", subset=PRIVATE, ticket=tickets, filter="tanh", epsilon=options.epsilon, delta=options.delta,
            out=str(out / "run"), ledger=ledger,
        ),
    )  # fmt: skip
    import torch

    torch.set_num_threads(1)  # networks this small gain nothing from more, and lose much on a machine that is busy
    console.say("digits: records 0:719 are the public source of tickets, records 719:1438 are the private data")
    return run(RunOptions(options.epsilon, options.delta, out=str(out)), stages, console)


def _show(rich: RichConsole, body: dict[str, Any], *, kept: bool) -> None:
    from dpltm.cli.show import show_privacy, show_stages

    show_stages(rich, body)
    show_privacy(rich, body["privacy"])
    if kept:
        rich.print(f"kept in {body['out']}: tickets/, run/ and ledger.jsonl")
