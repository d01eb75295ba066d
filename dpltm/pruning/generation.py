"""Phase 1: tickets by iterative pruning (DPLTM, Algorithm 1; after Frankle and Carbin 2019).

Nothing in this module is differentially private, and a ticket made from private records is not either (privacy-model.md 2).
The caller declares what the masks came from. Those that ``prune_once`` makes of a network trained under DP are
post-processing.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from dpltm.criteria import CRITERIA, Groups, PruningRound, Schedule, Scope
from dpltm.errors import InputError, first_line
from dpltm.networks import ModelSpec, Network, build
from dpltm.networks.evaluation import accuracy, skill
from dpltm.networks.full_precision import seeded, threads
from dpltm.networks.masks import Mask
from dpltm.networks.state import pack, put, unpack, weights_of
from dpltm.privacy.checkpoint import NOT_KEPT, Checkpoint, Checkpoints, reading
from dpltm.pruning.unstructured import layer_rates, live_schedule
from dpltm.records.batches import Inputs

if TYPE_CHECKING:
    from dpltm.options.generate import GenerateOptions


def train_plain(
    model: nn.Module,
    mask: Mask,
    records: tuple[Inputs, Tensor],
    batches: Iterator[Tensor],
    steps: int,
    lr: float | Optimizer,
    progress: Callable[[int], None] | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> None:
    """Run ``steps`` on the mean loss, of SGD or an optimizer in place of its step size; changes ``model`` in place.

    Weights must be masked at the start, and gradients are, so pruned ones stay exactly zero. ``progress`` is called with the
    steps done, every 25 and at the end. ``loss`` gives one value a record; None is the cross-entropy of classes.
    """
    x, y = records
    parameters = [value for value in model.parameters() if value.requires_grad]
    # as numbers: a product with booleans converts them first, which takes longer than the product
    pruned = [(p, mask[name].to(p.dtype)) for name, p in model.named_parameters() if not bool(mask[name].all())]
    mean = functional.cross_entropy if loss is None else lambda outputs, labels: loss(outputs, labels).mean()
    for step in range(steps):
        index = next(batches)
        value = mean(model(x[index]), y[index])
        model.zero_grad()
        value.backward()
        with torch.no_grad():
            for parameter, live in pruned:
                if parameter.grad is not None:
                    parameter.grad.mul_(live)
            for parameter in parameters:
                if parameter.grad is not None and not isinstance(lr, Optimizer):  # one that is not used has none
                    parameter.sub_(parameter.grad, alpha=lr)
        if isinstance(lr, Optimizer):
            lr.step()
        if progress is not None and (step % 25 == 24 or step == steps - 1):
            progress(step + 1)
    model.zero_grad()


def shuffled_batches(records: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield index batches ``(batch_size,)`` int64 without end, one shuffled epoch after another, without a short rest."""
    while True:
        order = torch.randperm(records, generator=generator)
        yield from order[: records - records % batch_size].split(batch_size)


@dataclass(frozen=True)
class Ticket:
    """One candidate: a mask, and the network that was trained under it.

    Attributes:
        round: 0 is the dense network, r the mask after r prunings.
        accuracy: of ``predictor`` on evaluation records, which may be private, so ``repr`` leaves it out.
        predictor: parameters at the end of the round's training, which selection scores; None if nothing was trained.
    """

    round: int
    mask: Mask
    accuracy: float | None = field(repr=False)
    predictor: dict[str, Tensor] | None = field(repr=False)


def dense_mask(spec: Network) -> Mask:
    """Return the mask under which everything lives."""
    return spec.mask({name: torch.ones(shape, dtype=torch.bool) for name, shape in spec.shapes().items()})


def _drawing(batches: Iterator[Tensor], seed: int, step: int) -> Iterator[Tensor]:
    """Yield batches, each after what a network draws at random in that step was seeded by its number."""
    for number, index in enumerate(batches, start=step):
        torch.default_generator.manual_seed(seed + 2**35 + number)
        yield index


def check_trained(weights: Mapping[str, Tensor]) -> None:
    """Raise InputError for weights that a training made infinite: their magnitudes order nothing."""
    if not all(bool(value.isfinite().all()) for value in weights.values()):
        raise InputError("`lr`: the training diverged: weights are not finite any more; take a smaller one")


@dataclass(frozen=True)
class Tickets:
    """The result of phase 1: one starting point theta0 and its tickets, densest first."""

    spec: Network
    theta0: dict[str, Tensor] = field(repr=False)
    tickets: tuple[Ticket, ...]


def generate(
    spec: Network,
    records: tuple[Inputs, Tensor],
    options: GenerateOptions,
    evaluation: tuple[Inputs, Tensor] | tuple[Inputs, Tensor, str] | None = None,
    progress: Callable[[int, str], None] | None = None,
    checkpoints: Checkpoints = NOT_KEPT,
    beside: Mapping[str, Any] | None = None,
    groups: Groups = (),
) -> Tickets:
    """Run Algorithm 1, phase 1: ``options.rounds + 1`` tickets with nested masks and the same theta0.

    Args:
        options: for records (``GenerateOptions.for_records``); the last bits of sums depend on its ``threads``.
        evaluation: records that rounds are measured on, their labels, and in place of accuracy a metric as of ``skill``.
        progress: told the steps done, and the round.
        checkpoints: keep the rounds that are done, ``beside`` other state; a round that was interrupted begins again.
        groups: inputs that each column of a table became, which ``inputs`` keeps or drops together.

    Guarantees:
        The same ``spec``, data, options, number of threads and kind of machine give the same bits. None about privacy.
    """
    x, y = records
    batch_size, lr = options.batch_size, options.lr
    assert batch_size is not None  # these are options for records
    assert lr is not None
    if batch_size > len(x):
        raise InputError(f"`batch_size`: {batch_size} is more than the {len(x)} records; give at most {len(x)}")
    schedule, mask = make_schedule(spec, options), dense_mask(spec)
    model = build(spec, options.seed)
    initial = theta0 = weights_of(model)
    tickets = list[Ticket]()
    if checkpoints.latest is not None:
        theta0, tickets = _resumed(checkpoints.latest, initial, mask)
    done = options.steps_of(len(tickets))
    batches = shuffled_batches(len(x), batch_size, torch.Generator().manual_seed(options.seed + 2**32))
    collections.deque(itertools.islice(batches, done), 0)  # those of the rounds that are done

    def train(steps: int) -> None:
        nonlocal done

        def report(taken: int) -> None:
            if progress is not None:
                progress(done + taken, f"round {len(tickets)}")
            checkpoints.offer(lambda: _checkpoint(theta0, tickets, beside or {}))

        with torch.random.fork_rng(devices=[]):
            drawing = _drawing(batches, options.seed, done)
            train_plain(model, mask, (x, y), drawing, steps, lr, report, spec.loss)
        done += steps
        check_trained(weights_of(model))

    with threads(options.threads):
        while len(tickets) < len(schedule):
            if tickets:
                last, live = tickets[-1], schedule[len(tickets)]
                put(model, last.predictor or {})
                mask = _next_mask(options, groups, model, initial, last.mask, live, x[:1])
                put(model, theta0)
                mask.apply(model)
            elif options.rewind:
                train(options.rewind)
                theta0 = weights_of(model)
            train(options.steps_of(1) - options.rewind)
            score = None if evaluation is None else _score(spec, model, *evaluation)
            tickets.append(Ticket(len(tickets), mask, score, weights_of(model)))
    return Tickets(spec, theta0, tuple(tickets))


def _score(spec: Network, model: nn.Module, x: Inputs, y: Tensor, metric: str = "accuracy") -> float:
    judged = None if metric == "accuracy" else skill(model, x, y, metric=metric)
    if judged is None or judged.estimate is None:  # records of one class, which have no ranks
        return accuracy(model, x, y, score=spec.score)
    return judged.estimate.value


def _checkpoint(theta0: Mapping[str, Tensor], tickets: list[Ticket], beside: Mapping[str, Any]) -> Checkpoint:
    tensors = {f"theta0/{name}": value.numpy() for name, value in theta0.items()}
    for ticket in tickets:
        tensors |= {f"masks/{ticket.round}/{name}": pack(value) for name, value in ticket.mask.items()}
        trained = (ticket.predictor or {}).items()
        tensors |= {f"predictors/{ticket.round}/{name}": value.numpy() for name, value in trained}
    scores = [ticket.accuracy for ticket in tickets]
    return Checkpoint(f"round {len(tickets)}", {"scores": scores, **beside}, tensors)


def _resumed(latest: Checkpoint, like: Mapping[str, Tensor], dense: Mask) -> tuple[dict[str, Tensor], list[Ticket]]:
    tensors = latest.tensors

    def weights(part: str) -> dict[str, Tensor]:
        return {name: torch.from_numpy(tensors[f"{part}/{name}"].copy()) for name in like}

    def mask(part: str) -> Mask:
        return dense.replaced({name: unpack(tensors[f"{part}/{name}"], value) for name, value in dense.items()})

    with reading():
        return weights("theta0"), [
            Ticket(number, mask(f"masks/{number}"), score, weights(f"predictors/{number}"))
            for number, score in enumerate(latest.state["scores"])
        ]


def without_data(spec: Network, options: GenerateOptions) -> Tickets:
    """Tickets whose masks and theta0 depend on no data at all; nothing is trained, so none has a predictor."""
    model = build(spec, options.seed)
    return _pruned_in_turn(spec, weights_of(model), model, options)


def prune_once(
    spec: Network, theta0: Mapping[str, Tensor], trained: Mapping[str, Tensor], options: GenerateOptions
) -> Tickets:
    """Tickets from one trained network, by post-processing: every round drops the smallest of the same weights, and
    predictors are those weights under each mask. Of the criteria, ``magnitude`` and ``structured`` apply."""
    check_trained(trained)
    model = build(spec)
    put(model, trained)
    return _pruned_in_turn(spec, theta0, model, options, predictors=True)


def _pruned_in_turn(
    spec: Network,
    theta0: Mapping[str, Tensor],
    model: nn.Module,
    options: GenerateOptions,
    groups: Groups = (),
    predictors: bool = False,
) -> Tickets:
    mask = dense_mask(spec)
    tickets = []
    example = torch.zeros(1, spec.features)
    for number, live in enumerate(make_schedule(spec, options)):
        if number:
            mask = _next_mask(options, groups, model, theta0, mask, live, example)
            mask.apply(model)
        tickets.append(Ticket(number, mask, None, weights_of(model) if predictors else None))
    return Tickets(spec, dict(theta0), tuple(tickets))


def _next_mask(
    options: GenerateOptions, groups: Groups, model: nn.Module, initial: Mapping[str, Tensor], before: Mask,
    live: Mapping[str, int], example: Tensor,
) -> Mask:  # fmt: skip
    """Return the mask of a criterion; InputError unless it is nested, with as many live weights as the schedule says."""
    assert options.scope is not None  # of options for records
    step = PruningRound(model, initial, before, live, cast(Scope, options.scope), example, options.seed, groups)
    mask = CRITERIA[options.criterion].next_mask(step)
    wanted = sum(live.values())
    nested = isinstance(mask, Mask) and mask.nested_in(before)
    if not nested or sum(int(mask[name].sum()) for name in live) != wanted:
        raise InputError(
            f"`criterion`: {options.criterion}: gives no mask of {wanted:,} weights within the one before"
        )
    return mask


def try_criterion(spec: Network, options: GenerateOptions, groups: Groups) -> None:
    """Raise InputError for a criterion that made-up weights show to be wrong, before anything is spent: it fails, or gives a
    mask of another number of live weights than the schedule says, or not nested in the one before."""
    model = build(spec, options.seed)
    tried = replace(options, rounds=min(options.rounds, 2))  # from the dense mask, and from one that it gave
    try:
        with seeded(0):
            for value in model.parameters():
                nn.init.normal_(value)
            _pruned_in_turn(spec, weights_of(model), model, tried, groups)
    except InputError:
        raise
    except Exception as error:  # whatever somebody's own criterion raises
        raise InputError(f"`criterion`: {options.criterion}: fails on made-up weights: {first_line(error)}") from error


def make_schedule(spec: Network, options: GenerateOptions) -> Schedule:
    """Live weights of every prunable parameter after 0, 1, ..., ``options.rounds`` rounds, whatever the data; InputError for
    rates out of range, a round that would empty a layer, or what the criterion cannot do."""
    rates = pruning_rates(spec, options)
    sizes = tuple(math.prod(spec.shapes()[name]) for name in rates)
    schedule = tuple(
        dict(zip(rates, live, strict=True)) for live in live_schedule(sizes, tuple(rates.values()), options.rounds)
    )
    criterion = CRITERIA[options.criterion]
    if criterion.looks_at == "initial weights" and len(sizes) == 1 and isinstance(spec, ModelSpec):
        raise InputError("`criterion`: initial weights of a single layer are zero, which rank nothing; take random")
    criterion.check(spec, schedule)
    return schedule


def pruning_rates(spec: Network, options: GenerateOptions) -> dict[str, float]:
    """Fraction of live weights that each prunable parameter loses a round."""
    prunable = spec.prunable
    layers = len(prunable)
    if not layers:
        raise InputError(f"`model`: {spec.text} has no weight that may be pruned; train it whole, or say `prunable`")
    given = options.rates
    rates = (0.3,) * (layers - 1) + (0.2,) if given is None else layer_rates(given, layers)
    return dict(zip(prunable, rates, strict=True))
