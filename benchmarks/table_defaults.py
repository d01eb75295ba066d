"""AUC of the defaults for tables at epsilon 1, beside other settings, on public tables: none of them tests the defaults.

    DPLTM_DATA=... python benchmarks/table_defaults.py [--tables adult few ...] [--seeds 2] [--epsilon 1]

``adult`` are the raw files of Adult by ``examples/schemas/adult.toml``, ``isolet`` the spoken letters, ``letters`` the
table of ``fourier_table.py``. The others are scikit-learn's ``make_classification``, one class of which has 10 to 30 %:
``few`` columns, those of 5,000 records (``small``), ``many`` columns, a hundred (``wide``), and ``mixed``, where half
of the columns are cut into categories, and a category of 16 words says nothing. In ``additive`` no two columns
interact. Bounds, classes and numbers of records are stated.

Prints one line a table and setting: the mean AUC on test records (one against rest), accuracy, and seconds of a training.
Sampling and noise come from statistical bits, which a real run takes only if asked.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import fourier_table
import numpy as np
import torch
from sklearn.datasets import make_classification
from sklearn.metrics import roc_auc_score

import dpltm
from dpltm.records import Public, load

HERE = Path(__file__).parent
TEST = 10_000

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "unit": {"features": "unit"},
    "fourier:1024,0.5": {"features": "fourier:1024,0.5"},
    "fourier:1024,2": {"features": "fourier:1024,2"},
    "fourier:1024,8": {"features": "fourier:1024,8"},
    "not centred": {"centre": 0.0},
    "constant steps": {"schedule": "constant"},
    "mlp:300,100": {"model": "mlp:300,100", "features": None},
}

Table = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, tuple[float, float]]
"""Records and labels, test records and labels, and bounds."""


def made(count: int, columns: int, informative: int, share: float, apart: float, clusters: int, seed: int) -> Table:
    """Two classes, of which the first has that share; a tenth of the labels are drawn anew."""
    x, y = make_classification(
        count + TEST, columns, n_informative=informative, n_redundant=(columns - informative) // 3,
        n_clusters_per_class=clusters, weights=[share], class_sep=apart, flip_y=0.1, random_state=seed,
    )  # fmt: skip
    x = np.clip(x, -6, 6)
    return x[:count], y[:count], x[count:], y[count:], (-6, 6)


def mixed() -> Table:
    """Four numbers, four columns in 2 to 8 categories, and one of 16 words that say nothing."""
    x, y, more, other, _ = made(20_000, 9, 4, 0.83, 0.6, 2, 11)
    x, y = np.concatenate([x, more]), np.concatenate([y, other])
    columns = [np.clip(x[:, :4], -4, 4) / 8 + 0.5]
    for at, count in ((4, 2), (5, 8), (6, 6), (7, 4)):
        cuts = np.quantile(x[:, at], np.linspace(0, 1, count + 1)[1:-1])
        columns.append(np.eye(count)[np.searchsorted(cuts, x[:, at])])
    columns.append(np.eye(16)[np.random.default_rng(3).integers(0, 16, len(x))])
    x = np.concatenate(columns, axis=1)
    return x[:-TEST], y[:-TEST], x[-TEST:], y[-TEST:], (0, 1)


def additive() -> Table:
    """Ten numbers and three categories, each of which says a little; what they say adds up."""
    draw, count = np.random.default_rng(17), 20_000 + TEST
    numbers = np.clip(draw.normal(size=(count, 10)), -3, 3) / 6 + 0.5
    codes = [draw.integers(0, size, count) for size in (3, 5, 8)]
    told = 1.2 * (numbers - 0.5) @ draw.normal(size=10) - 1.4
    told += sum(0.4 * draw.normal(size=size)[code] for size, code in zip((3, 5, 8), codes, strict=True))
    y = (draw.random(count) < 1 / (1 + np.exp(-told))).astype(int)
    x = np.concatenate([numbers, *(np.eye(size)[code] for size, code in zip((3, 5, 8), codes, strict=True))], axis=1)
    return x[:-TEST], y[:-TEST], x[-TEST:], y[-TEST:], (0, 1)


def adult() -> Table:
    """The raw files, encoded by the public schema."""
    home, schema = Path(os.environ["DPLTM_DATA"]), HERE.parent / "examples" / "schemas" / "adult.toml"
    whole = load(str(home / "adult.csv"), schema=schema, test=str(home / "adult-test.csv"), rows_coincide=True)
    assert whole.test is not None
    train, test = whole.train.open(Public("a benchmark")), whole.test.open(Public("a benchmark"))
    return train.x, train.y, test.x, test.y, (0, 1)


def isolet() -> Table:
    """The published split."""
    with np.load(Path(os.environ["DPLTM_DATA"]) / "isolet.npz") as stored:
        return stored["x_train"], stored["y_train"], stored["x_test"], stored["y_test"], (-1, 1)


def letters() -> Table:
    """A made table of 26 classes."""
    (x, y), count = fourier_table.table(), fourier_table.RECORDS
    return x[:count], y[:count], x[count:], y[count:], (0, fourier_table.HIGHEST)


TABLES: dict[str, Callable[[], Table]] = {
    "adult": adult,
    "isolet": isolet,
    "letters": letters,
    "few": lambda: made(20_000, 12, 5, 0.83, 0.5, 2, 1),
    "small": lambda: made(5_000, 12, 5, 0.7, 0.8, 2, 3),
    "many": lambda: made(20_000, 40, 8, 0.83, 0.5, 2, 2),
    "wide": lambda: made(20_000, 100, 15, 0.9, 0.7, 1, 6),
    "mixed": mixed,
    "additive": additive,
}

table = cache(lambda name: TABLES[name]())


def run(name: str, settings: dict[str, Any], epsilon: float, seed: int) -> tuple[float, float, float]:
    """AUC, accuracy and seconds of one training."""
    x, y, x_test, y_test, bounds = table(name)
    made_of = dpltm.TicketClassifier(
        epsilon=epsilon, bounds=bounds, classes=int(y.max()) + 1, n_records=len(x), noise="fast", random_state=seed,
        rows_coincide=True, ledger=dpltm.Ledger(), **settings,
    )  # fmt: skip
    began = time.perf_counter()
    made_of.fit(x, y)
    seconds, chances = time.perf_counter() - began, made_of.predict_proba(x_test)
    auc = roc_auc_score(y_test, chances[:, 1] if chances.shape[1] == 2 else chances, multi_class="ovr")
    return float(auc), float(np.mean(chances.argmax(1) == y_test)), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for name in given.tables:
        for told in given.settings:
            each = np.array([run(name, SETTINGS[told], given.epsilon, seed) for seed in range(given.seeds)])
            auc, accuracy, seconds = each.mean(0)
            spread = each[:, 0].max() - each[:, 0].min()
            print(
                f"{name:8} {told:18} AUC {auc:.3f} (range {spread:.3f}) accuracy {accuracy:.3f} {seconds:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
