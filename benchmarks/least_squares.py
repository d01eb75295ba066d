"""Certified accuracy of ``dpltm train --dense --head least-squares``, whole commands with no setting but the budget.

    DPLTM_DATA=... python benchmarks/least_squares.py [--arms mnist-scatter isolet ...] [--epsilons 0.2 1] [--runs 5]

Every figure is the mean over runs of the command, with real noise, and half the width of its 95 % interval (Student's t);
``seconds`` is the longest that a run took after its features were there. Prints JSON, with the largest certified epsilon.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from typing import Any

import torch

from dpltm.cli.main import run as dpltm
from dpltm.experiments import summary

ARMS: dict[str, tuple[str, ...]] = {
    "isolet": ("--dataset", "isolet", "--features", "unit"),
    "a9a": ("--dataset", "a9a", "--features", "unit"),
    "mnist-scatter": ("--dataset", "mnist", "--features", "scatter"),
    "mnist-drawings": ("--dataset", "mnist", "--features", "drawings"),
    "kmnist-scatter": ("--dataset", "kmnist-7k", "--features", "scatter"),
    "kmnist-drawings": ("--dataset", "kmnist-7k", "--features", "drawings"),
    "cifar-photographs": ("--dataset", "cifar10-12k", "--features", "photographs"),
    **{f"cifar-{count}": ("--dataset", "cifar10-12k", "--features", f"photographs:{count}") for count in (200, 1600)},
    "fashion-three": ("--dataset", "fashion-mnist", "--features", "drawings+photographs+scatter:3"),
    "fashion-both": ("--dataset", "fashion-mnist", "--features", "drawings+photographs"),
}
"""What stands in front of the layer."""


def trained(arm: str, epsilon: float) -> dict[str, Any]:
    """What one command printed."""
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        command = ["train", "--dense", "--head", "least-squares", *ARMS[arm], "--epsilon", str(epsilon)]
        if dpltm([*command, "--json", "--quiet", "--out", f"{folder}/r", "--ledger", f"{folder}/l.jsonl"]):
            raise SystemExit(f"dpltm {' '.join(command)} failed")
    body: dict[str, Any] = json.loads(said.getvalue())
    return body


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.2, 1.0])
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for arm in options.arms:
        for epsilon in options.epsilons:
            bodies = [trained(arm, epsilon) for _ in range(options.runs)]
            mean = summary([100 * body["accuracy"] for body in bodies])
            row = {"arm": arm, "epsilon": epsilon, "mean": mean.mean, "half": mean.half}
            row["certified"] = max(body["privacy"]["certified"]["epsilon"] for body in bodies)
            row["seconds"] = max(body["seconds"] for body in bodies)
            row["second_moments"] = bodies[0]["second_moments"] is not None
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    print(json.dumps({"delta": 1e-5, "runs": options.runs, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
