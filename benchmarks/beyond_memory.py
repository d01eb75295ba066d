"""One private epoch over records that are more than the memory that it takes.

    python benchmarks/beyond_memory.py --records 10000000 --features 256

Makes a folder of ``.npy`` files (bytes around a mean of each class), and has ``dpltm train`` go through it once.
Prints JSON: seconds, and the most memory that the process had, mapped files included (``ru_maxrss``).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CLASSES, AT_ONCE = 10, 2**16


def write(folder: Path, name: str, records: int, features: int, draw: np.random.Generator, means: np.ndarray) -> None:
    """Labels, and features around the mean of their class, some at a time."""
    y = draw.integers(0, CLASSES, records)
    np.save(folder / f"y_{name}.npy", y.astype(np.uint8))
    with (folder / f"x_{name}.npy").open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (records, features)}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, records, AT_ONCE):
            labels = y[start : start + AT_ONCE]
            noise = draw.integers(0, 192, (len(labels), features), dtype=np.uint8)
            file.write((noise + means[labels]).tobytes())


def measure(records: int, features: int, batch: int, seed: int, folder: Path) -> dict[str, object]:
    """Writes the records, trains on them, and says what it took."""
    draw = np.random.default_rng(seed)
    means = draw.integers(0, 64, (CLASSES, features), dtype=np.uint8)
    (folder / "data").mkdir()
    for name, count in (("train", records), ("test", 2000)):
        write(folder / "data", name, count, features, draw, means)
    command = [
        *(sys.executable, "-m", "dpltm.cli.main", "train", "--dataset", str(folder / "data"), "--dense"),
        *("--model", "mlp:32", "--epochs", "1", "--batch-size", str(batch), "--epsilon", "1", "--delta", "1e-8"),
        *("--out", str(folder / "run"), "--json"),
    ]
    own = {**os.environ, "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    began = time.perf_counter()
    told = subprocess.run(command, check=True, capture_output=True, text=True, env=own)
    answer = json.loads(told.stdout)
    return {
        "records": records,
        "megabytes": records * features / 1e6,
        "steps": answer["steps"],
        "accuracy": answer["accuracy"],
        "training_seconds": round(answer["seconds"], 1),
        "seconds": round(time.perf_counter() - began, 1),
        "most_resident_megabytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6,
    }


def main() -> None:
    """Runs the measurement that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the records are written; a temporary folder by default")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        print(json.dumps(measure(given.records, given.features, given.batch_size, given.seed, Path(folder)), indent=2))


if __name__ == "__main__":
    main()
