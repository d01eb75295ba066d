"""Bounds that nobody gave: every command that reads such records says so, and how to declare them; no other does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpltm.cli.main import run

MINE, DECLARED = ("--dataset", "mine.npz"), ("--dataset", "mine.npz", "--bounds", "0,255")
NETWORK = ("--model", "mlp", "--rounds", "1", "--prune", "0.3", "--iterations", "3", "--batch-size", "16")
STEPS = ("--steps", "2", "--noise-multiplier", "2")
TRAIN = ("train", "--dense", "--model", "mlp", *STEPS)
SCHEME = (
    "latent",
    "scheme",
    "--public",
    "other.npz",
    "--features",
    "unit",
    "--protocol",
    "codebook",
    "--epsilon",
    "2",
)


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
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, records in (("set", MINE), ("set2", DECLARED)):
            public = ("--provenance", "public", "--subset", "0.0:0.5")
            assert (
                run(["generate", *records, *public, *NETWORK, "--ledger", "sets.jsonl", "--out", name, "--quiet"]) == 0
            )
        for name, records in (("run", MINE), ("run2", DECLARED)):
            assert run([*TRAIN, *records, "--ledger", "runs.jsonl", "--out", name, "--quiet"]) == 0
        for name, bounds in (("scheme", ()), ("scheme2", ("--bounds", "0,255"))):
            assert run([*SCHEME, *bounds, "--ledger", "sets.jsonl", "--out", name, "--quiet"]) == 0
        message = ["latent", "encode", "scheme", *MINE, "--ledger", "m.jsonl", "--out", "m.msg", "--quiet"]
        assert run(message) == 0
        assert (
            run(["tickets", "export", "set@1", "--to", "torch-prune", "--out", "pruned.safetensors", "--quiet"]) == 0
        )
    return folder


def said(answer: dict) -> list[str]:
    notes = answer["notes"] if "notes" in answer else answer["privacy"]["notes"]
    return [note for note in notes if note.startswith("nobody gave the bounds of ")]


def assumed(records: str, fix: str = "declare them with --bounds LO,HI") -> list[str]:
    return [
        f"nobody gave the bounds of {records}, so 0 to 255 is assumed, all that a byte can hold; if their values have"
        f" another range, {fix}"
    ]


COMMANDS = {
    "info": ("datasets", "info"),
    "train": ("train", "--dense", "--model", "mlp", *STEPS, "--out", "o"),
    "train, planned": ("train", "--dense", "--model", "mlp", *STEPS, "--dry-run"),
    "train a ticket": ("train", "set@1", "--ledger", "sets.jsonl", "--subset", "0.5:1.0", *STEPS, "--out", "o"),
    "generate": ("generate", *NETWORK, "--provenance", "public", "--out", "o"),
    "generate, planned": ("generate", *NETWORK, "--provenance", "private", "--dry-run"),
    "generate, no data": ("generate", *NETWORK[:6], "--criterion", "random", "--out", "o"),
    "select": ("select", "set", "--ledger", "sets.jsonl", "--eps1", "1", "--subset", "0.5:1.0"),
    "select, planned": ("select", "set", "--ledger", "sets.jsonl", "--eps1", "1", "--subset", "0.5:1.0", "--dry-run"),
    "tune": ("tune", "--model", "mlp", "--for-records", "90", "--epsilon", "1", "--epochs", "1", "--batch-size", "9",
             "--lr", "1"),
    "evaluate": ("evaluate", "run2"),
    "transfer": ("tickets", "transfer", "set", "--out", "o"),
    "import": ("tickets", "import", "pruned.safetensors", "--model", "mlp", "--out", "o"),
    "encode": ("latent", "encode", "scheme", "--out", "o"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_records_of_bytes(cli, name):
    command = COMMANDS[name]
    if name == "info":
        assert said(cli(*command, "mine.npz", *DECLARED[2:], "--json").json) == []
        assert said(cli(*command, "mine.npz", "--json").json) == assumed("mine")
        assert assumed("mine")[0] in cli(*command, "mine.npz").out.replace("\n", " ")
        return
    out = ["o2" if part == "o" else part for part in command]
    assert said(cli(*out, *DECLARED, "--json").json) == []
    expected = [] if name == "evaluate" else assumed("mine")  # that run says which bounds it was trained with
    assert said(cli(*command, *MINE, "--json").json) == expected


def test_the_records_of_a_run(cli):
    """Whatever is predicted is scaled by the bounds that it was trained with."""
    theirs = assumed("the records that run was trained on", "train with --bounds LO,HI")
    assert said(cli("evaluate", "run", *MINE, "--json").json) == theirs
    assert said(cli("predict", "run", "--input", "new.npz", "--out", "p.csv", "--json").json) == theirs
    assert theirs[0] in cli("predict", "run", "--input", "new.npz", "--out", "q.csv").out.replace("\n", " ")
    assert said(cli("predict", "run2", "--input", "new.npz", "--out", "r.csv", "--json").json) == []


def test_records_declared_public(cli):
    """For a scheme, in front of a network, and to be measured on."""
    assert said(cli(*SCHEME, "--out", "s", "--json").json) == assumed("other")
    assert said(cli(*SCHEME, "--bounds", "0,255", "--out", "t", "--json").json) == []
    front = ("--features", "unit", "--public", "other.npz", "--components", "3", "--out", "o", "--json")
    trained = cli("train", "--dense", "--model", "mlp", *STEPS, *DECLARED, *front).json
    assert said(trained) == assumed("other", "rescale them to that")
    learned = cli(
        "latent", "train", "scheme", "--messages", "m.msg", "--test", "other.npz", "--out", "l", "--json"
    ).json
    assert said(learned) == [], "the scheme says what they are"
