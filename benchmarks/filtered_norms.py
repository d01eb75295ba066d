"""Norms of gradients behind the tanh filter while a network trains as the tanh paper does: are they near 1?

    DPLTM_DATA=... python benchmarks/filtered_norms.py [--dataset mnist] [--epochs 10] [--seeds 3]

The paper takes 1 for the bound of tanh(g / k), which is sqrt(n), since norms are said to be near 1 soon after the
start. Here the convolutional network trains at the paper's settings (sigma 1.1 of a bound of 1, batches of 256 by
Poisson sampling, step size 0.15), and every so often the filtered gradients of 1,000 training records are measured.
Prints quantiles of their norms, means over seeds, and the largest of all. No privacy: the records are public here, and
what is seen of them bounds nothing that another record could do.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from dpltm.networks import ModelSpec, build

SIGMA, BATCH, RATE, SEEN = 1.1, 256, 0.15, 1000
QUANTILES = (0.05, 0.5, 0.95, 1.0)
FILES = {"mnist": "mnist.npz", "cifar10-12k": "cifar10-12k.npz"}


def records(name: str) -> tuple[Tensor, Tensor, str]:
    """Flat records in [0, 1], labels, and the network."""
    with np.load(Path(os.environ["DPLTM_DATA"]) / FILES[name]) as stored:
        x, y = torch.from_numpy(stored["x_train"]), torch.from_numpy(stored["y_train"])
    shape = "x".join(map(str, (*x.shape[1:], *(() if x.ndim == 4 else (1,)))))
    return x.flatten(1).float() / 255, y.long(), f"cnn:{shape}"


def norms(name: str, k: float, epochs: int, seed: int, places: set[int]) -> dict[int, Tensor]:
    """Norms of the filtered gradients at these steps, ``(SEEN,)`` each."""
    x, y, network = records(name)
    model = build(ModelSpec(network, x.shape[1], 10), seed)
    values = {key: value.detach() for key, value in model.named_parameters()}
    generator = torch.Generator().manual_seed(seed)

    def loss(values: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, values, (row[None],)), label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=250)

    def filtered(index: Tensor) -> dict[str, Tensor]:
        return {key: (one / k).tanh() for key, one in each(values, x[index], y[index]).items()}

    found: dict[int, Tensor] = {}
    steps = math.ceil(epochs * len(x) / BATCH)
    for step in range(steps + 1):
        if step in places or step == steps:
            flat = [one.flatten(1).square().sum(1) for one in filtered(torch.arange(SEEN)).values()]
            found[step] = torch.stack(flat).sum(0).sqrt()
        taken = (torch.rand(len(x), generator=generator) < BATCH / len(x)).nonzero().squeeze(1)
        for key, one in filtered(taken).items():
            noise = SIGMA * torch.randn(one.shape[1:], generator=generator)
            values[key] = values[key] - RATE / BATCH * (one.sum(0) + noise)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=FILES, default="mnist")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    places = {0, 1, 3, 10, 30, 100, 300, 1000, 3000}
    for k in (1.0, 10.0):
        runs = [norms(given.dataset, k, given.epochs, seed, places) for seed in range(given.seeds)]
        for step in runs[0]:
            found = torch.stack([run[step].quantile(torch.tensor(QUANTILES)) for run in runs])
            over = torch.stack([(run[step] > 1).float().mean() for run in runs]).mean()
            told = ", ".join(
                f"{share:.0%} {value:.3g}" for share, value in zip(QUANTILES, found.mean(0).tolist(), strict=True)
            )
            print(
                f"{given.dataset}, k = {k:g}, step {step}: {told}; above 1: {over:.1%}; largest {found[:, -1].max():.3g}",
                flush=True,
            )


if __name__ == "__main__":
    main()
