"""A report as one page of HTML that needs no network: every text in it is escaped, every picture is inside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from dpltm.reports.fields import Field
from dpltm.tickets.pictures import Picture
from dpltm.tickets.svg import Chart


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        title: above it.
        head: names of the columns.
        rows: one text a column; the first names the row.
        stacked: whether a narrow screen shows the cells of a row below each other: for long texts.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    stacked: bool = False


@dataclass(frozen=True)
class Section:
    """A part of a page; what is empty is left out."""

    title: str
    words: Sequence[str] = ()
    fields: Sequence[Field] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing in it."""
        return not (self.words or self.fields or self.tables or self.charts or self.pictures or self.notes)


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        title: of the page.
        headline: the guarantee in a sentence.
        figures: the most important ones, in boxes.
        sections: in their order.
        statement: for programs, as ``model_card.for_page`` writes it.
        problems: what is missing or wrong.
        footer: the last words.
    """

    title: str
    headline: str
    figures: Sequence[Field]
    sections: Sequence[Section]
    statement: str
    problems: Sequence[str] = ()
    footer: str = field(
        default="Written by dpltm report. dpltm privacy check computes the figures of this page again from the events in it."
    )

    def html(self) -> str:
        """The page. Templates escape every value but charts and the statement, which are escaped where they are made."""
        source = files("dpltm.tickets").joinpath("report.html").read_text(encoding="utf-8")
        environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
        return environment.from_string(source).render(page=self) + "\n"
