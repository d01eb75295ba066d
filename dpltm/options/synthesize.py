"""Synthetic records: how many, and what they may spend."""

from __future__ import annotations

from dataclasses import dataclass

from dpltm.networks import network_metavar
from dpltm.options import option
from dpltm.options.data import DataOptions, LedgerOptions


@dataclass(frozen=True, kw_only=True)
class SynthesizeOptions:
    """Synthetic records: how many, and what they may spend."""

    epsilon: float | None = option(
        None, "Budget: the certified epsilon of everything in the ledger afterwards.", "E", section="Synthetic records"
    )
    delta: float = option(1e-5, "Delta of the guarantee; below 1/n.", "D")
    adjacency: str = option("add-remove", "Neighbouring relation.", choices=("add-remove", "replace-one"))
    records_out: int = option(20_000, "How many synthetic records; public, and free to choose.", "N")
    model: str = option(
        "mlp:300,100", "Network that is trained on them and scored on the test split.", network_metavar()
    )
    seed: int = option(0, "Decides what is made of the noisy answer; never the noise.", "N")


@dataclass(frozen=True, kw_only=True)
class SynthesizeRequest(SynthesizeOptions, LedgerOptions, DataOptions):
    """Synthetic records under differential privacy, as a dataset that every command reads.

    One Gaussian query asks `dataset` for class counts, class sums and second moments of norm-bounded records; the synthetic
    ones are drawn from the noisy answer. The file says what it comes from, and whoever trains on it is told. If `dataset`
    has a test split, a network trained on the synthetic records is scored on it.

    Examples:
        dpltm synthesize --dataset digits --epsilon 1 --delta 1e-4 --out made.npz
        # what it would cost, and nothing else
        dpltm synthesize --dataset mnist --epsilon 0.2 --dry-run
    """

    out: str | None = option(None, "File to write.", "FILE.npz", shown="NAME-synthetic.npz")
    dry_run: bool = option(False, "Check everything and print what would be done.")
