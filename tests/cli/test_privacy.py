"""``dpltm privacy ...``: figures and noise for settings, curves, ledgers, budgets."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from dpltm.privacy.accountants import ACCOUNTANTS, Accountant
from dpltm.privacy.figures import figure

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
RATE = "256/60000"
FEW = ("--steps", "3", "--noise-multiplier", "2", "--ledger", "l.jsonl", "--quiet")


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
    body = cli("privacy", "ledger", "pub/ledger.jsonl", "--json").json
    assert [event["line"] for event in body["events"]] == [2, 3, 4]
    assert "before any other release" in body["events"][1]["words"]
    assert "3 steps of training" in body["events"][2]["words"]
    assert body["privacy"]["certified"] == spent["privacy"]["certified"]
    (dataset,) = body["datasets"]
    assert dataset["privacy"]["certified"] == spent["privacy"]["certified"]
    assert [part["records"] for part in dataset["parts"]] == ["0.0:0.5", "0.5:1.0"]
    assert dataset["parts"][0]["epsilon"] == 0
    copy = cli("privacy", "ledger", "r/ledger.jsonl", "--json").json  # the run carries its own copy
    assert copy["privacy"]["certified"] == spent["privacy"]["certified"]


def test_a_ledger_tells_what_others_hold_on_the_same_records(cli, cwd, spent):
    """Each release once, whichever ledgers hold it, and nothing of records with nobody in common."""
    rows = cli("privacy", "ledger", "pub/ledger.jsonl", "--json").json["datasets"]
    assert [row["elsewhere"] for row in rows] == [None]  # the run has a copy
    few = ("--model", "mlp:4", "--steps", "3", "--noise-multiplier", "2", "--quiet")
    cli("train", "--dense", *PRIVATE, *few, "--out", "own")
    cli(
        "train", "--dense", "--dataset", "digits", "--subset", "0.0:0.5", *few, "--ledger", "apart.jsonl", "--out", "p"
    )
    cli("train", "--dense", *PRIVATE, *few, "--ledger", "l.jsonl", "--out", "s")
    Path("l.jsonl").unlink()
    body = cli("privacy", "ledger", "pub/ledger.jsonl", "--json").json
    (row,) = body["datasets"]
    places = {each["ledger"]: each["events"] for each in row["elsewhere"]["ledgers"]}
    assert places == {str(cwd / "own/ledger.jsonl"): 1, str(cwd / "l.jsonl"): 1}
    assert row["elsewhere"]["events"] == 2
    assert row["privacy"]["certified"] == spent["privacy"]["certified"]  # the figure of this ledger stays its own
    cli("privacy", "restore", "l.jsonl")
    for each in ("own/ledger.jsonl", "l.jsonl"):
        (other,) = cli("privacy", "ledger", each, "--json").json["datasets"]
        assert other["elsewhere"]["epsilon"] == row["elsewhere"]["epsilon"]
    assert row["elsewhere"]["epsilon"] > spent["privacy"]["certified"]["epsilon"]
    said = cli("privacy", "ledger", "pub/ledger.jsonl").out
    assert "with 2 more in other ledgers: epsilon" in said
    assert f"  1 in {cwd / 'own/ledger.jsonl'}\n" in said


def test_the_best_of_several_runs_is_told_for_what_it_costs(cli):
    """Each run with a ledger of its own, as who tries step sizes has them."""
    few = ("--model", "mlp:4", "--steps", "3", "--noise-multiplier", "2", "--json")
    first, second = (cli("train", "--dense", *PRIVATE, *few, "--lr", lr, "--out", lr).json for lr in ("0.5", "1"))
    assert not any("keeps the best" in note for note in first["privacy"]["notes"])
    naive = second["privacy"]["notes"][-1]
    (row,) = cli("privacy", "ledger", "0.5/ledger.jsonl", "--json").json["datasets"]
    both = row["elsewhere"]["epsilon"]
    assert both > second["privacy"]["certified"]["epsilon"]
    assert naive == (
        "2 trainings on digits[0.5:1.0], in all ledgers of this user, each of 310 live weights, may differ in settings"
        f" alone: whoever keeps the best of them pays for all, epsilon {figure(both)} together, and for scores on private"
        " records on top (--eval-private)"
    )
    told, paid = row["elsewhere"]["notes"]
    assert told == naive
    assert paid.startswith("a search that is paid for (dpltm tune --private --tries 2) would have cost epsilon ")
    assert "keeps the best" not in Path("1/result.json").read_text(
        encoding="utf-8"
    )  # what is published tells of no other run
    assert naive in cli("privacy", "ledger", "0.5/ledger.jsonl").out.replace("\n", " ")


def test_a_ledger_tells_of_others_that_are_stated_for_another_relation(cli):
    """Both together are a guarantee for replace-one, as budgets have it."""
    few = ("--model", "mlp:4", "--steps", "3", "--noise-multiplier", "2", "--quiet")
    for adjacency in ("add-remove", "replace-one"):
        cli("train", "--dense", *PRIVATE, *few, "--adjacency", adjacency, "--out", adjacency)
    one, other = (
        cli("privacy", "ledger", f"{name}/ledger.jsonl", "--json").json["datasets"][0]
        for name in ("add-remove", "replace-one")
    )
    assert one["privacy"]["certified"]["adjacency"] == "add-remove"
    assert one["elsewhere"]["epsilon"] == other["elsewhere"]["epsilon"]
    alone = [row["privacy"]["certified"]["epsilon"] for row in (one, other)]
    assert max(alone) < one["elsewhere"]["epsilon"] <= 2 * alone[0] + alone[1]


def test_a_budget_is_enforced_before_anything_is_spent(cli, refused, spent):
    body = cli("privacy", "budget", "pub/ledger.jsonl", *PRIVATE, "--epsilon", "2.1", "--json").json
    (budget,) = body["budgets"]
    assert (budget["dataset"], budget["epsilon"]) == ("digits[0.5:1.0]", 2.1)
    assert budget["spent"] == spent["privacy"]["certified"]["epsilon"]
    noisy = ("--steps", "3", "--noise-multiplier", "9", "--ledger", "pub/ledger.jsonl", "--out", "s")
    for command in (
        ("select", "pub", *PRIVATE, "--eps1", "0.5", "--dry-run"),
        ("select", "pub", *PRIVATE, "--eps1", "1e-9", "--reveal"),
        ("train", "pub", *PRIVATE, "--steps", "3", "--epsilon", "4", "--out", "s"),
        ("train", "pri@1", *PRIVATE, *noisy),
    ):
        message = refused(*command, code=1)
        assert message.startswith("budget: this would bring digits[0.5:1.0] to epsilon "), command
        assert "above the budget of 2.1" in message
    cli("privacy", "budget", "pub/ledger.jsonl", *PRIVATE, "--epsilon", "5", "--quiet")  # the last one counts
    assert cli("train", "pub", *PRIVATE, "--steps", "3", "--epsilon", "4", "--out", "s", "--quiet").code == 0


def test_one_name_does_not_hide_what_the_same_records_went_through_under_another(cli):
    """Records are known by their fingerprint; a copy of the file under another name is the same records."""
    x, y = np.arange(400, dtype=np.float32).reshape(100, 4) / 400, np.arange(100) % 2
    for name in ("one", "two"):
        np.savez(f"{name}.npz", x_train=x, y_train=y)
        fixed = ("--dataset", f"{name}.npz", "--bounds", "0,1", "--delta", "1e-3", "--model", "mlp:4", "--out", name)
        assert cli("train", "--dense", *fixed, *FEW).code == 0
    whole, named = (cli("privacy", "ledger", "l.jsonl", *of, "--json").json for of in ((), ("--dataset", "two")))
    assert named["privacy"]["certified"] == whole["privacy"]["certified"]
    (dataset,) = named["datasets"]
    assert any("go by one, two" in note for note in dataset["privacy"]["notes"])
    curve = cli("privacy", "curve", "--ledger", "l.jsonl", "--dataset", "two", "--json").json
    assert curve == {**cli("privacy", "curve", "--ledger", "l.jsonl", "--json").json, "of": "two"}


def test_a_ledger_of_two_relations_has_no_common_curve(cli, refused):
    for part, adjacency in (("0:719", "add-remove"), ("719:1438", "replace-one")):
        fixed = ("--dataset", "digits", "--subset", part, "--model", "mlp:4", "--adjacency", adjacency)
        assert cli("train", "--dense", *fixed, *FEW, "--out", adjacency).code == 0
    body = cli("privacy", "ledger", "l.jsonl", "--json").json
    assert body["privacy"]["certified"]["adjacency"] == "add-remove"  # at the same multiplier it has half the noise
    assert "no common curve" in refused("privacy", "curve", "--ledger", "l.jsonl")


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
            "curve GOOD --dataset digits",
            "--dataset: picks records out of a --ledger; name one, or leave --dataset out",
        ),
        (
            "curve --ledger pub/ledger.jsonl --steps 3",
            "--steps: the --ledger holds the settings; leave --steps out",
        ),
        (
            "ledger pub/ledger.jsonl --dataset mnist",
            "--dataset: pub/ledger.jsonl holds nothing on 'mnist'; it holds digits",
        ),
        ("ledger none.jsonl", "none.jsonl: no such ledger file; name one, such as SET/ledger.jsonl"),
    ],
)
def test_refused(refused, command, message):
    good = " ".join(f"--{name} {text}" for name, text in GOOD.items())
    assert refused("privacy", *command.replace("GOOD", good).split()) == message
