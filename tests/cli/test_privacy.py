"""``dpltm privacy ...``: figures and noise for settings, curves, ledgers, budgets."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from dpltm.privacy.accountants import ACCOUNTANTS, Accountant
from dpltm.privacy.figures import figure

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
RATE = "256/60000"
LEDGER = "digits.ledger.jsonl"
MLP = ("--model", "mlp:4", "--steps", "3", "--noise-multiplier", "2", "--quiet")


def test_steps_and_epochs_say_the_same(cli):
    fixed = ("privacy", "epsilon", "--noise-multiplier", "1.1", "--json")
    epochs = cli(*fixed, "--sampling-rate", RATE, "--epochs", "60").json
    assert cli(*fixed, "--sampling-rate", str(256 / 60000), "--steps", "14062").json == epochs


@pytest.mark.parametrize(("mechanism", "total"), [("exponential", 1.42), ("permute-and-flip", 1.596)])
def test_a_draw_before_the_training(cli, mechanism, total):
    """privacy-model.md 5.5: DP-SGD alone 1.134; a draw at eps1 0.5 brings 1.42 as bounded range, 1.596 as pure DP."""
    setting = ("--noise-multiplier", "1.1", "--sampling-rate", RATE, "--steps", "3515")
    assert cli("privacy", "epsilon", *setting, "--json").json["pld"] == pytest.approx(1.134, abs=1e-3)
    body = cli("privacy", "epsilon", *setting, "--eps1", "0.5", "--mechanism", mechanism, "--json").json
    assert body["pld"] == pytest.approx(total, abs=2e-3)


def test_noise_keeps_to_the_budget_and_uses_it(cli):
    setting = ("--sampling-rate", RATE, "--steps", "2000", "--eps1", "0.2", "--json")
    body = cli("privacy", "noise", "--epsilon", "1.5", *setting).json
    again = cli("privacy", "epsilon", "--noise-multiplier", repr(body["noise_multiplier"]), *setting).json
    assert again["pld"] == body["epsilon"]
    assert 1.5 * (1 - 1e-3) <= body["epsilon"] <= 1.5


def test_a_search_that_ends_at_its_limit_says_so(cli):
    body = cli("privacy", "noise", "--epsilon", "10000", "--sampling-rate", "0.01", "--steps", "10", "--json").json
    assert body["epsilon"] < 1000
    assert any("not all of the budget is used" in note for note in body["notes"])


@pytest.fixture
def loose():
    """Another accountant, for one test."""
    ACCOUNTANTS.register(Accountant("loose", True, "certified, absurdly loose", "this test", lambda *_: 7.0))
    yield
    ACCOUNTANTS.unregister("loose")


@pytest.mark.usefixtures("loose")
def test_an_accountant_that_was_registered_in_one_line(cli, refused):
    setting = ("--noise-multiplier", "1", "--sampling-rate", "0.01", "--steps", "100")
    assert cli("privacy", "epsilon", *setting, "--json").json["loose"] == 7
    assert "certified, absurdly loose" in cli("privacy", "epsilon", *setting).out
    body = cli("privacy", "noise", "--epsilon", "8", *setting[2:], "--accountant", "loose", "--json").json
    assert (body["epsilon"], body["accountant"]) == (7, "loose")
    assert refused("privacy", "noise", "--epsilon", "8", *setting[2:], "--accountant", "clt") == (
        "--accountant: clt is an approximation and can neither calibrate noise nor satisfy a budget; use pld, rdp, ma or"
        " loose"
    )


def test_curve_files(cli):
    setting = ("--noise-multiplier", "1", "--sampling-rate", "1", "--steps", "1")  # one Gaussian: G_1 exactly
    body = cli("privacy", "curve", *setting, "--csv", "c.csv", "--plot", "c.png", "--json").json
    alpha, beta = body["certified"]["alpha"], body["certified"]["beta"]
    assert body["nominal"]["mu"] == 1
    at = alpha.index(0.05)
    assert beta[at] == pytest.approx(0.7404890, abs=2e-5)  # Phi(Phi^-1(0.95) - 1)
    assert beta[at] <= 0.7404890
    assert body["sentence"].startswith("at 5 % false alarms, an attacker")
    assert "misses at least 74 %" in body["sentence"]
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")
    with Path("c.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["y"]) for row in rows if row["curve"] == "misses"] == beta
    assert [float(row["x"]) for row in rows if row["curve"] == "delta"] == body["certified"]["epsilon"]


@pytest.fixture
def spent(cli):
    """A ledger with a public provenance, a draw and a training; returns what the training answered."""
    cli("select", "pub", *PRIVATE, "--eps1", "0.5", "--quiet")
    return cli("train", "pub", *PRIVATE, "--steps", "3", "--epsilon", "2", "--out", "r", "--json").json


def test_ledger_recomputes_the_figure_from_the_file_alone(cli, spent):
    body = cli("privacy", "ledger", LEDGER, "--json").json
    rows = body["entries"]
    assert [(row["line"], row["kind"], row["dataset"]) for row in rows] == [
        (2, "public", "digits[0.0:0.5]"),
        (3, "release", "digits[0.5:1.0]"),
        (4, "release", "digits[0.5:1.0]"),
    ]
    assert "3 steps" in rows[2]["words"]
    assert body["privacy"]["certified"] == spent["privacy"]["certified"]
    alone = [row["epsilon"] for row in rows]
    assert alone[0] is None
    assert max(alone[1:]) < spent["privacy"]["certified"]["epsilon"] < sum(alone[1:])


def test_several_ledgers_come_to_what_they_cost_together(cli):
    """As they would in one file; what two files hold alike, such as a copy, counts once."""
    both = [cli("train", "--dense", *PRIVATE, *MLP, "--ledger", f"{at}.jsonl", "--out", at) for at in "ab"]
    assert [done.code for done in both] == [0, 0]
    cli("train", "--dense", *PRIVATE, *MLP, "--ledger", "a.jsonl", "--out", "c")
    one, once, twice = (
        cli("privacy", "ledger", *files, "--json").json
        for files in (("b.jsonl",), ("a.jsonl",), ("b.jsonl", "a.jsonl"))
    )
    figures = [body["privacy"]["certified"]["epsilon"] for body in (one, once, twice)]
    assert figures == sorted(set(figures))
    assert len(twice["entries"]) == len(one["entries"]) + len(once["entries"]) == 3
    assert any("a draw is the first release only in the ledger" in note for note in twice["privacy"]["notes"])
    again = cli("privacy", "ledger", "a.jsonl", "a.jsonl", "--json").json
    assert again["privacy"]["certified"] == once["privacy"]["certified"]


def test_the_best_of_several_runs_is_told_for_what_it_costs(cli):
    few = (*MLP[:-1], "--json")
    first, second = (cli("train", "--dense", *PRIVATE, *few, "--lr", lr, "--out", lr).json for lr in ("0.5", "1"))
    assert not any("keeps the best" in note for note in first["privacy"]["notes"])
    both = second["privacy"]["certified"]["epsilon"]
    naive = (
        "2 trainings on digits[0.5:1.0] may differ in settings alone: whoever keeps the best of them pays for all,"
        f" epsilon {figure(both)} together, and for scores on private records on top (--eval-private)"
    )
    assert naive in second["privacy"]["notes"]
    told, paid = cli("privacy", "ledger", LEDGER, "--json").json["privacy"]["notes"][:2]
    assert told == naive
    assert paid.startswith("a search that is paid for (dpltm tune --private --tries 2) would have cost epsilon ")
    assert naive in " ".join(cli("privacy", "ledger", LEDGER).out.split())


def test_what_is_stated_for_two_relations_adds_up_to_the_stronger_one(cli):
    """A replacement is a removal and an addition, so what holds for these counts twice at most."""
    for adjacency in ("add-remove", "replace-one"):
        options = (*MLP, "--ledger", "l.jsonl", "--adjacency", adjacency, "--out", adjacency)
        assert cli("train", "--dense", *PRIVATE, *options).code == 0
    body = cli("privacy", "ledger", "l.jsonl", "--json").json
    alone = [row["epsilon"] for row in body["entries"]]
    certified = body["privacy"]["certified"]
    assert certified["adjacency"] == "replace-one"
    assert max(alone) < certified["epsilon"] <= 2 * alone[0] + alone[1]
    curve = cli("privacy", "curve", "--ledger", "l.jsonl", "--json").json
    assert curve["epsilon_at_delta"] >= certified["epsilon"]


def test_a_budget_is_enforced_before_anything_is_spent(cli, refused, spent):
    (budget,) = cli("privacy", "budget", LEDGER, "--epsilon", "2.1", "--json").json["budgets"]
    assert (budget["epsilon"], budget["unit"]) == (2.1, "record")
    assert budget["spent"] == spent["privacy"]["certified"]["epsilon"]
    for command in (
        ("select", "pub", *PRIVATE, "--eps1", "0.5", "--dry-run"),
        ("select", "pub", *PRIVATE, "--eps1", "1e-9", "--reveal"),
        ("train", "pub", *PRIVATE, "--steps", "3", "--epsilon", "4", "--out", "s"),
        ("train", "pub", *PRIVATE, "--steps", "3", "--epsilon", "4", "--dry-run"),
        ("synthesize", *PRIVATE, "--epsilon", "4", "--out", "s.npz", "--dry-run"),
        ("train", "pri@1", *PRIVATE, "--steps", "3", "--noise-multiplier", "9", "--out", "s"),
    ):
        message = refused(*command, code=1)
        assert message.startswith("budget: this would bring the population to epsilon "), command
        assert "above the budget of 2.1" in message
    cli("privacy", "budget", LEDGER, "--epsilon", "5", "--quiet")  # the last one counts
    assert cli("train", "pub", *PRIVATE, "--steps", "3", "--epsilon", "4", "--out", "s", "--quiet").code == 0


GOOD = {"noise-multiplier": "1.1", "sampling-rate": "0.01", "steps": "100"}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("noise-multiplier", "0", "0 is not a positive number up to 1e+06"),
        ("noise-multiplier", "nan", "nan is not a positive number up to 1e+06"),
        ("sampling-rate", "0", "0 is not above 0 and at most 1"),
        ("sampling-rate", "1.5", "1.5 is not above 0 and at most 1"),
        ("sampling-rate", "nan", "nan is not above 0 and at most 1"),
        ("sampling-rate", "1/0", "1/0 is not above 0 and at most 1"),
        ("sampling-rate", "many", "'many' is not a number or a fraction, such as 0.01 or 256/60000"),
        ("steps", "0", "0 is not a positive whole number"),
        ("delta", "0", "0 is not between 1e-15 and 1"),
        ("delta", "1", "1 is not between 1e-15 and 1"),
        ("delta", "nan", "nan is not between 1e-15 and 1"),
        ("eps1", "0", "0 is not a positive number up to 10000"),
        ("adjacency", "both", "'both' is not one of add-remove, replace-one"),
    ],
)
def test_settings_out_of_range(refused, option, value, message):
    given = [part for name, text in (GOOD | {option: value}).items() for part in (f"--{name}", text)]
    for command in ("epsilon", "curve"):
        assert refused("privacy", command, *given) == f"--{option}: {message}"


TWO = "--noise-multiplier, --sampling-rate, --steps: give two of them; the third is what the budget allows"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("epsilon GOOD --epochs 3", "--steps or --epochs: give one of them"),
        ("noise GOOD", "--epsilon is missing: the whole budget, such as 1"),
        ("noise GOOD --epsilon 1", TWO),
        ("noise --epsilon 1 --steps 3", TWO),
        ("noise --epsilon -1 --sampling-rate 0.1 --steps 3", "--epsilon: -1 is not a positive number up to 10000"),
        ("curve GOOD --plot c.jpg", "c.jpg: not a picture; let its name end in .png, .svg, .pdf"),
        ("curve GOOD --plot pub", "--plot: pub exists already; choose another name or remove it first"),
        (
            "curve --ledger l.jsonl --steps 3",
            "--steps: the --ledger holds the settings; leave --steps out",
        ),
        ("ledger none.jsonl", "none.jsonl: no such ledger file; name one, such as dpltm.ledger.jsonl"),
    ],
)
def test_refused(refused, command, message):
    good = " ".join(f"--{name} {text}" for name, text in GOOD.items())
    assert refused("privacy", *command.replace("GOOD", good).split()) == message
