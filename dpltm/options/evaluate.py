"""What is evaluated, and on which records."""

from __future__ import annotations

from dataclasses import dataclass

from dpltm.options import option
from dpltm.options.data import LEDGER_SHOWN, POPULATION_HELP, DataOptions, PersonOptions


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
