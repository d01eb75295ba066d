"""Fine-tuning a public network on private records: tickets beside the whole network, its head, its biases, and LoRA.

    DPLTM_DATA=... nice -n 10 python benchmarks/finetune.py --cache FILE [--seeds 5] [--tasks kuzushiji cifar]

Two starts: a network of Fashion-MNIST, tuned on Kuzushiji characters (7,011 records), and one of five classes of CIFAR-10,
tuned on the other five (10,000 records). It has two convolutions, a hidden layer and a new head: 39,000 and 52,000 weights.
All ways train the head. Tickets keep a tenth of the weights below it; where it says "of the change", the others stay what
they were (dpltm.networks.changes_of), else they are zero. All take 30 steps of about 1,000 records, at delta 1e-5.

The step size is chosen for each way, task and epsilon by the worse of two runs, at that epsilon and at 1.7, on seeds and
records that nothing else uses, for no epsilon. All ways of a seed share the public network and the new head; sampling and
noise are their own. Prints one JSON object a task, epsilon and way: accuracy on the test split, and its difference to the
best way without a ticket, paired by seed; means with half the width of their 95 % interval (Student's t).
"""

from __future__ import annotations

import argparse
import copy
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import dpltm
from dpltm.experiments import summary
from dpltm.networks import changes_of

DELTA, STEPS, KEPT, RANK = 1e-5, 30, 0.1, 4
EPSILONS, RATES, RATIO, BETWEEN, TUNING = (1.0, 3.0), (0.5, 4.5), 3, 1.7, (99, 98)
TRAINING = {"batch_size": 1000, "optimizer": "momentum", "schedule": "cosine", "delta": DELTA}

Arrays = tuple[np.ndarray, np.ndarray]


class Net(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, side = (shape[2] if len(shape) == 3 else 1), (shape[0] - 4) // 4
        self.body = nn.Sequential(
            nn.Conv2d(channels, 8, 5, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.Flatten(),
            nn.Linear(16 * side * side, 64), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Adapter(nn.Module):
    """A layer as it was, frozen, and a change of rank ``RANK`` (Hu et al. 2021)."""

    def __init__(self, layer: nn.Conv2d | nn.Linear) -> None:
        super().__init__()
        self.start = layer.requires_grad_(False)
        if isinstance(layer, nn.Conv2d):
            down = nn.Conv2d(layer.in_channels, RANK, layer.kernel_size, layer.stride, layer.padding, bias=False)
            up: nn.Module = nn.Conv2d(RANK, layer.out_channels, 1, bias=False)
        else:
            down, up = nn.Linear(layer.in_features, RANK, bias=False), nn.Linear(RANK, layer.out_features, bias=False)
        nn.init.zeros_(up.weight)
        self.change = nn.Sequential(down, up)

    def forward(self, x: Tensor) -> Tensor:
        return self.start(x) + self.change(x)


@dataclass(frozen=True)
class Task:
    """Records: public ones, private ones, some to choose the step size on, and a test split. All are images in bytes."""

    public: Arrays
    private: Arrays
    tuning: Arrays
    test: Arrays
    epochs: int

    @property
    def classes(self) -> int:
        return int(self.private[1].max()) + 1


@cache
def task(name: str) -> Task:
    folder = Path(os.environ["DPLTM_DATA"])
    if name == "kuzushiji":
        with np.load(folder / "fashion-mnist.npz") as fashion, np.load(folder / "kmnist-7k.npz") as kmnist:
            public, private = ((each["x_train"], each["y_train"]) for each in (fashion, kmnist))
            x, y = kmnist["x_test"], kmnist["y_test"]
        return Task(public, private, (x[:2000], y[:2000]), (x[2000:6000], y[2000:6000]), 2)
    with np.load(folder / "cifar10-45k.npz") as cifar:
        parts = [(cifar[f"x_{part}"], cifar[f"y_{part}"]) for part in ("train", "test")]
    halves = [[(x[y % 2 == odd], y[y % 2 == odd] // 2) for x, y in parts] for odd in (0, 1)]
    (public, _), ((x, y), test) = halves
    return Task(public, (x[2000:12_000], y[2000:12_000]), (x[:2000], y[:2000]), test, 4)


@cache
def pretrained(name: str, seed: int) -> nn.Module:
    """A network trained on the public records, with a new head."""
    given = task(name)
    x, y = torch.from_numpy(given.public[0]), torch.from_numpy(given.public[1])
    torch.manual_seed(seed)
    model = Net(x.shape[1:], given.classes)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(given.epochs):
        for index in torch.randperm(len(x)).split(256):
            images = x[index].float() / 255
            images = images.unsqueeze(1) if images.ndim == 3 else images.movedim(-1, 1)
            optimizer.zero_grad()
            functional.cross_entropy(model(images), y[index]).backward()
            optimizer.step()
    model.head.reset_parameters()
    return model


def adapters(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    for name in ("0", "2", "5"):
        setattr(model.body, name, Adapter(model.body.get_submodule(name)))
    return model


def of_network(**more: Any) -> Callable[..., dict[str, Any]]:
    """A ticket of the network itself."""
    return lambda model: {"model": model, "prunable": ["body.*"], **more}


def of_change(**more: Any) -> Callable[..., dict[str, Any]]:
    """A ticket of what is added to it."""
    return lambda model: {"model": changes_of(model, "body.*"), "prunable": ["body.*.change.weight"], **more}


WHOLE: dict[str, Callable[[nn.Module], dict[str, Any]]] = {
    "whole network": lambda model: {"model": model},
    "head": lambda model: {"model": model, "freeze": ["body.*"]},
    "biases": lambda model: {"model": model, "freeze": ["body.*.weight"]},
    "LoRA": lambda model: {"model": adapters(model)},
}
TICKETS = {
    "largest weights": of_network(criterion="init-magnitude", scope="global"),
    "random, of the change": of_change(criterion="random", scope="global"),
}


def run(name: str, way: str, epsilon: float, rate: float, seed: int) -> float:
    """Accuracy on the test split; on the tuning split for the seed that step sizes are chosen with."""
    given, model = task(name), pretrained(name, seed)
    torch.manual_seed(seed)
    facts = {"bounds": (0, 255), "classes": given.classes, "ledger": dpltm.Ledger()}
    if way in WHOLE:
        said = WHOLE[way](model)
        start = {"ticket": said.pop("model"), "start_provenance": "public", **said}
    else:
        said = TICKETS[way](model)
        said |= {"rounds": 1, "prune": str(1 - KEPT), "start_provenance": "public", "seed": seed}
        start = {"ticket": dpltm.generate(*given.private, **said, **facts), "round": 1}
    made = dpltm.train(
        x=given.private[0], y=given.private[1], steps=STEPS, epsilon=epsilon, lr=rate, **start, **TRAINING, **facts
    )
    assert made.privacy.certified.epsilon <= epsilon
    return 100 * dpltm.evaluate(made, *(given.tuning if seed in TUNING else given.test)).accuracy


class Cache:
    """Finished runs, by what was run."""

    def __init__(self, path: Path) -> None:
        self._path, lines = path, path.read_text().splitlines() if path.exists() else []
        self._known = {tuple(key): value for key, value in map(json.loads, lines)}

    def score(self, *key: Any) -> float:
        if key not in self._known:
            self._known[key] = run(*key)
            with self._path.open("a") as lines:
                lines.write(json.dumps([key, self._known[key]]) + "\n")
        return self._known[key]

    def rate(self, name: str, way: str, wanted: float) -> float:
        """The best step size, by the worse of two runs: of ``RATES``, or beyond where the largest is the best."""
        rate, best, most = RATES[0], RATES[0], 0.0
        while rate <= max(RATES[-1], RATIO * best):
            worst = 100.0
            for epsilon, seed in zip((BETWEEN, wanted), TUNING, strict=True):
                if worst > most:
                    worst = min(worst, self.score(name, way, epsilon, rate, seed))
            if worst > most:
                best, most = rate, worst
            rate *= RATIO
        return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=["kuzushiji", "cifar"], choices=("kuzushiji", "cifar"))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = Cache(options.cache)
    for name in options.tasks:
        for epsilon in EPSILONS:
            rates = {way: known.rate(name, way, epsilon) for way in (*WHOLE, *TICKETS)}
            scores = {
                way: np.array([known.score(name, way, epsilon, rate, seed) for seed in range(options.seeds)])
                for way, rate in rates.items()
            }
            best = max(WHOLE, key=lambda way: float(scores[way].mean()))
            for way, values in scores.items():
                row = {"task": name, "epsilon": epsilon, "way": way, "lr": rates[way], "beside": best}
                figures = {"accuracy": values, "difference": values - scores[best]}
                for key, found in ((key, summary(each.tolist())) for key, each in figures.items()):
                    row |= {f"{key}_{part}": round(getattr(found, part), 2) for part in ("mean", "half")}
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
