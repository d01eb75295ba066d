"""What the accountant costs in time: commands from process start, a large ledger, the odometer beside its training.

    python benchmarks/accounting.py

Prints JSON. Commands run in fresh processes, medians of ``--repeat`` runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from dpltm.filters import make_filter
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.privacy.account import NOTHING
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.calibration import Odometer
from dpltm.privacy.entry import Entry, Part
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import LaplaceRelease, Mechanism, NoisySgd, Selection
from dpltm.randomness.noise import SecureSource
from dpltm.records.batches import Records
from dpltm.tickets.ledger_file import open_ledger
from dpltm.training.descent import train
from dpltm.training.plan import NoisySteps

PEOPLE = Part("records")
SETTING = ("--sampling-rate", "256/60000", "--delta", "1e-5")
COMMANDS = {
    "privacy epsilon": ("privacy", "epsilon", "--noise-multiplier", "1.1", "--epochs", "60", *SETTING),
    "privacy epsilon, sigma 0.5": ("privacy", "epsilon", "--noise-multiplier", "0.5", "--epochs", "100", *SETTING),
    "privacy noise": ("privacy", "noise", "--epsilon", "1", "--steps", "14062", *SETTING),
    "privacy noise, whole plan": ("privacy", "noise", "--epsilon", "1", "--steps", "14062", "--eps1", "0.1", *SETTING),
    "privacy noise, epsilon 8": ("privacy", "noise", "--epsilon", "8", "--steps", "14062", *SETTING),
}


def many_releases() -> list[Entry]:
    """10,000 drafts of 50 kinds."""
    chance = random.Random(1)
    kinds: list[tuple[Mechanism, str]] = [
        (NoisySgd(rate, chance.randint(1, 50), noise), "training")
        for noise, rate in [(chance.uniform(0.8, 20), 10 ** chance.uniform(-3, -1)) for _ in range(40)]
    ]
    kinds += [(LaplaceRelease(chance.uniform(50, 100)), "a mean") for _ in range(5)]
    kinds += [(Selection(eps1, eps1), "winner of 15 tickets") for eps1 in (0.001, 0.002, 0.003, 0.004, 0.005)]
    drafts = [Entry("release", PEOPLE, (mechanism,), words) for mechanism, words in kinds]
    return [chance.choice(drafts) for _ in range(10_000)]


def seconds_of(command: tuple[str, ...], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "dpltm.cli.main", *command, "--json"], check=True, stdout=subprocess.DEVNULL
        )
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def odometer_share() -> dict[str, float]:
    """The odometer of a training of 20 epochs at batch 400 on 60,000 records: all it costs, beside all the steps cost."""
    torch.manual_seed(0)
    spec = ModelSpec("mlp:300,100", 784, 10)
    model = build(spec, 0)
    mask = Mask({name: torch.rand(p.shape) < 0.1 for name, p in model.named_parameters()})
    x, y = torch.rand(60_000, 784), torch.randint(10, (60_000,))
    sgd = NoisySgd(400 / 60_000, 3_000, noise_multiplier=1.2)
    config = NoisySteps(make_filter("clip"), NoisySgd(sgd.sampling_rate, 100, 1.2), 400.0, 0.1)
    times: list[float] = []
    train(
        model, mask, Records(x, y), config, sampling=SecureSource(), noise=SecureSource(),
        progress=lambda _: times.append(time.perf_counter()),
    )  # fmt: skip
    step = statistics.median(after - before for before, after in itertools.pairwise(times[10:]))
    epsilon([sgd], 1e-5)  # as planning has done before a training starts
    began = time.perf_counter()
    odometer = Odometer(NOTHING, sgd, 1e-5)
    for done in range(1, sgd.steps + 1):
        odometer.after(done)
    total = time.perf_counter() - began
    return {"step_ms": 1e3 * step, "odometer_ms": 1e3 * total, "share_of_a_step": total / sgd.steps / step}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    drafts = many_releases()
    Ledger().account().epsilon(1e-5)  # what it takes is imported
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        ledger = open_ledger(path)
        ledger.declare(*drafts)
        account = ledger.account()
        began = time.perf_counter()
        total = account.epsilon(1e-5)
        composed = time.perf_counter() - began
        command = seconds_of(("privacy", "ledger", str(path)), 1)
    body = {
        "seconds": {name: seconds_of(command, repeat) for name, command in COMMANDS.items()},
        "ledger of 10,000 entries": {"compose_seconds": composed, "command_seconds": command, "epsilon": total},
        "odometer": odometer_share(),
    }
    print(json.dumps(body, indent=1))


if __name__ == "__main__":
    main()
