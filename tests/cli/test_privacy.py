"""``dpltm privacy ...``: the golden table, calibration, curves, ledgers in words, budgets; and training that uses them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from dpltm.privacy.accountants import ACCOUNTANTS, CERTIFIED, Accountant, register

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
RATE = "256/60000"

# privacy-model.md 5.5 (GDP Table 1) and the GDP paper's other tasks: sigma, q, epochs, delta, mu, clt, ma, pld
GOLDEN = [
    (1.3, RATE, 15, "1e-5", 0.2273, 0.835, 1.19, 0.8646),
    (1.1, RATE, 60, "1e-5", 0.5736, 2.324, 3.01, 2.382),
    (0.7, RATE, 45, "1e-5", 1.1339, 5.066, 7.10, 5.640),
    (0.6, RATE, 62, "1e-5", 1.9975, 9.982, 13.27, 10.950),
    (0.55, RATE, 68, "1e-5", 2.7608, 14.984, 18.72, 15.717),
    (0.5, RATE, 100, "1e-5", 4.7822, 31.117, 32.35, 28.05),
    (0.56, "512/25000", 9, "1e-5", None, 10.43, 15.24, 12.14),
    (0.55, "256/29305", 18, "1e-5", None, 10.20, 14.7, 11.81),
    (0.6, "1/80", 20, "1e-6", None, 10.61, 15.39, 12.75),
]


@pytest.mark.parametrize(("sigma", "q", "epochs", "delta", "mu", "clt", "ma", "pld"), GOLDEN)
def test_golden_table(cli, sigma, q, epochs, delta, mu, clt, ma, pld):
    setting = ("--noise-multiplier", sigma, "--sampling-rate", q, "--epochs", epochs, "--delta", delta)
    body = cli("privacy", "epsilon", *setting, "--json").json
    assert body["pld"] == pytest.approx(pld, rel=1e-3)
    assert body["clt"] == pytest.approx(clt, rel=1e-3)
    assert body["ma"] == pytest.approx(ma, rel=5e-3)
    assert body["pld"] <= body["rdp"] <= body["ma"]
    if mu is not None:
        assert body["mu"] == pytest.approx(mu, abs=5e-5)
    side = "below" if body["clt"] < body["pld"] else "above"
    gap = abs(body["clt"] - body["pld"]) / body["pld"]
    assert f"({gap:.1%}) {side} the certified one" in body["notes"][0]


def test_steps_and_epochs_say_the_same(cli):
    fixed = ("privacy", "epsilon", "--noise-multiplier", "1.1", "--json")
    assert (
        cli(*fixed, "--sampling-rate", RATE, "--epochs", "60").json
        == cli(*fixed, "--sampling-rate", str(256 / 60000), "--steps", "14062").json
    )


@pytest.mark.parametrize(("mechanism", "total"), [("exponential", 1.42), ("permute-and-flip", 1.596)])
def test_a_draw_before_the_training(cli, mechanism, total):
    """privacy-model.md 5.5: DP-SGD alone 1.134; a draw at eps1 0.5 brings 1.42 as bounded range, 1.596 as pure DP."""
    setting = ("--noise-multiplier", "1.1", "--sampling-rate", RATE, "--steps", "3515")
    assert cli("privacy", "epsilon", *setting, "--json").json["pld"] == pytest.approx(1.134, abs=1e-3)
    body = cli("privacy", "epsilon", *setting, "--eps1", "0.5", "--mechanism", mechanism, "--json").json
    assert body["pld"] == pytest.approx(total, abs=2e-3)


def test_the_paper_s_slack_is_nominal(cli):
    """GDP, Figure 4: at 20 epochs and sigma 1.3 the moments accountant gives 1.34, the CLT would allow 1.06."""
    setting = ("--noise-multiplier", "1.3", "--sampling-rate", RATE, "--epochs", "20")
    body = cli("privacy", "epsilon", *setting, "--json").json
    assert body["ma"] == pytest.approx(1.345, abs=5e-3)  # printed as 1.34; the paper cuts its figures off
    assert body["nominal"]["noise_multiplier"] == pytest.approx(1.06, abs=5e-3)


@pytest.mark.parametrize("accountant", ["pld", "rdp", "ma"])
def test_noise_keeps_to_the_budget_and_uses_it(cli, accountant):
    setting = ("--sampling-rate", RATE, "--steps", "2000", "--accountant", accountant, "--json")
    body = cli("privacy", "noise", "--epsilon", "1.5", "--eps1", "0.2", *setting).json
    assert (body["found"], body["accountant"]) == ("noise_multiplier", accountant)
    again = cli(
        "privacy", "epsilon", "--noise-multiplier", repr(body["noise_multiplier"]), "--sampling-rate", RATE,
        "--steps", "2000", "--eps1", "0.2", "--json",
    ).json  # fmt: skip
    assert again[accountant] == body["epsilon"]
    assert 1.5 * (1 - 1e-3) <= body["epsilon"] <= 1.5
    assert body["nominal"]["noise_multiplier"] > 0


@pytest.fixture
def loose():
    """Another accountant, for one test."""
    register(Accountant("loose", True, "certified, absurdly loose", "this test", lambda *_: 7.0))
    yield
    del ACCOUNTANTS["loose"], CERTIFIED["loose"]


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


def test_noise_finds_steps_and_rates_too(cli):
    fixed = ("privacy", "noise", "--epsilon", "1", "--noise-multiplier", "1.1", "--json")
    steps = cli(*fixed, "--sampling-rate", RATE).json
    assert (steps["found"], steps["nominal"]) == ("steps", None)
    rate = cli(*fixed, "--steps", steps["steps"]).json
    assert rate["sampling_rate"] == pytest.approx(256 / 60000, rel=2e-3)
    assert max(steps["epsilon"], rate["epsilon"]) <= 1


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


@pytest.mark.usefixtures("spent")
def test_ledger_in_words(cli):
    done = cli("privacy", "ledger", "pub/ledger.jsonl", "--accountant", "clt")
    text = " ".join(done.out.split())
    for words in (
        "line 3",
        "a winner drawn from 2 tickets",
        "certified epsilon =",
        "nominal epsilon =",
        "promises nothing",
    ):
        assert words in text


@pytest.mark.usefixtures("spent")
def test_curve_of_a_ledger(cli):
    body = cli("privacy", "curve", "--ledger", "pub/ledger.jsonl", "--dataset", "digits", "--json").json
    assert body["nominal"] is None  # the theorem does not speak of draws
    delta = dict(zip(body["certified"]["epsilon"], body["certified"]["delta"], strict=True))
    assert delta[0.0] < 1
    assert min(delta.values()) == pytest.approx(1e-10, rel=0.2)


def test_an_unprotected_release_has_no_curve(cli, refused):
    cli("train", "pri@1", *PRIVATE, "--steps", "3", "--noise-multiplier", "1", "--out", "r", "--quiet")
    message = refused("privacy", "curve", "--ledger", "r/ledger.jsonl")
    assert message.endswith("something was released without protection, or at an epsilon above 500")


def test_a_budget_is_enforced_before_anything_is_spent(cli, refused, spent):
    body = cli("privacy", "budget", "pub/ledger.jsonl", *PRIVATE, "--epsilon", "2.1", "--json").json
    (budget,) = body["budgets"]
    assert (budget["dataset"], budget["epsilon"]) == ("digits[0.5:1.0]", 2.1)
    assert budget["spent"] == spent["privacy"]["certified"]["epsilon"]
    for command in (
        ("select", "pub", *PRIVATE, "--eps1", "0.5"),
        ("select", "pub", *PRIVATE, "--eps1", "0.5", "--dry-run"),
        ("train", "pub", *PRIVATE, "--steps", "3", "--epsilon", "4", "--out", "s"),
        ("train", "pub", *PRIVATE, "--steps", "3", "--noise-multiplier", "1", "--out", "s"),
        (
            "train",
            "pri@1",
            *PRIVATE,
            "--steps",
            "3",
            "--noise-multiplier",
            "9",
            "--ledger",
            "pub/ledger.jsonl",
            "--out",
            "s",
        ),
        ("select", "pub", *PRIVATE, "--eps1", "1e-9", "--reveal"),
        ("generate", *PRIVATE, "--provenance", "private", "--ledger", "pub/ledger.jsonl", "--out", "s"),
    ):
        message = refused(*command, code=1)
        assert message.startswith("budget: this would bring digits[0.5:1.0] to epsilon "), command
        assert "above the budget of 2.1" in message
    cli("privacy", "budget", "pub/ledger.jsonl", *PRIVATE, "--epsilon", "5", "--quiet")  # the last one counts
    assert cli("train", "pub", *PRIVATE, "--steps", "3", "--epsilon", "4", "--out", "s", "--quiet").code == 0


def test_a_budget_on_one_half_leaves_the_other_alone(cli):
    cli("privacy", "budget", "l.jsonl", "--dataset", "digits", "--subset", "0.0:0.5", "--epsilon", "0.1", "--quiet")
    fixed = (
        "train",
        "--dense",
        "--dataset",
        "digits",
        "--steps",
        "2",
        "--noise-multiplier",
        "5",
        "--ledger",
        "l.jsonl",
    )
    assert cli(*fixed, "--subset", "0.5:1.0", "--out", "a", "--quiet").code == 0
    assert cli(*fixed, "--subset", "0.0:0.5", "--out", "b", "--quiet").code == 1
    assert cli(*fixed, "--out", "c", "--quiet").code == 1  # the whole includes that half


def test_budget_stop_ends_before_the_step_that_would_exceed(cli):
    fixed = (
        "train",
        "--dense",
        *PRIVATE,
        "--model",
        "mlp:8",
        "--noise-multiplier",
        "3",
        "--batch-size",
        "100",
        "--json",
    )
    body = cli(*fixed, "--epsilon", "1", "--budget-stop", "--steps", "500", "--out", "r").json
    taken = body["steps"]
    assert 1 < taken < 500
    assert body["privacy"]["certified"]["epsilon"] <= 1
    assert (
        f"--budget-stop ends training after {taken} of 500 steps"
        in body["privacy"]["notes"][0] + body["privacy"]["notes"][1]
    )
    more = cli(*fixed, "--steps", taken + 1, "--out", "s").json
    assert more["privacy"]["certified"]["epsilon"] > 1
    few = cli(*fixed, "--epsilon", "1", "--budget-stop", "--steps", "2", "--out", "t").json  # nothing to stop
    assert few["steps"] == few["steps_taken"] == 2


def test_the_odometer_in_the_metrics_never_falls_and_ends_at_the_figure(cli):
    body = cli("train", "pub@1", *PRIVATE, "--steps", "40", "--epsilon", "1.5", "--out", "r", "--json").json
    rows = [json.loads(line) for line in Path("r/metrics.jsonl").read_text().splitlines()]
    spent = [row["epsilon"] for row in rows]
    assert spent == sorted(spent)
    assert spent[-1] == body["privacy"]["certified"]["epsilon"]
    assert [row["step"] for row in rows] == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]


def test_evaluating_on_the_private_records_is_paid_for(cli, events):
    fixed = ("train", "pub@1", *PRIVATE, "--steps", "40", "--epsilon", "1.5", "--json")
    without = cli(*fixed, "--out", "r", "--ledger", "r.jsonl").json
    body = cli(*fixed, "--out", "s", "--ledger", "s.jsonl", "--eval-private", "0.5").json
    assert [event["kind"] for event in events("s.jsonl")] == ["guarantee", "training"]
    assert events("s.jsonl")[0]["epsilon"] == 0.5
    assert body["noise_multiplier"] > without["noise_multiplier"]  # training gets the rest
    assert body["privacy"]["certified"]["epsilon"] <= 1.5
    assert 0 <= body["accuracy"] <= 1
    assert any("epsilon of 0.5 is included" in note for note in body["privacy"]["notes"])


def test_stopping_on_a_private_score_pays_for_every_look(cli, events):
    fixed = ("train", "pub@1", *PRIVATE, "--steps", "40", "--epsilon", "1.5", "--json")
    body = cli(*fixed, "--out", "r", "--ledger", "r.jsonl", "--eval-private", "0.5", "--stop-at", "0.01").json
    kinds = [(event["kind"], event.get("epsilon")) for event in events("r.jsonl")]
    assert kinds == [("guarantee", 0.05)] * 10 + [("training", None)]
    assert body["steps_taken"] == 4 < body["steps"] == 40
    assert "--stop-at ended training after 4 of 40 steps; the ledger keeps all of them" in body["privacy"]["notes"]


def test_stopping_on_the_test_split_is_free(cli):
    fixed = ("train", "pub@1", *PRIVATE, "--steps", "40", "--noise-multiplier", "5", "--json", "--out")
    body = cli(*fixed, "r", "--ledger", "r.jsonl", "--stop-at", "0.01").json
    plain = cli(*fixed, "s", "--ledger", "s.jsonl").json
    assert body["steps_taken"] == 4
    assert body["privacy"]["certified"] == plain["privacy"]["certified"]


def test_stopping_on_a_private_score_is_refused_unless_paid_for(refused):
    Path("x.csv").write_text("a,b,y\n" + "0.1,0.2,0\n0.3,0.4,1\n" * 20)
    fixed = (
        "train",
        "--dense",
        "--dataset",
        "x.csv",
        "--label",
        "y",
        "--bounds",
        "0,1",
        "--epsilon",
        "1",
        "--out",
        "r",
    )
    message = refused(*fixed, "--delta", "1e-3", "--stop-at", "0.9")
    assert message == (
        "--stop-at: x has no test split, and stopping on the private records is a release that nothing pays for; put its"
        " cost into the plan with --eval-private E, or name a --test file"
    )


@pytest.mark.parametrize("accountant", ["rdp", "ma"])
def test_training_by_another_accountant(cli, accountant):
    fixed = ("train", "pub@1", *PRIVATE, "--steps", "10", "--epsilon", "1", "--json", "--out")
    body = cli(*fixed, "r", "--ledger", "r.jsonl", "--accountant", accountant).json
    plain = cli(*fixed, "s", "--ledger", "s.jsonl").json
    assert body["privacy"]["certified"]["accountant"] == accountant
    assert body["privacy"]["certified"]["epsilon"] <= 1
    assert body["noise_multiplier"] > plain["noise_multiplier"]


def test_training_under_clt_certifies_by_pld(cli):
    fixed = ("train", "pub@1", *PRIVATE, "--steps", "10", "--noise-multiplier", "4", "--json", "--out")
    body = cli(*fixed, "r", "--ledger", "r.jsonl", "--accountant", "clt").json
    plain = cli(*fixed, "s", "--ledger", "s.jsonl").json
    assert body["privacy"]["certified"] == plain["privacy"]["certified"]
    assert body["privacy"]["nominal"]["source"] == "GDP central limit theorem, an approximation"
    assert any("promises nothing" in note for note in body["privacy"]["notes"])


def test_one_name_does_not_hide_what_the_same_records_went_through_under_another(cli):
    """Records are known by their fingerprint; a copy of the file under another name is the same records."""
    import numpy as np

    x, y = np.arange(400, dtype=np.float32).reshape(100, 4) / 400, np.arange(100) % 2
    for name in ("one", "two"):
        np.savez(f"{name}.npz", x_train=x, y_train=y)
        fixed = ("train", "--dense", "--dataset", f"{name}.npz", "--bounds", "0,1", "--delta", "1e-3", "--quiet")
        options = ("--steps", "3", "--noise-multiplier", "2", "--ledger", "l.jsonl", "--model", "mlp:4", "--out", name)
        assert cli(*fixed, *options).code == 0
    whole = cli("privacy", "ledger", "l.jsonl", "--json").json
    named = cli("privacy", "ledger", "l.jsonl", "--dataset", "two", "--json").json
    assert named["privacy"]["certified"] == whole["privacy"]["certified"]
    assert len(named["events"]) == 2
    (dataset,) = named["datasets"]
    assert any("go by one, two" in note for note in dataset["privacy"]["notes"])
    curve = cli("privacy", "curve", "--ledger", "l.jsonl", "--dataset", "two", "--json").json
    assert curve == {**cli("privacy", "curve", "--ledger", "l.jsonl", "--json").json, "of": "two"}


def test_a_ledger_of_two_relations_has_no_common_curve(cli, refused):
    for half, adjacency in (("0:719", "add-remove"), ("719:1438", "replace-one")):
        fixed = ("train", "--dense", "--dataset", "digits", "--subset", half, "--model", "mlp:4", "--quiet")
        options = ("--steps", "3", "--noise-multiplier", "2", "--ledger", "l.jsonl", "--out", adjacency)
        assert cli(*fixed, *options, "--adjacency", adjacency).code == 0
    body = cli("privacy", "ledger", "l.jsonl", "--json").json
    assert body["privacy"]["certified"]["adjacency"] == "add-remove"  # at the same multiplier it has half the noise
    assert any("under another relation" in note for note in body["privacy"]["notes"])
    assert "no common curve" in refused("privacy", "curve", "--ledger", "l.jsonl")


def test_a_draw_that_leaves_nothing(refused):
    setting = ("--sampling-rate", "0.01", "--steps", "10")
    message = refused("privacy", "noise", "--epsilon", "5", "--eps1", "6", *setting, code=1)
    assert message.startswith("--epsilon, --eps1: the draw alone costs 5.99")


def test_a_search_that_ends_at_its_limit_says_so(cli):
    body = cli("privacy", "noise", "--epsilon", "10000", "--sampling-rate", "0.01", "--steps", "10", "--json").json
    assert body["epsilon"] < 1000
    assert any("not all of the budget is used" in note for note in body["notes"])


def test_an_evaluation_of_nothing_but_noise_is_refused(refused):
    message = refused("train", "pub@1", *PRIVATE, "--epsilon", "1", "--eval-private", "1e-17", "--out", "r")
    assert message == "--eval-private: 1e-17 over 1 evaluations is nothing but noise; give at least 1e-06"


GOOD = ("--noise-multiplier", "1.1", "--sampling-rate", "0.01", "--steps", "100")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--noise-multiplier", "0"), "--noise-multiplier: 0 is not a positive number up to 1e+06"),
        (("--noise-multiplier", "-1"), "--noise-multiplier: -1 is not a positive number up to 1e+06"),
        (("--noise-multiplier", "nan"), "--noise-multiplier: nan is not a positive number up to 1e+06"),
        (("--sampling-rate", "0"), "--sampling-rate: 0 is not above 0 and at most 1"),
        (("--sampling-rate", "1.5"), "--sampling-rate: 1.5 is not above 0 and at most 1"),
        (("--sampling-rate", "nan"), "--sampling-rate: nan is not above 0 and at most 1"),
        (
            ("--sampling-rate", "1/0"),
            "--sampling-rate: 1/0 is not above 0 and at most 1",
        ),
        (
            ("--sampling-rate", "many"),
            "--sampling-rate: 'many' is not a number or a fraction, such as 0.01 or 256/60000",
        ),
        (("--steps", "0"), "--steps: 0 is not a positive whole number"),
        (("--steps", "-5"), "--steps: -5 is not a positive whole number"),
        (("--steps", "1000000000"), "--steps, --epochs: more than 100,000,000 steps; ask for fewer"),
        (("--epochs", "3"), "--steps or --epochs: give one of them"),
        (("--delta", "0"), "--delta: 0 is not between 1e-15 and 1"),
        (("--delta", "1"), "--delta: 1 is not between 1e-15 and 1"),
        (("--delta", "nan"), "--delta: nan is not between 1e-15 and 1"),
        (("--eps1", "0"), "--eps1: 0 is not a positive number up to 10000"),
        (("--adjacency", "both"), "--adjacency: 'both' is not one of add-remove, replace-one"),
    ],
)
@pytest.mark.parametrize("command", ["epsilon", "curve"])
def test_settings_out_of_range(refused, command, options, message):
    assert refused("privacy", command, *GOOD, *options) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (GOOD, "--epsilon is missing: the whole budget, such as 1"),
        (
            ("--epsilon", "1", *GOOD),
            "--noise-multiplier, --sampling-rate, --steps: give two of them; the third is what the budget allows",
        ),
        (
            ("--epsilon", "1", "--steps", "3"),
            "--noise-multiplier, --sampling-rate, --steps: give two of them; the third is what the budget allows",
        ),
        (("--epsilon", "-1", *GOOD[2:]), "--epsilon: -1 is not a positive number up to 10000"),
        (
            ("--epsilon", "1", *GOOD[2:], "--accountant", "clt"),
            "--accountant: clt is an approximation and can neither calibrate noise nor satisfy a budget; use pld, rdp or ma",
        ),
    ],
)
def test_noise_refuses(refused, options, message):
    assert refused("privacy", "noise", *options) == message


def test_a_budget_too_small_for_one_step(refused):
    message = refused("privacy", "noise", "--epsilon", "0.001", "--noise-multiplier", "0.5", "--sampling-rate", "0.5")
    assert message.startswith("--epsilon: 0.001 is too small to calibrate: even one step at noise multiplier 0.5")


@pytest.mark.usefixtures("spent")
def test_ledgers_that_cannot_be_read(refused):
    lines = Path("pub/ledger.jsonl").read_text().splitlines(keepends=True)
    for name, text, message in (
        ("edited", "".join(lines).replace('"steps": 3', '"steps": 2'), "line 4: the digest does not match"),
        ("cut", "".join(lines)[:-20], "line 4: the last line is incomplete"),
        ("newer", "".join(lines).replace('"schema": ', '"schema": 9'), "is newer than this version of dpltm reads"),
        ("empty line", "".join(lines) + "\n", "line 5: not valid JSON"),
    ):
        Path("bad.jsonl").write_text(text)
        assert message in refused("privacy", "ledger", "bad.jsonl"), name
    assert (
        refused("privacy", "ledger", "none.jsonl")
        == "none.jsonl: no such ledger file; name one, such as SET/ledger.jsonl"
    )
    assert refused("privacy", "ledger", "pub").endswith("a folder; name the ledger in it, pub/ledger.jsonl")
    message = refused("privacy", "ledger", "pub/ledger.jsonl", "--dataset", "mnist")
    assert message == "--dataset: pub/ledger.jsonl holds nothing on 'mnist'; it holds digits"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*GOOD, "--plot", "c.jpg"), "c.jpg: not a picture; let its name end in .png, .svg, .pdf"),
        ((*GOOD, "--plot", "pub"), "--out: pub exists already; choose another name or remove it first"),
        (
            (*GOOD, "--dataset", "digits"),
            "--dataset: picks records out of a --ledger; name one, or leave --dataset out",
        ),
        (
            ("--ledger", "pub/ledger.jsonl", "--steps", "3"),
            "--steps: the --ledger holds the settings; leave --steps out",
        ),
    ],
)
def test_curve_refuses(refused, options, message):
    assert refused("privacy", "curve", *options) == message
