"""The default of a table beside other settings, DP-EBM and models without privacy, on made tables that nothing was tuned on.

    pip install interpret-core    # DP-EBM (Nori et al. 2021); without it its column is empty
    python benchmarks/table_defaults.py [--kinds additive rare ...] [--seeds 100:112] [--epsilons 1 3] [--out lines.jsonl]
    python benchmarks/table_defaults.py --regression [--seeds 100:112]
    python benchmarks/table_defaults.py --persons [--kinds additive rare ...]    # of 1 to 6 rows each, protected
    DPLTM_DATA=... python benchmarks/table_defaults.py --adult

Of each kind and seed a table is drawn: 5,000 to 40,000 records, 4 to 19 numbers, some skewed, some correlated, up to five
categories. Effects add up, most linearly (``additive``, ``balanced``), with an outcome of 1.5 to 5 % (``rare``); or pairs of
columns go together (``interacting``), or both (``mixed``). Bounds are the 0.1 % quantiles of a larger sample, widened.

Prints a line a table, then means. ``share`` is mean chance over share on 8,000 other records, which differ from the training
records by chance: so beside it is that of logistic regression without privacy. ``best`` is the best of the other settings,
chosen by its mean over the other seeds; ``log loss`` that over the better model without privacy, and ``as ranked`` over the
best chances that rank the test records as these do. Noise comes from statistical bits, which a real run takes only if asked.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from scipy.special import expit, logit
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, r2_score, roc_auc_score

import dpltm
from dpltm.records.load import load
from dpltm.records.split import Public

TEST = 8_000
KINDS = {
    "additive": (0.08, 0.4),
    "rare": (0.015, 0.05),
    "balanced": (0.5, 0.5),
    "interacting": (0.3, 0.5),
    "mixed": (0.1, 0.3),
}
"""And between which shares their outcome has."""

SETTINGS: dict[str, dict[str, Any]] = {
    "unit": {"features": "unit", "head": "dp-sgd"},
    "fourier": {"features": "fourier", "head": "dp-sgd"},
    "unit+fourier": {"features": "unit+fourier", "head": "dp-sgd"},
    "splines, dp-sgd": {"features": "splines", "head": "dp-sgd"},
}


@dataclass(frozen=True)
class Table:
    """A frame, its outcome, and the schema of its features; the last ``TEST`` records are for tests.

    Attributes:
        persons: whose each record is, where persons are protected.
    """

    frame: pandas.DataFrame
    y: np.ndarray
    schema: str
    persons: np.ndarray | None = None

    @property
    def units(self) -> np.ndarray | None:
        return None if self.persons is None else self.persons[:-TEST]

    @property
    def records(self) -> int:
        return len(self.frame) - TEST if self.units is None else len(np.unique(self.units))

    def plain(self) -> np.ndarray:
        """Numbers, and categories one hot."""
        return pandas.get_dummies(self.frame).to_numpy(dtype=float)


def columns(
    draw: np.random.Generator, count: int, persons: np.ndarray | None
) -> tuple[np.ndarray, pandas.DataFrame, str]:
    """Standardised numbers, and the frame with them within their bounds, skewed or not, and categories.

    Half of the variance of a number is that between persons, where there are any.
    """
    width = int(draw.integers(4, 20))
    mixing = np.eye(width) + draw.normal(size=(width, width)) * draw.choice([0, 0.3, 0.6]) / np.sqrt(width)
    z = draw.normal(size=(count, width))
    if persons is not None:
        z = z + draw.normal(size=(persons[-1] + 1, width))[persons]
    z = z @ mixing
    z /= z.std(0)
    x = np.where(draw.random(width) < 0.3, np.exp(0.8 * z), z)
    low, high = np.quantile(x, [0.001, 0.999], axis=0)
    low, high = low - draw.random(width) * (high - low) * 0.2, high + draw.random(width) * (high - low) * 0.3
    frame = pandas.DataFrame(
        {f"x{at}": np.clip((x[:, at] - low[at]) / (high[at] - low[at]), 0, 1) for at in range(width)}
    )
    text = [f'[column.x{at}]\nkind = "number"\nbounds = [0, 1]\n' for at in range(width)]
    for at in range(int(draw.integers(0, 6))):
        size = int(draw.integers(2, 9))
        frame[f"c{at}"] = draw.choice(size, p=draw.dirichlet(np.full(size, 3.0)), size=count).astype(str)
        text.append(
            f'[column.c{at}]\nkind = "category"\nvalues = {json.dumps([str(value) for value in range(size)])}\n'
        )
    return z, frame, "\n".join(text)


def scores(draw: np.random.Generator, kind: str, z: np.ndarray, frame: pandas.DataFrame) -> np.ndarray:
    """What the outcome depends on."""
    width = z.shape[1]
    added = z @ (draw.normal(size=width) * (draw.random(width) < 0.7))
    for name in frame.columns[width:]:
        codes = frame[name].astype(int).to_numpy()
        added = added + 0.7 * draw.normal(size=codes.max() + 1)[codes]
    bent = sum(
        draw.normal() * (np.abs(z[:, at]) if draw.random() < 0.5 else z[:, at] > 0.7 * draw.normal())
        for at in range(0, width, 2)
    )
    together = 0
    for _ in range(int(draw.integers(2, 6))):
        product = np.prod(z[:, draw.choice(width, 2, replace=False)], axis=1)
        together = together + (draw.normal() + np.sign(draw.normal())) * (
            product if draw.random() < 0.5 else np.sign(product)
        )
    parts = {"added": added, "bent": bent, "together": together}
    added, bent, together = ((part - part.mean()) / part.std() for part in parts.values())
    return {
        "additive": added + 0.6 * bent, "rare": added + 0.6 * bent, "balanced": added, "interacting": together,
        "mixed": 0.8 * added + 0.4 * bent + 0.8 * together,
    }[kind]  # fmt: skip


def made(kind: str, seed: int, regression: bool = False, of_persons: bool = False) -> Table:
    draw = np.random.default_rng([sum(map(ord, kind)), seed])
    count = int(np.exp(draw.uniform(np.log(5_000), np.log(40_000)))) + TEST
    persons = np.repeat(np.arange(count), draw.integers(1, 7, count))[:count] if of_persons else None
    z, frame, text = columns(draw, count, persons)
    score = scores(draw, kind, z, frame)
    if regression:
        y = score + draw.normal(size=count) * draw.uniform(0.5, 1.1)
        low, high = np.quantile(y, [0.001, 0.999])
        return Table(frame, np.clip((y - low + 0.1 * (high - low)) / (1.3 * (high - low)), 0, 1), text)
    score, share = score * draw.uniform(0.8, 2.0), draw.uniform(*KINDS[kind])
    ends = [-20.0, 20.0]
    for _ in range(60):
        middle = sum(ends) / 2
        ends[int(expit(score + middle).mean() >= share)] = middle
    return Table(frame, (draw.random(count) < expit(score + sum(ends) / 2)).astype(int), text, persons)


def fitted(table: Table, epsilon: float, seed: int, settings: dict[str, Any], regression: bool = False) -> np.ndarray:
    """What a model says of the test records: chances, or targets."""
    kind: Callable[..., Any] = dpltm.TicketRegressor if regression else dpltm.TicketClassifier
    unit = "record" if table.persons is None else "user"
    label = "" if regression else '\n[column.y]\nkind = "label"\nclasses = ["0", "1"]\n'
    with tempfile.TemporaryDirectory() as folder:
        schema = Path(folder) / "schema.toml"
        schema.write_text(table.schema + label)
        model = kind(
            epsilon=epsilon, schema=schema, n_records=table.records, ledger=dpltm.Ledger(unit=unit), noise="fast",
            random_state=seed, rows_coincide=True, per_unit=None if table.persons is None else 8,
            **({"target_bounds": (0, 1)} if regression else {}), **settings,
        )  # fmt: skip
        y = table.y[:-TEST]
        model.fit(table.frame[:-TEST], y if regression else y.astype(str), units=table.units)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(
                model.predict(table.frame[-TEST:]) if regression else model.predict_proba(table.frame[-TEST:])[:, 1]
            )


def by_boosting(table: Table, epsilon: float, seed: int) -> np.ndarray | None:
    """Chances by DP-EBM, with the same bounds; None where it is not installed."""
    try:
        from interpret.privacy import DPExplainableBoostingClassifier
    except ImportError:
        return None
    numbers = [name.startswith("x") for name in table.frame.columns]
    x = table.frame.apply(pandas.to_numeric).to_numpy()
    model = DPExplainableBoostingClassifier(
        epsilon=epsilon, delta=1e-5, random_state=seed, n_jobs=1,
        feature_types=["continuous" if number else "nominal" for number in numbers],
        privacy_bounds={at: (0.0, 1.0) for at, number in enumerate(numbers) if number},
    )  # fmt: skip
    return np.asarray(model.fit(x[:-TEST], table.y[:-TEST]).predict_proba(x[-TEST:])[:, 1])


def line_of(
    table: Table, epsilon: float, seed: int, plain: dict[str, np.ndarray], regression: bool, others: list[str]
) -> dict[str, Any]:
    y, line = table.y[-TEST:], {}
    if regression:
        found = {**plain, "default": fitted(table, epsilon, seed, {}, True)}
        return {name: r2_score(y, values) for name, values in found.items()}
    began = time.perf_counter()
    chances = fitted(table, epsilon, seed, {})
    line["seconds"] = time.perf_counter() - began
    found = {**plain, "default": chances}
    if table.persons is None:
        found |= {"DP-EBM": by_boosting(table, epsilon, seed)}
    found |= {name: fitted(table, epsilon, seed, SETTINGS[name]) for name in others}
    line |= {name: roc_auc_score(y, values) for name, values in found.items() if values is not None}
    best = min(log_loss(y, values) for name, values in plain.items())
    ours = log_loss(y, chances)
    shares = {"share": chances.mean() / y.mean(), "share, logistic": plain["logistic"].mean() / y.mean()}
    return line | shares | {"log loss": ours / best, "as ranked": ours / as_ranked(chances, y)}


def as_ranked(chances: np.ndarray, y: np.ndarray) -> float:
    """Log loss of the best chances that rank as these do: their logits on a line fitted to the test records themselves."""
    logits = logit(np.clip(chances, 1e-12, 1 - 1e-12))[:, None]
    return log_loss(y, LogisticRegression(C=1e9).fit(logits, y).predict_proba(logits)[:, 1])


def without_privacy(table: Table, regression: bool) -> dict[str, np.ndarray]:
    x, y = table.plain(), table.y[:-TEST]
    train, test = x[:-TEST], x[-TEST:]
    if regression:
        return {
            "ridge": Ridge().fit(train, y).predict(test),
            "HGB": HistGradientBoostingRegressor().fit(train, y).predict(test),
        }
    logistic, boosted = LogisticRegression(max_iter=2_000), HistGradientBoostingClassifier()
    return {
        "logistic": logistic.fit(train, y).predict_proba(test)[:, 1],
        "HGB": boosted.fit(train, y).predict_proba(test)[:, 1],
    }


def adult() -> None:
    """Adult from its raw files, by the public schema."""
    home, schema = Path(os.environ["DPLTM_DATA"]), Path(__file__).parents[1] / "examples" / "schemas" / "adult.toml"
    whole = load(str(home / "adult.csv"), schema=schema, test=str(home / "adult-test.csv"), rows_coincide=True)
    assert whole.test is not None
    test = whole.test.open(Public("a benchmark"))
    for epsilon in (1.0, 3.0):
        found = []
        for seed in range(3):
            run = dpltm.train("mlp", whole, epsilon=epsilon, seed=seed, ledger=dpltm.Ledger(), noise="fast")
            chances = dpltm.predict(run, test.x).probabilities[:, 1]
            found.append(
                (roc_auc_score(test.y, chances), np.mean((chances > 0.5) == test.y), chances.mean() / test.y.mean())
            )
        print(
            "adult, epsilon {:g}: AUC {:.4f}, accuracy {:.4f}, share {:.3f}".format(epsilon, *np.mean(found, axis=0))
        )


def summary(lines: list[dict[str, Any]]) -> None:
    """Print means by kind and epsilon, and the best of other settings by its mean over other seeds."""
    grouped = defaultdict(list)
    for line in lines:
        grouped[line["kind"], line["epsilon"]].append(line)
    for (kind, epsilon), group in grouped.items():
        names = [name for name in group[0] if name not in ("kind", "epsilon", "seed")]
        told = {name: float(np.mean([line[name] for line in group])) for name in names}
        measured = [name for name in SETTINGS if name in told]
        if measured and len(group) > 1:
            behind = []
            for line in group:
                others = {name: np.mean([other[name] for other in group if other is not line]) for name in measured}
                behind.append(line["default"] - max(line["default"], line[max(others, key=lambda name: others[name])]))
            told |= {"behind best": float(np.mean(behind)), "farthest": float(min(behind))}
        print(kind, epsilon, len(group), {name: round(value, 4) for name, value in told.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seeds", default="100:112")
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 3.0])
    parser.add_argument("--settings", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--regression", action="store_true")
    parser.add_argument("--persons", action="store_true")
    parser.add_argument("--adult", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.adult:
        adult()
        return
    lines: list[dict[str, Any]] = []
    for seed in range(*map(int, given.seeds.split(":"))):
        for kind in given.kinds:
            table = made(kind, seed, given.regression, given.persons)
            plain = without_privacy(table, given.regression)
            for epsilon in given.epsilons:
                line = line_of(table, epsilon, seed, plain, given.regression, given.settings)
                if not given.regression:
                    line |= {name: roc_auc_score(table.y[-TEST:], values) for name, values in plain.items()}
                lines.append({"kind": kind, "epsilon": epsilon, "seed": seed, **line})
                print(json.dumps(lines[-1]), flush=True)
                if given.out is not None:
                    given.out.write_text("\n".join(map(json.dumps, lines)) + "\n")
    summary(lines)


if __name__ == "__main__":
    main()
