"""Dropout under privacy: what neighbours move, what it does to accuracy (with Opacus beside it), and what it costs in time.

Networks are an MLP (784-300-100-10) and two transformers that take an image as 28 rows: one layer written with linear layers
and F.scaled_dot_product_attention, which Opacus takes as well, and nn.TransformerEncoderLayer. Dropout is at every place
where they usually have it. Prints JSON.

- bound: how far the sum without noise moves between neighbours, in bounds, at most of 200 random pairs;
- accuracy: in percent on the test split of kmnist-7k at epsilon 3, delta 1e-5, the mean of the seeds and half its 95 %
  interval; noise, batches, steps and step size are the same for both;
- time: a whole step (sample, sum, noise, update) over that of the same network without dropout, medians of interleaved runs,
  in processor time, so that other work matters less; beside it the same of a plain step, by the dropout of PyTorch.

    DPLTM_DATA=... python benchmarks/dropout.py [bound accuracy time] [--networks mlp] [--seeds 3] [--repeat 30]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from dpltm.experiments import summary
from dpltm.filters import Clip
from dpltm.gradients import RecordGradients
from dpltm.networks.masks import Mask
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.randomness.noise import FastSource, SecureSource
from dpltm.records.batches import Records
from dpltm.training.descent import NoisyGradients, cross_entropy
from dpltm.training.plan import NoisySteps

SHARES = (0.0, 0.1, 0.5)
BATCH, STEPS, EPSILON, DELTA = 300, 200, 3.0, 1e-5
LR = {"mlp": 0.5, "transformer": 0.5}


def mlp(share: float) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Dropout(share),
        nn.Linear(300, 100), nn.ReLU(), nn.Dropout(share), nn.Linear(100, 10),
    )  # fmt: skip


class Attention(nn.Module):
    """Four heads over 32 numbers a position."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share, self.into, self.out = share, nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.into(x).unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        share = self.share if self.training else 0.0
        seen = functional.scaled_dot_product_attention(query, key, value, dropout_p=share)
        return self.out(seen.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """An encoder layer of modules that Opacus has rules for."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.first, self.attention, self.drop = nn.LayerNorm(32), Attention(share), nn.Dropout(share)
        inner = nn.Linear(32, 64), nn.ReLU(), nn.Dropout(share), nn.Linear(64, 32), nn.Dropout(share)
        self.second = nn.Sequential(nn.LayerNorm(32), *inner)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.first(x)))
        return x + self.second(x)


class Rows(nn.Module):
    """An image as a sequence of 28 rows, with what numbers the rows."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.into, self.layer, self.out = nn.Linear(28, 32), layer, nn.Linear(32, 10)
        places, waves = torch.arange(28.0)[:, None], torch.arange(16.0)
        angles = places / 28 ** (waves / 16)
        self.register_buffer("places", torch.cat([angles.sin(), angles.cos()], 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.into(x) + self.places).mean(1))


NETWORKS: dict[str, Callable[[float], nn.Module]] = {
    "mlp": mlp,
    "transformer": lambda share: Rows(Layer(share)),
    "nn.TransformerEncoderLayer": lambda share: Rows(nn.TransformerEncoderLayer(32, 4, 64, share, batch_first=True)),
}


def bound(name: str, share: float, pairs: int = 200) -> float:
    torch.manual_seed(0)
    model = NETWORKS[name](share)
    gradients, most = RecordGradients(model, Mask.dense(model), cross_entropy), 0.0
    for pair in range(pairs):
        draw = torch.Generator().manual_seed(pair)
        records = int(torch.randint(1, 50, (), generator=draw))
        x = torch.rand(records, 28, 28, generator=draw) * 10 ** (3 * torch.rand(records, 1, 1, generator=draw) - 1)
        y, keys = torch.randint(10, (records,), generator=draw), torch.randint(-(2**63), 2**63 - 1, (records,))
        rest = torch.arange(records) != int(torch.randint(records, (), generator=draw))
        sums = [
            gradients.filtered_sum(x[rows], y[rows], Clip(1.0), keys=keys[rows]).values
            for rows in (torch.ones_like(rest), rest)
        ]
        most = max(most, float((sums[0] - sums[1]).norm()))
    return most


def images() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    with np.load(Path(os.environ["DPLTM_DATA"]) / "kmnist-7k.npz") as file:
        parts = [torch.from_numpy(file[name]) for name in ("x_train", "y_train", "x_test", "y_test")]
    return parts[0].view(-1, 28, 28) / 255, parts[1].long(), parts[2].view(-1, 28, 28) / 255, parts[3].long()


def right(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return 100 * float((model.eval()(x).argmax(1) == y).double().mean())


def ours(name: str, share: float, seed: int, multiplier: float, data: tuple[Tensor, ...]) -> float:
    torch.manual_seed(seed)
    model, x, y = NETWORKS[name](share), *data[:2]
    config = NoisySteps(Clip(1.0), NoisySgd(BATCH / len(x), STEPS, multiplier), BATCH, LR[name])
    sources = {"sampling": FastSource(2 * seed), "noise": FastSource(2 * seed + 1)}
    noisy = NoisyGradients(model, Mask.dense(model), cross_entropy, Records(x, y), config, **sources)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR[name])
    for _ in range(STEPS):
        noisy.backward()
        optimizer.step()
    return right(model, *data[2:])


def opacus(name: str, share: float, seed: int, multiplier: float, data: tuple[Tensor, ...]) -> float:
    from opacus import PrivacyEngine

    torch.manual_seed(seed)
    model, x, y = NETWORKS[name](share), *data[:2]
    optimizer = torch.optim.SGD(model.parameters(), lr=LR[name])
    private, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=DataLoader(TensorDataset(x, y), batch_size=BATCH),
        noise_multiplier=multiplier, max_grad_norm=1.0,
    )  # fmt: skip
    taken = 0
    while taken < STEPS:
        for rows, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(private(rows), labels).backward()
            optimizer.step()
            taken += 1
            if taken == STEPS:
                break
    return right(model, *data[2:])


def accuracy(names: Sequence[str], seeds: int) -> dict[str, object]:
    data = images()
    rate = BATCH / len(data[0])
    mechanism = calibrate_noise(EPSILON, DELTA, NoisySgd(rate, STEPS, 0.0, 1.0))
    multiplier = mechanism.noise_multiplier
    found: dict[str, object] = {"records": len(data[0]), "noise multiplier": multiplier}
    for name in names:
        for share in SHARES:
            for who, train in (("ours", ours), ("opacus", opacus)):
                each = [train(name, share, seed, multiplier, data) for seed in range(seeds)]
                print(name, share, who, each, file=sys.stderr, flush=True)
                found[f"{name}, {share}, {who}"] = {"mean": statistics.mean(each), **_interval(each), "each": each}
    return found


def _interval(values: list[float]) -> dict[str, float]:
    return {"half": summary(values).half} if len(values) > 1 else {}


def private_step(name: str, share: float) -> Callable[[], None]:
    torch.manual_seed(0)
    model, x, y = NETWORKS[name](share), torch.rand(400, 28, 28), torch.randint(10, (400,))
    config = NoisySteps(Clip(1.0), NoisySgd(1.0, 1, 1.0), 400.0, 0.1)
    sources = {"sampling": SecureSource(), "noise": SecureSource()}
    noisy = NoisyGradients(model, Mask.dense(model), cross_entropy, Records(x, y), config, **sources)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        noisy.backward()
        optimizer.step()

    return step


def plain_step(name: str, share: float) -> Callable[[], None]:
    """Without privacy, by the dropout of PyTorch."""
    torch.manual_seed(0)
    model, x, y = NETWORKS[name](share), torch.rand(400, 28, 28), torch.randint(10, (400,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def durations(name: str, repeat: int) -> dict[str, float]:
    kinds = {"private": private_step, "plain": plain_step}
    steps = {(kind, share): make(name, share) for kind, make in kinds.items() for share in SHARES}
    taken: dict[tuple[str, float], list[float]] = {key: [] for key in steps}
    for number in range(repeat + 3):
        for key, step in steps.items():
            began = time.process_time()
            step()
            if number >= 3:
                taken[key].append(1e3 * (time.process_time() - began))
    medians = {key: statistics.median(values) for key, values in taken.items()}
    found = {f"{kind}, ms without": medians[kind, 0.0] for kind in kinds}
    return found | {
        f"{kind}, times at {share}": medians[kind, share] / medians[kind, 0.0] for kind, share in steps if share
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["bound", "accuracy", "time"])
    parser.add_argument("--networks", nargs="*", default=list(LR), choices=list(LR), help="of accuracy")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=30)
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # Opacus's
    torch.set_num_threads(1)
    found: dict[str, object] = {}
    if "bound" in given.what:
        found["bound"] = {f"{name}, {share}": bound(name, share) for name in NETWORKS for share in SHARES[1:]}
    if "time" in given.what:
        found["time"] = {name: durations(name, given.repeat) for name in NETWORKS}
    if "accuracy" in given.what:
        found["accuracy"] = accuracy(given.networks, given.seeds)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
