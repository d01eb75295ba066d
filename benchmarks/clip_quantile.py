"""A clip norm that follows a quantile, begun ten times too large or too small, against seven fixed norms.

    DPLTM_DATA=... python benchmarks/clip_quantile.py [--cases isolet ...] [--epsilons 1 3] [--seeds 3]
    python benchmarks/clip_quantile.py --step        what a step takes, in pairs

Everything but the clip norm is at its defaults. ``isolet``, ``a9a`` and ``har`` (signals) are one layer behind ``unit``,
where the default step size goes with one over the norm; ``kmnist`` and ``fashion`` (10,000 records) are 784-300-100-10 by
Adam, to whose steps a norm is no length either. The quantile begins at 10 and 1/10 of the best fixed norm. Prints the test
accuracy of each, means over seeds, and at the end how far behind the best fixed norm the quantile is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import torch
from torch import nn

import dpltm
from dpltm.experiments import summary
from dpltm.filters import make_filter
from dpltm.records.catalogue import data_home

NORMS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
QUANTILE = 0.5

CASES: dict[str, tuple[str, int, str, dict[str, Any]]] = {
    "isolet": ("isolet", 10**6, "mlp", {"features": "unit"}),
    "a9a": ("a9a", 10**6, "mlp", {"features": "unit"}),
    "har": ("har-signals", 10**6, "mlp", {"features": "unit"}),
    "kmnist": ("kmnist-7k", 10**6, "mlp:300,100", {"optimizer": "adam"}),
    "fashion": ("fashion-mnist", 10_000, "mlp:300,100", {"optimizer": "adam"}),
}
"""File, most records, network and options of each."""


def records(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    file, most, _, _ = CASES[name]
    parts = np.load(data_home() / f"{file}.npz")
    x, y, test, right = (parts[key] for key in ("x_train", "y_train", "x_test", "y_test"))
    return x[:most], y[:most].astype(np.int64), test, right.astype(np.int64)


def accuracy(name: str, epsilon: float, norm: float, quantile: float, seed: int) -> float:
    x, y, test, right = records(name)
    _, _, model, options = CASES[name]
    whole = np.concatenate([x, test]) if x.dtype != np.uint8 else np.array([0, 255])
    run = dpltm.train(
        model, x, y, bounds=(float(whole.min()), float(whole.max())), classes=int(y.max()) + 1, epsilon=epsilon,
        clip_norm=norm, clip_quantile=quantile, seed=seed, noise="fast", ledger=dpltm.Ledger(), **options,
    )  # fmt: skip
    assert run.privacy.certified.epsilon <= epsilon
    return 100 * dpltm.evaluate(run, test, right).accuracy


def step() -> None:
    """Print the time of a step of 784-300-100-10, batch 400, with the count over one without, in pairs."""
    x, y = torch.rand(4000, 784), torch.randint(10, (4000,))
    loops = []
    for quantile in (0.0, QUANTILE):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))
        filter = make_filter("clip", clip_quantile=quantile)
        loop = dpltm.PrivateLoop(
            model, nn.CrossEntropyLoss(reduction="none"), x, y, batch_size=400, steps=1000, delta=1e-5,
            noise_multiplier=1.0, filter=filter, ledger=dpltm.Ledger(),
        )  # fmt: skip
        loops.append((iter(loop), torch.optim.SGD(model.parameters(), lr=0.1)))
    times: list[list[float]] = [[], []]
    for turn in range(300):
        for place in (0, 1) if turn % 2 else (1, 0):
            steps, optimizer = loops[place]
            began = time.perf_counter()
            next(steps).backward()
            optimizer.step()
            times[place].append(time.perf_counter() - began)
    without, with_count = (statistics.median(each[20:]) for each in times)
    print(f"{1e3 * without:.2f} ms without, {with_count / without:.3f} times that with the count")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--step", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.step:
        step()
        return
    for name in options.cases:
        for epsilon in options.epsilons:

            def mean(norm: float, quantile: float) -> float:
                found = summary([accuracy(name, epsilon, norm, quantile, seed) for seed in range(options.seeds)])  # noqa: B023
                row = {"case": name, "epsilon": epsilon, "norm": norm, "quantile": quantile}  # noqa: B023
                print(json.dumps(row | {"mean": round(found.mean, 2), "half": found.half}), flush=True)
                return found.mean

            fixed = {norm: mean(norm, 0.0) for norm in NORMS}
            best = max(fixed, key=fixed.__getitem__)
            moving = [mean(best * factor, QUANTILE) for factor in (10.0, 0.1)]
            behind = ", ".join(f"{fixed[best] - one:+.2f}" for one in moving)
            print(
                f"{name} at {epsilon:g}: best fixed norm {best:g} with {fixed[best]:.2f}; behind it by {behind}",
                flush=True,
            )


if __name__ == "__main__":
    main()
