"""Kills commands at random moments, and has the same command go on: nothing may be lost, or paid for twice.

    python benchmarks/kills.py --kills 100

Every command of ``WORK`` runs once undisturbed. Then it is started, killed by SIGKILL at a random moment, and started again,
until it ends by itself. Its random keys are injected: by its name where it begins, and others where it goes on, so that
equal weights can only come from the checkpoint.
Afterwards weights are compared bit by bit; ledgers must hold each release once;
nothing hidden may be left. Prints JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

CHILD = """
import hashlib, itertools, os, sys, types
from dpltm.privacy import release
from dpltm.randomness import noise
from dpltm.tickets import checkpoint_files
every, *sys.argv[1:] = sys.argv[1:]
folder = checkpoint_files.CheckpointFolder
inner = folder.__enter__
def enter(self):
    inner(self)
    drawn = self.latest is not None and self.latest.tensors  # else the key of an attempt that died is dropped
    name = f"{self._target.parent.name}/{self._target.name} {os.getpid() if drawn else 'first'}"
    count = itertools.count()
    key = lambda *_: hashlib.sha256(f"{name} {next(count)}".encode()).digest()
    noise.fresh_key, release.secrets = key, types.SimpleNamespace(token_bytes=key)
    return self
folder.__enter__ = enter
checkpoint_files.EVERY, checkpoint_files.SHARE = float(every), 0.5
from dpltm.cli import main
main.main()
"""

PUBLIC = ("--dataset", "digits", "--subset", "0.0:0.5")
PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
TICKETS = ("--model", "mlp:16", "--rounds", "2", "--batch-size", "32")
SETUP = (
    ("generate", *PUBLIC, *TICKETS, "--iterations", "20", "--provenance", "public", "--out", "set", "--quiet"),
)  # fmt: skip
WORK: dict[str, tuple[str, ...]] = {
    "train": ("train", "--dense", *PRIVATE, "--model", "mlp:64", "--batch-size", "64", "--steps", "1500", "--epsilon", "2",
              "--delta", "1e-4", "--optimizer", "adam", "--average", "ema", "--out", "r"),
    "generate": ("generate", *PUBLIC, *TICKETS, "--iterations", "1500", "--provenance", "public", "--out", "r"),
    "generate dp-train": ("generate", *PRIVATE, *TICKETS, "--iterations", "1000", "--criterion", "dp-train", "--epsilon",
                          "2", "--delta", "1e-4", "--out", "r"),
    "select": ("select", "set", *PRIVATE, "--eps1", "0.5", "--score", "additive"),
    "sweep": ("run", "--config", "sweep.toml", "--jobs", "1"),
}  # fmt: skip
SWEEP = """
[recipe]
title = "Kills"
source = "nobody"
seeds = 2
[train]
dataset = "digits"
subset = "0.5:1.0"
model = "mlp:16"
batch-size = 50
steps = 400
noise-multiplier = 1.0
[[arm]]
name = "dense"
"""
SHARED = ("set", "sweep.toml", "home")


def start(folder: Path, every: float, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """A command as a process of its own, quiet."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CONFIG_HOME": str(folder / "home")}
    line = (sys.executable, "-c", CHILD, str(every), *command)
    return subprocess.Popen(line, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(folder: Path, every: float, command: tuple[str, ...]) -> float:
    """Runs a command to its end; the seconds that it took."""
    began = time.monotonic()
    process = start(folder, every, command)
    _, said = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: {said.decode()}")
    return time.monotonic() - began


def made(folder: Path) -> dict[str, str]:
    """Digests of the weights and masks that a command wrote."""
    files = [path for path in sorted(folder.rglob("*.safetensors")) if path.is_file()]
    own = [path for path in files if path.relative_to(folder).parts[0] not in SHARED]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in own}


def paid(folder: Path) -> dict[str, Counter[str]]:
    """Kinds of entries, by ledger; a ledger that cannot be read ends the program."""
    counts = {}
    for path in sorted(folder.rglob("*ledger.jsonl")):
        lines = path.read_text(encoding="utf-8").splitlines()[1:]
        counts[str(path.relative_to(folder))] = Counter(json.loads(line)["entry"]["kind"] for line in lines)
    return counts


def hidden(folder: Path) -> list[str]:
    """What is left of attempts that died."""
    return [str(path.relative_to(folder)) for path in folder.rglob(".*")]


def prepare(folder: Path) -> None:
    """What the commands need."""
    (folder / "sweep.toml").write_text(SWEEP)
    for command in SETUP:
        finish(folder, 60.0, command)


def measure(name: str, kills: int, every: float, chance: random.Random, base: Path) -> dict[str, Any]:
    """Kills one command so many times, in as many rounds as that takes.

    Args:
        name: in ``WORK``.
        kills: how many, at least.
        every: seconds between checkpoints.
        chance: decides the moments.
        base: folder that ``prepare`` filled.
    """
    command, done, rounds, faults = WORK[name], 0, 0, list[str]()
    whole = Path(tempfile.mkdtemp(dir=base.parent))
    shutil.copytree(base, whole, dirs_exist_ok=True)
    before = set(hidden(whole))
    seconds = finish(whole, every, command)
    expected, charged, went_on = made(whole), paid(whole), 0
    while done < kills:
        folder = Path(tempfile.mkdtemp(dir=base.parent))
        shutil.copytree(base, folder, dirs_exist_ok=True)
        spent = paid(folder)
        while True:
            went_on += bool(list(folder.rglob("checkpoint.safetensors")))
            process = start(folder, every, command)
            try:
                _, said = process.communicate(timeout=chance.uniform(0.3, 1.0) * seconds if done < kills else 600.0)
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                done, now = done + 1, paid(folder)
                lost = {path: spent[path] - now[path] for path in spent if path in now and spent[path] - now[path]}
                faults += [f"{path} lost {events}" for path, events in lost.items()]
                spent = now
        rounds += 1
        if process.returncode and "exists already" not in said.decode():  # killed in the moment between result and end
            faults.append(f"rc {process.returncode}: {said.decode()}")
        elif name != "select":
            if made(folder) != expected:
                faults.append("other weights than the undisturbed run's")
            if not process.returncode and paid(folder) != charged:
                faults.append(f"charged {paid(folder)}, not {charged}")
        if set(hidden(folder)) - before:
            faults.append(f"left {sorted(set(hidden(folder)) - before)}")
        shutil.rmtree(folder)
    shutil.rmtree(whole)
    return {
        "kills": done,
        "rounds": rounds,
        "went_on_from_a_checkpoint": went_on,
        "seconds": seconds,
        "faults": faults,
    }


def main(arguments: list[str]) -> dict[str, Any]:
    """Kills each command in turn; the answer by command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="of all commands together")
    parser.add_argument("--only", choices=tuple(WORK), action="append", help="one command; may be said several times")
    parser.add_argument("--every", type=float, default=0.3, help="seconds between checkpoints")
    parser.add_argument("--seed", type=int, default=0, help="decides the moments")
    given = parser.parse_args(arguments)
    names, chance = given.only or list(WORK), random.Random(given.seed)
    with tempfile.TemporaryDirectory() as root:
        base = Path(root) / "base"
        base.mkdir()
        prepare(base)
        each = -(-given.kills // len(names))
        return {name: measure(name, each, given.every, chance, base) for name in names}


if __name__ == "__main__":
    found = main(sys.argv[1:])
    print(json.dumps(found, indent=2))
    sys.exit(any(body["faults"] for body in found.values()))
