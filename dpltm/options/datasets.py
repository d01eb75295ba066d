"""What is asked of the data at hand."""

from __future__ import annotations

from dataclasses import dataclass

from dpltm.options import option
from dpltm.options.data import DataOptions


@dataclass(frozen=True, kw_only=True)
class ListRequest:
    """The datasets known by name, and whether their file is at hand.

    Examples:
        dpltm datasets ls
    """


@dataclass(frozen=True, kw_only=True)
class InfoRequest(DataOptions):
    """The public facts about a dataset, checked by loading it. Nothing is computed from its private values.

    Examples:
        dpltm datasets info digits
        dpltm datasets info mine.csv --label y --bounds 0,1
    """

    dataset: str | None = option(None, "Name or path.", metavar="NAME|FILE", argument=True, required=True)


@dataclass(frozen=True, kw_only=True)
class SchemaRequest:
    """Draft the public schema of a table, to be filled in.

    From names and types of the columns alone: bounds and categories are public inputs, so they may not be read off private
    records. What `from_public` reads off the values is for records that are declared public, whole.

    Examples:
        # names and types alone: fill in bounds and categories
        dpltm datasets schema mine.csv --label y --out mine.toml
        # of public records, filled in
        dpltm datasets schema public.csv --label y --from-public --out mine.toml
    """

    file: str | None = option(None, "A .csv, .parquet or .arrow file.", metavar="FILE", argument=True, required=True)
    label: str | None = option(None, "Column of labels.", metavar="COLUMN")
    no_header: bool = option(False, "The file has no names in its first line; columns are called c1, c2 and so on.")
    from_public: bool = option(False, "The records are declared public: read kinds, bounds and categories off them.")
    out: str | None = option(None, "File to write, in place of the terminal.", metavar="FILE.toml")
