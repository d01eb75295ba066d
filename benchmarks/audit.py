"""How near do audits come to what is certified? Trainings on MNIST with canaries in their own steps, row by row.

Rows are the reference values of docs/privacy-model.md section 7 (sampling rate 256/60000, delta 1e-5, 95 %), one of about
epsilon 1, and the tanh filter as its paper prints it, whose claim falls. ``--cost`` compares an audited training with an
ordinary one instead: processor seconds of both, in turn, and their ratio. Prints JSON, row by row to standard error.

    DPLTM_DATA=... python benchmarks/audit.py [--rows 1,2.38] [--seeds 3] [--canaries 5000] [--cost]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

from dpltm.audit import audit
from dpltm.features.inputs import Services
from dpltm.networks import ModelSpec
from dpltm.options.train import TrainOptions
from dpltm.privacy.ledger import Ledger
from dpltm.records import Dataset, load
from dpltm.training.artifacts import Run, fresh
from dpltm.verbs.train import train_start

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "1": ("mlp:100", {"noise_multiplier": 1.1, "steps": 2730, "audit": 60000, "lr": 1.0}),
    "2.38": ("mlp:100", {"noise_multiplier": 1.1, "steps": 14062, "audit": 5000}),
    "5.64": ("mlp:100", {"noise_multiplier": 0.7, "steps": 10547, "audit": 5000}),
    "tanh": (
        "mlp:32",
        {
            "noise_multiplier": 1.1,
            "steps": 2344,
            "filter": "tanh",
            "no_pre_clip": True,
            "noise": "nominal",
            "audit": 1000,
        },
    ),
}
"""By name: a network, and the options of its training."""


def trained(dataset: Dataset, network: str, options: dict[str, Any], seed: int) -> Run:
    """A dense training from starting weights of their own; its noise and its coins are fresh."""
    start = fresh(ModelSpec(network, dataset.features, dataset.classes), seed)
    options = {"batch_size": 256.0, "lr": 0.25, **options}
    return train_start(start, dataset, TrainOptions(**options), Ledger(), Services())


def attacked(dataset: Dataset, name: str, seeds: int, canaries: int | None) -> dict[str, Any]:
    """What audits of a row find, a figure a seed; with its own number of canaries where none is given."""
    network, options = ROWS[name]
    options = options if canaries is None else {**options, "audit": canaries}
    runs = [trained(dataset, network, options, seed) for seed in range(seeds)]
    found = [audit(run) for run in runs]
    last = found[-1]
    return {
        "row": name,
        "network": network,
        **options,
        "certified": last.certified.epsilon,
        "nominal": None if last.nominal is None else last.nominal.epsilon,
        "one_run": [one.facts["bounds"]["one_run"] for one in found],
        "f_dp": [one.facts["bounds"]["f_dp"] for one in found],
        "estimate": [one.facts["estimate"] for one in found],
        "violates": [one.violates for one in found],
        "accuracy": [run.metrics[-1]["accuracy"] for run in runs],
        "seconds": [run.seconds for run in runs],
    }


def cost(dataset: Dataset, repeats: int, steps: int) -> dict[str, Any]:
    """Processor seconds of whole trainings with and without 5,000 canaries, in turn, observations included."""
    taken: dict[str, list[float]] = {"ordinary": [], "audited": []}
    for seed in range(repeats):
        for name, canaries in (("ordinary", None), ("audited", 5000)):
            began = time.process_time()
            trained(dataset, "mlp:100", {"noise_multiplier": 1.1, "steps": steps, "audit": canaries}, seed)
            taken[name].append(time.process_time() - began)
    medians = {name: statistics.median(values) for name, values in taken.items()}
    return {"steps": steps, "seconds": taken, "ratio": medians["audited"] / medians["ordinary"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), metavar="NAME,...")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--canaries", type=int, help="in place of those of each row")
    parser.add_argument("--cost", action="store_true")
    options = parser.parse_args()
    dataset = load("mnist")
    if options.cost:
        print(json.dumps(cost(dataset, options.seeds, 500), indent=1))
        return
    rows = []
    for name in options.rows.split(","):
        rows.append(attacked(dataset, name, options.seeds, options.canaries))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
