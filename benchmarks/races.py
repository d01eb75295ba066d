"""Two processes that start together, for the last of a budget; and processes that are killed while they enter releases.

In a race, a ledger has a budget of 1.0, and two whole commands (dpltm train, epsilon 0.9 each) run at once. Both are held
where they have planned on the whole budget and are about to enter what they will spend, and let go together. One of
them has to train and the other to be refused, and what the winner spent has to be on record. A kill ends a process
(SIGKILL) that enters releases one after the other and says so after each: every release that it has told of has to be
in the ledger, and the ledger goes on.

    python benchmarks/races.py [--races 50] [--kills 50] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dpltm.cli.main import run
from dpltm.privacy.entry import Entry
from dpltm.privacy.mechanisms import Guarantee
from dpltm.tickets.ledger_file import open_ledger

LEDGER = "digits.ledger.jsonl"
TRAIN = ("train", "--dense", "--dataset", "digits", "--model", "mlp:2", "--steps", "1", "--batch-size", "64",
         "--delta", "1e-5", "--ledger", LEDGER)  # fmt: skip

RACER = """
import contextlib, io, json, os, sys
from dpltm.cli.main import run
from dpltm.privacy.ledger import Ledger
enter, gate = Ledger.enter, []
def enter_together(ledger, *arguments):
    if gate:
        print(gate.pop(), flush=True)
        sys.__stdin__.readline()
    return enter(ledger, *arguments)
Ledger.enter = enter_together
run(json.loads(sys.stdin.readline()))  # what is imported late is there when the race begins
for line in sys.stdin:
    folder, arguments = json.loads(line)
    os.chdir(folder)
    os.environ["XDG_CONFIG_HOME"] = folder
    gate.append("ready")
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = run(arguments)
    print(json.dumps([code, said.getvalue()]), flush=True)
"""

SPENDER = """
from dpltm.privacy.entry import Entry
from dpltm.privacy.mechanisms import Guarantee
from dpltm.tickets.ledger_file import open_ledger
ledger = open_ledger("l.jsonl")
print(0, flush=True)
while True:
    ledger.declare(Entry("release", mechanisms=(Guarantee(1e-6),), words="a count"))
    print(len(ledger.entries), flush=True)
"""


def races(count: int) -> dict[str, Any]:
    """Whole commands in pairs, and how they ended."""
    found = {"races": count, "one_winner": 0, "overspent": 0, "lost": 0, "seconds_apart": 0.0}
    with tempfile.TemporaryDirectory() as home:
        noise = _noise_of(0.9)
        racers = [_started(Path(home) / str(number), noise) for number in range(2)]
        for number in range(count):
            folder = Path(home) / f"race-{number}"
            folder.mkdir()
            _race(folder, racers, noise, found)
        for racer in racers:
            racer.communicate()
    return found


def _noise_of(epsilon: float) -> str:
    """The noise multiplier of a training that costs this much."""
    return str(_told("privacy", "noise", "--sampling-rate", "64/1438", "--steps", "1", "--delta", "1e-5", "--epsilon",
                     str(epsilon))["noise_multiplier"])  # fmt: skip


def _told(*command: str) -> dict[str, Any]:
    """What a command answers."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert run([*command, "--json"]) == 0
    return dict(json.loads(out.getvalue()))


def _started(folder: Path, noise: str) -> subprocess.Popen[str]:
    """A process that has imported all of it, and waits."""
    folder.mkdir()
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": folder}
    racer = subprocess.Popen([sys.executable, "-c", RACER], env=environment, **pipes)
    _tell(racer, json.dumps([*TRAIN, "--noise-multiplier", noise, "--out", "warm", "--quiet"]))
    return racer


def _race(folder: Path, racers: list[subprocess.Popen[str]], noise: str, found: dict[str, Any]) -> None:
    """One of them; adds to what was found."""
    with _at(folder):
        _told("privacy", "budget", LEDGER, "--epsilon", "1")
        for number, racer in enumerate(racers):
            options = ("--noise-multiplier", noise, "--out", f"run-{number}", "--quiet")
            _tell(racer, json.dumps([str(folder), [*TRAIN, *options]]))
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        began = time.perf_counter()
        _tell(racers[0], "go")
        _tell(racers[1], "go")
        found["seconds_apart"] = max(found["seconds_apart"], time.perf_counter() - began)
        codes = [json.loads(racer.stdout.readline())[0] for racer in racers]  # type: ignore[union-attr]
        found["one_winner"] += codes in ([0, 1], [1, 0])
        found["overspent"] += _told("privacy", "budget", LEDGER)["budgets"][0]["spent"] > 1
        entered = [entry.id for entry in open_ledger(LEDGER).entries if entry.paid]
        runs = [json.loads(path.read_text())["entry"] for path in Path().glob("run-*/config.json")]
        found["lost"] += sorted(runs) != sorted(entered) or len(runs) != codes.count(0)


def kills(count: int) -> dict[str, Any]:
    """Processes killed while they enter one release after the other, and what the next one found."""
    found = {"kills": count, "released": 0, "missing": 0, "blocked": 0}
    chance = random.Random(0)
    for _ in range(count):
        with tempfile.TemporaryDirectory() as home, _at(Path(home)):
            process = subprocess.Popen([sys.executable, "-c", SPENDER], stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(chance.uniform(0, 0.2))
            process.kill()
            told = max([0, *(int(line) for line in process.stdout if line.endswith("\n"))])
            process.wait()
            found["released"] += told
            try:
                ledger = open_ledger("l.jsonl")
                held = len(ledger.entries)
                found["missing"] += held < told
                ledger.declare(Entry("release", mechanisms=(Guarantee(1e-6),), words="a count"))
                found["blocked"] += len(open_ledger("l.jsonl").entries) != held + 1
            except Exception as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
                found["blocked"] += 1
    return found


@contextlib.contextmanager
def _at(folder: Path) -> Any:
    """In a folder, with the user's configuration in it."""
    before, was = os.environ.get("XDG_CONFIG_HOME"), Path.cwd()
    os.environ["XDG_CONFIG_HOME"] = str(folder)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(was)
        if before is None:
            del os.environ["XDG_CONFIG_HOME"]
        else:
            os.environ["XDG_CONFIG_HOME"] = before


def _tell(racer: subprocess.Popen[str], line: str) -> None:
    assert racer.stdin is not None
    racer.stdin.write(line + "\n")
    racer.stdin.flush()


def main() -> int:
    """Prints what was found; 1 where something was lost or overspent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--races", type=int, default=50)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one line")
    asked = parser.parse_args()
    body = races(asked.races) | (kills(asked.kills) if asked.kills else {})
    print(json.dumps(body, indent=None if asked.json else 2))
    bad = sum(body.get(key, 0) for key in ("overspent", "lost", "missing", "blocked"))
    return int(bad > 0 or body["one_winner"] != asked.races)


if __name__ == "__main__":
    sys.exit(main())
