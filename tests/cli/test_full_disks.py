"""Disks that are full, or not to be written: one line, and nothing half-written is left."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpltm.errors import ArtifactError
from dpltm.tickets.files import new_file

PUBLIC = ("--dataset", "digits", "--subset", "0.0:0.5")
PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
BUDGET = ("--epsilon", "2", "--delta", "1e-4")
SMALL = ("--model", "mlp:4", "--rounds", "1", "--iterations", "3", "--batch-size", "32")
TRAIN = ("train", "--dense", *PRIVATE, "--model", "mlp:4", "--batch-size", "64", "--steps", "5", *BUDGET, "--out", "r")
SCHEME = ("--features", "unit", "--protocol", "rappor", "--epsilon", "192", "--label-epsilon", "5")
RUN = """
[run]
epsilon = 3.0
delta = 1e-4
[generate]
dataset = "digits"
subset = "0.0:0.5"
provenance = "public"
model = "mlp:4"
rounds = 1
iterations = 3
batch-size = 32
[select]
score = "additive"
[train]
dataset = "digits"
subset = "0.5:1.0"
steps = 3
"""
SWEEP = """
[recipe]
title = "T"
source = "nobody"
seeds = 1
[train]
dataset = "digits"
subset = "0.5:1.0"
model = "mlp:4"
batch-size = 50
steps = 3
noise-multiplier = 1.0
[[arm]]
name = "dense"
"""
WORK = {
    "train": TRAIN,
    "train of a set": ("train", "pub@1", *PRIVATE, "--steps", "5", *BUDGET, "--out", "r"),
    "generate": ("generate", *PUBLIC, *SMALL, "--provenance", "public", "--out", "r"),
    "generate dp-train": ("generate", *PRIVATE, *SMALL, "--criterion", "dp-train", *BUDGET, "--out", "r"),
    "select": ("select", "pub", *PRIVATE, "--eps1", "0.5", "--score", "additive"),
    "tune": ("tune", *PUBLIC, "--model", "mlp:4", "--for-records", "700", *BUDGET, "--lr", "0.2", "--epochs", "1",
             "--batch-size", "50", "--out", "r.toml"),
    "latent encode": ("latent", "encode", "scheme", "--dataset", "d.npz", "--delta", "1e-4", "--out", "r"),
    "latent train": ("latent", "train", "scheme", "--messages", "m", "--model", "mlp:4", "--epochs", "1", "--batch-size",
                     "99", "--out", "r"),
    "run": ("run", "--config", "run.toml", "--out", "r"),
    "sweep": ("run", "--config", "sweep.toml", "--jobs", "1", "--out", "r"),
    "export": ("tickets", "export", "pub", "--out", "r"),
    "privacy budget": ("privacy", "budget", "r.jsonl", "--epsilon", "1"),
    "privacy curve": ("privacy", "curve", "--noise-multiplier", "2", "--sampling-rate", "0.1", "--steps", "5", "--delta",
                      "1e-5", "--csv", "r.csv"),
}  # fmt: skip
"""Commands that write ``r`` and something."""


def mounted(command: list[str]) -> None:
    done = subprocess.run(["mount", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A disk of 12 MB, in the working folder of the test."""
    if shutil.which("mount") is None or os.geteuid():
        pytest.skip("needs root, and mount")
    place = tmp_path / "disk"
    place.mkdir()
    mounted(["-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)])
    yield place
    monkeypatch.chdir("/")
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def work(disk, cwd, cli, monkeypatch):
    """The disk as working folder, with what the commands take."""
    for name in ("pub", "pri"):
        shutil.copytree(cwd / name, disk / name)
    monkeypatch.chdir(disk)
    digits = load_digits()
    x, y = digits.images.astype(np.uint8), digits.target
    np.savez("p.npz", x_train=x[:300], y_train=y[:300])
    np.savez("d.npz", x_train=x[300:600], y_train=y[300:600])
    assert cli("latent", "scheme", "--public", "p.npz", *SCHEME, "--out", "scheme", "--quiet").code == 0
    assert cli(*WORK["latent encode"][:-1], "m", "--quiet").code == 0
    Path("run.toml").write_text(RUN)
    Path("sweep.toml").write_text(SWEEP)
    return disk


def fill(leave: int = 0) -> None:
    """Takes all of the disk but so many bytes."""
    with Path("filling").open("wb") as stream:
        stream.write(bytes(shutil.disk_usage(".").free - leave))


def read_only(disk: Path) -> None:
    mounted(["-o", "remount,ro", str(disk)])


def one_line(done) -> str:
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done
    return done.err


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("name", WORK)
def test_a_full_disk_is_one_line_and_the_same_command_goes_on_with_room(cli, tree, name):
    fill()
    before = tree()
    done = cli(*WORK[name])
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done
    assert re.search("(cannot (be written|write)|No space left)", done.err)
    made = {path: text for path, text in tree().items() if before.get(path) != text}
    assert not any(path.partition("/")[0] in ("r", "r.toml", "r.csv") for path in made), "nothing half-written"
    Path("filling").unlink()
    assert cli(*WORK[name], "--quiet").code == 0


@pytest.mark.parametrize("name", WORK)
def test_a_folder_that_is_not_to_be_written_costs_nothing(cli, work, tree, name):
    read_only(work)
    before = tree()
    said = one_line(cli(*WORK[name]))
    assert "Read-only file system" in said
    assert tree() == before


def test_a_ledger_that_is_not_to_be_written(cli, disk, tree):
    read_only(disk)
    before = tree()
    said = one_line(cli(*TRAIN, "--ledger", str(disk / "l.jsonl")))
    assert said.startswith(
        f"error: {disk}/l.jsonl: the ledger cannot be written: Read-only file system; nothing was spent"
    )
    assert tree() == before


def test_without_a_place_for_its_cache_features_are_computed(cli, disk, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk / "cache"))
    read_only(disk)
    assert cli(*TRAIN, "--features", "unit:1", "--quiet").code == 0


def test_a_run_that_died_before_it_began_goes_on(cli):
    """Between its folder, and the file in it that says what it is."""
    Path("run.toml").write_text(RUN)
    Path("r").mkdir()
    assert cli(*WORK["run"], "--quiet").code == 0
    assert sorted(path.name for path in Path("r").iterdir()) == ["run", "tickets"]


def test_what_a_full_disk_says_names_the_file(disk):
    said = rf"^{disk}/a: cannot be written: No space left on device; make room"
    with pytest.raises(ArtifactError, match=said), new_file(disk / "a") as staging:
        staging.write_bytes(bytes(2**24))
    assert list(disk.iterdir()) == []
