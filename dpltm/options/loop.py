"""Options of a training loop of the user's own."""

from __future__ import annotations

from dataclasses import dataclass

from dpltm.options import option
from dpltm.options.train import KERNELS


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
    records: int | None = option(None, "Public number of records, where that of `x` is private.")
    adjacency: str = option("add-remove", "Neighbouring relation.", choices=("add-remove", "replace-one"))
    physical_batch: int | None = option(
        None, "Most records in the network at once, whatever the batch size.", shown="what takes 128 MiB"
    )
    microbatch: int | None = option(
        None, "Filter the mean gradient of groups of about so many records: a record moves it by twice the bound."
    )
    compile: bool = option(False, "Compile the element-wise filter: slower to start, faster to run.")
    kernels: str = option(
        "auto",
        "How linear layers compute; auto times the ways.",
        choices=KERNELS,
    )
    precision: str = option("float32", "Of the passes through the network.", choices=("float32", "bfloat16"))
    audit: int | None = option(None, "Made-up records that attack the training; see docs/audits.md.")
