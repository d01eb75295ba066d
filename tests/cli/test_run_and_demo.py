"""``dpltm run`` and ``dpltm demo``: three stages, one budget, one ledger; what is wrong is found before the first."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpltm.privacy.parts import total_epsilon
from dpltm.tickets.ledger_file import open_ledger

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits.toml"
FILE = """
[run]
epsilon = 2.0
delta = 1e-6
split = 0.75
{run}
[generate]
dataset = "digits"
subset = "0.0:0.5"
provenance = "{provenance}"
model = "mlp:8"
rounds = 2
prune = [0.3]
iterations = 5
batch-size = 32
{generate}
[select]
{select}
[train]
dataset = "digits"
subset = "0.5:1.0"
steps = 3
{train}
"""


@pytest.fixture
def config(cwd):
    """Writes c.toml with more lines in each table."""

    def write(*, run="", generate="", select="", train="", provenance="public"):
        text = FILE.format(run=run, generate=generate, select=select, train=train, provenance=provenance)
        (cwd / "c.toml").write_text(text)

    return write


def check_stages(body, budget):
    assert set(body) == {"out", "generate", "select", "train", "privacy"}
    assert {"ticket_set", "id", "provenance", "tickets", "privacy"} <= set(body["generate"])
    assert {"ticket_set", "winner", "eps1", "mechanism", "score", "sensitivity", "privacy"} <= set(body["select"])
    assert {"run", "steps", "noise_multiplier", "live", "accuracy", "privacy"} <= set(body["train"])
    assert body["train"]["round"] == body["select"]["winner"]["round"]
    assert body["privacy"] == body["train"]["privacy"]
    assert body["privacy"]["certified"]["epsilon"] <= budget


def test_run(cli, config, events):
    config()
    body = cli("run", "--config", "c.toml", "--out", "o", "--json").json
    check_stages(body, 2)
    assert body["privacy"]["certified"]["epsilon"] > 1.99
    assert body["privacy"]["certified"]["delta"] == 1e-6
    assert body["select"]["eps1"] == 0.5
    assert sorted(path.name for path in Path("o").iterdir()) == ["ledger.jsonl", "run", "tickets"]
    assert [event["kind"] for event in events("o/ledger.jsonl")] == ["provenance", "selection", "training"]
    assert not Path("o/tickets/ledger.jsonl").exists()
    private = open_ledger(Path("o/ledger.jsonl")).events[1:]
    assert total_epsilon(private, 1e-6) == body["privacy"]["certified"]["epsilon"]
    told = {key: value for key, value in body["train"].items() if key != "seconds"}
    assert json.loads(Path("o/run/result.json").read_text()) == {**told, "run": "run", "ticket_set": "tickets"}


def test_run_flags_override_the_file(cli, config):
    config()
    body = cli("run", "--config", "c.toml", "--epsilon", "1", "--split", "0.5", "--out", "o", "--json").json
    check_stages(body, 1)
    assert body["select"]["eps1"] == 0.5


def test_run_with_the_papers_rule_spends_everything_on_training(cli, config, events):
    config(select='rule = "smallest-within"\ntolerance = 1.0\nmax-density = 1.0')
    body = cli("run", "--config", "c.toml", "--out", "o", "--json").json
    check_stages(body, 2)
    assert body["select"]["eps1"] == 0
    assert [event["kind"] for event in events("o/ledger.jsonl")] == ["provenance", "training"]


def test_run_as_the_paper_does(cli, config, events):
    """Tickets from the private records themselves: nominal figures only."""
    config(provenance="private", train='filter = "tanh"', generate="")
    text = Path("c.toml").read_text().replace('"0.0:0.5"', '"0.5:1.0"')
    Path("c.toml").write_text(text)
    body = cli("run", "--config", "c.toml", "--out", "o", "--json").json
    assert body["privacy"]["certified"]["epsilon"] == "inf"
    assert 1.99 < body["privacy"]["nominal"]["epsilon"] <= 2
    assert body["select"]["sensitivity"] == {"rule": "paper", "value": 49.0}
    assert [event["kind"] for event in events("o/ledger.jsonl")] == ["provenance", "selection", "training"]


def test_run_dry(cli, config, tree):
    config()
    before = tree()
    body = cli("run", "--config", "c.toml", "--out", "o", "--dry-run", "--json").json
    privacy = body.pop("privacy")
    assert 1.99 < privacy["certified"]["epsilon"] <= 2
    assert (privacy["certified"]["delta"], privacy["nominal"]["source"]) == (1e-6, "DPLTM Theorem 3")
    assert body == {
        "dry_run": True,
        "out": "o",
        "tickets_from": "digits",
        "private_records": "digits",
        "rounds": 2,
        "eps1": 0.5,
    }
    assert tree() == before


def test_the_example_is_sound(cli, tree):
    before = tree()
    body = cli("run", "--config", EXAMPLE, "--out", "o", "--dry-run", "--json").json
    assert body["eps1"] == 0.3
    assert 2.99 < body["privacy"]["certified"]["epsilon"] <= 3
    assert tree() == before


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"run": "sed = 1"}, "--config c.toml: unknown key 'sed' for run; did you mean seed?"),
        ({"train": "nois = 1"}, "--config c.toml: unknown key 'nois' for train; did you mean noise?"),
        (
            {"train": "[tran]"},
            "--config c.toml: unknown table or key 'tran'; known: [run], [generate], [select], [train]",
        ),
        ({"train": "epsilon = 3"}, "--config c.toml: [train] epsilon: decided by [run] here; set it there"),
        ({"select": "eps1 = 3"}, "--config c.toml: [select] eps1: decided by [run] here; set it there"),
        ({"generate": 'out = "x"'}, "--config c.toml: [generate] out: decided by [run] here; set it there"),
        ({"train": "lr = 'a'"}, "--config c.toml: lr = 'a' must be of type float"),
        (
            {"train": "dense = true"},
            "[train] dense: a run trains the winner; use dpltm train --dense for the whole network",
        ),
        (
            {"train": "noise-multiplier = 3"},
            "--epsilon or --noise-multiplier: give one of them; --epsilon is the whole budget, such as 1",
        ),
        ({"train": "batch-size = 720"}, "--batch-size: 720 is not between 0 and the 719 records of digits"),
        ({"generate": "batch-size = 720"}, None),
        ({"select": 'score = "best"'}, "--score: 'best' is not one of product, additive"),
        ({"provenance": "secret"}, "--provenance: 'secret' is not one of public, private, data-free, dp"),
        (
            {"select": 'score = "additive"\nsensitivity = "paper"'},
            "--sensitivity: paper is stated for --score product only; use --sensitivity exact",
        ),
    ],
)
def test_run_refuses(refused, config, tables, message):
    if message is None:  # the key is there twice
        config(**tables)
        assert refused("run", "--config", "c.toml", "--out", "o").startswith("--config c.toml: not valid TOML: ")
        return
    config(**tables)
    assert refused("run", "--config", "c.toml", "--out", "o") == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--epsilon", "0"), "--epsilon: 0 is not a positive number up to 10000"),
        (
            ("--split", "1"),
            "--split: 1 is not between 0 and 1; 0.9 leaves a tenth for the selection",
        ),
        (("--split", "nan"), "--split: nan is not between 0 and 1; 0.9 leaves a tenth for the selection"),
        (
            ("--delta", "0.01"),
            "--delta: 0.01 is not between 0 and 1/n = 0.00139 for 719 records; take one well below it",
        ),
        (("--out", "pub"), "--out: pub exists already; choose another name or remove it first"),
        (
            ("--epsilon", "1e-6"),
            "--epsilon, --split: 0.75 of 1e-06 is too little for the training; raise --epsilon, or --split (0.9 leaves a"
            " tenth for the selection)",
        ),
    ],
)
def test_run_refuses_options(refused, config, options, message):
    config()
    assert refused("run", "--config", "c.toml", "--out", "o", *options) == message


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["run", "dry-run"])
def test_a_draw_that_leaves_the_training_noise_alone_is_refused(refused, config, more):
    config()
    assert refused("run", "--config", "c.toml", "--out", "o", "--split", "0.01", *more) == (
        "--epsilon, --split: 0.01 of 2 is too little for the training; raise --epsilon, or --split (0.9 leaves a tenth for"
        " the selection)"
    )


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["run", "dry-run"])
def test_tickets_under_dp_that_leave_the_training_noise_alone_are_named(refused, config, more):
    """No --split helps where the tickets take the budget."""
    config(provenance="dp", generate='criterion = "dp-train"\nepsilon = 1.99')
    text = Path("c.toml").read_text()
    Path("c.toml").write_text(text.replace('"0.0:0.5"', '"0.5:1.0"').replace("split = 0.75", "split = 0.999"))
    message = refused("run", "--config", "c.toml", "--out", "o", *more, code=1)
    assert message.startswith("budget: on these records epsilon ")
    assert " goes to 5 steps of training, " in message
    assert " and 1 other release, which leaves less than 2 % of 2, nothing but noise" in message


def test_run_refuses_shared_records_and_other_shapes(refused, config, cwd):
    config()
    text = Path("c.toml").read_text()
    Path("c.toml").write_text(text.replace('"0.5:1.0"', '"0.25:0.75"'))
    assert refused("run", "--config", "c.toml", "--out", "o") == (
        "[generate] and [select]: digits[0.0:0.5] is declared public and shares records with digits[0.25:0.75], which is"
        " private; give them different --subset or --dataset"
    )
    np.savez(cwd / "thin.npz", x_train=np.zeros((40, 5), np.uint8), y_train=np.arange(40) % 10)
    Path("c.toml").write_text(text.replace('"digits"\nsubset = "0.5:1.0"', '"thin.npz"'))
    assert refused("run", "--config", "c.toml", "--out", "o") == (
        "[generate] and [select]: digits has 64 features and 10 classes, thin has 5 and 10; tickets need the same"
    )


def test_run_needs_a_file(refused):
    assert refused("run", "--out", "o") == (
        "--config is missing: name a TOML file with [generate], [select] and [train]; see examples/digits.toml"
    )


@pytest.mark.slow
def test_demo(cli, events):
    body = cli("demo", "--out", "d", "--json").json
    check_stages(body, 3)
    assert body["privacy"]["certified"]["epsilon"] > 2.99
    assert len(body["generate"]["tickets"]) == 11
    assert body["select"]["eps1"] == pytest.approx(0.3)
    assert [event["kind"] for event in events("d/ledger.jsonl")] == ["provenance", "selection", "training"]
    assert body["train"]["accuracy"] > 0.5  # chance is a tenth; what it reaches is the README's business
    assert sorted(path.name for path in Path("d").iterdir()) == ["ledger.jsonl", "run", "tickets"]


def test_demo_refuses_a_folder_that_exists(refused):
    assert refused("demo", "--out", "pub") == "--out: pub exists already; choose another name or remove it first"
