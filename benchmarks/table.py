"""Every promise about speed in one table, each figure beside its goal: ``make bench``.

Steps are medians of interleaved runs in one process, in plain steps P of the same network; whole commands are processes of
their own. Nothing else should run meanwhile. Opacus must be installed; MNIST and KMNIST are read from DPLTM_DATA.

    DPLTM_DATA=FOLDER python benchmarks/table.py
"""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import start_up
import torch

HERE = Path(__file__).parent
Row = tuple[str, float, str, float, bool]
"""What, the figure, its unit, the goal, and whether less is better."""


def answer_of(script: str, *arguments: str) -> dict[str, Any]:
    """The JSON that a benchmark prints, run as a process of its own."""
    command = [sys.executable, str(HERE / script), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return json.loads(done.stdout)


def mlp() -> Iterator[Row]:
    steps = answer_of("training_step.py", "--peers", "--without", "opacus hooks", "tanh-then-clip", "--repeat", "30")
    ghost, intel = steps["opacus ghost"]["ms"], "Intel" in processor()
    name = "784-300-100-10, batch 400: "
    yield f"{name}plain step", steps["plain"]["ms"], "ms", float("nan"), True
    yield f"{name}clip, 10 % live", steps["clip"]["P"], "P", 1.5 if intel else 1.3, True
    yield f"{name}Opacus ghost over it", ghost / steps["clip"]["ms"], "times", 1.8, False
    yield f"{name}clip, every weight live", steps["clip, dense"]["P"], "P", 1.9, True
    yield f"{name}Opacus ghost over it", ghost / steps["clip, dense"]["ms"], "times", 1.5, False
    yield f"{name}clip-then-tanh, compiled", steps["clip-then-tanh, compiled"]["P"], "P", 4.0, True
    yield f"{name}clip, 2 % live", steps["clip, 2 % live"]["P"], "P", 1.1, True
    yield f"{name}clip, 2 % live, compacted", steps["clip, 2 % live, compacted"]["P"], "P", 0.8, True


def cnn() -> Iterator[Row]:
    steps = answer_of("training_step.py", "--network", "cnn", "--peers", "--repeat", "10")
    best = min(value["ms"] for name, value in steps.items() if name.startswith("opacus"))
    yield "cnn: plain step", steps["plain"]["ms"], "ms", float("nan"), True
    yield "cnn: clip, 10 % live", steps["clip"]["P"], "P", 1.6, True
    yield "cnn: best of Opacus over it", best / steps["clip"]["ms"], "times", 1.8, False
    yield "cnn: clip, every weight live", steps["clip, dense"]["P"], "P", 2.0, True


def features() -> Iterator[Row]:
    found = answer_of("features.py", "--images", "8192", "--repeats", "2", "--threads", str(torch.get_num_threads()))
    yield "linear on 3,969 features, batch 4,096", found["ratio"], "of the plain loop", 1.3, True
    yield "features of 8,192 images", found["seconds"], "s", float("nan"), True


def whole() -> Iterator[Row]:
    runs = answer_of("whole_training.py", "--epochs", "20", "--repeat", "1")
    seconds = {name: value["seconds"] for name, value in runs.items()}
    peer, plain = seconds["opacus ghost, Poisson loader"], seconds["plain, no privacy"]
    dense, ticket = seconds["dpltm train, dense"], seconds["dpltm train, ticket of 9 % density"]
    name = "whole training, 20 epochs of MNIST: "
    yield f"{name}plain", plain, "s", float("nan"), True
    yield f"{name}Opacus over `train --dense`", peer / dense, "times", 1.5, False
    yield f"{name}`train --dense`", dense / plain, "of plain", 2.2, True
    yield f"{name}Opacus over a 9 % ticket", peer / ticket, "times", 2.5, False


def starts() -> Iterator[Row]:
    for row in start_up.rows(repeats=2):
        yield f"`dpltm {row['what']}`", row["ratio"], f"of {row['against']}", row["goal"], True


def generation() -> Iterator[Row]:
    found = answer_of("generation_step.py", "--repeats", "4")
    yield "step of generation, 10 % live", found["median_of_ratios"], "of a bare loop", 1.05, True


def processor() -> str:
    """What the system calls it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def main() -> None:
    threads = torch.get_num_threads()
    print(f"{datetime.date.today()}, {processor()}, {threads} threads, torch {torch.__version__}\n")
    print("| | measured | goal | met |\n|---|---|---|---|")
    began = time.perf_counter()
    for part in (mlp, cnn, features, generation, starts, whole):
        for what, value, unit, goal, less in part():
            aimed = goal == goal  # not NaN: figures that others are given in have no goal
            met = "" if not aimed else "yes" if (value <= goal if less else value >= goal) else "no"
            shown = "" if not aimed else f"{'at most' if less else 'at least'} {goal:g}"
            print(f"| {what} | {value:.3g} {unit} | {shown} | {met} |", flush=True)
    print(f"\n{time.perf_counter() - began:.0f} seconds")


if __name__ == "__main__":
    main()
