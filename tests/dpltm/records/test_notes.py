"""What is said of bounds that nobody gave: by the type of the values and by who gave what, never by the values."""

from __future__ import annotations

import numpy as np
import pytest

from dpltm.records import from_arrays
from dpltm.records.notes import bounds_notes, public_input_notes

LABELS = np.arange(20) % 4
NOTE = (
    "nobody gave the bounds of mine, so 0 to 255 is assumed, all that a byte can hold; if their values have another range,"
    " declare them with `bounds` LO,HI"
)


@pytest.mark.parametrize("values", [np.zeros(20), np.arange(20) % 16, np.arange(20) + 230], ids=["0", "15", "249"])
def test_bytes_of_any_value(values):
    dataset = from_arrays(values.astype(np.uint8)[:, None], LABELS, classes=4, records=20, name="mine")
    assert (dataset.bounds, dataset.bounds_origin) == ((0.0, 255.0), "assumed")
    assert bounds_notes(dataset) == public_input_notes(dataset) == [NOTE]


@pytest.mark.parametrize(
    ("dtype", "bounds", "origin"),
    [
        (np.uint8, (0, 15), "declared"),
        (np.uint8, (0, 255), "declared"),
        (np.float32, (0, 1), "declared"),
        (bool, None, "type"),
        (bool, (0, 1), "declared"),
    ],
)
def test_bounds_that_somebody_gave_and_truth_values(dtype, bounds, origin):
    dataset = from_arrays(np.ones((20, 3), dtype=dtype), LABELS, bounds=bounds, classes=4, records=20)
    assert dataset.bounds_origin == origin
    assert public_input_notes(dataset) == []
