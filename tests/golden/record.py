"""Records the numbers that whole commands answer with, or compares them with what was recorded.

    python tests/golden/record.py                    writes tests/golden/commands.json anew
    python tests/golden/record.py CASE ...           writes those chains anew
    python tests/golden/record.py --check [CASE ...] compares, writes nothing
    python tests/golden/record.py --to FILE          writes what is found now, for the test
    python tests/golden/record.py --show CASE ...    prints what its commands say, too

What depends on random bytes is found by running under several seeds: what differs, does. Write anew after a change
that is meant, and say in the commit why each number changed.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import RECORDED, Step, cases, differences, flat, load, machine, play, start, table

SEEDS = (0, 1, 2, 3)
"""The first is recorded."""


def found(names: list[str], seed: int) -> dict[str, list[Step]]:
    """The steps of these chains."""
    chains = cases()
    needed = {*names, *(start(chains[name]) for name in names)}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder).resolve()
        steps = {name: play(name, lines, seed, home) for name, lines in chains.items() if name in needed}
    return {name: steps[name] for name in names}


def recorded(steps: list[Step], others: list[list[Step]]) -> list[dict[str, Any]]:
    """What is kept of a chain, with the paths of all that another seed changed."""
    kept = []
    for number, step in enumerate(steps):
        values = dict(flat(step.answer))
        again = [dict(flat(other[number].answer)) for other in others]
        drawn = [path for path, value in values.items() if any(one.get(path, "gone") != value for one in again)]
        kept.append({"command": step.command, "answer": step.answer, **({"drawn": drawn} if drawn else {})})
    return kept


def write(cases: dict[str, Any]) -> None:
    """Writes the file: a line a command."""
    blocks = []
    for name, steps in cases.items():
        lines = ",\n  ".join(json.dumps(step, separators=(",", ":")) for step in steps)
        blocks.append(f" {json.dumps(name)}: [\n  {lines}\n ]")
    text = f'{{"machine": {json.dumps(machine())}, "cases": {{\n' + ",\n".join(blocks) + "\n}}\n"
    RECORDED.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--to", type=Path)
    given = parser.parse_args()
    names = given.cases or list(cases())
    load()
    if given.to:
        given.to.write_text(json.dumps({n: [asdict(s) for s in steps] for n, steps in found(names, SEEDS[0]).items()}))
        return 0
    if given.show:
        for name, steps in found(names, SEEDS[0]).items():
            for step in steps:
                print(f"{name}: dpltm {step.command}\n{step.said}{json.dumps(step.answer)}")
        return 0
    before = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {"machine": "", "cases": {}}
    if given.check:
        before["cases"] = {name: before["cases"][name] for name in names if name in before["cases"]}
        held = differences(before, found(names, SEEDS[0]))
        print(table(held))
        return bool(held)
    first, *others = (found(names, seed) for seed in SEEDS)
    kept = {name: recorded(first[name], [other[name] for other in others]) for name in names}
    write({name: kept.get(name) or before["cases"][name] for name in cases()})
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = (used.ru_utime + used.ru_stime) / len(SEEDS)
    print(f"{sum(map(len, kept.values()))} commands, {seconds:.0f} s of processor time for each of {len(SEEDS)} seeds")
    return 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets are walked in the same order
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.exit(main())
