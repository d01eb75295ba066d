"""Progress on a terminal, and the command to type next."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from dpltm.cli import progress as shown_progress
from dpltm.cli.console import Console
from dpltm.cli.next import after
from dpltm.cli.progress import clock, in_lines
from dpltm.cli.show import shown
from dpltm.options.generate import GenerateRequest
from dpltm.options.latent import EncodeRequest, SchemeRequest
from dpltm.options.run import DemoRequest, RunRequest
from dpltm.options.select import SelectRequest
from dpltm.options.synthesize import SynthesizeRequest
from dpltm.options.tickets import PullRequest, PushRequest
from dpltm.options.train import TrainRequest
from dpltm.options.tune import TuneRequest


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, *, term: str = "xterm", width: int = 120) -> Terminal:
    """Standard error as a terminal; called in the test, since pytest sets its own again before."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    for name, value in (("TERM", term), ("COLUMNS", str(width))):
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return stream


# --- progress ---


@pytest.mark.parametrize("text", ["a [/b] c", "[bold]a", "[link=x]"])
def test_progress_of_a_title_with_brackets(monkeypatch, text: str) -> None:
    terminal = at_a_terminal(monkeypatch)
    with Console().progress(text, 2) as step:
        step(1, text)
    assert terminal.getvalue().count(text) >= 2


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_stands_still_without_a_word(monkeypatch, width: int) -> None:
    terminal = at_a_terminal(monkeypatch, width=width)
    with Console().progress("training under DP", 60_000) as step:
        pass
    assert "0/60,000" in terminal.getvalue()
    assert "starting" in terminal.getvalue()
    with Console().progress("training under DP", 60_000) as step:
        step(60_000, "epsilon so far 0.9994, accuracy 91.92 %")
    assert "60,000/60,000 in 0:00:00" in terminal.getvalue()
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
    ("given", "text"),
    [
        ((3.9, None), "0:00:03 so far"),
        ((3.9, 75.2), "0:01:15 left"),
        ((3700.0, 0.0, True), "in 1:01:40"),
    ],
)
def test_the_clock(given: tuple[Any, ...], text: str) -> None:
    elapsed, left, *done = given
    assert clock(elapsed, left, done=bool(done)) == text


def test_lines_on_a_terminal_that_redraws_none(monkeypatch) -> None:
    clock_shows, said = [100.0], list[str]()
    monkeypatch.setattr(shown_progress.time, "monotonic", lambda: clock_shows[0])
    step = in_lines("training under DP", 2000, said.append)
    assert said == ["training under DP: starting, 2,000 to do"]
    for clock_shows[0], done, note in (
        (101.0, 10, "epsilon so far 0.1"),
        (110.0, 100, "epsilon so far 0.2"),
        (111.0, 110, "epsilon so far 0.3"),
        (120.0, 200, ""),
        (121.0, 2000, "epsilon so far 0.9"),
    ):
        step(done, note)
    assert said[1:] == [
        "training under DP 100/2,000, 0:03:10 left, epsilon so far 0.2",
        "training under DP 200/2,000, 0:03:00 left, epsilon so far 0.3",
        "training under DP 2,000/2,000, in 0:00:21, epsilon so far 0.9",
    ]


def test_a_dumb_terminal_gets_lines(monkeypatch) -> None:
    terminal, console = at_a_terminal(monkeypatch, term="dumb"), Console()
    with console.at_work(), console.progress("training", 2) as step:
        step(2, "epsilon so far 1")
    assert terminal.getvalue().splitlines() == [
        "loading libraries and records",
        "training: starting, 2 to do",
        "training 2/2, in 0:00:00, epsilon so far 1",
    ]


# --- figures ---


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("accuracy", 0.91922, "91.92 %"),
        ("density", 1.0, "100.00 %"),
        ("epsilon", 0.99941234, "0.9995"),  # never too small
        ("eps1", 0.1, "0.1"),
        ("epsilon", "inf", "inf"),
        ("live", 1234567, "1,234,567"),
        ("steps", 999, "999"),
        ("noise multiplier", 2.91217, "2.912"),
        ("delta", 1e-5, "1e-05"),
        ("lower bound", 0.55129, "0.5512"),  # never too large
        ("bound, scores", 2.00019, "2"),
        ("dry run", True, "True"),
        ("dataset", "digits", "digits"),
    ],
)
def test_figures_have_one_format(name: str, value: object, text: str) -> None:
    assert shown(name, value) == text


# --- what to type next ---

DIGITS = {"dataset": "digits", "subset": "0.5:1.0"}
TICKETS = {"ticket_set": "my digits.tickets", "tickets": [{"round": 0}, {"round": 7}]}


READ = "--score additive --eps1 0.1"
NEXT = [
    (
        GenerateRequest(dataset="digits", subset="0.0:0.5", ledger="l.jsonl"),
        {**TICKETS, "provenance": "public"},
        f"select 'my digits.tickets' --dataset PRIVATE --ledger l.jsonl {READ}",
        "train 'my digits.tickets@7' --dataset PRIVATE --ledger l.jsonl --epsilon E",
    ),
    (
        GenerateRequest(dataset="a b.csv", label="y", bounds="0,1", classes=2),
        {**TICKETS, "ticket_set": "t", "provenance": "private"},
        f"select t --dataset 'a b.csv' --label y --bounds 0,1 --classes 2 {READ}",
        "train t@7 --dataset 'a b.csv' --label y --bounds 0,1 --classes 2 --epsilon E",
    ),
    (
        SelectRequest(**DIGITS, ledger="all.jsonl"),
        {"ticket_set": "t"},
        "train t --dataset digits --subset 0.5:1.0 --ledger all.jsonl --epsilon E",
    ),
    (SelectRequest(rule="smallest-within"), {"ticket_set": "t"}, "train t --dataset PRIVATE --epsilon E"),
    (
        TrainRequest(dataset="p.csv", unit_column="who", audit=9),
        {"run": "r", "accuracy": None},
        "audit r",
        "evaluate r --dataset p.csv --unit-column who --test FILE",
        "predict r --input FILE -o predicted.csv",
    ),
    (TrainRequest(**DIGITS), {"dry_run": True}),
    (
        TuneRequest(dataset="kmnist", out="best.toml", epsilon=0.5),
        {"config": "best.toml"},
        "train --dataset PRIVATE --config best.toml --epsilon 0.5",
    ),
    (TuneRequest(dataset="kmnist", epsilon=0.5), {"config": None}),
    (DemoRequest(), {"train": {}}),
    (
        DemoRequest(out="demo"),
        {"train": {}},
        "evaluate demo/run --dataset digits",
        "predict demo/run --input FILE -o predicted.csv",
        "privacy ledger demo/ledger.jsonl",
    ),
    (RunRequest(out="r.sweep"), {"arms": []}),
    (SchemeRequest(out="s"), {}, "latent encode s --dataset PRIVATE --out MESSAGES"),
    (EncodeRequest(scheme="s", out="m.msg"), {}, "latent train s --messages m.msg --out RUN"),
    (
        SynthesizeRequest(**DIGITS),
        {"synthetic": "my made.npz", "ledger": "made.jsonl"},
        "generate --dataset 'my made.npz' --provenance public --out TICKETS",
        "privacy ledger made.jsonl",
    ),
    (
        PushRequest(set="a", dest="shared/a"),
        {"pushed": "shared/a", "digest": "ab"},
        "tickets pull shared/a --digest ab --out DIR",
    ),
    (  # without predictors there is nothing to draw by
        PullRequest(source="hf://me/a"),
        {"ticket_set": "a.tickets", "tickets": [{"round": 0}, {"round": 3}], "predictors": False},
        "train a.tickets@3 --dataset PRIVATE --epsilon E",
    ),
]


@pytest.mark.parametrize("case", NEXT, ids=lambda case: type(case[0]).__name__)
def test_what_to_type_next(case: tuple[Any, ...]) -> None:
    request, body, *commands = case
    assert after(request, body) == [f"dpltm {command}" for command in commands]


def test_next_goes_to_a_terminal_alone(monkeypatch, capsys) -> None:
    terminal = at_a_terminal(monkeypatch)
    request, body = TrainRequest(**DIGITS), {"run": "r", "accuracy": None}
    for how in ({"as_json": True}, {"quiet": True}):
        Console(**how).result(body, lambda rich: rich.print("table"), request)
    assert terminal.getvalue() == ""
    capsys.readouterr()
    Console().result(body, lambda rich: rich.print("table"), request)
    assert capsys.readouterr().out == "table\n"
    assert terminal.getvalue().splitlines() == [
        "next: dpltm evaluate r --dataset digits --subset 0.5:1.0 --test FILE",
        "      dpltm predict r --input FILE -o predicted.csv",
    ]
