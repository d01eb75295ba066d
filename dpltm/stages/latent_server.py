"""The server's side of LATENT: networks that learn from messages. It sees no record, so nothing here costs anything more."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpltm.errors import InputError
from dpltm.local.bit_strings import LABEL_BYTES, BitStrings
from dpltm.local.codebook import Codebook
from dpltm.local.scheme import ROWS, Scheme
from dpltm.local.server import Messages, nearest_mean
from dpltm.networks import ModelSpec, build, for_inputs, kind_name
from dpltm.networks.masks import Mask
from dpltm.options.latent import ServerOptions
from dpltm.options.parsing import parse_numbers
from dpltm.pruning.generation import GenerationConfig, Ticket, generate, prune_once, train_dense
from dpltm.randomness.noise import FastSource
from dpltm.records import Dataset, Split
from dpltm.records.notes import bounds_notes
from dpltm.stages.latent_owner import check_fits, scheme_notes
from dpltm.stages.progress import SILENT, Progress, by_round
from dpltm.training.checkpoint import NOT_KEPT, Checkpoints, PartOf, check_same
from dpltm.training.evaluation import accuracy
from dpltm.training.plain import Inputs

COMPARED_ROWS, MIN_COMPARED_BYTES = 100, 64
"""Messages that tell two files apart, where these have as many bytes: coins of so many are never the same."""

MODEL = "mlp:128"

CHUNK = 512
"""Records at a time when accuracy is measured: a few hundred of bits take a quarter of a gigabyte."""


@dataclass(frozen=True)
class LearningPlan:
    """A training on messages in which all that can be refused was not.

    Attributes:
        scheme: of the messages.
        files: ``(n, record_bytes)`` uint8 each.
        spec: the network.
        config: how it is trained, and pruned.
        options: as they were given.
        test: public records, for accuracy.
        test_notes: what was assumed of them.
    """

    scheme: Scheme
    files: tuple[np.ndarray, ...]
    spec: ModelSpec
    config: GenerationConfig
    options: ServerOptions
    test: Split | None
    test_notes: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """Messages in all files."""
        return sum(map(len, self.files))


@dataclass(frozen=True)
class TicketScores:
    """Accuracies of one ticket on public test records; None where they were not measured.

    Attributes:
        round, density: of the ticket.
        accuracy: on the records as they are.
        randomised: on the same, randomised as the private ones were.
    """

    round: int
    density: float
    accuracy: float | None
    randomised: float | None


@dataclass(frozen=True)
class Learned:
    """What was learned from messages.

    Attributes:
        spec: the network.
        tickets: the dense network, and those of each pruning round.
        scores: of each ticket.
        seconds: that training took.
        notes: what the figures of the scheme do not say.
    """

    spec: ModelSpec
    tickets: tuple[Ticket, ...]
    scores: tuple[TicketScores, ...]
    seconds: float
    notes: tuple[str, ...]


def plan_learning(
    scheme: Scheme,
    files: Sequence[np.ndarray],
    options: ServerOptions,
    test: Dataset | None = None,
    *,
    test_label: str = "",
) -> LearningPlan:
    """What training on these messages comes to.

    Args:
        scheme: of the messages.
        files: ``(n, record_bytes)`` uint8 each.
        options: of the training.
        test: a dataset whose test split is public.
        test_label: what messages call it; by default its name.

    Raises:
        InputError: messages that count twice; options that are out of range, or contradict each other or the scheme; test
            records that are not like those of the scheme.
    """
    heads = [bytes(rows[:COMPARED_ROWS]) for rows in files if rows.size >= MIN_COMPARED_BYTES]
    if len(set(heads)) != len(heads):
        raise InputError("`messages`: two files hold the same messages; every message counts once")
    config = _config(options, sum(map(len, files)), codebook=isinstance(scheme.answer, Codebook))
    split = None if test is None else _test_split(scheme, test, test_label or test.name)
    assumed = tuple(bounds_notes(test, "agree on a scheme with others"))
    return LearningPlan(scheme, tuple(files), _spec(scheme, options), config, options, split, assumed)


def learn(plan: LearningPlan, progress: Progress = SILENT, checkpoints: Checkpoints = NOT_KEPT) -> Learned:
    """Trains, prunes, and measures accuracy where there are public test records.

    Args:
        plan: of the training.
        progress: who watches.
        checkpoints: where it is kept on the way, and what it goes on from. None of messages of a codebook, which take no
            time.

    Raises:
        InputError: training diverged; or a checkpoint is held of other messages.
    """
    answer, began = plan.scheme.answer, time.perf_counter()
    if checkpoints.held is not None:
        check_same(checkpoints.held.state.get("of", {}), _facts(plan))
    kept = PartOf(checkpoints, {"of": _facts(plan)})
    tickets = _nearest_mean(plan, answer) if isinstance(answer, Codebook) else _trained(plan, answer, progress, kept)
    seconds = time.perf_counter() - began
    if not all(bool(value.isfinite().all()) for ticket in tickets for value in (ticket.predictor or {}).values()):
        raise InputError(f"`lr`: training diverged at {plan.options.lr:g}; take a smaller one")
    inputs = None if plan.test is None else _test_inputs(plan.scheme, plan.test, progress)
    scores = tuple(_scores(ticket, plan.spec, inputs) for ticket in tickets)
    notes = (*plan.test_notes, *scheme_notes(plan.scheme), *_notes(plan.scheme))
    return Learned(plan.spec, tickets, scores, seconds, notes)


def _facts(plan: LearningPlan) -> dict[str, Any]:
    """What a training is of, beside its options: messages are told apart by the first of each file."""
    heads = [hashlib.sha256(bytes(rows[:COMPARED_ROWS])).hexdigest() for rows in plan.files]
    return {
        "scheme": plan.scheme.id,
        "messages": [[len(rows), head] for rows, head in zip(plan.files, heads, strict=True)],
    }


def check_options(options: ServerOptions) -> None:
    """Raises InputError for options that are out of range or contradict each other, whatever the messages."""
    _config(options, max(1, options.batch_size), codebook=False)


def _config(options: ServerOptions, records: int, codebook: bool) -> GenerationConfig:
    """The training, with everything refused that cannot be meant."""
    if not codebook and not 1 <= options.batch_size <= records:
        raise InputError(f"`batch_size`: {options.batch_size} is not from 1 to {records}, the messages at hand")
    if not 0 < options.epochs <= 10_000:
        raise InputError("epochs", options.epochs, "a positive number up to 10,000")
    if not 0 <= options.dropout < 1:
        raise InputError("dropout", options.dropout, "at least 0 and below 1")
    if options.rounds < 0:
        raise InputError("rounds", options.rounds, "a whole number from 0 on")
    if options.prune is not None and not options.rounds:
        raise InputError("`prune`: nothing is pruned in no rounds; say `rounds` N, or leave it out")
    return GenerationConfig(
        rounds=max(1, options.rounds),
        prune=None if options.prune is None else parse_numbers("prune", options.prune),
        iterations=max(1, round(options.epochs * records / options.batch_size)),
        batch_size=options.batch_size,
        lr=options.lr,
        seed=options.seed,
        threads=options.threads,
    )


def _spec(scheme: Scheme, options: ServerOptions) -> ModelSpec:
    """The network: a linear one on features for a codebook, since all that its messages tell is in the means of classes."""
    answer = scheme.answer
    if isinstance(answer, Codebook):
        if options.model is not None:
            raise InputError(
                "`model`: messages of a codebook tell the means of classes, hence a linear network; leave it out"
            )
        return ModelSpec("mlp", answer.values, answer.classes)
    name = options.model or MODEL
    if kind_name(name) not in for_inputs("vectors"):
        raise InputError(f"`model`: {name} does not take bits; take mlp:WIDTH,WIDTH,..., such as mlp:128")
    return ModelSpec(name, answer.inputs, answer.classes)


def _test_split(scheme: Scheme, dataset: Dataset, label: str) -> Split:
    """Public test records."""
    check_fits(scheme, dataset)
    if dataset.test is None:
        raise InputError(f"`test`: {label} has no test split; name a dataset that has one")
    return dataset.test


def _nearest_mean(plan: LearningPlan, answer: Codebook) -> tuple[Ticket, ...]:
    weights = nearest_mean(answer, plan.files)
    if plan.options.rounds:
        return prune_once(plan.spec, weights, weights, plan.config).tickets
    return (Ticket(0, Mask.dense(build(plan.spec)), None, weights),)


def _trained(
    plan: LearningPlan, answer: BitStrings, progress: Progress, checkpoints: Checkpoints
) -> tuple[Ticket, ...]:
    """A network on bits: the dense one alone, or it and its tickets."""
    config, dropout = plan.config, plan.options.dropout
    received = Messages(plan.files, answer)
    labels = received.labels
    if plan.options.rounds:
        with progress.progress(f"{config.rounds + 1} networks", config.steps) as step:
            told = by_round(config.iterations, config.rewind, step, "no more epsilon is spent")
            return generate(plan.spec, received, labels, config, None, told, dropout, checkpoints).tickets
    with progress.progress("training on messages", config.iterations) as step:
        told = lambda done, _: step(done, "no more epsilon is spent")  # noqa: E731
        return (train_dense(plan.spec, received, labels, config, told, dropout, checkpoints),)


@dataclass(frozen=True)
class _TestInputs:
    """What the network gets of public test records.

    Attributes:
        labels: as they are.
        plain: of the records as they are.
        randomised: of the same, randomised as the private ones were; None for a codebook.
    """

    labels: torch.Tensor
    plain: Inputs
    randomised: Inputs | None


def _test_inputs(scheme: Scheme, test: Split, progress: Progress) -> _TestInputs:
    answer, plain, sent = scheme.answer, [], []
    with progress.progress("features of the test records", len(test)) as step:
        for start in range(0, len(test), ROWS):
            x, y = test.x[start : start + ROWS], test.y[start : start + ROWS]
            scores = scheme.scores(x)
            if isinstance(answer, Codebook):
                plain.append(scores)
            else:
                plain.append(answer.without_coins(scores, y))
                sent.append(answer.randomise(scores, y, FastSource())[0])
            step(min(start + ROWS, len(test)))
    labels = torch.tensor(test.y)
    if isinstance(answer, Codebook):
        return _TestInputs(labels, torch.from_numpy(np.concatenate(plain)), None)
    randomised = np.concatenate(sent)
    randomised[:, -LABEL_BYTES:] = 0  # accuracy is against the labels as they are
    return _TestInputs(
        labels, Messages([np.concatenate(plain)], answer, randomised=False), Messages([randomised], answer)
    )


def _scores(ticket: Ticket, spec: ModelSpec, inputs: _TestInputs | None) -> TicketScores:
    model = build(spec)
    model.load_state_dict(ticket.predictor or {})

    def measured(part: Inputs | None) -> float | None:
        return None if inputs is None or part is None else accuracy(model, part, inputs.labels, chunk=CHUNK)

    plain, randomised = (None, None) if inputs is None else (inputs.plain, inputs.randomised)
    return TicketScores(ticket.round, ticket.mask.density, measured(plain), measured(randomised))


def _notes(scheme: Scheme) -> list[str]:
    """What the figures do not say."""
    notes = ["the figures are those of one message; of a record that is in several they add up, in its owner's ledger"]
    if isinstance(scheme.answer, Codebook) and scheme.answer.labels == "signed":
        notes.append("classes are taken to be equally frequent: messages of this epsilon do not tell")
    return notes
