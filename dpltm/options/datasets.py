"""Options of commands about datasets."""

from __future__ import annotations

from dataclasses import dataclass

from dpltm.options import option
from dpltm.options.data import DataOptions, LedgerOptions, PersonOptions


@dataclass(frozen=True, kw_only=True)
class LsRequest:
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

    dataset: str | None = option(None, "Name or path.", "NAME|FILE", argument=True, required=True)


@dataclass(frozen=True, kw_only=True)
class FindOptions:
    """Private parts of a draft: what finding them may spend, and against which neighbours."""

    epsilon: float | None = option(
        None,
        "With `private`: the certified epsilon of the ledger afterwards, such as 0.2.",
        "E",
        section="Private parts of a draft",
    )
    delta: float = option(1e-5, "Delta of the guarantee; a hundredth of it is for names of categories.", "D")
    adjacency: str = option("add-remove", "Neighbouring relation.", choices=("add-remove", "replace-one"))


@dataclass(frozen=True, kw_only=True)
class SchemaRequest(FindOptions, LedgerOptions, PersonOptions):
    """Draft the public schema of a table, or find under DP what is private in a draft.

    A draft comes from names and types of the columns alone: bounds and categories are public inputs, so they may not be read
    off private records. What `from_public` reads off the values is for records that are declared public, whole.

    Where nobody knows them, write bounds = "private" or values = "private" in the draft. `private` then finds them by noisy
    histograms for `epsilon`, and writes a finished schema. Whatever uses that schema carries the release.

    Examples:
        # names and types alone: fill in bounds and categories
        dpltm datasets schema mine.csv --label y --out mine.toml
        # of public records, filled in
        dpltm datasets schema public.csv --label y --from-public --out mine.toml
        # what is "private" in the draft, found under DP
        dpltm datasets schema mine.csv --private draft.toml --epsilon 0.2 --records 40000 --ledger mine.jsonl --out mine.toml
    """

    file: str | None = option(None, "A .csv, .parquet or .arrow file.", "FILE", argument=True, required=True)
    label: str | None = option(None, "Column of labels.", "COLUMN")
    no_header: bool = option(False, "The file has no names in its first line; columns are called c1, c2 and so on.")
    from_public: bool = option(False, "The records are declared public: read kinds, bounds and categories off them.")
    private: str | None = option(None, "Draft whose private bounds and values are to be found under DP.", "DRAFT.toml")
    records: int | None = option(None, "With `private`: public number of records.", "N")
    subset: str | None = option(None, "With `private`: part of the records, as in train.", "FRACTION|A:B")
    test: str | None = option(None, "With `private`: part that train holds out, such as 0.2.", "FRACTION")
    dry_run: bool = option(False, "With `private`: check everything and print the epsilon that it would spend.")
    out: str | None = option(None, "File to write, in place of the terminal.", "FILE.toml")


@dataclass(frozen=True, kw_only=True)
class OverlapRequest:
    """Rows that two files share, whatever their labels: for the eyes of their owner.

    The answer is read off private records without any protection. Nothing is written, and no account knows of it.

    Examples:
        dpltm datasets overlap train.csv test.csv --label y
    """

    first: str | None = option(None, "Name or path.", "NAME|FILE", argument=True, required=True)
    second: str | None = option(None, "Name or path.", "NAME|FILE", argument=True, required=True)
    label: str | None = option(None, "Label column of tables.", "COLUMN")
    schema: str | None = option(None, "Public schema of tables with words, dates or holes.", "FILE.toml")
