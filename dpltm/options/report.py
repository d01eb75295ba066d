"""Options of reports and comparisons."""

from __future__ import annotations

from dataclasses import dataclass

from dpltm.options import option


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
class CompareRequest:
    """Runs in one table: accuracy with its interval, both epsilons, density, parameters.

    A folder of a sweep stands for all of its runs. Runs are compared if they were trained on the same records and measured
    on as many test records; others are shown, with the reason.

    The exit code is 1 if a run is damaged, and 2 if there is nothing to compare.

    Examples:
        dpltm compare one.run two.run --md table.md --plot runs.svg
    """

    runs: tuple[str, ...] | None = option(None, "Folders of runs or sweeps.", "RUN", argument=True, required=True)
    csv: str | None = option(None, "Write the table as CSV.", "FILE.csv")
    md: str | None = option(None, "Write the table as Markdown.", "FILE.md")
    plot: str | None = option(None, "Draw accuracy against epsilon.", "FILE.png|.svg|.pdf")
