"""Small datasets that differ in one record, written as the files that commands read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from dpltm.randomness.sampling import LIMIT

Kind = Literal["table", "chunk", "csv", "images", "tokens", "people", "people csv"]
Adjacency = Literal["add-remove", "replace-one"]

CLASSES, RECORDS, FEATURES, SIDE = 3, 24, 6, 8
PLACE = 11
"""Where the record stands that only one neighbour has, or that is replaced: in the middle of the file."""

WORDS, LENGTH = 20, 5
PERSONS, ODD_PERSON = ("ann", "bob", "7", "12", "eve"), "cy"
"""Whose records the common ones are, in turn; and whose those in question are."""

LOUD, FLAT, TWIN, WILD = "loud", "flat", "twin", "wild"
"""The record in question: at both ends of the range, constant, a copy of another one, or beyond the range."""

LABELLED = ("loud 0", "loud 1", "loud 2")
"""The first of these, with every label."""

NAMES = {
    "table": "d.npz",
    "chunk": "d.npz",
    "csv": "d.csv",
    "images": "d.npz",
    "tokens": "d.npz",
    "people": "d.npz",
    "people csv": "d.csv",
}


@dataclass(frozen=True)
class Records:
    """Training records and labels."""

    x: np.ndarray
    y: np.ndarray


def common(kind: Kind) -> Records:
    """The records that both neighbours have."""
    draws, count = np.random.default_rng(7), LIMIT if kind == "chunk" else RECORDS
    y = np.arange(count) % CLASSES
    if kind in ("csv", "people csv"):
        return Records(draws.random((count, FEATURES)).round(6), y)
    if kind == "tokens":
        return Records(draws.integers(0, WORDS, (count, LENGTH)).astype(np.int64), y)
    shape = (SIDE, SIDE) if kind == "images" else (FEATURES,)
    return Records(draws.integers(0, 256, (count, *shape), dtype=np.uint8), y)


def odd(kind: Kind, which: str | None, base: Records) -> tuple[np.ndarray, int]:
    """The record that only one neighbour has, and its label; None for the one in its place, which points the other way."""
    like = base.x[0]
    if which == TWIN:
        return base.x[3], int(base.y[3])
    if which == FLAT:
        return np.zeros_like(like), 0
    low, high = (
        (-1e6, 1e6) if which == WILD else (0.0, {"csv": 1.0, "people csv": 1.0, "tokens": WORDS - 1}.get(kind, 255))
    )
    values = np.where(np.arange(like.size) % 2 == (which is None), high, low)
    label = 0 if which is None else int(which.split()[1]) if which in LABELLED else CLASSES - 1
    return values.reshape(like.shape).astype(like.dtype), label


def table(kind: Kind, adjacency: Adjacency, which: str | None) -> Records:
    """One dataset: without the record in question if ``which`` is None, or with a plain one in its place."""
    base = common(kind)
    if adjacency == "add-remove" and which is None:
        return base
    record, label = odd(kind, which, base)
    x, y = np.insert(base.x, PLACE, record, axis=0), np.insert(base.y, PLACE, label)
    if adjacency == "replace-one":  # as many records as are declared
        x, y = np.delete(x, len(base.x), axis=0), np.delete(y, len(base.x))
    return Records(x, y)


def place(kind: Kind) -> int:
    """Where the record that is replaced stands among those that are trained on."""
    if kind in ("people", "people csv"):
        return sorted((*PERSONS, ODD_PERSON)).index(ODD_PERSON)
    return PLACE


def write(folder: Path, kind: Kind, adjacency: Adjacency, which: str | None) -> None:
    """Writes ``d.*`` into ``folder``: one of two neighbours."""
    path = folder / NAMES[kind]
    found, persons = table(kind, adjacency, which), None
    if kind in ("people", "people csv"):
        found, persons = people(kind, adjacency, which)
    if path.suffix == ".csv":
        whose = [[] if persons is None else [person] for person in persons or range(len(found.y))]
        rows = [[*map(repr, row.tolist()), *who, str(y)] for row, who, y in zip(found.x, whose, found.y, strict=True)]
        header = [*"abcdef", *([] if persons is None else ["who"]), "y"]
        path.write_text("".join(",".join(row) + "\n" for row in [header, *rows]))
        return
    test = public(kind, 9, 3)
    whose = {} if persons is None else {"who_train": np.array(persons), "who_test": np.array(["zoe"] * 9)}
    np.savez(path, x_train=found.x, y_train=found.y, x_test=test.x, y_test=test.y, **whose)


def people(kind: Kind, adjacency: Adjacency, which: str | None) -> tuple[Records, list[str]]:
    """The same where one person, with several records here and there in the file, is in question; and whose each is."""
    base = common(kind)
    persons = [PERSONS[place % len(PERSONS)] for place in range(len(base.x))]
    if adjacency == "add-remove" and which is None:
        return base, persons
    record, label = odd(kind, which, base)
    x, y = base.x, base.y
    places = (2,) if which == FLAT else (2, 9, 9, 20)  # one record, or more than --per-unit takes
    for number, at in enumerate(places):
        mine = record if number % 2 == 0 else np.roll(record, number, axis=0)
        x, y = np.insert(x, at, mine, axis=0), np.insert(y, at, (label + number) % CLASSES)
        persons.insert(at, ODD_PERSON)
    return Records(x, y), persons


def public(kind: Kind, count: int, seed: int) -> Records:
    """Other records, that are nobody's secret."""
    draws, like = np.random.default_rng(seed), common(kind)
    x = draws.integers(0, WORDS if kind == "tokens" else 256, (count, *like.x.shape[1:])).astype(like.x.dtype)
    return Records(x, np.arange(count) % CLASSES)


def write_public(folder: Path, kind: Kind) -> None:
    """Writes ``pub.npz``, a dataset to declare public."""
    train, test = public(kind, 30, 1), public(kind, 9, 2)
    np.savez(folder / "pub.npz", x_train=train.x, y_train=train.y, x_test=test.x, y_test=test.y)
