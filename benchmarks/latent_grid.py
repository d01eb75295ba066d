"""LATENT without privacy: its network whole (NPCNN), and settings of its fully connected part by ten folds at p = 1.

    DPLTM_DATA=... python benchmarks/latent_grid.py [mnist cifar10-45k grid] [--npcnn-records 30000]
        [--npcnn-epochs 1] [--records 2000] [--epochs 4] [--features unit]

``mnist`` and ``cifar10-45k`` train ``latent``, the networks for them (CIFAR-10 at 32 x 32; 56 x 56 in the source), on the
first records of the training split; accuracy is on 5,000 of these, without dropout, and on the test split. ``grid`` sends
bits of MNIST with none flipped (p = 1, epsilon infinite), as ``dpltm latent`` makes them, and trains the server's network
on them. The values of Table I's grid and its step sizes are not at hand: these are usual ones, with Keras's default step
sizes, one factor at a time away from the first setting. Prints for each the mean and deviation of accuracy over ten
folds, and the 95 % interval of its paired difference to the best, which takes the folds for independent (their training
records overlap). No privacy is claimed anywhere here.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.model_selection import KFold
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpltm.experiments import summary
from dpltm.features.feature_map import make_feature_map
from dpltm.local.scheme import BitStrings, FixedPoint, Scheme, public_statistics
from dpltm.local.server import Messages
from dpltm.networks import ModelSpec, build
from dpltm.networks.evaluation import accuracy
from dpltm.pruning.generation import Batches, dropping
from dpltm.records import Public, load

PUBLIC = Public("a benchmark")

PARTS = ("mnist", "cifar10-45k", "grid")

SEEN = 5000  # training records that accuracy in training is measured on

OPTIMIZERS = {
    "Adam": lambda values: torch.optim.Adam(values, lr=0.001),
    "Adadelta": lambda values: torch.optim.Adadelta(values, lr=1.0),
    "SGD": lambda values: torch.optim.SGD(values, lr=0.01),
    "SGD at 0.1": lambda values: torch.optim.SGD(values, lr=0.1),
}


@dataclass(frozen=True)
class Setting:
    """A cell of the grid; ``dropout`` is the share of the last layer's inputs that is left out."""

    dropout: float = 0.25
    batch: int = 64
    activation: str = "relu"
    neurons: int = 128
    optimizer: str = "Adam"


FACTORS: dict[str, tuple[float | str, ...]] = {
    "dropout": (0.0, 0.5),
    "batch": (32, 128),
    "activation": ("tanh",),
    "neurons": (64, 256),
    "optimizer": ("Adadelta", "SGD", "SGD at 0.1"),
}


def train(spec: ModelSpec, x: Tensor, y: Tensor, setting: Setting, epochs: int, seed: int) -> nn.Module:
    model, draw = build(spec, seed), torch.Generator().manual_seed(seed)
    optimizer, batches = OPTIMIZERS[setting.optimizer](model.parameters()), Batches(len(x), setting.batch, draw)
    with dropping(model, setting.dropout, draw):
        for _ in range(epochs * (len(x) // setting.batch)):
            index = next(batches)
            optimizer.zero_grad()
            cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
    return model


def npcnn(name: str, records: int, epochs: int) -> str:
    data = load(name)
    assert data.test is not None
    x, y = (part[:records] for part in data.train.open(PUBLIC))
    model = train(_network(data.train.shape), *_tensors(x, y), Setting(), epochs, 0)
    seen = accuracy(model, *_tensors(x[:SEEN], y[:SEEN]))
    new = accuracy(model, *_tensors(*data.test.open(PUBLIC)))
    found = f"{100 * seen:.2f} in training, {100 * new:.2f} on {len(data.test):,} test records"
    return f"{found}; {len(x):,} to learn from, epochs {epochs}"


def _network(shape: tuple[int, ...]) -> ModelSpec:
    return ModelSpec("latent:" + "x".join(map(str, (*shape, 1)[:3])), math.prod(shape), 10)


def _tensors(x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(x).flatten(1).float() / 255, torch.from_numpy(y).long()


def bits(features: str, records: int) -> tuple[Tensor, Tensor]:
    """Inputs of the server's network and labels, by statistics of public Kuzushiji characters; no bit is flipped."""
    mnist, public = load("mnist"), load("kmnist-7k")
    found = make_feature_map(features, mnist.train.shape, mnist.bounds)
    statistics = public_statistics(found, public.train.open(PUBLIC).x)
    answer = BitStrings(found.features, 10, FixedPoint(4, 5), "ue", 100.0, None, None)
    x, y = (part[:records] for part in mnist.train.open(PUBLIC))
    sent = Messages(answer.without_coins(Scheme(found, *statistics, answer).scores(x), y), answer, randomised=False)
    return sent[:], sent.labels


def folds(x: Tensor, y: Tensor, setting: Setting, epochs: int) -> np.ndarray:
    """Accuracy on each of ten folds of a network that the nine others trained, in percent: the same folds for all."""
    spec = ModelSpec(f"mlp{'' if setting.activation == 'relu' else '-tanh'}:{setting.neurons}", x.shape[1], 10)
    scores = []
    for seed, (rest, fold) in enumerate(KFold(10, shuffle=True, random_state=0).split(x)):
        model = train(spec, x[rest], y[rest], setting, epochs, seed)
        scores.append(100 * accuracy(model, x[fold], y[fold]))
    return np.array(scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="{mnist,cifar10-45k,grid}")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--records", type=int, default=2000, help="of the grid, folds together")
    parser.add_argument("--npcnn-epochs", type=int, default=1)
    parser.add_argument("--npcnn-records", type=int, default=30_000)
    parser.add_argument("--features", default="unit", help="whose bits the grid is run on, such as unit or conv")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in [part for part in given.parts if part != "grid"]:
        told = npcnn(name, given.npcnn_records, given.npcnn_epochs)
        print(f"{name}: {told}; {time.process_time():.0f} s", flush=True)
    if "grid" in given.parts:
        x, y = bits(given.features, given.records)
        settings = [Setting(), *(replace(Setting(), **{key: value}) for key in FACTORS for value in FACTORS[key])]
        scores = {setting: folds(x, y, setting, given.epochs) for setting in settings}
        best = max(scores, key=lambda setting: scores[setting].mean())
        for setting, found in scores.items():
            behind = summary(list(scores[best] - found))
            told = f"{found.mean():.2f}, deviation {found.std(ddof=1):.2f}; behind {behind.mean:.2f}±{behind.half:.2f}"
            print(f"{setting}: {told}")
        print(f"best: {best}; {len(x)} records of {x.shape[1]} bits; {time.process_time():.0f} s")


if __name__ == "__main__":
    main()
