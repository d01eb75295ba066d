"""LATENT's networks without privacy (NPCNN, IV-A1a and IV-A1c), as printed.

    DPLTM_DATA=... python benchmarks/latent_npcnn.py mnist
    DPLTM_DATA=... python benchmarks/latent_npcnn.py cifar10-45k [--epochs 100] [--seed 0]

Dropouts of 25 % after each pooling and 50 % before the last layer, Adadelta, batches of 128 for 12 epochs (MNIST) and of 32
for 100 (CIFAR-10). Ours are the step size of 1 and the decay of 0.95 (of which the source says nothing), the padding that
makes 9,216 and 2,304 outputs, and CIFAR-10's 45,000 training records. An epoch's line has the accuracy in
training, with its dropouts, and on the test split, without. No privacy is claimed anywhere here.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpltm.networks.evaluation import accuracy
from dpltm.records import Public, load

PUBLIC = Public("a benchmark")
PRINTED = {"mnist": (128, 12), "cifar10-45k": (32, 100)}  # the batch and the epochs


def network(name: str) -> nn.Module:
    def convolution(inputs: int, outputs: int, padding: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=padding), nn.ReLU()]

    def dense(inputs: int, width: int) -> list[nn.Module]:
        return [nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 10)]

    pool = [nn.MaxPool2d(2), nn.Dropout(0.25)]
    if name == "mnist":
        return nn.Sequential(*convolution(1, 32, 0), *convolution(32, 64, 0), *pool, *dense(9216, 128))
    first = [*convolution(3, 32, 1), *convolution(32, 32, 0), *pool]
    return nn.Sequential(*first, *convolution(32, 64, 1), *convolution(64, 64, 0), *pool, *dense(2304, 512))


def npcnn(name: str, epochs: int | None, seed: int) -> None:
    data = load(name)
    assert data.test is not None
    (x, y), (tx, ty) = (images(*part.open(PUBLIC)) for part in (data.train, data.test))
    batch, printed = PRINTED[name]
    torch.manual_seed(seed)
    model = network(name)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0, rho=0.95)
    for epoch in range(1, 1 + (epochs or printed)):
        hits, model = 0, model.train()
        for index in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            scores = model(x[index])
            cross_entropy(scores, y[index]).backward()
            optimizer.step()
            hits += int((scores.argmax(1) == y[index]).sum())
        model.eval()
        print(
            f"{name}: epoch {epoch}: {100 * hits / len(x):.2f}, test {100 * accuracy(model, tx, ty):.2f}", flush=True
        )
    print(f"without dropout {100 * accuracy(model, x, y):.2f}; {time.process_time():.0f} s")


def images(x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
    x = x[..., None] if x.ndim == 3 else x
    return torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(y).long()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(PRINTED))
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    npcnn(options.name, options.epochs, options.seed)


if __name__ == "__main__":
    main()
