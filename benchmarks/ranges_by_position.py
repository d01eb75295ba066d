"""What parts of a dataset cost together when a record is taken out: by position, by places, by hashes. Prints JSON.

    python benchmarks/ranges_by_position.py

Each part gets one full-batch Gaussian release with noise for epsilon 1 (delta 1e-5, add/remove). The records' gradients
alternate between +C and -C. The *truth* is brute force: the parts are cut out of the file with and without one record (every
record in turn), the sums of gradients are compared, and the exact epsilon of Gaussians that far apart is taken, at the worst
record. *certified* is what the accountant makes of the ledger. It must not lie below the truth.

By position is how versions before 0.2 cut; ledgers from then are read as the costlier case.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dpltm.privacy import gdp
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.events import HASHES, Cut, DatasetRef, GaussianEvent
from dpltm.privacy.mechanisms import GaussianRelease, NoisySgd
from dpltm.privacy.parts import total_epsilon
from dpltm.records import Public, catalogue, load

PUBLIC = Public("a benchmark")

DELTA, RECORDS = 1e-5, 240
Parts = Callable[[np.ndarray, int], list[np.ndarray]]


def noise_for_one() -> float:
    """The noise multiplier of one full-batch release that spends epsilon 1."""
    return calibrate_noise(1.0, DELTA, NoisySgd(1.0, steps=1, noise_multiplier=1.0)).noise_multiplier


def by_position(x: np.ndarray, count: int) -> list[np.ndarray]:
    """Ranges of the file that leave some records at its end over, so that every range can gain one."""
    size = (
        RECORDS // (count + 1) // 2 * 2 + 1
    )  # odd: the record that comes in is of the other sign than the one that leaves
    return [x[place * size : (place + 1) * size] for place in range(count)]


def by_hash(x: np.ndarray, count: int) -> list[np.ndarray]:
    """Parts by ``--subset`` in fractions, through the loader; that each holds a record is not asked."""
    found = []
    for place in range(count):
        subset = f"{place / count:.9f}:{(place + 1) / count:.9f}"
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "own.npz"
            np.savez(file, x_train=x, y_train=np.arange(len(x)) % 2)
            given = {"bounds": (-1.0, 1e4), "classes": 2, "records": RECORDS}
            found.append(load(str(file), subset=subset, for_training=False, **given).train.open(PUBLIC).x)  # type: ignore[arg-type]
    return found


def by_places(x: np.ndarray, count: int) -> list[np.ndarray]:
    """Parts by places of a named dataset; a record that was taken out leaves its place empty."""
    known = catalogue()["har-signals"]
    size = RECORDS // count
    places = np.full((known.records or 0, *x.shape[1:]), 0.0, dtype="f4")
    labels = np.full(len(places), -1)
    index = x[:, 1].astype(int)
    places[index], labels[index] = x, index % 2
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "har-signals.npz", x_train=places, y_train=labels)
        return [
            load(
                "har-signals",
                home=Path(folder),
                subset=f"{place * size}:{(place + 1) * size}",
                classes=2,
                for_training=False,
            )
            .train.open(PUBLIC)
            .x
            for place in range(count)
        ]


def truth(parts: Parts, count: int, noise: float) -> float:
    """The exact epsilon at the record whose absence changes the sums most."""
    x = np.column_stack([(-1.0) ** np.arange(RECORDS), np.arange(RECORDS)]).astype("f4")
    sums = np.array([part[:, 0].sum() for part in parts(x, count)])
    worst = 0.0
    for gone in (0, 1, RECORDS // 2, RECORDS - 1):
        less = np.array([part[:, 0].sum() for part in parts(np.delete(x, gone, axis=0), count)])
        worst = max(worst, float(np.linalg.norm(sums - less)))
    return gdp.epsilon(DELTA, worst / noise)


def certified(cut: Cut, count: int, noise: float) -> float:
    """What the accountant makes of one release for each part."""
    size = HASHES // count if cut == "values" else RECORDS // count
    refs = [DatasetRef("d", "id", "key", place * size, (place + 1) * size, cut) for place in range(count)]
    return total_epsilon(
        [GaussianEvent(ref, GaussianRelease(noise), "sum of gradients") for ref in refs],
        DELTA,
    )  # fmt: skip


def main() -> None:
    """Prints a row for each way to cut and number of parts."""
    noise, rows = noise_for_one(), []
    ways: tuple[tuple[str, Cut, Parts], ...] = (
        ("positions (before 0.2)", "positions", by_position),
        ("places of a published file", "places", by_places),
        ("public hashes", "values", by_hash),
    )
    for name, cut, parts in ways:
        for count in (1, 2, 10):
            true, said = truth(parts, count, noise), certified(cut, count, noise)
            holds = said >= true or math.isclose(said, true, rel_tol=1e-9)
            rows.append({"cut by": name, "parts": count, "true": true, "certified": said, "holds": holds})
    print(json.dumps({"delta": DELTA, "noise_multiplier": noise, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
