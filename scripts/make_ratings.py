"""Write the ratings of MovieLens as records of persons, for examples/papers/gdp_movielens.py.

    python scripts/make_ratings.py ml-100k/u.data --users 943 --items 1682 -o movielens.npz
    python scripts/make_ratings.py ml-1m/ratings.dat --users 6040 --items 3952 -o movielens.npz

A record is a person: the position of the person and those of at most ``--slots`` films, and as labels the stars less one,
-100 in slots that stay empty. Positions are in one table of ``words``: 0 for a person whom nobody trains, then persons, then
films. Persons of every fifth id are held out, as position 0. The sizes are public and declared.
"""

import argparse
import re
from pathlib import Path

import numpy as np

EMPTY = -100


def persons(ratings: np.ndarray, users: int, slots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ids, positions ``(n, 1 + slots)`` and labels ``(n, slots)``; which ratings count is drawn by the id alone."""
    ids = np.unique(ratings[:, 0])
    x, y = np.zeros((len(ids), 1 + slots), np.int64), np.full((len(ids), slots), EMPTY)
    for row, person in enumerate(ids):
        theirs = ratings[ratings[:, 0] == person]
        theirs = theirs[np.argsort(theirs[:, 1])]
        theirs = np.random.default_rng(int(person)).permutation(theirs)[:slots]
        x[row, 0], x[row, 1 : 1 + len(theirs)] = person, users + theirs[:, 1]
        y[row, : len(theirs)] = theirs[:, 2] - 1
    return ids, x, y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--users", type=int, required=True)
    parser.add_argument("--items", type=int, required=True)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    lines = given.file.read_text(encoding="latin-1").split("\n")
    ratings = np.array([[int(part) for part in re.split("::|\t", line)[:3]] for line in lines if line])
    if (ratings < 1).any() or (ratings > (given.users, given.items, 5)).any():
        parser.error(f"{given.file}: ids or stars are outside 1 to {given.users}, {given.items}, 5; correct the sizes")
    ids, x, y = persons(ratings, given.users, given.slots)
    out = ids % 5 == 0
    x[out, 0] = 0
    np.savez(given.out, x_train=x[~out], y_train=y[~out], x_test=x[out], y_test=y[out],
             words=1 + given.users + given.items, records=given.users - given.users // 5)  # fmt: skip


if __name__ == "__main__":
    main()
