"""The commands whose options a recipe holds, and what runs them. One table, until each is in the core."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from dpltm.cli import train, train_plan, tune
from dpltm.cli.console import Console
from dpltm.data import DatasetCache
from dpltm.errors import DpltmError, InputError
from dpltm.experiments.commands import Command
from dpltm.options import latent
from dpltm.options.generate import GenerateRequest
from dpltm.options.select import SelectRequest
from dpltm.options.transfer import TransferRequest
from dpltm.registry import Deferred
from dpltm.stages.checks import check_delta_alone
from dpltm.stages.generate_settings import check_options as check_generation
from dpltm.stages.generate_settings import check_schedule
from dpltm.stages.progress import Progress
from dpltm.stages.select import check_options as check_draw
from dpltm.tickets.workbench.generate import generate
from dpltm.tickets.workbench.opening import open_dataset
from dpltm.tickets.workbench.select import select
from dpltm.tickets.workbench.trial import Bench

_FLAG = re.compile(r"--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)")


def _named(check: Callable[..., object]) -> Callable[..., object]:
    """``check`` with arguments in the place of flags in what it says."""

    def checked(*given: Any) -> object:
        try:
            return check(*given)
        except DpltmError as error:
            text = _FLAG.sub(
                lambda flag: "`" + {"lambda": "lam"}.get(flag[1], flag[1].replace("-", "_")) + "`", str(error)
            )
            raise (InputError(text) if isinstance(error, InputError) else type(error)(text)) from None

    return checked


def _check_generation(options: GenerateRequest) -> None:
    check_generation(options)
    check_delta_alone(options.delta)


def _check_training(options: train.TrainOptions) -> None:
    train_plan.check_options(options)
    check_delta_alone(options.delta)
    if options.lr is not None and not options.lr > 0:
        raise InputError(f"--lr: {options.lr:g} is not a positive number")


def _check_delta(options: latent.EncodeRequest) -> None:
    check_delta_alone(options.delta)


COMMANDS = {
    "train": Command(train.TrainOptions, _named(_check_training), _named(train_plan.check_records)),
    "select": Command(SelectRequest, check_draw),
    "tune": Command(tune.TuneOptions, _named(tune.check_options)),
    "generate": Command(GenerateRequest, _check_generation, check_schedule),
    "transfer": Command(TransferRequest, Deferred("dpltm.stages.transfer:check_options")),
    "scheme": Command(latent.SchemeRequest, Deferred("dpltm.stages.latent_owner:check_scheme_options")),
    "encode": Command(latent.EncodeRequest, _named(_check_delta)),
    "latent train": Command(latent.TrainRequest, Deferred("dpltm.stages.latent_server:check_options")),
}


def _train(options: Any, progress: Progress, *, dataset_cache: DatasetCache | None = None) -> dict[str, Any]:
    del progress, dataset_cache
    return train.run(options, Console(quiet=True))


def _tune(options: Any, progress: Progress, *, dataset_cache: DatasetCache | None = None) -> dict[str, Any]:
    del progress, dataset_cache
    return tune.run(options, Console(quiet=True), portable=True)


STAGES = {
    "train": _train,
    "select": select,
    "tune": _tune,
    "generate": generate,
    "transfer": Deferred("dpltm.tickets.workbench.transfer:transfer"),
    "scheme": Deferred("dpltm.tickets.workbench.latent:agree"),
    "encode": Deferred("dpltm.tickets.workbench.latent:send"),
    "latent train": Deferred("dpltm.tickets.workbench.latent:receive"),
}

BENCH = Bench(COMMANDS, STAGES, open_dataset)
