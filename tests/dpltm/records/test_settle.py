"""Which records are in a part, and which are held out: by a public hash, or by places that a published file fixes."""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from fractions import Fraction
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.privacy.entry import HASHES, Part
from dpltm.records import Arrays, Dataset, Split, catalogue, from_arrays, load
from dpltm.records.catalogue import Description
from dpltm.records.settle import parse_fraction, parse_subset
from opened import arrays_of, load_from, units_of
from refusals import refused

fractions = st.decimals(0, 1, places=9).map(lambda d: f"{d:.9f}")


@pytest.mark.parametrize(
    ("text", "start", "stop"),
    [
        ("0.1", 0, 10**8),
        # In binary floating point 0.29 * 100 is just below 29.
        ("0.29", 0, 290_000_000),
        ("0.000000001", 0, 1),
        ("0.5:", 5 * 10**8, 10**9),
        (":0.5", 0, 5 * 10**8),
    ],
)
@pytest.mark.parametrize("hashed", [("record", ("a", "y")), ("person", ("who",))])
@pytest.mark.parametrize("places", [None, 100])
def test_fractions_are_of_the_hashes(text, start, stop, hashed, places):
    """Whatever the file fixes, and however many records it has."""
    cut, columns = hashed
    assert parse_subset(text, "mine", hashed=hashed, places=places) == Part("mine", None, columns, cut, start, stop)


@pytest.mark.parametrize("text", ["1", "1.0", "1.", "0.0:1.0", "0:1.0", "0.:1", ":1.0", "0.0:"])
@pytest.mark.parametrize("places", [None, 100])
def test_all_of_it(text, places):
    """The whole has no range, so that no number of records is written down."""
    assert parse_subset(text, "mine", places=places) == Part("mine")


@pytest.mark.parametrize(
    ("text", "start", "stop"), [("10:20", 10, 20), ("0:1", 0, 1), (":20", 0, 20), ("20:", 20, 100)]
)
def test_places_of_a_published_file(text, start, stop):
    assert parse_subset(text, "mine", places=100) == Part("mine", None, (), "place", start, stop)


def refusal(text, **options):
    return refused(parse_subset, text, "mine", **options)


@pytest.mark.parametrize("text", ["10:20", "0:1", ":20", "20:", ":", "0:100", "0:101", "7:7"])
@pytest.mark.parametrize("hashed", [("record", ("a", "y")), ("person", ("who",))])
def test_places_that_nothing_fixes(text, hashed):
    """A record more or less would move all that follow it, and whoever falls over the edge is in another part."""
    assert refusal(text, hashed=hashed) == (
        f"`subset` {text}: places count only where a published file fixes them, and nothing does in mine; give fractions"
        " such as 0.0:0.5, which a public hash of each record decides"
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "abc", "2", "500", "-0.1", "1e-1", "50%", ".", "1/3", "nan", "\u0661.\u0660"),
        *("1:2:3", "a:b", "-5:", "0 : 5", ".:", "5,7", "9" * 5000 + ":", "0.1\n"),
        *("0.5:5", "5:0.5", "2:0.5", "0.0000000001", "0.1:0.1234567891"),
    ],
)
@pytest.mark.parametrize("places", [None, 100])
def test_malformed(text, places):
    assert refusal(text, places=places) == (
        f"`subset` {text!r:.80}: expected FRACTION in (0, 1] such as 0.1, START:STOP in fractions such as 0.5:1.0, or in"
        " places of a named dataset such as 0:5000"
    )


IN_PLACES = "mine has records 0 to 100; give a range inside that is not empty"
IN_FRACTIONS = "give fractions between 0 and 1, the smaller one first"


@pytest.mark.parametrize(
    ("text", "meaning"),
    [("0:101", IN_PLACES), ("9:3", IN_PLACES), ("0", IN_FRACTIONS), ("1.5", IN_FRACTIONS), ("0.5:0.5", IN_FRACTIONS)],
)
def test_nothing_or_too_much(text, meaning):
    assert refusal(text, places=100) == f"`subset` {text}: {meaning}"


@given(st.lists(fractions, min_size=1, max_size=5))
def test_neighbouring_fractions_are_disjoint_and_cover(cuts):
    ends = ["", *sorted(cuts, key=Fraction), ""]
    position = Fraction(0)
    for start, stop in pairwise(ends):
        if Fraction(start or 0) == Fraction(stop or 1) or not (start or stop):
            continue  # refused, as others show
        part = parse_subset(f"{start}:{stop}", "mine")
        first, last = (0, HASHES) if part.cut == "whole" else (part.start, part.stop)
        assert Fraction(first, HASHES) == position
        position = Fraction(last, HASHES)
    assert position == 1


def write(path, rows, header="a,who,y"):
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return str(path)


def rows_of(count, persons=0):
    draw = np.random.default_rng(3)
    return [(f"{draw.random():.5f}", place % persons if persons else place, place % 2) for place in range(count)]


def split(path, **options):
    found = load(path, label="y", bounds=(0.0, 1.0), test="0.2", **options)
    return (
        [tuple(row) for row in arrays_of(found.train).x.tolist()],
        [tuple(row) for row in arrays_of(found.test).x.tolist()],
        found,
    )


@given(st.integers(0, 60), st.floats(0, 1, width=32))
def test_one_record_more_changes_one_side_by_that_record(tmp_path_factory, place, value):
    folder, rows = tmp_path_factory.mktemp("rows"), rows_of(60)
    train, test, _ = split(write(folder / "d.csv", rows))
    more = [*rows[:place], (f"{value:.6f}", 99, 1), *rows[place:]]
    train_more, test_more, _ = split(write(folder / "e.csv", more))
    changed = [(train, train_more), (test, test_more)]
    assert sorted(len(new) - len(old) for old, new in changed) == [0, 1]
    for old, new in changed:
        kept = [row for row in new if row[1] != 99]
        assert kept == old


def test_about_that_part_is_held_out_and_said_to_be(tmp_path):
    train, test, found = split(write(tmp_path / "d.csv", rows_of(5000)))
    assert len(train) + len(test) == 5000
    assert abs(len(test) - 1000) < 4 * np.sqrt(5000 * 0.2 * 0.8)
    assert (found.hold_out, found.records) == (0.2, len(train))
    assert (len(found.rows), len(found.test.rows), len(found.train.file)) == (len(train), len(test), 5000)
    names = ("a", "who", "y")
    assert found.test.part == Part("d", None, names, "record", 0, HASHES // 5)
    assert found.part == Part("d", None, names, "record", HASHES // 5, HASHES)


def test_both_parts_are_of_one_file(tmp_path):
    """So that a release on all of it, or on the same part cut otherwise, is known to touch what was held out."""
    path = write(tmp_path / "d.csv", rows_of(200))
    options = {"label": "y", "bounds": (0.0, 1.0)}
    whole, cut = load(path, **options), load(path, test="0.2", subset="0.0:0.6", **options)
    assert whole.content_digest() == cut.content_digest() == cut.tested().content_digest()
    assert (cut.part.start, cut.part.stop) == (HASHES // 5, HASHES * 6 // 10)
    assert cut.tested().part == cut.test.part
    assert sorted(map(tuple, arrays_of(load(path, subset="0.2:0.6", **options).train).x.tolist())) == sorted(
        map(tuple, arrays_of(cut.train).x.tolist())
    )
    said = "`subset` 0.1: that part of d is held out"
    assert refused(load, path, test="0.2", subset="0.1", **options).startswith(said)


@pytest.mark.parametrize(
    ("parts", "records"),
    [({}, 1000), ({"test": "0.2"}, 800), ({"subset": "0.0:0.5"}, 1000), ({"test": "0.2", "subset": "0.0:0.5"}, 600)],
    ids=str,
)
def test_what_is_held_out_is_taken_off_the_declared_number(tmp_path, parts, records):
    """It is that of the part that is named, and the others of it are not trained on: steps would be too small."""
    path = write(tmp_path / "d.csv", rows_of(200))
    found = load(path, label="y", bounds=(0.0, 1.0), records=1000, **parts)
    assert (found.records, found.records_origin) == (records, "declared")


def test_all_rows_of_a_person_are_on_one_side(tmp_path):
    """And which, the person decides alone: not what the rows hold."""
    path = write(tmp_path / "d.csv", rows_of(2000, persons=200))
    found = load(path, label="y", bounds=(0.0, 1.0), test="0.2", units="who")
    trained, tested = set(units_of(found.rows).tolist()), set(units_of(found.test.rows).tolist())
    assert not trained & tested
    assert len(trained) + len(tested) == 200
    assert abs(len(tested) - 40) < 4 * np.sqrt(200 * 0.2 * 0.8)
    other = write(
        tmp_path / "e.csv", [(f"{1 - float(a):.5f}", who, 1 - y) for a, who, y in rows_of(2000, persons=200)]
    )
    again = load(other, label="y", bounds=(0.0, 1.0), test="0.2", units="who")
    assert set(units_of(again.test.rows).tolist()) == tested


def test_arrays_are_held_out_in_the_same_way(tmp_path):
    rows = rows_of(300)
    x = np.array([[float(a), who] for a, who, _ in rows])
    y = np.array([y for *_, y in rows])
    found = from_arrays(x, y, test=0.25, bounds=(0, 1))
    assert (len(found.train) + len(found.test), found.hold_out) == (300, 0.25)
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y)
    again = load(str(tmp_path / "d.npz"), bounds=(0, 1), test="0.25")
    assert np.array_equal(arrays_of(again.train).x, arrays_of(found.train).x)
    texts = {"values_train": np.arange(600) % 50, "offsets_train": np.arange(0, 601, 2), "y_train": y}
    np.savez(tmp_path / "t.npz", **texts)
    some = load(str(tmp_path / "t.npz"), words=50, length=2, test="0.25")
    assert len(some.train) + len(some.test) == 300


@pytest.mark.parametrize("part", [{"test": "0.2"}, {"subset": "0.5:1.0"}], ids=str)
def test_equal_records_are_not_cut_by_their_labels(tmp_path, part):
    """Of few values, all of one label are on one side, and those of another on the other: an AUC of 0 where 0.75 is true.

    Not where a column tells them apart, where persons are cut, and of arrays, whose hash is taken without the label.
    """
    rows = [(f"{number % 4}", number % 300, number % 3 // 2) for number in range(1200)]
    table = {"label": "y", "bounds": (0.0, 300.0), **part}
    alike = write(tmp_path / "alike.csv", [(a, 1, y) for a, _, y in rows])
    (option, value), *_ = part.items()
    assert refused(load, alike, **table).startswith(
        f"`{option}` {value}: many records of alike are equal, label and all"
    )
    for path, options in (
        (write(tmp_path / "told.csv", [(a, number, y) for number, (a, _, y) in enumerate(rows)]), {}),
        (write(tmp_path / "persons.csv", rows), {"units": "who"}),
    ):
        assert len(load(path, **{**table, "bounds": (0.0, 1200.0), **options}).train) in range(100, 1101)
    few = {"x_train": np.array([[float(a)] for a, *_ in rows]), "y_train": np.array([y for *_, y in rows])}
    np.savez(tmp_path / "d.npz", **few)
    assert len(load(str(tmp_path / "d.npz"), bounds=(0, 3), subset="0.0:0.9").train)


@pytest.mark.parametrize("text", ["20", "1.0", "20%", "0.2e1", "1/5", "0.1234567890"])
def test_numbers_that_are_no_fraction(text):
    assert parse_fraction(text) is None, "the name of a file"
    assert "`test` " in refused(load, "digits", test=text)


NOBODY = "`test`: that part of d is nobody, or everybody; take another, or name a file"


def test_refusals(tmp_path):
    path = write(tmp_path / "d.csv", rows_of(9))
    table = {"label": "y", "bounds": (0.0, 1.0)}
    for dataset, part, said in (
        (path, ".0", NOBODY),
        (path, "0.000000001", NOBODY),
        ("digits", "0.2", "`test` 0.2: is for a file of yours that has no test split; drop `test`"),
    ):
        assert refused(load, dataset, test=part, **(table if dataset == path else {})) == said
    said = "`test`: not a pair of features and labels, nor a part between 0 and 1"
    assert refused(from_arrays, np.eye(4), np.arange(4) % 2, test=1.5, bounds=(0, 1)) == said


# --- neighbours, for every loader and form of ``subset``: one record changes its own part alone ---

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
    return lambda **options: load_from(folder, "isolet", **DECLARED, **options)


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
        said = f"`subset` {subset}: places count only where a published file fixes"
        assert refused(made, subset=subset).startswith(said)


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
        return lambda **options: load_from(folder, "tiny", for_training=False, **options)

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
    assert "y_train has label -1 at record 3 (counted from 0); number classes 0 to K-1" in message
