"""The commands whose options a recipe holds: their requests, what refuses them, and what runs them."""

from __future__ import annotations

from dpltm.errors import InputError
from dpltm.experiments.commands import Command
from dpltm.options import latent
from dpltm.options.generate import GenerateRequest
from dpltm.options.select import SelectRequest
from dpltm.options.train import TrainRequest
from dpltm.options.transfer import TransferRequest
from dpltm.options.tune import TuneRequest
from dpltm.stages import (
    generate_settings,
    latent_owner,
    latent_server,
    select,
    train_checks,
    train_plan,
    transfer,
    tune,
)
from dpltm.stages.checks import check_delta_alone
from dpltm.tickets.workbench import generate as generate_work
from dpltm.tickets.workbench import latent as latent_work
from dpltm.tickets.workbench import select as select_work
from dpltm.tickets.workbench import train as train_work
from dpltm.tickets.workbench import transfer as transfer_work
from dpltm.tickets.workbench import tune as tune_work
from dpltm.tickets.workbench.opening import open_dataset
from dpltm.tickets.workbench.trial import Bench


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


COMMANDS = {
    "train": Command(TrainRequest, _check_training, train_plan.sampling_of),
    "select": Command(SelectRequest, select.check_options),
    "tune": Command(TuneRequest, tune.check_request),
    "generate": Command(GenerateRequest, _check_generation, generate_settings.check_schedule),
    "transfer": Command(TransferRequest, transfer.check_options),
    "scheme": Command(latent.SchemeRequest, latent_owner.check_scheme_options),
    "encode": Command(latent.EncodeRequest, _check_delta),
    "latent train": Command(latent.TrainRequest, latent_server.check_options),
}

BENCH = Bench(
    COMMANDS,
    {
        "train": train_work.train,
        "select": select_work.select,
        "tune": lambda request, progress: tune_work.tune(request, progress, portable=True),
        "generate": generate_work.generate,
        "transfer": transfer_work.transfer,
        "scheme": latent_work.agree,
        "encode": latent_work.send,
        "latent train": latent_work.receive,
    },
    open_dataset,
)
