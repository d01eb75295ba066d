"""GDP, Figure 2: epsilon over epochs by the moments accountant, by the central limit theorem, and certified.

    python examples/papers/gdp_figure_2.py figure_2.png [EPOCHS]

Source: Bu, Dong, Long, Su (2020), Section 3.2; sampling rate and noise are those of Table 1, rows 1 to 3. Prints the first
and the last points.
"""

import sys
from pathlib import Path

from dpltm.privacy.accountant import approximate, epsilon
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.tickets.charts import Chart, Series, write_charts

RATE, DELTA, NOISES = 256 / 60_000, 1e-5, (1.3, 1.1, 0.7)


def points(noise: float, epochs: int) -> dict[str, list[tuple[float, float]]]:
    """Epsilon after every fifth epoch, by each accountant."""
    trainings = {epoch: NoisySgd(RATE, round(epoch / RATE), noise) for epoch in (1, *range(5, epochs + 1, 5))}
    return {
        "MA": [(epoch, epsilon([training], DELTA, "ma")) for epoch, training in trainings.items()],
        "certified": [(epoch, epsilon([training], DELTA, "pld")) for epoch, training in trainings.items()],
        "CLT, which certifies nothing": [
            (epoch, approximate([training], DELTA)) for epoch, training in trainings.items()
        ],
    }


def main(path: Path, epochs: int = 60) -> None:
    charts = []
    for noise in NOISES:
        curves = points(noise, epochs)
        series = [Series(name, pairs, ":" if name.startswith("CLT") else "-") for name, pairs in curves.items()]
        charts.append(Chart(f"sigma {noise}", "epochs", "epsilon at delta 1e-5", series, {"ylim": (0, None)}))
        for name, ((first, low), *_, (last, high)) in curves.items():
            print(f"sigma {noise}, {name}: {low:.3f} after {first}, {high:.3f} after {last} epochs")
    write_charts(path, charts, "GDP, Figure 2")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
