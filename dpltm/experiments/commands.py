"""The commands whose options a recipe holds: what they are, what refuses them, and what the recipe decides itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dpltm.errors import InputError
from dpltm.options import latent
from dpltm.options.generate import GenerateRequest
from dpltm.options.select import SelectRequest
from dpltm.options.train import TrainRequest
from dpltm.options.transfer import TransferRequest
from dpltm.options.tune import TuneRequest
from dpltm.stages import generate_settings, latent_scheme, latent_server, select, train_checks, transfer, tune_settings
from dpltm.stages.checks import check_delta_alone


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        request: the dataclass of its options.
        check: refuses options that contradict each other, the first of them with an InputError that begins with the names.
        decided: keys that a recipe decides itself: by its arms, by its seeds, or since an arm's search is for its own
            training.
    """

    request: type
    check: Callable[[Any], object]
    decided: frozenset[str]


def _check_generation(request: GenerateRequest) -> None:
    generate_settings.check_options(request)
    check_delta_alone(request.delta)


def _check_training(request: TrainRequest) -> None:
    train_checks.check_request(request)
    check_delta_alone(request.delta)
    if request.lr is not None and not request.lr > 0:
        raise InputError("lr", request.lr, "a positive number")


def _check_delta(request: latent.EncodeRequest) -> None:
    check_delta_alone(request.delta)


COMMANDS: Mapping[str, Command] = {
    "train": Command(
        TrainRequest,
        _check_training,
        frozenset({"ticket", "dense", "out", "ledger", "seed", "dry-run", "tuned-on"}),
    ),
    "select": Command(SelectRequest, select.check_options, frozenset({"set", "ledger", "dry-run"})),
    "tune": Command(
        TuneRequest,
        tune_settings.check_request,
        frozenset({"set", "out", "features", "public", "components", "epsilon", "delta", "optimizer", "schedule",
                   "average", "accountant"}),
    ),
    "generate": Command(
        GenerateRequest, _check_generation, frozenset({"out", "ledger", "dry-run", "name", "threads"})
    ),
    "transfer": Command(TransferRequest, transfer.check_options, frozenset({"set", "out", "name", "seed"})),
    "scheme": Command(latent.SchemeRequest, latent_scheme.check_scheme_options, frozenset({"out"})),
    "encode": Command(latent.EncodeRequest, _check_delta, frozenset({"scheme", "out", "ledger", "dry-run"})),
    "latent train": Command(
        latent.TrainRequest,
        latent_server.check_options,
        frozenset({"scheme", "messages", "out", "seed", "threads"}),
    ),
}  # fmt: skip
"""By name."""


def latent_command(stage: str) -> str:
    """The command of a stage of ``dpltm latent``."""
    return "latent train" if stage == "train" else stage
