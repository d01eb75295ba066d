"""Where the account of a dataset lies: one rule for all verbs."""

from __future__ import annotations

import os
from pathlib import Path

from dpltm.errors import ArtifactError
from dpltm.privacy.entry import RECORD
from dpltm.privacy.ledger import Ledger
from dpltm.records.catalogue import catalogue
from dpltm.records.files import SUFFIXES
from dpltm.records.ratings import SUFFIX
from dpltm.tickets.files import check_writable
from dpltm.tickets.ledger_file import open_ledger

BESIDE = "dpltm.ledger.jsonl"
"""The ledger of all files of one folder: whose records lie side by side are likely the same people."""


def ledger_path(dataset: str | None, named: str | None = None) -> Path:
    """Return the file of the ledger that pays for releases from a dataset.

    Args:
        dataset: a name or a path, as ``dpltm.records.load`` takes it.
        named: the ledger that was asked for; it decides.
    """
    if named is not None or dataset is None:
        return Path(named or BESIDE)
    path = Path(dataset)
    separators = {os.sep, os.altsep or os.sep}
    if separators & set(dataset) or path.suffix.lower() in (*SUFFIXES, SUFFIX):
        there = path.resolve().parent  # where it really lies: a link to it is of the same people
        return (path.parent if path.parent.resolve() == there else there) / BESIDE
    return Path(f"{_people_of(dataset)}.ledger.jsonl")


def _people_of(name: str) -> str:
    """The dataset of the catalogue that one is a part, or another form, of: both are of the same people."""
    known = catalogue()
    whole = (each for each in known if name.startswith(f"{each}-") and not known[name].made_up)
    return next(whole, name) if name in known else name


def ledger_of(
    dataset: str | None, named: str | None = None, population: str | None = None, unit: str | None = RECORD
) -> Ledger:
    """Return the ledger that pays for releases from a dataset; its file appears with its first entry.

    Args:
        dataset: as :func:`ledger_path`.
        named: as there.
        population: whose account it is, by name.
        unit: the noun of whom it protects; None for whatever it says.

    Raises:
        ArtifactError: it cannot be read, is of another population or unit, or has no place that can be written to.
    """
    path = ledger_path(dataset, named)
    if named is None and not path.exists():
        try:
            check_writable(path)
        except ArtifactError as error:
            raise ArtifactError(f"`ledger`: {str(error).removesuffix('; choose another place')}; name one") from None
    return open_ledger(path, population=population, unit=unit)
