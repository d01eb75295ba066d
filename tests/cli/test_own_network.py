"""A file of code at the terminal: what it does in every command, and that nothing but the command line names it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import dpltm
from commands import LEDGER, Done, words
from dpltm.cli.main import run
from dpltm.errors import InputError
from dpltm.networks import ModelSpec
from dpltm.tickets import save
from own_networks import closeness, squares

NETS = """
import torch
from torch import nn

class Small(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, classes)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))

class Other(Small):
    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.conv(x))).mean((2, 3)))

class Broken(Small):
    def forward(self, x):
        return self.nothing(x)
"""

FEW = "--rounds 1 --iterations 3 --batch-size 32"
GENERATE = f"generate --dataset digits --subset 0.0:0.5 --provenance public --bounds 0,16 {FEW}"
PRIVATE = "--dataset digits --subset 0.5:1.0 --bounds 0,16"


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """A file of code in a folder of its own, beside the working folder."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "nets.py").write_text(NETS)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return "../code/nets.py"


@pytest.fixture
def done(capfd):
    """Runs a command line in the working folder; a traceback may show, of the code that it names."""

    def call(command: str) -> Done:
        capfd.readouterr()
        code = run(words(command))
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return call


def test_all_commands(nets, done):
    """And without the code: what can be looked at, and what says what to name."""
    model = f"--model {nets}:Small"
    made = done(f"{GENERATE} {model} --out a.tickets --json").json
    assert made["tickets"][0]["live"] == 4 * 9 + 4 + 8 + 40 + 10
    document = json.loads(Path("a.tickets/tickets.json").read_text())
    assert (document["schema"], document["model"]) == (5, "nets.py:Small")
    assert done(f"select a.tickets {PRIVATE} {model} --score additive --eps1 0.5 --json").json["winner"] == {
        "round": 1, "density": made["tickets"][1]["density"],
    }  # fmt: skip
    trained = done(f"train a.tickets {PRIVATE} {model} --epsilon 2 --steps 2 --out a.run --json").json
    assert trained["privacy"]["certified"]["epsilon"] <= 2
    assert done(f"evaluate a.run --dataset digits --bounds 0,16 {model} --json").code == 0
    np.savez("new.npz", x=np.zeros((2, 8, 8)))
    assert done(f"predict a.run --input new.npz -o p.csv {model}").code == 0

    Path("../code/nets.py").rename("../code/gone.py")
    assert done("tickets verify a.tickets --json").json["problems"] == []
    assert done("tickets show a.tickets").code == 0
    assert done("report a.run -o a.html").code == 0
    assert done("privacy check a.html").code == 0
    for command in (
        f"train a.tickets {PRIVATE} --epsilon 4 --steps 2",
        f"select a.tickets {PRIVATE} --score additive --eps1 0.5",
        "evaluate a.run --dataset digits --bounds 0,16",
        "predict a.run --input new.npz -o q.csv",
    ):
        told = done(command)
        assert told.code == 2
        assert told.err.endswith("as FILE.py:NAME or in dpltm.tickets.load(path, model=MyNet)\n"), told.err


def test_labels_that_are_no_class_numbers_are_for_python(nets, done):
    """A file of code says no loss and no score: what was made in Python is looked at, and the rest says what is missing."""
    sys.path.insert(0, str(Path(nets).parent))
    try:
        from nets import Small
    finally:
        sys.path.pop(0)
    x = np.random.default_rng(0).integers(0, 17, (60, 8, 8), dtype=np.uint8)
    y = x.reshape(60, -1)[:, :10] / 16
    own = {"model": Small, "loss": squares, "score": closeness, "bounds": (0, 16)}
    few = {"rounds": 1, "iterations": 2, "batch_size": 20, "provenance": "public"}
    made = save(dpltm.generate(x, y, ledger=dpltm.Ledger(), **own, **few), "a.tickets")
    train = {"round": 1, "epsilon": 1, "delta": 1e-4, "steps": 2, "bounds": (0, 16), "ledger": dpltm.Ledger()}
    save(dpltm.train(made, 16 - x, y, **train, name="others", test=(x[:9] // 2, y[:9])), "a.run")
    for command in ("tickets show a.tickets", "tickets verify a.tickets", "report a.run -o a.html"):
        assert done(command).code == 0, command
    assert done("privacy check a.html").code == 0
    model, plain = f"--model {nets}:Small", "float32 labels of shape (10,) are no class numbers"
    for command, said in {
        f"train a.tickets@1 {PRIVATE} {model} --epsilon 2 --steps 1": "its network is for float32 labels of shape (10,)",
        f"select a.tickets {PRIVATE} {model} --eps1 1": f"score= is missing: {plain}",
        f"evaluate a.run --dataset digits {model}": f"score= is missing: {plain}",
        f"predict a.run --input new.npz -o p.csv {model}": "so it gives no classes and no probabilities",
        f"export a.run --out m {model}": "and this one was trained on float32 labels of shape (10,)",
        f"train --dense {PRIVATE} {model} --classes 0 --epsilon 2": "--classes 0: must be 2 or more",
    }.items():
        np.savez("new.npz", x=x[:2])
        told = done(command)
        assert (told.code, said in told.err.replace("`", "")) == (2, True), told.err
    assert not Path("p.csv").exists()


def test_another_network_is_told_apart_and_an_edited_file_is_said(nets, done):
    assert done(f"{GENERATE} --model {nets}:Small --out a.tickets").code == 0
    command = f"train a.tickets@1 {PRIVATE} --epsilon 2 --steps 1"
    assert "computes something else" in done(f"{command} --model {nets}:Other").err
    assert done(f"{command} --model {nets}:Smalls").err.endswith("has no Smalls; did you mean Small?\n")
    path = Path("../code/nets.py")
    path.write_text(path.read_text() + "# edited\n")
    [note] = [
        note
        for note in done(f"{command} --model {nets}:Small --dry-run --json").json["privacy"]["notes"]
        if "nets.py" in note
    ]
    assert note.startswith("the file of nets.py:Small is not the one that the network was made with")


def test_the_file_of_what_a_package_hands_on_is_its_own(nets, done, monkeypatch):
    """So an edit of that module is seen, by whoever loads the set or goes on with a training."""
    package = Path("handing_on")
    package.mkdir()
    (package / "__init__.py").write_text("from handing_on.inner import Small\n")
    (package / "inner.py").write_text(Path(nets).read_text())
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    monkeypatch.syspath_prepend(os.getcwd())
    assert done(f"{GENERATE} --model handing_on:Small --out a.tickets").code == 0
    document = json.loads(Path("a.tickets/tickets.json").read_text())
    assert document["own"]["source_sha256"] == hashlib.sha256((package / "inner.py").read_bytes()).hexdigest()


def test_given_weights_frozen_and_prunable_parameters(nets, done):
    torch.manual_seed(1)
    body = {"conv.weight": torch.randn(4, 1, 3, 3), "conv.bias": torch.randn(4)}
    body |= {"norm.weight": torch.ones(4), "norm.bias": torch.zeros(4)}
    body |= {"head.weight": torch.zeros(10, 4), "head.bias": torch.zeros(10)}
    save_file(body, "w.safetensors")
    given = "--start w.safetensors --freeze conv.*,norm.*"
    command = f"train --dense {PRIVATE} --model {nets}:Small {given} --epsilon 2 --steps 2 --out a.run"
    assert done(command).err.startswith(
        "error: --start-provenance is missing: say what the weights of --start depend on"
    )
    assert done(f"{command} --start-provenance public --json").json["live"] == 40 + 10
    weights = load_file("a.run/model.safetensors")
    assert torch.equal(weights["conv.weight"], body["conv.weight"])


@pytest.mark.usefixtures("nets")
def test_weights_of_a_run_or_a_ticket_bring_its_lineage(done):
    """Whatever somebody says of them: their files say that a release is behind them, and it counts in any ledger."""
    assert done(f"train --dense {PRIVATE} --model mlp:8 --epsilon 2 --steps 2 --out a.run").code == 0
    dp = "--criterion dp-train --model mlp:8 --rounds 1 --iterations 2 --epsilon 4"
    assert done(f"generate {PRIVATE} {dp} --out a.tickets").code == 0
    assert done("tickets export a.tickets@1 --to state-dict --predictor --out a.safetensors").code == 0
    entries = [json.loads(line)["entry"] for line in Path(LEDGER).read_text().splitlines()[1:]]
    trained, made = (entry["id"] for entry in entries if entry["kind"] == "release")
    for number, (file, behind) in enumerate({"a.run/model.safetensors": trained, "a.safetensors": made}.items()):
        command = f"train --dense {PRIVATE} --model mlp:8 --start {file} --epsilon 9 --steps 2 --ledger {number}.jsonl"
        assert done(f"{command} --start-provenance public --out b.run").err.startswith(
            f"error: --start-provenance: {file} says itself that it depends on releases from digits[0.5:1.0]; leave it out"
        )
        assert done(f"{command} --out {number}.run").code == 0
        assert behind in Path(f"{number}.run/lineage.json").read_text()


def test_a_file_that_raises_shows_its_own_traceback(nets, done):
    path = Path("../code/nets.py")
    path.write_text("def early():\n    raise LookupError('of mine')\n\nearly()\n")
    told = done(f"{GENERATE} --model {nets}:Small --out a.tickets")
    first, *rest = told.err.splitlines()
    assert told.code == 2
    assert first == "error: --model: ../code/nets.py: raises LookupError: of mine"
    assert rest[0] == "Traceback (most recent call last):"
    assert ["nets.py" in line for line in rest if line.startswith("  File")] == [True, True]
    assert rest[-1] == "LookupError: of mine"


def test_a_forward_that_raises_shows_it_too(nets, done):
    told = done(f"{GENERATE} --model {nets}:Broken --out a.tickets")
    assert told.code == 2
    assert "Traceback (most recent call last):\n  File" in told.err
    assert told.err.rstrip().endswith("has no attribute 'nothing'")


def test_the_working_folder_is_not_looked_through(nets, done, monkeypatch):
    del nets
    Path("evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    told = done(f"{GENERATE} --model evil:Net --out a.tickets")
    assert told.err == (
        "error: --model: no module 'evil' is installed; of a file of your own write its path, as FILE.py:NAME\n"
    )
    assert done(f"{GENERATE} --model torch.nn:Missing --out a.tickets").err.startswith(
        "error: --model: torch.nn has no Missing"
    )


def test_a_config_names_code_beside_it(nets, done):
    del nets
    Path("../code/c.toml").write_text('[generate]\nmodel = "nets.py:Small"\n')
    assert (
        done(f"{GENERATE} --config ../code/c.toml --out a.tickets --dry-run --json").json["model"] == "nets.py:Small"
    )


def test_what_a_file_says_is_shown_and_never_followed(nets, done):
    """A set that names a file which is there, and raises if it is run."""
    assert done(f"{GENERATE} --model {nets}:Small --out a.tickets").code == 0
    Path("nets.py").write_text("raise SystemExit('run')")
    Path("../code/nets.py").write_text("raise SystemExit('run')")
    told = done(f"train a.tickets@1 {PRIVATE} --epsilon 2 --steps 1")
    assert "the code of its network, 'nets.py:Small', is not at hand" in told.err
    assert done("tickets show a.tickets").code == 0


def test_a_file_is_no_network(nets, done):
    told = done(f"generate --dataset digits --model {nets} --provenance public --out a.tickets")
    assert told.err.endswith(" is a file of code; say what in it is the network, as FILE.py:NAME\n")


def test_what_takes_no_code_says_so():
    with pytest.raises(InputError, match=r"'nets\.py:Small' names code, which generate, select, train"):
        ModelSpec("nets.py:Small", 4, 2)


@pytest.mark.parametrize("front", ["", "a.tickets"])
def test_tune_finds_settings_for_it(front, nets, done):
    """What it writes names the file from its own folder, and is what trains."""
    if front:
        assert done(f"{GENERATE} --model {nets}:Small --out a.tickets").code == 0
    Path("found").mkdir()
    lists = "--for-records 400 --epsilon 1 --delta 1e-4 --lr 0.5 --epochs 1 --batch-size 100"
    other = "--dataset digits --subset 0.0:0.5 --bounds 0,16"
    frozen = "" if front else "--freeze head.bias"
    command = f"tune {front} {other} --model {nets}:Small {lists} {frozen} --out found/best.toml --json"
    assert len(done(command).json["trials"]) == 1
    assert 'model = "../../code/nets.py:Small"' in Path("found/best.toml").read_text()
    assert done(f"train {PRIVATE} --config found/best.toml --out best.run --json").code == 0
    if front:
        assert "decides the network" in done(command.replace("--out", "--freeze head.bias --out")).err
    else:
        resolved = json.loads(Path("best.run/config.json").read_text())["resolved"]
        assert resolved["live"] == 4 * 9 + 4 + 8 + 40


@pytest.mark.usefixtures("nets")
def test_the_three_stages_from_one_file(done):
    Path("../code/run.toml").write_text("""
[generate]
dataset = "digits"
subset = "0.0:0.5"
bounds = "0,16"
provenance = "public"
model = "nets.py:Small"
rounds = 1
iterations = 3
batch-size = 32
[train]
dataset = "digits"
subset = "0.5:1.0"
bounds = "0,16"
steps = 2
""")
    made = done("run --config ../code/run.toml --epsilon 2 --delta 1e-4 --out all --json").json
    assert json.loads(Path("all/tickets/tickets.json").read_text())["model"] == "nets.py:Small"
    assert made["privacy"]["certified"]["epsilon"] <= 2


def test_transfer(nets, done):
    assert done(f"{GENERATE} --model {nets}:Small --out a.tickets").code == 0
    Path("../code/more.py").write_text(NETS.replace("classes=10", "classes=2"))
    x, y = np.zeros((6, 8, 8), np.uint8), np.arange(6) % 2
    np.savez("two.npz", x_train=x, y_train=y)
    command = "tickets transfer a.tickets --dataset two.npz --bounds 0,16 --classes 2 --out b.tickets"
    assert "--model is missing" in done(command).err
    assert done(f"{command} --model ../code/more.py:Small --json").json["model"] == "more.py:Small"


def test_the_module_in_the_file_may_be_an_instance(nets, done):
    path = Path("../code/nets.py")
    path.write_text(NETS + "\nready = Small()\n")
    command = f"{GENERATE} --model {nets}:ready --out a.tickets"
    assert "--start-provenance is missing" in done(command).err
    assert done(f"{command} --start-provenance data-free").code == 0
