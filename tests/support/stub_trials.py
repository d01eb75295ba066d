"""Trials that train nothing: what a sweep does with them, in no time.

A training is told what to do by its learning rate, and notes beside the folder of its sweep that it was called.
"""

import os
import signal
from pathlib import Path
from typing import Any

import torch

from dpltm.errors import InputError
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask, network_id
from dpltm.options.generate import GenerateOptions
from dpltm.privacy.entry import NO_LINEAGE, Part, to_json
from dpltm.progress import Progress
from dpltm.pruning.generation import generate
from dpltm.tickets.files import new_folder, write_json, write_lineage
from dpltm.tickets.run import write_run
from dpltm.tickets.workbench.recipes import Recipe
from dpltm.tickets.workbench.sweep import TaskRunner, opened, sweep
from set_entries import store_set

SPEC = ModelSpec("mlp:2", 3, 2)
FAILS, BREAKS, DIES = 0.125, 0.25, 0.5
"""Learning rates of a training that refuses, has a fault, or takes its process along."""

HEAD = '[recipe]\ntitle = "Stubs"\nseeds = 2\n[train]\ndataset = "digits"\nsteps = 1\nnoise-multiplier = 1.0\n'

SETS = (
    '[tickets.a]\ndataset = "digits"\nprovenance = "public"\nrounds = 1\n[tickets.b]\nfrom = "a"\ndataset = "digits"\n'
)


def arm(name: str, **options: object) -> str:
    """An arm with options of its training; ``tickets`` and ``round`` are its own."""
    own = {key: options.pop(key) for key in ("tickets", "round") if key in options}
    lines = [f"{key} = {value!r}".replace("'", '"') for key, value in own.items()]
    train = ", ".join(f"{key} = {value}" for key, value in options.items())
    return "\n".join(["[[arm]]", f'name = "{name}"', *lines, f"train = {{ {train} }}", ""])


def calls(root: Path) -> list[str]:
    """What was made in a sweep, in order."""
    path = root.parent / "calls"
    return path.read_text().split() if path.exists() else []


def train(options: Any, progress: Progress) -> None:
    del progress
    out = Path(options.out)
    _note(out)
    if options.lr == FAILS:
        raise InputError("`lr`: is not what it must be")
    if options.lr == BREAKS:
        raise ValueError("a private record")
    if options.lr == DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    model = build(SPEC)
    weights = network_id(model, Mask.dense(model))
    config = {"model": SPEC.text, "features": 3, "classes": 2, "bounds": [0, 1], "part": to_json(Part())}
    with new_folder(out) as folder:
        write_run(folder, config, model, Mask.dense(model), ())
        write_lineage(folder, NO_LINEAGE, weights)
        certified = {"privacy": {"certified": {"epsilon": 1.0}}}
        write_json(folder / "result.json", {"accuracy": 0.5, "weights": weights, **certified})


def make_set(options: Any, progress: Progress) -> None:
    del progress
    out = Path(options.out)
    _note(out)
    config = GenerateOptions(rounds=1, iterations=1, batch_size=2, criterion="random", threads=None).for_records(1000)
    body = generate(SPEC, (torch.rand(4, 3), torch.tensor([0, 1, 0, 1])), config)
    store_set(out, body, name=options.name, criterion="random", provenance="public", config={})


def made(recipe: Recipe, root: Path) -> dict[str, str]:
    """Why trials of a sweep that has come to its end failed; joblib's configuration says who made them."""
    with opened(root, recipe.head.title):
        return sweep(recipe, TaskRunner(root, stages=STAGES))


def _note(out: Path) -> None:
    root = out.parents[2 if out.name == "run" else 1]
    with (root.parent / "calls").open("a") as stream:
        stream.write(f"{out.relative_to(root)}\n")


STAGES = {"train": train, "generate": make_set, "transfer": make_set}
