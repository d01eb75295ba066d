"""What features cost: those of all of MNIST, and DP training of a linear network on them beside ordinary training.

    DPLTM_DATA=... python benchmarks/features.py [--images 70000] [--repeats 5]

Prints one JSON object: seconds and the most memory for the features of all images, written to a file of half precision
as ``dpltm train --features scatter`` does; then milliseconds a step, medians over interleaved repeats, of DP-SGD (Poisson
sample, clip, secure noise) and of ordinary SGD on batches of that size read from the same file, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from dpltm.features import parse
from dpltm.features.feature_map import map_of
from dpltm.filters import make_filter
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.options.train import TrainOptions
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.randomness.noise import SecureSource
from dpltm.records import Public, load
from dpltm.records.batches import Records
from dpltm.training.descent import NoisyGradients, cross_entropy
from dpltm.training.plan import NoisySteps

PUBLIC = Public("a benchmark")

ROWS, BATCH, STEPS = 512, 4096, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=70_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    mnist = load("mnist")
    assert mnist.test is not None
    x = np.concatenate([mnist.train.open(PUBLIC).x, mnist.test.open(PUBLIC).x])[: options.images]
    y = np.concatenate([mnist.train.open(PUBLIC).y, mnist.test.open(PUBLIC).y])[: options.images]
    found = map_of(parse("scatter"), x.shape[1:], mnist.bounds)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features"
        began = time.perf_counter()
        with path.open("wb") as stream:
            for start in range(0, len(x), ROWS):
                stream.write(found(x[start : start + ROWS]).half().numpy().astype("<f2", copy=False).tobytes())
        seconds = time.perf_counter() - began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        features = np.memmap(path, dtype="<f2", mode="r", shape=(len(x), found.features))
        answer = {
            "images": len(x),
            "seconds": seconds,
            "most_memory_mib": memory,
            "threads": options.threads,
            **steps(features, torch.from_numpy(y), options.repeats),
        }
    print(json.dumps(answer, indent=2))


def steps(x: np.ndarray, y: torch.Tensor, repeats: int) -> dict[str, float]:
    """Milliseconds a step of both loops, and their ratio."""
    records, rate = Records(x, y), min(1.0, BATCH / len(x))
    spec = ModelSpec("mlp", x.shape[1], 10)
    private, plain = build(spec, 0), build(spec, 0)
    config = NoisySteps(
        make_filter("clip", clip_norm=0.2),
        NoisySgd(rate, STEPS, 4.0),
        rate * len(x),
        1.0,
        options=TrainOptions(optimizer="momentum"),
    )
    noisy = NoisyGradients(
        private, Mask.dense(private), cross_entropy, records, config, sampling=SecureSource(), noise=SecureSource()
    )
    generator = np.random.default_rng(0)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9) for model in (private, plain)]
    times: dict[str, list[float]] = {"dp": [], "plain": []}
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(STEPS):
            noisy.backward()
            optimizers[0].step()
        times["dp"].append(time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(STEPS):
            index = np.sort(generator.choice(len(x), size=min(BATCH, len(x)), replace=False))
            rows, labels = records.take(index)
            optimizers[1].zero_grad()
            functional.cross_entropy(plain(rows), labels).backward()
            optimizers[1].step()
        times["plain"].append(time.perf_counter() - began)
    dp, ordinary = (1000 * statistics.median(values) / STEPS for values in times.values())
    return {"dp_ms": dp, "plain_ms": ordinary, "ratio": dp / ordinary}


if __name__ == "__main__":
    main()
