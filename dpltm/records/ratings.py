"""Ratings of items by users: MovieLens' own file format, made-up ratings, and a user's ratings as one record.

A rating is ``(user, item)``, positions in two tables of public sizes, and 1 to 5 stars. Two units can be protected. At unit
``record`` every rating is a record of its own. At unit ``user`` a record is all that a user gives, cut to K ratings.

Which ratings are held out is one public rule for both: about one in five, by a hash of user and item. At unit ``user`` the
users of every fifth id are held out besides: nothing is trained on what they gave, and the test split is what is held out of
theirs. So whoever measures on the test split of one unit never measures on training records of the other.

Both rules look at one rating, or one user, and at nothing else. By places in the file instead, one rating more would move
all that follow from one split to the other, and no guarantee for one record would cover that.
"""

from __future__ import annotations

import math
import os
import re
from array import array
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpltm.errors import DataError
from dpltm.records.catalogue import Description, catalogue
from dpltm.records.dataset import Dataset, Origin, Split
from dpltm.records.units import ABSENT, check_slots, in_slots

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
        tables: numbers of users and items, public.
    """

    places: np.ndarray
    stars: np.ndarray
    tables: tuple[int, int]


def read_ratings(path: Path, tables: tuple[int | None, int | None] = (None, None)) -> Ratings:
    """The ratings in a file of lines ``UserID::MovieID::Rating::Timestamp``; ids count from 1.

    Args:
        path: the file.
        tables: largest user id and item id there can be; None where the largest in the file is taken.

    Raises:
        DataError: the file cannot be read, or a line is not what it must be; the message has its number.
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
    sizes = tuple(_size(path, table[:, place], tables[place], name) for place, name in enumerate(("user", "item")))
    users, items = sizes
    places = (table[:, :2] - 1).astype(np.int32)
    _check_once(path, places)
    return Ratings(places, table[:, 2].astype(np.int64), (users, items))


def _size(path: Path, ids: np.ndarray, declared: int | None, name: str) -> int:
    most = MAX_TABLE if declared is None else declared
    _check_column(path, ids, most, f"{name} id", f"{name} ids go from 1 to {most:,}")
    return int(ids.max()) if declared is None else declared


def _check_column(path: Path, values: np.ndarray, most: int, name: str, expected: str) -> None:
    outside = (values < 1) | (values > most)
    if outside.any():
        line = int(np.argmax(outside))
        raise DataError(f"{path}: line {line + 1} has {name} {values[line]}, but {expected}; correct it")


def _check_once(path: Path, places: np.ndarray) -> None:
    """Raises DataError for a user who rates an item twice: which of both counts would be anybody's guess."""
    pairs = places[:, 0].astype(np.int64) * MAX_TABLE + places[:, 1]
    order = np.argsort(pairs, kind="stable")
    again = np.flatnonzero(np.diff(pairs[order]) == 0)
    if len(again):
        line = int(order[again + 1].min())
        user, item = (int(place) + 1 for place in places[line])
        raise DataError(f"{path}: line {line + 1} has user {user} rate item {item} a second time; keep one of them")


def made_up(users: int, items: int, count: int, seed: int) -> Ratings:
    """Ratings of no people, shaped like MovieLens 1M: few items and users have most of them; tastes are low-rank.

    A rating is a mean of 3.6, a liking of the item, a mood of the user, the product of six factors of each, and noise,
    rounded to 1 to 5 stars. Variances are about those that factor models find in MovieLens 1M, where the noise alone leaves
    a root mean squared error of some 0.8 to 0.9.

    Args:
        users, items: sizes of the tables.
        count: of ratings, between 1 a user and half of all pairs.
        seed: decides everything.
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
    """How many ratings each user gives: ``count`` together, 20 at least where there are enough of them, few very many."""
    least, most = min(20, count // (2 * users)), max(items * 3 // 5, 1)
    share = generator.lognormal(0.0, 1.0, users)
    counts = np.minimum(least + ((count - least * users) * share / share.sum()).astype(np.int64), most)
    while (left := count - int(counts.sum())) > 0:
        counts[np.flatnonzero(counts < most)[:left]] += 1
    return counts


def held_out(places: np.ndarray) -> np.ndarray:
    """Which ratings are test ratings, ``(n, 2)`` positions of user and item to ``(n,)`` bool: about one in five.

    Guarantees:
        Each depends on its own user and item alone: not on other ratings, nor on the order of the file, nor on the stars.
    """
    return public_hash(places, _SPLIT) % np.uint64(TEST_EVERY) == 0


def held_out_users(users: int) -> np.ndarray:
    """Which users are held out at unit ``user``, ``(users,)`` bool: those of ids 5, 10, 15 and so on, whoever is there."""
    return np.arange(users) % TEST_EVERY == TEST_EVERY - 1


def by_user(dataset: Dataset, slots: int) -> Dataset:
    """The same ratings with a user as the unit: a record is a user, with at most so many ratings.

    Args:
        dataset: ratings, one a record; all of them, with no ``subset``. A declared number of records is one of users; of
            a known dataset it is that of the users who are not held out.
        slots: of a user, K, public; no more are made than there are items.

    Returns:
        Training records ``x (users, K, 2)`` with labels ``y (users, K)``, ``ABSENT`` in empty slots: users who are not
        held out. The test split holds single ratings ``(m, 2)``, those of held-out users that the dataset holds out; None
        if there are none. The identity is that of ``dataset``: it is the same data.

    Raises:
        DataError: no ratings, a part of them, K out of range, too much for memory, or nobody left to train on.

    Guarantees:
        A row depends on the training ratings of its own user and on public inputs alone: where a user gave more than K,
        those of the K lowest public hashes of user and item are taken, which say nothing of what is held out. So one user
        more or less, whatever they gave, is one row more or less, or none.
    """
    if not dataset.rated:
        raise DataError(
            f"`unit` user: takes ratings by users, such as movielens, and {dataset.name} holds none; where a"
            " column says whose each record is, name it by `unit_column`"
        )
    if not dataset.whole:
        raise DataError("`unit` user: takes every user; leave `subset` out, which is a range of ratings")
    out = held_out_users(dataset.tables[0])
    users = int(np.count_nonzero(~out))
    check_slots(users, slots, 2)
    slots = min(slots, dataset.tables[1])  # nobody rates an item twice
    x, y = dataset.train.x, dataset.train.y
    entered = np.flatnonzero(~out[x[:, 0]])
    if not len(entered):
        raise DataError(f"`unit` user: {dataset.name} has no user to train on; those of every fifth id are held out")
    entered = entered[np.argsort(x[entered, 1], kind="stable")]
    index, row, slot = in_slots(x[entered, 0], public_hash(x[entered]), slots)
    count = len(np.unique(x[entered, 0]))
    places = np.zeros((count, slots, 2), dtype=np.int32)
    labels = np.full((count, slots), ABSENT, dtype=np.int64)
    places[row, slot], labels[row, slot] = x[entered[index]], y[entered[index]]
    records: dict[Origin, int] = {"declared": dataset.records, "described": users, "counted": count}
    theirs = np.empty(0, int) if dataset.test is None else np.flatnonzero(out[dataset.test.x[:, 0]])
    test, rows = (dataset.test, dataset.test_rows) if len(theirs) else (None, None)
    return replace(
        dataset,
        train=replace(dataset.train, x=places, y=labels),
        test=None if test is None else Split(test.x[theirs], test.y[theirs]),
        test_rows=None if rows is None else rows.taken(theirs),  # none of a user who is protected
        records=records[dataset.records_origin],
        unit="user",
    )


_SPLIT = 1
"""The draw that says what is held out; the draw 0 orders a user's ratings. Were they one, those kept would all be alike."""

_STEP = 0x9E3779B97F4A7C15


def public_hash(places: np.ndarray, draw: int = 0) -> np.ndarray:
    """A number for each pair of a user and an item, ``(n, 2)`` to ``(n,)`` uint64: SplitMix64 of both.

    Args:
        places: positions of users and items.
        draw: which of the generator's outputs from that state; they are independent as far as it is a good one.
    """
    value = places[:, 0].astype(np.uint64) << np.uint64(32) | places[:, 1].astype(np.uint64)
    value = value + np.uint64(_STEP * (draw + 1) % 2**64)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(value ^ (value >> np.uint64(31)))


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
