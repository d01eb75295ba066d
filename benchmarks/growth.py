"""How the cost of a filtered gradient sum grows: with live coordinates for tanh, with batch and layer size for clip.

One Linear layer and a read-out; medians of interleaved runs, in one process. Prints JSON: milliseconds, and the exponent of
the power law that fits best (1 is linear).

    python benchmarks/growth.py [--repeat 15] [--plot docs/growth.png]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from dpltm.filters import Clip, Filter, make_filter
from dpltm.gradients import RecordGradients
from dpltm.networks.masks import Mask
from dpltm.training.descent import cross_entropy

Run = Callable[[], object]


def run_of(filter: Filter, batch: int, width: int, density: float) -> tuple[int, Run]:
    """Live coordinates, and one sum."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))
    mask = Mask({name: torch.rand(value.shape) < density for name, value in model.named_parameters()})
    mask.apply(model)
    gradients = RecordGradients(model, mask, cross_entropy)
    x, y = torch.rand(batch, 784), torch.randint(10, (batch,))
    return mask.live, lambda: gradients.filtered_sum(x, y, filter)


def series() -> dict[str, list[tuple[int, Run]]]:
    tanh = make_filter("tanh")
    return {
        "clip-then-tanh, by live coordinates": [run_of(tanh, 400, 300, d) for d in (0.02, 0.05, 0.1, 0.2, 0.5, 1.1)],
        "clip, by batch": [(b, run_of(Clip(1.0), b, 300, 0.1)[1]) for b in (200, 400, 800, 1600, 3200)],
        "clip, by layer size (10 % live)": [
            (784 * width, run_of(Clip(1.0), 400, width, 0.1)[1]) for width in (150, 300, 600, 1200, 2400)
        ],
    }


def plot(found: dict[str, dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(12, 3.6), constrained_layout=True)
    for axis, (name, values) in zip(axes, found.items(), strict=True):
        sizes, times = values["size"], values["ms"]
        axis.plot(sizes, times, "o-")
        axis.plot([0, sizes[-1]], [0, times[-1]], ":", color="grey", label="through the origin")
        axis.set(title=name, ylabel="milliseconds", xlim=(0, None), ylim=(0, None))
        axis.legend(frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    found: dict[str, dict] = {}
    for name, runs in series().items():
        times: list[list[float]] = [[] for _ in runs]
        for turn in range(given.repeat + 2):
            for place, (_, run) in enumerate(runs):
                began = time.perf_counter()
                run()
                if turn >= 2:
                    times[place].append(1e3 * (time.perf_counter() - began))
        sizes, medians = [size for size, _ in runs], [round(statistics.median(each), 3) for each in times]
        found[name] = {
            "size": sizes, "ms": medians, "exponent": round(float(np.polyfit(np.log(sizes), np.log(medians), 1)[0]), 2),
        }  # fmt: skip
    if given.plot:
        plot(found, given.plot)
    print(json.dumps({"threads": torch.get_num_threads(), **found}, indent=1))


if __name__ == "__main__":
    main()
