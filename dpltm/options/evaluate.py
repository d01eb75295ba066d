"""What is asked of a run that is there: accuracy, predictions, an attack."""

from __future__ import annotations

from dataclasses import dataclass

from dpltm.options import option
from dpltm.options.data import (
    LEDGER_SHOWN,
    POPULATION_HELP,
    UNPROTECTED_HELP,
    DataOptions,
    LedgerOptions,
    PersonOptions,
)


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(PersonOptions, DataOptions):
    """Accuracy of a run's model on the test split of a dataset.

    The test split is declared separate from the private records: nothing is spent, and nothing is promised for it. Columns
    and bounds of a table are those that the training was told, unless others are named.

    Examples:
        dpltm evaluate digits.run --dataset digits
        # a table: the run remembers its columns and bounds
        dpltm evaluate mine.run --dataset mine.csv --test held-out.csv
    """

    run: str | None = option(None, "Folder of the run.", metavar="RUN", argument=True, required=True)
    ledger: str | None = option(None, "Ledger file.", metavar="FILE", shown=LEDGER_SHOWN)
    population: str | None = option(None, POPULATION_HELP, metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """Class and class probabilities that a run's model gives to records without labels.

    For other records than those that it was trained on, predictions are post-processing of the run and cost nothing. What is
    written depends on the records of `input`, and is as sensitive as they are.

    Examples:
        dpltm predict digits.run --input new.npz -o predicted.csv
        # a table that has its labels still
        dpltm predict mine.run --input new.csv --label y -o predicted.csv
    """

    run: str | None = option(None, "Folder of the run.", metavar="RUN", argument=True, required=True)
    input: str | None = option(
        None,
        "Records as in training: a .npz with x (or x_test), or a table of its features, in its order.",
        metavar="FILE",
        required=True,
    )
    label: str | None = option(None, "Column of a table that is no feature.", metavar="COLUMN")
    out: str | None = option(
        None,
        "File to write: a .csv of label,p0,p1,... (with a schema: of its classes) or a .npz with label and probabilities.",
        short="-o",
        metavar="FILE",
        required=True,
    )


@dataclass(frozen=True, kw_only=True)
class AuditRequest(LedgerOptions, DataOptions):
    """Attack a claim: lower bounds on epsilon, beside what is certified and what is claimed.

    RUN is a training with `audit`, whose made-up records are looked for in what it released. SET is a set of tickets of
    provenance private: they are made anew from `dataset` and made-up records, which their masks tell apart. SCHEME is one of
    local privacy: two records that differ as much as any are sent many times, and told apart by what arrives.

    A bound above the certified epsilon tells of a bug, and the exit code is 1; claims that fall are listed as violated.

    Examples:
        # train with made-up records, then look for them
        dpltm train --dense --dataset digits --epsilon 3 --audit 200 --out audited.run
        dpltm audit audited.run
        # claims of papers, on the embedded digits
        dpltm audit demo --plot claims.png
    """

    target: str | None = option(
        None,
        "Folder of a run, a ticket set or a scheme; or demo, for claims on the embedded digits.",
        metavar="RUN|SET|SCHEME|demo",
        argument=True,
        required=True,
    )
    confidence: float = option(0.95, "That all bounds hold with, together.", metavar="P")
    messages: int = option(2000, "Messages of either record, of a scheme.", metavar="N")
    plot: str | None = option(None, "Draw claims and bound (.png, .svg or .pdf).", metavar="FILE")
    delta: float | None = option(None, "Delta of every epsilon.", metavar="D", shown="that of the run")
    unprotected: bool = option(False, UNPROTECTED_HELP)
