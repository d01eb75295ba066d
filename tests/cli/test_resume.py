"""Interrupted commands, and the same command again: the same bits, one entry, nothing left behind or handed on."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import shutil
import signal
import stat
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from dpltm.privacy import release
from dpltm.randomness import keyed_source
from dpltm.tickets import checkpoint_files
from dpltm.training.descent import NoisyGradients
from interruptions import Killed, ctrl_c, die, often, signals

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
SMALL = ("--dense", *PRIVATE, "--model", "mlp:4", "--batch-size", "64", "--delta", "1e-4", "--out", "r")
TRAIN = ("train", *SMALL, "--steps", "20", "--epsilon", "2", "--optimizer", "momentum", "--average", "poly")
TRAIN = (*TRAIN, "--ledger", "l.jsonl")
ONCE = ("--ledger", "once.jsonl")
ACCOUNTS = {"l.jsonl", "l.key", "once.jsonl", "once.key"}
HELD = Path(".r.checkpoint/checkpoint.safetensors")


@pytest.fixture(autouse=True)
def _interruptible(monkeypatch):
    """A checkpoint after every step; and Ctrl-C interrupts, whatever a shell says of it."""
    often(monkeypatch)
    with signals():
        yield


@pytest.fixture
def keys(monkeypatch):
    """Has the next release draw its key from a seed."""

    def seed(number):
        counter = itertools.count(number * 1000)
        drawn = SimpleNamespace(token_bytes=lambda count: next(counter).to_bytes(count, "little"))
        monkeypatch.setattr(release, "secrets", drawn)
        monkeypatch.setattr(keyed_source, "fresh_key", lambda: next(counter).to_bytes(32, "little"))

    return seed


@pytest.fixture
def stopped(cli, monkeypatch):
    """Runs a command that ends in the middle of its nth step, by whatever ``how`` does."""

    def run(how, number, *command):
        inner, left = NoisyGradients.backward, itertools.count(1)

        def backward(self):
            if next(left) == number:
                how()
            inner(self)

        with monkeypatch.context() as patch:
            patch.setattr(NoisyGradients, "backward", backward)
            return cli(*command)

    return run


@pytest.fixture
def undisturbed(cli, keys):
    """What a command comes to that nothing stops: its answer, and the files of its run."""

    def run(*command):
        keys(1)
        body = cli(*command, *ONCE, "--json").json  # in an account of its own: the same key cannot pay twice in one
        files = {path.name: path.read_bytes() for path in Path("r").iterdir()}
        shutil.rmtree("r")
        return body, files

    return run


def same_files(files):
    return {name for name, data in files.items() if (Path("r") / name).read_bytes() == data}


OPTIONS = (
    (),
    ("--noise", "fast"),
    ("--eval-private", "0.5", "--stop-at", "0.99"),
    ("--eval-private", "0.5"),
    ("--features", "unit:1", "--centre", "0.2", "--model", "mlp", "--audit", "50"),
    ("--microbatch", "4", "--audit", "20"),
    *([("--device", "cuda", "--audit", "20")] if torch.cuda.is_available() else []),
)


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_the_same_command_goes_on_to_the_same_bits_and_pays_nothing(
    cli, keys, stopped, undisturbed, entries, options, tree
):
    before = tree()
    body, files = undisturbed(*TRAIN, *options)
    keys(1)
    with pytest.raises(Killed):
        stopped(die, 3, *TRAIN, *options)
    keys(2)  # other keys than before: what goes on has them from the checkpoint
    with pytest.raises(Killed):
        stopped(die, 6, *TRAIN, *options)
    (paid,) = entries("l.jsonl")
    last = cli(*TRAIN, *options, "--json").json
    observed = {"audit.safetensors"} & files.keys()
    assert {"model.safetensors", "metrics.jsonl", "mask.safetensors", *observed} <= same_files(files)
    assert bool(observed) == ("--audit" in options)
    assert last["privacy"] == body["privacy"]
    assert entries("l.jsonl") == [paid]
    assert json.loads(Path("r/config.json").read_text())["entry"] == paid["id"], "of the first attempt"
    left = {name for name in tree() if not name.startswith("r")}
    assert left == set(before) | ACCOUNTS, "no checkpoint, nothing hidden"


def test_resume_goes_on_and_never_begins(cli, keys, stopped, undisturbed, refused, entries):
    """As the same command does; but where nothing was begun, it is refused before anything is spent."""
    _, files = undisturbed(*TRAIN)
    assert refused(*TRAIN, "--resume") == (
        "--resume: r was not begun, so there is nothing to go on from; leave it out"
    )
    assert refused(*TRAIN, "--resume", "--fresh") == (
        "--resume, --fresh: one goes on, the other begins again; give one of them"
    )
    keys(1)
    with pytest.raises(Killed):
        stopped(die, 3, *TRAIN)
    keys(2)
    assert cli(*TRAIN, "--resume", "--quiet").code == 0
    assert "model.safetensors" in same_files(files)
    assert len(entries("l.jsonl")) == 1
    assert refused(*TRAIN, "--resume").startswith("--out: r exists already")


def test_dying_before_the_first_step_costs_nothing_more(cli, keys, stopped, undisturbed, entries):
    """The event is in the ledger, and its keys are on disk."""
    _, files = undisturbed(*TRAIN)
    keys(1)
    with pytest.raises(Killed):
        stopped(die, 1, *TRAIN)
    assert len(entries("l.jsonl")) == 1
    keys(2)
    assert cli(*TRAIN, "--quiet").code == 0
    assert "model.safetensors" in same_files(files)
    assert len(entries("l.jsonl")) == 1


def test_dying_before_it_is_paid_for_begins_anew(cli, keys, undisturbed, entries, monkeypatch):
    _, files = undisturbed(*TRAIN)
    keys(2)
    with monkeypatch.context() as patch:
        patch.setattr("dpltm.privacy.ledger.Ledger.enter", lambda *_: die())
        with pytest.raises(Killed):
            cli(*TRAIN)
    assert HELD.exists()
    assert not Path("l.jsonl").exists()
    done = cli(*TRAIN, "--resume")
    assert (done.code, done.err) == (
        2, "error: --resume: what was begun at r kept no checkpoint; leave --resume out to begin again\n"
    )  # fmt: skip
    assert not Path("l.jsonl").exists()
    keys(1)
    assert cli(*TRAIN, "--quiet").code == 0
    assert "model.safetensors" in same_files(files), "with keys of its own"
    assert len(entries("l.jsonl")) == 1


def test_ctrl_c_keeps_a_checkpoint_and_says_how_to_go_on(cli, keys, stopped, undisturbed, monkeypatch):
    monkeypatch.setattr(checkpoint_files, "EVERY", 1e9)
    _, files = undisturbed(*TRAIN)
    keys(1)
    done = stopped(ctrl_c, 4, *TRAIN)
    assert (done.code, done.out) == (130, "")
    assert done.err == (
        "error: interrupted; the same command goes on from step 4 of 20, kept in .r.checkpoint (for its owner alone); what"
        " the ledger entered stays entered\n"
    )
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert cli(*TRAIN, "--quiet").code == 0
    assert "model.safetensors" in same_files(files)


def test_a_second_ctrl_c_ends_it_at_once(stopped, monkeypatch):
    """The first one waits for the end of a step."""
    for name in ("EVERY", "SOON"):  # however slow the machine is
        monkeypatch.setattr(checkpoint_files, name, 1e9)
    done = stopped(lambda: [ctrl_c(), ctrl_c()], 4, *TRAIN)
    assert done.code == 130
    assert "goes on from before its first draw" in done.err, "of the last checkpoint"


def test_only_its_owner_reads_a_checkpoint_and_nothing_else_holds_its_keys(cli, stopped, tree):
    os.umask(before := os.umask(0))
    done = stopped(ctrl_c, 4, *TRAIN)
    assert done.code == 130
    os.umask(before)
    assert stat.S_IMODE(HELD.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(HELD.stat().st_mode) == 0o600
    text = HELD.read_bytes()
    secrets = {found.encode() for found in re.findall(r"aes-256-ctr:([0-9a-f]{64})", text.decode("latin-1"))}
    assert len(secrets) == 3
    home = Path(os.environ["XDG_CONFIG_HOME"])
    held = HELD.open("rb")  # what overwrites it writes here
    assert cli(*TRAIN, "--quiet").code == 0
    after = [*tree().values(), *(path.read_bytes() for path in home.rglob("*") if path.is_file())]
    assert not any(key in (data or b"") for data in after for key in secrets)
    assert not any(key in held.read() for key in secrets), "overwritten before it was removed"
    held.close()
    assert not HELD.parent.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--lr", "0.5"), "--lr was not given and is 0.5"),
        (("--epsilon", "3", "--steps", "9"), "--epsilon was 2.0 and is 3.0, --steps was 20 and is 9"),
        (("--subset", "0.4:1.0"), "--subset was '0.5:1.0' and is '0.4:1.0'"),
        (("--ledger", "x.jsonl"), "--ledger was 'l.jsonl' and is 'x.jsonl'"),
    ],
)
def test_other_options_are_refused_by_name(stopped, refused, options, message):
    stopped(ctrl_c, 4, *TRAIN)
    assert refused(*TRAIN, *options) == (
        f"checkpoint: an interrupted attempt was begun otherwise: {message}; repeat the same command to go on, choose"
        " another --out, or say --fresh to begin again (what was spent stays spent)"
    )


def test_other_records_under_the_same_name_are_refused(cli, stopped, refused):
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 9, (60, 4), dtype=np.uint8), generator.integers(0, 2, 60)
    np.savez("d.npz", x_train=x, y_train=y)
    command = (
        "train",
        "--dense",
        "--dataset",
        "d.npz",
        "--model",
        "mlp:4",
        "--epsilon",
        "2",
        "--steps",
        "9",
        "--out",
        "r",
    )
    command = (*command, "--delta", "1e-3")
    assert stopped(ctrl_c, 4, *command).code == 130
    x[0] += 1
    np.savez("d.npz", x_train=x, y_train=y)
    assert refused(*command).startswith("checkpoint: an interrupted attempt was begun ")
    x[0] -= 1
    np.savez("d.npz", x_train=x, y_train=y)
    assert cli(*command, "--quiet").code == 0


def another_label(x, y):
    return x, np.r_[1 - y[:1], y[1:]]


def another_order(x, y):
    return np.r_[x[1:], x[:1]], np.r_[y[1:], y[:1]]


BITS = ("--dataset", "d.npz", "--bounds", "0,1", "--classes", "2", "--delta", "1e-3", "--out", "r")
ON_BITS = {
    "train": ("train", "--dense", "--model", "mlp:4", "--epsilon", "2", "--steps", "9"),
    "tickets": (
        "generate",
        "--criterion",
        "dp-train",
        "--model",
        "mlp:4",
        "--epsilon",
        "2",
        "--iterations",
        "9",
        "--rounds",
        "1",
    ),
    "search": (
        "tune",
        "--private",
        "--model",
        "mlp:4",
        "--epsilon",
        "9",
        "--epochs",
        "1",
        "--lr",
        "0.1,1",
        "--tries",
        "20",
    ),
}


@pytest.mark.parametrize("change", [another_label, another_order])
@pytest.mark.parametrize("work", ON_BITS)
def test_the_same_rows_with_another_label_or_in_another_order_are_refused(
    cli, keys, stopped_at, refused, work, change
):
    """The noise would be the same, so that the difference of two results told the label."""
    keys(1)
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 2, (200, 12), dtype=np.uint8), generator.integers(0, 2, 200)
    np.savez("d.npz", x_train=x, y_train=y)
    command = (*ON_BITS[work], *BITS)
    assert stopped_at(ctrl_c, 2, *command).code == 130
    other = change(x, y)
    np.savez("d.npz", x_train=other[0], y_train=other[1])
    assert refused(*command).startswith("checkpoint: an interrupted attempt was begun ")
    np.savez("d.npz", x_train=x.copy(), y_train=y.copy())
    assert cli(*command, "--quiet").code == 0


def test_another_winner_than_before_is_refused(cli, stopped, refused):
    draw = ("select", "pub", *PRIVATE, "--score", "additive", "--eps1", "0.01", "--quiet")
    assert cli(*draw).code == 0
    drawn = json.loads(Path("pub/winner.json").read_text())["round"]
    command = ("train", "pub", *PRIVATE, "--epsilon", "9", "--delta", "1e-4", "--steps", "9", "--out", "r")
    assert stopped(ctrl_c, 4, *command).code == 130
    for _ in range(100):  # of two tickets, each about as likely
        if json.loads(Path("pub/winner.json").read_text())["round"] != drawn:
            break
        assert cli(*draw).code == 0
    assert f"`round` was {drawn} and is {3 - drawn}".replace("`round`", "--round") in refused(*command)


def test_without_what_pays_for_it_nothing_goes_on(stopped, refused):
    stopped(ctrl_c, 4, *TRAIN)
    Path("l.jsonl").rename("away")
    assert refused(*TRAIN).startswith("l.jsonl: ")


def test_fresh_begins_again_and_pays_again(cli, stopped, entries):
    noisy = ("train", *SMALL, "--steps", "20", "--noise-multiplier", "3", "--ledger", "all.jsonl")
    once = cli(*noisy, "--dry-run", "--json").json["privacy"]["certified"]["epsilon"]
    assert stopped(ctrl_c, 4, *noisy).code == 130
    planned = cli(*noisy, "--fresh", "--dry-run", "--json").json["privacy"]["certified"]["epsilon"]
    assert planned > once
    assert HELD.exists()
    body = cli(*noisy, "--fresh", "--json").json
    assert body["privacy"]["certified"]["epsilon"] == planned
    assert len(entries("all.jsonl")) == 2
    assert not HELD.exists()


def test_a_ledger_beside_the_run_counts_though_its_checkpoint_is_gone(cli, stopped, refused):
    """It said the same epsilon once more before."""
    stopped(ctrl_c, 4, *TRAIN)
    shutil.rmtree(".r.checkpoint")
    body = cli(*TRAIN, "--dry-run", "--json")
    assert body.code == 1 or body.json["noise_multiplier"] > 50, "a crumb of the budget is left, or nothing"
    refused(*TRAIN, "--epsilon", "1", code=1)


def test_two_processes_never_go_on_from_one_checkpoint(cli, stopped, refused):
    stopped(ctrl_c, 4, *TRAIN)
    descriptor = os.open(".r.checkpoint", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert refused(*TRAIN) == "--out: another process is at work on r; wait for it, or choose another name"
    os.close(descriptor)
    assert cli(*TRAIN, "--quiet").code == 0


def test_two_processes_never_begin_in_one_place(cli, monkeypatch):
    """The second comes between the look and the first checkpoint."""
    inner = checkpoint_files.CheckpointFolder._begin

    def begin(self):
        Path(".r.checkpoint").mkdir(exist_ok=True)
        inner(self)

    monkeypatch.setattr(checkpoint_files.CheckpointFolder, "_begin", begin)
    done = cli(*TRAIN)
    assert (done.code, done.err) == (
        2,
        "error: --out: another process is at work on r; wait for it, or choose another name\n",
    )
    assert not Path("l.jsonl").exists()


def test_a_disk_that_fills_up_later_keeps_the_last_checkpoint(cli, keys, undisturbed, stopped, monkeypatch):
    _, files = undisturbed(*TRAIN)
    keys(1)
    inner, written = checkpoint_files.CheckpointFolder._write, itertools.count()

    def write(self, checkpoint):
        if next(written) > 2:
            raise checkpoint_files.ArtifactError("disk full")
        inner(self, checkpoint)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files.CheckpointFolder, "_write", write)
        done = stopped(ctrl_c, 6, *TRAIN)
    assert "goes on from step 2 of 20" in done.err
    assert cli(*TRAIN, "--quiet").code == 0
    assert "model.safetensors" in same_files(files)


def test_what_died_over_tidying_up_is_tidied_up(cli, stopped):
    stopped(ctrl_c, 4, *TRAIN)
    shutil.copytree(".r.checkpoint", "kept")
    assert cli(*TRAIN, "--quiet").code == 0
    shutil.copytree("kept", ".r.checkpoint")
    done = cli(*TRAIN)
    assert (done.code, done.err) == (2, "error: --out: r exists already; choose another name or remove it first\n")
    assert not HELD.parent.exists()


def test_damaged_checkpoints_are_refused(stopped, refused):
    stopped(ctrl_c, 4, *TRAIN)
    whole = HELD.read_bytes()
    for place in (0, 9, 200, 1000, len(whole) // 2, len(whole) - 1):
        data = bytearray(whole)
        data[place] ^= 1
        HELD.write_bytes(data)
        assert refused(*TRAIN).startswith(".r.checkpoint/checkpoint.safetensors: "), place
    for data in (b"", whole[:7], whole[:-1]):
        HELD.write_bytes(data)
        assert refused(*TRAIN).startswith(".r.checkpoint/checkpoint.safetensors: ")
    HELD.unlink()
    HELD.symlink_to("elsewhere")
    assert "which is not followed" in refused(*TRAIN)


# --- tickets ---

MAKE = (
    "generate",
    *PRIVATE,
    "--model",
    "mlp:6",
    "--rounds",
    "3",
    "--iterations",
    "60",
    "--batch-size",
    "32",
    "--out",
    "r",
    "--ledger",
    "l.jsonl",
)
KINDS = {
    "public": ("--provenance", "public", "--rewind", "30"),
    "private": ("--provenance", "private"),
    "dp-train": ("--criterion", "dp-train", "--epsilon", "3", "--delta", "1e-4", "--rewind", "30"),
    "dp-synthetic": ("--criterion", "dp-synthetic", "--epsilon", "3", "--delta", "1e-4"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_tickets_go_on_to_the_same_bits(cli, keys, stopped_at, entries, tree, kind):
    command, before = (*MAKE, *KINDS[kind]), tree()
    keys(1)
    body = cli(*command, *ONCE, "--json").json
    shutil.rmtree("r")
    Path("r.private.json").unlink(missing_ok=True)
    keys(1)
    for number in (2, 3, 4):
        with pytest.raises(Killed):
            stopped_at(die, number, *command)
        keys(2)  # what goes on has them from the checkpoint
    done = stopped_at(ctrl_c, 2, *command)
    assert (done.code, done.err.partition(" goes on from ")[0]) == (130, "error: interrupted; the same command")
    again = cli(*command, "--json").json
    assert (again["id"], again["tickets"]) == (body["id"], body["tickets"])
    assert again["privacy"] == body["privacy"]
    assert len(entries("l.jsonl")) == 1
    left = {name for name in tree() if not name.startswith(("r/", "r.private"))}
    assert left - {"r"} == set(before) | ACCOUNTS, "nothing hidden"


def test_other_settings_of_tickets_are_refused_by_name(stopped_at, refused):
    command = (*MAKE, *KINDS["private"])
    stopped_at(ctrl_c, 2, *command)
    assert stat.S_IMODE(HELD.parent.stat().st_mode) == 0o700, "what it holds has no guarantee"
    for options, said in (
        (("--rounds", "2"), "--rounds was 3 and is 2"),
        (("--lr", "0.5"), "--lr was not given and is 0.5"),
    ):
        assert f"begun otherwise: {said}; repeat the same" in refused(*command, *options)


# --- what costs nothing ---


def test_a_search_does_not_repeat_what_ended(cli, keys, stopped_at, tree):
    options = ("--for-records", "700", "--epsilon", "2", "--delta", "1e-4", "--epochs", "1", "--batch-size", "100")
    command = (
        "tune",
        "pub",
        "--dataset",
        "digits",
        "--subset",
        "0.0:0.5",
        *options,
        "--lr",
        "0.5,1",
        "--repeats",
        "2",
    )
    command = (*command, "--rounds", "1,2", "--out", "best.toml")
    keys(1)
    body = cli(*command, "--json").json
    best = Path("best.toml").read_text().splitlines()
    Path("best.toml").unlink()
    before = tree()
    keys(1)
    with pytest.raises(Killed):
        stopped_at(die, 12, *command)  # seven steps a training
    keys(2)
    done = stopped_at(ctrl_c, 10, *command)
    assert "goes on from training 3 of 8, kept in .best.toml.checkpoint" in done.err
    again = cli(*command, "--json").json
    assert again == body
    assert Path("best.toml").read_text().splitlines()[:-1] == best[:-1], "all but the random name of the records"
    assert set(tree()) - set(before) == {"best.toml"}


@pytest.fixture
def sent(cli):
    """A scheme, and messages of digits."""
    digits = load_digits()
    x, y = digits.images.astype(np.uint8), digits.target
    np.savez("a.npz", x_train=x[:400], y_train=y[:400])
    np.savez("b.npz", x_train=x[400:], y_train=y[400:])
    said = (
        "--public",
        "a.npz",
        "--features",
        "unit",
        "--protocol",
        "rappor",
        "--epsilon",
        "192",
        "--label-epsilon",
        "5",
    )
    assert cli("latent", "scheme", *said, "--out", "s", "--quiet").code == 0
    assert cli("latent", "encode", "s", "--dataset", "b.npz", "--delta", "1e-4", "--out", "m", "--quiet").code == 0


@pytest.mark.usefixtures("sent")
def test_training_on_messages_goes_on_to_the_same_bits(cli, stopped_at, tree):
    command = ("latent", "train", "s", "--messages", "m", "--model", "mlp:4", "--epochs", "20", "--batch-size", "99")
    command = (*command, "--dropout", "0.2", "--rounds", "1", "--out", "r")
    assert cli(*command, "--quiet").code == 0
    whole = Path("r/model.safetensors").read_bytes()
    shutil.rmtree("r")
    before = tree()
    with pytest.raises(Killed):
        stopped_at(die, 3, *command)
    assert stopped_at(ctrl_c, 5, *command).code == 130
    assert cli(*command, "--quiet").code == 0
    assert Path("r/model.safetensors").read_bytes() == whole
    assert {name.partition("/")[0] for name in set(tree()) - set(before)} == {"r"}
