"""Ratings of items by users: MovieLens' own file format, made-up ratings, and a user's ratings as one record.

A rating is ``(user, item)``, positions in two tables of public sizes, and 1 to 5 stars. At unit ``record`` every rating
is a record of its own; at unit ``user`` a record is all that a user gives, cut to K ratings.

One public rule decides which ratings are held out for both units: about one in five, by a hash of user and item. At unit
``user`` the users of every fifth id are held out besides. So whoever measures on the test split of one unit never
measures on training records of the other. A rule by places in the file would move all that follow one rating more.
"""

from __future__ import annotations

import math
import os
import re
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpltm.errors import DataError
from dpltm.privacy.entry import Part
from dpltm.records.catalogue import Description, catalogue
from dpltm.records.dataset import Dataset
from dpltm.records.split import Arrays, Split

STARS = 5
"""Ratings are whole numbers from 1 to this; class k stands for k + 1 stars."""

MAX_TABLE = 1_000_000
"""Most users, or items; a guard against typing errors and hostile files."""

TEST_EVERY = 5
"""One in so many ratings, by hash, is a test rating; one in so many users, by id, is held out at unit ``user``."""

MOVIELENS = "https://files.grouplens.org/datasets/movielens/ml-1m.zip"

_LINE = re.compile(rb"([0-9]{1,9})::([0-9]{1,9})::([0-9]{1,9})::[0-9]{1,18}")
_LONGEST = 80
"""Bytes of a line; a little more than the pattern takes."""


@dataclass(frozen=True)
class Ratings:
    """Ratings in the order of their file, each pair of a user and an item once.

    Attributes:
        places: ``(n, 2)`` int32, positions of user and item, from 0.
        stars: ``(n,)`` int64, from 1 to ``STARS``.
    """

    places: np.ndarray
    stars: np.ndarray
    tables: tuple[int, int]


def read_ratings(path: Path, tables: tuple[int | None, int | None] = (None, None)) -> Ratings:
    """Return the ratings in a file of lines ``UserID::MovieID::Rating::Timestamp``; ids count from 1.

    Tables are the largest user id and item id there can be; None where the largest in the file is taken.
    """
    cells = array("i")
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(_LONGEST), b""), start=1):
                match = _LINE.fullmatch(line.rstrip(b"\r\n"))
                if match is None:
                    raise DataError(
                        f"{path}: line {number} is {line.rstrip()!r:.60}, not UserID::MovieID::Rating::Timestamp, whole"
                        " numbers all; correct it"
                    )
                user, item, stars = match.groups()
                cells.extend((int(user), int(item), int(stars)))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); correct the file") from error
    if not cells:
        raise DataError(f"{path}: is empty; expected lines of UserID::MovieID::Rating::Timestamp")
    table = np.frombuffer(cells, dtype=np.intc).reshape(-1, 3)
    _check_column(path, table[:, 2], STARS, "rating", "ratings go from 1 to 5")
    for ids, declared, name in zip(table.T, tables, ("user", "item"), strict=False):
        most = declared or MAX_TABLE
        _check_column(path, ids, most, f"{name} id", f"{name} ids go from 1 to {most:,}")
    users, items = (declared or int(ids.max()) for ids, declared in zip(table.T, tables, strict=False))
    places = (table[:, :2] - 1).astype(np.int32)
    _check_once(path, places)
    return Ratings(places, table[:, 2].astype(np.int64), (users, items))


def _check_column(path: Path, values: np.ndarray, most: int, name: str, expected: str) -> None:
    outside = (values < 1) | (values > most)
    if outside.any():
        line = int(np.argmax(outside))
        raise DataError(f"{path}: line {line + 1} has {name} {values[line]}, but {expected}; correct it")


def _check_once(path: Path, places: np.ndarray) -> None:
    """Raise DataError for a user who rates an item twice: which of both counts would be anybody's guess."""
    pairs = places[:, 0].astype(np.int64) * MAX_TABLE + places[:, 1]
    order = np.argsort(pairs, kind="stable")
    again = np.flatnonzero(np.diff(pairs[order]) == 0)
    if len(again):
        line = int(order[again + 1].min())
        user, item = (int(place) + 1 for place in places[line])
        raise DataError(f"{path}: line {line + 1} has user {user} rate item {item} a second time; keep one of them")


def made_up(users: int, items: int, count: int, seed: int) -> Ratings:
    """Return ratings of no people, shaped like MovieLens 1M: few items and users have most of them; tastes are low-rank.

    A rating is a mean of 3.6, a liking of the item, a mood of the user, the product of six factors of each, and noise,
    rounded to 1 to 5 stars. Variances are about those that factor models find in MovieLens 1M, where the noise alone leaves
    a root mean squared error of some 0.8 to 0.9.
    """
    generator = np.random.default_rng(seed)
    weights = (np.arange(items) + items / 40) ** -1.0
    weights = generator.permutation(weights)
    counts = _counts(generator, users, items, count)
    chosen = []
    for many in counts:  # a race that the popular are likely to win: drawn without replacement by weight
        race = generator.standard_exponential(items) / weights
        chosen.append(np.sort(np.argpartition(race, many - 1)[:many]))
    places = np.column_stack([np.repeat(np.arange(users), counts), np.concatenate(chosen)]).astype(np.int32)
    user, item = places.T
    mood, liking = 0.4 * generator.standard_normal(users), 0.5 * generator.standard_normal(items)
    taste, kind = (generator.standard_normal((size, 6)) for size in (users, items))
    value = 3.6 + mood[user] + liking[item] + 0.45 / math.sqrt(6) * (taste[user] * kind[item]).sum(1)
    value += 0.8 * generator.standard_normal(len(places))
    return Ratings(places, np.clip(np.rint(value), 1, STARS).astype(np.int64), (users, items))


def _counts(generator: np.random.Generator, users: int, items: int, count: int) -> np.ndarray:
    """Draw the number of each user's ratings: ``count`` together, 20 at least where there are enough, few very many."""
    least, most = min(20, count // (2 * users)), max(items * 3 // 5, 1)
    share = generator.lognormal(0.0, 1.0, users)
    counts = np.minimum(least + ((count - least * users) * share / share.sum()).astype(np.int64), most)
    while (left := count - int(counts.sum())) > 0:
        counts[np.flatnonzero(counts < most)[:left]] += 1
    return counts


def held_out(places: np.ndarray) -> np.ndarray:
    """Return which ratings are test ratings, ``(n, 2)`` positions of user and item to ``(n,)`` bool: about one in five.

    Guarantees:
        Each depends on its own user and item alone: not on other ratings, nor on the order of the file, nor on the stars.
    """
    return public_hash(places, _SPLIT) % np.uint64(TEST_EVERY) == 0


def held_out_users(users: int) -> np.ndarray:
    """Return which users are held out at unit ``user``, ``(users,)`` bool: those of ids 5, 10, 15 and so on."""
    return np.arange(users) % TEST_EVERY == TEST_EVERY - 1


_SPLIT = 1
"""The draw that says what is held out; the draw 0 orders a user's ratings. Were they one, those kept would all be alike."""

_STEP = 0x9E3779B97F4A7C15


def public_hash(places: np.ndarray, draw: int = 0) -> np.ndarray:
    """Return a number for each pair of a user and an item, ``(n, 2)`` to ``(n,)`` uint64: SplitMix64 of both.

    ``draw`` is which of the generator's outputs from that state; they are independent as far as it is a good one.
    """
    value = places[:, 0].astype(np.uint64) << np.uint64(32) | places[:, 1].astype(np.uint64)
    value = value + np.uint64(_STEP * (draw + 1) % 2**64)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(value ^ (value >> np.uint64(31)))


SUFFIX = ".dat"

_FILES = ("ratings.dat", "ml-1m/ratings.dat")
"""Places of the ratings of MovieLens 1M in the data home."""

_SEED = 20
"""Of made-up ratings. Others would be other ratings under the same name."""


def is_ratings(dataset: str) -> bool:
    """Return whether a dataset's name or path says that it holds ratings."""
    known = catalogue().get(dataset)
    return dataset.lower().endswith(SUFFIX) or (known is not None and known.kind == "ratings")


def load_ratings(dataset: str, home: Path, users: int | None, items: int | None) -> Dataset:
    """Return a dataset of ratings, one a record; about one in five is a test rating, by a public hash of its user and item.

    How many that leaves to train on is private. Of a known dataset the public number is four fifths of the published one of
    all ratings, whatever there are; of a file it is counted, unless declared.
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
        ratings = read_ratings(path, (users, items))
    elif users is not None:
        raise DataError(f"`users`, `items`: the tables of {dataset} are known; drop them")
    elif known.made_up is not None:
        ratings = made_up(*known.tables, known.made_up, _SEED)  # type: ignore[call-arg]
    else:
        path = next((home / name for name in _FILES if (home / name).is_file()), home / _FILES[0])
        if not path.is_file():
            raise DataError(
                f"{dataset}: no {_FILES[0]} in {home}, and its licence lets nobody but GroupLens hand it out; get it with:"
                f" curl -LO {MOVIELENS} && unzip ml-1m.zip -d {home} (or try movielens-like, which is made up)"
            )
        users, items = known.tables
        ratings = read_ratings(path, (users, items))
    out, name = held_out(ratings.places), dataset if known else path.stem
    train, test = (
        Split(Arrays(ratings.places[inside], ratings.stars[inside] - 1), part=Part(words))
        for inside, words in ((~out, name), (out, f"{name} (test)"))
    )
    return Dataset(
        name=name,
        train=train,
        test=test if len(test) else None,
        classes=STARS,
        bounds=(0.0, float(max(ratings.tables) - 1)),
        records=known.records if known else len(train),
        classes_origin="described",
        records_origin="described" if known else "counted",
        known=known is not None,
        tables=ratings.tables,
        tables_origin="described" if known else "counted" if users is None else "declared",
    )


def at_hand(known: Description, home: Path) -> bool:
    """Return whether a known dataset of ratings can be loaded."""
    return known.made_up is not None or any((home / name).is_file() for name in _FILES)
