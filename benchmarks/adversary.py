"""Plays the adversary (tests/support/adversary.py): commands on neighbours, with their random sources recorded and replayed.

Prints one JSON object: how many cases, commands and queries, every mismatch, how much of what its event allows the largest
change of a query took up, and for each planted bug whether it was caught.

    python benchmarks/adversary.py
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))


def main() -> None:
    with tempfile.TemporaryDirectory() as home:  # no key or cache of the user's own
        os.environ |= {"XDG_CONFIG_HOME": f"{home}/config", "XDG_CACHE_HOME": f"{home}/cache"}
        print(json.dumps(table(), indent=1))


def summary(findings: dict[str, Any]) -> dict[str, Any]:
    """The table for people: commands, queries, mismatches, and how close queries came to their bounds."""
    closest: dict[str, float] = {}
    for one in findings.values():
        for mechanism, share in one.closest.items():
            closest[mechanism] = max(closest.get(mechanism, 0.0), share)
    return {
        "cases": len(findings),
        "commands": sum(one.commands for one in findings.values()),
        "queries": sum(one.queries for one in findings.values()),
        "compared": sum(one.compared for one in findings.values()),
        "mismatches": [
            f"{name}: {mismatch.kind}: {mismatch.text}"
            for name, one in findings.items()
            for mismatch in one.mismatches
        ],
        "largest_change_over_event": {name: round(share, 4) for name, share in sorted(closest.items())},
    }


def table() -> dict[str, object]:
    """Everything, in one object."""
    import torch

    from adversary import examine
    from adversary_cases import all_cases
    from planted import BUGS

    torch.set_num_threads(1)
    began = time.process_time()
    findings = {case.name: examine(case) for case in all_cases()}
    caught = {}
    for bug in BUGS:
        with bug.plant():
            kinds = examine(bug.case).kinds
        caught[bug.name] = bug.kind if bug.kind in kinds else f"missed: {bug.kind}"
    return {
        **summary(findings),
        "bugs": len(BUGS),
        "caught": caught,
        "processor_seconds": round(time.process_time() - began, 1),
    }


if __name__ == "__main__":
    main()
