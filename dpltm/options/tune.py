"""Options of a search for the settings of a private training, on public records."""

from __future__ import annotations

from dpltm.networks import network_metavar
from dpltm.options import COUNT, EPSILON, data, option
from dpltm.options.network import CODE, NetworkOptions
from dpltm.options.train import NETWORK_HELP
from dpltm.privacy.accountants import CERTIFIED


class TuneOptions(data.SeedOptions, data.MetricOptions, data.OptimizerOptions, data.DeltaOptions, data.FeatureOptions):
    """A search for the settings of a private training, under the same budget and noise."""

    rounds: str | None = option(None, "Rounds of SET to try.", "R,R,...", shown="all but 0", section="Network")
    for_records: int = option(None, "Public number of private records.", "N", section="Private training", within=COUNT)
    epsilon: float = option(None, "Budget of the private training.", "E", within=EPSILON)
    lr: str = option("0.5,1,2,4", "Step sizes to try.", "X,X,...", section="Settings to try")
    clip_norm: str = option("1", "Clip norms to try.", "C,C,...")
    epochs: str = option("15", "Passes over the private records to try.", "N,N,...")
    batch_size: str | None = option(None, "Expected batch sizes to try.", "N,N,...", shown="1600, at most records/4")
    schedule: str = option("constant", "Over the run.", choices=("constant", "linear", "cosine"), section="Optimizer")
    accountant: str = option("pld", "Accountant that noise is calibrated by.", choices=CERTIFIED, section="Search")
    trials: int | None = option(None, "Combinations to try, drawn at random.", "N", shown="all", within=COUNT)
    repeats: int = option(1, "Trainings of each; their mean decides.", "N", within=COUNT)


class TuneRequest(NetworkOptions, data.LedgerOptions, TuneOptions, data.DataOptions):
    """Searches the settings of a private training on public records, at no cost.

    Every combination of the lists below, or `trials` of them drawn at random, is trained on `dataset`, which is thereby
    declared public, with the noise that the private run of `for_records` records will have. No private record is read, so
    the search costs nothing. The best is written as a configuration file for dpltm train `config`.

    Examples:
        # search on public records, then train with the best
        dpltm tune --dataset kmnist --features scatter --for-records 60000 --epsilon 1 --out best.toml
        dpltm train --dataset mnist --config best.toml --epsilon 1
    """

    set: str | None = option(None, "Ticket set to tune for; without it, the whole network.", "SET", argument=True)
    model: str | None = option(None, NETWORK_HELP, f"{network_metavar()}|{CODE}", shown="train's", section="Network")
    out: str | None = option(None, "Configuration file to write.", "FILE.toml", section="Output")
