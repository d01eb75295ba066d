"""``dpltm privacy ...``: figures and noise for settings, curves, ledgers, budgets."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands import LEDGER, PRIVATE, certified
from dpltm.cli.console import Console
from dpltm.cli.ledgers import total
from dpltm.errors import BudgetError
from dpltm.options.train import TrainRequest
from dpltm.privacy.entry import Entry
from dpltm.privacy.ledger import Book, Ledger
from dpltm.privacy.mechanisms import Guarantee
from dpltm.tickets.workbench.stages import train
from dpltm.verbs import train as stage

MLP = f"train --dense {PRIVATE} --model mlp:4 --steps 3 --noise-multiplier 2 --json"


@pytest.mark.parametrize(
    ("options", "exact"),
    [
        # one Laplace release: delta(e) = 1 - exp((e - k/b) / 2) for a group of k (Dwork and Roth 2014)
        ("laplace --noise-multiplier 2 --group 3", lambda delta: 1.5 + 2 * math.log(1 - delta)),
        # one of three categories: delta(e) = p - e^e q, p = e^eps / (2 + e^eps), q = 1 / (2 + e^eps)
        ("randomized-response --eps1 1 --categories 3", lambda delta: math.log(math.e - delta * (2 + math.e))),
    ],
)
def test_one_release_costs_what_its_formula_says(cli, options, exact):
    body = cli(f"privacy epsilon --mechanism {options} --delta 0.01 --json").json
    assert exact(0.01) <= body["pld"] == pytest.approx(exact(0.01), rel=1e-3)


def test_releases_of_a_group(cli):
    def priced(options: str) -> dict[str, Any]:
        return cli(f"privacy epsilon --delta 1e-4 {options} --json").json

    one, three = (priced(f"--mechanism gaussian --noise-multiplier 6 --steps 4 --group {group}") for group in (1, 3))
    assert one["pld"] == priced("--noise-multiplier 6 --sampling-rate 1 --steps 4")["pld"]
    assert three["pld"] == priced("--noise-multiplier 2 --sampling-rate 1 --steps 4")["pld"]
    assert (three["group"], three["noise_multiplier"], three["adjacency"]) == (3, 6, "add-remove")
    answers = "--mechanism randomized-response --eps1 0.3"
    assert priced(f"{answers} --group 5")["pld"] == priced(f"{answers} --steps 5")["pld"]
    assert priced(answers)["adjacency"] == "replace-one"
    said = cli("privacy curve --mechanism laplace --noise-multiplier 20 --steps 10 --group 3").out
    assert "laplace, noise multiplier 20, group 3, delta 1e-05, steps 10, adjacency add-remove" in said


def test_curve_and_its_picture(cli):
    setting = "--noise-multiplier 1 --sampling-rate 1 --steps 1"  # one Gaussian: G_1 exactly
    body = cli(f"privacy curve {setting} --plot c.png --json").json
    alpha, beta = body["certified"]["alpha"], body["certified"]["beta"]
    assert body["nominal"]["mu"] == 1
    at = alpha.index(0.05)
    assert beta[at] == pytest.approx(0.7404890, abs=2e-5)  # Phi(Phi^-1(0.95) - 1)
    assert beta[at] <= 0.7404890
    assert "misses at least 74 %" in body["sentence"]
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def spent(cli):
    """A ledger with a public provenance, a draw and a training; returns what the training answered."""
    assert cli(f"select pub {PRIVATE} --eps1 0.5").code == 0
    return cli(f"train pub {PRIVATE} --steps 3 --epsilon 2 --out r --json").json


def test_ledger_recomputes_the_figure_from_the_file_alone(cli, spent):
    body = cli(f"privacy ledger {LEDGER} --json").json
    rows = body["entries"]
    assert [(row["line"], row["kind"], row["dataset"]) for row in rows] == [
        (2, "public", "digits[0.0:0.5]"),
        (3, "release", "digits[0.5:1.0]"),
        (4, "release", "digits[0.5:1.0]"),
    ]
    assert body["privacy"]["certified"] == spent["privacy"]["certified"]
    alone = [row["epsilon"] for row in rows]
    assert alone[0] is None
    assert max(alone[1:]) < certified(spent) < sum(alone[1:])


def test_several_ledgers_come_to_what_they_cost_together(cli):
    """As they would in one file; what two files hold alike, such as a copy, counts once."""
    for ledger, out in ("aa", "bb", "ac"):
        assert cli(f"{MLP} --ledger {ledger}.jsonl --out {out}").code == 0
    one, once, twice, again = (
        cli(f"privacy ledger {files} --json").json
        for files in ("b.jsonl", "a.jsonl", "b.jsonl a.jsonl", "a.jsonl a.jsonl")
    )
    figures = [certified(body) for body in (one, once, twice)]
    assert figures == sorted(set(figures))
    assert len(twice["entries"]) == len(one["entries"]) + len(once["entries"]) == 3
    assert any("a draw that is first in its own ledger" in note for note in twice["privacy"]["notes"])
    assert again["privacy"]["certified"] == once["privacy"]["certified"]


def test_a_budget_is_enforced_before_anything_is_spent(cli, refused, spent):
    (budget,) = cli(f"privacy budget {LEDGER} --epsilon 2.1 --json").json["budgets"]
    assert (budget["epsilon"], budget["unit"], budget["spent"]) == (2.1, "record", certified(spent))
    message = refused(f"select pub {PRIVATE} --eps1 1e-9 --reveal", code=1)
    assert message.startswith("budget: this would bring the population to epsilon ")
    assert "above the budget of 2.1" in message


def test_an_allocation_is_priced_calibrated_and_drawn(cli):
    said = "--sampling allocation:15 --steps 555"
    noise = cli(f"privacy noise --epsilon 2 {said} --json").json
    assert (noise["participations"], noise["sampling_rate"], noise["nominal"]) == (15, 15 / 555, None)
    again = cli(f"privacy epsilon --noise-multiplier {noise['noise_multiplier']} {said} --json").json
    assert again["pld"] == noise["epsilon"] == pytest.approx(2.0, rel=1e-3)
    assert again["nominal"] is None
    curve = cli(f"privacy curve --noise-multiplier {noise['noise_multiplier']} {said} --json").json
    assert curve["epsilon_at_delta"] == noise["epsilon"]
    assert "steps 555, delta 1e-05, adjacency add-remove, participations 15" in curve["of"]


def test_messages_in_several_ledgers_add_up():
    """Whoever is in both sent two. Guarantees with no delta: none is below their sum by more than what delta buys."""

    def book(*kinds: str) -> Book:
        ledger, message = Ledger(), (Guarantee(1.0, adjacency="replace-one"),)
        ledger.declare(*(Entry(kind, mechanisms=message, words="something") for kind in kinds))
        return ledger.book

    assert total([book("local"), book("local")]).epsilon(1e-12) == pytest.approx(2, rel=1e-6)
    assert total([book("release"), book("local", "local")]).epsilon(1e-12) == pytest.approx(3, rel=1e-6)


# --- what a ledger lost is noticed by the next command, however that came about ---


TRAIN = f"train --dense {PRIVATE} --model mlp:2 --steps 1 --batch-size 64 --noise-multiplier"
BOOK, OLDER, LINK = Path("l/l.jsonl"), Path("older.jsonl"), Path("link.jsonl")


@pytest.fixture
def work(tmp_path: Path, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    del cwd  # which ``cli`` would change to
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def lines() -> list[str]:
    return BOOK.read_text().splitlines(keepends=True)


WAYS: dict[str, Callable[[], object]] = {
    "deleted with its folder": lambda: shutil.rmtree("l"),
    "an older copy of the whole folder": lambda: (shutil.rmtree("l"), shutil.copytree("folder", "l")),
    "a link that leads to an older copy now": lambda: (LINK.unlink(), LINK.symlink_to(OLDER)),
    "another ledger in its place": lambda: shutil.copy("other.jsonl", BOOK),
}
"""Others are tried on the file alone, in tests/account/test_account_file.py."""


@pytest.mark.one_of(2)
@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("way", WAYS)
def test_a_ledger_that_was_rolled_back_is_noticed(cli, way):
    """By whatever reads it or would enter something; what was lost can be put back, and it goes on."""
    BOOK.parent.mkdir()
    for epsilon in (3, 2):
        assert cli(f"privacy budget {BOOK} --epsilon {epsilon}").code == 0
    shutil.copytree("l", "folder")
    shutil.copy(BOOK, OLDER)
    LINK.symlink_to(BOOK)
    for path, epsilon in ((LINK, 1), ("other.jsonl", 5)):
        assert cli(f"privacy budget {path} --epsilon {epsilon}").code == 0
    shutil.copytree("l", "whole")
    head = json.loads(lines()[-1])["digest"][:12]
    WAYS[way]()
    named = LINK if "leads" in way else BOOK
    train = f"{TRAIN} 50 --ledger {named} --out run"
    for command in (train, f"privacy budget {named} --epsilon 9", f"privacy budget {named}"):
        done = cli(command)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"error: {named}: ")
        assert head in done.err
        assert done.err.count("\n") == 1
    assert not Path("run").exists()
    shutil.rmtree("l", ignore_errors=True)
    shutil.copytree("whole", "l")
    LINK.unlink()
    LINK.symlink_to(BOOK)
    assert cli(train).code == 0
    assert len(lines()) == 5


@pytest.mark.usefixtures("work")
def test_what_would_just_exceed_is_refused(cli):
    """A ten-thousandth too much; and of what a calibration leaves, nothing."""
    noise = "privacy noise --sampling-rate 64/719 --steps 1 --delta 1e-5 --json"
    settled = cli(f"{noise} --epsilon 1").json
    given = f"{TRAIN} {settled['noise_multiplier']!r} --out all"
    for factor, code in ((0.9999, 1), (1.0001, 0)):
        assert cli(f"privacy budget {LEDGER} --epsilon {factor * settled['epsilon']}").code == 0
        assert cli(f"{given} --dry-run").code == code
    assert cli(given).code == 0
    assert cli(f"{TRAIN} 9 --out more").code == 1
    assert not Path("more").exists()


@pytest.mark.usefixtures("cwd")
def test_two_runs_at_once_do_not_overspend(entries, monkeypatch):
    """Who planned on what the other spent meanwhile plans once more, and nothing is left."""
    early, late = (
        TrainRequest(
            dataset="digits", subset="0.5:1.0", ticket="pub@1", epsilon=1.0, steps=3, out=out, ledger="l.jsonl"
        )
        for out in ("early", "late")
    )
    waiting, calibrate_noise = [early], stage.calibrate_noise

    def calibrate(*arguments, **options):
        """Starts the other run on the same ledger while this one calibrates its noise."""
        if waiting:
            train(waiting.pop(), Console(quiet=True))
        return calibrate_noise(*arguments, **options)

    monkeypatch.setattr(stage, "calibrate_noise", calibrate)
    with pytest.raises(BudgetError):
        train(late, Console(quiet=True))
    assert (Path("early").is_dir(), Path("late").exists(), len(entries("l.jsonl"))) == (True, False, 1)
