"""Certified accuracy behind features from nobody's data: ``dpltm train --features drawings``, whole commands.

    DPLTM_DATA=... python benchmarks/drawings.py [--datasets mnist kmnist-7k fashion-mnist] [--features unit drawings]
        [--epsilons 0.2 1 3] [--runs 5] [--usual] [--plot FILE]

Every figure is the mean over runs of the command, with real noise, and half the width of its 95 % interval (Student's t).
The settings are the same for all datasets and budgets but for the batch: clip norm 0.2, momentum, and the step size that
``dpltm`` takes behind features. Nothing is searched. ``--usual`` leaves all of it to the tool's defaults. Prints JSON, with
the largest certified epsilon of a figure's runs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from dpltm.cli.main import run as dpltm
from dpltm.experiments import summary
from dpltm.records import load

LARGE = 4096
"""Expected batch where there are at least ten times as many records, for 16 epochs; else all of them, 120 times."""


def settings(name: str) -> list[str]:
    records = load(name).records
    size = ["--batch-size", str(LARGE), "--epochs", "16"]
    if records < 10 * LARGE:
        size = ["--batch-size", str(records), "--steps", "120"]
    return [*size, "--clip-norm", "0.2", "--optimizer", "momentum"]


def trained(name: str, features: str, epsilon: float, more: list[str]) -> tuple[float, float]:
    """Accuracy on the test split, and the certified epsilon, of one run."""
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        command = ["train", "--dense", "--dataset", name, "--features", features, "--epsilon", str(epsilon), *more]
        if dpltm([*command, "--json", "--out", f"{folder}/r", "--ledger", f"{folder}/l.jsonl"]):
            raise SystemExit(f"dpltm {' '.join(command)} failed")
    body = json.loads(said.getvalue())
    return 100 * body["accuracy"], body["privacy"]["certified"]["epsilon"]


def draw(rows: list[dict[str, Any]], target: Path) -> None:
    """Accuracy over epsilon, one panel a dataset and one line a map."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(row["dataset"] for row in rows))
    _, panels = plt.subplots(1, len(names), figsize=(4.2 * len(names), 3.6), squeeze=False, layout="constrained")
    for name, panel in zip(names, panels[0], strict=True):
        for features in dict.fromkeys(row["features"] for row in rows):
            line = [row for row in rows if (row["dataset"], row["features"]) == (name, features)]
            columns = ([row[key] for row in line] for key in ("epsilon", "mean", "half"))
            over, mean, half = columns
            panel.errorbar(over, mean, half, marker="o", markersize=4, capsize=3, label=features)
        panel.set(title=name, xlabel="certified epsilon (delta 1e-5)", xscale="log")
        panel.set_xticks(over, [f"{epsilon:g}" for epsilon in over], minor=False)
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("accuracy on the test split, %")
    panels[0][-1].legend(loc="lower right")
    plt.savefig(target, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["mnist", "kmnist-7k", "fashion-mnist"])
    parser.add_argument("--features", nargs="+", default=["drawings"])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.2, 1.0, 3.0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--usual", action="store_true")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in options.datasets:
        for features in options.features:
            for epsilon in options.epsilons:
                more = [] if options.usual else settings(name)
                found = [trained(name, features, epsilon, more) for _ in range(options.runs)]
                mean = summary([accuracy for accuracy, _ in found])
                row = {"dataset": name, "features": features, "epsilon": epsilon, "mean": mean.mean, "half": mean.half}
                rows.append({**row, "certified": max(certified for _, certified in found)})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    if options.plot is not None:
        draw(rows, options.plot)
    print(json.dumps({"delta": 1e-5, "runs": options.runs, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
