"""Sweeps: finished members are left alone, failed ones leave a hole, and any number of processes share the work."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from child_processes import PATIENCE, interruptible
from dpltm.replicates import paired, summary
from dpltm.tickets.sweep_files import SweepFolder
from recipes import read_recipe

RECIPE = """
[recipe]
title = "Digits"
source = "nobody"
seeds = 2

[train]
dataset = "digits"
subset = "0.5:1.0"
model = "mlp:4"
batch-size = 50
steps = 3
noise-multiplier = 1.0

[tickets.public]
dataset = "digits"
subset = "0.0:0.5"
provenance = "public"
model = "mlp:4"
rounds = 2
iterations = 5
batch-size = 30

[tickets.moved]
from = "public"
dataset = "digits"
subset = "0.0:0.5"
mode = "mask-only"

[[arm]]
name = "dense"
paper = 99.5

[[arm]]
name = "drawn"
tickets = "public"
against = "dense"
select = { eps1 = 0.5, score = "additive" }

[[arm]]
name = "at random"
tickets = "public"
round = "random"

[[arm]]
name = "moved"
tickets = "moved"
round = 2

[figure]
over = "steps"
"""

BROKEN = RECIPE + '\n[[arm]]\nname = "broken"\ntrain = { features = "wavelets" }\n'
"""Whether a map suits the records shows when it is made, in a member."""


@pytest.fixture
def recipe(cwd: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        (cwd / "r.toml").write_text(text, encoding="utf-8")
        return cwd / "r.toml"

    return write


def members(out: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(out.glob("members/*/result.json"))}


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def test_a_sweep_from_start_to_end(cli: Callable[..., Any], recipe: Callable[[str], Path], cwd: Path) -> None:
    path = recipe(RECIPE)
    body = cli("run", "--config", path, "--jobs", "1", "--json").json
    out = cwd / "r.sweep"
    done = members(out)
    assert body["finished"] == body["members"] == len(done) == 8
    stored = [{key: value for key, value in row.items() if key != "minutes"} for row in body["arms"]]
    assert json.loads((out / "results.json").read_text())["arms"] == stored
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    rows = {row["name"]: row for row in body["arms"]}
    assert list(rows) == ["dense", "drawn", "at random", "moved"]

    for row in rows.values():  # what the table says is what the members' runs say
        mine = {body["seed"]: body for body in done.values() if body["arm"] == row["name"]}
        values = {seed: body["train"]["accuracy"] for seed, body in mine.items()}
        assert row["values"] == {str(seed): value for seed, value in values.items()}
        found = summary([values[0], values[1]])
        assert (row["mean"], row["sd"], row["interval"]) == pytest.approx((found.mean, found.sd, found.half))
        assert row["missing"] == []
    dense = {int(seed): value for seed, value in rows["dense"]["values"].items()}
    drawn = {int(seed): value for seed, value in rows["drawn"]["values"].items()}
    assert rows["drawn"]["difference"]["mean"] == pytest.approx(paired(drawn, dense).mean)
    assert rows["dense"]["paper"] == 99.5

    # a draw is paid for on top of its training; every figure is that of one release
    alone = cli("train", "--dense", "--dataset", "digits", "--subset", "0.5:1.0", "--model", "mlp:4", "--batch-size", "50",
                "--steps", "3", "--noise-multiplier", "1", "--dry-run", "--json").json  # fmt: skip
    single = alone["privacy"]["certified"]["epsilon"]
    assert rows["dense"]["privacy"]["certified"]["epsilon"] == single
    assert rows["drawn"]["privacy"]["certified"]["epsilon"] > single
    assert rows["drawn"]["privacy"]["nominal"] is not None
    # and all of them together cost more than any, and no more than their sum
    together = body["privacy"]["certified"]["epsilon"]
    assert single < together < 8 * rows["drawn"]["privacy"]["certified"]["epsilon"]
    assert any("ledgers of this sweep" in note for note in body["privacy"]["notes"])
    assert any("hyperparameter search" in note for note in body["privacy"]["notes"])
    assert body["privacy"]["finite"] is None

    text = (out / "results.md").read_text()
    for name in rows:
        assert f"| {name} |" in text
    assert "HOLE" not in text
    assert not list(out.glob("members/*/tickets"))  # copies that were drawn from are gone


def test_finished_members_are_left_alone(cli: Callable[..., Any], recipe: Callable[[str], Path], cwd: Path) -> None:
    path = recipe(RECIPE)
    first = cli("run", "--config", path, "--jobs", "1", "--seeds", "1", "--json").json
    kept = {
        name: (cwd / "r.sweep/members" / name / "result.json").stat().st_mtime_ns for name in members(cwd / "r.sweep")
    }
    again = cli("run", "--config", path, "--jobs", "1", "--seeds", "2", "--json").json
    now = members(cwd / "r.sweep")
    assert len(now) == 8
    for name, stamp in kept.items():
        assert (cwd / "r.sweep/members" / name / "result.json").stat().st_mtime_ns == stamp
    for one, other in zip(first["arms"], again["arms"], strict=True):
        assert other["values"]["0"] == one["values"]["0"]

    # another option makes other members; those of arms that did not change stay
    recipe(RECIPE.replace("paper = 99.5", "train = { lr = 0.125 }"))
    changed = cli("run", "--config", path, "--jobs", "1", "--json").json
    assert len(members(cwd / "r.sweep")) == 10
    assert changed["finished"] == 8
    assert changed["arms"][0]["lr"] == 0.125
    assert changed["arms"][1]["values"] == again["arms"][1]["values"]


def test_a_failed_member_leaves_a_hole(cli: Callable[..., Any], recipe: Callable[[str], Path], cwd: Path) -> None:
    done = cli("run", "--config", recipe(BROKEN), "--jobs", "1", "--json")
    assert done.code == 1
    body = json.loads(done.out)
    assert (body["finished"], body["members"]) == (8, 10)
    broken = body["arms"][-1]
    assert [hole["seed"] for hole in broken["missing"]] == [0, 1]
    assert "not signals" in broken["missing"][0]["why"]
    assert broken["mean"] is None
    assert body["arms"][0]["count"] == 2
    assert "HOLE" in (cwd / "r.sweep/results.md").read_text()

    # what failed is tried again, and what is mended fills the hole
    recipe(BROKEN.replace('"wavelets"', '"unit"'))
    assert cli("run", "--config", "r.toml", "--jobs", "1", "--json").json["finished"] == 10


def test_two_processes_make_what_one_makes(cli: Callable[..., Any], recipe: Callable[[str], Path], cwd: Path) -> None:
    """Starting weights and masks are the seed's, whoever makes them; every member is made once, a failed one too."""
    path = recipe(BROKEN)
    assert cli("run", "--config", path, "--jobs", "1", "--out", "one", "--quiet").code == 1
    assert cli("run", "--config", path, "--jobs", "2", "--out", "two", "--quiet").code == 1
    assert members(cwd / "one").keys() == members(cwd / "two").keys()
    sets = [path.name for path in sorted((cwd / "one/tickets").iterdir())]
    assert sets == [path.name for path in sorted((cwd / "two/tickets").iterdir())]
    for name in sets:
        ids = {json.loads((cwd / out / "tickets" / name / "tickets.json").read_text())["id"] for out in ("one", "two")}
        assert len(ids) == 1
    for name in members(cwd / "two"):
        _, *events = (cwd / "two/members" / name / "ledger.jsonl").read_text().splitlines()
        assert sum("training" in json.loads(line)["event"]["kind"] for line in events) == 1


def test_an_interrupted_sweep_goes_on(cli: Callable[..., Any], recipe: Callable[[str], Path], cwd: Path) -> None:
    """Ctrl-C ends every process; the same command finishes what is left.

    One member is held here until then, so that no processor is too fast to be interrupted.
    """
    path = recipe(RECIPE.replace("steps = 3", "steps = 60"))
    read = read_recipe(path.read_text())
    out = cwd / "r.sweep"
    with SweepFolder(out, read.title, "held").lock(read.trials[-1].label) as held:
        assert held
        process = subprocess.Popen(
            interruptible([sys.executable, "-m", "dpltm.cli.main", "run", "--config", str(path), "--jobs", "2"]),
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
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
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "interrupted" in said
    before = members(out)
    assert 1 <= len(before) < 8
    body = cli("run", "--config", path, "--jobs", "1", "--json").json
    assert body["finished"] == 8
    after = members(out)
    assert {name: after[name] for name in before} == before


def test_a_trial_that_its_process_died_over_is_not_begun_again(cwd: Path) -> None:
    """A trial that was begun in this session and is nobody's any more is not tried for ever."""
    read = read_recipe(RECIPE)
    folder = SweepFolder(cwd / "s", read.title, "now")
    label = read.trials[0].label
    assert folder.begin(label)
    assert not folder.begin(label)
    assert SweepFolder(cwd / "s", read.title, "later").begin(label)


def test_attempts_that_came_to_nothing_stay_on_record(cwd: Path) -> None:
    folder = SweepFolder(cwd / "s", "T", "one")
    folder.begin("m")
    (folder.trial("m") / "ledger.jsonl").write_text("spent\n")
    SweepFolder(cwd / "s", "T", "two").begin("m")
    assert [path.name for path in folder.ledgers("m")] == ["ledger-attempt-1.jsonl"]


def test_what_lies_in_the_folder_is_respected(
    refused: Callable[..., str], recipe: Callable[[str], Path], cwd: Path
) -> None:
    path = recipe(RECIPE)
    (cwd / "taken").mkdir()
    assert "not of a recipe" in refused("run", "--config", path, "--out", "taken")
    SweepFolder(cwd / "other", "Another title", "x")
    assert "'Another title'" in refused("run", "--config", path, "--out", "other")


def test_a_latent_arm(cli: Callable[..., Any], cwd: Path) -> None:
    (cwd / "latent.toml").write_text(
        '[recipe]\ntitle = "L"\nseeds = 1\n[latent.scheme]\npublic = "digits"\nfeatures = "unit"\nepsilon = 4.0\n'
        '[latent.encode]\ndataset = "own.npz"\nbounds = "0,16"\n[latent.train]\ntest = "digits"\n'
        '[[arm]]\nname = "codebook"\nlatent = {}\n', encoding="utf-8",
    )  # fmt: skip
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (16 - digits.images).astype(np.uint8)  # other records than those that are public here
    np.savez(cwd / "own.npz", x_train=images, y_train=digits.target)
    body = cli("run", "--config", "latent.toml", "--jobs", "1", "--json").json
    row = body["arms"][0]
    assert row["privacy"]["certified"]["epsilon"] <= 4
    assert row["count"] == 1
    shutil.rmtree(cwd / "latent.sweep")


PRIVATE = (
    RECIPE.replace("seeds = 2", "seeds = 1")
    + """
[tickets.private]
dataset = "digits"
subset = "0.5:1.0"
provenance = "private"
model = "mlp:4"
rounds = 1
iterations = 3
batch-size = 30

[[arm]]
name = "as printed"
tickets = "private"
round = 1
"""
)


def test_all_together_is_never_less_than_a_row(
    cli: Callable[..., Any], recipe: Callable[[str], Path], cwd: Path
) -> None:
    """With a row that certifies nothing, nothing is certified; what the others would cost is said beside it."""
    path = recipe(PRIVATE)
    body = cli("run", "--config", path, "--jobs", "1", "--json").json
    assert body["arms"][-1]["privacy"]["certified"]["epsilon"] == "inf"
    assert body["privacy"]["certified"]["epsilon"] == "inf"
    finite = body["privacy"]["finite"]
    assert finite["ledgers"] == 5  # four members, and the public set
    assert finite["epsilon"] > max(row["privacy"]["certified"]["epsilon"] for row in body["arms"][:-1])
    text = (cwd / "r.sweep/results.md").read_text()
    assert "certify nothing" in text
    assert "all together: certified epsilon inf (delta 1e-05, add-remove, unit record)" in text

    # what an earlier version of the recipe released stays released
    recipe(PRIVATE.replace("noise-multiplier = 1.0", "noise-multiplier = 2.0"))
    again = cli("run", "--config", path, "--jobs", "1", "--json").json
    assert again["privacy"]["finite"]["ledgers"] == 9
    assert again["privacy"]["finite"]["epsilon"] > finite["epsilon"]


def test_a_finished_member_without_its_ledger(
    cli: Callable[..., Any], recipe: Callable[[str], Path], cwd: Path
) -> None:
    path = recipe(RECIPE.replace("seeds = 2", "seeds = 1"))
    assert cli("run", "--config", path, "--jobs", "1", "--quiet").code == 0
    next((cwd / "r.sweep").glob("members/*/ledger.jsonl")).unlink()
    done = cli("run", "--config", path, "--jobs", "1")
    assert done.code == 2
    assert "its ledger is gone" in done.err


def test_records_that_changed_are_not_mixed(cli: Callable[..., Any], cwd: Path) -> None:
    import numpy as np

    x, y = np.random.default_rng(0).integers(0, 255, (300, 6)).astype(np.uint8), np.arange(300) % 2
    text = (
        '[recipe]\ntitle = "D"\nseeds = 1\n[train]\ndataset = "./d.npz"\nmodel = "mlp"\nsteps = 2\nbatch-size = 30\n'
        'noise-multiplier = 1.0\n[[arm]]\nname = "dense"\n'
    )
    (cwd / "d.toml").write_text(text)
    np.savez(cwd / "d.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    assert cli("run", "--config", "d.toml", "--jobs", "1", "--quiet").code == 0
    np.savez(cwd / "d.npz", x_train=x[1:201], y_train=y[1:201], x_test=x[201:], y_test=y[201:])
    done = cli("run", "--config", "d.toml", "--jobs", "1", "--seeds", "2")
    assert done.code == 2
    assert "other records" in done.err


SEARCHED = """
[recipe]
title = "S"
seeds = 2
[train]
dataset = "digits"
subset = "0.5:1.0"
epsilon = 3.0
batch-size = 50
steps = 2
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
criterion = "dp-synthetic"
epsilon = 1.0
model = "mlp:4"
rounds = 1
iterations = 3
[tickets.free]
dataset = "digits"
criterion = "random"
provenance = "data-free"
model = "mlp:4"
rounds = 1
"""


def test_a_search_looks_at_no_release_that_is_in_no_ledger(cli: Callable[..., Any], cwd: Path) -> None:
    """With tickets made from the records under DP, each seed searches with its own; with those of another arm, none does."""
    arms = (
        '[[arm]]\nname = "own"\ntickets = "own"\ntune = {}\n'
        '[[arm]]\nname = "other"\ntickets = "free"\ntune = { tickets = "own" }\n'
    )
    (cwd / "s.toml").write_text(SEARCHED + arms)
    done = cli("run", "--config", "s.toml", "--jobs", "1", "--json")
    assert done.code == 1
    own, other = json.loads(done.out)["arms"]
    assert own["missing"] == []
    assert len(list((cwd / "s.sweep/tune").glob("*.toml"))) == 2
    assert [hole["seed"] for hole in other["missing"]] == [0, 1]
    assert "made from records that are trained on" in other["missing"][0]["why"]


def test_a_row_is_of_one_search(cli: Callable[..., Any], cwd: Path) -> None:
    """A search whose answer is gone finds something else, and its members would not be those of the row."""
    text = SEARCHED.replace('lr = "1"', 'lr = "{}"') + '[[arm]]\nname = "free"\ntickets = "free"\ntune = {{}}\n'
    (cwd / "s.toml").write_text(text.format(1).replace("seeds = 2", "seeds = 1"))
    assert cli("run", "--config", "s.toml", "--jobs", "1", "--quiet").code == 0
    result = next((cwd / "s.sweep/members").glob("*/result.json"))
    assert json.loads(result.read_text())["settings"] == {
        "lr": 1.0, "clip-norm": 1.0, "epochs": 0.1, "batch-size": 50.0, "round": 1,
        "tuned-on": json.loads(result.read_text())["settings"]["tuned-on"],
    }  # fmt: skip
    answer = next((cwd / "s.sweep/tune").iterdir())
    answer.write_text(answer.read_text().replace("lr = 1.0", "lr = 2.0"))
    done = cli("run", "--config", "s.toml", "--jobs", "1", "--seeds", "2", "--json")
    assert done.code == 1
    (row,) = json.loads(done.out)["arms"]
    assert row["count"] == 1
    assert "another search found" in row["missing"][0]["why"]


def test_arms_that_search_the_same_share_it(cli: Callable[..., Any], cwd: Path) -> None:
    arms = (
        '[[arm]]\nname = "free"\ntickets = "free"\ntune = {}\n'
        '[[arm]]\nname = "dp"\ntickets = "own"\ntune = { tickets = "free" }\n'
        '[[arm]]\nname = "else"\ntickets = "own"\ntune = { tickets = "free", lr = "2" }\n'
    )
    (cwd / "s.toml").write_text(SEARCHED + arms)
    done = cli("run", "--config", "s.toml", "--jobs", "1", "--json")
    assert done.code == 0
    assert len(list((cwd / "s.sweep/tune").glob("digits-*.toml"))) == 2


def test_a_set_that_was_put_there(cli: Callable[..., Any], recipe: Callable[[str], Path], cwd: Path) -> None:
    """Provenance decides what is certified, so the recipe's is held against the set's."""
    path = recipe(PRIVATE)
    assert cli("run", "--config", path, "--jobs", "1", "--quiet").code == 0
    place = next((cwd / "r.sweep/tickets").glob("private-*[!n]"))
    shutil.rmtree(place)
    shutil.copytree(next((cwd / "r.sweep/tickets").glob("public-*")), place)
    shutil.rmtree(next((cwd / "r.sweep/members").glob("as-printed-*")))
    done = cli("run", "--config", path, "--jobs", "1", "--json")
    assert done.code == 1
    assert "its provenance is public" in json.loads(done.out)["arms"][-1]["missing"][0]["why"]
