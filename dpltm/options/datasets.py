"""Options of commands about datasets."""

from __future__ import annotations

from dpltm.options import EPSILON, Options, option
from dpltm.options.data import UNIT_COLUMN_HELP, DataOptions, GuaranteeOptions, LedgerOptions


class LsRequest(Options):
    """The datasets known by name, and whether their file is at hand.

    Examples:
        dpltm datasets ls
    """


class FetchRequest(Options):
    """Download a dataset that is known by name, from OpenML, into the data home.

    Commands that name the dataset download it, too, but read the download again each time. Datasets that may not be
    redistributed, or that are parts of others, are not fetched: the answer says what file is needed, and where.

    Examples:
        dpltm datasets fetch mnist
    """

    dataset: str = option(None, "Name, as in dpltm datasets ls.", "NAME", argument=True)


class InfoRequest(DataOptions):
    """The public facts about a dataset, checked by loading it. Nothing is computed from its private values.

    Examples:
        dpltm datasets info digits
        dpltm datasets info mine.csv --label y --bounds 0,1
    """

    dataset: str = option(None, "Name or path.", "NAME|FILE", argument=True)


class FindOptions(GuaranteeOptions):
    """What finding unknown parts of a schema may spend, and against which neighbours; of delta a hundredth is for names."""

    private: float | None = option(None, "Find it in private records.", "E", section="Unknown parts", within=EPSILON)
    from_public: bool = option(False, "Read it from the records, which are declared public.")


class SchemaRequest(FindOptions, LedgerOptions):
    """The public schema of a table: what its columns hold, so that words, dates and holes become numbers.

    A schema is public, so do not fill it in by looking at private records. `private` finds kinds, bounds, categories and
    classes by noisy histograms, and everything that uses the schema carries that release. `from_public` reads them from
    records that are declared public. Without either, the command writes the names of columns, and you fill in the rest.

    `schema` gives what you know already, of some columns or all.

    Examples:
        # from private records, in one round
        dpltm datasets schema visits.csv --label ill --classes no,yes --unit-column patient --private 0.2 --out visits.toml
        # from public records
        dpltm datasets schema public.csv --label y --from-public --out mine.toml
        # with what is known
        dpltm datasets schema mine.csv --schema known.toml --private 0.2 --records 40000 --out mine.toml
    """

    file: str = option(None, "A .csv, .parquet or .arrow file.", "FILE", argument=True)
    label: str | None = option(None, "Column of labels.", "COLUMN", section="Table")
    classes: str | None = option(None, "Names of the classes, which then cost nothing.", "NAME,NAME,...")
    target_bounds: str | None = option(None, "Public range of a label that is a number.", "LO,HI")
    schema: str | None = option(None, "Schema of the columns that you know already.", "FILE.toml")
    records: int | None = option(None, "With `private`: public number of records.", "N")
    subset: str | None = option(None, "With `private`: part of the records, as in train.", "FRACTION|A:B")
    test: str | None = option(None, "With `private`: part that train holds out.", "FRACTION")
    dry_run: bool = option(False, "With `private`: check everything, and spend nothing.")
    out: str | None = option(None, "File to write, instead of the terminal.", "FILE.toml")
    unit_column: str | None = option(None, UNIT_COLUMN_HELP, "NAME", section="What is protected")
