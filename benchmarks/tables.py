"""How long a table takes to read by a schema, and how much memory.

A table is made up: 30 columns, of which 20 are numbers, 5 words, 2 dates, 1 street, 1 id and the label. A process of its own
reads each size. Prints one JSON object a size: seconds (``cpu``: of the processor, where the machine is busy), and the
memory that reading added at its peak, over that of the arrays that it leaves, and over the file.

    python benchmarks/tables.py [--rows 200000 1000000] [--against COMMIT]

``--against`` adds the seconds of another commit, in a checkout of its own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
GOALS = {"seconds of 200,000 rows": 2.0, "memory over the arrays": 2.0}
WORDS = ["north", "south", "east", "west", "", "other ward"]


def write(path: Path, rows: int) -> None:
    """Write a table, and its schema beside it."""
    draw = np.random.default_rng(0)
    days = [datetime.date.fromordinal(737_000 + day).isoformat() for day in range(2000)]
    columns = {f"n{at}": np.char.mod("%.4f", 50 * draw.standard_normal(rows)) for at in range(12)}
    columns |= {f"k{at}": np.char.mod("%d", draw.integers(0, 100_000, rows)) for at in range(8)}
    kinds = dict.fromkeys(columns, 'kind = "number"\nbounds = [-100, 100000]')
    columns |= {f"c{at}": draw.choice(WORDS, rows) for at in range(5)} | {
        f"d{at}": draw.choice(days, rows) for at in (0, 1)
    }
    kinds |= {f"c{at}": f'kind = "category"\nvalues = {WORDS[:4]}\nmissing = true\nother = true' for at in range(5)}
    kinds |= {f"d{at}": 'kind = "date"\nbounds = [2018-01-01, 2024-12-31]' for at in (0, 1)}
    columns["street"] = np.char.mod("street %d", draw.integers(0, 5000, rows))
    columns |= {"id": np.char.mod("id%d", np.arange(rows)), "y": draw.choice(["yes", "no"], rows)}
    kinds |= {
        "street": 'kind = "hashed"\nbuckets = 16',
        "id": 'kind = "ignored"',
        "y": 'kind = "label"\nclasses = ["no", "yes"]',
    }
    with path.open("w", encoding="utf-8") as file:
        file.write(",".join(columns) + "\n")
        for start in range(0, rows, 10_000):
            some = [values[start : start + 10_000].tolist() for values in columns.values()]
            file.writelines(",".join(row) + "\n" for row in zip(*some, strict=True))
    text = "\n".join(f"[column.{name}]\n{kind}" for name, kind in kinds.items())
    path.with_suffix(".toml").write_text(text, encoding="utf-8")


def _peak() -> int:
    """Return the most bytes that this program has had in memory, as Linux counts them."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def read(path: Path) -> dict[str, float]:
    """Return what reading a table took."""
    from dpltm.records import Public, load

    before, wall, cpu = _peak(), time.perf_counter(), time.process_time()
    dataset = load(str(path), schema=str(path.with_suffix(".toml")))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = _peak() - before
    x, y = dataset.train.open(Public("a benchmark"))
    arrays = x.nbytes + y.nbytes + len(y) * 30 * 8  # features, classes, and the cells that records are told apart by
    return {
        "seconds": wall,
        "cpu": cpu,
        "peak_mb": peak / 2**20,
        "arrays_mb": arrays / 2**20,
        "over_arrays": peak / arrays,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000, 1_000_000])
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read is not None:
        print(json.dumps(read(args.read)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path, other = Path(folder) / "table.csv", Path(folder) / "other"
        if args.against:
            other.mkdir()
            archive = subprocess.run(
                ["git", "archive", args.against], cwd=ROOT, capture_output=True, check=True
            ).stdout
            subprocess.run(["tar", "-x", "-C", str(other)], input=archive, check=True)
        for rows in args.rows:
            write(path, rows)
            row = {"rows": rows, "file_mb": path.stat().st_size / 2**20, **_in_a_process(path, ROOT)}
            row["over_file"] = row["peak_mb"] / row["file_mb"]
            if args.against:
                row["seconds_before"] = _in_a_process(path, other)["seconds"]
            print(json.dumps({name: round(value, 2) for name, value in row.items()} | {"goals": GOALS}))


def _in_a_process(path: Path, root: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--read", str(path)],
        env={"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
