"""Options that many verbs take: which records, whose they are, which ledger pays, and the feature map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpltm.features import metavar
from dpltm.options import option
from dpltm.privacy.checks import PER_UNIT

LEDGER_SHOWN = "dpltm.ledger.jsonl beside a file, NAME.ledger.jsonl of a dataset by name"
UNPROTECTED_HELP = (
    "Release without protection from an account that holds releases with it, and no guarantee from then on."
)
POPULATION_HELP = "Whose account the ledger is; refused where it is another's. A name alone separates nothing."
BY_HELP = (
    "Tell skill of subgroups of the test split as well, by the values of a column, or by quarters of its numbers."
)
UNIT_COLUMN_HELP = (
    "Column, or array NAME_train of an archive, with the person of each record: all of one person's are protected."
)


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Records: which ones, and the public facts about them."""

    dataset: str | None = option(
        None,
        "Name (see dpltm datasets ls) or path of a .npz, .csv, .parquet, .arrow or .dat file, or a folder of .npy.",
        "NAME|FILE",
        section="Records",
        affects="records",
    )
    subset: str | None = option(
        None,
        "Part of the training records: 0.5 or 0.5:1.0 by a public hash of each, or 0:5000 by places of a known dataset.",
        "FRACTION|A:B",
        affects="records",
    )
    label: str | None = option(None, "Label column of a table.", "COLUMN", affects="records")
    schema: str | None = option(
        None,
        "Public schema of a table with words, dates or holes, as dpltm datasets schema drafts it.",
        "FILE.toml",
        affects="records",
    )
    bounds: str | None = option(
        None, "Public bounds of every feature; values outside saturate.", "LO,HI", affects="records"
    )
    classes: int | None = option(None, "Public number of classes.", "K", affects="records")
    records: int | None = option(
        None,
        "Public number of records, or of persons where those are protected; rates and scores are computed from it.",
        "N",
        affects="records",
    )
    test: str | None = option(
        None,
        "Where the dataset has no test split: a file with one, or a part of the records, held out by a public hash: 0.2.",
        "FILE|FRACTION",
        affects="records",
    )
    rows_coincide: bool = option(
        False,
        "Records of different people may well be equal, so a test record that is a training record too is no fault.",
        affects="records",
    )
    words: int | None = option(
        None,
        "Public size of the table of words; of a file of features, says that they are positions in it.",
        "N",
        shown="10000 for texts",
        affects="records",
    )
    length: int | None = option(
        None, "How many words of a text are kept, the last ones.", "N", shown="256", affects="records"
    )
    users: int | None = option(
        None, "Public number of users, their largest id, of a .dat file of ratings.", "N", affects="records"
    )
    items: int | None = option(None, "Public number of items, their largest id.", "N", affects="records")
    unit_column: str | None = option(None, UNIT_COLUMN_HELP, "NAME", section="What is protected", affects="records")


@dataclass(frozen=True, kw_only=True)
class PerUnitOptions:
    """How many records of a person count, where persons are protected."""

    per_unit: int | None = option(
        None,
        "Most records of a person, or ratings of a user, that count where that is the unit; the rest is left out.",
        "K",
        shown=str(PER_UNIT),
        section="What is protected",
        affects="records",
    )


@dataclass(frozen=True, kw_only=True)
class UnitOptions(PerUnitOptions):
    """What is protected, of ratings as well."""

    unit: str = option(
        "record",
        "What is protected: one record, or of ratings all that one user gave.",
        choices=("record", "user"),
        section="What is protected",
        affects="records",
    )


@dataclass(frozen=True, kw_only=True)
class SharesOptions:
    """Shares of the classes, where those are public."""

    class_shares: str | None = option(
        None,
        "Public shares of the classes, for `class_weight` balanced, and for `metric` balanced-accuracy on private records.",
        "P,P,...",
        shown="those of the schema",
        section="Classes",
        affects="records",
    )


@dataclass(frozen=True, kw_only=True)
class LedgerOptions:
    """Account: which ledger pays, and whose it is."""

    ledger: str | None = option(None, "Ledger file that pays.", "FILE", shown=LEDGER_SHOWN, section="Account")
    population: str | None = option(None, POPULATION_HELP, "NAME")


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """Features: all that stands in front of the network."""

    features: str | None = option(
        None,
        "In front of the network, at no cost: drawings, photographs, scatter or conv for images, wavelets for signals, unit"
        " (K neighbours averaged) or fourier (random features of a Gaussian kernel) for any records; several joined by +.",
        metavar(),
        shown="none; of a table that train gets without a network fourier; a ticket set remembers its own",
        section="Features",
        affects="records",
    )


def data_options(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a section that say which records."""
    return {key: value for key, value in section.items() if key.replace("-", "_") in DataOptions.__dataclass_fields__}
