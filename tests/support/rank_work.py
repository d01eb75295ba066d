"""What ranks do in tests: imported by ``ranked`` before it forks, and run on every rank."""

import hashlib
import itertools
import os
import signal
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import dpltm
from dpltm.cli import main
from dpltm.errors import InputError
from dpltm.filters import make_filter
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.privacy.entry import Entry
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Guarantee
from dpltm.randomness.noise import FastSource
from dpltm.records.batches import Records
from dpltm.tickets.workbench import stages as _  # noqa: F401 - imported before the fork
from dpltm.training import launcher
from dpltm.training.descent import Descent, NoisyGradients, cross_entropy
from dpltm.training.launcher import launched
from dpltm.training.ranks import Ranks
from dpltm.verbs.private_loop import PrivateLoop
from gradient_cases import Hashed, steps_of
from interruptions import often, seeded_keys

DATA = ("--dataset", "digits", "--subset", "0.5:1.0", "--model", "mlp:8", "--batch-size", "300", "--delta", "1e-4")
TRAIN = ("train", "--dense", *DATA, "--epsilon", "2", "--steps", "8", "--optimizer", "momentum", "--average", "poly")


def warm() -> None:
    """Imports all modules that a training needs, and calibrates what tests ask for: children start with both.

    No gradient is taken: whoever forks after that cannot take one.
    """
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer imports torch's compiler
    assert main.run([*TRAIN, "--dry-run", "--quiet"]) == 0


def joined() -> Ranks:
    """The ranks that this process belongs to."""
    place = launched()
    assert place is not None
    return Ranks.join(place, "cpu")


def digest(model: nn.Module) -> str:
    """Of all weights."""
    return hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in model.parameters())).hexdigest()


def some_records(count: int = 500, features: int = 784) -> tuple[torch.Tensor, torch.Tensor]:
    """Made-up records."""
    draw = torch.Generator().manual_seed(3)
    return torch.rand(count, features, generator=draw), torch.randint(10, (count,), generator=draw)


def sources(own: int = 0) -> dict[str, FastSource]:
    """Coins and noise."""
    return {"sampling": FastSource(1 + own), "noise": FastSource(2 + own)}


def trained(network: str, filter: str, ranks: Ranks | None, dropout: float = 0.0, **more: Any) -> nn.Module:
    """A network after some private steps, coins and noise of rank 0 injected, and wrong ones on the others."""
    x, y = some_records()
    model, own = build(ModelSpec(network, 784, 10), 0), 0 if ranks is None else 7 * ranks.rank
    model = nn.Sequential(nn.Dropout(dropout), model) if dropout else model
    chosen = make_filter(filter)
    settings = {"expected_batch": 250.0, "noise_std": 1.0, "lr": 0.1, "optimizer": "adam", "average": "ema", **more}
    config = steps_of(chosen, 0.5, 4, **settings)
    mask = Mask({name: torch.rand(value.shape, generator=torch.Generator().manual_seed(1)) < 0.5 for name, value in
                 model.named_parameters()})  # fmt: skip
    records = Records(x, y, read=Hashed(np.arange(len(x)) // 2))
    gradients = NoisyGradients(model, mask, cross_entropy, records, config, ranks=ranks, **sources(own))
    gradients.allocation = FastSource(3 + own)
    Descent(gradients).run()
    return model


def train_some(cases: Sequence[Sequence[Any]]) -> list[str]:
    """Digests of trained networks."""
    ranks = joined()
    return [digest(trained(network, filter, ranks, **more)) for network, filter, more in cases]


def command(arguments: Sequence[str], own: Sequence[Sequence[str]] = (), key: int = 1, at: Sequence[int] = ()) -> int:
    """A command line, with keys that are drawn from a seed and a checkpoint after every step.

    ``own`` are arguments of each rank after those of all; ``at`` is rank, step and the signal that it sends itself there.
    """
    place = launched()
    assert place is not None
    patch = pytest.MonkeyPatch()
    seeded_keys(patch, key, place.rank)
    often(patch)
    launcher.PATIENCE = 0.0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the command line has it
    inner, steps = NoisyGradients.backward, itertools.count(1)

    def backward(gradients: NoisyGradients) -> None:
        if [place.rank, next(steps)] == list(at[:2]):
            os.kill(os.getpid(), at[2])
        inner(gradients)

    if at:
        NoisyGradients.backward = backward  # type: ignore[method-assign]
    return main.run([*arguments, *(own[place.rank] if own else ())])


def save_records(path: str, rows: int) -> None:
    """Digits as a file, all but some."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    np.savez(path, x_train=digits.images[rows:].astype(np.uint8), y_train=digits.target[rows:])


def command_in(folders: Sequence[str], arguments: Sequence[str]) -> int:
    """A command line, each rank in a folder of its own, as on machines of their own."""
    place = launched()
    assert place is not None
    os.chdir(folders[place.rank])
    return command(arguments)


def in_python() -> None:
    """A stage as a function of arrays."""
    dpltm.train("mlp:4", np.zeros((9, 3), dtype=np.uint8), np.arange(9) % 3, epsilon=1.0)


def loop(own: Sequence[dict[str, Any]] = (), spent: float | None = None, steps: int = 3) -> dict[str, Any]:
    """A loop of the user's own, in a program that has joined its process group.

    ``own`` are settings of each rank (``row`` is a record that is changed); ``spent`` is in the ledger of rank 0 already.
    """
    place = launched()
    assert place is not None
    if place.size > 1:
        torch.distributed.init_process_group("gloo")
    given = {"epsilon": 2.0, **(own[place.rank] if own else {})}
    x, y = some_records()
    if given.get("unit") is not None:
        given["units"] = np.arange(len(x)) // given.pop("each", 2)
    if (row := given.pop("row", None)) is not None:
        x[row, 5] += 1e-3
    model, ledger = build(ModelSpec("mlp:6", 784, 10), given.pop("seed", 0)), Ledger(unit=given.get("unit", "record"))
    if spent is not None and place.rank == 0:
        ledger.declare(Entry("release", mechanisms=(Guarantee(spent),), words="counts"))
    settings = {"batch_size": 250, "steps": steps, "delta": 1e-5, **sources(7 * place.rank), **given}
    private = PrivateLoop(model, cross_entropy, x, y, ledger=ledger, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in private:
        step.backward()
        optimizer.step()
    told: dict[str, Any] = {
        "weights": digest(model),
        "noise": private.mechanism.noise_multiplier,
        "entered": [type(mechanism).__name__ for entry in ledger.entries for mechanism in entry.mechanisms],
        "epsilon": private.report().certified.epsilon,
    }
    if "audit" in given:
        try:
            told["canaries"] = private.audit().facts["canaries"]
        except InputError as error:
            told["canaries"] = str(error)
    return told


def split_up(how: str) -> dict[str, str]:
    """What a loop of a model says that ``torch.distributed`` has wrapped or cut up in some way."""
    place = launched()
    assert place is not None
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    if how == "wrapped":
        model[0] = nn.parallel.DistributedDataParallel(model[0])
    elif how == "tensors":
        parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "1": RowwiseParallel()})
    else:
        fully_shard(model)
    x, y = torch.zeros(60, 4), torch.arange(60) % 3
    try:
        PrivateLoop(
            model, cross_entropy, x, y, ledger=Ledger(), batch_size=30, steps=1, delta=1e-5, noise_multiplier=1.0
        )
    except InputError as error:
        return {"error": str(error)}
    return {}
