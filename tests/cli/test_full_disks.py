"""Disks that are full, or not to be written, and files that are damaged or hostile: one line, and nothing half-written."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from commands import LEDGER, PRIVATE, PUBLIC
from programs import program
from recipes import DENSE, HEAD, RUN

SMALL = "--model mlp:4 --rounds 1 --iterations 3 --batch-size 32"
TRAIN = f"train --dense {PRIVATE} --model mlp:4 --batch-size 64 --steps 5 --epsilon 2 --delta 1e-4 --out r"
SCHEME = "latent scheme --public p.npz --features unit --protocol rappor --epsilon 192 --label-epsilon 5 --out scheme"
WORK = {
    "train": TRAIN,
    "generate": f"generate {PRIVATE} {SMALL} --criterion dp-train --epsilon 2 --delta 1e-4 --out r",
    "select": f"select pub {PRIVATE} --eps1 0.5 --score additive",
    "tune": f"tune {PUBLIC} --model mlp:4 --for-records 700 --epsilon 2 --delta 1e-4 --lr 0.2 --epochs 1 --batch-size 50"
    " --out r.toml",
    "latent encode": "latent encode scheme --dataset d.npz --delta 1e-4 --out r",
    "latent train": "latent train scheme --messages m --model mlp:4 --epochs 1 --batch-size 99 --out r",
    "run": "run --config run.toml --out r",
    "sweep": "run --config sweep.toml --jobs 1 --out r",
    "export": "tickets export pub --out r",
    "predict": "predict done --input x.npz --out r.csv",
    "privacy budget": "privacy budget r.jsonl --epsilon 1",
}
"""Commands that write ``r`` and something."""


def mounted(*command: str) -> None:
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
    mounted("-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place))
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
    np.savez("x.npz", x=x[:9])
    for command in (
        SCHEME,
        WORK["latent encode"].replace("--out r", "--out m"),
        TRAIN.replace("--out r", "--out done"),
    ):
        assert cli(command, "--quiet").code == 0
    Path(LEDGER).unlink()
    shutil.rmtree(os.environ["XDG_CONFIG_HOME"], ignore_errors=True)
    Path("run.toml").write_text(RUN)
    Path("sweep.toml").write_text(HEAD.replace("seeds = 2", "seeds = 1") + DENSE)
    return disk


@pytest.mark.one_of(6)
@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("name", WORK)
def test_a_full_disk_is_one_line_and_the_same_command_goes_on_with_room(cli, tree, name):
    with Path("filling").open("wb") as stream:
        stream.write(bytes(shutil.disk_usage(".").free))
    before = tree()
    done = cli(WORK[name])
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done
    assert re.search("(cannot (be written|write)|No space left)", done.err)
    made = {path for path, text in tree().items() if before.get(path) != text}
    assert not any(path.partition("/")[0] in ("r", "r.toml", "r.csv") for path in made), "nothing half-written"
    Path("filling").unlink()
    assert cli(WORK[name], "--quiet").code == 0


@pytest.mark.parametrize("name", ["train", "select", "run", "sweep", "privacy budget"])
def test_a_folder_that_is_not_to_be_written_costs_nothing(cli, work, tree, monkeypatch, name):
    monkeypatch.setenv("XDG_CACHE_HOME", str(work / "cache"))  # without a place for its cache features are computed
    mounted("-o", "remount,ro", str(work))
    before = tree()
    done = cli(WORK[name], *(["--features unit:1"] if name == "train" else []))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done
    assert "Read-only file system" in done.err
    assert tree() == before


# --- ``benchmarks/fuzz.py``, which tries many more; and what it has found ---

fuzz = program("benchmarks/fuzz.py")
ONE_STEP = f"train --dense {PRIVATE} --model mlp:4 --steps 1 --noise-multiplier 9"


def test_one_line_or_an_answer_and_nothing_half_written(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, os.environ[name])
    monkeypatch.delenv("DPLTM_DEBUG", raising=False)
    found = fuzz.main(["--inputs", str(4 * len(fuzz.KINDS)), "--jobs", "1", "--seed", "1"])
    assert found["problems"] == []
    assert found["inputs"] == 4 * len(fuzz.KINDS)
    assert found["codes"]["2"] > found["inputs"] / 3  # damage that nobody notices would prove nothing


def test_a_message_holds_nothing_that_a_terminal_acts_on(refused, cwd):
    name = "a\x1b[31m\u202eb.csv"
    (cwd / name).write_text("x,y\n1,\x072\n")
    said = refused("datasets", "info", name, "--label", "y")
    assert said.isprintable()
    assert "a\\x1b[31m\\u202eb.csv" in said


@pytest.mark.parametrize("name", ["own.jsonl", "own.key", "config/dpltm/ledgers.jsonl"])
def test_nobody_waits_for_a_pipe_beside_the_ledger(cli, cwd, monkeypatch, name):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(cwd / "config"))
    assert cli(f"{ONE_STEP} --ledger own.jsonl --out one").code == 0
    (cwd / name).unlink()
    os.mkfifo(cwd / name)
    done = cli(f"{ONE_STEP} --ledger own.jsonl --out two")
    assert done.code == 2
    assert "is not a plain file" in done.err
    assert not Path("two").exists()


def test_nobody_waits_for_a_pipe_among_cached_features(cli, cwd, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cwd / "cache"))
    command = f"{ONE_STEP} --model mlp --features scatter:1,2"
    assert cli(f"{command} --out one").code == 0
    files = list(Path("cache").rglob("*.npy"))
    assert files
    for path in files:
        path.unlink()
        os.mkfifo(path)
    assert cli(f"{command} --out two").code == 0
    assert all(path.is_file() for path in files)  # computed anew
