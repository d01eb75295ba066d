"""Bugs that were once there, and ways to a certified figure that is too small, each with what showed it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from dpltm.cli.console import Console
from dpltm.errors import BudgetError
from dpltm.options.train import TrainRequest
from dpltm.privacy.figures import figure
from dpltm.tickets.workbench.train import train

PUBLIC = ("--dataset", "digits", "--subset", "0.0:0.5")
PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
TINY = ("--model", "mlp:8", "--rounds", "2", "--prune", "0.3", "--iterations", "5", "--batch-size", "32")
TRAIN = ("train", "pub@1", *PRIVATE, "--steps", "1", "--noise-multiplier", "9")


class SecondRun(Console):
    """A person who starts a second run on the same ledger while the first one calibrates its noise."""

    def __init__(self, second):
        super().__init__(quiet=True)
        self.second, self.answer = second, None

    def say(self, text):
        if text.startswith("calibrating") and self.answer is None:
            self.answer = train(self.second, Console(quiet=True))


@pytest.mark.usefixtures("cwd")
def test_two_runs_at_once_do_not_overspend(entries):
    """Who planned on what the other spent meanwhile plans once more, and nothing is left."""
    early, late = (
        TrainRequest(
            dataset="digits", subset="0.5:1.0", ticket="pub@1", epsilon=1.0, steps=3, out=out, ledger="l.jsonl"
        )
        for out in ("early", "late")
    )
    with pytest.raises(BudgetError):
        train(late, SecondRun(early))
    assert (Path("early").is_dir(), Path("late").exists(), len(entries("l.jsonl"))) == (True, False, 1)


@pytest.mark.parametrize("way", ["in another ledger", "whose ledger is gone"])
def test_a_draw_is_part_of_the_budget_wherever_it_was_entered(cli, way):
    ledger = ("--ledger", "other.jsonl") if way == "in another ledger" else ()
    cli("select", "pub", *PRIVATE, "--eps1", "3", *ledger, "--quiet")
    Path(*ledger[1:] or ("digits.ledger.jsonl",)).unlink()
    done = cli("train", "pub", *PRIVATE, "--steps", "3", "--epsilon", "0.5", "--ledger", "new.jsonl")
    assert done.code == 1
    assert done.err.startswith("error: budget: on these records epsilon 2.99")
    assert " goes to winner of 2 tickets, " in done.err


def test_delta_is_bound_by_the_true_number_of_records(refused):
    options = ("--records", "2", "--delta", "0.4", "--steps", "1", "--epsilon", "1")
    assert "0.4 is not between 0 and 1/n" in refused("train", "--dense", "--dataset", "digits", *options)


@pytest.mark.parametrize(("value", "text"), [(0.1, "0.1"), (2.2693, "2.270"), (1e-7 / 3, "0.00000003334"), (0.0, "0")])
def test_figures_are_rounded_up_but_not_away_from_what_they_are(value, text):
    assert float(figure(value)) == float(text)


def test_nominal_noise_is_doubled_for_replace_one(cli, by_places):
    options = ("--filter", "tanh", "--noise", "nominal", "--noise-multiplier", "1.5", "--adjacency", "replace-one")
    body = cli("train", "pub@1", *by_places, "--steps", "3", *options, "--json").json
    assert body["noise_std"] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--noise-multiplier", "1e200"), "--noise-multiplier: "),
        (("--steps", "1000000000"), "--epochs, --steps: "),
        (("--dataset", "x" * 300 + ".npz"), "x" * 80 + ": File name too long"),
        (("--out", "x" * 300), "--out: "),
        (("--seed", "99999999999999999999"), "--seed: 99999999999999999999 is not between 0 and 2^63 - 1"),
        (("--filter", "tanh", "--no-pre-clip", "--tanh-scale", "1e308"), "--tanh-scale: "),
        (("--filter", "tanh", "--tanh-range", "1e308"), "--tanh-range: "),
    ],
)
def test_values_beyond_reason_are_bad_input(refused, options, named):
    assert refused(*TRAIN, *options).startswith(named)


@pytest.mark.parametrize(("tickets", "more"), [("pri", ()), ("pub", ("--reveal",))])
def test_a_dry_draw_is_certified_as_the_draw_is(cli, tickets, more):
    options = ("select", tickets, *PRIVATE, "--eps1", "0.1", "--ledger", "l.jsonl", *more, "--json")
    planned, done = cli(*options, "--dry-run").json, cli(*options).json
    assert planned["privacy"]["certified"]["epsilon"] == done["privacy"]["certified"]["epsilon"] == "inf"


# --- names ---


@pytest.mark.parametrize("name", ["r[draft]", "r[/b]"])
def test_brackets_in_names(cwd, cli, name):
    (cwd / "r[").mkdir()
    done = cli(*TRAIN, "--out", name)
    assert (done.code, done.err) == (0, "")
    assert f"trained {name}\n" in done.out


# --- what is left behind ---


@pytest.fixture
def full_disk():
    """A limit on file sizes stands for a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda room: resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_ledger_usable(cwd, refused, cli, full_disk):
    full_disk((cwd / "digits.ledger.jsonl").stat().st_size + 100)
    message = refused("select", "pub", *PRIVATE, "--eps1", "0.1")
    full_disk(resource.RLIM_INFINITY)
    assert message.startswith("digits.ledger.jsonl: the ledger cannot be written: ")
    assert "; nothing was spent" in message
    assert cli("select", "pub", *PRIVATE, "--eps1", "0.1", "--quiet").code == 0


def test_accuracies_of_another_set_are_not_written_over(cwd, refused):
    (cwd / "new.private.json").write_text("precious")
    assert refused("generate", *PRIVATE, *TINY, "--provenance", "private", "--out", "new") == (
        "--out: new.private.json exists already; choose another name or remove it first"
    )


@pytest.mark.parametrize("command", [("generate", *PUBLIC, *TINY, "--provenance", "public"), TRAIN])
def test_no_parents_of_a_folder_that_was_not_made(refused, command):
    """The ledger is looked at first, and it cannot be there."""
    refused(*command, "--out", "deep/new", "--ledger", "/proc/none/ledger.jsonl")
