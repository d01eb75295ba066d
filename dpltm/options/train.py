"""Phase 3: how a ticket is trained under differential privacy, and the settings of a training loop of the user's own."""

from __future__ import annotations

from dataclasses import dataclass

from dpltm.filters import FILTERS
from dpltm.filters.descriptor import CLIP_NORM, CLIP_QUANTILE, NO_PRE_CLIP, TANH_RANGE, TANH_SCALE
from dpltm.networks import network_metavar
from dpltm.options import METRICS, option
from dpltm.options.data import (
    BY_HELP,
    LEDGER_SHOWN,
    POPULATION_HELP,
    DataOptions,
    FeatureOptions,
    SharesOptions,
    UnitOptions,
)  # fmt: skip
from dpltm.options.network import CODE, NetworkOptions
from dpltm.privacy.accountants import ACCOUNTANTS
from dpltm.privacy.checks import PER_UNIT

LEAST_SQUARES = "least-squares"
"""The head that has nothing to tune."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(SharesOptions, UnitOptions, FeatureOptions):
    """A training of a ticket under differential privacy (DP-SGD on its live coordinates)."""

    filter: str = option(
        "clip",
        "Gradient filter; tanh clips before unless `no_pre_clip`, tanh-clip after.",
        choices=FILTERS,
        section="Gradient filter",
        affects="plan",
    )
    clip_norm: float = option(CLIP_NORM.default, CLIP_NORM.help, CLIP_NORM.metavar, affects="plan")
    clip_quantile: float = option(CLIP_QUANTILE.default, CLIP_QUANTILE.help, CLIP_QUANTILE.metavar, affects="plan")
    tanh_scale: float = option(TANH_SCALE.default, TANH_SCALE.help, TANH_SCALE.metavar, affects="plan")
    tanh_range: float = option(TANH_RANGE.default, TANH_RANGE.help, TANH_RANGE.metavar, affects="plan")
    no_pre_clip: bool = option(NO_PRE_CLIP.default, NO_PRE_CLIP.help, affects="plan")
    microbatch: int | None = option(
        None,
        "Filter the mean gradient of groups of about M records; one record counts with twice the bound.",
        "M",
        shown="single records",
        affects="plan",
    )
    class_weight: str | None = option(
        None,
        "Multiply the filtered gradient of a record by the weight of its class over the largest; the bound stays.",
        "balanced|W,W,...",
        shown="all alike",
        affects="plan",
    )
    epsilon: float | None = option(
        None,
        "Whole budget: noise is calibrated so that the certified epsilon fits.",
        "E",
        section="Budget and noise",
        affects="mechanism",
    )
    noise_multiplier: float | None = option(
        None,
        "Noise over sensitivity, instead of `epsilon`; of `head` least-squares, of all its releases together.",
        "S",
        affects="mechanism",
    )
    delta: float = option(1e-5, "Delta of the guarantee; below 1/n.", "D", affects="mechanism")
    epochs: float | None = option(
        None,
        "Expected passes over the records.",
        "N",
        shown="15",
        section="Steps and batches",
        affects="plan",
    )
    steps: int | None = option(None, "Noisy steps, instead of `epochs`.", "T", affects="plan")
    batch_size: float | None = option(
        None,
        "Expected batch size; each record enters with probability N/records.",
        "N",
        shown="1600, at most records/4",
        affects="plan",
    )
    sampling: str | None = option(
        None,
        "How records enter steps: by a coin each; of those at most B; or each in just K steps, drawn before the first"
        " (add-remove).",
        "poisson|truncated:B|allocation:K",
        shown="poisson",
        affects="plan",
    )
    lr: float | None = option(
        None,
        "Step size.",
        "X",
        shown="by optimizer: sgd 1, momentum 0.1, adam 0.002, adagrad 0.05; of one layer behind features, by the noise",
        section="Optimizer",
        affects="plan",
    )
    optimizer: str = option(
        "sgd",
        "Optimizer; all have the same guarantee.",
        choices=("sgd", "momentum", "adam", "adagrad"),
        affects="plan",
    )
    schedule: str | None = option(
        None,
        "Step size over the run: constant, or down to zero.",
        choices=("constant", "linear", "cosine"),
        shown="constant; of one layer behind features of a table, unit or fourier linear",
        affects="plan",
    )
    average: str = option(
        "none",
        "The run ends with the last weights, or with an exponential or polynomial average of all, at no cost.",
        choices=("none", "ema", "poly"),
        affects="plan",
    )
    accountant: str = option(
        "pld",
        "Accountant of the certified figure, and of the budget; clt adds its approximation as nominal, and satisfies none.",
        choices=ACCOUNTANTS,
        section="Accounting and stopping",
        affects="mechanism",
    )
    budget_stop: bool = option(
        False,
        "With `noise_multiplier` and `epsilon`: end before the step that would exceed the budget.",
        affects="plan",
    )
    eval_private: float | None = option(
        None,
        "Measure accuracy on the private records instead of the test split, for this epsilon.",
        "E",
        affects="mechanism",
    )
    metric: str = option(
        "accuracy",
        "What a run is judged by on the test split, or with `eval_private` on the records.",
        choices=METRICS,
        affects="display",
    )
    by: str | None = option(None, BY_HELP, "COLUMN", affects="display")
    centre: float | None = option(
        None,
        "Centre features at their noisy mean, for this part of the budget; 0 for not.",
        "F",
        section="Inputs and settings",
        shown="0.05 of one layer behind features of a table, unit or fourier, else 0",
        affects="plan",
    )
    lineage: str | None = option(
        None,
        "What the settings were searched on, as dpltm tune writes it into a file of settings.",
        "JSON",
        affects="mechanism",
    )
    adjacency: str = option(
        "add-remove",
        "Neighbouring relation.",
        choices=("add-remove", "replace-one"),
        section="What is protected",
        affects="mechanism",
    )
    noise: str = option(
        "secure",
        "secure: cryptographic bits; fast: statistical bits; nominal: as much noise as the filter's paper would add; banded:"
        " correlated over BANDS steps, of which a record enters one.",
        "secure|fast|nominal|banded[:BANDS]",
        section="Computation",
        affects="mechanism",
    )
    device: str = option("cpu", "Where the network trains.", choices=("cpu", "cuda"), affects="plan")
    precision: str = option(
        "float32",
        "Of the passes through the network; norms, sums and noise are as before, and so is the bound.",
        choices=("float32", "bfloat16"),
        affects="plan",
    )
    compile: bool = option(
        False, "Compile the element-wise filter (tanh, sigmoid): slower to start, faster to run.", affects="plan"
    )
    kernels: str = option(
        "auto",
        "How linear layers compute; auto takes sparse products where few weights live. The bound is the same.",
        choices=("auto", "float64", "dense", "sparse"),
        affects="plan",
    )
    physical_batch: int | None = option(
        None,
        "Most records in the network at once, whatever the batch size.",
        "N",
        shown="what takes 128 MiB",
        affects="plan",
    )
    seed: int = option(0, "Decides starting weights of `dense`; never the noise or the sampling.", "N", affects="plan")
    audit: int | None = option(
        None,
        "Made-up records that attack the training from within; dpltm audit says what they found.",
        "M",
        section="Audit",
        affects="plan",
    )
    head: str = option(
        "dp-sgd",
        "dp-sgd; or least-squares: one layer behind features, in a few Newton steps, with nothing to tune.",
        choices=("dp-sgd", LEAST_SQUARES),
        section="Head",
        affects="plan",
    )


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """Start: what is trained."""

    ticket: str | None = option(
        None, "Ticket set to train from.", "SET[@ROUND]", argument=True, section="Start", affects="plan"
    )
    dense: bool = option(False, "Train the whole network: that of SET, or of `model`.", affects="plan")
    model: str | None = option(
        None,
        "Network for `dense` without SET; or the code of that of SET.",
        f"{network_metavar()}|{CODE}",
        shown="mlp:300,100; behind features, and of a table, mlp, one layer",
        affects="plan",
    )


@dataclass(frozen=True, kw_only=True)
class TrainRequest(NetworkOptions, TrainOptions, StartOptions, DataOptions):
    """Phase 3: train a ticket under differential privacy (DP-SGD on its live coordinates).

    SET trains the winner of its last selection, SET@ROUND the ticket of that round, `dense` the whole network.
    `epsilon` is the whole budget: what the ledger already holds for these records is part of it.

    Examples:
        # the winner of the last selection; the budget includes what the draw cost
        dpltm train digits.tickets --dataset digits --subset 0.5:1.0 --epsilon 3 --out digits.run
        # a table of one's own, without tickets
        dpltm train --dense --dataset mine.csv --label y --bounds 0,1 --classes 2 --test held-out.csv --epsilon 1
        # images, through features that use no data
        dpltm train --dense --dataset mnist --features scatter --epsilon 1 --out mnist.run
        # what it would cost
        dpltm train digits.tickets@5 --dataset digits --subset 0.5:1.0 --epsilon 3 --dry-run
    """

    out: str | None = option(
        None, "Folder to write.", "DIR", shown="NAME.run", section="Output and ledger", affects="files"
    )
    ledger: str | None = option(None, "Ledger file.", "FILE", shown=LEDGER_SHOWN, affects="files")
    population: str | None = option(None, POPULATION_HELP, "NAME", affects="records")
    plot: str | None = option(
        None, "Draw accuracy and certified epsilon over the steps.", "FILE.png|.svg|.pdf", affects="files"
    )
    dry_run: bool = option(
        False, "Check everything and print the noise and the epsilon it would spend.", affects="files"
    )
    fresh: bool = option(
        False,
        "Begin again where an interrupted attempt would go on; what that spent stays in the ledger.",
        affects="files",
    )
    resume: bool = option(
        False,
        "Only go on from an interrupted attempt, as the same command does by itself where there is one.",
        affects="files",
    )


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """What a loop is to be, all of it public. The whole budget is `epsilon`: what the ledger holds is part of it."""

    batch_size: float | None = option(
        None, "Expected records a step; each enters with probability `batch_size` / `records`.", required=True
    )
    steps: int | None = option(None, "Noisy gradients, at most.", required=True)
    delta: float | None = option(None, "Delta of the guarantee; below 1/n.", required=True)
    noise_multiplier: float | None = option(None, "Noise over sensitivity, instead of `epsilon`.")
    epsilon: float | None = option(None, "Whole budget: noise is calibrated so that the certified epsilon fits.")
    records: int | None = option(None, "Public number of records, or of persons, where the true one is private.")
    adjacency: str = option("add-remove", "Neighbouring relation.", choices=("add-remove", "replace-one"))
    per_unit: int | None = option(
        None, "Most records of a person that count, where `units` says whose each is.", shown=str(PER_UNIT)
    )
    physical_batch: int | None = option(
        None, "Most records in the network at once, whatever the batch size.", shown="what takes 128 MiB"
    )
    microbatch: int | None = option(
        None, "Filter the mean gradient of groups of about so many records: a record moves it by twice the bound."
    )
    class_weight: str | None = option(
        None,
        "Multiply the filtered gradient of a record by the weight of its class over the largest; the bound stays.",
        shown="all alike",
    )
    class_shares: str | None = option(
        None, "Public shares of the classes, for `class_weight` balanced.", shown="not known"
    )
    compile: bool = option(False, "Compile the element-wise filter: slower to start, faster to run.")
    precision: str = option("float32", "Of the passes through the network.", choices=("float32", "bfloat16"))
    save_every: int | None = option(
        None,
        "Steps that the ledger hands out at a time, so that what is left of the loop can go on from `state_dict`.",
        shown="all at once, and no state",
    )
    audit: int | None = option(None, "Made-up records that attack the training; see docs/audits.md.")
