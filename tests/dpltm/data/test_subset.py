"""--subset: its forms, exact fractions, and ranges that partition."""

from fractions import Fraction
from itertools import pairwise
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.data.subset import parse_subset
from dpltm.errors import DataError

counts = st.integers(1, 10**6)
fractions = st.decimals(0, 1, places=4).map(lambda d: f"{d:.4f}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", (0, 100)),
        ("1.0", (0, 100)),
        ("1.", (0, 100)),
        ("0.1", (0, 10)),
        (".1", (0, 10)),
        # In binary floating point 0.29 * 100 is just below 29.
        ("0.29", (0, 29)),
        ("0.999", (0, 99)),
        ("10:20", (10, 20)),
        ("0:1", (0, 1)),
        (":20", (0, 20)),
        ("20:", (20, 100)),
        (":", (0, 100)),
        ("0.5:1.0", (50, 100)),
        ("0.5:", (50, 100)),
        (":0.5", (0, 50)),
        ("0:0.5", (0, 50)),
    ],
)
def test_forms(text, expected):
    assert parse_subset(text, 100, "mine") == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "abc", "0", "2", "500", "1.5", "-0.1", "1e-1", "50%", ".", "1/3", "nan", "\u0661.\u0660"),
        *("1:2:3", "a:b", "-5:", "0.5:1.5", "0 : 5", ".:", "5,7", "9" * 5000 + ":", "0.1\n"),
    ],
)
def test_malformed(text):
    with pytest.raises(DataError) as caught:
        parse_subset(text, 100, "mine")
    assert str(caught.value) == (
        f"--subset {text!r}: expected FRACTION in (0, 1] such as 0.1, or START:STOP in records such as 0:5000 "
        "or in fractions such as 0.5:1.0"
    )


@pytest.mark.parametrize(
    ("text", "start", "stop"),
    [("0:101", 0, 101), ("7:7", 7, 7), ("9:3", 9, 3), ("0.001", 0, 0), ("0.5:1", 50, 1), ("100:", 100, 100)],
)
def test_nothing_or_too_much(text, start, stop):
    with pytest.raises(DataError) as caught:
        parse_subset(text, 100, "mine")
    assert str(caught.value) == (
        f"--subset {text}: means records {start} to {stop}, but mine has records 0 to 100; "
        "give a range inside that is not empty"
    )


@given(counts, st.lists(fractions, min_size=1, max_size=5))
def test_neighbouring_ranges_are_disjoint_and_cover(records, cuts):
    ends = ["", *sorted(cuts, key=Fraction), ""]
    position = 0
    for start, stop in pairwise(ends):
        if floor(Fraction(start or 0) * records) == floor(Fraction(stop or 1) * records):
            with pytest.raises(DataError, match="not empty"):
                parse_subset(f"{start}:{stop}", records, "mine")
            continue
        first, last = parse_subset(f"{start}:{stop}", records, "mine")
        assert first == position
        position = last
    assert position == records


@given(counts, st.data())
def test_records_are_taken_as_they_are(records, data):
    start = data.draw(st.integers(0, records - 1))
    stop = data.draw(st.integers(start + 1, records))
    assert parse_subset(f"{start}:{stop}", records, "mine") == (start, stop)


@given(counts, fractions.filter(lambda f: Fraction(f) > 0))
def test_a_fraction_is_its_first_part_rounded_down(records, fraction):
    expected = floor(Fraction(fraction) * records)
    if expected == 0:
        with pytest.raises(DataError, match="not empty"):
            parse_subset(fraction, records, "mine")
    else:
        assert parse_subset(fraction, records, "mine") == (0, expected)
