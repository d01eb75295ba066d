"""Which records are in a part, and which are held out: by a public hash, or by places that a published file fixes."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.privacy.entry import HASHES, Part
from dpltm.records import from_arrays, load
from dpltm.records.settle import parse_fraction, parse_subset
from opened import arrays_of, units_of
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
        f"`subset` {text}: places count only where a published file fixes who stands at which, and nothing fixes them in"
        " mine: a record more or less would move all that follow it; give fractions such as 0.0:0.5, which a public hash"
        " of each record decides"
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "abc", "0", "2", "500", "-0.1", "1e-1", "50%", ".", "1/3", "nan", "\u0661.\u0660"),
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


IN_PLACES = ", but mine has records 0 to 100; give a range inside that is not empty"
IN_FRACTIONS = " of mine; give fractions between 0 and 1, the smaller one first"


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("0:101", f"records 0 to 101{IN_PLACES}"),
        ("9:3", f"records 9 to 3{IN_PLACES}"),
        ("1.5", f"the part from 0 to 1.5{IN_FRACTIONS}"),
        ("0.5:0.5", f"the part from 0.5 to 0.5{IN_FRACTIONS}"),
    ],
)
def test_nothing_or_too_much(text, meaning):
    assert refusal(text, places=100) == f"`subset` {text}: means {meaning}"


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
    assert refused(load, path, test="0.2", subset="0.1", **options).startswith(
        "`subset` 0.1: that part of d is held out"
    )


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


@pytest.mark.parametrize("text", ["20", "1.0", "20%", "0.2e1", "1/5", "0.1234567890"])
def test_numbers_that_are_no_fraction(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused(lambda: parse_fraction(text)) == (
        f"`test` {text}: is neither a file nor a fraction between 0 and 1; give one such as 0.2, which holds a fifth of the"
        " records out"
    )
    if "/" not in text:
        (tmp_path / text).mkdir()
        assert parse_fraction(text) is None, "a folder of that name is one"


def test_refusals(tmp_path):
    path = write(tmp_path / "d.csv", rows_of(9))
    table = {"label": "y", "bounds": (0.0, 1.0)}
    for dataset, part, said in (
        (path, "0.0", "`test` 0.0: holds nobody out; give a fraction such as 0.2, or a file"),
        (path, "0.000000001", "`test`: of so few records of d that part is nobody, or everybody; name a test file"),
        ("digits", "0.2", "`test` 0.2: holds out a part of a file of yours that has no test split; drop `test`"),
    ):
        assert refused(load, dataset, test=part, **(table if dataset == path else {})) == said
    said = "`test`: not a pair of features and labels, nor a part between 0 and 1"
    assert refused(from_arrays, np.eye(4), np.arange(4) % 2, test=1.5, bounds=(0, 1)) == said
