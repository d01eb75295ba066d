"""Neighbours, for every loader and every form of ``subset``.

Deleting or adding one record changes the training records of the part that it is in by that record alone, those of every
other part by none, and nothing else of what a dataset says, once its public inputs are declared.
"""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpltm.records import Arrays, Dataset, Split, catalogue, load
from dpltm.records.catalogue import Description
from opened import arrays_of
from refusals import refused

N = 41
"""Records that there are in all; the first, one in the middle and the last of them come and go."""

GONE = (0, 20, N - 1)
PARTITIONS = [
    ("1",),
    ("0.5", "0.5:1.0"),
    (":0.25", "0.25:0.75", "0.75:"),
    ("0:0.3", "0.3:1"),
    ("0.0:0.123456789", "0.123456789:"),
]
GENERATOR = np.random.default_rng(3)
X = GENERATOR.integers(0, 100, (N, 4)).astype(np.float64)
Y = GENERATOR.integers(0, 2, N)
X_TEST, Y_TEST = GENERATOR.integers(100, 200, (5, 4)).astype(np.float64), np.array([0, 1, 0, 1, 1])
LENGTHS = GENERATOR.integers(0, 6, N)
TEXTS = [[place, *GENERATOR.integers(0, 30, size).tolist()] for place, size in enumerate(LENGTHS)]
DECLARED = {"bounds": (0.0, 255.0), "classes": 2, "records": 30}

load_module = importlib.import_module("dpltm.records.load")
"""The module: the package has a function of that name."""

Made = Callable[[Path, list[int]], Callable[..., Dataset]]


def npz(folder: Path, there: list[int]) -> Callable[..., Dataset]:
    np.savez(folder / "t.npz", x_train=X[there], y_train=Y[there], x_test=X_TEST, y_test=Y_TEST)
    return lambda **options: load(str(folder / "t.npz"), **DECLARED, **options)


def csv(folder: Path, there: list[int]) -> Callable[..., Dataset]:
    for name, x, y in (("t.csv", X[there], Y[there]), ("test.csv", X_TEST, Y_TEST)):
        lines = ["b,a,label,d,c"]
        lines += [f"{row[0]},{row[1]},{label},{row[2]},{row[3]}" for row, label in zip(x, y, strict=True)]
        (folder / name).write_text("\n".join(lines) + "\n")
    test = str(folder / "test.csv")
    return lambda **options: load(str(folder / "t.csv"), label="label", test=test, **DECLARED, **options)


def parquet(folder: Path, there: list[int]) -> Callable[..., Dataset]:
    columns = {name: X[there, place] for place, name in enumerate("bacd")}
    pq.write_table(pa.table({**columns, "label": Y[there]}), folder / "t.parquet")
    return lambda **options: load(str(folder / "t.parquet"), label="label", **DECLARED, **options)


def texts(folder: Path, there: list[int]) -> Callable[..., Dataset]:
    kept = [TEXTS[place] for place in there]
    np.savez(
        folder / "t.npz",
        values_train=np.array([word for text in kept for word in text]),
        offsets_train=np.cumsum([0, *map(len, kept)]),
        y_train=Y[there],
    )
    return lambda **options: load(str(folder / "t.npz"), words=60, length=3, classes=2, records=30, **options)


def named_too_long_or_short(folder: Path, there: list[int]) -> Callable[..., Dataset]:
    """A known dataset whose file is not the published one: nothing fixes its places."""
    np.savez(folder / "isolet.npz", x_train=X[there], y_train=Y[there], x_test=X_TEST, y_test=Y_TEST)
    return lambda **options: load("isolet", home=folder, **DECLARED, **options)


OWN: dict[str, Made] = {made.__name__: made for made in (npz, csv, parquet, texts, named_too_long_or_short)}


def records(split: Split | None) -> list[tuple[bytes, int]]:
    """What is in a split, in order."""
    if split is None:
        return []
    return [(x.tobytes(), int(y)) for x, y in zip(*arrays_of(split), strict=True)]


def joined(parts: Iterable[list[tuple[bytes, int]]]) -> list[tuple[bytes, int]]:
    return list(chain.from_iterable(parts))


def public(dataset: Dataset) -> dict[str, object]:
    """All that a dataset says but for its training records and their hashes, which stay in memory."""
    said: dict[str, object] = {}
    for field in fields(dataset):
        value = getattr(dataset, field.name)
        if field.name in ("train", "_places"):
            continue
        said[field.name] = (records(value), value.rows.digest, value.part) if isinstance(value, Split) else value
    shape = dataset.part, dataset.train.shape, dataset.train.dtype, arrays_of(dataset.train).y.dtype
    return {**said, "shape": shape, "id": dataset.published_id()}


def lost(more: Dataset, less: Dataset) -> list[tuple[bytes, int]]:
    """The records of a part that a neighbour lacks; nobody else came, or moved."""
    before, after = records(more.train), records(less.train)
    gone = [record for record in before if record not in after]
    assert [record for record in before if record not in gone] == after
    return gone


@pytest.fixture
def two(tmp_path) -> tuple[Path, Path]:
    for name in ("more", "less"):
        (tmp_path / name).mkdir()
    return tmp_path / "more", tmp_path / "less"


@pytest.mark.one_of(2)
@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("gone", GONE, ids=["first", "middle", "last"])
def test_one_record_more_or_less_changes_one_part_by_itself(two, kind, gone):
    everybody = list(range(N))
    more, less = OWN[kind](two[0], everybody), OWN[kind](two[1], [place for place in everybody if place != gone])
    whole = lost(more(for_training=False), less(for_training=False))
    tested = [records(data(for_training=False).test) for data in (more, less)]
    assert len(whole) == 1
    assert tested[0] == tested[1]
    assert public(more(for_training=False)) == public(less(for_training=False))
    for partition in PARTITIONS:
        ones, others = ([data(subset=subset, for_training=False) for subset in partition] for data in (more, less))
        assert [public(one) for one in ones] == [public(other) for other in others]
        assert joined(map(lost, ones, others)) == whole  # in one of them, and in no other
        assert sorted(joined(records(one.train) for one in ones)) == sorted(records(more(for_training=False).train))


@pytest.mark.parametrize("kind", OWN)
def test_the_parts_are_cut_by_hash_and_never_by_place(tmp_path, kind):
    """There is somebody in either half, and it is not the half of the file: there one record would move all that follow."""
    made = OWN[kind](tmp_path, list(range(N)))
    first, whole = records(made(subset="0.5").train), records(made().train)
    assert 8 < len(first) < len(whole) - 8
    assert first != whole[: len(first)]
    for subset in ("0:20", "20:", ":", ":1"):
        assert refused(made, subset=subset).startswith(
            f"`subset` {subset}: places count only where a published file fixes"
        )


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("npz", {"bounds": (0, 255), "classes": 2}),
        ("csv", {"bounds": (0, 255), "classes": 2, "label": "label"}),
        ("texts", {"words": 60, "length": 3, "classes": 2}),
    ],
)
def test_what_is_not_declared_is_counted_on_the_part_alone(two, kind, options):
    """And said to be: nobody outside of the part has a say in its size."""
    more, less = (OWN[kind](folder, list(range(N - place))) for place, folder in enumerate(two))
    (gone,) = lost(more(), less())
    for subset in ("0.5", "0.5:1.0"):
        one, other = (load(str(next(folder.glob("t.*"))), subset=subset, **options) for folder in two)
        assert one.records_origin == other.records_origin == "counted"
        assert (one.records, other.records) == (len(one.train), len(other.train))
        assert one.records - other.records == int(gone in records(one.train))


@pytest.fixture
def published(tmp_path, monkeypatch) -> Callable[..., Callable[..., Dataset]]:
    """A known dataset of N records, with some places emptied; what the file still holds there is ``left``."""
    described = Description("tiny", "for tests", "vector", (4,), (0.0, 255.0), 2, N)
    monkeypatch.setattr(load_module, "catalogue", lambda: {**catalogue(), "tiny": described})

    def make(*empty: int, left: float | None = 0.0, dtype: str = "i8") -> Callable[..., Dataset]:
        folder = tmp_path / "-".join(map(str, ("home", *empty, left, dtype)))
        folder.mkdir()
        x, y = X.copy(), Y.astype(dtype)
        y[list(empty)] = -1
        if left is not None:
            x[list(empty)] = left
        np.savez(folder / "tiny.npz", x_train=x, y_train=y, x_test=X_TEST, y_test=Y_TEST)
        return lambda **options: load("tiny", home=folder, for_training=False, **options)

    return make


@pytest.mark.parametrize("gone", GONE, ids=["first", "middle", "last"])
@pytest.mark.parametrize("others", [(), (5, 33)], ids=["all there", "others gone"])
def test_an_emptied_place_moves_nobody(published, gone, others):
    """With no size declared: it is that of the publication."""
    more, less = published(*others), published(*others, gone)
    assert public(more()) == public(less())
    for partition in (*PARTITIONS, ("0:1", "1:20", "20:21", "21:40", "40:41"), (":20", "20:"), (":",)):
        found = []
        for subset in partition:
            one = more(subset=subset)
            if subset == f"{gone}:{gone + 1}":  # there was nobody else
                assert refused(less, subset=subset).startswith("`subset`: no record of tiny falls into that part")
                nobody = Arrays(*(some[:0] for some in arrays_of(one.train)))
                other = replace(one, train=Split(nobody, part=one.part))
            else:
                other = less(subset=subset)
            found.append((one, other))
            assert public(one) == public(other)
            assert one.records_origin == "described"
        assert joined(lost(*pair) for pair in found) == [(X[gone].tobytes(), int(Y[gone]))]
        assert sorted(joined(records(one.train) for one, _ in found)) == sorted(records(more().train))


def test_what_lies_at_an_empty_place_has_no_say(published):
    """Nobody knows who stood there: neither what was left nor how it was written down."""
    made = [
        published(7, left=left, dtype=dtype)
        for left, dtype in ((0.0, "i8"), (None, "i8"), (77.0, "i2"), (0.0, "f4"), (0.0, "f8"))
    ]
    for subset in (None, "0.5", "3:30"):
        found = [data(subset=subset) for data in made]
        assert len({tuple(records(data.train)) for data in found}) == 1
        assert len({data.content_digest() for data in found}) == 1
        assert all(public(data) == public(found[0]) for data in found)
    assert len(made[0]().train) == len(made[0]().rows) == N - 1
    assert (made[0]().records, made[0](subset="3:30").records) == (N, 27)


@pytest.mark.parametrize("kind", ["npz", "named_too_long_or_short"])
def test_files_without_places_have_no_empty_ones(tmp_path, kind, monkeypatch):
    monkeypatch.setitem(globals(), "Y", np.where(np.arange(N) == 3, -1, Y))
    message = refused(OWN[kind](tmp_path, list(range(N))))
    assert "y_train has label -1 at record 3; labels must be integers 0 to K-1" in message
