"""What is refused of the options of a training by themselves, before any record is read."""

from __future__ import annotations

import math

import torch

from dpltm.errors import InputError
from dpltm.filters import PARAMETERS, Filter, check_claims, check_compiles, make_filter
from dpltm.options.train import TrainOptions, TrainRequest
from dpltm.privacy.accountants import check_certifies
from dpltm.records.at_unit import check_per_unit
from dpltm.registry import changed
from dpltm.stages.checks import check_epsilon, check_noise
from dpltm.stages.head import NO_TICKET, check_head, is_least_squares


def check_request(request: TrainRequest) -> None:
    """Raises InputError for a request that says too little, or contradicts itself, about what is trained."""
    check_options(request)
    if request.unit_column is None and request.unit == "record":
        check_per_unit(request.per_unit)
    if request.ticket is None and not request.dense:
        raise InputError(
            "SET is missing: name a ticket set (SET or SET@ROUND), or train the whole network with `dense`"
        )
    if request.ticket is not None and is_least_squares(request):
        raise InputError(NO_TICKET)
    if request.ticket is not None and request.model is not None:
        raise InputError("`model`: the ticket set decides the network; leave `model` out")


def check_options(options: TrainOptions) -> None:
    """Raises InputError for options out of range, that contradict each other, or that lack their other half."""
    check_head(options)
    check_filter(options)
    _check_budget(options)
    check_device(options)
    if not 0 <= options.seed < 2**63:
        raise InputError(f"`seed`: {options.seed} is not between 0 and 2^63 - 1")
    if options.epochs is not None and options.steps is not None:
        raise InputError("`epochs`, `steps`: give one of them")
    if options.epochs is not None and not (options.epochs > 0 and math.isfinite(options.epochs)):
        raise InputError(f"`epochs`: {options.epochs:g} is not a positive number")
    if options.steps is not None and options.steps < 1:
        raise InputError(f"`steps`: {options.steps} is not a positive whole number")
    if options.centre is not None:
        _check_centre(options)


def check_filter(options: TrainOptions) -> Filter:
    """The gradient filter; what it does not take, or cannot do, is refused."""
    filter = make_filter(options.filter, **changed(PARAMETERS, options))
    if options.noise == "nominal" and options.microbatch is None:  # of groups, every filter has the papers' claim
        check_claims(filter, options.filter)
    if options.compile:
        check_compiles(filter, options.filter)
    return filter


def _check_budget(options: TrainOptions) -> None:
    """Raises InputError for a budget out of range, or where it is not clear what decides the noise."""
    if options.budget_stop and (options.epsilon is None or options.noise_multiplier is None):
        raise InputError("`budget_stop`: needs `epsilon`, where to stop, and `noise_multiplier`, how fast it is spent")
    if not options.budget_stop and (options.epsilon is None) == (options.noise_multiplier is None):
        raise InputError("`epsilon` or `noise_multiplier`: give one of them; `epsilon` is the whole budget, such as 1")
    if options.budget_stop and options.noise == "nominal":
        raise InputError("`budget_stop`: holds for certified noise only; leave `noise` nominal out")
    if options.epsilon is not None:
        check_certifies(options.accountant)
    check_epsilon("eval_private", options.eval_private)
    if options.stop_at is not None and not 0 < options.stop_at <= 1:
        raise InputError(f"`stop_at`: {options.stop_at:g} is not an accuracy above 0 and at most 1")
    check_epsilon("epsilon", options.epsilon)
    check_noise(options.noise_multiplier)


def _check_centre(options: TrainOptions) -> None:
    """Raises InputError for a centre out of range, or without the budget that it is a part of."""
    if not 0 < (options.centre or 0.0) < 1:
        raise InputError(f"`centre`: {options.centre:g} is not a part between 0 and 1, such as 0.05")
    if options.epsilon is None:
        raise InputError("`centre`: a part of a budget, so it needs `epsilon`; `noise_multiplier` states no budget")


def check_device(options: TrainOptions) -> None:
    """Raises InputError for a device that is not there."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("`device`: cuda is not there (no such device, or torch was built without it); use cpu")
