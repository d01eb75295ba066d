"""Records of several arrays: side by side in one, and each part as it was for the network."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpltm.networks.own_network import apart
from dpltm.records import affine, count_outside, from_arrays, prepare, scale
from dpltm.records.input_parts import MAX_WORDS, InputPart
from dpltm.records.load import records_of, unlabelled
from refusals import refused


def given_back(x, bounds=(0.0, 1.0), **facts):
    """What a network gets of records."""
    raw = unlabelled(x, facts.get("words"), "it", "x")
    return apart(torch.from_numpy(prepare(raw.x, bounds, (), raw.parts)), raw.parts)


@settings(max_examples=60)
@given(
    words=st.integers(1, MAX_WORDS),
    dtype=st.sampled_from(["int32", "int64", "uint32", "uint64", "float64"]),
    beside=st.sampled_from(["float32", "float16", "uint8", "bool"]),
    seed=st.integers(0, 99),
)
def test_whole_numbers_come_back_exactly(words, dtype, beside, seed):
    draw = np.random.default_rng(seed)
    values = draw.integers(0, words, (50, 3)).astype(dtype)
    values[:3] = [[0, words - 1, words // 2], [max(words - 2, 0)] * 3, [words // 3] * 3]
    found = given_back({"ids": values, "other": np.ones((50, 2), beside)}, words={"ids": words})
    assert torch.equal(found["ids"].to(torch.int64), torch.from_numpy(values.astype(np.int64)))
    assert found["ids"].dtype == {"int32": torch.int32, "float64": torch.float32}.get(dtype, torch.int64)


def test_parts_reach_the_network_in_their_types_and_shapes():
    draw = np.random.default_rng(0)
    x = {
        "pixels": draw.integers(0, 256, (4, 2, 3), dtype=np.uint8),
        "ids": draw.integers(0, 9, (4, 5)).astype(np.int32),
        "mask": draw.random((4, 5)) < 0.5,
        "heavy": draw.integers(0, 2, (4, 5)).astype(np.float32),
        "age": draw.random(4) * 255,
    }
    words = {"ids": 9, "heavy": 2}
    found = given_back(x, (0.0, 255.0), words=words)
    assert list(found) == sorted(x)
    for name, dtype in {"ids": torch.int32, "mask": torch.bool, "heavy": torch.float32}.items():
        assert torch.equal(found[name], torch.from_numpy(x[name]).to(dtype))
    for name in ("pixels", "age"):
        assert found[name].dtype == torch.float32
        np.testing.assert_allclose(found[name], x[name] / 255, rtol=1e-6)


@settings(max_examples=100)
@given(st.lists(st.floats(width=32), min_size=7, max_size=7))
def test_whatever_a_network_is_tried_on_stays_in_range(values):
    parts = (InputPart("a", (3,), 5, "int64"), InputPart("b", (), 0, "float32"), InputPart("c", (3,), 2, "bool"))
    found = apart(torch.tensor([values]), parts)
    assert bool(((found["a"] >= 0) & (found["a"] < 5)).all())
    assert (found["b"].shape, found["c"].dtype) == ((1,), torch.bool)


def test_a_row_depends_on_its_own_record_alone():
    draw = np.random.default_rng(1)
    x = {"ids": draw.integers(0, 9, (8, 5)), "level": draw.random((8, 2))}
    whole = unlabelled(x, {"ids": 9}, "it", "x")
    for record in range(8):
        alone = unlabelled({name: part[record : record + 1] for name, part in x.items()}, {"ids": 9}, "it", "x")
        assert np.array_equal(alone.x[0], whole.x[record])
        assert alone.parts == whole.parts


IDS = np.arange(8).reshape(4, 2)


def no_position(value, record, place, words, name="ids"):
    """What is said of a value that is none."""
    at = f"x[{name!r}] has {value} at record {record}, place {place} (counted from 0)"
    return f"{at}; with `words` {words} give whole numbers from 0 to {words - 1}"


MISSING = (
    "`words` is missing: x['ids'] holds whole numbers; say how many there are, words={'ids': N}, or give quantities"
)
RANGE = "must be 1 to 4,194,304; pass the public number of whole numbers"
NO_NAMES = "are no names of arguments; call each array as the network does"


@pytest.mark.parametrize(
    ("x", "facts", "message"),
    [
        ({"ids": IDS}, {}, f"{MISSING} as floats, with `bounds`"),
        ({"ids": IDS}, {"words": {"idz": 8}}, "`words` {'idz': 8}: x has the parts 'ids'; say it of each by name"),
        ({"ids": IDS}, {"words": {"ids": 2**24}}, f"`words` {2**24}: {RANGE}"),
        ({"ids": IDS}, {"words": {"ids": 7}}, no_position(7, 3, 1, 7)),
        ({"ids": IDS}, {"words": 8}, "`words` 8: x has the parts 'ids'; say it of each by name"),
        ({"ids": IDS / 2}, {"words": {"ids": 8}}, no_position(0.5, 0, 1, 8)),
        (
            {"ids": IDS, "mask": IDS[1:] > 2},
            {"words": {"ids": 8}},
            "`x`: its parts have different numbers of records, {'ids': 4, 'mask': 3}; give each a row a record",
        ),
        (
            {"ids": IDS, "text": np.array(["a"] * 4)},
            {"words": {"ids": 8}},
            "x['text'] is <U1 of shape (4,); give numbers, a row a record",
        ),
        ({"0": IDS}, {"words": {"0": 8}}, f"`x`: ['0'] {NO_NAMES}"),
        ({"a b": IDS}, {"words": {"a b": 8}}, f"`x`: ['a b'] {NO_NAMES}"),
        ({}, {}, f"`x`: [] {NO_NAMES}"),
    ],
)
def test_bad_parts(x, facts, message):
    assert refused(unlabelled, x, facts.get("words"), "it", "x") == message


def test_bounds_are_of_quantities():
    y, level = np.arange(4) % 2, IDS / 8
    assert "has no public range; pass `bounds`" in refused(from_arrays, {"level": level}, y)
    assert "these records hold positions in a table; drop `bounds`" in refused(
        from_arrays, {"ids": IDS}, y, words={"ids": 8}, bounds=(0, 1)
    )
    assert from_arrays({"ids": IDS}, y, words={"ids": 8}).bounds_origin == "declared"
    bytes_of = from_arrays({"ids": IDS, "pixels": IDS.astype(np.uint8)}, y, words={"ids": 8})
    assert (bytes_of.bounds, bytes_of.bounds_origin) == ((0.0, 255.0), "assumed")
    mixed = {"pixels": IDS.astype(np.uint8), "level": level}
    said = refused(from_arrays, mixed, y, bounds=(0, 1))
    message = "records: x['pixels'] holds bytes beside quantities of another type"
    assert said.startswith(message)
    level[2, 1] = np.nan
    assert "features must be finite" in refused(from_arrays, {"level": level}, y, bounds=(0, 1))


def test_splits_have_the_same_parts():
    y, x = np.arange(4) % 2, {"ids": IDS, "mask": IDS > 2}
    other = {"ids": 7 - IDS, "level": IDS / 8}
    said = refused(from_arrays, x, y, test=(other, y), words={"ids": 8})
    assert (
        "records of x of test have quantities of shape (2,) in 'level' in the place of nothing; have nothing in"
        in said
    )


def test_what_lies_outside_saturates_and_is_counted_where_nothing_is_learned():
    parts = unlabelled({"ids": IDS, "level": IDS / 8}, {"ids": 8}, "it", "x").parts
    strange = records_of({"ids": IDS + 3, "level": IDS / 2}, None, None, parts).x
    assert count_outside(strange, (0.0, 1.0), parts) == 3 + 5
    assert int(apart(torch.from_numpy(prepare(strange, (0.0, 1.0), (), parts)), parts)["ids"].max()) == 7


# --- public scaling: golden values, staying inside, order, independence of other records ---

ends = st.floats(-1e6, 1e6, width=32)


@st.composite
def bounds(draw):
    low, high = sorted((draw(ends), draw(ends)))
    assume(high - low > 1e-3)
    return low, high


@pytest.mark.parametrize(
    ("x", "limits", "expected"),
    [
        (np.array([[[0, 51], [102, 255]]], dtype=np.uint8), (0, 255), [[0, 0.2, 0.4, 1]]),
        (np.array([[-9.0, -2.0, 0.0, 1.0, 2.0, 9.0]]), (-2, 2), [[-1, -1, 0, 0.5, 1, 1]]),
        (np.array([[-9.0, -2.0, 0.0, 1.0, 2.0, 9.0]]), (0, 2), [[0, 0, 0, 0.5, 1, 1]]),
        (np.array([[-3e38, 3e38]], dtype=np.float32), (0, 1e-6), [[0, 1]]),
        (np.array([[-1e308, 1e308]]), (0, 1e-6), [[0, 1]]),
        (np.empty((0, 2, 3)), (0, 1), np.empty((0, 6))),
    ],
)
def test_scale_golden_and_saturating(x, limits, expected):
    scaled = scale(x, limits)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, expected, rtol=1e-6)


@given(st.data(), bounds(), st.sampled_from([np.bool_, np.uint8, np.int16, np.int64, "f2", "f4", "f8"]))
def test_every_record_by_itself_into_the_unit_range(data, limits, dtype):
    elements = {} if np.dtype(dtype).kind != "f" else {"elements": {"allow_nan": False, "allow_infinity": False}}
    x = data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=2, max_dims=3, max_side=4), **elements))
    before = x.copy()
    scaled = scale(x, limits)
    assert scaled.shape == (len(x), x[0].size)
    assert scaled.min() >= (0 if limits[0] >= 0 else -1)
    assert scaled.max() <= 1
    assert np.array_equal(x, before)
    assert np.array_equal(scale(x[-1:], limits), scaled[-1:])


@given(bounds(), st.floats(0, 1))
def test_inside_it_is_the_affine_map(limits, part):
    low, high = limits
    value = min(low + part * (high - low), high)
    multiplier, offset = affine(limits)
    assert scale(np.array([[value]]), limits)[0, 0] == pytest.approx(value * multiplier + offset, abs=1e-6)
    assert scale(np.array([limits]), limits)[0] == pytest.approx([0 if low >= 0 else -1, 1], abs=1e-6)


@pytest.mark.parametrize(
    ("dtype", "bounds", "values", "outside"),
    [
        (np.uint8, (0, 16), [0, 16, 17, 255], 2),
        (np.bool_, (0, 1), [False, True], 0),
        (np.int64, (0, 2**40), [2**40, 2**40 + 1, -1], 2),
        (np.float32, (0, 0.1), [0.1, 0.11, -0.0], 1),  # the float32 next to 0.1 is larger than 0.1
        (np.float64, (0, 0.1), [0.1, np.nextafter(0.1, 1), -5e-324], 2),
        (np.float16, (-1e6, 1e6), [65504, -65504], 0),  # half precision cannot hold such bounds
    ],
)
def test_how_many_values_saturate(dtype, bounds, values, outside):
    x = np.array(values, dtype=dtype)[:, None]
    assert count_outside(x, bounds) == outside
    clipped = np.clip(x.astype(np.longdouble), *np.asarray(bounds, dtype=np.longdouble))
    np.testing.assert_allclose(scale(x, bounds), scale(clipped.astype(np.float64), bounds), rtol=1e-3, atol=1e-7)


FINITE = "both ends must be finite; pass the public range of the features, LO,HI"
ORDER = "LO must be less than HI; swap or correct them"
PRECISION = "too narrow or too wide for single precision; rescale features and bounds"


@pytest.mark.parametrize(
    ("wrong", "shown", "reason"),
    [
        ((3, 1), "3,1", ORDER),
        ((0, math.inf), "0,inf", FINITE),
        ((math.nan, 1), "nan,1", FINITE),
        ((0, 1e-320), "0,1e-320", PRECISION),
        ((1e9, 1e9 + 1), "1000000000,1000000001", PRECISION),
    ],
)
def test_unusable_bounds(wrong, shown, reason):
    assert refused(affine, wrong) == f"`bounds` {shown}: {reason}"
