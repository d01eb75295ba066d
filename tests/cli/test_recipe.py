"""``dpltm run`` of a recipe: what it refuses before anything starts, and what it would do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipes import DENSE, HEAD, SETS


def test_wrong_keys_contradictions_and_datasets_are_said_together(
    refused: Callable[..., str], cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPLTM_DATA", str(cwd / "nowhere"))
    (cwd / "r.toml").write_text(
        HEAD.replace("batch-size = 50", 'batch-size = "many"').replace("seeds", "sedes") + SETS + DENSE
        + "train = { epochs = 1.0, steps = 2, no-pre-clip = true }\n"
        + '[[arm]]\nname = "b"\ntrain = { dataset = "kmnist-7k" }\n'
        + '[tickets.deep]\ndataset = "digits"\nprovenance = "public"\nmodel = "mlp:4"\nrounds = 40\n',
        encoding="utf-8",
    )  # fmt: skip
    said = refused("run", "--config", "r.toml")
    assert "6 problems" in said
    for part in ("'sedes'", "'many'", "--epochs, --steps", "--no-pre-clip", "kmnist-7k.npz", "[tickets.deep]"):
        assert part in said, part
    assert not (cwd / "r.sweep").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--epsilon", "3"), "--epsilon: a recipe"),
        (("--seed", "1"), "--seed: a recipe"),
        (("--jobs", "0"), "--jobs: 0"),
        (("--seeds", "0"), "seeds: 0"),
    ],
)
def test_flags_that_a_recipe_does_not_take(
    refused: Callable[..., str], cwd: Path, flags: tuple[str, ...], said: str
) -> None:
    (cwd / "r.toml").write_text(HEAD + DENSE, encoding="utf-8")
    assert said in refused("run", "--config", "r.toml", *flags)


def test_flags_of_recipes_alone(refused: Callable[..., str], cwd: Path) -> None:
    (cwd / "r.toml").write_text("[run]\nepsilon = 3\n", encoding="utf-8")
    for flags in (("--seeds", "2"), ("--quick",), ("--jobs", "2")):
        assert "is none" in refused("run", "--config", "r.toml", *flags)


def test_a_plan_says_what_would_be_spent_and_does_nothing(
    cli: Callable[..., Any], tree: Callable[[], dict[str, bytes | None]], cwd: Path
) -> None:
    (cwd / "r.toml").write_text(
        HEAD + SETS + DENSE + '[[arm]]\nname = "x"\ntickets = "a"\nround = 1\n', encoding="utf-8"
    )
    before = tree()
    body = cli("run", "--config", "r.toml", "--dry-run", "--json").json
    assert tree() == before
    assert body["members"] == 4
    dense, ticket = body["arms"]
    alone = cli("train", "--dense", "--dataset", "digits", "--subset", "0.5:1.0", "--model", "mlp:4", "--batch-size", "50",
                "--steps", "2", "--noise-multiplier", "1", "--dry-run", "--json").json  # fmt: skip
    assert dense["privacy"]["certified"] == alone["privacy"]["certified"]
    assert ticket["privacy"] is None
    assert json.dumps(body)
