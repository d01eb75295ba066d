"""The three stages on the digits, by hand: what is spent, written and private; a dry run says so and writes nothing."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from commands import LEDGER, PRIVATE, PUBLIC, TINY, certified
from dpltm import tickets as artifacts
from dpltm.privacy.account import Account
from dpltm.privacy.describe import percent
from dpltm.privacy.entry import entry_from_json
from dpltm.records import load
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.ticket_set import load_ticket_set
from dpltm.training.descent import Descent
from interruptions import ending, interrupt
from opened import arrays_of
from set_entries import by_dp_accounting


def right_answers(network, split):
    """Which records a network of two layers classifies as they are labelled, by hand."""
    hidden = np.maximum(
        (arrays_of(split).x.reshape(len(split), 64) / 16) @ network["fc1.weight"].T + network["fc1.bias"], 0
    )
    return (hidden @ network["fc2.weight"].T + network["fc2.bias"]).argmax(1) == arrays_of(split).y


def test_the_budget_covers_selection_and_training(cli, entries):
    drawn = cli(f"select pub {PRIVATE} --eps1 0.2 --json").json
    trained = cli(f"train pub {PRIVATE} --steps 3 --json --epsilon 1 --out r").json
    assert trained["round"] == drawn["winner"]["round"]
    made, selection, training = entries(LEDGER)
    assert (made["kind"], selection["mechanisms"][0]["mechanism"]) == ("public", "selection")
    alone = by_dp_accounting(entry_from_json(training), interval=1e-4)
    assert alone < 0.95, "a good part of the budget went to the selection"
    assert alone <= certified(trained) <= alone + 0.2 + 1e-3, "and no more than the simple sum was charged"
    assert 0.998 < certified(trained) <= 1
    assert trained["privacy"]["nominal"]["epsilon"] == pytest.approx(0.2 + alone, rel=1e-3)
    # the run carries the entries of everything that it is made of: anyone can recompute the figure from it
    carried = artifacts.load("r").lineage.entries
    assert [entry.id for entry in carried] == [made["id"], selection["id"], training["id"]]
    assert Account(carried).epsilon(1e-5) == certified(trained)


def test_a_run_is_of_the_ticket_and_its_figures_are_those_of_its_files(cli):
    body = cli(f"train pub@2 {PRIVATE} --steps 40 --epsilon 1.5 --json --out r").json
    model, packed = load_file("r/model.safetensors"), load_file("r/mask.safetensors")
    bits = {name: np.unpackbits(packed[name])[: model[name].size].reshape(model[name].shape) for name in model}
    assert body["live"] == sum(int(value.sum()) for value in bits.values()) == 308
    for name, value in model.items():
        assert np.array_equal(value != 0, bits[name] == 1)  # pruned weights are zero, and every live one has had noise
    assert body["accuracy"] == right_answers(model, load("digits").test).mean()
    rows = [json.loads(line) for line in Path("r/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]
    spent = [row["epsilon"] for row in rows]
    assert spent == sorted(spent)
    assert spent[-1] == certified(body)


@pytest.mark.parametrize("reveal", ["", "--reveal"])
def test_private_accuracies_are_written_nowhere(cli, cwd, reveal):
    done = cli(f"generate {PRIVATE} {TINY} --provenance private --out new {reveal}")
    files = [path.read_bytes() for path in (cwd / "new").iterdir()] + ([] if reveal else [done.out.encode()])
    for ticket in load_ticket_set(cwd / "new").body.tickets:
        value = right_answers({k: v.numpy() for k, v in ticket.predictor.items()}, load("digits").test).mean()
        for text in (repr(value), f"{value:.4f}", f"{value:.2%}", percent(value)):
            assert not any(text.encode() in content for content in files)
        assert (percent(value) in done.out) == bool(reveal)


def test_revealed_scores_are_those_of_the_tickets(cli):
    body = cli(f"select pub {PRIVATE} --eps1 0.1 --reveal --json").json
    data, tickets = load("digits", subset="0.5:1.0").train, load_ticket_set(Path("pub"))
    for row in body["revealed"]:
        network = {name: value.numpy() for name, value in tickets.ticket(row["round"]).predictor.items()}
        assert row["accuracy"] == right_answers(network, data).mean()
        counted = row["accuracy"] * len(data) / 719  # the public number: how many hashes fall into the half is private
        assert row["score"] == pytest.approx(counted * (1 - 50 * row["density"]))
    first, second = body["revealed"]
    odds = math.exp(0.1 / (2 * body["sensitivity"]["value"]) * (first["score"] - second["score"]))
    assert first["probability"] / second["probability"] == pytest.approx(odds)
    assert first["probability"] + second["probability"] == pytest.approx(1)


def test_default_names_count_up(cli, cwd):
    for _ in range(2):
        cli(f"train pub@1 {PRIVATE} --steps 1 --noise-multiplier 9")
        cli(f"generate {PUBLIC} {TINY} --provenance public")
    made = {path.name for path in cwd.iterdir() if path.is_dir()} - {"pub", "pri"}
    assert made == {"pub-round1.run", "pub-round1-2.run", "digits.tickets", "digits-2.tickets"}


def test_what_an_interrupted_run_spent_counts_in_the_budget(cli, refused):
    """Its entry is on disk, and its checkpoint is lost."""
    made = f"generate {PRIVATE} {TINY} --criterion dp-train --ledger l.jsonl --out new"
    with ending(Descent, "run", 1, interrupt):
        assert cli(f"{made} --epsilon 1").code == 130
    shutil.rmtree(".new.checkpoint")  # nothing goes on from there
    for more in ("", "--dry-run"):  # the crumb that the first calibration left is noise alone
        assert refused(f"{made} --epsilon 1 {more}", code=1).startswith("budget: ")
    assert 1.9 < certified(cli(f"{made} --epsilon 2 --json").json) <= 2
    made_of = load_ticket_set(Path("new")).lineage.entries
    assert made_of == open_ledger("l.jsonl").entries[1:], "the first one is not what these tickets were made of"


def test_a_training_that_diverged_says_so(cli):
    """In its answer, in what is kept of it, and where it is evaluated: weights are released, and may be looked at."""
    few = "--model mlp:4 --steps 3 --lr 1e30 --epsilon 3 --delta 1e-4 --out r --json"
    (said,) = (n for n in cli(f"train --dense {PRIVATE} {few}").json["privacy"]["notes"] if "training diverged" in n)
    assert said in cli("evaluate r --dataset digits --json").json["notes"]
    assert said in Path("r/result.json").read_text(encoding="utf-8")


# --- dry runs: nothing is written, neither here nor into the folder of the key ---

SHORT = "--steps 3 --noise-multiplier 3 --out new"
DENSE = "train --dense --model mlp:8 --dataset digits --delta 1e-4 --batch-size 400 --steps 6"
COMMANDS = {
    "public tickets": f"generate {PUBLIC} {TINY} --provenance public --out new",
    "private tickets": f"generate {PRIVATE} {TINY} --provenance private --ledger new.jsonl --out new",
    "dp-train": f"generate {PRIVATE} {TINY} --criterion dp-train --epsilon 1 --out new",
    "a draw": f"select pub {PRIVATE} --eps1 0.1",
    "a draw from private tickets": f"select pri {PRIVATE} --eps1 0.1 --ledger new.jsonl",
    "a draw that is revealed": f"select pub {PRIVATE} --eps1 0.1 --reveal --ledger new.jsonl",
    "the paper's rule": "select pub --rule smallest-within --tolerance 1 --max-density 1",
    "a ticket": f"train pub@1 {PRIVATE} --epsilon 1 --steps 3 --out a/b/new",
    "a private ticket": f"train pri@1 {PRIVATE} {SHORT} --ledger new.jsonl",
    "a centre": f"{DENSE} --model mlp --features unit --centre 0.5 --epsilon 5 --ledger new.jsonl --out new",
    "least squares": "train --dense --head least-squares --dataset digits --delta 1e-4 --features unit --epsilon 8 --out new"
    " --ledger new.jsonl",
    "evaluations": f"{DENSE} --noise-multiplier 3 --eval-private 0.5 --ledger new.jsonl --out new",
    "messages": "latent encode s --dataset own.npz --out new",
}


@pytest.mark.one_of(4)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_spends_what_its_dry_run_states(cli, tree, monkeypatch, tmp_path, name):
    command = COMMANDS[name]
    if name == "messages":
        draw = np.random.default_rng(0)
        for file in ("theirs", "own"):
            x = draw.integers(0, 255, (90, 8, 8), dtype=np.uint8)
            np.savez(f"{file}.npz", x_train=x, y_train=np.arange(90) % 3)
        assert cli("latent scheme --public theirs.npz --features unit --epsilon 4 --out s").code == 0
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "key"))
    before = tree()
    shown = cli(f"{command} --dry-run")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("would ")
    planned = cli(f"{command} --dry-run --json").json
    assert tree() == before
    assert not (tmp_path / "key").exists()
    assert not Path("new").exists()
    body = cli(f"{command} --json").json
    assert planned["dry_run"] is True
    assert planned["privacy"]["certified"] == body["privacy"]["certified"]
    for key in planned.keys() & body.keys() - {"privacy", "seconds", "settings"}:
        assert planned[key] == body[key], key
    assert tree() != before
