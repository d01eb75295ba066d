"""What the command line prints for a fixed seed is what it printed when it was recorded.

``tests/cli/recorded`` holds transcripts of six commands and of the files that they leave (``transcripts`` in tests/support
says how to read them). Every command runs again, with the same random bytes, and must print the same: words exactly, numbers
up to what another processor may change. Numbers of the other commands are in tests/golden. After a change that is meant, or
to add a command, write them anew with

    DPLTM_RECORD=1 pytest -n 0 tests/cli/test_recorded_outputs.py

and say in the commit why each line that changed did: these lines are what users and scripts rely on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dpltm.cli.main import run
from dpltm.gradients import linear_layer
from gradient_cases import always
from transcripts import Normal, Transcript, difference, fixed_randomness, listed, marked, printed, same, shown

TRANSCRIPTS = sorted((Path(__file__).parent / "recorded").glob("*.txt"))
RECORD = bool(os.environ.get("DPLTM_RECORD"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the files that transcripts use, and no data, key, cache or terminal but its own."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    for name, value in (("XDG_CONFIG_HOME", "config"), ("XDG_CACHE_HOME", "cache"), ("DPLTM_DATA", "data")):
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setenv("COLUMNS", "400")  # no line of a help text or a table is broken
    for name in ("FORCE_COLOR", "DPLTM_DEBUG", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(linear_layer, "kernel_for", always("float64"))  # not what is quickest here today
    _write_files(work)
    return work


def _write_files(folder: Path) -> None:
    """Images, a few to predict, and a table with columns."""
    from sklearn.datasets import load_digits

    digits, generator = load_digits(), np.random.default_rng(0)
    x, y = digits.images.astype(np.uint8), digits.target
    np.savez(folder / "pub.npz", x_train=x[:400], y_train=y[:400], x_test=x[400:700], y_test=y[400:700])
    np.savez(folder / "x.npz", x=x[1300:1304].reshape(4, 64))
    table = generator.random((60, 3)).round(3)
    lines = [",".join(map(str, [*row, int(sum(row) > 1.5)])) for row in table.tolist()]
    (folder / "t.csv").write_text("\n".join(["a,b,c,y", *lines]) + "\n", encoding="utf-8")


@pytest.fixture
def replay(folder: Path, capfd: pytest.CaptureFixture[str]) -> Callable[[Transcript], list[tuple[str, list[str]]]]:
    """Runs a transcript; gives every command with the lines that it printed."""

    def called(words: list[str], given: list[str]) -> tuple[int, str, str]:
        match words:
            case ["dpltm", *arguments]:
                torch.default_generator.manual_seed(0)
                capfd.readouterr()
                with fixed_randomness(" ".join(words)):
                    code = run(arguments)
                out, err = capfd.readouterr()
                return code, printed(arguments, out), err
            case ["cat", ">" | ">>" as how, name]:
                with (folder / name).open("w" if how == ">" else "a", encoding="utf-8") as stream:
                    stream.write("\n".join(given) + "\n")
                return 0, "", ""
            case ["cat" | "ls", name] if not (folder / name).exists():
                return 1, "", f"{name}: not there"
            case ["cat", name]:
                return 0, shown(folder / name), ""
            case ["ls", name]:
                return 0, listed(folder / name), ""
        pytest.fail(f"{words}: not a command of a transcript")

    def replayed(transcript: Transcript) -> list[tuple[str, list[str]]]:
        normal, done = Normal(folder.parent), []
        for step, words in transcript.steps():
            code, out, err = called(words, step.given)
            done.append((step.command, marked(code, normal(out), normal(err))))
        return done

    return replayed


@pytest.mark.one_of(3)
@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_prints_what_was_recorded(path: Path, replay: Callable[..., list[tuple[str, list[str]]]]) -> None:
    transcript = Transcript.read(path)
    found = replay(transcript)
    recorded = [step for step, _ in transcript.steps()]
    if RECORD:
        for step, (_, lines) in zip(recorded, found, strict=True):
            step.printed = lines
        transcript.write()
        return
    differences = [
        f"$ {command}\n{difference(step.printed, lines)}"
        for step, (command, lines) in zip(recorded, found, strict=True)
        if not same(step.printed, lines)
    ]
    assert not differences, f"{path.name}: not as recorded\n\n" + "\n\n".join(differences)


@pytest.mark.parametrize(
    ("recorded", "found", "alike"),
    [
        ('"accuracy": 0.5', '"accuracy": 0.509', True),
        ('"accuracy": 0.5', '"accuracy": 0.53', False),
        ("accuracy 50.00%", "accuracy 47.50%", False),
        ('"epsilon": 1.23456789', '"epsilon": 1.23460001', True),
        ('"epsilon": 1.23456789', '"epsilon": 1.23489999', False),
        ('"noise_multiplier": 1.2345', '"noise_multiplier": 1.2361', False),
        ('"live": 400', '"live": 401', False),
        ("3 steps", "3  steps", False),
        ("│ 9.95% │\n━━━━━━━", "│ 10.05% │\n━━━━━━━━", True),
        ('"epsilon": 1.5', '"epsilon": "inf"', False),
    ],
)
def test_what_counts_as_the_same(recorded: str, found: str, alike: bool) -> None:
    assert same(recorded.splitlines(), found.splitlines()) is alike
    if not alike:
        assert difference(recorded.splitlines(), found.splitlines())
