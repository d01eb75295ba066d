"""Bounds that nobody gave: every command that reads such records says so, and how to declare them; no other does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commands import made_by

MINE, DECLARED = "--dataset mine.npz", "--dataset mine.npz --bounds 0,255"
NETWORK = "--model mlp --rounds 1 --prune 0.3 --iterations 3 --batch-size 16"
TRAIN = "train --dense --model mlp --steps 2 --noise-multiplier 2"
SCHEME = "latent scheme --public other.npz --features unit --protocol codebook --epsilon 2"


@pytest.fixture(scope="module")
def made(tmp_path_factory, _own_config_home) -> Path:
    """In the place of the usual sets: a table of bytes with values of 0 to 15, with what is made from it.

    Of what is named twice, the second has bounds that somebody gave. ``net`` is a network on half of the records.
    """
    folder, draw = tmp_path_factory.mktemp("assumed"), np.random.default_rng(0)
    for name in ("mine", "other"):
        x, y = draw.integers(0, 16, (140, 5), dtype=np.uint8), np.arange(140) % 3
        np.savez(folder / f"{name}.npz", x_train=x[:100], y_train=y[:100], x_test=x[100:], y_test=y[100:])
    np.savez(folder / "new.npz", x=x[:5])
    public = f"generate {NETWORK} --provenance public --subset 0.0:0.5 --ledger sets.jsonl"
    return made_by(
        folder,
        f"{public} {MINE} --out set",
        f"{TRAIN} {MINE} --ledger runs.jsonl --out run",
        f"{TRAIN} {DECLARED} --ledger runs.jsonl --out run2",
        f"{SCHEME} --ledger sets.jsonl --out scheme",
        f"latent encode scheme {MINE} --ledger m.jsonl --out m.msg",
        "tickets export set@1 --to torch-prune --out pruned.safetensors",
    )


def said(answer: dict) -> list[str]:
    """Whose bounds were assumed, and what to do, as an answer has it."""
    notes = answer["notes"] if "notes" in answer else answer["privacy"]["notes"]
    return [note for note in notes if note.startswith("nobody gave the bounds of ")]


COMMANDS = {
    "info": "datasets info",
    "train": f"{TRAIN} --out o",
    "train, planned": f"{TRAIN} --dry-run",
    "train a ticket": "train set@1 --ledger sets.jsonl --subset 0.5:1.0 --steps 2 --noise-multiplier 2 --out o",
    "generate": f"generate {NETWORK} --provenance public --out o",
    "generate, no data": "generate --model mlp --rounds 1 --criterion random --out o",
    "select": "select set --ledger sets.jsonl --eps1 1 --subset 0.5:1.0",
    "tune": "tune --model mlp --for-records 90 --epsilon 1 --epochs 1 --batch-size 9 --lr 1",
    "evaluate": "evaluate run2",
    "transfer": "tickets transfer set --out o",
    "import": "tickets import pruned.safetensors --model mlp --out o",
    "encode": "latent encode scheme --out o",
}


@pytest.mark.one_of(4)
@pytest.mark.parametrize("name", COMMANDS)
def test_records_of_bytes(cli, name):
    command = COMMANDS[name]
    mine, declared = (text.removeprefix("--dataset ") if name == "info" else text for text in (MINE, DECLARED))
    assert said(cli(f"{command.replace('--out o', '--out p')} {declared} --json").json) == []
    found = said(cli(f"{command} {mine} --json").json)
    if name == "evaluate":  # that run says which bounds it was trained with
        assert found == []
        return
    (note,) = found
    assert note.startswith("nobody gave the bounds of mine, so 0 to 255 is assumed")
    assert note.endswith("declare them with --bounds LO,HI")
    if name == "info":
        assert note in cli(f"{command} {mine}").out.replace("\n", " ")


def test_the_records_of_a_run(cli):
    """Whatever is predicted is scaled by the bounds that it was trained with."""
    predict = "predict run --input new.npz --out"
    (note,) = said(cli(f"evaluate run {MINE} --json").json)
    assert note.startswith("nobody gave the bounds of the records that run was trained on")
    assert said(cli(f"{predict} p.csv --json").json) == [note]
    assert note in cli(f"{predict} q.csv").out.replace("\n", " ")
    assert said(cli("predict run2 --input new.npz --out r.csv --json").json) == []


def test_records_declared_public(cli):
    """For a scheme, and to be measured on."""
    (note,) = said(cli(f"{SCHEME} --out s --json").json)
    assert note.startswith("nobody gave the bounds of other, ")
    assert said(cli(f"{SCHEME} --bounds 0,255 --out t --json").json) == []
    learned = cli("latent train scheme --messages m.msg --test other.npz --out l --json").json
    assert said(learned) == [], "the scheme says what they are"
