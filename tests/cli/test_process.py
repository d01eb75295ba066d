"""dpltm as a process of its own: exit codes, both streams, interrupts, broken pipes."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from typer.core import TyperCommand

from child_processes import PATIENCE, interruptible
from commands import LEDGER, PRIVATE
from dpltm.cli import main

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
    kept = [LEDGER, "digits.ledger.key", "pri", "pri.jsonl", "pri.key", "pri.private.json", "pub"]
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


@pytest.mark.parametrize("loaded", [False, True])
def test_an_interrupt_before_anything_could_be_entered_says_so(monkeypatch, capsys, loaded):
    """While the libraries are loaded, no ledger has been opened."""

    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    name = "dpltm.tickets.ledger_file"
    monkeypatch.setattr(main.app, "main", interrupted)
    monkeypatch.setitem(sys.modules, name, sys)
    if not loaded:
        monkeypatch.delitem(sys.modules, name)
    assert main.run(["train"]) == 130
    entered = "what the ledger entered stays entered" if loaded else "nothing was entered"
    assert capsys.readouterr().err == f"error: interrupted; {entered}\n"
