"""A dry run states what the run will spend, and writes nothing: neither here nor into the folder of the key."""

from pathlib import Path

import numpy as np
import pytest

from commands import PRIVATE, PUBLIC, TINY

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
