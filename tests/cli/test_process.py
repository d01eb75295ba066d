"""dpltm as processes of its own: exit codes, both streams, interrupts, broken pipes; and as many as ``torchrun`` starts."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.core import TyperCommand

from child_processes import PATIENCE, interruptible
from commands import LEDGER, PRIVATE
from dpltm.cli import main
from rank_work import TRAIN
from ranked import Ranked

DPLTM = (sys.executable, "-W", "error::UserWarning", "-m", "dpltm.cli.main")


def start(cwd, command, stdout=subprocess.PIPE):
    words, env = interruptible([*DPLTM, *command.split()]), {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, cwd=cwd, env=env, stdout=stdout, stderr=subprocess.PIPE, text=True)


def test_an_interrupt_keeps_the_entry_and_a_checkpoint(cwd):
    ledger = cwd / LEDGER
    before = ledger.read_bytes()
    options = "--steps 500000 --batch-size 50 --noise-multiplier 500 --out r"
    process = start(cwd, f"train pub@1 {PRIVATE} {options}")
    try:
        until = time.monotonic() + PATIENCE
        while ledger.read_bytes() == before:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until, "the entry never reached the ledger"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    # Python ends by the signal itself where the interrupt went through code that was run from a string; shells say 130
    assert process.returncode in (130, -signal.SIGINT)
    assert out == ""
    where = r"from step \d+ of 500000, kept in \.r\.checkpoint \(for its owner alone\)"
    said = rf"error: interrupted; the same command goes on {where}; what the ledger entered stays entered\n"
    assert re.fullmatch(said, err), err
    after = ledger.read_bytes()
    assert after.startswith(before)
    entry = json.loads(after[len(before) :])["entry"]  # one line and no more
    assert (entry["kind"], entry["mechanisms"][0]["steps"]) == ("release", 500000)
    kept = [LEDGER, "digits.ledger.key", "pri", "pri.jsonl", "pri.key", "pub"]
    assert sorted(path.name for path in cwd.iterdir()) == [".r.checkpoint", *kept]


def test_an_interrupt_that_is_ignored_stays_ignored(monkeypatch):
    """Under nohup, or with & in a script; a batch system's SIGTERM still ends the program."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(sys, "argv", ["dpltm", "--version"])
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with pytest.raises(SystemExit):
            main.main()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_reader_that_leaves_is_no_error_to_show(cwd):
    reading, writing = os.pipe()
    os.close(reading)
    process = start(cwd, "datasets info digits --json", stdout=writing)
    os.close(writing)
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (1, "")


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_is_no_error(cwd, closed):
    command = f"exec {DPLTM[0]} -m dpltm.cli.main datasets info digits --json {closed}>&-"
    done = subprocess.run(
        ["sh", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "" if closed == 1 else json.loads(done.stdout)["records"] == 1438


@pytest.fixture
def broken(monkeypatch):
    def fail() -> None:
        raise ZeroDivisionError("first line\nsecond line")

    monkeypatch.setitem(main.app.commands, "fail", TyperCommand("fail", callback=fail))


@pytest.mark.usefixtures("broken")
def test_internal_errors_are_one_line(cli, monkeypatch):
    monkeypatch.delenv("DPLTM_DEBUG", raising=False)
    done = cli("fail")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "error: internal error: ZeroDivisionError: first line second line; set DPLTM_DEBUG=1 and report what it prints\n"
    )


# --- ranks: the same whatever their number, paid once; one ends all ---

OPTIONS = ("--features unit:1 --centre 0.2 --model mlp --schedule cosine", "--eval-private 0.5")
WORK = "rank_work:command"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weights() -> bytes:
    data = Path("r/model.safetensors").read_bytes()
    shutil.rmtree("r")
    return data


@pytest.mark.one_of(2)
@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("options", OPTIONS)
def test_the_run_is_the_same_whatever_the_number_of_ranks(ranked: Ranked, entries, options):
    command, found = (*TRAIN, *options.split(), "--out", "r", "--json"), set()
    for size in (1, 2):
        ledger = f"{size}.jsonl"
        first, *others = ranked.run(size, WORK, (*command, "--ledger", ledger))
        assert (first.value, first.err) == (0, "")
        assert [(rank.value, rank.out, rank.err) for rank in others] == [(0, "", "")] * (size - 1)
        assert first.out.startswith('{"run": "r"')
        assert [entry["kind"] for entry in entries(ledger)] == ["release"]
        found.add(weights())
    assert len(found) == 1
    assert sorted(path.name for path in Path().iterdir()) == ["1.jsonl", "1.key", "2.jsonl", "2.key"]


@pytest.mark.usefixtures("place")
def test_ranks_agree_once_where_a_test_split_is_declared_on_the_way(ranked: Ranked, entries):
    """The declaration moves the ledger's head, so the training is planned again."""
    ranked.run(1, "rank_work:save_records", "d.npz", 0)
    command = ("train", "--dense", "--dataset", "d.npz", "--model", "mlp:8", "--classes", "10", "--bounds", "0,16")
    command = (*command, "--test", "0.2", "--epsilon", "2", "--steps", "3", "--ledger", "l.jsonl", "--out", "r")
    assert [(rank.value, rank.err) for rank in ranked.run(2, WORK, command)] == [(0, ""), (0, "")]
    assert [entry["kind"] for entry in entries("l.jsonl")] == ["excluded", "release"]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("rank", "number"), [(1, signal.SIGKILL), (0, signal.SIGTERM)])
def test_a_rank_that_ends_in_mid_run_ends_all_and_the_same_command_goes_on(ranked: Ranked, entries, rank, number):
    """With other keys than at first, so that equal weights can only come from the checkpoint."""
    command = (*TRAIN, "--out", "r")
    assert ranked.run(1, WORK, (*command, "--ledger", "undisturbed.jsonl"))[0].value == 0
    undisturbed = weights()
    found = ranked.run(2, WORK, command, (), 1, (rank, 5, number))
    paid = entries(LEDGER)
    assert found[1].out + found[1].err == ""
    if number == signal.SIGTERM:
        assert found[0].err.startswith("error: interrupted; the same command goes on from step 5 of 8")
        assert (found[0].value, found[1].value) == (130, 1)
    else:
        assert [one.code for one in found] == [0, -9]
        assert (found[0].value, found[0].err.partition(";")[0]) == (
            *(1, "error: ranks: another one has ended, or is out of reach"),
        )
    assert ranked.run(2, WORK, command, (), 2)[0].value == 0
    assert entries(LEDGER) == paid
    assert [entry["kind"] for entry in paid] == ["release"]
    assert weights() == undisturbed
    assert {path.stem.partition(".")[0] for path in Path().iterdir()} == {"undisturbed", "digits"}


@pytest.mark.usefixtures("place")
def test_ranks_that_were_asked_for_other_things_are_refused(ranked: Ranked):
    found = ranked.run(2, WORK, (*TRAIN, "--out", "r"), (("--lr", "1"), ("--lr", "2")))
    assert [rank.value for rank in found] == [2, 2]
    assert found[0].err.startswith("error: --lr: rank 0 has 1.0 and rank 1 2.0; start all ranks with the same ")
    assert found[1].err == ""
    assert [path.name for path in Path().iterdir()] == []


@pytest.mark.parametrize("what", ["lacks a record", "lacks the file"])
def test_ranks_that_see_other_records_are_refused(ranked: Ranked, place, what):
    """By all of them, where one machine has a file of the same name."""
    folders = [place / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    for folder, left_out in zip(folders if "record" in what else folders[:1], (0, 1), strict=False):
        ranked.run(1, "rank_work:save_records", "d.npz", left_out, folder=folder)
    before = sorted(place.rglob("*"))
    command = (
        "train --dense --dataset d.npz --model mlp:8 --records 1797 --classes 10 --bounds 0,16 --epsilon 2 --steps 3"
    )
    first, second = ranked.run(2, "rank_work:command_in", [str(folder) for folder in folders], command.split())
    others, no_file = "records of --dataset: rank 1 has others than rank 0", "rank 1: --dataset d.npz: no such"
    said = others if "record" in what else no_file
    assert first.err.startswith(f"error: {said}")
    assert (first.value, second.value, second.err) == (2, 2, "")
    assert sorted(place.rglob("*")) == before


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("command", ["tune --dataset digits", "latent train s", "demo", "run --config c.toml"])
def test_other_commands_are_refused(ranked: Ranked, command):
    first, second = ranked.run(2, WORK, command.split())
    name = " ".join(("dpltm", *command.partition(" -")[0].removesuffix(" s").split()))
    said = f"error: {name} works in one process, and torchrun started 2: run it without torchrun\n"
    assert [(rank.value, rank.err) for rank in (first, second)] == [(2, said), (2, "")]


def test_stages_in_python_are_refused(ranked: Ranked):
    found = ranked.run(2, "rank_work:in_python")
    said = "a stage of dpltm in Python works in one process, and torchrun started 2: run it without torchrun"
    assert [rank.error for rank in found] == [["InputError", said]] * 2


@pytest.mark.long  # two programs that import everything, under a third
@pytest.mark.usefixtures("place")
def test_torchrun_itself():
    """As the documents have it."""
    programs = Path(sys.executable).parent
    start = (str(programs / "torchrun"), "--standalone", "--nproc-per-node", "2", "--no-python")
    command = (*start, str(programs / "dpltm"), *TRAIN, "--out", "r", "--json")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('{"run": "r"')
    assert done.stdout.count("\n") == 1
