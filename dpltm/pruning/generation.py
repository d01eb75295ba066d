"""Phase 1: tickets by iterative pruning (DPLTM, Algorithm 1; after Frankle and Carbin 2019).

Each round trains the masked network from theta0, prunes, and rewinds the survivors to theta0. The training here is
ordinary: nothing in this module is differentially private, and a ticket made from private records is not either
(privacy-model.md 2). The caller declares what the masks came from, and the ledger acts on it. Masks made from synthetic
records that a DP release paid for, or by ``prune_once`` from a network that was trained under DP, are post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.networks.mlp import PROJECTION
from dpltm.pruning import CRITERIA, DATA_FREE, PLAIN_CRITERIA, SCOPES, PruningRound, Schedule, Scope
from dpltm.pruning.criterion import Groups
from dpltm.pruning.rounds import Rounds
from dpltm.pruning.rounds import Ticket as Ticket
from dpltm.pruning.rounds import weights_of as weights_of
from dpltm.pruning.schedule import layer_rates, live_schedule
from dpltm.training.checkpoint import NOT_KEPT, Checkpoints
from dpltm.training.plain import Inputs, check_lr, threads

MAX_ROUNDS = 9_999
"""Pruning rounds of a ticket set."""


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
        seed: decides theta0, the order of batches and what ``random`` drops, and nothing else does.
        threads: CPU threads to train with; torch's present choice if None. The last bits of sums depend on it.
        criterion: which weights a round drops (see ``dpltm.pruning.criteria``).
        scope: whether every layer loses its own fraction, or the network as many weights in all, wherever they are.
        rewind: theta0 is the dense network after so many steps of its training rather than before the first (Frankle et
            al. 2020); later rounds train that much less.
        groups: inputs that each column of a table became, which ``inputs`` keeps or drops together; none where they stand
            alone.
    """

    rounds: int = 15
    prune: tuple[float, ...] | None = None
    iterations: int = 5000
    batch_size: int = 400
    lr: float = 0.1
    seed: int = 0
    threads: int | None = None
    criterion: str = "magnitude"
    scope: Scope = "layer"
    rewind: int = 0
    groups: Groups = ()

    def __post_init__(self) -> None:
        for name in ("rounds", "iterations", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(name, getattr(self, name), "a positive whole number")
        if self.rounds > MAX_ROUNDS:
            raise InputError(f"`rounds`: {self.rounds} is more than the {MAX_ROUNDS} that a ticket set may have")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise InputError(f"`threads`: {self.threads} is not between 1 and 1024")
        check_lr(self.lr)
        if not 0 <= self.seed < 2**63:
            raise InputError(f"`seed`: {self.seed} is not between 0 and 2^63 - 1")
        CRITERIA.find(self.criterion, among=PLAIN_CRITERIA)
        if self.scope not in SCOPES:
            raise InputError(f"`scope`: unknown scope {self.scope!r}; known: {', '.join(SCOPES)}")
        if not 0 <= self.rewind < self.iterations:
            raise InputError(
                f"`rewind`: {self.rewind} is not a step from 0 to {self.iterations - 1}, before the last of the first round"
            )

    @property
    def steps(self) -> int:
        """Training steps of all rounds together."""
        return self.iterations + self.rounds * (self.iterations - self.rewind)


@dataclass(frozen=True)
class Tickets:
    """The result of phase 1: one starting point theta0 and its tickets, densest first."""

    spec: ModelSpec
    theta0: dict[str, Tensor] = field(repr=False)
    tickets: tuple[Ticket, ...]

    def without_predictors(self) -> Tickets:
        """The same masks and theta0, with no networks to select by."""
        return replace(self, tickets=tuple(replace(ticket, predictor=None) for ticket in self.tickets))


def generate(
    spec: ModelSpec,
    x: Inputs,
    y: Tensor,
    config: GenerationConfig,
    evaluation: tuple[Inputs, Tensor] | None = None,
    progress: Callable[[int, int], None] | None = None,
    dropout: float = 0.0,
    checkpoints: Checkpoints = NOT_KEPT,
) -> Tickets:
    """Runs Algorithm 1, phase 1.

    Args:
        spec: the network.
        x: scaled features, ``(n, features)`` float32.
        y: labels, ``(n,)`` int64.
        config: the schedule.
        evaluation: records that accuracies are measured on; none are measured without.
        dropout: share of the last layer's inputs that each training step leaves out.
        progress: called as ``progress(steps done, steps in all)``, a few times a second at most is expected of it.
        checkpoints: where it is kept on the way, and what it goes on from.

    Returns:
        ``config.rounds + 1`` tickets with nested masks and the same theta0.

    Raises:
        InputError: a batch larger than the data, or a schedule that empties a layer; before any training.

    Guarantees:
        The same ``spec``, data, config, number of threads and kind of machine give the same bits. None about privacy.
    """
    if config.batch_size > len(x):
        raise InputError(f"`batch_size`: {config.batch_size} is more than the {len(x)} records; give at most {len(x)}")
    rounds = Rounds(spec, x, y, config, make_schedule(spec, config), evaluation, dropout)
    _made(rounds, progress, checkpoints, config.threads)
    return Tickets(spec, rounds.theta0, tuple(rounds.tickets))


def _made(
    rounds: Rounds, progress: Callable[[int, int], None] | None, checkpoints: Checkpoints, number: int | None
) -> None:
    """Runs all rounds, from where a checkpoint was taken if one is held, on so many threads."""
    with threads(number):
        if checkpoints.held is not None:
            rounds.resume(checkpoints.held)
        rounds.run(progress, lambda: checkpoints.offer(rounds.checkpoint))


def train_dense(
    spec: ModelSpec,
    x: Inputs,
    y: Tensor,
    config: GenerationConfig,
    progress: Callable[[int, int], None] | None = None,
    dropout: float = 0.0,
    checkpoints: Checkpoints = NOT_KEPT,
) -> Ticket:
    """The first round of :func:`generate` alone, the same to the last bit: the dense network.

    Arguments as :func:`generate`.
    """
    dense = ({name: math.prod(spec.shapes()[name]) for name in pruning_rates(spec, config)},)
    rounds = Rounds(spec, x, y, config, dense, None, dropout)
    _made(rounds, progress, checkpoints, config.threads)
    return rounds.tickets[0]


def without_data(spec: ModelSpec, config: GenerationConfig) -> Tickets:
    """Tickets whose masks and theta0 depend on no data at all; nothing is trained, so none has a predictor.

    Raises:
        InputError: a criterion that looks at trained weights, late rewinding, or a schedule that empties a layer.
    """
    check_without_data(config)
    model = build(spec, config.seed)
    return _pruned_in_turn(spec, weights_of(model), model, config, predictors=False)


def check_without_data(config: GenerationConfig) -> None:
    """Raises InputError for settings that need a training."""
    if config.criterion not in DATA_FREE:
        raise InputError(
            f"`criterion`: {config.criterion} looks at trained weights; without data take {', '.join(DATA_FREE)}"
        )
    if config.rewind:
        raise InputError("`rewind`: needs a training to rewind into, and data-free tickets have none; leave it out")


def prune_once(
    spec: ModelSpec, theta0: Mapping[str, Tensor], trained: Mapping[str, Tensor], config: GenerationConfig
) -> Tickets:
    """Tickets from one trained network: every round drops the smallest of the same weights.

    Args:
        spec: the network.
        theta0: weights that tickets start from.
        trained: weights after training; what is made here is post-processing of theirs.
        config: the schedule; of its criteria, ``magnitude`` and ``structured`` apply.

    Returns:
        Tickets whose predictors are the trained weights under each mask.
    """
    model = build(spec)
    model.load_state_dict(dict(trained))
    return _pruned_in_turn(spec, theta0, model, config, predictors=True)


def _pruned_in_turn(
    spec: ModelSpec, theta0: Mapping[str, Tensor], model: nn.Module, config: GenerationConfig, predictors: bool
) -> Tickets:
    """Tickets with nothing trained in between."""
    prune, mask, tickets = CRITERIA[config.criterion].next_mask, Mask.dense(model), []
    example = torch.zeros(1, spec.features)
    for number, live in enumerate(make_schedule(spec, config)):
        if number:
            mask = prune(PruningRound(model, theta0, mask, live, config.scope, example, config.seed, config.groups))
            mask.apply(model)
        tickets.append(Ticket(number, mask, None, weights_of(model) if predictors else None))
    return Tickets(spec, dict(theta0), tuple(tickets))


def make_schedule(spec: ModelSpec, config: GenerationConfig) -> Schedule:
    """Live weights of every prunable parameter after 0, 1, ..., ``config.rounds`` rounds, whatever the data.

    With global scope, and with units dropped whole, the numbers of a round count in sum.

    Raises:
        InputError: rates out of range, a round that would empty a layer, or what the criterion cannot do.
    """
    rates = pruning_rates(spec, config)
    sizes = tuple(math.prod(spec.shapes()[name]) for name in rates)
    schedule = tuple(
        dict(zip(rates, live, strict=True)) for live in live_schedule(sizes, tuple(rates.values()), config.rounds)
    )
    criterion = CRITERIA[config.criterion]
    if criterion.looks_at == "initial weights" and len(sizes) == 1:
        raise InputError(
            f"`criterion`: {criterion.name} ranks initial weights, and those of a single layer are zero; take random"
        )
    criterion.check(spec, schedule)
    return schedule


def pruning_rates(spec: ModelSpec, config: GenerationConfig) -> dict[str, float]:
    """Fraction of live weights that each prunable parameter loses a round; a projection in front is never pruned."""
    prunable = [
        name for name, shape in spec.shapes().items() if len(shape) >= 2 and not name.startswith(f"{PROJECTION}.")
    ]
    layers = len(prunable)
    rates = (0.3,) * (layers - 1) + (0.2,) if config.prune is None else layer_rates(config.prune, layers)
    return dict(zip(prunable, rates, strict=True))


def scheduled_densities(spec: ModelSpec, config: GenerationConfig) -> tuple[float, ...]:
    """Density after 0, 1, ..., ``config.rounds`` rounds: fixed by the schedule alone, whatever the data."""
    shapes = spec.shapes()
    total = sum(math.prod(shape) for shape in shapes.values() if len(shape) >= 2)
    schedule = make_schedule(spec, config)
    whole = total - sum(schedule[0].values())
    return tuple((whole + sum(live.values())) / total for live in schedule)
