"""Values as fixed-point bits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpltm.local.scheme import FixedPoint
from local_channels import decoded
from refusals import refused

formats = st.tuples(st.integers(0, 8), st.integers(0, 7)).map(lambda pair: FixedPoint(*pair))


def by_hand(value: float, form: FixedPoint) -> str:
    """The bits of one number, written with Python's whole numbers."""
    size = min(int(abs(float(value)) * 2**form.fraction) if abs(value) < 1e6 else 10**9, 2 ** (form.length - 1) - 1)
    return ("1" if np.signbit(value) else "0") + (f"{size:0{form.length - 1}b}" if form.length > 1 else "")


def test_a_number_by_hand():
    packed = FixedPoint(4, 5).encode(np.array([[-5.40625, 0.03125, 99.0]]))
    assert "".join(f"{byte:08b}" for byte in packed[0])[:30] == "101010110100000000010111111111"


@given(arrays("f4", (3, 11), elements=st.floats(-40, 40, width=32)), formats)
def test_every_value_is_written_after_the_other(values, form):
    packed = form.encode(values)
    for row, found in zip(values, packed, strict=True):
        text = "".join(by_hand(value, form) for value in row)
        assert "".join(f"{byte:08b}" for byte in found) == text.ljust(len(found) * 8, "0")


@given(arrays("f4", (70, 3), elements=st.floats(-1000, 1000, width=32) | st.sampled_from([np.inf, -np.inf])), formats)
def test_decoding_gives_back_what_fits(values, form):
    packed = form.encode(values)
    found = decoded(form, packed, 3)
    if form.length == 1:
        np.testing.assert_array_equal(found, np.where(np.signbit(values), -1, 1))
        return
    most = 2.0**form.whole - 2.0**-form.fraction
    assert (np.abs(found - np.clip(values, -most, most)) < 2.0**-form.fraction).all()


def test_what_is_no_format_and_no_value():
    for whole, fraction in ((-1, 3), (9, 7)):
        message = refused(FixedPoint, whole, fraction)
        assert message.startswith(f"`format`: {whole},{fraction} is not two numbers of bits")
    assert refused(FixedPoint(4, 5).encode, np.array([[np.nan]])) == (
        "values: some are not numbers; what cannot be compared cannot be encoded"
    )
