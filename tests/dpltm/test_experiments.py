"""Means over seeds against values from a table of Student's t, and paired differences."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpltm.experiments import paired, summary


def test_an_interval_by_hand() -> None:
    found = summary([0.90, 0.92, 0.91, 0.93, 0.94])
    assert found.count == 5
    assert found.mean == pytest.approx(0.92)
    assert found.sd == pytest.approx(math.sqrt(0.001 / 4))
    assert math.isnan(summary([0.5]).half)
    assert summary([0.0, 2.0]).half == pytest.approx(12.706, rel=1e-4)  # t(0.975, 1)
    assert found.half == pytest.approx(2.776 * math.sqrt(0.001 / 4) / math.sqrt(5), rel=2e-4)  # t(0.975, 4) = 2.776


def test_a_shared_seed_cancels_in_pairs() -> None:
    shared = {0: 0.1, 1: 0.5, 2: 0.9, 3: 0.2}
    found = paired({seed: value + 0.01 for seed, value in shared.items()}, shared | {9: 100.0})
    assert found.count == 4
    assert found.mean == pytest.approx(0.01)
    assert found.half < 1e-12
    assert [paired({0: 1.0, 1: 2.0}, other).count for other in ({1: 1.0, 2: 5.0}, {})] == [1, 0]


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_as_the_statistics_of_the_standard_library(values: list[float]) -> None:
    found = summary(values)
    assert found.mean == pytest.approx(statistics.fmean(values), rel=1e-9, abs=1e-6)
    assert found.sd == pytest.approx(statistics.stdev(values), rel=1e-9, abs=1e-6)
    assert found.half >= 0
