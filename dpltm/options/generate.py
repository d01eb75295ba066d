"""Phase 1: how tickets are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Self

from dpltm.criteria import CRITERIA, SCOPES, Criterion
from dpltm.errors import InputError
from dpltm.networks import network_metavar
from dpltm.options import COUNT, EPSILON, FROM_ZERO, STEP_SIZE, data, option, parse_numbers
from dpltm.options.network import CODE, NetworkOptions


def _default(of: Callable[[Criterion], str]) -> str:
    """Default that depends on the criterion, as help shows it: the usual one, then those that differ."""
    usual = of(CRITERIA["magnitude"])
    others = (f"{entry.name}: {of(entry)}" for entry in CRITERIA.values() if of(entry) != usual)
    return "; ".join([usual, *others])


def _batch_size(criterion: Criterion) -> str:
    training = criterion.training
    limit = "" if training.fewest_batches is None else f", at most records/{training.fewest_batches}"
    return f"{training.batch_size}{limit}"


def _iterations(criterion: Criterion) -> str:
    training = criterion.training
    return str(training.iterations) if training.epochs is None else f"{training.epochs:g} epochs"


MAX_ROUNDS = 9_999
ITERATIONS = f"{_default(_iterations)}; behind splines 500"


class GenerateOptions(
    data.RoundOptions, data.UnprotectedOptions, data.DeltaOptions, data.PerUnitOptions, data.FeatureOptions
):
    """How tickets are made, and what that may spend."""

    provenance: str | None = option(
        None, "What the tickets depend on.", choices=("public", "private", "data-free", "dp"), section="Pruning"
    )
    model: str | None = option(
        None, "Network.", f"{network_metavar()}|{CODE}", shown="mlp:300,100; of a table mlp behind splines"
    )
    rounds: int = option(15, "Pruning rounds.", "N", within=COUNT)
    prune: str | None = option(None, "Share dropped a round; the last repeats.", "R,R,...", shown="0.3, output 0.2")
    criterion: str = option("magnitude", "How weights, units or inputs are chosen.", choices=CRITERIA)
    scope: str | None = option(
        None, "Share of each layer, or in all.", choices=SCOPES, shown=_default(lambda criterion: criterion.scope)
    )
    rewind: int = option(0, "Tickets start from the weights after this training step.", "STEP", within=FROM_ZERO)
    iterations: int | None = option(
        None, "Steps of a round; of dp-train in all.", "N", shown=ITERATIONS, section="Training", within=COUNT
    )
    batch_size: int | None = option(None, "Records a step.", "N", shown=_default(_batch_size), within=COUNT)
    lr: float | None = option(
        None, "Step size.", "X", shown=_default(lambda criterion: f"{criterion.training.lr:g}"), within=STEP_SIZE
    )
    epsilon: float | None = option(None, "Whole budget, for dp-train.", "E", section="Budget", within=EPSILON)
    reveal: bool = option(False, "Show private accuracies, entered as unprotected.", section="The set")
    name: str | None = option(None, "Label of the set.", "TEXT", shown="the dataset's name")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds > MAX_ROUNDS:
            raise InputError(f"`rounds`: {self.rounds} is more than the {MAX_ROUNDS} that a ticket set may have")
        if self.iterations is not None and self.rewind >= self.iterations:
            raise InputError(f"`rewind`: {self.rewind} is no step of the first round, 0 to {self.iterations - 1}")

    @property
    def rates(self) -> tuple[float, ...] | None:
        """The shares of ``prune`` as numbers; InputError for what is none."""
        return None if self.prune is None else parse_numbers("prune", self.prune)

    def for_records(self, records: int) -> Self:
        """Return these options with every default of the criterion filled in, for so many records."""
        criterion = CRITERIA[self.criterion]
        training = criterion.training
        batch = self.batch_size or training.batch_of(records)
        iterations = self.iterations or training.iterations_of(records, batch)
        lr, scope = self.lr or training.lr, self.scope or criterion.scope
        return replace(self, batch_size=batch, iterations=iterations, lr=lr, scope=scope)

    def steps_of(self, rounds: int) -> int:
        """Return the steps of so many trainings, the dense one first."""
        assert self.iterations is not None  # of options for records
        return rounds * (self.iterations - self.rewind) + (self.rewind if rounds else 0)


class GenerateRequest(NetworkOptions, data.LedgerOptions, GenerateOptions, data.DataOptions):
    """Phase 1: make lottery tickets by iterative pruning and write them as a ticket set.

    By default this trains on the records of `dataset` without noise, round after round (train, prune, rewind). The criteria
    random, init-magnitude and synflow use no data; dp-train uses private records under DP, and spends `epsilon`.
    `provenance` says what the tickets depend on otherwise: public if these records are public; private if they are not, and
    then nothing can be certified for them afterwards.

    Examples:
        # tickets of the first half of the digits, declared public
        dpltm generate --dataset digits --subset 0.0:0.5 --provenance public --out digits.tickets
        # tickets of no data at all, for a small network
        dpltm generate --dataset mnist --model mlp:100 --criterion synflow --out free.tickets
        # tickets of private records, made under DP
        dpltm generate --dataset mine.csv --label y --bounds 0,1 --classes 2 --criterion dp-train --epsilon 0.5
        # tickets of your own network
        dpltm generate --dataset cifar10 --model nets.py:MyNet --provenance public --out mine.tickets
    """

    prunable: str | None = option(
        None, "Weights that may be pruned.", "PATTERN,...", shown="all matrices", section="Your own network"
    )
    dataset: str | None = option("digits", data.DATASET_HELP, "NAME|FILE")
    out: str | None = option(None, "Folder to write.", "DIR", shown="NAME.tickets", section="Output")
    dry_run: bool = option(False, data.DRY_RUN_HELP)
    fresh: bool = option(False, data.FRESH_HELP)
