"""What runs are compared with: which trainings that takes, and what their settings are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import refusals
from dpltm.networks import ModelSpec
from dpltm.networks.masks import Mask
from dpltm.pruning.generation import GenerationConfig, without_data
from dpltm.tickets.run import FoundRun
from dpltm.tickets.workbench.compare import Base, base_of, baselines, kinds_of, random_rate

OPTIONS: dict[str, Any] = {
    "dataset": "digits", "ticket": "set@3", "dense": False, "out": "r", "ledger": "l", "seed": 4, "fresh": False,
    "plot": "p.png", "epsilon": 1.0, "noise_multiplier": None, "delta": 1e-5, "lr": 0.5, "unit": "record", "dry_run": False,
}  # fmt: skip


def config(number: int | None = 1, **options: Any) -> dict[str, Any]:
    """What a run of a ticket says of itself."""
    return {
        "model": "mlp:8", "features": 64, "classes": 10, "options": {**OPTIONS, **options},
        "resolved": {"round": number, "noise_multiplier": 1.0},
    }  # fmt: skip


def mask(spec: ModelSpec, *rates: float, rounds: int = 1) -> Mask:
    """Of the last round of a random set."""
    asked = GenerationConfig(rounds=rounds, prune=rates, criterion="random")
    return without_data(spec, asked).tickets[-1].mask


def found(label: str = "r", rate: float = 0.5, **config: Any) -> FoundRun:
    """A run that has ended, with what it says of itself."""
    spec = ModelSpec("mlp:8", 64, 10)
    run: Any = SimpleNamespace(spec=spec, mask=mask(spec, rate or 0.5), feature_map=None)
    return FoundRun(Path(label), "finished", (), label, config, run=run)


def base(label: str = "r", rate: float = 0.5, **options: Any) -> Base:
    return base_of(found(label, rate, **config(1 if rate else None, **options)))


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
def test_a_random_mask_is_as_dense_as_the_ticket(spec: ModelSpec) -> None:
    """Also of a set of several rounds with rates of their own."""
    ticket = mask(spec, 0.4, 0.2, rounds=3)
    random = mask(spec, random_rate(spec, ticket))
    assert abs(random.live - ticket.live) <= 0.5 * len(spec.shapes())  # half a weight a layer is rounding
    assert not random.same_as(ticket)


def test_users_that_are_held_out_do_not_count() -> None:
    """What belongs to them is pruned in a run, whatever its ticket."""
    spec = ModelSpec("ncf:20x30:2,4", 2, 5)
    ticket = mask(spec, 0.4)
    users = spec.kind.user_parameters
    run = {
        name: live & (torch.arange(len(live)) < 15)[:, None] if name in users else live
        for name, live in ticket.items()
    }
    run = ticket.replaced(run)
    assert random_rate(spec, run, by_user=True) == pytest.approx(0.4, abs=0.01)
    assert random_rate(spec, run) > 0.45


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
    runs = [base("a"), base("b", ticket="other@1"), base("c", rate=0.25), base("d", rate=0, epsilon=2.0)]
    _, made = baselines([*runs, base("e", epsilon=2.0)], kinds_of(None), Path("x"))
    assert [(one.kind, tuple(base.found.label for base in one.beside)) for one in made] == [
        ("dense", ("a", "b", "c")),  # not of e: d is the whole network with its settings
        ("random", ("a", "b")),
        ("random", ("c",)),
        ("random", ("e",)),
    ]
    labels = {one.trial.name for one in made}
    _, again = baselines([base("e", epsilon=2.0), *reversed(runs)], kinds_of(None), Path("y"))
    assert {one.trial.name for one in again} == labels


def test_runs_that_have_none() -> None:
    def said(change: dict[str, Any]) -> str:
        return refusals.refused(base_of, found(**{**config(), **change}))

    assert said({"options": None}).startswith("it holds no options of dpltm train")
    assert said({"resolved": {"round": 1, "noise_multiplier": 0.0}}) == "it was trained without noise"
    assert said({"options": {**OPTIONS, "dataset": None}}).startswith("it names no dataset")
    assert "unknown key" in said({"options": {**OPTIONS, "tries": 3}})
    assert "must be of type float" in said({"options": {**OPTIONS, "epsilon": "much"}})


def test_a_random_mask_of_a_table_of_persons_knows_the_column_that_is_no_feature() -> None:
    recipe, made = baselines([base(unit_column="person")], kinds_of(None), Path("x"))
    assert [one.trial.arm.train["unit-column"] for one in made] == ["person", "person"]
    assert [section["unit-column"] for section in recipe.tickets.values()] == ["person"]


def test_without_noise_there_is_nothing_to_audit() -> None:
    """``dpltm train`` refuses to; the baselines that have noise are audited as the run was."""
    _, made = baselines([base(audit=50)], kinds_of("dense,non-private"), Path("x"))
    assert [baseline.trial.arm.train.get("audit") for baseline in made] == [50, None]
