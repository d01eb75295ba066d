"""Runs and sweeps that were interrupted, and the same command again: each stage is paid for once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpltm.privacy.mechanisms import Guarantee, NoisySgd, Selection
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.sweep_files import SweepFolder
from dpltm.tickets.workbench.trial import STAGES
from interruptions import Killed, ctrl_c, die, often, signals


@pytest.fixture(autouse=True)
def _interruptible(monkeypatch):
    """A checkpoint after every step; and Ctrl-C interrupts, whatever a shell says of it."""
    often(monkeypatch)
    with signals():
        yield


RUN = """
[run]
epsilon = 3.0
delta = 1e-4
[generate]
dataset = "digits"
subset = "0.0:0.5"
provenance = "public"
model = "mlp:4"
rounds = 2
iterations = 60
batch-size = 32
[select]
score = "additive"
[train]
dataset = "digits"
subset = "0.5:1.0"
steps = 9
"""


def releases(path):
    """Kinds of mechanisms of what was paid for, in order."""
    return [type(entry.mechanisms[0]) for entry in open_ledger(path).account().paid]


@pytest.mark.parametrize("number", [3, 14])
def test_a_run_goes_on_with_the_stage_that_was_interrupted(cli, stopped_at, refused, tree, number):
    Path("c.toml").write_text(RUN)
    before = tree()
    done = stopped_at(ctrl_c, number, "run", "--config", "c.toml", "--out", "o")
    assert done.code == 130
    assert "o/.tickets.checkpoint" in done.err if number == 3 else "o/.run.checkpoint" in done.err
    Path("c.toml").write_text(RUN.replace("steps = 9", "steps = 8"))
    assert "begun otherwise: `[train] steps` was 9 and is 8" in refused("run", "--config", "c.toml", "--out", "o")
    Path("c.toml").write_text(RUN)
    body = cli("run", "--config", "c.toml", "--out", "o", "--json").json
    assert set(body) == {"out", "generate", "select", "train", "privacy"}
    assert body["privacy"]["certified"]["epsilon"] <= 3
    assert releases("digits.ledger.jsonl") == [Selection, NoisySgd]
    hidden = {name for name in set(tree()) - set(before) if "/." in name or "unfinished" in name}
    assert hidden == set()


LEDGER = Path("s.sweep/dpltm.ledger.jsonl")
SWEEP = """
[recipe]
title = "T"
source = "nobody"
seeds = 2
[train]
dataset = "digits"
subset = "0.5:1.0"
model = "mlp:4"
batch-size = 50
steps = 4
noise-multiplier = 1.0
[tickets.public]
dataset = "digits"
subset = "0.0:0.5"
provenance = "public"
model = "mlp:4"
rounds = 1
iterations = 5
batch-size = 30
[[arm]]
name = "dense"
[[arm]]
name = "drawn"
tickets = "public"
select = { eps1 = 0.5, score = "additive" }
"""


def test_a_sweep_pays_once_for_each_trial_whatever_interrupts_it(cli, stopped_at):
    Path("s.toml").write_text(SWEEP)
    command = ("run", "--config", "s.toml", "--jobs", "1")
    for number in (2, 3, 3, 3, 3, 3, 3):
        done = stopped_at(ctrl_c, number, *command)
        if done.code == 0:
            break
        assert done.code == 130, done.err
    assert cli(*command, "--quiet").code == 0
    members = sorted(Path("s.sweep/members").iterdir())
    assert len(members) == 4
    paid = releases(LEDGER)
    assert (paid.count(NoisySgd), paid.count(Selection), len(paid)) == (4, 2, 6)
    for member in members:
        assert {path.name for path in member.iterdir()} == {"result.json", "run"}


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


DRAWN = SWEEP.replace("seeds = 2", "seeds = 1").replace('[[arm]]\nname = "dense"\n', "")
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


@pytest.mark.parametrize(
    ("recipe", "stage", "paid"),
    [
        (DRAWN, "train", [Selection, NoisySgd]),
        (DRAWN, None, [Selection, NoisySgd]),
        (LATENT, "latent train", [Guarantee]),
        (LATENT, None, [Guarantee]),
    ],
    ids=["draw", "run", "messages", "run of messages"],
)
def test_a_trial_that_dies_between_two_stages_pays_for_neither_again(cli, monkeypatch, recipe, stage, paid):
    """Behind its draw or its messages, before a training begins; and behind its run, before its result is there."""
    digits = load_digits()
    images = (16 - digits.images[:300]).astype(np.uint8)  # other records than those that are public here
    np.savez("own.npz", x_train=images, y_train=digits.target[:300])
    Path("s.toml").write_text(recipe)
    command = ("run", "--config", "s.toml", "--jobs", "1", "--quiet")
    with monkeypatch.context() as patch:
        if stage is None:
            patch.setattr(SweepFolder, "finish", interrupt)
        else:
            patch.setitem(STAGES, stage, interrupt)
        assert cli(*command).code == 130
    (member,) = Path("s.sweep/members").iterdir()
    run = {path.name: path.read_bytes() for path in member.glob("run/*")}
    assert bool(run) == (stage is None)
    done = cli(*command)
    assert done.code == 0, done
    assert releases(LEDGER) == paid
    assert {path.name for path in member.iterdir()} - {"scheme"} == {"result.json", "run"}
    if recipe == DRAWN and run:
        assert {path.name: path.read_bytes() for path in member.glob("run/*")} == run


@pytest.mark.parametrize(("number", "hidden"), [(3, "o/.tickets.checkpoint"), (14, "o/.run.checkpoint")])
def test_a_refused_checkpoint_of_a_run_says_how_a_run_begins_again(cli, stopped_at, refused, number, hidden):
    """`--fresh` is no option of ``dpltm run``. What is said is done here, and helps."""
    Path("c.toml").write_text(RUN)
    command = ("run", "--config", "c.toml", "--out", "o")
    assert stopped_at(ctrl_c, number, *command).code == 130
    (Path(hidden) / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    said = refused(*command)
    assert said.endswith("damaged; move o away to begin again (what was spent stays spent)")
    Path("c.toml").write_text(RUN.replace("steps = 9", "steps = 8"))
    assert refused(*command).endswith(
        "repeat the same command to go on, choose another --out, or move o away to begin again (what was spent stays spent)"
    )
    Path("o").rename("away")
    assert cli(*command, "--ledger", "again.jsonl", "--quiet").code == 0


def test_a_refused_checkpoint_in_a_sweep_says_how_its_trial_begins_again(cli, stopped_at):
    Path("s.toml").write_text(SWEEP.replace("seeds = 2", "seeds = 1").partition('[[arm]]\nname = "drawn"')[0])
    command = ("run", "--config", "s.toml", "--jobs", "1")
    assert stopped_at(ctrl_c, 3, *command).code == 130
    (held,) = Path("s.sweep/members").glob("*/.run.checkpoint")
    (held / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    done = cli(*command, "--json")
    assert done.code == 1
    (hole,) = json.loads(done.out)["arms"][0]["missing"]
    assert hole["why"].endswith(f"damaged; remove {held} to begin again (what was spent stays spent)")
    shutil.rmtree(held)
    assert cli(*command, "--quiet").code == 0
    assert releases(LEDGER) == [NoisySgd, NoisySgd], "the first is on record still"


@pytest.fixture
def killed(stopped_at):
    """A trial of a sweep with a draw that was killed in its training: its folder, and the command that goes on."""
    Path("s.toml").write_text(DRAWN)
    command = ("run", "--config", "s.toml", "--jobs", "1")
    with pytest.raises(Killed):
        stopped_at(die, 3, *command)
    (member,) = Path("s.sweep/members").iterdir()
    assert (member / ".run.checkpoint").is_dir()
    return member, command


def shortened(ledger):
    """Without the last line, which paid for the training."""
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-1]))


ROLLED_BACK = {
    "shortened": shortened,
    "emptied": lambda ledger: ledger.write_bytes(b""),
    "deleted": lambda ledger: ledger.unlink(),
}


@pytest.mark.parametrize("checkpoint", [True, False], ids=["goes on", "begins again"])
@pytest.mark.parametrize("way", ROLLED_BACK)
def test_a_sweep_whose_ledger_was_rolled_back_is_refused(cli, killed, refused, way, checkpoint):
    """Whether its training can go on or begins again; put back, the trial is paid for as it was."""
    member, command = killed
    whole = LEDGER.read_bytes()
    if not checkpoint:
        shutil.rmtree(member / ".run.checkpoint")
    ROLLED_BACK[way](LEDGER)
    said = refused(*command)
    assert said.startswith(f"{LEDGER}: holds ")
    assert ": deleted, shortened, replaced" in said
    LEDGER.write_bytes(whole)
    assert cli(*command, "--quiet").code == 0
    assert releases(LEDGER) == [Selection, NoisySgd] + ([] if checkpoint else [NoisySgd]), "one draw, in any case"


def test_what_a_run_depends_on_counts_where_its_ledger_is_gone(cli, monkeypatch, tmp_path):
    """It died before the result was there, and nobody on this machine knows of the ledger: the run knows what it cost."""
    Path("s.toml").write_text(DRAWN)
    command = ("run", "--config", "s.toml", "--jobs", "1", "--json")
    with monkeypatch.context() as patch:
        patch.setattr(SweepFolder, "finish", interrupt)
        assert cli(*command).code == 130
    spent = open_ledger(LEDGER).account().epsilon(1e-5)
    LEDGER.unlink()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "elsewhere"))
    assert cli(*command).json["privacy"]["certified"]["epsilon"] == spent
