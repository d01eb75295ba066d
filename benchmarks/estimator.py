"""Adult through ``dpltm.TicketClassifier`` with its defaults, at several budgets.

    DPLTM_DATA=... python benchmarks/estimator.py [--tables a9a adult] [--epsilons 1 0.07] [--seeds 5]

``a9a`` is the binarised table of LIBSVM; ``adult`` are the raw files, through a ``ColumnTransformer`` whose categories and
bounds are public: those of ``examples/schemas/adult.toml``. Bounds, classes and the number of records are stated. All else
is as usual: the defaults for tables, which ``table_defaults.py`` measures.

Prints one JSON object: per table and epsilon, accuracies on the published test split in percent, their mean with the half
width of its 95 % confidence interval (Student's t over the runs), and the certified epsilon of one run at delta 1e-5.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

import dpltm
from dpltm.experiments import summary

SCHEMA = Path(__file__).parents[1] / "examples" / "schemas" / "adult.toml"
RECORDS = 32_561

Table = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Training records and labels, test records and labels."""


def a9a(home: Path) -> tuple[Pipeline, Table]:
    """The binarised table, as it is."""
    with np.load(home / "a9a.npz") as stored:
        return make_pipeline("passthrough"), (stored["x_train"], stored["y_train"], stored["x_test"], stored["y_test"])


def adult(home: Path) -> tuple[Pipeline, Table]:
    """The raw table; categories become columns of zeros and ones, quantities go to [0, 1] by public bounds."""
    columns = tomllib.loads(SCHEMA.read_text(encoding="utf-8"))["column"]
    names = list(columns)
    words = [name for name, column in columns.items() if column["kind"] == "category"]
    numbers = [name for name, column in columns.items() if column["kind"] == "number"]
    bounds = np.array([columns[name]["bounds"] for name in numbers], dtype=float)
    logs = np.array([columns[name].get("log", False) for name in numbers])

    def scaled(values: np.ndarray) -> np.ndarray:
        inside = np.clip(values.astype(float), *bounds.T) - bounds[:, 0]
        span = bounds[:, 1] - bounds[:, 0]
        return np.where(logs, np.log1p(inside) / np.log1p(span), inside / span)

    front = ColumnTransformer(
        [
            ("numbers", FunctionTransformer(scaled), [names.index(name) for name in numbers]),
            (
                "words",
                OneHotEncoder(categories=[columns[name]["values"] for name in words], handle_unknown="ignore"),
                [names.index(name) for name in words],
            ),
        ]
    )
    return make_pipeline(front), (*_read(home / "adult.csv"), *_read(home / "adult-test.csv"))


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with path.open(newline="") as stream:
        rows = [
            row for row in csv.reader(stream, skipinitialspace=True) if len(row) > 1 and not row[0].startswith("|")
        ]
    return np.array([row[:-1] for row in rows], dtype=object), np.array([row[-1].rstrip(".") for row in rows])


TABLES = {"a9a": (a9a, [0, 1]), "adult": (adult, ["<=50K", ">50K"])}


def measure(name: str, home: Path, epsilon: float, seeds: int) -> dict[str, Any]:
    """Accuracies of runs that differ in noise and starting weights."""
    make, classes = TABLES[name]
    front, (x, y, x_test, y_test) = make(home)
    found, spent = [], 0.0
    for seed in range(seeds):
        last = dpltm.TicketClassifier(
            epsilon=epsilon,
            bounds=(0, 1),
            classes=classes,
            n_records=RECORDS,
            random_state=seed,
            ledger=dpltm.Ledger(),
        )
        model = make_pipeline(front, last).fit(x, y)
        found.append(float(np.mean(model.predict(x_test) == y_test)) * 100)
        spent = last.privacy_.certified.epsilon
        print(f"{name} at {epsilon:g}: {found[-1]:.2f} %", file=sys.stderr)
    told = summary(found)
    return {
        "accuracies": [round(one, 2) for one in found],
        "mean": round(told.mean, 2),
        "half_width": round(told.half, 2),
        "certified_epsilon": round(spent, 4),
    }


def main() -> None:
    """Runs and prints."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    arguments.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 0.07])
    arguments.add_argument("--seeds", type=int, default=5)
    given = arguments.parse_args()
    home = Path(os.environ["DPLTM_DATA"])
    print(
        json.dumps(
            {
                name: {f"{epsilon:g}": measure(name, home, epsilon, given.seeds) for epsilon in given.epsilons}
                for name in given.tables
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
