"""The noise of releases: its law at 10^7 draws, its grid, and its cost beside torch's generator and within a step.

Prints JSON. ``law``: Kolmogorov and Smirnov's distance to the normal law, the chance of one as large, and moments with their
deviations from the normal ones in standard errors; a draw gets a uniform number within its grid step, or the grid would
show. ``nanoseconds``: per value, medians over interleaved runs. ``step``: a training step of 784-300-100-10 with a share of
weights live, and its noise. ``on_device``: milliseconds of the mechanism on a GPU, its set-up, and whether it is compiled.

    python benchmarks/noise.py [--draws 10000000] [--std 1.0] [--repeat 30] [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import stats

from dpltm.filters import Clip
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.randomness.gaussian_mechanism import AT_ONCE, gaussian_mechanism, grid_step
from dpltm.randomness.gaussian_on_device import PLAIN, _functions, chacha20, gaussian_mechanism_on_device
from dpltm.randomness.noise import FastSource, KeyedSource, RandomSource
from dpltm.randomness.sampling import USUAL
from dpltm.records.batches import Records
from dpltm.training.descent import NoisyGradients, cross_entropy, noisy_mean
from dpltm.training.plan import NoisySteps

MOMENTS = {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96), 6: (15, 10170)}
"""Moments of a normal number, and variances of its powers: E x^2k - (E x^k)^2."""


def law(draws: int, std: float, source: RandomSource) -> dict[str, Any]:
    """Of ``draws`` released values, of sums that lie anywhere within a grid step."""
    step, rng = grid_step(std), np.random.default_rng(0)
    found = np.empty(draws)
    for start in range(0, draws, AT_ONCE):
        sums = rng.random(min(AT_ONCE, draws - start)) * step
        noisy = gaussian_mechanism(sums, std, source)
        assert (noisy / step == np.rint(noisy / step)).all()
        noisy += (rng.random(len(sums)) - 0.5) * step
        found[start : start + AT_ONCE] = (noisy - sums) / std
    fit = stats.kstest(found, "norm")
    moments = {
        power: {"value": round(value := float((found**power).mean()), 6),
                "standard errors": round((value - mean) / math.sqrt(variance / draws), 2)}
        for power, (mean, variance) in MOMENTS.items()
    }  # fmt: skip
    return {"draws": draws, "distance": fit.statistic, "p": round(float(fit.pvalue), 4), "moments": moments,
            "largest": round(float(np.abs(found).max()), 2)}  # fmt: skip


def medians(runs: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Seconds of each, by turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeat + 2):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            if turn >= 2:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def throughput(count: int, repeat: int) -> dict[str, float]:
    """Nanoseconds per value."""
    sums, secure, fast = np.random.default_rng(0).normal(size=count), KeyedSource(), FastSource()
    runs: dict[str, Callable[[], object]] = {
        "mechanism": lambda: gaussian_mechanism(sums, 1.3, secure),
        "mechanism, fast bits": lambda: gaussian_mechanism(sums, 1.3, fast),
        "secure bits alone": lambda: secure.random_bytes(8 * count),
        "torch.randn, float32": lambda: torch.randn(count),
        "torch.randn, float64": lambda: torch.randn(count, dtype=torch.float64),
    }
    return {name: round(1e9 * seconds / count, 2) for name, seconds in medians(runs, repeat).items()}


def step(density: float, batch: int, repeat: int) -> dict[str, float]:
    """Milliseconds of a step from the batch in memory to updated weights, and of its noise."""
    model, x, y = build(ModelSpec("mlp:300,100", 784, 10), 0), torch.rand(batch, 784), torch.randint(10, (batch,))
    chance = torch.Generator().manual_seed(0)
    parts = {name: torch.rand(value.shape, generator=chance) for name, value in model.named_parameters()}
    mask = Mask({name: value < (density if value.ndim > 1 else 2) for name, value in parts.items()})
    config = NoisySteps(Clip(1.0), NoisySgd(1.0, 1, 1.0), batch, 0.1)
    engine = NoisyGradients(
        model, mask, cross_entropy, Records(x, y), config, sampling=KeyedSource(), noise=KeyedSource()
    )
    engine.apply_mask()
    optimizer, live = torch.optim.SGD(engine.parameters, lr=0.1), engine.gradients.live
    total, source = torch.zeros(live, dtype=torch.float64), KeyedSource()
    chunks = [slice(start, min(start + USUAL, batch)) for start in range(0, batch, USUAL)]

    def whole() -> None:
        engine.release(engine.gradients.filtered_sum(x, y, Clip(1.0), chunks=chunks, out=total.zero_()).values)
        optimizer.step()

    found = medians({"step": whole, "noise": lambda: noisy_mean(total, 1.0, batch, source)}, repeat)
    return {
        "live": live,
        **{f"{name}, ms": round(1e3 * seconds, 3) for name, seconds in found.items()},
        "share": round(found["noise"] / found["step"], 3),
    }


def on_device(repeat: int) -> dict[str, Any]:
    """Of 20 million coordinates, and of some 2^18 whose bits are sent; and of the bits alone."""
    device = torch.device("cuda")
    began = time.perf_counter()
    functions = _functions(device)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "compiled": functions is not PLAIN,
        "set-up, s": round(time.perf_counter() - began, 1),
    }
    source, many, few = KeyedSource(), *(torch.randn(n, device=device).double() for n in (20_000_000, 2**18))

    def done(run: Callable[[], object]) -> Callable[[], None]:
        def whole() -> None:
            run()
            torch.cuda.synchronize()

        return whole

    times = medians(
        {
            "20 million": done(lambda: gaussian_mechanism_on_device(many, 1.3, source)),
            "their bits": done(lambda: chacha20(bytes(32), len(many), device, functions)),
            "their bits, uncompiled": done(lambda: chacha20(bytes(32), len(many), device)),
            "2^18": done(lambda: gaussian_mechanism_on_device(few, 1.3, source)),
        },
        repeat,
    )
    return found | {f"{name}, ms": round(1e3 * seconds, 3) for name, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10**7)
    parser.add_argument("--std", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    if given.device == "cuda":
        print(json.dumps(on_device(given.repeat), indent=1))
        return
    torch.manual_seed(0)
    body = {
        "threads": torch.get_num_threads(),
        "law": law(given.draws, given.std, KeyedSource()),
        "nanoseconds": {count: throughput(count, given.repeat) for count in (10**4, 10**6)},
        "step": {density: step(density, 400, given.repeat) for density in (0.1, 1.0)},
    }
    print(json.dumps(body, indent=1))


if __name__ == "__main__":
    main()
