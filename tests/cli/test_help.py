"""What ``--help`` prints: panels, examples, widths, colours; and what a shell is told to complete."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import typer.core
from hypothesis import given
from hypothesis import strategies as st

from child_processes import read_terminal
from dpltm.cli.commands import Later
from dpltm.cli.help import folded
from dpltm.cli.main import app, run
from dpltm.cli.options import command_of
from dpltm.options import option, resolve, section_of
from dpltm.options.data import DataOptions
from dpltm.options.train import TrainRequest

DPLTM = (sys.executable, "-m", "dpltm.cli.main")


def entries(group: Any = app, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every group and every command, with the words that call it."""
    yield names, group
    for name, entry in getattr(group, "commands", {}).items():
        yield from entries(entry, *names, name)


EVERY = dict(entries())
COMMANDS = {names: entry for names, entry in EVERY.items() if isinstance(entry, Later)}


def title(names: tuple[str, ...]) -> str:
    return " ".join(("dpltm", *names))


def page(capsys: pytest.CaptureFixture[str], *names: str) -> str:
    capsys.readouterr()
    assert run([*names, "--help"]) == 0
    return capsys.readouterr().out


def epilog(entry: Any) -> str:
    return (entry.command if isinstance(entry, Later) else entry).epilog or ""


# --- examples ---


@pytest.mark.parametrize("names", EVERY, ids=title)
def test_every_help_ends_with_examples(names: tuple[str, ...]) -> None:
    examples = [line for line in epilog(EVERY[names]).splitlines() if not line.startswith("#")]
    where = f"the docstring of {COMMANDS[names].options.place}" if names in COMMANDS else "its Group, as epilog"
    assert examples, f"{title(names)} has no example: add 'Examples:' with a command a line to the end of {where}"
    assert any(line.startswith(title(names)) for line in examples), f"{title(names)}: no example calls it"


@pytest.mark.parametrize("names", EVERY, ids=title)
def test_examples_can_be_typed(names: tuple[str, ...]) -> None:
    """Each is a command with options that there are, of the right types, and choices that can be made."""
    for line in epilog(EVERY[names]).splitlines():
        assert len(line) <= 76 or not line.startswith("#"), f"{line}: longer than a line of 80 columns"
        if line.startswith("#"):
            continue
        program, *words = shlex.split(line)
        assert program == "dpltm"
        called = next(tuple(words[:size]) for size in (2, 1) if tuple(words[:size]) in COMMANDS)
        later = COMMANDS[called]
        context = later.command.make_context(" ".join(called), words[len(called) :])
        values = {key: value for key, value in context.params.items() if key not in ("json", "quiet", "config")}
        resolve(later.options.resolve(), values, {})


@given(st.lists(st.sampled_from(["--a", "-o", "b", "c d", "0.3,0.2", "x" * 30, "--long-flag", "*"]), min_size=1))
def test_folded_commands_are_the_same_commands(words: list[str]) -> None:
    command = shlex.join(["dpltm", *words])
    for width in (20, 40, 78):
        assert shlex.split("\n".join(folded(command, width)).replace("\\\n", " ")) == ["dpltm", *words]


def test_folds_before_flags() -> None:
    command = "dpltm train d.tickets --dataset digits --subset 0.5:1.0 --epsilon 3 --out d.run"
    lines = ["dpltm train d.tickets --dataset digits \\", "    --subset 0.5:1.0 --epsilon 3 \\", "    --out d.run"]
    assert folded(command, 42) == lines
    assert folded(command, 400) == [command]


# --- panels ---


@pytest.mark.parametrize("names", COMMANDS, ids=title)
def test_sections_have_short_titles(names: tuple[str, ...]) -> None:
    cls = COMMANDS[names].options.resolve()
    for item in fields(cls):
        heading = section_of(cls, item.name)
        if heading is not None and not item.metadata["argument"]:
            assert re.fullmatch(r"[A-Z][\w ]{2,27}", heading), (names, item.name, heading)


def test_no_panel_is_a_long_list() -> None:
    for names, later in COMMANDS.items():
        cls, held = later.options.resolve(), dict[str | None, int]()
        for item in fields(cls):
            heading = section_of(cls, item.name)
            held[heading] = held.get(heading, 0) + 1
        assert max(held.values(), default=0) <= 13, f"{title(names)}: {held}"


def test_a_new_option_lands_in_the_panel_of_its_class(monkeypatch, capsys) -> None:
    @dataclass(frozen=True, kw_only=True)
    class More:
        """Of the answer."""

        red: bool = option(False, "Paint it.", section="Colours")

    @dataclass(frozen=True, kw_only=True)
    class Request(More, DataOptions):
        """Does something.

        Examples:
            # once
            dpltm thing --red
        """

        dataset: str | None = option("digits", "Another default.", metavar="NAME|FILE")
        own: str | None = option(None, "Of no class but this one.", metavar="TEXT")

    monkeypatch.setenv("COLUMNS", "80")
    command = command_of("thing", Request, lambda *_: None)
    with pytest.raises(typer.Exit):
        command.make_context("dpltm thing", ["--help"])
    panels = re.split("╭─ ", capsys.readouterr().out)
    held = {re.match(r"[\w ]+?(?= ─)", panel)[0]: re.findall(r"│ (--[\w-]+)", panel) for panel in panels[1:]}
    records = [f"--{item.name.replace('_', '-')}" for item in fields(DataOptions)]
    assert held == {
        "Records": records,
        "Colours": ["--red"],
        "Options": ["--own"],
        "Every command": ["--config", "--json", "--quiet", "--help"],
    }
    assert panels[-1].rstrip().splitlines()[-2:] == ["  # once", "  dpltm thing --red"]


def test_the_panels_of_train(monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = page(capsys, "train")
    order = ["Arguments", "Records", "What is protected", "Start", "Features", "Gradient filter", "Budget and noise"]
    found = re.findall(r"╭─ ([\w ]+?) ─", out)
    assert found[: len(order)] == order
    assert found[-1] == "Every command"
    assert out.count("--epsilon E ") == 1
    assert (
        sum(f"--{item.name.replace('_', '-')} " in out for item in fields(TrainRequest))
        == len(fields(TrainRequest)) - 1
    )


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(monkeypatch, capsys, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for names in EVERY:
        for line in page(capsys, *names).splitlines():
            remark = line.startswith("  #")  # may be longer than 60
            assert len(line) <= max(width, 80 if remark else 0), f"{title(names)}: {line}"


# --- terminals ---


def at_a_terminal(*words: str, **environment: str) -> str:
    master, slave = pty.openpty()
    cleared = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLORTERM")
    }
    process = subprocess.Popen(
        [*DPLTM, *words], stdout=slave, stderr=slave, env={**cleared, "COLUMNS": "80", **environment}
    )
    os.close(slave)
    seen = read_terminal(master)
    assert process.wait() == 0
    return seen.decode()


COLOUR = re.compile(r"\x1b\[[\d;]*3\dm")


def test_colours_where_they_are_wanted() -> None:
    assert COLOUR.search(at_a_terminal("datasets", "schema", "--help", TERM="xterm-256color"))
    assert not COLOUR.search(at_a_terminal("datasets", "schema", "--help", TERM="xterm-256color", NO_COLOR="1"))
    assert "\x1b" not in at_a_terminal("datasets", "schema", "--help", TERM="dumb")


# --- completion ---


def completed(line: str, **environment: str) -> list[str]:
    """What bash is told that a line may go on with."""
    words = line.split(" ")
    asked = {"_DPLTM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        DPLTM, env={**os.environ, **asked, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "endings"),
    [
        ("dpltm tr", ["train"]),
        ("dpltm tickets ex", ["export"]),
        ("dpltm train --ep", ["--epsilon", "--epochs"]),
        ("dpltm train --filter tanh", ["tanh", "tanh-clip"]),
        ("dpltm train --dataset kmn", ["kmnist", "kmnist-7k"]),
        ("dpltm train --out so", []),
    ],
)
def test_completes(line: str, endings: list[str]) -> None:
    assert completed(line) == endings


def test_installs_and_shows_completion(tmp_path: Path) -> None:
    """As typer has it, in the shell that asks; nothing but the two files that it names is touched."""
    program = [sys.executable, "-c", "from dpltm.cli.main import main; main()"]
    for flag, said in (
        ("--show-completion", "_DPLTM_COMPLETE=complete_bash"),
        ("--install-completion", "bash completion installed in"),
    ):
        line = f"{shlex.join([*program, flag])}; exit $?"  # with something after it, bash stays the parent
        asked = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(["bash", "-c", line], env=asked, capture_output=True, text=True, check=False)
        assert (done.returncode, said in done.stdout) == (0, True), done
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert written == [".bash_completions/dpltm.sh", ".bashrc"]
