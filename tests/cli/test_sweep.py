"""Sweeps from a recipe to its table: what each row says, what all of it costs, and what leaves a hole."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from child_processes import PATIENCE, interruptible
from commands import PRIVATE
from dpltm.experiments import paired, summary
from dpltm.privacy.mechanisms import NoisySgd, Selection
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.workbench.sweep import opened
from recipes import HEAD

ONE = HEAD.replace("seeds = 2", "seeds = 1")
SETS = """
[tickets]
public = { dataset = "digits", subset = "0.0:0.5", provenance = "public", model = "mlp:4", rounds = 1, iterations = 5 }
moved = { from = "public", dataset = "digits", subset = "0.0:0.5", mode = "mask-only" }
private = { dataset = "digits", subset = "0.5:1.0", provenance = "private", model = "mlp:4", rounds = 1, iterations = 3 }
"""
DENSE = '[[arm]]\nname = "dense"\npaper = 99.5\n'
DRAWN = '[[arm]]\nname = "drawn"\ntickets = "public"\nagainst = "dense"\nselect = { eps1 = 0.5, score = "additive" }\n'
MOVED = '[[arm]]\nname = "moved"\ntickets = "moved"\nround = "random"\n'
PRINTED = '[[arm]]\nname = "as printed"\ntickets = "private"\nround = 1\n'


@pytest.fixture
def sweep(cli: Callable[..., Any], cwd: Path) -> Callable[..., dict[str, Any]]:
    """Makes the recipe and gives its answer; ``code`` is 1 where it has holes."""

    def make(text: str, *options: str, code: int = 0) -> dict[str, Any]:
        (cwd / "r.toml").write_text(text, encoding="utf-8")
        done = cli("run", "--config", "r.toml", "--jobs", "1", *options, "--json")
        assert done.code == code, done.err + done.out
        return json.loads(done.out)

    return make


def members(out: Path) -> dict[str, dict[str, Any]]:
    return {path.parts[-3]: json.loads(path.read_text()) for path in sorted(out.glob("members/*/run/result.json"))}


def test_a_sweep_from_start_to_end(cli: Callable[..., Any], sweep: Callable[..., dict[str, Any]], cwd: Path) -> None:
    body = sweep(HEAD + SETS + DENSE + DRAWN + MOVED + '[figure]\nover = "steps"\n')
    out, done = cwd / "r.sweep", members(cwd / "r.sweep")
    assert body["finished"] == body["members"] == len(done) == 6
    assert json.loads((out / "results.json").read_text())["arms"] == body["arms"]
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    rows = {row["name"]: row for row in body["arms"]}
    for row in rows.values():  # what the table says is what the members' runs say
        values = {
            label.split("-s")[1][0]: run["accuracy"] for label, run in done.items() if label.startswith(row["name"])
        }
        assert row["values"] == values
        found = summary([*values.values()])
        assert (row["mean"], row["sd"], row["interval"]) == pytest.approx((found.mean, found.sd, found.half))
        assert row["missing"] == []
        assert f"| {row['name']} |" in (out / "results.md").read_text()
    dense, drawn = ({int(seed): x for seed, x in rows[name]["values"].items()} for name in ("dense", "drawn"))
    assert rows["drawn"]["difference"]["mean"] == pytest.approx(paired(drawn, dense).mean)

    # a draw is paid for on top of its training; every figure is that of one release
    alone = cli(
        f"train --dense {PRIVATE} --model mlp:4 --batch-size 50 --steps 2 --noise-multiplier 1 --dry-run --json"
    ).json
    single = alone["privacy"]["certified"]["epsilon"]
    assert (
        rows["dense"]["privacy"]["certified"]["epsilon"] == single < rows["drawn"]["privacy"]["certified"]["epsilon"]
    )
    # one ledger has all of them: six trainings, two draws
    ledger = open_ledger(out / "dpltm.ledger.jsonl")
    assert body["ledger"] == str(Path("r.sweep/dpltm.ledger.jsonl"))
    assert [len([entry for entry in ledger.entries if entry.of(kind)]) for kind in (NoisySgd, Selection)] == [6, 2]
    together = body["privacy"]["certified"]["epsilon"]
    assert together == ledger.account().epsilon(1e-5) > single
    assert any("hyperparameter search" in note for note in body["privacy"]["notes"])
    assert not list(out.glob("draws/*"))  # copies that were drawn from are gone
    (out / "dpltm.ledger.key").unlink()  # nothing is left to do that would enter something, or need it
    shown = cli("run", "--config", "r.toml", "--jobs", "1").out
    assert "\n\nAll together: certified epsilon = " in shown
    assert (out / "results.md").read_text() in shown


def test_the_papers_rule_chooses_before_a_set_is_carried_over(sweep: Callable[..., dict[str, Any]]) -> None:
    """What is carried over has no accuracies; its rounds are those of the set that has them (DPLTM, footnote 5)."""
    rule = 'select = { rule = "smallest-within", tolerance = 1.0, max-density = 1.0 }\n'
    (moved,) = sweep(f'{ONE}{SETS}[[arm]]\nname = "moved"\ntickets = "moved"\n{rule}')["arms"]
    assert moved["rounds"] == {"0": 1}
    assert moved["live"] == [179 + 32 + 14] * 2, "of 64 x 4 and 4 x 10 weights 30 and 20 % go, and no bias"


def test_a_failed_member_leaves_a_hole(sweep: Callable[..., dict[str, Any]], cwd: Path) -> None:
    """Whether an audit has room shows where the network is made, in a member; what is mended fills the hole."""
    broken = HEAD + DENSE + '[[arm]]\nname = "broken"\ntrain = { audit = 100000 }\n'
    body = sweep(broken, code=1)
    assert (body["finished"], body["members"], body["arms"][0]["count"]) == (2, 4, 2)
    assert [hole["seed"] for hole in body["arms"][1]["missing"]] == [0, 1]
    assert "--audit: 100,000 canaries: ask for" in body["arms"][1]["missing"][0]["why"]
    assert body["arms"][1]["mean"] is None
    assert "HOLE" in (cwd / "r.sweep/results.md").read_text()
    assert sweep(broken.replace("audit = 100000", "lr = 0.5"))["finished"] == 4


@pytest.mark.long
def test_an_interrupted_sweep_goes_on(cwd: Path) -> None:
    """Ctrl-C ends every process; the same command finishes what is left."""
    (cwd / "r.toml").write_text(HEAD + DENSE)
    out, begin = cwd / "r.sweep", [sys.executable, "-m", "dpltm.cli.main", "run", "--config", "r.toml", "--jobs", "2"]
    process = subprocess.Popen(
        interruptible([*begin, "--seeds", "200"]), env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        until = time.monotonic() + PATIENCE
        while not members(out):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until, "no member was ever finished"
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)  # until every process has closed its end
    finally:
        process.kill()
    assert (process.returncode, "Traceback" in said, "interrupted" in said) == (130, False, True)
    before = members(out)
    assert 0 < len(before) < 200
    count = len(before) + 1
    again = subprocess.run([*begin, "--seeds", str(count), "--json"], capture_output=True, text=True)
    assert json.loads(again.stdout)["finished"] == count, again
    assert members(out).items() >= before.items()


def test_all_together_is_never_less_than_a_row(sweep: Callable[..., dict[str, Any]], cwd: Path) -> None:
    """What an earlier version of the recipe released stays released; with a row that certifies nothing, nothing is."""
    body = sweep(ONE + SETS + DENSE + DRAWN)
    dense, drawn = (row["privacy"]["certified"]["epsilon"] for row in body["arms"])
    together = body["privacy"]["certified"]["epsilon"]
    assert together > max(dense, drawn)
    other = ONE.replace("noise-multiplier = 1.0", "noise-multiplier = 2.0")
    assert sweep(other + SETS + DENSE)["privacy"]["certified"]["epsilon"] > together
    body = sweep(ONE + SETS + DENSE + PRINTED)
    assert body["arms"][1]["privacy"]["certified"]["epsilon"] == body["privacy"]["certified"]["epsilon"] == "inf"
    text = (cwd / "r.sweep/results.md").read_text()
    assert "All together: certified epsilon = inf (delta = 1e-05, add-remove, unit record," in text


def test_what_lies_in_the_folder_is_respected(
    cli: Callable[..., Any], sweep: Callable[..., dict[str, Any]], cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its title, its ledger, and the records that its members are of."""
    x, y = np.random.default_rng(0).integers(0, 255, (300, 6)).astype(np.uint8), np.arange(300) % 2
    np.savez(cwd / "d.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    own = HEAD.replace('"digits"\nsubset = "0.5:1.0"', '"./d.npz"')
    sweep(own + DENSE, "--seeds", "1")
    refused = ("run", "--config", "r.toml", "--jobs", "1", "--out")
    with opened(cwd / "other", "Another title"):
        pass
    done = cli(*refused, "other")
    assert (done.code, "'Another title'" in done.err) == (2, True)
    np.savez(cwd / "d.npz", x_train=x[1:201], y_train=y[1:201], x_test=x[201:], y_test=y[201:])
    done = cli(*refused, "r.sweep")
    assert (done.code, "other records" in done.err) == (2, True)
    np.savez(cwd / "d.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    ledger = cwd / "r.sweep/dpltm.ledger.jsonl"
    *lines, _ = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(cwd / "elsewhere"))  # another machine, where nothing is known of it
    done = cli(*refused, "r.sweep", "--seeds", "1")
    assert (done.code, "a value that was paid for here knows" in done.err) == (2, True)


SEARCHED = f"""{HEAD.replace('model = "mlp:4"', "").replace("noise-multiplier = 1.0", "epsilon = 3.0")}
[tune]
dataset = "digits"
subset = "0.0:0.5"
for-records = 719
lr = "1"
epochs = "0.1"
batch-size = "50"
rounds = "1"
[tickets.own]
dataset = "digits"
subset = "0.5:1.0"
criterion = "dp-train"
epsilon = 1.0
model = "mlp:4"
rounds = 1
iterations = 3
[tickets]
free = {{ dataset = "digits", criterion = "random", provenance = "data-free", model = "mlp:4", rounds = 1 }}
"""


@pytest.mark.long
def test_what_a_search_looked_at_is_part_of_its_trials(sweep: Callable[..., dict[str, Any]], cwd: Path) -> None:
    """With tickets made from the records under DP, each seed searches with its own; those of another arm are paid for.

    Arms that search the same share the search.
    """
    arms = "".join(
        f'[[arm]]\nname = "{name}"\ntickets = "{tickets}"\ntune = {{ {searched} }}\n'
        for name, tickets, searched in (
            ("own", "own", ""),
            ("other", "free", 'tickets = "own"'),
            ("free", "free", ""),
            ("shared", "own", 'tickets = "free"'),
        )
    )
    body = sweep(SEARCHED + arms)
    own, other, free, shared = (row["noise_multiplier"] for row in body["arms"])
    assert own == pytest.approx(other, rel=1e-3)  # the release behind the search takes as much of the budget
    assert own == pytest.approx(shared, rel=1e-3)
    assert own > free
    assert all(2.9 < row["privacy"]["certified"]["epsilon"] <= 3 for row in body["arms"])
    assert len(list((cwd / "r.sweep/tune").glob("*.toml"))) == 2 + 1


def test_a_budget_on_the_records_holds_for_a_sweep(
    cli: Callable[..., Any], sweep: Callable[..., dict[str, Any]], cwd: Path
) -> None:
    """Of the ledger that is named: one trial fits, and the next would exceed it."""
    planned = sweep(HEAD + DENSE + "train = { audit = 10 }", "--seeds", "1", "--dry-run")["arms"][0]["privacy"]
    alone = planned["certified"]["epsilon"]
    assert any("attacked this training (--audit)" in note for note in planned["notes"])
    budget = ("privacy", "budget", "l.jsonl", "--epsilon", 1.01 * alone)
    assert cli(*budget, "--quiet").code == 0
    body = sweep(HEAD + DENSE, "--ledger", "l.jsonl", code=1)
    (row,) = body["arms"]
    assert row["count"] == 1
    (hole,) = row["missing"]
    assert "budget" in hole["why"]
    assert body["privacy"]["certified"]["epsilon"] == alone
    assert not (cwd / "r.sweep/dpltm.ledger.jsonl").exists()
