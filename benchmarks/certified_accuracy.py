"""The best certified accuracy at tight budgets: every way to get there, tuned by one rule, on fresh seeds.

A *cell* is a private dataset, an epsilon and an *arm*: what stands in front of the network, the network, its mask.
Step size, number of steps, density are chosen on a public dataset, under the same budget,
with each mean gradient as noisy as the private run's will be (as dpltm tune does): the certified epsilon covers that
choice. It does not cover what is the same for all: clip norm, momentum, batch size, the range of step sizes and the
power of whitening, which were fixed while this was written, by people who had seen results on MNIST and others. Arms
with more to choose have more tries, and tickets are tuned on the records that they were pruned on.

Five seeds (--seeds) of sampling and noise then train on all private records, and are scored on the test split. Prints one
JSON object: per cell the settings, the mean and the half width of its 95 % confidence interval (Student's t over the
seeds), and for masks the same of the paired difference to the dense network. Pairs share the seed: sampling where
batch and steps agree, noise nowhere that the number of live weights differs. The intervals are over sampling and
noise; test records and tuning stay as they are.

    DPLTM_DATA=... python benchmarks/certified_accuracy.py [--datasets mnist ...] [--arms ...] [--cache FILE]

Finished runs are kept in --cache (JSON Lines), so that an interrupted measurement goes on where it ended. Sampling and noise
come from seeded generators here, which a real run never does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpltm.experiments import summary
from dpltm.features import MAPS, parse
from dpltm.features.feature_map import FeatureMap, map_of
from dpltm.features.normalisation import SENSITIVITY, noisy_sum
from dpltm.filters import make_filter
from dpltm.local.scheme import channel_statistics
from dpltm.networks import ModelSpec, build
from dpltm.networks.evaluation import accuracy
from dpltm.networks.masks import Mask
from dpltm.options.generate import GenerateOptions
from dpltm.options.train import TrainOptions
from dpltm.privacy.account import Planned
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.mechanisms import GaussianRelease, NoisySgd
from dpltm.pruning.generation import generate
from dpltm.randomness.noise import FastSource
from dpltm.records import Dataset, Public, load, scale
from dpltm.records.batches import Records
from dpltm.tickets.feature_files import FeatureCache
from dpltm.training.descent import train
from dpltm.training.plan import NoisySteps

PUBLIC = Public("a benchmark")

DELTA, FIRST_SEED = 1e-5, 10
DENSITIES = (0.4, 0.6)
PUBLIC_RECORDS = 7000


@dataclass(frozen=True)
class Arm:
    """A way to train.

    Attributes:
        features: what stands in front of the network.
        masks: how weights are chosen: none, or by a linear network trained on the public records (``inputs``, whole ones;
            ``weights``), or without data (``random``, ``random-inputs``, ``orders``: scattering of the lowest orders first).
        centre: parts of the budget for the mean of the features to choose from.
        model: behind the features; a single layer by default.
    """

    features: str = "scatter"
    masks: str | None = None
    centre: tuple[float | None, ...] = (None,)
    model: str = "mlp"


ARMS = {
    "pixels, 300-100": Arm("none", model="mlp:300,100"),
    "pixels, 300-100, public ticket": Arm("none", "ticket", model="mlp:300,100"),
    "pixels, linear": Arm("unit"),
    "scatter": Arm(),
    "scatter, public ticket of inputs": Arm(masks="inputs"),
    "scatter, public ticket of weights": Arm(masks="weights"),
    "scatter, random weights": Arm(masks="random"),
    "scatter, random inputs": Arm(masks="random-inputs"),
    "scatter, lowest orders": Arm(masks="orders"),
    "scatter, centred": Arm(centre=(0.02, 0.05)),
    "records, 300-100": Arm("none", model="mlp:300,100"),
    "unit": Arm("unit"),
    "unit, random weights": Arm("unit", "random"),
    "unit:2": Arm("unit:2"),
    "unit:2, centred": Arm("unit:2", centre=(0.02, 0.05)),
    "unit, centred": Arm("unit", centre=(0.02, 0.05)),
    "wavelets": Arm("wavelets"),
    "wavelets, centred": Arm("wavelets", centre=(0.02, 0.05)),
}

STANDS_IN = {
    "unit:2": "unit",
    "wavelets": "unit",
    "unit:2, centred": "unit, centred",
    "wavelets, centred": "unit, centred",
}
"""What an arm is tuned as on images, which are no signals, and whose values have other neighbours."""

IMAGES = tuple(name for name in ARMS if name.startswith(("pixels", "scatter")) and "centred" not in name)


@dataclass(frozen=True)
class Cells:
    """What is measured on one dataset.

    Attributes:
        public: for statistics and tickets; None where no public records are of that kind.
        tuned_on: public records that settings are chosen on: of another kind where need be, with ``unit`` in place of what
            only suits the private ones.
        epsilons: budgets.
        batch: expected; at most the records.
        steps: numbers of steps to choose from.
        arms: by name.
    """

    public: str | None
    tuned_on: str
    epsilons: tuple[float, ...]
    batch: float
    steps: tuple[int, ...]
    arms: tuple[str, ...]


CELLS = {
    "mnist": Cells("kmnist-7k", "kmnist-7k", (0.2, 0.5, 1.0, 2.4), 4096, (234,), IMAGES),
    "kmnist-7k": Cells("mnist", "mnist", (0.2, 1.0, 3.0), 7011, (120,), IMAGES),
    "isolet": Cells(
        None, "mnist", (0.2, 1.0, 3.0), 6238, (10, 40, 80),
        ("records, 300-100", "unit", "unit, random weights", "unit:2", "unit, centred", "unit:2, centred"),
    ),
    "har-signals": Cells(
        None, "mnist", (0.2, 1.0, 3.0), 2400, (10, 40, 80),
        ("records, 300-100", "unit", "wavelets", "wavelets, centred"),
    ),
    "cifar10-12k": Cells(
        None, "mnist", (0.2, 1.0, 3.0), 2048, (49, 150),
        ("pixels, 300-100", "unit", "unit, centred", "scatter", "scatter, centred"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One choice of everything that is tuned. ``lr`` is the step size over the clip norm."""

    lr: float
    steps: int
    centre: float | None
    density: float | None


def grid(name: str, arm: Arm, epsilon: float) -> Iterator[Setting]:
    """Settings to choose from.

    The noise sets the scale of steps behind features: all of them together may be as long as records times epsilon, within
    a factor. A network on records as they are gets the usual step sizes, with clip norm 1.
    """
    cells, records = CELLS[name], len(dataset(name).train)
    densities: tuple[float | None, ...] = (None,)
    if arm.masks is not None:
        densities = (0.05, 0.2) if arm.masks == "ticket" else DENSITIES
    lengths = cells.steps if arm.features != "none" else cells.steps[len(cells.steps) // 2 :][:1]
    for steps, centre, density in itertools.product(lengths, arm.centre, densities):
        plain = arm.features == "none"
        for part in (0.5, 1.0, 2.0, 4.0) if plain else (0.12, 0.24, 0.48):
            yield Setting(part if plain else part * records * epsilon / steps, steps, centre, density)


@cache
def dataset(name: str) -> Dataset:
    return load(name)


def feature_map(name: str, features: str, public: str | None) -> FeatureMap | None:
    """What stands in front of the network for the records of ``name``."""
    if features == "none":
        return None
    private = map_of(parse(features), dataset(name).train.shape, dataset(name).bounds)
    if public is None or not private.base.channels:
        return private
    theirs = fitted_to_public(public, features)
    return replace(private, statistics=theirs.statistics)


@cache
def fitted_to_public(public: str, features: str) -> FeatureMap:
    records = dataset(public)
    some = np.linspace(0, len(records.train) - 1, min(PUBLIC_RECORDS, len(records.train))).astype(int)
    plain = map_of(parse(features), records.train.shape, records.bounds)
    x = records.train.open(PUBLIC).x[some]
    return replace(plain, statistics=channel_statistics(plain, x)) if plain.base.channels else plain


@cache
def inputs(name: str, features: str, public: str | None) -> tuple[Any, ...]:
    """Training and test inputs and labels, and the map; training inputs stay on disk where they are features."""
    records, found = dataset(name), feature_map(name, features, public)
    assert records.test is not None
    x, test = (
        scale(split.open(PUBLIC).x, records.bounds)
        if found is None
        else FeatureCache().features(records, split, found).open(PUBLIC).x
        for split in (records.train, records.test)
    )
    test = torch.from_numpy(np.asarray(test, dtype="f4"))
    return (
        x,
        torch.from_numpy(records.train.open(PUBLIC).y),
        test,
        torch.from_numpy(records.test.open(PUBLIC).y),
        found,
    )


@cache
def mask_of(
    kind: str, density: float, spec: ModelSpec, public: tuple[Any, ...], seed: int
) -> tuple[Mask, dict[str, torch.Tensor] | None]:
    """The mask, and starting weights where it comes with some."""
    model = build(spec, seed)
    weight = "fc1.weight"
    live = round(density * model.fc1.weight.numel())  # type: ignore[union-attr, operator]
    ones = {name: torch.ones(value.shape, dtype=torch.bool) for name, value in model.named_parameters()}
    generator = torch.Generator().manual_seed(seed)
    if kind == "random":
        order = torch.rand(ones[weight].shape, generator=generator)
    elif kind == "random-inputs":
        order = torch.rand(ones[weight].shape[1], generator=generator).expand(ones[weight].shape)
    elif kind == "orders":
        channels = MAPS["scatter"].choice().on((28, 28)).feature_shape[-1]
        order = torch.arange(channels, 0, -1).repeat(spec.features // channels).float().expand(ones[weight].shape)
    else:
        x, y = (torch.from_numpy(np.asarray(public[0], dtype="f4")), public[1])
        if len(x) > PUBLIC_RECORDS:
            some = torch.linspace(0, len(x) - 1, PUBLIC_RECORDS).long()
            x, y = x[some], y[some]
        ticket = kind == "ticket"
        config = GenerateOptions(
            rounds=1 if not ticket else 10 if density < 0.1 else 5,
            prune=(1 - density,) if not ticket else None,
            iterations=1500,
            batch_size=400,
            lr=0.1,
            seed=seed,
            criterion="inputs" if kind == "inputs" else "magnitude",
        ).for_records(len(x))
        made = generate(spec, (x, y), config)
        return made.tickets[-1].mask, made.theta0
    kept = order.flatten().topk(live).indices
    ones[weight] = torch.zeros(ones[weight].numel(), dtype=torch.bool).index_fill(0, kept, True).view_as(ones[weight])
    return Mask(ones), None


@cache
def noise(epsilon: float, rate: float, steps: int, centre: float | None) -> tuple[float, float]:
    """Noise multipliers of training and of the mean, together within the budget."""
    plan = NoisySgd(rate, steps, noise_multiplier=1.0)
    before: tuple[GaussianRelease, ...] = ()
    if centre is not None:
        alone = calibrate_noise(epsilon, DELTA, replace(plan, sampling_rate=1.0, steps=1)).noise_multiplier
        before = (GaussianRelease(alone / math.sqrt(centre), SENSITIVITY),)
    mean = before[0].noise_multiplier if before else 0.0
    return calibrate_noise(epsilon, DELTA, plan, Planned.after(*before)).noise_multiplier, mean


def run(name: str, on: str, cells: Cells, arm: Arm, epsilon: float, setting: Setting, seed: int) -> float:
    """Accuracy on the test split of ``on``, trained on its records with the noise that ``name`` calls for."""
    features, public = arm.features, cells.public
    x, y, test, labels, _ = inputs(on, features, public)
    private, count = len(dataset(name).train), len(y)
    batch = min(cells.batch, private)
    taking = min(batch, count)
    training_noise, mean_noise = noise(epsilon, batch / private, setting.steps, setting.centre)
    prepare = torch.Tensor.float
    source = FastSource(seed)
    if setting.centre is not None:
        rows = (torch.from_numpy(np.array(x[start : start + 1000])) for start in range(0, count, 1000))
        centre = (
            noisy_sum(rows, x.shape[1], SENSITIVITY, mean_noise * SENSITIVITY * count / private, source) / count
        ).float()
        found = inputs(on, features, public)[4].centred_at(centre)
        test = found.centred(test)

        def prepare(rows: torch.Tensor) -> torch.Tensor:
            return found.centred(rows.float())

    spec = ModelSpec(arm.model, x.shape[1], int(dataset(on).classes))
    model = build(spec, seed)
    mask = Mask.dense(model)
    if arm.masks is not None:
        theirs = inputs(cells.public, features, public) if cells.public else ()
        mask, theta0 = mask_of(arm.masks, setting.density or 1.0, spec, _Same(theirs), seed)
        if theta0 is not None:
            model.load_state_dict(theta0)
        if arm.masks in ("inputs", "random-inputs", "orders"):
            model, mask, keep = without_dropped(spec, mask)
            x, test = _Columns(x, keep), test[:, torch.from_numpy(keep)]
    clip = 1.0 if arm.features == "none" else 0.2
    plain = arm.features == "none"
    steps = NoisySgd(taking / count, setting.steps, training_noise * clip * taking / batch)
    moves = TrainOptions(optimizer="sgd" if plain else "momentum", average="ema" if plain else "none")
    lr = setting.lr * (1.0 if plain else clip)
    config = NoisySteps(make_filter("clip", clip_norm=clip), steps, taking, lr, options=moves)
    records = (
        x.records(y, prepare)
        if isinstance(x, _Columns)
        else Records(x, y, prepare=None if x.dtype == np.float32 else prepare)
    )
    train(model, mask, records, config, sampling=FastSource(seed + 1000), noise=source)
    return accuracy(model, test, labels)


class _Same:
    """Public records as an argument of a cached function: told apart by what they are, not by every value."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values

    def __getitem__(self, place: int) -> Any:
        return self.values[place]

    def __hash__(self) -> int:
        return id(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.values is self.values


class _Columns:
    """Inputs of which only some are looked at: what is dropped whole need not be read again."""

    def __init__(self, x: np.ndarray, keep: np.ndarray) -> None:
        self._x = np.ascontiguousarray(x[:, keep])

    def records(self, y: torch.Tensor, prepare: Any) -> Records:
        return Records(self._x, y, prepare=prepare)


def without_dropped(spec: ModelSpec, mask: Mask) -> tuple[torch.nn.Module, Mask, np.ndarray]:
    """The same network with dropped inputs left out: they have no weight, so that nothing changes but the work."""
    keep = mask["fc1.weight"].any(0)
    small = build(replace(spec, features=int(keep.sum())), 0)
    return small, Mask({**mask, "fc1.weight": mask["fc1.weight"][:, keep]}), keep.numpy()


class Cache:
    """Results of finished runs, one JSON line each."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._known = path, {}
        if path is not None and path.exists():
            self._known = dict(map(json.loads, path.read_text().splitlines()))

    def score(self, name: str, on: str, label: str, epsilon: float, setting: Setting, seed: int) -> float:
        key = json.dumps([name, on, label, epsilon, vars(setting), seed])
        if key not in self._known:
            self._known[key] = run(name, on, CELLS[name], ARMS[label], epsilon, setting, seed)
            print(key, self._known[key], file=sys.stderr, flush=True)
            if self._path is not None:
                with self._path.open("a") as stream:
                    stream.write(json.dumps([key, self._known[key]]) + "\n")
        return self._known[key]


def interval(values: np.ndarray) -> dict[str, float]:
    found = summary(values.tolist())
    return {"mean": found.mean, "half": found.half}


def measure(name: str, epsilon: float, labels: list[str], known: Cache, seeds: range) -> list[dict[str, Any]]:
    """One row an arm: tuned on public records, then some seeds on the private ones."""
    cells, rows, scores = CELLS[name], [], {}
    for label in labels:
        tried = list(grid(name, ARMS[label], epsilon))
        standing = STANDS_IN.get(label, label) if cells.public is None else label
        best = max(tried, key=lambda setting: known.score(name, cells.tuned_on, standing, epsilon, setting, 0))
        scores[label] = np.array([known.score(name, name, label, epsilon, best, seed) for seed in seeds])
        row = {"dataset": name, "epsilon": epsilon, "arm": label, **vars(best), **interval(scores[label])}
        for dense in ("pixels, 300-100", "scatter", "unit"):
            if label.startswith(f"{dense}, ") and ARMS[label].masks and dense in scores:
                row["difference"] = {"to": dense, **interval(scores[label] - scores[dense])}
        rows.append(row)
    return rows


PIXELS = {"dense": {0.2: 89.1, 0.5: 91.2, 1.0: 92.7}, "public ticket": {0.2: 89.0, 0.5: 91.2, 1.0: 92.6}}
"""300-100 on the pixels of MNIST, per cent, as measured by benchmarks/transfer.py (docs/results.md)."""

PAPER = {0.2: 84.0}
"""DPLTM's figure on MNIST, nominal: its masks were made from the records with no mechanism, so nothing is proven."""


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Accuracy on MNIST against epsilon."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.6), layout="constrained")
    axes.plot(*zip(*PAPER.items(), strict=True), "x", color="tab:red", label="DPLTM's paper, nominal (certified: inf)")
    for name, style in (("dense", "o-"), ("public ticket", "s--")):
        points = zip(*PIXELS[name].items(), strict=True)
        axes.plot(*points, style, color="tab:gray", label=f"pixels, 300-100, {name}", markersize=4)
    shown = {
        "scatter": ("o-", "tab:blue", "scattering, linear, dense"),
        "scatter, public ticket of inputs": ("s--", "tab:orange", "scattering, linear, public ticket"),
    }
    for arm, (style, colour, label) in shown.items():
        found = sorted((row["epsilon"], row["mean"], row["half"]) for row in rows if row["arm"] == arm)
        if found:
            x, mean, half = (np.array(values) for values in zip(*found, strict=True))
            axes.errorbar(x, 100 * mean, 100 * half, fmt=style, color=colour, label=label, capsize=3, markersize=4)
    axes.set(
        xscale="log",
        xlabel="certified epsilon (delta = 1e-5, add-remove, one record)",
        ylabel="MNIST test accuracy, %",
    )
    ticks = sorted({*PAPER, *PIXELS["dense"], *(row["epsilon"] for row in rows)})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--epsilons", nargs="+", type=float)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS))
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--plot", type=Path, help="picture of the rows of mnist")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    known, rows = Cache(options.cache), []
    for name in options.datasets:
        for epsilon in options.epsilons or CELLS[name].epsilons:
            labels = [label for label in CELLS[name].arms if options.arms is None or label in options.arms]
            rows += measure(name, epsilon, labels, known, range(FIRST_SEED, FIRST_SEED + options.seeds))
    if options.plot is not None:
        plot([row for row in rows if row["dataset"] == "mnist"], options.plot)
    print(json.dumps({"rows": rows}, indent=2))


if __name__ == "__main__":
    main()
