"""Processor time of entering one release where a ledger holds many already, and a budget is set on all of them.

    python benchmarks/ledger.py [--entries 1000] [--repeat 20]

Prints JSON: milliseconds, the median; for a ledger that is open, for one that is opened for it, and for the large one opened
for it. Waiting for the disk does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


def milliseconds(work: Callable[[], object], repeat: int) -> float:
    """The median of a call."""
    took = []
    for _ in range(repeat):
        began = time.process_time()
        work()
        took.append(1e3 * (time.process_time() - began))
    return statistics.median(took)


def main(arguments: list[str]) -> dict[str, float]:
    """The figures, by what was measured."""
    from dpltm.privacy.entry import Entry, Part
    from dpltm.privacy.mechanisms import Guarantee
    from dpltm.tickets.ledger_file import open_ledger

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=20)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CONFIG_HOME"] = folder
        many, few = Path(folder) / "many.jsonl", Path(folder) / "few.jsonl"
        ledger = open_ledger(many)
        release = Entry("release", Part("digits"), (Guarantee(1e-3),), "a count")
        ledger.declare(Entry("budget", mechanisms=(Guarantee(1e3, 1e-5),)))
        ledger.declare(*[release] * given.entries)
        other = open_ledger(few)
        return {
            "open": milliseconds(lambda: other.declare(release), given.repeat),
            "opened": milliseconds(lambda: open_ledger(few).declare(release), given.repeat),
            "large, opened": milliseconds(lambda: open_ledger(many).declare(release), given.repeat),
        }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:]), indent=2))
