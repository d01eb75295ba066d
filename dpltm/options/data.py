"""Options that many verbs take: which records, whose they are, which ledger pays, what is promised, and the feature map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpltm.features import metavar
from dpltm.options import DELTA, METRICS, SEED, TARGET_METRICS, Options, Range, option
from dpltm.privacy.checks import PER_UNIT

BY_HELP = "Report subgroups of the test split as well, by values of a column or quarters of its numbers."
UNIT_COLUMN_HELP = "Column with the person of each record: all of one person's are protected."
DATASET_HELP = "Name (see dpltm datasets ls), or file (.npz, .csv, .parquet or .arrow)."
FEATURES_HELP = "Features in front of the network, at no cost; several joined by +."
DRY_RUN_HELP = "Check everything and print what would be done and spent."
ALL_METRICS = (*METRICS, *TARGET_METRICS)
YES_HELP = "Export what was made from private records, although it may reveal them."
FRESH_HELP = "Begin again after an interrupted attempt; the ledger keeps what that spent."


class DataOptions(Options):
    """Records: which ones, and the public facts about them."""

    dataset: str | None = option(None, DATASET_HELP, "NAME|FILE", section="Records")
    subset: str | None = option(None, "Part: by a hash of each record (0.5, 0.5:1.0) or places (0:9).", "FRACTION|A:B")
    label: str | None = option(None, "Label column of a table.", "COLUMN")
    schema: str | None = option(None, "Public schema of a table (see dpltm datasets schema).", "FILE.toml")
    bounds: str | None = option(None, "Public bounds of every feature; values outside saturate.", "LO,HI")
    classes: int | None = option(None, "Public number of classes.", "K")
    target_bounds: str | None = option(None, "Label is a number to predict, with this public range.", "LO,HI")
    records: int | None = option(None, "Public number of records, or of persons where they are protected.", "N")
    test: str | None = option(None, "Test records: a file, or a part by a hash of each.", "FILE|FRACTION")
    rows_coincide: bool = option(False, "Allow identical rows in training and test.")
    words: int | None = option(
        None, "Public number of words, whose places features are; a text has 256 at most.", "N", shown="10000 of texts"
    )
    unit_column: str | None = option(None, UNIT_COLUMN_HELP, "NAME", section="What is protected")


class PerUnitOptions(Options):
    """How many records of a person count, where persons are protected."""

    per_unit: int | None = option(
        None, "Records of each person that count, at most.", "K", shown=str(PER_UNIT), section="What is protected"
    )


class SharesOptions(Options):
    """Shares of the classes, where those are public."""

    class_shares: str | None = option(None, "Public shares.", "P,P,...", shown="the schema's", section="Classes")


class LedgerOptions(Options):
    """Account: which ledger pays, and whose it is."""

    ledger: str | None = option(
        None, "Ledger file that pays.", "FILE", shown="beside the file, or NAME.ledger.jsonl", section="Account"
    )
    population: str | None = option(None, "Population of the ledger; a name alone separates nothing.", "NAME")


class UnprotectedOptions(Options):
    """Consent to the end of a guarantee."""

    unprotected: bool = option(False, "Allow a release that ends all guarantees of the ledger.", section="Account")


class DeltaOptions(Options):
    """Delta of what is promised."""

    delta: float = option(1e-5, "Delta of the guarantee; below 1/n.", "D", section="Guarantee", within=DELTA)


class GuaranteeOptions(DeltaOptions):
    """What is promised, and against which neighbours."""

    adjacency: str = option("add-remove", "Neighbours.", choices=("add-remove", "replace-one"), section="Guarantee")


class FeatureOptions(Options):
    """Features: all that stands in front of the network."""

    features: str | None = option(
        None, FEATURES_HELP, metavar(), shown="those of SET; else none, or splines for a table", section="Features"
    )


class MetricOptions(Options):
    """How networks are judged."""

    metric: str | None = option(
        None, "Figure that judges.", choices=ALL_METRICS, shown="accuracy, or r2 of a number", section="Metric"
    )

    @property
    def judged_by(self) -> str:
        """The metric of networks that tell classes."""
        return self.metric or METRICS[0]


class OptimizerOptions(Options):
    """What noisy gradients do to weights; all of it has the same guarantee."""

    optimizer: str = option("sgd", "Optimizer.", choices=("sgd", "momentum", "adam", "adagrad"), section="Optimizer")
    average: str = option("none", "Average of all weights, at no cost.", choices=("none", "ema", "poly"))


class FolderOptions(Options):
    """A folder that is written."""

    out: str = option(None, "Folder to write.", "DIR", section="Output")


class SeedOptions(Options):
    """What may be drawn again."""

    seed: int = option(
        0, "Of weights and batches, never of noise or sampling.", "N", within=SEED, section="Computation"
    )


class RoundOptions(SeedOptions):
    """How training without noise computes."""

    threads: int | None = option(None, "CPU threads.", "N", shown="torch's choice", within=Range(1, 1024))


def data_options(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a section that say which records."""
    return {key: value for key, value in section.items() if key.replace("-", "_") in DataOptions.__dataclass_fields__}
