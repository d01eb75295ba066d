"""Phase 1: tickets by iterative magnitude pruning (DPLTM, Algorithm 1; after Frankle and Carbin 2019).

Each round trains the masked network from theta0, prunes, and rewinds the survivors to theta0. The training here is
ordinary: nothing in this module is differentially private, and a ticket made from private records is not either
(PRIVACY.md section 2). What the masks came from is the caller's to declare and the ledger's to act on.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.masks import Mask
from dpltm.models import ModelSpec, build
from dpltm.pruning.magnitude import layer_rates, live_schedule, prune_by_magnitude


@dataclass(frozen=True)
class GenerationConfig:
    """How tickets are made; the defaults are DPLTM's.

    Attributes:
        rounds: number of pruning rounds T; with the dense network, T + 1 networks are trained.
        prune: fraction of live weights dropped per round and layer; the last one repeats. None is DPLTM's choice for
            its three layers, carried over: 30 % of each layer and 20 % of the output layer.
        iterations: minibatch steps per round.
        batch_size: records per step.
        lr: step size of plain SGD.
        seed: decides theta0 and the order of batches, and nothing else does.
        threads: CPU threads to train with; torch's present choice if None. The last bits of sums depend on it.
    """

    rounds: int = 15
    prune: tuple[float, ...] | None = None
    iterations: int = 5000
    batch_size: int = 400
    lr: float = 0.1
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "iterations", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name.replace('_', '-')}: {getattr(self, name)} is not a positive whole number")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise InputError(f"--threads: {self.threads} is not between 1 and 1024")
        if not 0 < self.lr < float("inf"):
            raise InputError(f"--lr: {self.lr} is not a positive number")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"--seed: {self.seed} is not between 0 and 2^63 - 1")


@dataclass(frozen=True)
class Ticket:
    """One candidate: a mask, and the network that was trained under it.

    Attributes:
        round: 0 is the dense network, r the mask after r prunings.
        mask: live coordinates.
        accuracy: fraction right of ``predictor`` on the evaluation records it was measured on; None if not measured.
        predictor: parameters at the end of the round's training, pruned ones zero; it is what selection scores.
    """

    round: int
    mask: Mask
    accuracy: float | None
    predictor: dict[str, Tensor]


@dataclass(frozen=True)
class Tickets:
    """The result of phase 1: one starting point theta0 and its tickets, densest first."""

    spec: ModelSpec
    theta0: dict[str, Tensor]
    tickets: tuple[Ticket, ...]


def generate(
    spec: ModelSpec,
    x: Tensor,
    y: Tensor,
    config: GenerationConfig,
    evaluation: tuple[Tensor, Tensor] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tickets:
    """Runs Algorithm 1, phase 1.

    Args:
        spec: the network.
        x: scaled features, ``(n, features)`` float32.
        y: labels, ``(n,)`` int64.
        config: the schedule.
        evaluation: records that accuracies are measured on; none are measured without.
        progress: called as ``progress(steps done, steps in all)``, a few times a second at most is expected of it.

    Returns:
        ``config.rounds + 1`` tickets with nested masks and the same theta0.

    Raises:
        InputError: a batch larger than the data, or a schedule that empties a layer; before any training.

    Guarantees:
        The same ``spec``, data, config, number of threads and kind of machine give the same bits. None about privacy.
    """
    if config.batch_size > len(x):
        raise InputError(f"--batch-size: {config.batch_size} is more than the {len(x)} records; give at most {len(x)}")
    rates = check_schedule(spec, config)
    with _threads(config.threads):
        return _rounds(spec, x, y, config, rates, evaluation, progress)


def _rounds(
    spec: ModelSpec,
    x: Tensor,
    y: Tensor,
    config: GenerationConfig,
    rates: dict[str, float],
    evaluation: tuple[Tensor, Tensor] | None,
    progress: Callable[[int, int], None] | None,
) -> Tickets:
    """Train, prune, rewind, ``config.rounds`` times over."""
    model = build(spec, config.seed)
    theta0 = {name: value.detach().clone() for name, value in model.named_parameters()}
    batches = _batches(len(x), config.batch_size, torch.Generator().manual_seed(config.seed + 2**32))
    mask, tickets, total = Mask.dense(model), [], (config.rounds + 1) * config.iterations
    for number in range(config.rounds + 1):
        if number:
            mask = prune_by_magnitude(dict(model.named_parameters()), mask, rates)
            model.load_state_dict(theta0)
        mask.apply(model)
        report = None if progress is None else _offset(progress, number * config.iterations, total)
        train_plain(model, mask, x, y, batches, config.iterations, config.lr, report)
        score = None if evaluation is None else accuracy(model, *evaluation)
        predictor = {name: value.detach().clone() for name, value in model.named_parameters()}
        tickets.append(Ticket(number, mask, score, predictor))
    return Tickets(spec, theta0, tuple(tickets))


def check_schedule(spec: ModelSpec, config: GenerationConfig) -> dict[str, float]:
    """Pruning rate per prunable parameter, checked to leave every layer some weights in every round."""
    prunable = {name: shape for name, shape in spec.shapes().items() if len(shape) >= 2}
    layers = len(prunable)
    rates = (0.3,) * (layers - 1) + (0.2,) if config.prune is None else layer_rates(config.prune, layers)
    live_schedule(tuple(math.prod(shape) for shape in prunable.values()), rates, config.rounds)
    return dict(zip(prunable, rates, strict=True))


def scheduled_densities(spec: ModelSpec, config: GenerationConfig) -> tuple[float, ...]:
    """Density after 0, 1, ..., ``config.rounds`` rounds: fixed by the schedule alone, whatever the data."""
    rates = check_schedule(spec, config)
    sizes = tuple(math.prod(spec.shapes()[name]) for name in rates)
    return tuple(sum(live) / sum(sizes) for live in live_schedule(sizes, tuple(rates.values()), config.rounds))


def train_plain(
    model: nn.Module,
    mask: Mask,
    x: Tensor,
    y: Tensor,
    batches: Iterator[Tensor],
    steps: int,
    lr: float,
    progress: Callable[[int], None] | None = None,
) -> None:
    """``steps`` of plain SGD on the mean cross-entropy, over live coordinates only; changes ``model`` in place.

    Weights start masked, and each gradient is masked before it is used, so pruned weights stay exactly zero.
    """
    parameters = list(model.parameters())
    pruned = [(p, mask[name]) for name, p in model.named_parameters() if not bool(mask[name].all())]
    for step in range(steps):
        index = next(batches)
        loss = functional.cross_entropy(model(x[index]), y[index])
        for parameter in parameters:
            parameter.grad = None
        loss.backward()
        with torch.no_grad():
            for parameter, keep in pruned:
                parameter.grad.mul_(keep)  # type: ignore[union-attr]
            for parameter in parameters:
                parameter.sub_(parameter.grad, alpha=lr)  # type: ignore[arg-type]
        if progress is not None and (step % 25 == 24 or step == steps - 1):
            progress(step + 1)
    for parameter in parameters:
        parameter.grad = None


@torch.no_grad()
def count_correct(model: nn.Module, x: Tensor, y: Tensor, chunk: int = 4096) -> int:
    """Number of records whose largest output is at their label."""
    return sum(
        int((model(x[start : start + chunk]).argmax(1) == y[start : start + chunk]).sum())
        for start in range(0, len(x), chunk)
    )


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Fraction of records that the network gets right."""
    return count_correct(model, x, y) / len(x)


def _batches(records: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Index batches of exactly ``batch_size``, through one shuffled epoch after another; a short rest is left out."""
    while True:
        order = torch.randperm(records, generator=generator)
        yield from order[: records - records % batch_size].split(batch_size)


@contextlib.contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Runs a block with that many CPU threads, and puts the former number back."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _offset(progress: Callable[[int, int], None], start: int, total: int) -> Callable[[int], None]:
    return lambda done: progress(start + done, total)
