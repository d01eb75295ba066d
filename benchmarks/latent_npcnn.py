"""LATENT's networks without privacy (NPCNN, IV-A1), on as many records and epochs as are asked for.

    DPLTM_DATA=... python benchmarks/latent_npcnn.py [mnist] [cifar10-45k] [--records 30000] [--epochs 1]

The network ``latent``, for CIFAR-10 at 32 x 32, by Adam in batches of 64 with a quarter of the last layer's inputs left out;
the source has Adadelta, batches of 128 and 32, dropouts of 25 and 50 %, 12 and 100 epochs. Accuracy is on 5,000 of the
training records, without dropout, and on the test split. No privacy is claimed anywhere here.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from dpltm.networks import ModelSpec, build
from dpltm.networks.evaluation import accuracy
from dpltm.pruning.generation import shuffled_batches
from dpltm.records import Public, load

PUBLIC = Public("a benchmark")

NAMES = ("mnist", "cifar10-45k")

SEEN = 5000  # training records that accuracy in training is measured on


def train(spec: ModelSpec, x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    model = build(spec, 0)
    optimizer = torch.optim.Adam(model.parameters())
    batches = shuffled_batches(len(x), 64, torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    hook = list(model.children())[-1].register_forward_pre_hook(lambda _, given: dropout(given[0], 0.25))
    for _ in range(epochs * (len(x) // 64)):
        index = next(batches)
        optimizer.zero_grad()
        cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()
    hook.remove()
    return model


def npcnn(name: str, records: int, epochs: int) -> str:
    data = load(name)
    assert data.test is not None
    (x, y), shape = (part[:records] for part in data.train.open(PUBLIC)), data.train.shape
    spec = ModelSpec("latent:" + "x".join(map(str, (*shape, 1)[:3])), math.prod(shape), 10)
    model = train(spec, *tensors(x, y), epochs)
    seen = accuracy(model, *tensors(x[:SEEN], y[:SEEN]))
    new = accuracy(model, *tensors(*data.test.open(PUBLIC)))
    told = f"{100 * seen:.2f} in training, {100 * new:.2f} on {len(data.test):,} test records"
    return f"{told}; {len(x):,} to learn from, epochs {epochs}"


def tensors(x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(x).flatten(1).float() / 255, torch.from_numpy(y).long()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="{mnist,cifar10-45k}")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--records", type=int, default=30_000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.names:
        told = npcnn(name, given.records, given.epochs)
        print(f"{name}: {told}; {time.process_time():.0f} s", flush=True)


if __name__ == "__main__":
    main()
