"""Evaluation of a network on given records: its outputs, and how many it gets right."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.networks import Batch, Network
from dpltm.networks.full_precision import TilesMix, aligned
from dpltm.networks.skill import Skill, skill_of
from dpltm.networks.state import evaluating, unwritten
from dpltm.records.batches import Inputs
from dpltm.records.dataset import LEVELS, Dataset
from dpltm.records.made_up import CannotFollow, Decides, alone, bits_hold, filled_up, follows
from dpltm.records.units import ABSENT

CHUNK = 1024
"""Records that are looked at together. A convolutional network's activations of many more outgrow a processor's caches."""

SCORED_BYTES = 2**26
"""Memory, approximate, of what the layers of a network give for as many records as are scored at once under a price."""

DIVERGED = "training diverged: the network gives no finite numbers, so it tells nothing; take a smaller `lr`"


@torch.no_grad()
def has_diverged(model: nn.Module, spec: Network) -> bool:
    """True if a network has weights, or outputs for a record of zeros (nobody's), that are not finite."""
    parameters = list(model.parameters())
    dtype = torch.long if spec.tables else torch.float32
    zeros = torch.zeros(1, spec.features, dtype=dtype, device=parameters[0].device)
    with evaluating(model):
        return not all(bool(value.isfinite().all()) for value in (*parameters, model(zeros)))


@torch.no_grad()
def scored_rows(model: nn.Module, like: Tensor) -> int:
    """Return how many rows every pass has in which private records are scored: 32 to ``CHUNK``, by a record of zeros."""
    numbers = 0

    def count(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal numbers
        numbers += output.numel() if isinstance(output, Tensor) else 0

    hooks = [module.register_forward_hook(count) for module in model.modules()]
    try:
        with evaluating(model):
            model(torch.zeros_like(like[:1]))
    finally:
        for hook in hooks:
            hook.remove()
    rows = min(max(SCORED_BYTES // (4 * max(numbers, 1)), 32), CHUNK)
    return int(2 ** (rows.bit_length() - 1))


STEP = 2**20
"""Scores of a record are multiples of one over so many."""


@dataclass(frozen=True)
class PricedScore:
    """What a metric counts of a record on private records: a value from 0 to 1, so its sum has sensitivity 1.

    Balanced accuracy, the sum over k of right_k / (K n_k), is the sum of [right] / (K n s_y) over records, with s the public
    or paid ``shares`` of the ``classes``, all positive, in place of n_k / n. Times K n min s, a right answer counts
    min s / s_y, at most 1.
    """

    classes: int
    shares: tuple[float, ...]

    @property
    def scale(self) -> float:
        """What a mean over records is divided by: K min s."""
        return self.classes * min(self.shares)

    def values(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the value of each record, ``(rows,)`` float64, not yet cut."""
        shares = torch.tensor(self.shares, dtype=torch.float64, device=outputs.device)
        return (outputs.argmax(1) == labels) * (shares.min() / shares)[labels]

    def metric(self, total: float, records: int) -> float:
        """Return the balanced accuracy that a sum, with noise or without, stands for."""
        return min(max(total / (records * self.scale), 0.0), 1.0)


@dataclass(frozen=True)
class PricedError:
    """The same of targets that are numbers: the error over their range, of length ``span``; squared for ``rmse``."""

    kind: str
    span: float

    def values(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the value of each record, ``(rows,)`` float64, not yet cut."""
        errors = (torch.softmax(outputs.double(), 1)[:, 1] - labels.double() / LEVELS).abs()
        return errors.square() if self.kind == "rmse" else errors

    def metric(self, total: float, records: int) -> float:
        """Return the error, in the unit of targets, that a sum, with noise or without, stands for."""
        mean = min(max(total / records, 0.0), 1.0)
        return self.span * (math.sqrt(mean) if self.kind == "rmse" else mean)


@dataclass(frozen=True)
class OfValues:
    """A score of labels that are no class numbers: those of a record in a row of ``y``, and no persons in slots."""

    score: Batch

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.score(outputs, labels)


Scores = Batch | PricedScore | PricedError | None
"""Of the user's own, one record at a time; of a metric; or None for right answers."""


def count_correct(model: nn.Module, x: Inputs, y: Tensor, chunk: int = 0, score: Scores = None) -> int:
    """Number of records whose largest output is at their label; or the whole part of the sum of their scores. A record, or
    person, more changes it by 0 or 1, as whoever adds whole-numbered noise needs it."""
    return math.floor(total_score(model, x, y, chunk, score))


def total_score(
    model: nn.Module, x: Inputs, y: Tensor, chunk: int = 0, score: Scores = None, *, alike: bool = True
) -> float:
    """Sum of the records' scores, by default 1 for each whose largest output is at its label, ``chunk`` at a time, or as
    many as :func:`scored_rows` says. Of persons, with labels ``(n, slots)``, and the records of filled slots in ``x``, the
    sum of the means of theirs.

    A record, or a person, counts for 0 to 1: a score is clamped, NaN is 0, as is what is not one value, and it is rounded to
    a multiple of 2^-20, as is a person's mean (downwards); the sum is exact whatever the order. ``alike``: see ``outputs``.
    """
    valued = isinstance(score, OfValues)
    parts = list[Tensor]()
    present = torch.ones(len(y), dtype=torch.bool, device=y.device) if valued else y != ABSENT
    if not chunk:
        chunk = rows_alike(model, x[:1], scored_rows(model, x[:1])) if alike and len(x) else CHUNK
    for of_chunk, labels in zip(outputs(model, x, chunk, alike=alike), y[present].split(chunk), strict=True):
        if score is None:
            values = [of_chunk.argmax(1) == labels]
        elif isinstance(score, PricedScore):
            values = [score.values(of_chunk, labels)]
        else:  # each alone: for a function of the user's own, and since last bits of others depend on how many there are
            value_of = score.values if isinstance(score, PricedError) else score
            alone = (value_of(of_chunk[at : at + 1], labels[at : at + 1]) for at in range(len(labels)))
            values = [value.reshape(1) if value.numel() == 1 else value.new_zeros(1) for value in alone]
        parts += [(value.double().nan_to_num(0.0).clamp(0, 1) * STEP).round().long() for value in values]
    scores = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long, device=y.device)
    if present.ndim == 2:
        many = present.sum(1)
        owners = torch.arange(len(y), device=y.device).repeat_interleave(many)
        scores = torch.zeros_like(many).index_add_(0, owners, scores) // many.clamp_min(1)
    return int(scores.sum()) / STEP


def rows_alike(model: nn.Module, like: Tensor, rows: int) -> int:
    """Return ``rows``, or 1 where these cannot be mapped over, or made-up ones, as ``like``, show that others move a bit."""
    with evaluating(model), TilesMix() as tiles:
        return rows if follows(model, like) and bits_hold(partial(_apart, model), like, rows) and not tiles.mix else 1


def _apart(model: nn.Module, x: Tensor) -> Tensor:
    """What a network gives for records that it is shown one at a time, ``(rows, K)``: it cannot mix them."""
    try:
        (of_each,) = alone(lambda row: [model(row)], x, model=model)
    except (CannotFollow, Decides) as error:
        raise InputError(f"model: it cannot be mapped over records any more ({error})") from error
    return of_each.squeeze(1)


def outputs(model: nn.Module, x: Inputs, chunk: int = CHUNK, *, alike: bool = True) -> Iterator[Tensor]:
    """Yield what a network gives, ``(rows, K)``, for so many records at a time, in evaluation mode; where ``alike``, as sums
    that noise is added to need it, each by itself, and the last ones beside rows of zeros: another number of rows may round
    in another way."""
    function = partial(_apart, model) if alike and chunk > 1 else model
    with torch.no_grad(), evaluating(model), unwritten(model):
        for start in range(0, len(x), chunk):
            rows = x[start : start + chunk]
            if alike and len(rows) < chunk:
                yield function(filled_up(rows, chunk))[: len(rows)]
            else:
                yield function(aligned(rows) if alike else rows)


def skill(model: nn.Module, x: Inputs, y: Tensor, **judging: Any) -> Skill | None:
    """Return how good a network is at telling classes of records that are not protected; ``judging`` as :func:`skill_of`."""
    values = torch.cat([chunk.cpu() for chunk in outputs(model, x, alike=False)])
    return skill_of(values.numpy(), y.cpu().numpy(), **judging)


def check_no_target(dataset: Dataset, taker: str) -> None:
    """Raise InputError for records whose label is a number, where ``taker`` needs classes."""
    if dataset.target is not None:
        raise InputError(
            f"`dataset`: the label of {dataset.name} is a number to be predicted, and {taker} needs classes; declare"
            " `classes`; `train` predicts numbers, with the whole network (`dense`)"
        )


def check_loss(network: Network) -> None:
    """Raise InputError unless something says what labels of a network mean."""
    if network.labels is not None and network.loss is None:
        raise InputError(
            f"`loss=` is missing: {network.labels} are no class numbers; give, in Python, a function of outputs and labels"
            " to one value a record; for select and accuracies also `score=`, from 0 to 1"
        )


def check_score(network: Network, taker: str) -> None:
    """Raise InputError unless something says how good outputs are for a record; ``taker`` needs it."""
    if network.labels is not None and network.score is None:
        raise InputError(
            f"`score=` is missing: {network.labels} are no class numbers, so {taker} needs, in Python, a function of outputs"
            " and labels to one value from 0 to 1 a record"
        )


def check_priced(metric: str | None) -> None:
    """Raise InputError for a metric whose sensitivity on private records is not bounded: one record can move all pairs."""
    if metric in ("r2", "auc"):
        raise InputError(
            f"`metric`: {metric} compares every record with all others, so it has no price on private ones; take rmse or mae"
            " of numbers, balanced-accuracy of classes, or measure on records that are not protected"
        )


def accuracy(model: nn.Module, x: Inputs, y: Tensor, chunk: int = CHUNK, score: Batch | None = None) -> float:
    """Fraction of records that the network gets right, or their mean score, from 0 to 1: see :func:`total_score`."""
    return total_score(model, x, y, chunk, score, alike=False) / len(x)
