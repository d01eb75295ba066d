"""What a file of synthetic records says of itself: read as it was written, or refused in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.errors import DataError
from dpltm.privacy.event_json import to_json
from dpltm.privacy.events import DatasetRef, GaussianEvent, LaplaceEvent, ProvenanceEvent
from dpltm.privacy.mechanisms import GaussianRelease, LaplaceRelease
from dpltm.records import load, scale, unscale
from dpltm.records.synthetic_origin import ARRAY, SyntheticOrigin, read_origin
from refusals import refused

AGAIN = "make the file again with dpltm synthesize"
RECORDS = DatasetRef("theirs", "0" * 32, "k" * 8)
EVENT = GaussianEvent(RECORDS, GaussianRelease(2.0, 1.125), "moments")
HISTOGRAMS = GaussianEvent(RECORDS, GaussianRelease(4.0), "histograms")
READ_OFF = ProvenanceEvent(RECORDS, "public", "settings of a schema")
ORIGIN = SyntheticOrigin("a" * 64, EVENT, (-1.0, 3.0), 2, (HISTOGRAMS, READ_OFF))


def stored(**changed: Any) -> np.ndarray:
    """The array of ``ORIGIN`` with some of its values replaced."""
    body = json.loads(ORIGIN.to_array().tobytes()) | changed
    return np.frombuffer(json.dumps(body).encode(), dtype=np.uint8)


def why(array: np.ndarray) -> str:
    return refused(read_origin, array, "f.npz", kind=DataError)


def test_it_is_read_as_it_was_written() -> None:
    assert read_origin(ORIGIN.to_array(), "f.npz") == ORIGIN
    former = json.loads(stored(schema=1).tobytes())
    del former["found"]
    assert read_origin(np.frombuffer(json.dumps(former).encode(), np.uint8), "f.npz") == replace(ORIGIN, found=())


def test_what_is_no_origin_is_refused_and_not_passed_over() -> None:
    damaged = f"f.npz: {ARRAY} is damaged ({{}}); {AGAIN}"
    assert why(np.zeros(3)) == f"f.npz: {ARRAY} is not the bytes of an origin; {AGAIN}"
    assert why(np.zeros(2**16 + 1, np.uint8)) == f"f.npz: {ARRAY} is not the bytes of an origin; {AGAIN}"
    assert why(np.frombuffer(b"\xff{", np.uint8)) == damaged.format("no JSON")
    assert why(np.frombuffer(b"[" * 10_000, np.uint8)) == damaged.format("no JSON")
    assert why(np.frombuffer(b"[]", np.uint8)) == damaged.format("not an origin of synthetic records")
    assert why(stored(more=1)) == damaged.format("not an origin of synthetic records")
    assert why(stored(schema=1)) == damaged.format("not an origin of synthetic records")
    assert why(stored(schema=3)) == f"f.npz: {ARRAY} has schema 3, and this dpltm reads 2; upgrade dpltm"
    assert why(stored(found={})) == damaged.format("what bounds were found by is no list")
    dp = to_json(replace(READ_OFF, provenance="dp"))
    assert why(stored(found=[dp])) == damaged.format("ProvenanceEvent is not what bounds were found by")
    assert why(stored(id="A" * 64)) == damaged.format("id is not 64 hexadecimal digits")
    assert why(stored(classes=True)) == damaged.format("classes is not a number of classes")
    assert why(stored(classes=2**40)) == damaged.format("classes is not a number of classes")
    other = to_json(LaplaceEvent(RECORDS, LaplaceRelease(1.0), "a count"))
    assert why(stored(event=other)) == damaged.format("its event is no Gaussian release from its source")
    elsewhere = json.loads(stored().tobytes())["source"] | {"id": "1" * 32}
    assert why(stored(source=elsewhere)) == damaged.format("its event is no Gaussian release from its source")


@pytest.mark.parametrize(
    "bounds", [None, [0], [0, True], ["0", "1"], [0, float("nan")], [0, float("inf")], [0, 10**400]]
)
def test_bounds_that_are_no_range(bounds: Any) -> None:
    assert why(stored(bounds=bounds)) == f"f.npz: {ARRAY} is damaged (bounds are not two numbers); {AGAIN}"


def test_a_file_brings_its_public_facts(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    np.savez(path, x_train=np.zeros((4, 2), "f4"), y_train=np.array([0, 1, 0, 0]), **{ARRAY: ORIGIN.to_array()})
    found = load(str(path))
    assert (found.bounds, found.classes, found.synthetic) == ((-1.0, 3.0), 2, ORIGIN)
    assert found.behind == (HISTOGRAMS, READ_OFF, EVENT)
    assert (found.records_origin, found.classes_origin) == ("described", "described")  # of nobody's: no note is due
    assert load(str(path), bounds=(0, 1)).bounds == (0, 1)
    assert load(str(path), subset="0.0:0.9").synthetic == ORIGIN  # a part of them comes from there too


def test_a_damaged_origin_keeps_the_file_from_being_read(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    np.savez(path, x_train=np.zeros((4, 2), "f4"), y_train=np.array([0, 1, 0, 0]), **{ARRAY: np.zeros(2, np.uint8)})
    assert refused(load, str(path), bounds=(0.0, 1.0), kind=DataError).startswith(
        f"{path}: {ARRAY} is damaged (no JSON)"
    )


@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=20),
    st.floats(-1e6, 1e6).map(lambda low: round(low, 2)),
    st.floats(1, 1e6),
)
def test_scaling_undone_is_scaling_undone(values: list[float], low: float, width: float) -> None:
    bounds = (low, low + width)
    x = np.array(values, dtype="f4")[:, None]
    unit = x if low >= 0 else 2 * x - 1
    back = unscale(unit, bounds)
    assert back.dtype == np.float32
    assert back.min() >= np.float32(bounds[0])
    assert back.max() <= np.float32(bounds[1])
    # float32 of a value near the far end of the range is off by that end's last digit
    digits = np.finfo("f4").eps * 16 * max(1.0, max(map(abs, bounds)) / width)
    assert np.abs(scale(back, bounds) - unit).max() <= digits
