"""What runs are compared with: which trainings that takes, and what their settings are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import refusals
from dpltm.experiments.baselines import base_of, baselines, kinds_of, random_rate
from dpltm.generation import GenerationConfig, scheduled_densities
from dpltm.models import ModelSpec

OPTIONS: dict[str, Any] = {
    "dataset": "digits", "ticket": "set@3", "dense": False, "out": "r", "ledger": "l", "seed": 4, "fresh": False,
    "epsilon": 1.0, "noise_multiplier": None, "delta": 1e-5, "lr": 0.5, "unit": "record", "dry_run": False,
}  # fmt: skip


def config(density: float = 0.5, **options: Any) -> dict[str, Any]:
    """What a run of a ticket says of itself."""
    return {
        "model": "mlp:8", "features": 64, "classes": 10, "options": {**OPTIONS, **options},
        "resolved": {"density": density, "noise_multiplier": 1.0},
    }  # fmt: skip


def base(label: str = "r", density: float = 0.5, **options: Any) -> Any:
    return base_of(label, config(density, **options), None, (), "accuracy")


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec("mlp:300,100", 784, 10),
        ModelSpec("mlp:project16,400", 100, 10),  # a layer that is never pruned, and counts
        ModelSpec("cnn:28x28x1", 784, 10),
        ModelSpec("embed:50", 7, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("density", [0.5, 0.7**3])
def test_a_random_mask_is_as_dense_as_the_ticket(spec: ModelSpec, density: float) -> None:
    once = GenerationConfig(rounds=1, prune=(random_rate(spec, density),), criterion="random")
    shapes = [shape for shape in spec.shapes().values() if len(shape) >= 2]
    rounding = 0.5 * len(shapes) / sum(a * b for a, b, *_ in shapes)  # half a weight a layer, of no more than these
    assert scheduled_densities(spec, once)[1] == pytest.approx(density, abs=rounding)


def test_settings_are_those_of_the_run() -> None:
    """Defaults are left out, so that an option that is new tomorrow changes no name; and so is what says which run it is."""
    assert dict(base().train) == {"dataset": "digits", "epsilon": 1.0, "lr": 0.5, "model": "mlp:8"}
    recipe, made = baselines([base()], kinds_of("dense,random,non-private"), Path("x"))
    trains = {one.kind: dict(one.trial.arm.train) for one in made}
    assert trains == {
        "dense": {"dataset": "digits", "epsilon": 1.0, "lr": 0.5, "model": "mlp:8"},
        "random": {"dataset": "digits", "epsilon": 1.0, "lr": 0.5},
        "non-private": {"dataset": "digits", "noise-multiplier": 0.0, "lr": 0.5, "model": "mlp:8"},
    }
    [section] = recipe.tickets.values()
    assert section == {"dataset": "digits", "model": "mlp:8", "criterion": "random", "rounds": 1, "prune": "0.5"}
    assert kinds_of(None) == ("dense", "random")


def test_each_is_made_once() -> None:
    runs = [base("a"), base("b", ticket="other@1"), base("c", density=0.25), base("d", density=1.0, epsilon=2.0)]
    _, made = baselines([*runs, base("e", epsilon=2.0)], kinds_of(None), Path("x"))
    assert [(one.kind, one.beside) for one in made] == [
        ("dense", ("a", "b", "c")),  # not of e: d is the whole network with its settings
        ("random", ("a", "b")),
        ("random", ("c",)),
        ("random", ("e",)),
    ]
    labels = {one.trial.label for one in made}
    _, again = baselines([base("e", epsilon=2.0), *reversed(runs)], kinds_of(None), Path("y"))
    assert {one.trial.label for one in again} == labels


def test_runs_that_have_none() -> None:
    def said(change: dict[str, Any]) -> str:
        return refusals.refused(base_of, "r", {**config(), **change}, None, (), "accuracy")

    assert said({"options": None}).startswith("it holds no options of dpltm train")
    assert said({"resolved": {"density": 0.5, "noise_multiplier": 0.0}}) == "it was trained without noise"
    assert said({"options": {**OPTIONS, "dataset": None}}).startswith("it names no dataset")
    assert "unknown key" in said({"options": {**OPTIONS, "tries": 3}})
    assert "must be of type float" in said({"options": {**OPTIONS, "epsilon": "much"}})
