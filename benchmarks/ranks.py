"""How much quicker two ranks on a core each train than one process on one core; steps of training.descent on made-up images.

    python benchmarks/ranks.py [--network cnn] [--batch 640] [--steps 20] [--repeat 7] [--ranks 2]

In every repetition one process, pinned to a core, takes its steps; then the ranks, each pinned to a core of its own. A step
is all of it: sample, gradients, sums, noise, optimizer. Prints JSON: medians over repetitions of wall clock and of processor
time (of the busiest rank) for a step, in milliseconds; and the median of the ratios within each repetition, with the
extremes. Wall clock says little where others use the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

from dpltm.filters import Clip
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.randomness.noise import SecureSource
from dpltm.records.batches import Records
from dpltm.training.descent import Descent, NoisyGradients, cross_entropy
from dpltm.training.launcher import launched
from dpltm.training.plan import NoisySteps
from dpltm.training.ranks import Ranks

NETWORKS = {"cnn": "cnn:28x28x1", "mlp": "mlp:300,100"}
RECORDS = 6000
WARM = 3
"""Steps before the clock starts."""


def steps(network: str, batch: int, count: int) -> None:
    """Takes steps in this process; prints seconds of wall clock and of processor time for one."""
    place = launched()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0 if place is None else place.local]})
    torch.set_num_threads(1)
    ranks = None if place is None else Ranks.join(place, "cpu")
    x, y = torch.rand(RECORDS, 784), torch.randint(10, (RECORDS,))
    if ranks is not None:
        x, y = ranks.broadcast(x), ranks.broadcast(y)
    model = build(ModelSpec(NETWORKS[network], 784, 10), 0)
    config = NoisySteps(Clip(1.0), NoisySgd(batch / RECORDS, WARM + count, 1.0), float(batch), 0.1)
    sources = {"sampling": SecureSource(), "noise": SecureSource()}
    gradients = NoisyGradients(model, Mask.dense(model), cross_entropy, Records(x, y), config, ranks=ranks, **sources)
    began: list[float] = []

    def watch(done: int) -> None:
        if done == WARM:
            began.extend((time.perf_counter(), time.process_time()))

    Descent(gradients).run(watch)
    print((time.perf_counter() - began[0]) / count, (time.process_time() - began[1]) / count)


def measure(arguments: list[str], size: int) -> tuple[float, float]:
    """Seconds of one step, of wall clock and of processor time of the busiest.

    Args:
        arguments: of this program.
        size: ranks; 0 for a process alone.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "here"}
    started = []
    for rank in range(max(1, size)):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if size:
            environment |= {**group, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        command = [sys.executable, __file__, "--work", *arguments]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    told = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("a rank failed")
    figures = [tuple(map(float, line.split())) for line in told]
    return max(wall for wall, _ in figures), max(cpu for _, cpu in figures)


def summary(alone: list[float], shared: list[float]) -> dict[str, Any]:
    """Medians in milliseconds, and ratios of pairs."""
    ratios = sorted(one / other for one, other in zip(alone, shared, strict=True))
    return {
        "one process, ms": round(1e3 * statistics.median(alone), 2),
        "ranks, ms": round(1e3 * statistics.median(shared), 2),
        "times quicker": round(statistics.median(ratios), 2),
        "least and most": [round(ratios[0], 2), round(ratios[-1], 2)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--network", choices=tuple(NETWORKS), default="cnn", help="of the GDP paper, or 784-300-100-10"
    )
    parser.add_argument("--batch", type=int, default=640, help="expected records in a step, of both together")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        steps(given.network, given.batch, given.steps)
        return
    arguments = ["--network", given.network, "--batch", str(given.batch), "--steps", str(given.steps)]
    pairs = [(measure(arguments, 0), measure(arguments, given.ranks)) for _ in range(given.repeat)]
    body = {"network": given.network, "batch": given.batch, "ranks": given.ranks, "repetitions": given.repeat}
    for place, name in enumerate(("wall clock", "processor time")):
        body[name] = summary([alone[place] for alone, _ in pairs], [shared[place] for _, shared in pairs])
    print(json.dumps(body, indent=1))


if __name__ == "__main__":
    main()
