"""A whole DP training, from reading the file to saving the model: ``dpltm train`` against Opacus and against plain training.

MNIST through 784-300-100-10, expected batch 400, every figure a fresh process: wall-clock seconds, and the largest resident
memory. Opacus runs its ghost clipping with its own Poisson loader; the file is read, its features scaled, the model
saved in each case. Prints JSON.

    DPLTM_DATA=FOLDER python benchmarks/whole_training.py [--epochs 20] [--repeat 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

BATCH, NOISE, LR = 400, 1.1, 0.25


def load() -> tuple:
    """MNIST as anyone would read it: features scaled to 0..1 in memory."""
    import numpy as np
    import torch

    with np.load(Path(os.environ["DPLTM_DATA"]) / "mnist.npz") as file:
        x, y = file["x_train"], file["y_train"]
        test_x, test_y = file["x_test"], file["y_test"]
    return tuple(
        part
        for features, labels in ((x, y), (test_x, test_y))
        for part in (
            torch.from_numpy(features.reshape(len(features), -1)).float().div_(255),
            torch.from_numpy(labels).long(),
        )
    )


def network():
    from torch import nn

    return nn.Sequential(
        nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
    )  # fmt: skip


def finish(model, x, y, out: str) -> None:
    import torch

    with torch.no_grad():
        print(float((model(x).argmax(1) == y).float().mean()), file=sys.stderr)
    torch.save(model.state_dict(), out)


def plain(epochs: float, out: str) -> None:
    """Ordinary SGD, batches by index."""
    import torch
    from torch.nn import functional

    x, y, test_x, test_y = load()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(int(epochs)):
        for index in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
    finish(model, test_x, test_y, out)


def opacus(epochs: float, out: str) -> None:
    """Ghost clipping, as its documentation has it."""
    import torch
    from opacus import PrivacyEngine
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    warnings.simplefilter("ignore")
    x, y, test_x, test_y = load()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH)
    model, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, criterion=nn.CrossEntropyLoss(), noise_multiplier=NOISE,
        max_grad_norm=1.0, grad_sample_mode="ghost", poisson_sampling=True,
    )  # fmt: skip
    for _ in range(int(epochs)):
        for batch, labels in loader:
            optimizer.zero_grad()
            criterion(model(batch), labels).backward()
            optimizer.step()
    finish(model, test_x, test_y, out)


def measure(command: list[str]) -> tuple[float, float]:
    """Seconds and MiB of one fresh process."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=float, default=20)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=("plain", "opacus"), help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        {"plain": plain, "opacus": opacus}[given.only](given.epochs, given.out)
        return
    with tempfile.TemporaryDirectory() as folder:
        tool = [
            str(Path(sys.executable).with_name("dpltm")), "train", "--dataset", "mnist", "--batch-size", str(BATCH),
            "--epochs", str(given.epochs), "--noise-multiplier", str(NOISE), "--lr", str(LR), "--quiet",
        ]  # fmt: skip
        tickets = Path(folder) / "kmnist.tickets"
        subprocess.run(
            [tool[0], "generate", "--dataset", "kmnist-7k", "--provenance", "public", "--rounds", "7", "--iterations", "20",
             "--quiet", "--out", str(tickets), "--ledger", f"{folder}/kmnist.ledger.jsonl"], check=True,
        )  # fmt: skip
        own = [sys.executable, __file__, "--epochs", str(given.epochs), "--only"]
        runs = {
            "dpltm train, dense": [*tool, "--dense"],
            "dpltm train, ticket of 9 % density": [*tool[:2], f"{tickets}@7", *tool[2:]],
            "opacus ghost, Poisson loader": [*own, "opacus"],
            "plain, no privacy": [*own, "plain"],
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for turn in range(given.repeat):
            for name, command in runs.items():
                last = ["--out", f"{folder}/{name.replace(' ', '-')}-{turn}"]
                if "dpltm" in name:
                    last += ["--ledger", f"{folder}/{name.replace(' ', '-')}-{turn}.jsonl"]
                found[name].append(measure([*command, *last]))
    body = {
        name: {
            "seconds": round(statistics.median(s for s, _ in pairs), 1),
            "MiB": round(statistics.median(m for _, m in pairs)),
        }
        for name, pairs in found.items()
    }
    print(json.dumps(body, indent=1))


if __name__ == "__main__":
    main()
