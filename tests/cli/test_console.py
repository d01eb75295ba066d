"""Progress on a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from dpltm.cli.console import Console


@pytest.mark.parametrize("text", ["a [/b] c", "[bold]a", "[link=x]"])
def test_progress_of_a_title_with_brackets(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with Console().progress(text, 2) as step:
        step(1, text)
    assert stream.getvalue().count(text) >= 2
