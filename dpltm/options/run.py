"""Options of ``dpltm run``."""

from __future__ import annotations

from dpltm.options import EPSILON, SEED, Range, option
from dpltm.options.data import DRY_RUN_HELP, DeltaOptions, LedgerOptions, SeedOptions


class RunRequest(LedgerOptions, DeltaOptions):
    """All three stages from one TOML file, under one budget that is split between selection and training.

    The file has a table for each command, with the names of its options as keys: run, generate, select, train. Datasets
    go into generate (what the tickets are made from) and train (the private records, which select scores as well unless
    it says otherwise).

    `epsilon` is the whole budget. It includes what the ledger already holds.

    A file with a table named recipe is an experiment of several arms and seeds (examples/papers). Its trials run in `jobs`
    processes. Finished trials are not run again: to continue an interrupted sweep, run the same command. One ledger pays for
    all of them. The epsilon of an arm is that of each trial by itself; the first figure is the total of all trials.

    Examples:
        # the three stages, as the file has them
        dpltm run --config examples/digits.toml --epsilon 1 --out digits
        # a recipe in its quick version, then with three seeds
        dpltm run --config examples/papers/dpltm-har.toml --quick
        dpltm run --config examples/papers/dpltm-har.toml --seeds 3 --jobs 2
    """

    epsilon: float = option(1.0, "Whole budget on the private records.", "E", within=EPSILON)
    split: float = option(0.9, "Part of the budget for training, not the draw.", "F", within=Range(0, 1, True, True))
    seed: int | None = option(None, "Seed of generation.", "N", shown="0", within=SEED)
    out: str | None = option(None, "Folder to write: tickets/ and run/.", "DIR", shown="dpltm-run, or NAME.sweep")
    seeds: int | None = option(None, "Of a recipe: runs of each arm.", "N", shown="its own", within=Range(1, 1000))
    quick: bool = option(False, "Of a recipe: its quick version, which only shows that it works.")
    jobs: int | None = option(None, "Of a recipe: processes.", "N", shown="one a processor", within=Range(1, 1024))
    scheduler: str | None = option(None, "Of a recipe: your Dask scheduler, whose workers run it.", "ADDRESS")
    dry_run: bool = option(False, DRY_RUN_HELP)


class DemoRequest(SeedOptions, DeltaOptions):
    """The three stages on the embedded digits: one half is the public source of tickets, the other half is private.

    Ends in a table and the certified epsilon. No file is kept unless `out` says where; the ledger lies there as well.

    Examples:
        # some ten seconds; no file is kept
        dpltm demo
        # keep tickets, run and ledger
        dpltm demo --out demo
    """

    epsilon: float = option(3.0, "Whole budget on the private half.", "E", within=EPSILON)
    out: str | None = option(None, "Folder to keep tickets, run and ledger in.", "DIR", shown="nothing is kept")
