"""Options of reports and comparisons."""

from __future__ import annotations

from dataclasses import dataclass

from dpltm.options import option
from dpltm.options.data import LEDGER_SHOWN, POPULATION_HELP

BASELINES = ("dense", "random", "non-private")
"""Kinds of runs to compare with: the whole network, a random mask, and the whole network without noise."""


@dataclass(frozen=True)
class ReportRequest:
    """One page about a run, a ticket set or a sweep: what was done, what that guarantees, and what it means.

    The page is a single file of HTML that needs no network. With `card` it is a model card in Markdown instead, which dpltm
    privacy check computes again. Of a run that is unfinished or damaged there is a page, which says what is missing, and no
    card. The exit code is 1 if something is damaged, and 0 if it only has not ended.

    Examples:
        dpltm report digits.run -o report.html
        # with what whoever decides asks about
        dpltm report digits.run -o report.html --purpose "reads digits" --contact "Ann, data office"
        # a model card
        dpltm report digits.run --card -o README.md
    """

    target: str | None = option(
        None, "Folder of a run, a ticket set or a sweep.", "RUN|SET|SWEEP", argument=True, required=True
    )
    out: str | None = option(
        None, "File to write.", "FILE.html|.md", short="-o", shown="NAME.html, or NAME.card.md with `card`"
    )
    card: bool = option(False, "Write a model card (Markdown) instead of a page.")
    purpose: str | None = option(None, "What the model is for, as the page states it.", "TEXT")
    contact: str | None = option(None, "Whom to ask about it, as the page states it.", "TEXT")
    ledger: str | None = option(
        None,
        "Ledger that paid for the run: the page says what all on the same people comes to.",
        "FILE",
        shown="the dataset's, here or beside RUN",
    )
    plot: str | None = option(None, "Draw the curves of the report as well.", "FILE.png|.svg|.pdf")


@dataclass(frozen=True)
class BaselineOptions:
    """Runs to compare with, trained if they are missing."""

    baselines: bool = option(
        False,
        "Train what is missing to compare with: the whole network and a random mask, with the settings of RUN.",
        section="Baselines",
    )
    kinds: str | None = option(
        None,
        "Which: some of dense, random and non-private. The last has no noise: certified epsilon inf.",
        "KIND,...",
        shown="dense,random",
    )
    out: str | None = option(
        None, "Folder of their sweep; what is finished there is not trained again.", "DIR", shown="baselines.sweep"
    )
    ledger: str | None = option(None, "Ledger file that pays for them.", "FILE", shown=LEDGER_SHOWN)
    population: str | None = option(None, POPULATION_HELP, "NAME")
    jobs: int | None = option(None, "Processes.", "N", shown="one a processor")
    dry_run: bool = option(False, "Check everything, and print what training them would cost together.")


@dataclass(frozen=True)
class CompareRequest(BaselineOptions):
    """Runs in one table: accuracy with its interval, both epsilons, density, parameters.

    A folder of a sweep stands for all of its runs. Runs are compared if they were trained on the same records and measured
    on as many test records; others are shown, with the reason.

    With `baselines` the runs that are missing are trained first, as a sweep: the whole network and a random mask, each with
    the settings of RUN, and the epsilon of RUN for itself alone. That spends privacy on the same records: the ledger has all
    of them, and what it comes to is said before; a budget that does not allow it refuses all. Files that RUN names are
    looked for in this folder.

    The exit code is 1 if a run is damaged, if a baseline could not be trained, or if a budget does not allow them; and 2 if
    there is nothing to compare.

    Examples:
        dpltm compare one.run two.run --md table.md --plot runs.svg
        # what a dense network and a random mask would cost, and then both
        dpltm compare one.run --baselines --dry-run
        dpltm compare one.run --baselines --out one-baselines
        # and the dense network without noise, for which nothing is certified
        dpltm compare one.run --baselines --kinds dense,random,non-private --out one-baselines
    """

    runs: tuple[str, ...] | None = option(None, "Folders of runs or sweeps.", "RUN", argument=True, required=True)
    csv: str | None = option(None, "Write the table as CSV.", "FILE.csv")
    md: str | None = option(None, "Write the table as Markdown.", "FILE.md")
    plot: str | None = option(None, "Draw accuracy against epsilon.", "FILE.png|.svg|.pdf")
