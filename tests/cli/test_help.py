"""What a terminal shows: help with its panels, examples and widths, what a shell completes, progress and figures."""

import io
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console as RichConsole

from dpltm.cli.commands import Later
from dpltm.cli.console import Console
from dpltm.cli.main import app, run
from dpltm.cli.show import named, show_answer, show_table, shown
from dpltm.options import resolve


def entries(group: Any = app, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every group and every command, with the words that call it."""
    yield names, group
    for name, entry in getattr(group, "commands", {}).items():
        yield from entries(entry, *names, name)


EVERY = dict(entries())
COMMANDS = {names: entry for names, entry in EVERY.items() if isinstance(entry, Later)}


def title(names: tuple[str, ...]) -> str:
    return " ".join(("dpltm", *names))


def page(capsys: pytest.CaptureFixture[str], *names: str, flag: str = "--help") -> str:
    capsys.readouterr()
    assert run([*names, flag]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("names", EVERY, ids=title)
def test_every_help_ends_with_examples_that_can_be_typed(names: tuple[str, ...]) -> None:
    """Each is a command with options that there are, of the right types, and choices that can be made."""
    entry = EVERY[names]
    lines = ((entry.command if isinstance(entry, Later) else entry).epilog or "").splitlines()
    examples = [line for line in lines if not line.startswith("#")]
    where = f"the docstring of {COMMANDS[names].options.place}" if names in COMMANDS else "its Group, as epilog"
    assert examples, f"{title(names)} has no example: add 'Examples:' with a command a line to the end of {where}"
    assert any(line.startswith(title(names)) for line in examples), f"{title(names)}: no example calls it"
    assert all(len(line) <= 76 for line in lines if line.startswith("#")), "longer than a line of 80 columns"
    for line in examples:
        program, *words = shlex.split(line)
        assert program == "dpltm"
        called = next(tuple(words[:size]) for size in (2, 1) if tuple(words[:size]) in COMMANDS)
        later = COMMANDS[called]
        context = later.command.make_context(" ".join(called), words[len(called) :])
        values = {
            key: value for key, value in context.params.items() if key not in ("json", "quiet", "config", "help_all")
        }
        resolve(later.options.resolve(), values, {})


@pytest.mark.parametrize("names", COMMANDS, ids=title)
def test_the_first_page_is_short_and_the_other_has_everything(monkeypatch, capsys, names: tuple[str, ...]) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    every = {option for item in COMMANDS[names].command.params for option in item.opts if option.startswith("--")}
    options = {
        flag: re.findall(r"^│ (--[\w-]+)", page(capsys, *names, flag=flag), re.M) for flag in ("--help", "--help-all")
    }
    assert set(options["--help-all"]) == every | {"--help"}
    assert len(options["--help"]) <= 20
    monkeypatch.setenv("COLUMNS", "100")
    first = page(capsys, *names)
    examples, _, rest = first.partition(" Examples")[2].partition("╭─ Options")
    assert examples.count("  dpltm ") in (1, 2, 3)
    assert rest
    assert first.count("\n") <= 60, "more than a screen"


@pytest.mark.parametrize("width", [60, 120])
def test_no_line_is_wider_than_the_terminal(monkeypatch, capsys, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for names in EVERY:
        text = page(capsys, *names) + (page(capsys, *names, flag="--help-all") if names in COMMANDS else "")
        for line in text.splitlines():
            example = line.startswith(("  #", "  dpltm"))  # which is copied as it is
            assert len(line) <= width or example, f"{title(names)}: {line}"


@pytest.mark.parametrize(
    ("line", "endings"), [("dpltm tickets ex", ["export"]), ("dpltm train --ep", ["--epsilon", "--epochs"])]
)
def test_completes(line: str, endings: list[str], monkeypatch, capfd) -> None:
    """What bash is told that a line may go on with."""
    for name, value in (
        ("_DPLTM_COMPLETE", "complete_bash"), ("COMP_WORDS", line), ("COMP_CWORD", str(line.count(" "))),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        app.main(args=[], prog_name="dpltm")
    assert capfd.readouterr().out.split() == endings


# --- progress, and figures for people ---


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, *, width: int = 120) -> Terminal:
    """Standard error as a terminal; called in the test, since pytest sets its own again before."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    for name, value in (("TERM", "xterm"), ("COLUMNS", str(width))):
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return stream


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_stands_still_without_a_word(monkeypatch, width: int) -> None:
    terminal = at_a_terminal(monkeypatch, width=width)
    with Console().progress("training under DP", 60_000) as step:
        pass
    assert "0/60,000" in terminal.getvalue()
    assert "starting" in terminal.getvalue()
    with Console().progress("training under DP", 60_000) as step:
        step(60_000, "epsilon so far 0.9994, accuracy 91.92 %")
    assert "60,000/60,000" in terminal.getvalue()
    assert "epsilon so far 0.9994, accuracy 91.92 %" in terminal.getvalue()


@pytest.mark.parametrize("how", [{"quiet": True}, {}])
def test_is_silent_where_nobody_looks(capsys, how: dict[str, bool]) -> None:
    console = Console(**how)
    with console.progress("training", 2) as step:
        step(1, "note")
        console.say("words")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("accuracy", 0.91922, "91.92 %"),
        ("density", 1.0, "100.00 %"),
        ("eps1", 0.1, "0.1"),
        ("epsilon", "inf", "inf"),
        ("live", 1234567, "1,234,567"),
        ("steps", 999, "999"),
        ("noise multiplier", 2.91217, "2.912"),
        ("delta", 1e-5, "1e-05"),
        ("dry run", True, "yes"),
        ("violates", [], "none"),
        ("outside, age", 0.0761, "7.61 %"),
        ("shuffled mask", 0.0731, "7.31 %"),
        ("dataset", "digits", "digits"),
    ],
)
def test_figures_have_one_format(name: str, value: object, text: str) -> None:
    assert shown(name, value) == text


def at_80_columns(show: Callable[..., None], *arguments: Any) -> str:
    terminal = RichConsole(width=80, file=io.StringIO(), highlight=False)
    show(*(terminal if argument is RichConsole else argument for argument in arguments))
    return terminal.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("runs", [2, 20])
def test_a_table_that_is_too_wide_keeps_its_words_whole(runs: int) -> None:
    head = ["run", *(f"certified{number}" for number in range(15))]
    rows = [dict.fromkeys(head, "add-remove") | {"run": f"r{run}.run"} for run in range(runs)]
    shown = at_80_columns(show_table, RichConsole, rows, named(*head))
    assert all(word in shown for word in (*head[1:], f"r{runs - 1}.run", "add-remove"))
    assert max(map(len, shown.splitlines())) <= 80


def test_figures_that_promise_nothing_are_named_so_and_what_is_decided_is_told_once() -> None:
    body = {"pld": 2.382, "clt": 2.325, "mu": 0.5736, "budgets": [], "decision": "may go out"}
    lines = at_80_columns(show_answer, "epsilon", RichConsole, body).splitlines()
    assert [line.split("│")[1].strip() for line in lines if "│" in line] == [
        "pld",
        "clt (nominal)",
        "mu (nominal)",
        "budgets",
    ]


def test_what_is_said_on_the_way_names_options_as_they_are_typed(monkeypatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    Console().say("take another `metric`")
    assert terminal.getvalue() == "take another --metric\n"
