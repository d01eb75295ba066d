"""Interrupted commands, and the same command again: the same bits, one entry, nothing left behind or handed on."""

import fcntl
import json
import os
import re
import shutil
import signal
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import LEDGER, PRIVATE, certified
from dpltm.privacy.mechanisms import NoisySgd, Selection
from dpltm.tickets import checkpoint_files
from dpltm.tickets.checkpoint_files import CheckpointFolder
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.workbench import run
from dpltm.tickets.workbench.sweep import STAGES, TaskRunner
from dpltm.training import least_squares
from dpltm.training.descent import NoisyGradients
from interruptions import Killed, ctrl_c, die, ending, interrupt, often, signals
from recipes import DENSE, DRAWN, HEAD, RUN, SETS

SMALL = f"train --dense {PRIVATE} --model mlp:4 --batch-size 64 --delta 1e-4 --out r"
TRAIN = f"{SMALL} --steps 20 --epsilon 2 --optimizer momentum --average poly --ledger l.jsonl"
SQUARES = "train --dense --head least-squares --dataset digits --features unit --epsilon 8 --delta 1e-4 --out r"
ACCOUNTS = {"l.jsonl", "l.key", "once.jsonl", "once.key"}


HELD = Path(".r.checkpoint/checkpoint.safetensors")


@pytest.fixture(autouse=True)
def _interruptible(monkeypatch):
    """A checkpoint after every step; and Ctrl-C interrupts, whatever a shell says of it."""
    often(monkeypatch)
    with signals():
        yield


@pytest.fixture
def stopped(cli):
    """Runs a command that ends in the middle of its nth step, by whatever ``how`` does."""

    def run(how, number, *command):
        with ending(NoisyGradients, "backward", number, how):
            return cli(*command)

    return run


@pytest.fixture
def undisturbed(cli, keys):
    """What a command comes to that nothing stops: its answer, and the files of its run."""

    def run(*command):
        keys(1)
        body = cli(*command, "--ledger once.jsonl --json").json  # the same key cannot pay twice in one account
        files = {path.name: path.read_bytes() for path in Path("r").iterdir()}
        shutil.rmtree("r")
        return body, files

    return run


def same_files(files):
    return {name for name, data in files.items() if (Path("r") / name).read_bytes() == data}


OPTIONS = {
    "plain": "--noise fast",
    "evaluations": "--eval-private 0.5",
    "centre": "--features unit:1 --centre 0.2 --model mlp --audit 50",
    "microbatches": "--microbatch 4 --audit 20",
    "allocation": "--sampling allocation:3 --audit 20",
    "banded noise": "--noise banded:4 --features unit:1 --centre 0.2 --model mlp",
    **({"cuda": "--device cuda --audit 20"} if torch.cuda.is_available() else {}),
}


@pytest.mark.one_of(4)
@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_command_goes_on_to_the_same_bits_for_nothing(cli, keys, stopped, undisturbed, entries, tree, name):
    command, before = f"{TRAIN} {OPTIONS[name]}", tree()
    if name == "allocation":
        command = command.replace("--batch-size 64 ", "")  # which follows from the steps
    body, files = undisturbed(command)
    keys(1)
    with pytest.raises(Killed):
        stopped(die, 3, command)
    keys(2)  # other keys than before: what goes on has them from the checkpoint
    with pytest.raises(Killed):
        stopped(die, 6, command)
    (paid,) = entries("l.jsonl")
    last = cli(f"{command} --json").json
    observed = {"audit.safetensors"} & files.keys()
    assert {"model.safetensors", "metrics.jsonl", "mask.safetensors", *observed} <= same_files(files)
    assert bool(observed) == ("--audit" in command)
    assert last["privacy"] == body["privacy"]
    assert entries("l.jsonl") == [paid]
    assert json.loads(Path("r/config.json").read_text())["entry"] == paid["id"], "of the first attempt"
    left = {name for name in tree() if not name.startswith("r")}
    assert left == {*before, *ACCOUNTS}, "no checkpoint, nothing hidden"


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (least_squares, "release_second_moments", 1),
        (NoisyGradients, "backward", 1),
        (NoisyGradients, "backward", 9),
        (least_squares, "noisy_sum", 3),
        (least_squares, "noisy_sum", 4),
    ],
    ids=["after the mean", "after the second moments", "in the middle", "before pairs", "before chances"],
)
def test_least_squares_go_on_to_the_same_bits_and_pay_once(cli, cwd, keys, undisturbed, entries, owner, name, call):
    command = f"{SQUARES} --eval-private 1 --ledger l.jsonl"
    if name == "noisy_sum":
        draw = np.random.default_rng(0).random((200, 4)).round(3)
        rows = np.column_stack([draw, draw[:, 0] > 0.5])
        np.savetxt(cwd / "t.csv", rows, delimiter=",", header="a,b,c,d,y", comments="")
        facts = "--label y --bounds 0,1 --classes 2 --records 200 --noise-multiplier 0.1"
        command = f"train --dense --dataset t.csv {facts} --eval-private 1 --delta 1e-4 --out r --ledger l.jsonl"
    _, files = undisturbed(command)
    keys(1)
    with ending(owner, name, call, die), pytest.raises(Killed):
        cli(command)
    keys(2)
    if name == "noisy_sum":  # a public number that no rate shows would make another query of the same noise
        assert cli(command.replace("--records 200", "--records 300")).code == 2
    assert cli(command).code == 0
    assert {"model.safetensors", "features.safetensors", "metrics.jsonl"} <= same_files(files)
    assert len(entries("l.jsonl")) == len(entries("once.jsonl")) == 1


def test_resume_goes_on_and_never_begins(cli, keys, stopped, undisturbed, refused, entries):
    """As the same command does; but where nothing was begun, it is refused before anything is spent."""
    _, files = undisturbed(TRAIN)
    assert refused(f"{TRAIN} --resume").startswith("--resume: r was not begun")
    assert refused(f"{TRAIN} --resume --fresh").startswith("--resume, --fresh: ")
    keys(1)
    with pytest.raises(Killed):
        stopped(die, 1, TRAIN)  # the entry is in the ledger, and its keys are on disk
    assert len(entries("l.jsonl")) == 1
    keys(2)
    assert cli(f"{TRAIN} --resume").code == 0
    assert "model.safetensors" in same_files(files)
    assert len(entries("l.jsonl")) == 1
    assert refused(f"{TRAIN} --resume").startswith("--out: r exists already")


def test_ctrl_c_keeps_a_checkpoint_and_says_how_to_go_on(cli, keys, stopped, undisturbed, monkeypatch):
    monkeypatch.setattr(checkpoint_files, "EVERY", 1e9)
    _, files = undisturbed(TRAIN)
    keys(1)
    done = stopped(ctrl_c, 4, TRAIN)
    assert (done.code, done.out) == (130, "")
    assert done.err == (
        "error: interrupted; the same command goes on from step 4 of 20, kept in .r.checkpoint (for its owner alone); what"
        " the ledger entered stays entered\n"
    )
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert cli(TRAIN).code == 0
    assert "model.safetensors" in same_files(files)


def test_only_its_owner_reads_a_checkpoint_and_nothing_else_holds_its_keys(cli, stopped, tree):
    os.umask(before := os.umask(0))
    assert stopped(ctrl_c, 4, TRAIN).code == 130
    os.umask(before)
    assert stat.S_IMODE(HELD.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(HELD.stat().st_mode) == 0o600
    text = HELD.read_bytes()
    secrets = {found.encode() for found in re.findall(r"aes-256-ctr:([0-9a-f]{64})", text.decode("latin-1"))}
    assert len(secrets) == 3
    home = Path(os.environ["XDG_CONFIG_HOME"])
    with HELD.open("rb") as held:  # what overwrites it writes here
        assert cli(TRAIN).code == 0
        after = [*tree().values(), *(path.read_bytes() for path in home.rglob("*") if path.is_file())]
        assert not any(key in (data or b"") for data in after for key in secrets)
        assert not any(key in held.read() for key in secrets), "overwritten before it was removed"
    assert not HELD.parent.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--epsilon 3 --steps 9", "--epsilon was 2.0 and is 3.0, --steps was 20 and is 9"),
        ("--subset 0.4:1.0", "--subset was '0.5:1.0' and is '0.4:1.0'"),
        ("--ledger x.jsonl", "--ledger was 'l.jsonl' and is 'x.jsonl'"),
    ],
)
def test_other_options_are_refused_by_name(stopped, refused, options, said):
    stopped(ctrl_c, 4, TRAIN)
    begun = "checkpoint: an interrupted attempt was begun otherwise: "
    assert refused(f"{TRAIN} {options}").startswith(f"{begun}{said}; repeat the same command")


ON_BITS = {
    "train": "train --dense --model mlp:4 --epsilon 2 --steps 9",
    "tickets": "generate --criterion dp-train --model mlp:4 --epsilon 2 --iterations 9 --rounds 1",
}
CHANGES = {
    "value": lambda x, y: (np.r_[1 - x[:1], x[1:]], y),
    "label": lambda x, y: (x, np.r_[1 - y[:1], y[1:]]),
    "order": lambda x, y: (np.r_[x[1:], x[:1]], np.r_[y[1:], y[:1]]),
}


@pytest.mark.one_of(3)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("work", ON_BITS)
def test_other_records_under_the_same_name_are_refused(cli, keys, stopped_at, refused, work, change):
    """The noise would be the same, so that the difference of two results told of the record."""
    keys(1)
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 2, (200, 12), dtype=np.uint8), generator.integers(0, 2, 200)
    np.savez("d.npz", x_train=x, y_train=y)
    command = f"{ON_BITS[work]} --dataset d.npz --bounds 0,1 --classes 2 --delta 1e-3 --out r"
    assert stopped_at(ctrl_c, 2, command).code == 130
    other = CHANGES[change](x, y)
    np.savez("d.npz", x_train=other[0], y_train=other[1])
    assert refused(command).startswith("checkpoint: an interrupted attempt was begun ")
    np.savez("d.npz", x_train=x.copy(), y_train=y.copy())
    assert cli(command, "--quiet").code == 0


HELPED = """
{before}
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 2)

    def forward(self, x):
        {within}
        return head(self, self.layer(x))
"""
HEAD_OF = "def head(module, out): return {sign}out if module.training else out\n"
BESIDE, BY_ITSELF = "from {lib}_ops import head", "from {lib}.ops import head"
HELPERS = {
    "itself": ("net.py", "net.py", {"before": HEAD_OF}),
    "of the package": ("{lib}.net", "{lib}/ops.py", {"before": BY_ITSELF}),
    "beside the file": ("net.py", "{lib}_ops.py", {"before": BESIDE}),
    "imported in forward": ("net.py", "{lib}/ops.py", {"within": BY_ITSELF}),
    "of an installed package": ("site-packages/{lib}.net", "site-packages/{lib}/ops.py", {"before": BY_ITSELF}),
}


@pytest.mark.one_of(6)
@pytest.mark.parametrize("helper", HELPERS)
@pytest.mark.parametrize("work", ON_BITS)
def test_an_edited_helper_of_a_network_is_refused(cli, stopped_at, refused, monkeypatch, work, helper):
    """It computes the same in evaluation mode; but the same noise would hide two sums, whose difference it shows."""
    lib = f"lib_{work}_{[*HELPERS].index(helper)}"  # of each test its own: a package is imported once a process
    module, edited, lines = HELPERS[helper]
    folder = Path("site-packages" if "installed" in helper else ".").absolute()
    (folder / lib).mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(folder)
    body = HELPED.format(**{"before": "", "within": "pass", **lines}).format(lib=lib, sign="{sign}")
    place, text = Path(edited.format(lib=lib)), body if helper == "itself" else HEAD_OF
    for path in (Path("net.py"), folder / lib / "net.py"):
        path.write_text(body.format(sign=""))
    place.write_text(text.format(sign=""))
    x = np.random.default_rng(0).integers(0, 2, (200, 12), dtype=np.uint8)
    np.savez("d.npz", x_train=x, y_train=x[:, 0])
    named = f"{module.format(lib=lib).removeprefix('site-packages/')}:Net"
    command = ON_BITS[work].replace("mlp:4", named) + " --dataset d.npz --bounds 0,1 --classes 2 --delta 1e-3 --out r"
    assert stopped_at(ctrl_c, 2, command).code == 130
    place.write_text(text.format(sign="-"))
    said = ".".join(Path(edited.format(lib=lib).removeprefix("site-packages/")).with_suffix("").parts)
    where = "--model" if helper == "itself" else f"`code of {said}`"
    assert f"begun otherwise: {where} is another by now, or gives" in refused(command)
    place.write_text(text.format(sign=""))
    assert cli(command, "--quiet").code == 0


@pytest.mark.parametrize("work", ON_BITS)
def test_other_libraries_are_refused(cli, stopped_at, refused, monkeypatch, work):
    command = f"{ON_BITS[work]} {PRIVATE} --delta 1e-4 --out r"
    assert stopped_at(ctrl_c, 2, command).code == 130
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "1.0")
        assert "begun otherwise: `version of torch` was " in refused(command)
    assert cli(command, "--quiet").code == 0


def test_without_what_pays_for_it_nothing_goes_on(stopped, refused):
    stopped(ctrl_c, 4, TRAIN)
    Path("l.jsonl").rename("away")
    assert refused(TRAIN).startswith("l.jsonl: ")


def test_fresh_begins_again_and_pays_again(cli, stopped, entries):
    noisy = f"{SMALL} --steps 20 --noise-multiplier 3 --ledger all.jsonl"
    once = certified(cli(f"{noisy} --dry-run --json").json)
    assert stopped(ctrl_c, 4, noisy).code == 130
    planned = certified(cli(f"{noisy} --fresh --dry-run --json").json)
    assert planned > once
    assert HELD.exists()
    assert certified(cli(f"{noisy} --fresh --json").json) == planned
    assert len(entries("all.jsonl")) == 2
    assert not HELD.exists()


def test_two_processes_never_work_in_one_place(cli, stopped, refused, monkeypatch):
    """One goes on from a checkpoint, or comes between the look of the other and its first checkpoint."""
    stopped(ctrl_c, 4, TRAIN)
    descriptor = os.open(".r.checkpoint", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert refused(TRAIN).startswith("--out: another process is at work on r; ")
    os.close(descriptor)
    assert cli(TRAIN).code == 0
    inner = CheckpointFolder._begin

    def begin(self):
        Path(".s.checkpoint").mkdir(exist_ok=True)
        inner(self)

    monkeypatch.setattr(CheckpointFolder, "_begin", begin)
    done = cli(f"{TRAIN} --out s --ledger s.jsonl")
    assert (done.code, done.err.partition("; ")[0]) == (2, "error: --out: another process is at work on s")
    assert not Path("s.jsonl").exists()


def test_what_died_over_tidying_up_is_tidied_up(cli, stopped):
    stopped(ctrl_c, 4, TRAIN)
    shutil.copytree(".r.checkpoint", "kept")
    assert cli(TRAIN).code == 0
    shutil.copytree("kept", ".r.checkpoint")
    done = cli(TRAIN)
    assert (done.code, done.err.partition("; ")[0]) == (2, "error: --out: r exists already")
    assert not HELD.parent.exists()


def test_damaged_checkpoints_are_refused(stopped, refused):
    stopped(ctrl_c, 4, TRAIN)
    whole = HELD.read_bytes()
    damaged = [b"", whole[:7], whole[:-1]]
    for place in (0, 9, 200, 1000, len(whole) // 2, len(whole) - 1):
        damaged.append(bytes([*whole[:place], whole[place] ^ 1, *whole[place + 1 :]]))
    for data in damaged:
        HELD.write_bytes(data)
        assert refused(TRAIN).startswith(".r.checkpoint/checkpoint.safetensors: ")
    HELD.unlink()
    HELD.symlink_to("elsewhere")
    assert "which is not followed" in refused(TRAIN)


# --- tickets ---

MAKE = f"generate {PRIVATE} --model mlp:6 --rounds 3 --iterations 60 --batch-size 32 --out r --ledger l.jsonl"
KINDS = {
    "public": "--provenance public --rewind 30",
    "private": "--provenance private",
    "dp-train": "--criterion dp-train --epsilon 3 --delta 1e-4 --rewind 30",
}


@pytest.mark.one_of(2)
@pytest.mark.parametrize("kind", KINDS)
def test_tickets_go_on_to_the_same_bits(cli, keys, stopped_at, entries, tree, kind):
    command, before = f"{MAKE} {KINDS[kind]}", tree()
    keys(1)
    body = cli(f"{command} --ledger once.jsonl --json").json
    shutil.rmtree("r")
    keys(1)
    for number in (2, 3):
        with pytest.raises(Killed):
            stopped_at(die, number, command)
        keys(2)  # what goes on has them from the checkpoint
    done = stopped_at(ctrl_c, 2, command)
    assert (done.code, done.err.partition(" goes on from ")[0]) == (130, "error: interrupted; the same command")
    assert stat.S_IMODE(HELD.parent.stat().st_mode) == 0o700, "what it holds may have no guarantee"
    assert "--rounds was 3 and is 2" in cli(f"{command} --rounds 2").err
    if kind == "dp-train":  # settings of its training are told by their names too
        assert "otherwise: --delta was 0.0001 and is 1e-05; " in cli(f"{command} --delta 1e-5").err
    again = cli(f"{command} --json").json
    for key in ("id", "tickets", "privacy"):
        assert again[key] == body[key]
    assert len(entries("l.jsonl")) == 1
    left = {name for name in tree() if not name.startswith(("r/", "r.private"))}
    assert left - {"r"} == {*before, *ACCOUNTS}, "nothing hidden"


# --- runs and sweeps, where each stage is paid for once ---


LONGER = RUN.replace("iterations = 3", "iterations = 60").replace("rounds = 1", "rounds = 2")
LONGER = LONGER.replace("steps = 3", "steps = 9")
RUN_IT = "run --config c.toml --out o"
SWEEP, PAID = "run --config s.toml --jobs 1", Path("s.sweep/dpltm.ledger.jsonl")
ONE = HEAD.replace("seeds = 2", "seeds = 1").replace("steps = 2", "steps = 4")
SETS = SETS.replace("rounds = 2", "rounds = 1")


def releases(path):
    """Kinds of mechanisms of what was paid for, in order."""
    return [type(entry.mechanisms[0]) for entry in open_ledger(path).account().paid]


@pytest.mark.parametrize(("number", "hidden"), [(3, "o/.tickets.checkpoint"), (14, "o/.run.checkpoint")])
def test_a_run_goes_on_with_the_stage_that_was_interrupted(cli, stopped_at, refused, tree, number, hidden):
    Path("c.toml").write_text(LONGER)
    before = tree()
    done = stopped_at(ctrl_c, number, RUN_IT)
    assert (done.code, hidden in done.err) == (130, True)
    Path("c.toml").write_text(LONGER.replace("steps = 9", "steps = 8"))
    assert re.search("o is of another recipe, 'three stages [0-9a-f]{16}'; choose another name", refused(RUN_IT))
    Path("c.toml").write_text(LONGER)
    body = cli(f"{RUN_IT} --json").json
    assert set(body) == {"out", "generate", "select", "train", "privacy"}
    assert certified(body) <= 3
    assert releases(LEDGER) == [Selection, NoisySgd]
    kept = {"tickets", "run", "recipe.json", "generate.json", "select.json"}
    assert {path.name for path in Path("o").iterdir()} == kept
    assert [name for name in set(tree()) - set(before) if "/." in name] == []
    again, seconds = cli(f"{RUN_IT} --json").json, body["train"].pop("seconds")
    assert (again, seconds > 0) == ({**body, "train": again["train"]}, True)
    assert again["train"].items() >= body["train"].items()
    assert releases(LEDGER) == [Selection, NoisySgd], "a run that is finished is not run again"


def test_a_stage_that_died_before_its_answer_was_kept_begins_anew(cli, monkeypatch):
    """What it paid stays in the ledger, and the training pays with what is left."""
    Path("c.toml").write_text(RUN)
    inner = run.STAGES["select"]
    with monkeypatch.context() as patch:
        patch.setitem(run.STAGES, "select", lambda *request: [inner(*request), interrupt()])
        assert cli(RUN_IT).code == 130
    Path("o/generate.json").unlink()
    body = cli(f"{RUN_IT} --json").json
    assert releases(LEDGER) == [Selection, Selection, NoisySgd]
    assert certified(body) <= 3


def test_a_refused_checkpoint_says_how_to_begin_again(cli, stopped_at, refused):
    """What is said is done here, and helps: of a run, and of a trial in a sweep."""
    Path("c.toml").write_text(LONGER)
    assert stopped_at(ctrl_c, 14, RUN_IT).code == 130
    Path("o/.run.checkpoint/checkpoint.safetensors").write_bytes(b"not a checkpoint")
    assert refused(RUN_IT).endswith(
        "damaged; begin again without it: --fresh, or remove it (what was spent stays spent)"
    )
    shutil.rmtree("o")
    assert cli(f"{RUN_IT} --ledger again.jsonl").code == 0
    Path("s.toml").write_text(ONE + DENSE)
    assert stopped_at(ctrl_c, 3, SWEEP).code == 130
    (held,) = Path("s.sweep/members").glob("*/.run.checkpoint")
    (held / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    done = cli(f"{SWEEP} --json")
    assert done.code == 1
    (hole,) = json.loads(done.out)["arms"][0]["missing"]
    assert hole["why"].endswith("damaged; begin again without it: --fresh, or remove it (what was spent stays spent)")
    shutil.rmtree(held)
    assert cli(SWEEP).code == 0
    assert releases(PAID) == [NoisySgd, NoisySgd], "the first is on record still"


def test_a_sweep_pays_once_for_each_trial_whatever_interrupts_it(cli, stopped_at):
    Path("s.toml").write_text(ONE.replace("seeds = 1", "seeds = 2") + SETS + DENSE + DRAWN)
    for number in (2, 3, 3, 3, 3, 3, 3):
        if stopped_at(ctrl_c, number, SWEEP).code == 0:
            break
    assert cli(SWEEP).code == 0
    members = sorted(Path("s.sweep/members").iterdir())
    assert len(members) == 4
    paid = releases(PAID)
    assert (paid.count(NoisySgd), paid.count(Selection), len(paid)) == (4, 2, 6)
    assert not [*Path("s.sweep/draws").iterdir()]


@pytest.mark.parametrize("stage", ["train", None])
def test_a_trial_that_dies_between_two_stages_pays_for_neither_again(cli, monkeypatch, tmp_path, stage):
    """Behind its draw, before a training begins; and behind its run, before its result is there."""
    Path("s.toml").write_text(ONE + SETS + DRAWN)
    with monkeypatch.context() as patch:
        if stage is None:
            patch.setattr(TaskRunner, "tidy", lambda _, task: task.command == "train" and interrupt())
        else:
            patch.setitem(STAGES, stage, interrupt)
        assert cli(SWEEP).code == 130
    run = {path: path.read_bytes() for path in Path("s.sweep/members").glob("*/run/*")}
    assert bool(run) == (stage is None)
    if run:  # and nobody on this machine knows of the ledger: the run knows what it cost
        spent, whole = open_ledger(PAID).account().epsilon(1e-5), PAID.read_bytes()
        shutil.copytree("s.sweep", "kept")
        PAID.unlink()
        with monkeypatch.context() as patch:
            patch.setenv("XDG_CONFIG_HOME", str(tmp_path / "elsewhere"))
            assert certified(cli(f"{SWEEP} --json").json) == spent
        shutil.rmtree("s.sweep")
        Path("kept").rename("s.sweep")
        assert PAID.read_bytes() == whole
    assert cli(SWEEP).code == 0
    assert releases(PAID) == [Selection, NoisySgd]
    (member,) = Path("s.sweep/members").iterdir()
    assert [path.name for path in (*member.iterdir(), *Path("s.sweep/draws").iterdir())] == ["run"]
    assert {path: path.read_bytes() for path in run} == run


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_sweep_whose_ledger_was_rolled_back_is_refused(cli, stopped_at, refused, checkpoint):
    """Whether its training can go on or begins again; put back, the trial is paid for as it was."""
    Path("s.toml").write_text(ONE + SETS + DRAWN)
    with pytest.raises(Killed):
        stopped_at(die, 3, SWEEP)
    (held,) = Path("s.sweep/members").glob("*/.run.checkpoint")
    whole = PAID.read_bytes()
    if not checkpoint:
        shutil.rmtree(held)
    PAID.write_bytes(b"")
    assert refused(SWEEP).startswith(f"{PAID}: holds ")
    PAID.write_bytes(whole)
    assert cli(SWEEP).code == 0
    assert releases(PAID) == [Selection, NoisySgd] + ([] if checkpoint else [NoisySgd]), "one draw, in any case"
