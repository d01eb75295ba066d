"""Wilson's interval against scipy's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from dpltm.reports.statement import interval


@given(st.integers(1, 20_000).flatmap(lambda records: st.tuples(st.integers(0, records), st.just(records))))
def test_is_that_of_scipy(counts: tuple[int, int]) -> None:
    correct, records = counts
    expected = binomtest(correct, records).proportion_ci(0.95, method="wilson")
    found = interval(correct / records, records)
    assert found == {"low": pytest.approx(expected.low, abs=1e-9), "high": pytest.approx(expected.high, abs=1e-9)}


@pytest.mark.parametrize("given", [(None, 10), (0.5, None), (1.5, 10), (float("nan"), 10), ("0.5", 10), (0.5, 0), (True, 10),
                                   (0.5, True), (0.5, 2.5)])  # fmt: skip
def test_none_where_something_is_not_known(given: tuple[object, object]) -> None:
    assert interval(*given) == {}
