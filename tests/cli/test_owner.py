"""dpltm latent owner: the file that it writes runs where there is Python and NumPy alone, and sends the same messages."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from child_processes import PATIENCE
from dpltm.cli.main import run
from dpltm.randomness.noise import FastSource

SCHEMES = {
    "drawn": ("--features", "drawings:30", "--epsilon", "2"),
    "drawn-often": ("--features", "drawings:30", "--epsilon", "7"),
    "unit": ("--features", "unit:2", "--epsilon", "4"),
    "bits": (
        *("--features", "drawings:9", "--protocol", "rappor", "--epsilon", "40"),
        *("--label-epsilon", "3", "--format", "1,2"),
    ),
}

WITH_COINS = """
import ssl, sys
assert not [name for name in sys.modules if name.partition(".")[0] in ("dpltm", "numpy")]
sys.path.insert(0, sys.argv[1])
import dpltm.randomness.noise
assert dpltm.__file__.startswith(sys.argv[1])
ssl.RAND_bytes = dpltm.randomness.noise.FastSource(3).random_bytes
from dpltm.cli.owner import main
sys.argv = sys.argv[1:]
main()
"""
"""Runs the archive with coins that are known."""

SEVERAL = """
import json, sys
sys.path.insert(0, sys.argv[1])
from dpltm.tickets.workbench.owner_main import run_owner
print(json.dumps([run_owner(arguments) for arguments in json.loads(sys.argv[2])]))
"""
"""Runs several command lines, and prints what came of each."""


@pytest.fixture(scope="module")
def made(tmp_path_factory, _own_config_home) -> Path:
    """In the place of the usual sets: ``mine.npz``, a scheme and a file for owners of each kind."""
    from sklearn.datasets import load_digits

    folder, digits = tmp_path_factory.mktemp("owner"), load_digits()
    x, y = digits.images.astype(np.uint8), digits.target
    np.savez(folder / "pub.npz", x_train=x[:300], y_train=y[:300])
    np.savez(folder / "mine.npz", x_train=x[700:740], y_train=y[700:740])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, options in SCHEMES.items():
            assert run(["latent", "scheme", "--public", "pub.npz", *options, "--out", name, "--quiet"]) == 0
            assert run(["latent", "owner", name, "--out", f"{name}.pyz", "--quiet"]) == 0
    return folder


@pytest.fixture(scope="module")
def numpy_alone(tmp_path_factory) -> Path:
    """A folder of packages that holds NumPy, and nothing else."""
    folder, where = tmp_path_factory.mktemp("packages"), Path(np.__file__).parent
    for part in (where, where.with_name("numpy.libs")):
        if part.exists():
            (folder / part.name).symlink_to(part)
    return folder


@pytest.fixture
def owner(cwd: Path, numpy_alone: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python without any package but NumPy, nor dpltm."""

    def call(*arguments: str, packages: Path | None = numpy_alone) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment = {**kept, **({} if packages is None else {"PYTHONPATH": str(packages)})}
        done = subprocess.run(
            [sys.executable, "-S", *arguments],
            cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
        assert "Traceback" not in done.stdout + done.stderr
        return done

    return call


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_same_messages_as_the_full_one(cli, owner, events, monkeypatch, scheme):
    """Byte by byte on the same coins, and the ledger of either has the same event, of the same records."""
    options = ("--dataset", "mine.npz", "--json")
    alone = owner("-c", WITH_COINS, f"{scheme}.pyz", *options, "--out", "alone.msg")
    assert (alone.returncode, alone.stderr) == (0, "")
    monkeypatch.setattr(ssl, "RAND_bytes", FastSource(3).random_bytes)
    full = cli("latent", "encode", scheme, *options, "--out", "full.msg").json
    assert Path("alone.msg").read_bytes() == Path("full.msg").read_bytes()
    said = json.loads(alone.stdout)
    assert said.keys() == full.keys()
    for key in set(full) - {"messages", "privacy"}:
        assert said[key] == full[key]
    assert said["privacy"]["notes"] == full["privacy"]["notes"]
    assert said["privacy"]["certified"]["epsilon"] == full["certified"]
    (one,), (other,) = events("alone.msg.ledger.jsonl"), events("full.msg.ledger.jsonl")
    assert {**one, "time": "", "dataset": ""} == {**other, "time": "", "dataset": ""}
    assert one["dataset"]["key_id"] == other["dataset"]["key_id"], "the same key, so that releases are known to add up"


def test_it_runs_as_a_program_and_its_releases_add_up(cli, owner, events):
    first = owner("drawn.pyz", "--dataset", "mine.npz", "--out", "a.msg", "--ledger", "all.jsonl")
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.splitlines()[:3] == [
        f"wrote a.msg: 40 messages of 6 bytes, by scheme {json.loads(Path('drawn/scheme.json').read_text())['id'][:8]}",
        "certified local epsilon of a record = 2 (replace-one, delta = 0)",
        "with all that the ledger holds of these records: 2",
    ]
    dry = owner("drawn.pyz", "--dataset", "mine.npz", "--out", "b.msg", "--ledger", "all.jsonl", "--dry-run")
    assert dry.stdout.splitlines()[2] == "with all that the ledger holds of these records: 4"
    assert not Path("b.msg").exists()
    assert len(events("all.jsonl")) == 1
    again = cli(
        "latent", "encode", "drawn", "--dataset", "mine.npz", "--ledger", "all.jsonl", "--out", "b.msg", "--json"
    )
    assert again.json["privacy"]["certified"]["epsilon"] == pytest.approx(4), "dpltm knows the records again"
    learned = cli("latent", "train", "drawn", "--messages", "a.msg,b.msg", "--out", "r", "--json").json
    assert learned["records"] == 80


def test_coins_are_those_of_the_system(owner):
    sent = []
    for name in ("a.msg", "b.msg"):
        assert owner("drawn.pyz", "--dataset", "mine.npz", "--out", name).returncode == 0
        sent.append(Path(name).read_bytes())
    assert sent[0] != sent[1]


REFUSED = {
    "--out is missing: File to write.": (),
    "unrecognized arguments: --nonsense; --help lists the options": ("--nonsense",),
    "argument --delta: invalid float value: 'x'; --help lists the options": ("--delta", "x"),
    "--out: mine.npz exists already; choose another name or remove it first": ("--out", "mine.npz"),
    "--dataset no.npz: no such file; correct the path": ("--dataset", "no.npz", "--out", "m"),
    "--dataset is missing: name the records to use (dpltm datasets ls lists what is at hand)": ("--out", "m"),
    "--dataset: large has shape (16, 16), and the scheme was made for (8, 8); take records like those": (
        "--dataset",
        "large.npz",
        "--out",
        "m",
    ),
    "--dataset: no file of that name is at hand; give a .npz or .csv file": ("--dataset", "digits", "--out", "m"),
    "--ledger: a budget is set on these records; encode with dpltm latent encode, which can check it": (
        *("--dataset", "mine.npz", "--out", "m", "--ledger", "budget.jsonl"),
    ),
    "--ledger: it holds releases from these records that this file cannot add up; encode with dpltm latent encode": (
        *("--dataset", "theirs.npz", "--out", "m", "--ledger", "other.jsonl"),
    ),
}


def test_what_it_refuses(cli, owner, tree):
    """In one line, with nothing written and nothing spent."""
    x = np.load("mine.npz")["x_train"]
    np.savez("large.npz", x_train=np.kron(x, np.ones((1, 2, 2), np.uint8)), y_train=np.arange(40) % 10)
    assert cli("privacy", "budget", "budget.jsonl", "--dataset", "mine.npz", "--epsilon", "9", "--quiet").code == 0
    np.savez("theirs.npz", x_train=255 - x, y_train=np.arange(40) % 10)
    train = ("train", "--dense", "--dataset", "theirs.npz", "--epsilon", "1", "--delta", "1e-3", "--epochs", "1")
    assert cli(*train, "--ledger", "other.jsonl", "--out", "run", "--quiet").code == 0
    before = tree()
    done = owner("-c", SEVERAL, "drawn.pyz", json.dumps(list(REFUSED.values())))
    assert json.loads(done.stdout) == [[2, f"error: {message}"] for message in REFUSED]
    assert tree() == before


def test_without_numpy(owner):
    done = owner("drawn.pyz", packages=None)
    assert done.returncode == 1
    assert done.stderr == "error: this file needs NumPy; install it with: python -m pip install numpy\n"


def test_help_lists_the_options_of_encode(owner):
    said = owner("drawn.pyz", "--help").stdout
    for flag in ("--dataset", "--out", "--ledger", "--bounds", "--dry-run"):
        assert flag in said
    assert "`" not in said


def test_the_same_scheme_makes_the_same_file(cli):
    """Of sources as they are, and no more than an owner needs."""
    assert cli("latent", "owner", "drawn", "--out", "again.pyz", "--quiet").code == 0
    assert Path("again.pyz").read_bytes() == Path("drawn.pyz").read_bytes()
    names = zipfile.ZipFile("drawn.pyz").namelist()
    assert not [name for name in names if name.endswith((".pyc", "/learning.py", "/accountant.py", "/feature_map.py"))]
    assert Path("drawn.pyz").stat().st_size < 2e6


def test_a_damaged_file_says_so(owner):
    with zipfile.ZipFile("drawn.pyz") as whole, zipfile.ZipFile("changed.pyz", "w") as changed:
        for name in whole.namelist():
            body = whole.read(name)
            changed.writestr(
                name, body.replace(b'"epsilon": 2.0', b'"epsilon": 1.0') if name.endswith(".json") else body
            )
    done = owner("changed.pyz", "--dataset", "mine.npz", "--out", "m")
    assert done.returncode == 2
    assert done.stderr.endswith("scheme.json: the id does not match; it is damaged or was changed\n")


@pytest.mark.parametrize("options", [("--features", "scatter:1"), ("--features", "unit", "--components", "5")])
def test_features_that_take_torch_are_refused(cli, refused, options):
    assert (
        cli("latent", "scheme", "--public", "pub.npz", *options, "--epsilon", "2", "--out", "s", "--quiet").code == 0
    )
    said = refused("latent", "owner", "s", "--out", "s.pyz")
    assert said.startswith("s: its features, ")
    assert said.endswith(
        "the file for owners is made for --features drawings or unit, without --components: agree on such a scheme, or"
        " encode with dpltm latent encode"
    )
