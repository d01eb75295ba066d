"""What is said of bounds that nobody gave: by the type of the values and by who gave what, never by the values."""

from __future__ import annotations

import numpy as np
import pytest

from dpltm.records import from_arrays, load
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


def test_datasets_that_are_known_and_parts_of_files(tmp_path):
    digits = load("digits")
    assert (digits.bounds_origin, bounds_notes(digits)) == ("described", [])
    assert load("digits", bounds=(0, 8)).bounds_origin == "declared"
    np.savez(tmp_path / "mine.npz", x_train=np.zeros((20, 2), np.uint8), y_train=LABELS)
    for asked in ({"dataset": str(tmp_path / "mine.npz")}, {"dataset": "mine", "home": tmp_path, "subset": "0.0:0.9"}):
        assert bounds_notes(load(**asked)) == [NOTE]
    assert bounds_notes(None) == []


def test_positions_in_tables_have_no_bounds(tmp_path):
    lengths = np.cumsum([0, *[3] * 20])
    np.savez(
        tmp_path / "texts.npz", values_train=np.arange(60, dtype=np.uint32), offsets_train=lengths, y_train=LABELS
    )
    assert bounds_notes(load(str(tmp_path / "texts.npz"), words=100)) == []
