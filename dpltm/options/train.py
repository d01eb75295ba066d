"""Phase 3: how a ticket is trained under differential privacy, and the settings of a training loop of the user's own."""

from __future__ import annotations

from typing import Any

from dpltm.filters import FILTERS
from dpltm.filters.descriptor import CLIP_NORM, NO_PRE_CLIP, TANH_RANGE, TANH_SCALE
from dpltm.networks import network_metavar
from dpltm.options import COUNT, DELTA, EPSILON, NOISE, PART, POSITIVE, STEP_SIZE, Options, data, option
from dpltm.options.network import CODE, NetworkOptions
from dpltm.privacy.accountants import ACCOUNTANTS
from dpltm.registry import Parameter

LEAST_SQUARES = "least-squares"  # the head that has nothing to tune

STEP_SIZES = "sgd 1, momentum 0.1, adam 0.002, adagrad 0.05; for one layer behind features, by the noise"
BEHIND = "for one layer behind splines, unit or fourier"
CENTRE_HELP = "Part of the budget for centring features at their noisy mean."
NOISE_HELP = "Cryptographic or statistical bits; as much as the filter's paper adds; or correlated over BANDS steps."
HEAD = "least-squares for one layer behind splines, unless an option of dp-sgd is set; else dp-sgd"
HEAD_HELP = "least-squares: one layer behind features, with nothing to tune."
NETWORK_HELP = "Network without SET, or code of the network of SET."


def _of(parameter: Parameter) -> Any:
    """Return the option that is a parameter of filters, which check its range."""
    return option(parameter.default, parameter.help, parameter.metavar)


class NoiseOptions(data.SharesOptions, data.GuaranteeOptions):
    """What is added to gradients, and what may be done to them before: the same for a training and a loop."""

    microbatch: int | None = option(
        None, "Filter means of M records, at twice the bound.", "M", shown="1", section="Gradient filter"
    )
    class_weight: str | None = option(
        None, "Weights of the classes, at most 1 after scaling.", "balanced|W,W,...", shown="equal weights"
    )
    compile: bool = option(False, "Compile element-wise filters: slower to start, faster to run.")
    precision: str = option("float32", "Precision of passes.", choices=("float32", "bfloat16"), hidden=True)
    physical_batch: int | None = option(None, "Most records in the network.", "N", within=COUNT, hidden=True)
    epsilon: float | None = option(
        None, "Whole budget, which noise is made to fit.", "E", section="Budget and noise", within=EPSILON
    )
    noise_multiplier: float | None = option(None, "Noise over sensitivity, instead of `epsilon`.", "S", within=NOISE)
    audit: int | None = option(None, "Add M canaries; dpltm audit reports the result.", "M", section="Audit")


class TrainOptions(
    data.SeedOptions, data.MetricOptions, data.OptimizerOptions, NoiseOptions, data.PerUnitOptions, data.FeatureOptions
):
    """A training of a ticket under differential privacy (DP-SGD on its live coordinates)."""

    filter: str = option("clip", "Gradient filter.", choices=FILTERS, section="Gradient filter")
    clip_norm: float = _of(CLIP_NORM)
    tanh_scale: float = _of(TANH_SCALE)
    tanh_range: float = _of(TANH_RANGE)
    no_pre_clip: bool = _of(NO_PRE_CLIP)
    epochs: float | None = option(None, "Passes over the records.", "N", shown="15", section="Steps", within=POSITIVE)
    steps: int | None = option(None, "Noisy steps, instead of `epochs`.", "T", within=COUNT)
    batch_size: float | None = option(None, "Expected batch size.", "N", shown="1600, at most records/4")
    sampling: str | None = option(None, "Each by a coin, or each in K steps.", "poisson|allocation:K", shown="poisson")
    lr: float | None = option(None, "Step size.", "X", shown=STEP_SIZES, section="Optimizer", within=STEP_SIZE)
    schedule: str | None = option(
        None, "Step size over the run.", choices=("constant", "linear", "cosine"), shown=f"constant; {BEHIND}: linear"
    )
    accountant: str = option("pld", "Accountant of figure and budget.", choices=ACCOUNTANTS, section="Accounting")
    budget_stop: bool = option(False, "Given noise and budget, end before the step that would exceed it.")
    eval_private: float | None = option(None, "Epsilon of an accuracy on private records.", "E", within=EPSILON)
    by: str | None = option(None, data.BY_HELP, "COLUMN")
    centre: float | None = option(None, CENTRE_HELP, "F", section="Inputs", shown=f"0; {BEHIND}: 0.05", within=PART)
    lineage: str | None = option(None, "What settings were searched on, as dpltm tune writes it.", "JSON", hidden=True)
    noise: str = option("secure", NOISE_HELP, "secure|fast|nominal|banded[:BANDS]", section="Computation")
    device: str = option("cpu", "Where the network trains.", choices=("cpu", "cuda"))
    head: str | None = option(None, HEAD_HELP, choices=("dp-sgd", LEAST_SQUARES), shown=HEAD, section="Head")


class StartOptions(Options):
    """Start: what is trained."""

    ticket: str | None = option(None, "Ticket set to train from.", "SET[@ROUND]", argument=True, section="Start")
    dense: bool = option(False, "Train the whole network: that of SET, or of `model`.")
    model: str | None = option(
        None, NETWORK_HELP, f"{network_metavar()}|{CODE}", shown="mlp:300,100; behind features and of a table mlp"
    )


class TrainRequest(NetworkOptions, data.LedgerOptions, TrainOptions, StartOptions, data.DataOptions):
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
    dry_run: bool = option(False, data.DRY_RUN_HELP)
    fresh: bool = option(False, data.FRESH_HELP)
    resume: bool = option(False, "Only continue an interrupted attempt.")


class LoopOptions(NoiseOptions, data.PerUnitOptions):
    """Settings of a loop, all of them public. `epsilon` is the whole budget, and includes what the ledger holds."""

    batch_size: float = option(None, "Expected records a step.")
    steps: int = option(None, "Noisy gradients, at most.", within=COUNT)
    delta: float = option(None, "Delta of the guarantee; below 1/n.", within=DELTA)
    records: int | None = option(None, "Public number of records or persons.", within=COUNT)
    save_every: int | None = option(None, "Steps handed out at a time, to go on from `state_dict`.", within=COUNT)
