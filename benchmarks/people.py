"""All records of a person protected together, against single records, at the same certified budgets.

    DPLTM_DATA=... python benchmarks/people.py [--datasets isolet har made-up] [--seeds 5]

ISOLET has 120 speakers with 52 spoken letters each (``isolet-speakers.npz`` says who spoke what, inferred from the order
of the rows), HAR 21 persons with 281 to 409 windows each; its test persons are others. The made-up population has 5,000
persons with 1 to 50 records each of 20 numbers in 4 classes, a test split of 1,000 others; every person leans to two of
the classes and has an offset of their own, so records of one are alike.

Prints one JSON object: per dataset and unit, by epsilon, the mean accuracy on test records and the half width of its 95 %
confidence interval (Student's t over the runs, each with noise of its own). Everything else
is the same: ``--features unit``, one layer, 100 steps on all records or persons, at most 64 records a person, delta 1e-6,
the default step size. Nothing is chosen here on any records.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import dpltm
from dpltm.experiments import summary

DELTA, STEPS, SLOTS = 1e-6, 100, 64
EPSILONS = {"isolet": (3.0, 8.0), "har": (3.0, 8.0), "made-up": (1.0,)}
PERSONS, CLASSES, COLUMNS, TESTED = 5_000, 4, 20, 1_000

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray], tuple[float, float]]
"""Records, labels, whose they are, the test split, bounds."""


def isolet(home: Path) -> Arrays:
    records, speakers = np.load(home / "isolet.npz"), np.load(home / "isolet-speakers.npz")
    test = records["x_test"], records["y_test"]
    return records["x_train"], records["y_train"], speakers["speaker_train"], test, (-1.0, 1.0)


def har(home: Path) -> Arrays:
    records = np.load(home / "har-raw.npz")
    test = records["x_test"], records["y_test"]
    return records["x_train"], records["y_train"], records["subject_train"], test, (-2.5, 2.5)


def made_up(_: Path) -> Arrays:
    draw = np.random.default_rng(0)
    counts = draw.integers(1, 51, PERSONS + TESTED)
    person = np.repeat(np.arange(len(counts)), counts)
    leaning = draw.integers(0, CLASSES, (len(counts), 2))[person, draw.integers(0, 2, len(person))]
    y = np.where(draw.random(len(person)) < 0.7, leaning, draw.integers(0, CLASSES, len(person)))
    centres, own = draw.normal(0, 0.35, (CLASSES, COLUMNS)), draw.normal(0, 0.3, (len(counts), COLUMNS))
    x = np.clip(centres[y] + own[person] + draw.normal(0, 0.8, (len(person), COLUMNS)), -3, 3).astype(np.float32)
    tested = person >= PERSONS
    return x[~tested], y[~tested], person[~tested], (x[tested], y[tested]), (-3.0, 3.0)


DATASETS = {"isolet": isolet, "har": har, "made-up": made_up}


def accuracy(data: Arrays, unit: str, budget: float, seed: int) -> float:
    """On the test split, after one training."""
    x, y, persons, test, bounds = data
    count = len(np.unique(persons)) if unit == "person" else len(x)
    facts: dict[str, Any] = {"test": test, "bounds": bounds, "classes": int(y.max()) + 1, "records": count}
    if unit == "person":
        facts |= {"units": persons, "per_unit": SLOTS}
    ledger = dpltm.Ledger(unit="user" if unit == "person" else "record")
    common: dict[str, Any] = {"steps": STEPS, "delta": DELTA, "features": "unit", "batch_size": float(count)}
    run = dpltm.train("mlp", x, y, **facts, epsilon=budget, **common, seed=seed, ledger=ledger)
    return float(run.metrics[-1]["accuracy"])


def main() -> None:
    """Prints the object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    home = Path(os.environ.get("DPLTM_DATA", "."))
    found: dict[str, dict[str, Any]] = {}
    for name in options.datasets:
        data = DATASETS[name](home)
        found[name] = {"persons": len(np.unique(data[2])), "records": len(data[0])}
        for unit in ("person", "record"):
            for budget in EPSILONS[name]:
                seeds = range(options.seeds)
                done = summary([accuracy(data, unit, budget, seed) for seed in seeds])
                found[name][f"{unit} {budget:g}"] = [round(100 * done.mean, 2), round(100 * done.half, 2)]
                print(name, unit, f"{budget:g}", found[name][f"{unit} {budget:g}"], file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
