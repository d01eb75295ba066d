"""Runs and sweeps that were interrupted, and the same command again: each stage is paid for once."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from commands import LEDGER, certified
from dpltm.privacy.mechanisms import Guarantee, NoisySgd, Selection
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.sweep_files import SweepFolder
from dpltm.tickets.workbench.sweep import STAGES
from interruptions import Killed, ctrl_c, die, interrupt, often, signals
from recipes import DENSE, DRAWN, HEAD, RUN, SETS

LONGER = RUN.replace("iterations = 3", "iterations = 60").replace("rounds = 1", "rounds = 2")
LONGER = LONGER.replace("steps = 3", "steps = 9")
RUN_IT = "run --config c.toml --out o"
SWEEP, PAID = "run --config s.toml --jobs 1", Path("s.sweep/dpltm.ledger.jsonl")
ONE = HEAD.replace("seeds = 2", "seeds = 1").replace("steps = 2", "steps = 4")
SETS = SETS.replace("rounds = 2", "rounds = 1")
LATENT = """
[recipe]
title = "L"
source = "nobody"
seeds = 1
[latent.scheme]
public = "digits"
features = "unit"
epsilon = 4.0
[latent.encode]
dataset = "own.npz"
bounds = "0,16"
[latent.train]
test = "digits"
[[arm]]
name = "codebook"
latent = {}
"""


@pytest.fixture(autouse=True)
def _interruptible(monkeypatch):
    """A checkpoint after every step; and Ctrl-C interrupts, whatever a shell says of it."""
    often(monkeypatch)
    with signals():
        yield


def releases(path):
    """Kinds of mechanisms of what was paid for, in order."""
    return [type(entry.mechanisms[0]) for entry in open_ledger(path).account().paid]


@pytest.mark.parametrize(("number", "hidden"), [(3, "o/.tickets.checkpoint"), (14, "o/.run.checkpoint")])
def test_a_run_goes_on_with_the_stage_that_was_interrupted(cli, stopped_at, refused, tree, number, hidden):
    Path("c.toml").write_text(LONGER)
    before = tree()
    done = stopped_at(ctrl_c, number, RUN_IT)
    assert (done.code, hidden in done.err) == (130, True)
    Path("c.toml").write_text(LONGER.replace("steps = 9", "steps = 8"))
    assert re.search("o is of another recipe, 'three stages [0-9a-f]{16}'; choose another name", refused(RUN_IT))
    Path("c.toml").write_text(LONGER)
    body = cli(f"{RUN_IT} --json").json
    assert set(body) == {"out", "generate", "select", "train", "privacy"}
    assert certified(body) <= 3
    assert releases(LEDGER) == [Selection, NoisySgd]
    assert {path.name for path in Path("o").iterdir()} == {"tickets", "run", "recipe.json", "result.json"}
    assert [name for name in set(tree()) - set(before) if "/." in name] == []
    again, seconds = cli(f"{RUN_IT} --json").json, body["train"].pop("seconds")
    assert (again, seconds > 0) == ({**body, "train": again["train"]}, True)
    assert again["train"].items() >= body["train"].items()
    assert releases(LEDGER) == [Selection, NoisySgd], "a run that is finished is not run again"


def test_a_stage_that_died_before_its_answer_was_kept_begins_anew(cli, monkeypatch):
    """What it paid stays in the ledger, and the training pays with what is left."""
    Path("c.toml").write_text(RUN)
    inner = SweepFolder.stage

    def dying(folder, label, name, make):
        answer = make()
        if name == "draw.json":
            interrupt()
        return inner(folder, label, name, lambda: answer)

    with monkeypatch.context() as patch:
        patch.setattr(SweepFolder, "stage", dying)
        assert cli(RUN_IT).code == 130
    Path("o/generate.json").unlink()
    body = cli(f"{RUN_IT} --json").json
    assert releases(LEDGER) == [Selection, Selection, NoisySgd]
    assert certified(body) <= 3


def test_a_refused_checkpoint_says_how_to_begin_again(cli, stopped_at, refused):
    """What is said is done here, and helps: of a run, and of a trial in a sweep."""
    Path("c.toml").write_text(LONGER)
    assert stopped_at(ctrl_c, 14, RUN_IT).code == 130
    Path("o/.run.checkpoint/checkpoint.safetensors").write_bytes(b"not a checkpoint")
    assert refused(RUN_IT).endswith("damaged; remove o/.run.checkpoint to begin again (what was spent stays spent)")
    shutil.rmtree("o")
    assert cli(f"{RUN_IT} --ledger again.jsonl").code == 0
    Path("s.toml").write_text(ONE + DENSE)
    assert stopped_at(ctrl_c, 3, SWEEP).code == 130
    (held,) = Path("s.sweep/members").glob("*/.run.checkpoint")
    (held / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    done = cli(f"{SWEEP} --json")
    assert done.code == 1
    (hole,) = json.loads(done.out)["arms"][0]["missing"]
    assert hole["why"].endswith(f"damaged; remove {held} to begin again (what was spent stays spent)")
    shutil.rmtree(held)
    assert cli(SWEEP).code == 0
    assert releases(PAID) == [NoisySgd, NoisySgd], "the first is on record still"


def test_a_sweep_pays_once_for_each_trial_whatever_interrupts_it(cli, stopped_at):
    Path("s.toml").write_text(ONE.replace("seeds = 1", "seeds = 2") + SETS + DENSE + DRAWN)
    for number in (2, 3, 3, 3, 3, 3, 3):
        if stopped_at(ctrl_c, number, SWEEP).code == 0:
            break
    assert cli(SWEEP).code == 0
    members = sorted(Path("s.sweep/members").iterdir())
    assert len(members) == 4
    paid = releases(PAID)
    assert (paid.count(NoisySgd), paid.count(Selection), len(paid)) == (4, 2, 6)
    for member in members:
        assert {path.name for path in member.iterdir()} == {"result.json", "run"}


@pytest.mark.parametrize(
    ("recipe", "stage", "paid"),
    [
        (ONE + SETS + DRAWN, "train", [Selection, NoisySgd]),
        (ONE + SETS + DRAWN, None, [Selection, NoisySgd]),
        (LATENT, "latent train", [Guarantee]),
        (LATENT, None, [Guarantee]),
    ],
    ids=["draw", "run", "messages", "run of messages"],
)
def test_a_trial_that_dies_between_two_stages_pays_for_neither_again(cli, monkeypatch, tmp_path, recipe, stage, paid):
    """Behind its draw or its messages, before a training begins; and behind its run, before its result is there."""
    digits = load_digits()
    images = (16 - digits.images[:300]).astype(np.uint8)  # other records than those that are public here
    np.savez("own.npz", x_train=images, y_train=digits.target[:300])
    Path("s.toml").write_text(recipe)
    with monkeypatch.context() as patch:
        if stage is None:
            patch.setattr(SweepFolder, "finish", interrupt)
        else:
            patch.setitem(STAGES, stage, interrupt)
        assert cli(SWEEP).code == 130
    (member,) = Path("s.sweep/members").iterdir()
    run = {path.name: path.read_bytes() for path in member.glob("run/*")}
    assert bool(run) == (stage is None)
    if run and paid != [Guarantee]:  # and nobody on this machine knows of the ledger: the run knows what it cost
        spent, whole = open_ledger(PAID).account().epsilon(1e-5), PAID.read_bytes()
        shutil.copytree("s.sweep", "kept")
        PAID.unlink()
        with monkeypatch.context() as patch:
            patch.setenv("XDG_CONFIG_HOME", str(tmp_path / "elsewhere"))
            assert certified(cli(f"{SWEEP} --json").json) == spent
        shutil.rmtree("s.sweep")
        Path("kept").rename("s.sweep")
        assert PAID.read_bytes() == whole
    assert cli(SWEEP).code == 0
    assert releases(PAID) == paid
    assert {path.name for path in member.iterdir()} - {"scheme"} == {"result.json", "run"}
    if run and paid != [Guarantee]:
        assert {path.name: path.read_bytes() for path in member.glob("run/*")} == run


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_sweep_whose_ledger_was_rolled_back_is_refused(cli, stopped_at, refused, checkpoint):
    """Whether its training can go on or begins again; put back, the trial is paid for as it was."""
    Path("s.toml").write_text(ONE + SETS + DRAWN)
    with pytest.raises(Killed):
        stopped_at(die, 3, SWEEP)
    (held,) = Path("s.sweep/members").glob("*/.run.checkpoint")
    whole = PAID.read_bytes()
    if not checkpoint:
        shutil.rmtree(held)
    PAID.write_bytes(b"")
    assert refused(SWEEP).startswith(f"{PAID}: holds ")
    PAID.write_bytes(whole)
    assert cli(SWEEP).code == 0
    assert releases(PAID) == [Selection, NoisySgd] + ([] if checkpoint else [NoisySgd]), "one draw, in any case"
