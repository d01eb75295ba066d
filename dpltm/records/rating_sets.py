"""Datasets of ratings by name or file: MovieLens 1M, other files like it, and made-up ones."""

from __future__ import annotations

import os
from pathlib import Path

from dpltm.errors import DataError
from dpltm.records.catalogue import Description, catalogue
from dpltm.records.dataset import Origin
from dpltm.records.ratings import MAX_TABLE, MOVIELENS, Ratings, made_up, read_ratings

SUFFIX = ".dat"

_FILES = ("ratings.dat", "ml-1m/ratings.dat")
"""Where in the data home the ratings of MovieLens 1M may lie."""

_SEED = 20
"""Of made-up ratings. Others would be other ratings under the same name."""


def is_ratings(dataset: str) -> bool:
    """Whether a dataset's name or path says that it holds ratings."""
    known = catalogue().get(dataset)
    return dataset.lower().endswith(SUFFIX) or (known is not None and known.kind == "ratings")


def find_ratings(
    dataset: str, home: Path, users: int | None, items: int | None
) -> tuple[Description | None, str, Ratings, Origin]:
    """What is known of a dataset of ratings, its name, its ratings, and where the sizes of its tables come from.

    Args:
        dataset: a name (see ``is_ratings``), or the path of a file such as MovieLens' ``ratings.dat``.
        home: the data home.
        users, items: public numbers of them, for a file; both or none.

    Raises:
        DataError: no such file, a broken one, or tables declared where they are known.
    """
    for flag, size in (("`users`", users), ("`items`", items)):
        if size is not None and not 1 <= size <= MAX_TABLE:
            raise DataError(f"{flag} {size}: is not between 1 and {MAX_TABLE:,}")
    if (users is None) != (items is None):
        raise DataError("`users`, `items`: declare both, the largest ids there can be, or none")
    known = None if os.sep in dataset else catalogue().get(dataset)
    if known is None:
        path = Path(dataset)
        if not path.is_file():
            raise DataError(f"`dataset` {path}: no such file; correct the path")
        return None, path.stem, read_ratings(path, (users, items)), "counted" if users is None else "declared"
    if users is not None:
        raise DataError(f"`users`, `items`: the tables of {dataset} are known; drop them")
    if known.made_up is not None:
        return known, dataset, made_up(*known.tables, known.made_up, _SEED), "described"  # type: ignore[call-arg]
    path = next((home / name for name in _FILES if (home / name).is_file()), home / _FILES[0])
    if not path.is_file():
        raise DataError(
            f"{dataset}: no {_FILES[0]} in {home}, and its licence lets nobody but GroupLens hand it out; get it with:"
            f" curl -LO {MOVIELENS} && unzip ml-1m.zip -d {home} (or try movielens-like, which is made up)"
        )
    users, items = known.tables
    return known, dataset, read_ratings(path, (users, items)), "described"


def at_hand(known: Description, home: Path) -> bool:
    """Whether a known dataset of ratings can be loaded."""
    return known.made_up is not None or any((home / name).is_file() for name in _FILES)
