"""Progress on a terminal, and figures for people."""

import io
import sys

import pytest

from dpltm.cli.console import Console
from dpltm.cli.show import shown


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


def test_says_that_it_is_loading_until_there_is_more_to_say(monkeypatch) -> None:
    terminal, console = at_a_terminal(monkeypatch), Console()
    with console.at_work():
        console.say("calibrating")
        before = terminal.getvalue()
        assert before.endswith("calibrating\n")
        assert "loading libraries and records" in before
        console.say("training")
    assert terminal.getvalue() == f"{before}training\n"


@pytest.mark.parametrize("how", [{"quiet": True}, {}])
def test_is_silent_where_nobody_looks(capsys, how: dict[str, bool]) -> None:
    console = Console(**how)
    with console.at_work(), console.progress("training", 2) as step:
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
        ("dry run", True, "True"),
        ("dataset", "digits", "digits"),
    ],
)
def test_figures_have_one_format(name: str, value: object, text: str) -> None:
    assert shown(name, value) == text
