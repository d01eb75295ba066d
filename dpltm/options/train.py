"""Phase 3: how a ticket is trained under differential privacy, and the settings of a training loop of the user's own."""

from __future__ import annotations

from typing import Any

from dpltm.filters import FILTERS
from dpltm.filters.descriptor import CLIP_NORM, NO_PRE_CLIP, TANH_RANGE, TANH_SCALE
from dpltm.networks import network_metavar
from dpltm.options import COUNT, DELTA, EPSILON, NOISE, PART, POSITIVE, STEP_SIZE, Options, option
from dpltm.options.data import (
    BY_HELP,
    DataOptions,
    FeatureOptions,
    GuaranteeOptions,
    LedgerOptions,
    MetricOptions,
    OptimizerOptions,
    PerUnitOptions,
    SeedOptions,
    SharesOptions,
)
from dpltm.options.network import CODE, NetworkOptions
from dpltm.privacy.accountants import ACCOUNTANTS
from dpltm.registry import Parameter

LEAST_SQUARES = "least-squares"
"""The head that has nothing to tune."""


def _of(parameter: Parameter) -> Any:
    """Return the option that is a parameter of filters, which check its range."""
    return option(parameter.default, parameter.help, parameter.metavar)


class NoiseOptions(SharesOptions, GuaranteeOptions):
    """What is added to gradients, and what may be done to them before: the same for a training and a loop."""

    microbatch: int | None = option(
        None,
        "Filter the mean gradient of groups of about M records; one record counts with twice the bound.",
        "M",
        shown="single records",
        section="Gradient filter",
    )
    class_weight: str | None = option(
        None,
        "Multiply filtered gradients by the weight of their class, divided by the largest; the bound stays the same.",
        "balanced|W,W,...",
        shown="equal weights",
    )
    compile: bool = option(False, "Compile the element-wise filter (tanh, sigmoid): slower to start, faster to run.")
    precision: str = option(
        "float32",
        "Precision of forward and backward passes; norms, sums, noise and the bound do not change.",
        choices=("float32", "bfloat16"),
        hidden=True,
    )
    physical_batch: int | None = option(
        None,
        "At most so many records in the network at once, whatever the batch size.",
        "N",
        within=COUNT,
        hidden=True,
    )
    epsilon: float | None = option(
        None,
        "Whole budget: noise is calibrated so that the certified epsilon fits.",
        "E",
        section="Budget and noise",
        within=EPSILON,
    )
    noise_multiplier: float | None = option(
        None,
        "Noise over sensitivity, instead of `epsilon`; with `head` least-squares, for all releases together.",
        "S",
        within=NOISE,
    )
    audit: int | None = option(
        None,
        "Add M made-up records that attack the training; dpltm audit reports the result.",
        "M",
        section="Audit",
    )


class TrainOptions(SeedOptions, MetricOptions, OptimizerOptions, NoiseOptions, PerUnitOptions, FeatureOptions):
    """A training of a ticket under differential privacy (DP-SGD on its live coordinates)."""

    filter: str = option(
        "clip",
        "Gradient filter; tanh clips before unless `no_pre_clip`, tanh-clip after.",
        choices=FILTERS,
        section="Gradient filter",
    )
    clip_norm: float = _of(CLIP_NORM)
    tanh_scale: float = _of(TANH_SCALE)
    tanh_range: float = _of(TANH_RANGE)
    no_pre_clip: bool = _of(NO_PRE_CLIP)
    epochs: float | None = option(
        None, "Expected passes over the records.", "N", shown="15", section="Steps and batches", within=POSITIVE
    )
    steps: int | None = option(None, "Noisy steps, instead of `epochs`.", "T", within=COUNT)
    batch_size: float | None = option(
        None,
        "Expected batch size; each record enters with probability N/records.",
        "N",
        shown="1600, at most records/4",
    )
    sampling: str | None = option(
        None,
        "How records enter steps: poisson, by a coin each; allocation, each in exactly K steps that are drawn beforehand"
        " (add-remove only).",
        "poisson|allocation:K",
        shown="poisson",
    )
    lr: float | None = option(
        None,
        "Step size.",
        "X",
        shown="by optimizer: sgd 1, momentum 0.1, adam 0.002, adagrad 0.05; for one layer behind features, by the noise",
        section="Optimizer",
        within=STEP_SIZE,
    )
    schedule: str | None = option(
        None,
        "Step size over the run: constant, or falling to zero.",
        choices=("constant", "linear", "cosine"),
        shown="constant; for one layer behind splines, unit or fourier: linear",
    )
    accountant: str = option(
        "pld",
        "Accountant of the certified figure and the budget; clt adds a nominal approximation, which no budget accepts.",
        choices=ACCOUNTANTS,
        section="Accounting and stopping",
    )
    budget_stop: bool = option(
        False, "With `noise_multiplier` and `epsilon`: end before the step that would exceed the budget."
    )
    eval_private: float | None = option(
        None,
        "Measure accuracy on the private records instead of the test split, for this epsilon.",
        "E",
        within=EPSILON,
    )
    by: str | None = option(None, BY_HELP, "COLUMN")
    centre: float | None = option(
        None,
        "Centre features at their noisy mean, for this part of the budget; 0 does not centre.",
        "F",
        section="Inputs and settings",
        shown="0.05 for one layer behind splines, unit or fourier, else 0",
        within=PART,
    )
    lineage: str | None = option(
        None,
        "What the settings were searched on, as dpltm tune writes it into a file of settings.",
        "JSON",
        hidden=True,
    )
    noise: str = option(
        "secure",
        "secure: cryptographic bits; fast: statistical bits; nominal: as much noise as the filter's paper adds; banded:"
        " noise correlated over BANDS steps, of which a record enters one.",
        "secure|fast|nominal|banded[:BANDS]",
        section="Computation",
    )
    device: str = option("cpu", "Where the network trains.", choices=("cpu", "cuda"))
    head: str | None = option(
        None,
        "dp-sgd, or least-squares: one layer behind features, in a few Newton steps, with nothing to tune.",
        choices=("dp-sgd", LEAST_SQUARES),
        shown="least-squares for one layer behind splines, unless an option of dp-sgd is set; else dp-sgd",
        section="Head",
    )


class StartOptions(Options):
    """Start: what is trained."""

    ticket: str | None = option(None, "Ticket set to train from.", "SET[@ROUND]", argument=True, section="Start")
    dense: bool = option(False, "Train the whole network: that of SET, or of `model`.")
    model: str | None = option(
        None,
        "Network for `dense` without SET; or the code of the network of SET.",
        f"{network_metavar()}|{CODE}",
        shown="mlp:300,100; behind features, and for a table, mlp, one layer",
    )


class TrainRequest(NetworkOptions, LedgerOptions, TrainOptions, StartOptions, DataOptions):
    """Phase 3: train a ticket under differential privacy (DP-SGD on its live coordinates).

    SET trains the winner of its last selection, SET@ROUND the ticket of that round, `dense` the whole network.
    `epsilon` is the whole budget. It includes what the ledger already holds for these records.

    Examples:
        # the winner of the last selection; the budget includes what the draw cost
        dpltm train digits.tickets --dataset digits --subset 0.5:1.0 --epsilon 3 --out digits.run
        # a table of people, by its schema (dpltm datasets schema), without tickets
        dpltm train --dense --dataset visits.csv --schema visits.toml --unit-column patient --test 0.2 --epsilon 1
        # images, through features that use no data
        dpltm train --dense --dataset mnist --features scatter --epsilon 1 --out mnist.run
        # what it would cost
        dpltm train digits.tickets@5 --dataset digits --subset 0.5:1.0 --epsilon 3 --dry-run
    """

    out: str | None = option(None, "Folder to write.", "DIR", shown="NAME.run", section="Output")
    dry_run: bool = option(False, "Check everything and print the noise, and the epsilon that it would spend.")
    fresh: bool = option(
        False, "Begin again instead of continuing an interrupted attempt; the ledger keeps what that spent."
    )
    resume: bool = option(False, "Only continue an interrupted attempt, and never start a new training.")


class LoopOptions(NoiseOptions, PerUnitOptions):
    """Settings of a loop, all of them public. `epsilon` is the whole budget, and includes what the ledger holds."""

    batch_size: float = option(
        None, "Expected records a step; each enters with probability `batch_size` / `records`.", required=True
    )
    steps: int = option(None, "Noisy gradients, at most.", required=True, within=COUNT)
    delta: float = option(None, "Delta of the guarantee; below 1/n.", required=True, within=DELTA)
    records: int | None = option(
        None, "Public number of records, or of persons, if the true number is private.", within=COUNT
    )
    save_every: int | None = option(
        None,
        "Steps that the ledger hands out at a time, so that the rest of the loop can continue from `state_dict`.",
        shown="all at once, and no state",
        within=COUNT,
    )
