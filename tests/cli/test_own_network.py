"""A file of code at the terminal: what it does in every command, and that nothing but the command line names it."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from commands import LEDGER
from dpltm.errors import CodeError

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
"""

FEW = "--rounds 1 --iterations 3 --batch-size 32"
GENERATE = f"generate --dataset digits --subset 0.0:0.5 --provenance public --bounds 0,16 {FEW}"
PRIVATE = "--dataset digits --subset 0.5:1.0 --bounds 0,16"


@pytest.fixture
def nets(tmp_path, cwd, monkeypatch):
    """A file of code in a folder of its own, beside the working folder."""
    del cwd  # which is another one here
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "nets.py").write_text(NETS)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return "../code/nets.py"


def test_all_commands(nets, cli):
    """And without the code: what can be looked at, and what says what to name."""
    model = f"--model {nets}:Small"
    made = cli(f"{GENERATE} {model} --out a.tickets --json").json
    assert made["tickets"][0]["live"] == 4 * 9 + 4 + 8 + 40 + 10
    document = json.loads(Path("a.tickets/tickets.json").read_text())
    assert (document["schema"], document["model"]) == (5, "nets.py:Small")
    assert cli(f"select a.tickets {PRIVATE} {model} --score additive --eps1 0.5 --json").json["winner"] == {
        "round": 1, "density": made["tickets"][1]["density"],
    }  # fmt: skip
    trained = cli(f"train a.tickets {PRIVATE} {model} --epsilon 2 --steps 2 --out a.run --json").json
    assert trained["privacy"]["certified"]["epsilon"] <= 2
    assert cli(f"evaluate a.run --dataset digits --bounds 0,16 {model} --json").code == 0
    np.savez("new.npz", x=np.zeros((2, 8, 8)))
    assert cli(f"predict a.run --input new.npz -o p.csv {model}").code == 0

    Path("../code/nets.py").rename("../code/gone.py")
    assert cli("tickets verify a.tickets --json").json["problems"] == []
    assert cli("tickets show a.tickets").code == 0
    assert cli("report a.run -o a.html").code == 0
    assert cli("privacy check a.html").code == 0
    for command in (
        f"train a.tickets {PRIVATE} --epsilon 4 --steps 2",
        f"select a.tickets {PRIVATE} --score additive --eps1 0.5",
        "evaluate a.run --dataset digits --bounds 0,16",
        "predict a.run --input new.npz -o q.csv",
    ):
        told = cli(command)
        assert told.code == 2
        assert told.err.endswith("as FILE.py:NAME or in dpltm.tickets.load(path, model=MyNet)\n"), told.err


def test_another_network_is_told_apart_and_an_edited_file_is_said(nets, cli):
    assert cli(f"{GENERATE} --model {nets}:Small --out a.tickets").code == 0
    command = f"train a.tickets@1 {PRIVATE} --epsilon 2 --steps 1"
    assert "computes something else" in cli(f"{command} --model {nets}:Other").err
    assert cli(f"{command} --model {nets}:Smalls").err.endswith("has no Smalls; did you mean Small?\n")
    path = Path("../code/nets.py")
    path.write_text(path.read_text() + "# edited\n")
    notes = cli(f"{command} --model {nets}:Small --dry-run --json").json["privacy"]["notes"]
    said = "the file of nets.py:Small is not the one that the network was made with"
    assert sum(note.startswith(said) for note in notes) == 1


@pytest.mark.usefixtures("nets")
def test_weights_of_a_run_or_a_ticket_bring_its_lineage(cli):
    """Whatever somebody says of them: their files say that a release is behind them, and it counts in any ledger."""
    assert cli(f"train --dense {PRIVATE} --model mlp:8 --epsilon 2 --steps 2 --out a.run").code == 0
    dp = "--criterion dp-train --model mlp:8 --rounds 1 --iterations 2 --epsilon 4"
    assert cli(f"generate {PRIVATE} {dp} --out a.tickets").code == 0
    assert cli("tickets export a.tickets@1 --out b.safetensors").code == 0
    with safe_open("b.safetensors", "pt") as file:  # as a program of the user's might pass it on
        said = file.metadata()
    stored = load_file("b.safetensors")
    weights = {name.removesuffix("_orig"): value for name, value in stored.items() if "_mask" not in name}
    save_file(weights, "a.safetensors", said)
    entries = [json.loads(line)["entry"] for line in Path(LEDGER).read_text().splitlines()[1:]]
    trained, made = (entry["id"] for entry in entries if entry["kind"] == "release")
    for number, (file, behind) in enumerate({"a.run/model.safetensors": trained, "a.safetensors": made}.items()):
        command = f"train --dense {PRIVATE} --model mlp:8 --start {file} --epsilon 9 --steps 2 --ledger {number}.jsonl"
        assert cli(f"{command} --start-provenance public --out b.run").err.startswith(
            f"error: --start-provenance: {file} says itself that it depends on releases from digits[0.5:1.0]; leave it out"
        )
        assert cli(f"{command} --out {number}.run").code == 0
        assert behind in Path(f"{number}.run/lineage.json").read_text()


def test_a_file_that_raises_is_told_in_a_line_and_shown_where_one_looks_for_its_fault(nets, cli, monkeypatch):
    Path("../code/nets.py").write_text("raise LookupError('of mine')\n")
    command = f"{GENERATE} --model {nets}:Small --out a.tickets"
    monkeypatch.delenv("DPLTM_DEBUG", raising=False)
    told = cli(command)
    assert (told.code, told.err) == (2, "error: --model: ../code/nets.py: raises LookupError: of mine\n")
    monkeypatch.setenv("DPLTM_DEBUG", "1")
    with pytest.raises(CodeError) as failed:
        cli(command)
    assert isinstance(failed.value.__cause__, LookupError)


def test_the_working_folder_is_not_looked_through(nets, cli, monkeypatch):
    del nets
    Path("evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    told = cli(f"{GENERATE} --model evil:Net --out a.tickets")
    said = "error: --model: no module 'evil' is installed; of a file of your own write its path, as FILE.py:NAME\n"
    assert told.err == said
    said = "error: --model: torch.nn has no Missing"
    assert cli(f"{GENERATE} --model torch.nn:Missing --out a.tickets").err.startswith(said)


def test_what_a_file_says_is_shown_and_never_followed(nets, cli):
    """A set that names a file which is there, and raises if it is run."""
    assert cli(f"{GENERATE} --model {nets}:Small --out a.tickets").code == 0
    Path("nets.py").write_text("raise SystemExit('run')")
    Path("../code/nets.py").write_text("raise SystemExit('run')")
    told = cli(f"train a.tickets@1 {PRIVATE} --epsilon 2 --steps 1")
    assert "the code of its network, 'nets.py:Small', is not at hand" in told.err
    assert cli("tickets show a.tickets").code == 0


def test_tune_finds_settings_for_it(nets, cli):
    """What it writes names the file from its own folder, and is what trains."""
    Path("found").mkdir()
    lists = "--for-records 400 --epsilon 1 --delta 1e-4 --lr 0.5 --epochs 1 --batch-size 100"
    other = "--dataset digits --subset 0.0:0.5 --bounds 0,16"
    command = f"tune {other} --model {nets}:Small {lists} --freeze head.bias --out found/best.toml --json"
    assert len(cli(command).json["trials"]) == 1
    assert 'model = "../../code/nets.py:Small"' in Path("found/best.toml").read_text()
    assert cli(f"train {PRIVATE} --config found/best.toml --out best.run --json").code == 0
    resolved = json.loads(Path("best.run/config.json").read_text())["resolved"]
    assert resolved["live"] == 4 * 9 + 4 + 8 + 40
