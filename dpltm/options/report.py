"""What a report or a comparison is of, and where it goes."""

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
        # a model card
        dpltm report digits.run --card -o README.md
    """

    target: str | None = option(
        None, "Folder of a run, a ticket set or a sweep.", metavar="RUN|SET|SWEEP", argument=True, required=True
    )
    out: str | None = option(
        None, "File to write.", short="-o", metavar="FILE.html|.md", shown="NAME.html, or NAME.card.md with `card`"
    )
    card: bool = option(False, "Write a model card (Markdown) instead of a page.")
    plot: str | None = option(None, "Draw the curves of the report as well.", metavar="FILE.png|.svg|.pdf")


@dataclass(frozen=True)
class CompareRequest:
    """Runs in one table: accuracy with its interval, both epsilons, density, parameters.

    A folder of a sweep stands for all of its runs. Runs are compared if they were trained on the same records and measured
    on as many test records; others are shown, with the reason.

    Examples:
        dpltm compare one.run two.run --md table.md --plot runs.svg
    """

    runs: tuple[str, ...] | None = option(
        None, "Folders of runs or sweeps.", metavar="RUN", argument=True, required=True
    )
    csv: str | None = option(None, "Write the table as CSV.", metavar="FILE.csv")
    md: str | None = option(None, "Write the table as Markdown.", metavar="FILE.md")
    plot: str | None = option(None, "Draw accuracy against epsilon.", metavar="FILE.png|.svg|.pdf")
