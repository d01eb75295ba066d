"""Arithmetic whose sums are not rounded: the same in any order, and close to what it stands for."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpltm.local.codebook import EXACT_BITS, bits_for, on_grid, whole_rows

NUMBERS = st.floats(-1e30, 1e30, allow_subnormal=True) | st.sampled_from([0.0, -0.0, 5e-324, -1e-310, 1.0, 2.0**40])
ROWS = arrays("f8", st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=NUMBERS)


@given(ROWS, st.integers(1, 26))
def test_whole_rows_are_the_rows_times_a_power_of_two(rows, bits):
    whole = whole_rows(rows, bits)
    assert (whole == np.rint(whole)).all()
    assert np.abs(whole).max() <= 2.0**bits
    for row, made in zip(rows, whole, strict=True):
        peak = np.abs(row).max()
        assert np.abs(made).max() >= 2.0 ** (bits - 1) - 1 or peak == 0
        for one, other in zip(row, made, strict=True):
            unit = Fraction(1) if peak == 0 else Fraction(2) ** (int(np.frexp(peak)[1]) - bits)
            assert abs(Fraction(float(one)) - Fraction(float(other)) * unit) <= unit / 2


@given(st.integers(1, 10**6))
def test_so_many_products_of_numbers_of_so_many_bits_add_up_exactly(terms):
    assert terms * 4 ** bits_for(terms) <= 2**EXACT_BITS < terms * 4 ** (bits_for(terms) + 1)


def test_products_are_the_same_in_any_order():
    """By the library, by einsum, by whole numbers of 64 bits, in another order of terms, and one row at a time."""
    draw, terms = np.random.default_rng(0), 1152
    bits = bits_for(terms)
    one, other = (whole_rows(draw.normal(size=(size, terms)) * 10.0 ** draw.integers(-3, 3), bits) for size in (7, 50))
    product, order = one @ other.T, draw.permutation(terms)
    np.testing.assert_array_equal(product, one.astype(np.int64) @ other.T.astype(np.int64))
    np.testing.assert_array_equal(product, np.einsum("it,jt->ij", one, other))
    np.testing.assert_array_equal(product, one[:, order] @ other[:, order].T)
    np.testing.assert_array_equal(product, np.concatenate([row[None] @ other.T for row in one]))


@pytest.mark.parametrize(("value", "whole"), [(0.5, 8), (-0.03, 0), (0.04, 1), (1.0, 16)])
def test_a_grid(value, whole):
    assert on_grid(np.float32([value]), 4) == whole
