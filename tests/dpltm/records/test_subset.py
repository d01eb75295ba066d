"""`subset`: its forms, exact fractions of a public hash, and places where a published file fixes them."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.privacy.entry import HASHES, Part
from dpltm.records.settle import parse_subset
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


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("0:101", "records 0 to 101"),
        ("9:3", "records 9 to 3"),
        ("1.5", "the part from 0 to 1.5"),
        ("0.5:0.5", "the part from 0.5 to 0.5"),
    ],
)
def test_nothing_or_too_much(text, meaning):
    if meaning.startswith("records"):
        fault = f"{meaning}, but mine has records 0 to 100; give a range inside that is not empty"
    else:
        fault = f"{meaning} of mine; give fractions between 0 and 1, the smaller one first"
    assert refusal(text, places=100) == f"`subset` {text}: means {fault}"


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
