"""How long commands take from start to end, against importing the library that they stand on.

Every figure is the wall time of fresh processes, started one after the other in turn, byte code and page cache warm; the
median of ``--repeats``. Prints one JSON object: each with what it is measured against, the ratio, and the goal for it.

    python benchmarks/start_up.py [--repeats 7] [--without demo ...]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

CLI = (sys.executable, "-m", "dpltm.cli.main")
BARE = {
    "typer, rich": (sys.executable, "-c", "import typer, rich"),
    "dp_accounting": (sys.executable, "-c", "import dp_accounting"),
    "torch": (sys.executable, "-c", "import torch"),
}
"""What a command is measured against: an import alone."""

EPSILON = "privacy epsilon --noise-multiplier 1.1 --sampling-rate 0.01 --steps 1000 --delta 1e-5"
TRAIN = "train --dataset digits --dense --epochs 1 --epsilon 3 --out run"
COMMANDS = {
    "--help": ("--help", "typer, rich", 2.0),
    "privacy epsilon": (EPSILON, "dp_accounting", 1.2),
    "train, 1 epoch": (TRAIN, "torch", 1.5),
    "demo": ("demo", "torch", 4.0),
}
"""Arguments, what they are measured against, and at most how many times as long they may take."""


def rows(repeats: int = 7, without: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """One row a command: its seconds, those of the import, their ratio, and the goal.

    Args:
        repeats: processes of each, after one that warms up.
        without: names of commands to leave out.
    """
    asked = {name: command for name, command in COMMANDS.items() if name not in without}
    programs = {name: (*CLI, *arguments.split()) for name, (arguments, _, _) in asked.items()}
    programs |= {name: BARE[name] for name in dict.fromkeys(against for _, against, _ in asked.values())}
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(repeats + 1):
        for name, program in programs.items():
            times[name].append(_seconds(program))
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    return [
        {
            "what": name,
            "seconds": medians[name],
            "against": f"import {against}",
            "against_seconds": medians[against],
            "ratio": medians[name] / medians[against],
            "goal": goal,
        }
        for name, (_, against, goal) in asked.items()
    ]


def _seconds(program: tuple[str, ...]) -> float:
    """Wall time of a process of a new user, in a folder of its own, which writes byte code where there is none."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        # Without the ledgers of earlier runs, whose trainings would be counted and priced.
        environment["XDG_CONFIG_HOME"] = folder
        began = time.perf_counter()
        subprocess.run(program, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--without", nargs="*", default=[], choices=list(COMMANDS))
    arguments = parser.parse_args()
    print(json.dumps({"rows": rows(arguments.repeats, tuple(arguments.without)), "python": sys.version.split()[0]}))


if __name__ == "__main__":
    main()
